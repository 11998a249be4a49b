"""A folder that `torch.distributed.checkpoint` wrote, opened as a stranger's.

torch keeps the description of such a folder as a pickle, which may run whatever code it likes. It
is read here by a reader that knows the few classes which describe tensors. The files that it names
must lie in the folder, and may not claim more than they hold.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)

from nanodoc.errors import UsageError, said
from nanodoc.replay.archive import described

_METADATA = ".metadata"
_LARGEST_METADATA = 64 * 2**20  # bytes
_FILE = re.compile(r"__\d+_\d+\.distcp", re.ASCII)
_CHECKPOINT = "torch.distributed.checkpoint."
_KNOWN = {
    _CHECKPOINT + "metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata"),
        *("TensorProperties", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    _CHECKPOINT + "filesystem": ("_StorageInfo",),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("PosixPath", "PurePosixPath"),
}


class ShardReader(FileSystemReader):
    """Reads the tensors of a folder. Raises `UsageError` for what is not to be trusted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metadata = _metadata_of(folder)

    @property
    def tensors(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Size and type of each tensor, by name."""
        return {
            name: (entry.size, entry.properties.dtype)
            for name, entry in self._metadata.state_dict_metadata.items()
        }

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        return self._metadata


def _metadata_of(folder: Path) -> Any:
    """What the folder says that it holds. Raises `UsageError`."""
    path = folder / _METADATA
    if not path.is_file():
        raise UsageError(f"{folder} is not a multi-rank snapshot: it has no {_METADATA}")
    if path.stat().st_size > _LARGEST_METADATA:
        raise UsageError(f"{path} is larger than {_LARGEST_METADATA / 2**20:.0f} MiB")
    try:
        with path.open("rb") as file:
            metadata = _Unpickler(file).load()
        _check(folder, metadata)
    except UsageError:
        raise
    except Exception as error:  # a broken pickle raises whatever its reader stumbles over
        raise UsageError(f"{path} was not written by nanodoc: {_line(error)[:200]}") from error
    return metadata


class _Unpickler(pickle.Unpickler):
    """Knows the classes that describe tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _KNOWN.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise UsageError(f"it references {module[:80]}.{name[:80]} and was not opened")


def _line(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(said(error).split())


def _check(folder: Path, metadata: Any) -> None:
    """Raises `UsageError` where it names anything but tensors in files of the folder."""
    wrong = UsageError(f"{folder} is not a snapshot written by nanodoc")
    if type(metadata) is not Metadata or not isinstance(metadata.storage_data, dict):
        raise wrong
    for name, entry in metadata.state_dict_metadata.items():
        # what is no tensor is read by a pickle of its own
        if not isinstance(name, str) or type(entry) is not TensorStorageMetadata:
            raise wrong
        if not isinstance(entry.size, torch.Size) or not isinstance(
            entry.properties.dtype, torch.dtype
        ):
            raise wrong
    for index, place in metadata.storage_data.items():
        named = place.relative_path
        if type(index) is not MetadataIndex or not isinstance(named, str):
            raise wrong
        if not _FILE.fullmatch(named) or place.transform_descriptors:
            raise wrong
        _check_part(folder / named, place.offset, place.length)
    # where it was written is nothing to a reader
    metadata.planner_data, metadata.storage_meta = None, StorageMeta()


def _check_part(path: Path, offset: Any, length: Any) -> None:
    """Raises `UsageError` where this part of a file would unpack to more than it holds."""
    if not path.is_file() or type(offset) is not int or type(length) is not int:
        raise UsageError(f"{path} is not part of a snapshot")
    if offset < 0 or length < 0 or offset + length > path.stat().st_size:
        raise UsageError(f"{path} is truncated")
    with path.open("rb") as file:
        try:
            part = cast(IO[bytes], _Part(file, offset, length))
            described(part, length, str(path))
        except zipfile.BadZipFile as error:
            raise UsageError(f"{path} is damaged: {_line(error)[:100]}") from error


class _Part(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, file: io.BufferedReader, offset: int, length: int) -> None:
        self._file, self._offset, self._length = file, offset, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise OSError("before the start")
        self._at = start + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(self._length - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        self._file.seek(self._offset + self._at)
        found = self._file.read(wanted)
        self._at += len(found)
        return found
