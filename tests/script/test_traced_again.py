"""A sick step that can't be run again where it ran: a second run of the script, which nobody hears
of, comes to it once more and is traced there."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nanodoc.supervise.landlock import can_be_kept_from_connecting
from tests.helpers import line_of, nanodoc, python

pytestmark = pytest.mark.skipif(
    not can_be_kept_from_connecting(), reason="this kernel can't keep a process from connecting"
)

SCRIPT = """
import itertools, logging, os, queue, random, socket, sqlite3, sys, threading, time
import torch
from torch import nn

words = sys.argv[1:]
torch.manual_seed(0)
if "unseeded" in words:
    torch.seed()
if "asks" in words:
    print("read", sys.stdin.readline())
if "hangs" in words:
    if os.path.exists("been.here"):
        time.sleep(600)
    open("been.here", "w").close()
if "sends" in words:
    with socket.create_connection(("127.0.0.1", int(words[-1]))) as line:
        line.sendall(b"begun")
if "within" in words:
    import asyncio, io, subprocess, tempfile
    from concurrent.futures import ThreadPoolExecutor
    from torch.utils.data import DataLoader, IterableDataset

    class Numbers(IterableDataset):
        def __iter__(self):
            made = torch.Generator().manual_seed(torch.utils.data.get_worker_info().id)
            while True:
                yield torch.randn(16, 8, generator=made)

    try:
        subprocess.run(["touch", "touched"], check=True)
    except OSError:
        pass
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"a": 3}, f"{folder}/half.pt")
        os.rename(f"{folder}/half.pt", f"{folder}/kept.pt")
        assert torch.load(f"{folder}/kept.pt") == {"a": 3}
        os.mkdir(f"{folder}/new")
        with open(f"{folder}/new/text", "w") as text:
            text.write("kept")
        assert open(f"{folder}/new/text").read() == "kept"
    torch.save({"b": 4}, memory := io.BytesIO())
    assert torch.load(io.BytesIO(memory.getvalue())) == {"b": 4}
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
    ready = threading.Event()
    threading.Timer(0.1, ready.set).start()
    assert ready.wait(5)
    reads, writes = os.pipe()
    os.write(writes, b"through")
    assert os.read(reads, 7) == b"through"

    async def slept():
        return await asyncio.to_thread(abs, -3)

    assert asyncio.run(slept()) == 3
    os.makedirs("made", exist_ok=True)
    os.replace("train.py", "train.py")
if "shared" in words:
    from multiprocessing.shared_memory import SharedMemory
    memory = SharedMemory("nanodoc-test-" + str(os.getppid()), create=True, size=8)
    memory.unlink()
if "signal" in words:
    os.kill(os.getppid(), 0)
if "client" in words:
    sys.path.insert(0, "clients")
    import zmq
logging.basicConfig(filename="train.log", level=logging.INFO)
rows = sqlite3.connect("log.db" if "disk" in words else ":memory:")
rows.execute("create table if not exists log (step int)")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(8, 16), nn.Linear(16, 1), 0.5

    def forward(self, x):
        h = self.first(x)
        total = h.relu().sum(1, keepdim=True)
        return self.last(h / (total - total.detach() * self.scale))


draw = torch.Generator().manual_seed(1)


def batches():
    while True:
        yield torch.randn(16, 8, generator=draw)


def ahead(stream, into):
    for number, x in enumerate(stream):
        into.put(x)
        with open("thread.log", "a") as log:
            log.write(f"{number}\\n")
            os.write(2, b"")
        if number == 25:
            return


def racing(into):
    # which of the two is first is up to the machine
    chance = random.SystemRandom()
    while True:
        time.sleep(chance.random() / 200)
        into.put(torch.randn(16, 8) * chance.random())


stream = batches()
loaded = queue.Queue(maxsize=4)
if "within" in words:
    stream = iter(DataLoader(Numbers(), batch_size=None, num_workers=2))
if "thread" in words:
    threading.Thread(target=ahead, args=(stream, loaded), daemon=True).start()
if "race" in words:
    for _ in range(2):
        threading.Thread(target=racing, args=(loaded,), daemon=True).start()
