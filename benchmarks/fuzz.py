"""Snapshots that are broken at random, opened and replayed: each must end in a report or in one
line, soon, and in little memory. `scripts/fuzz` runs it, `tests/replay/test_fuzz.py` a short
one."""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_TRAIN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    def forward(self, x):
        return self.second(torch.log(torch.relu(self.norm(self.first(x)))))

def build():
    torch.manual_seed(0)
    model = Net()
    data = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(4)]
    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": optimizer}
"""
_SCRIPT = """
from train import build
recipe = build()
for batch in recipe["data"]:
    recipe["optimizer"].zero_grad()
    loss = recipe["loss_fn"](recipe["model"], batch)
    loss.backward()
    recipe["optimizer"].step()
"""
SECONDS = 5.0  # of the processor, so that other load makes no defect; a sound file takes a tenth
MEMORY = 300  # MiB over a replay of the sound file
_WEIRD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, 2**64, 1e308, float("nan"), "", "x" * 1000, "a\0b"),
    *("\x1b[31m\n::error::", "\ud800", b"\xff", [], (), {}, [[]], {"a": {}}, {1: 2}, set()),
    *(torch.zeros(0), torch.zeros(3, dtype=torch.cfloat), torch.zeros(2, 2).to_sparse()),
    *(torch.zeros(5056, dtype=torch.uint8), torch.zeros(1).expand(10**12)),
    *(torch.empty(3, device="meta"), torch.nn.Parameter(torch.ones(2)), torch.float32),
    *(torch.Size([1, 2]), torch.device("cpu")),
)


@dataclass(slots=True)
class Found:
    """What became of the files."""

    files: int = 0
    opened: int = 0
    replayed: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)


def sound_snapshots(folder: Path) -> list[Path]:
    """The snapshot of a recipe's step and that of a script's, in `folder` with their code."""
    (folder / "train.py").write_text(_TRAIN)
    (folder / "script.py").write_text(_SCRIPT)
    made = []
    for number, target in enumerate(("train.py:build", "script.py")):
        before = set(folder.glob("nanodoc-out/*.pt"))
        subprocess.run(
            [sys.executable, "-m", "nanodoc", "run", target, "--quiet"],
            cwd=folder,
            capture_output=True,
            check=False,
        )
        (written,) = set(folder.glob("nanodoc-out/*.pt")) - before
        made.append(written.rename(folder / f"sound{number}.pt"))
    return made


class Mutants:
    """Broken copies of one snapshot."""

    def __init__(self, sound: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._bytes = sound.read_bytes()
        self._content = torch.load(sound, weights_only=True)
        with zipfile.ZipFile(sound) as archive:
            self._records = {name: archive.read(name) for name in archive.namelist()}
        self._pickle = next(name for name in self._records if name.endswith("data.pkl"))
        self._places = [place for place in _places(self._content) if place]

    def one(self) -> tuple[str, bytes]:
        """(what was done to it, the file's bytes)."""
        kind = self._random.choices(
            ("bytes", "cut", "pickle", "records", "value", "without", "twice"),
            (15, 5, 25, 5, 35, 10, 5),
        )[0]
        if kind == "bytes":
            return kind, self._disturbed(self._bytes, self._random.choice([1, 2, 5, 50]))
        if kind == "cut":
            return kind, self._bytes[: self._random.randrange(len(self._bytes))]
        if kind == "pickle":
            records = dict(self._records)
            times = self._random.choice([1, 1, 2, 3, 8])
            records[self._pickle] = self._disturbed(records[self._pickle], times)
            return kind, _zipped(records, zipfile.ZIP_STORED)
        if kind == "records":
            return kind, self._other_records()
        place = self._random.choice(self._places)
        value = self._random.choice(_WEIRD)
        if kind == "twice":
            for _ in range(self._random.randrange(2, 40)):
                value = [value, value]
        content = _changed(self._content, place, value, remove=kind == "without")
        told = f"{kind}: {'.'.join(str(key) for key in place)}"
        file = io.BytesIO()
        try:
            torch.save(content, file)
        except Exception:  # what cannot be written needs no reader
            return self.one()
        return told, file.getvalue()

    def _disturbed(self, data: bytes, times: int) -> bytes:
        changed = bytearray(data)
        for _ in range(times):
            at, kind = self._random.randrange(len(changed)), self._random.random()
            if kind < 0.5:
                changed[at] = self._random.randrange(256)
            elif kind < 0.7:
                del changed[at]
            elif kind < 0.9:
                changed.insert(at, self._random.randrange(256))
            else:
                other = self._random.randrange(len(changed))
                changed[at : at + 4] = changed[other : other + 4]
        return bytes(changed)

    def _other_records(self) -> bytes:
        records, kind = dict(self._records), self._random.random()
        name = self._random.choice(list(records))
        if kind < 0.4:
            del records[name]
        elif kind < 0.7:
            records[name] = records[name][: self._random.randrange(len(records[name]) + 1)]
        else:
            records["../" * self._random.randrange(1, 4) + name] = records.pop(name)
        return _zipped(records, self._random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))


