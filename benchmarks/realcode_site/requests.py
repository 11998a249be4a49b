"""Stands in for requests where a script downloads one archive: it gets the folder `cora`."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from types import SimpleNamespace


@contextlib.contextmanager
def get(url: str, stream: bool = False) -> Iterator[SimpleNamespace]:
    """The folder as an archive."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as archive:
        archive.add("cora")
    memory.seek(0)
    yield SimpleNamespace(raw=memory)
