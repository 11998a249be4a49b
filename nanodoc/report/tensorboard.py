"""`history.jsonl` as TensorBoard's event files. Needs the `tensorboard` extra."""

from __future__ import annotations

import tempfile
from pathlib import Path

from nanodoc.artifacts import make_folder
from nanodoc.errors import UsageError
from nanodoc.report.scalars import scalars, steps_of


def check_tensorboard(folder: Path) -> None:
    """Raises `UsageError` where TensorBoard is not installed or `folder` can't be written to:
    before a run, not after it."""
    try:
        import tensorboard  # type: ignore[import-untyped, unused-ignore]  # ships no types  # noqa: F401
    except ImportError as error:
        raise UsageError(
            '--tensorboard needs TensorBoard: pip install "nanodoc-torch[tensorboard]"'
        ) from error
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}; choose a different folder with "
            "--tensorboard"
        ) from error


def write_tensorboard(history: Path, folder: Path) -> Path:
    """Writes every scalar of `history` into an event file below `folder`, which is made if need be.
    Raises `UsageError` where it can't."""
    check_tensorboard(folder)
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))  # type: ignore[no-untyped-call, unused-ignore]  # unannotated in torch
    try:
        for values in steps_of(history):
            for tag, value, step in scalars(values):
                writer.add_scalar(tag, value, step)  # type: ignore[no-untyped-call, unused-ignore]  # as above
    finally:
        writer.close()  # type: ignore[no-untyped-call, unused-ignore]  # as above
    return folder