net = torch.compile(Net(), backend="eager") if "compiled" in words else Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
for step in range(20):
    if "thread" in words or "race" in words:
        (x,) = itertools.islice(iter(loaded.get, None), 1)
    else:
        (x,) = itertools.islice(stream, 1)
    if "state" in words:
        rows.execute("insert into log values (?)", (step,))
        rows.commit()
        (made,) = rows.execute("select count(*) from log").fetchone()
    if step == 13:
        getattr(net, "_orig_mod", net).scale = 1.0
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
    logging.info("step %d", step)
    os.write(1, b"raw\\n")
    with open("steps.txt", "a") as steps:
        steps.write(f"{step}\\n")
    torch.save(step, "last.pt")
"""

TWO = """
import itertools
import torch
from torch import nn

torch.manual_seed(0)


def stream():
    while True:
        yield torch.randn(16, 8)


def fit(steps, bad):
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    drawn = stream()
    for step in range(steps):
        (x,) = itertools.islice(drawn, 1)
        y = net(x)
        if step == bad:
            y = (y - y).log()
        loss = (y - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    fit(20, -1)
    fit(30, 7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(
    script: Path, *words: str, options: tuple[str, ...] = (), stdin: str | None = None
) -> tuple[str, dict[str, Any]]:
    report = script.parent / "report.json"
    told = ("--output-format", "json", "--output", report.name)
    done = nanodoc(
        "run", *told, *options, script.name, "--", *words, cwd=script.parent, stdin=stdin
    )
    assert report.exists(), done.stderr
    until = time.monotonic() + 10  # a loader's workers look every five seconds for their script
    while left_running(script.parent) and time.monotonic() < until:
        time.sleep(0.1)
    assert left_running(script.parent) == []
    return done.stdout, json.loads(report.read_text())


def left_running(folder: Path) -> list[str]:
    """Processes that work in the folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            other = process.name.isdigit() and int(process.name) != os.getpid()
            if other and os.readlink(process / "cwd") == str(folder):
                found.append(f"{process.name} {(process / 'cmdline').read_text()}")
        except OSError:
            continue
    return found


def why_not(report: dict[str, Any]) -> str:
    """The one line that says why the step was not traced."""
    (found,) = [
        row["why"] for row in report["not_checked"] if row["what"].startswith("a second run")
    ]
    finding = report["findings"][0]
    assert (finding["code"], finding["step"]) == ("ND901", 13)
    assert "--trace-steps 13" in finding["explanation"]
    return str(found)


@pytest.mark.parametrize(
    "words",
    [(), ("state",), ("thread",)],
    ids=["an iterator that is not recorded", "state in C", "a thread at work"],
)
def test_the_step_is_traced_in_a_second_run(script: Path, words: tuple[str, ...]) -> None:
    out, report = run(script, *words)
    found = report["findings"][0]
    assert (found["code"], found["step"]) == ("ND202", 13)
    assert found["culprit"]["location"]["line"] == line_of(script, "h / (total")
    assert [one["code"] for one in report["findings"]].count("ND901") == 0
    seen = {row["label"]: row["value"] for row in found["evidence"]}
    assert seen["traced"] == (
        "in a second, muted run of the script; the losses of the 13 steps before it were bitwise "
        "the same"
    )
    assert report["run"]["step_found"].endswith("step 13 traced in a second run")
    assert report["run"]["reproduced"] == "as_it_ran"
    # the user's files and streams have what one run leaves
    assert [line.split()[0] for line in out.splitlines()[:-1:2]] == [str(n) for n in range(13)]
    assert out.count("raw\n") == 13
    folder = script.parent
    assert (folder / "steps.txt").read_text().split() == [str(n) for n in range(13)]
    assert (folder / "train.log").read_text().count("step") == 13
    if "thread" in words:
        numbers = (folder / "thread.log").read_text().split()
        assert numbers == sorted(set(numbers), key=int)
    left = {path.name for path in folder.iterdir()}
    own = {"steps.txt", "train.log", "last.pt", *(("thread.log",) if "thread" in words else ())}
    assert left == {"train.py", "report.json", "nanodoc-out", *own}
    assert not list((folder / "nanodoc-out").glob("trace-step*"))


def test_a_compiled_step_runs_eagerly_where_it_is_traced(script: Path) -> None:
    _, report = run(script, "compiled")
    found = report["findings"][0]
    assert (found["code"], found["step"]) == ("ND202", 13), report["not_checked"]
    assert found["culprit"]["location"]["line"] == line_of(script, "h / (total")
    seen = {row["label"]: row["value"] for row in found["evidence"]}
    assert seen["traced"].startswith("in a second, muted run of the script, without torch.compile;")


def test_a_step_of_a_later_training_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    path = tmp_path / "parts/train.py"
    path.write_text(TWO)
    told = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *told, "-m", "parts.train", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    found = report["findings"][0]
    assert found["code"] == "ND206", done.stderr
    assert found["culprit"]["location"]["line"] == line_of(path, "(y - y).log()")
    assert len(report["run"]["trainings"]) == 2
    assert report["run"]["step_found"].endswith("step 6 traced in a second run")


def test_what_a_process_does_within_itself_is_done_again(script: Path) -> None:
    """Threads, pipes, event loops, temporary files, workers of a loader."""
    _, report = run(script, "within")
    found = report["findings"][0]
    assert (found["code"], found["step"]) == ("ND202", 13), report["not_checked"]
    assert found["culprit"]["location"]["line"] == line_of(script, "h / (total")


def test_the_second_run_is_the_same_as_the_script_alone(script: Path) -> None:
    out, _ = run(script)
    bare = python(script.name, cwd=script.parent).stdout
    assert bare.startswith(out)


@pytest.mark.parametrize("word", ["unseeded", "race"])
def test_what_another_course_shows_is_not_told(script: Path, word: str) -> None:
    _, report = run(script, word)
    assert "came to another loss in step 0: " in why_not(report)


def test_a_database_on_disk_is_not_written_twice(script: Path) -> None:
    _, report = run(script, "state", "disk")
    assert "the second run failed before its first step" in why_not(report)
    rows = sqlite3.connect(script.parent / "log.db")
    assert rows.execute("select count(*) from log").fetchone() == (14,)
    rows.close()


def test_a_script_that_reads_standard_input_is_not_run_twice(script: Path) -> None:
    out, report = run(script, "asks", stdin="one\ntwo\n")
    assert out.startswith("read one\n")
    assert "it reads standard input" in why_not(report)


def test_nothing_is_sent_twice(script: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1.0)
        port = server.getsockname()[1]
        _, report = run(script, "sends", str(port))
        server.accept()[0].close()
        with pytest.raises(TimeoutError):
            server.accept()
    assert "the second run was ended: it speaks to another process" in why_not(report)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("shared", "the second run was ended: it speaks to another process"),
        ("signal", "the second run was ended: it sends a signal to another process"),
        ("client", "it uses zmq, which could send once more what the first run has sent"),
    ],
)
def test_what_reaches_other_processes_is_not_done_twice(script: Path, word: str, why: str) -> None:
    (script.parent / "clients").mkdir()
    (script.parent / "clients/zmq.py").touch()
    _, report = run(script, word)
    assert why in why_not(report)


def test_it_ends_with_the_budget(script: Path) -> None:
    began = time.monotonic()
    _, report = run(script, "hangs", options=("--budget", "10"))
    assert time.monotonic() - began < 60
    assert "when the --budget was used up" in why_not(report)
    assert not report["interrupted"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_interrupted(script: Path, number: signal.Signals) -> None:
    command = ["-m", "nanodoc", "run", "--output-format", "json", "--output", "report.json"]
    begun = subprocess.Popen(
        [sys.executable, *command, script.name, "--", "hangs"],
        cwd=script.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    while not second_runs(script.parent) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(2)  # so that it has come to where it hangs
    begun.send_signal(number)
    assert begun.wait(120) in (130, -number)
    assert left_running(script.parent) == []
    report = json.loads((script.parent / "report.json").read_text())
    assert report["interrupted"]
    assert why_not(report) == "interrupted"


def second_runs(folder: Path) -> bool:
    """The script has left its steps, and another process of nanodoc's has begun behind it."""
    steps = folder / "steps.txt"
    ended = steps.exists() and steps.read_text().count("\n") == 13
    time.sleep(0.5)
    return ended and sum("_child_start" in one for one in left_running(folder)) > 0


def test_without_a_budget_there_is_none(script: Path) -> None:
    _, report = run(script, options=("--budget", "0"))
    assert "no time was left (--budget 0s)" in why_not(report)
