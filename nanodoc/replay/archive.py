"""Opens a stranger's snapshot: nothing in the file is executed, and what it may unpack to is
bounded by its own size before anything of it is used."""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from nanodoc.errors import UsageError

_LARGEST = 64 * 2**30  # bytes; a snapshot is a model, an optimizer and a batch
_PICKLE = 256 * 2**20  # bytes of everything but the tensors' values
_RECORDS = 1_000_000
_HEAD = b"PK\x03\x04"  # torch reads a file that begins otherwise in formats of its own
_DEPTH = 64
# How often a part of the file may be met again: lists that hold a list twice, views of a storage.
# An expanded mask is larger in memory than on disk, hence the room beside the multiple.
_AGAIN = 16
_TIMES = 2  # values a byte of the pickle: none is shorter than a byte, and few are shared
_VALUES = 10_000
_ROOM = 4 * 2**30
_LEAVES = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_REFUSED = "contains more than tensors and plain values and was not opened: "


def opened(path: Path) -> Any:
    """What a file that `torch.save` wrote holds, on the CPU. Raises `UsageError`."""
    if not path.is_file():
        raise UsageError(f"no such snapshot: {path}")
    try:
        told = _described(path)
        with warnings.catch_warnings(action="ignore"):  # of what a stranger's file is unusual in
            content = torch.load(path, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        raise _broken(path, error) from error
    except MemoryError as error:
        raise UsageError(f"{path} needs more memory than is available") from error
    except UsageError:
        raise
    except Exception as error:  # a broken pickle raises whatever its reader stumbles over
        refused = _unsafe_global(error)
        if refused is None:
            raise _broken(path, error) from error
        raise UsageError(f"{path} {_REFUSED}{refused}") from error
    Measure(path, told).check(content)
    return content


def _broken(path: Path, error: BaseException) -> UsageError:
    return UsageError(f"{path} is not a snapshot or is truncated: {first_line(error)}")


def _described(path: Path) -> int:
    """The bytes of the records that describe the content. Raises `UsageError` where the file would
    unpack to more than it holds."""
    size = path.stat().st_size
    if size > _LARGEST:
        raise UsageError(
            f"{path} is {size / 2**30:.0f} GiB large; the limit is {_LARGEST / 2**30:.0f} GiB"
        )
    with path.open("rb") as file:
        return described(file, size, str(path))


def described(file: IO[bytes], size: int, name: str) -> int:
    """As `torch.save` wrote it into `size` bytes: those of the records that describe its content.
    Raises `UsageError` where it would unpack to more, and `BadZipFile`."""
    if file.read(len(_HEAD)) != _HEAD:
        raise zipfile.BadZipFile("File is not a zip file")
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
    except (OSError, ValueError, NotImplementedError, struct.error, zlib.error) as error:
        raise zipfile.BadZipFile(str(error)) from error
    if len(records) > _RECORDS:
        raise UsageError(f"{name} has {len(records)} records; the limit is {_RECORDS}")
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise UsageError(f"{name} is compressed, but snapshots are not; it was not opened")
    if sum(record.file_size for record in records) > size:
        raise UsageError(f"{name} declares more data than its {size} bytes; it was not opened")
    told = sum(r.file_size for r in records if r.filename.endswith(".pkl"))
    if told > _PICKLE:
        raise UsageError(
            f"{name} has {told / 2**20:.0f} MiB besides its tensors; the limit is "
            f"{_PICKLE / 2**20:.0f} MiB"
        )
    return told


class Measure:
    """The size of what a file holds, where parts that are met twice count twice, as they do for
    whoever walks through it."""

    def __init__(self, path: Path, described: int) -> None:
        """`described`: the bytes of the file besides the tensors' values."""
        self._path = path
        self._most = _TIMES * described + _VALUES
        self._most_bytes = _AGAIN * path.stat().st_size + _ROOM
        self._known: dict[int, int] = {}
        self._around: set[int] = set()
        self._bytes = 0

    def check(self, content: object) -> None:
        """Raises `UsageError`."""
        if self._count(content, 0) > self._most:
            raise self._refused("its objects reference each other too often")

    def _refused(self, why: str) -> UsageError:
        return UsageError(f"{self._path} is not a snapshot written by nanodoc: {why}")

    def _count(self, value: object, depth: int) -> int:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _LEAVES):
            return 1
        number = id(value)
        if number in self._known:
            return self._known[number]
        if number in self._around:
            raise self._refused("one of its objects contains itself")
        if depth > _DEPTH:
            raise self._refused(f"it is nested more than {_DEPTH} levels deep")
        self._around.add(number)
        total = 1 + sum(self._count(part, depth + 1) for part in self._parts(value))
        self._around.discard(number)
        self._known[number] = total = min(total, self._most + 1)
        return total

    def _parts(self, value: object) -> Iterator[object]:
        if isinstance(value, Mapping):
            for key, part in value.items():
                yield key
                yield part
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield from value
        else:
            raise self._refused(f"it contains a {type(value).__name__[:40]}")

    def _tensor(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = 1
            self._bytes += tensor.numel() * tensor.element_size()
            if self._bytes > self._most_bytes and tensor.device.type != "meta":
                raise self._refused("its tensors are far larger than the file")
        return 1


def first_line(error: BaseException) -> str:
    """What an error says in its first line, at most 200 characters."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _unsafe_global(error: BaseException) -> str | None:
    """What a refused file asked for, out of torch's long and coloured message; None of an error of
    another kind."""
    if not isinstance(error, pickle.UnpicklingError):
        return None
    match = re.search(
        r"Unsupported (?:global|class|operand)[^.]*?(?:GLOBAL )?([\w.]+) was not", str(error)
    )
    return match[1] if match else "objects that torch.load rejects with weights_only=True"