def _zipped(records: dict[str, bytes], compression: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return file.getvalue()


def _places(value: Any, around: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield around
    parts: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        parts = iter(value.items())
    elif isinstance(value, (list, tuple)):
        parts = iter(list(enumerate(value))[:8])
    for key, part in parts:
        yield from _places(part, (*around, key))


def _changed(value: Any, place: tuple[Any, ...], other: Any, *, remove: bool) -> Any:
    if not place:
        return other
    key, rest = place[0], place[1:]
    parts = dict(value) if isinstance(value, dict) else list(value)
    if remove and not rest:
        del parts[key]
    else:
        parts[key] = _changed(value[key], rest, other, remove=remove)
    return tuple(parts) if type(value) is tuple else parts


@dataclass(frozen=True, slots=True)
class End:
    """How one command ended."""

    code: int | None
    """None: it was ended when its time was up."""
    said: str
    memory: int
    """MiB at the peak."""
    seconds: float
    """Of the processor."""


def command(folder: Path, arguments: Sequence[str], seconds: float) -> End:
    """Runs the command line in a fork of this process, which has imported torch. It is ended when
    it has taken so many seconds of the processor, or none at all for so long."""
    with tempfile.TemporaryFile() as streams:
        number = os.fork()
        if number == 0:
            _run(folder, arguments, streams.fileno())
        moved, spent, status = time.monotonic(), 0.0, None
        while True:
            ended, raw, usage = os.wait4(number, os.WNOHANG)
            if ended:
                status = os.waitstatus_to_exitcode(raw)
                break
            if (now := _processor_seconds(number)) > spent:
                moved, spent = time.monotonic(), now
            if spent > seconds or time.monotonic() - moved > seconds:
                os.kill(number, signal.SIGKILL)
                usage = os.wait4(number, 0)[2]
                break
            time.sleep(0.005)
        streams.seek(0)
        said = streams.read().decode(errors="replace")
    assert usage is not None
    return End(status, said, usage.ru_maxrss // 1024, usage.ru_utime + usage.ru_stime)


def _processor_seconds(number: int) -> float:
    """What a process has taken so far; 0 where the operating system does not tell (not Linux)."""
    try:
        told = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    user, system = told.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _run(folder: Path, arguments: Sequence[str], stream: int) -> None:
    code: Any = 1
    try:
        os.chdir(folder)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["nanodoc", *arguments]
        sys.path.insert(0, str(folder))
        from nanodoc.cli.app import main

        main()
    except SystemExit as error:
        code = error.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0)


def fuzz(
    folder: Path,
    files: int,
    seed: int,
    *,
    keep: Path | None = None,
    sound: Sequence[Path] | None = None,
) -> Found:
    """Breaks `files` snapshots; those that make a defect are left in `keep`. `sound` are the
    snapshots to break, of `sound_snapshots` in the same folder."""
    import nanodoc.cli.app
    import nanodoc.pipeline.replay
    import nanodoc.rules.catalogue  # noqa: F401 - what each fork would import again
    from nanodoc.errors import UsageError
    from nanodoc.replay.snapshot import read_snapshot

    import_module("torch._dynamo")  # the first optimizer does, in each fork
    found = Found()
    sound = sound or sound_snapshots(folder)
    kinds = [Mutants(path, seed + number) for number, path in enumerate(sound)]
    usual = max(command(folder, _replay(path), 60.0).memory for path in sound)
    path = folder / "broken.pt"
    for number in range(files):
        told, data = kinds[number % len(kinds)].one()
        path.write_bytes(data)
        found.files += 1
        defect = None
        began, spent = time.process_time(), 0.0
        try:
            read_snapshot(path)
            found.opened += 1
        except UsageError as error:
            found.ends["refused"] += 1
            defect = "several lines" if "\n" in str(error) else None
        except Exception as error:
            defect = f"{type(error).__name__}: {str(error)[:100]}"
        else:
            found.replayed += 1
            end = command(folder, _replay(path), SECONDS * 12)
            spent = end.seconds
            found.ends[f"exit code {end.code}"] += 1
            if end.code not in (0, 1, 2):
                defect = f"exit code {end.code}: {end.said[-200:]}"
            elif end.memory > usual + MEMORY:
                defect = f"{end.memory} MiB"
            elif any(ch in end.said for ch in "\x1b\0\x07"):
                defect = "control characters in what it says"
        spent += time.process_time() - began
        if defect is None and spent > SECONDS:
            defect = f"{spent:.0f} s"
        if defect is not None:
            found.defects.append(f"{told}: {defect}")
            if keep is not None:
                keep.mkdir(exist_ok=True)
                (keep / f"defect{len(found.defects)}.pt").write_bytes(data)
    return found


def _replay(path: Path) -> list[str]:
    return ["replay", path.name, "--in-process", "--quiet", "--budget", "1"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 1 where there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-defects"))
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(Path(folder), given.files, given.seed, keep=given.keep.absolute())
    ends = ", ".join(f"{count} {end}" for end, count in sorted(found.ends.items()))
    print(f"{found.files} files, {found.opened} opened: {ends}")
    for defect in found.defects:
        print(f"  {defect}")
    sys.exit(1 if found.defects else 0)
