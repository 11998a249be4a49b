"""Trainings that a replay, or the watching of their processes, changed: batches lost or trained
twice, random numbers rewound, processes that never ran or never ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import fresh_nanodoc, nanodoc, python

HEAD = """
import collections, multiprocessing as mp, queue, sys, threading, time
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

def step(x):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

def fill(into):
    draw = torch.Generator().manual_seed(1)
    for _ in range(12):
        into.put(torch.randn(8, 4, generator=draw).numpy())

def train(*given):
    for number in range(10):
        if given and hasattr(given[0], "get_lock"):
            with given[0].get_lock():
                given[0].value += 1
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained", loss.item(), flush=True)

def send(number, into):
    into.send(10 * number)
"""
SCRIPTS = {
    "an object of which only the loop's line speaks": """
class Batches:
    def __init__(self):
        self.data, self.at = torch.randn(60, 4), 0
    def __iter__(self):
        return self
    def __next__(self):
        self.at += 5
        if self.at > 60:
            raise StopIteration
        return self.data[self.at - 5 : self.at]
def main():
    batches = Batches()
    for x in batches:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
main()
""",
    "a thread that draws random numbers": """
batches = queue.Queue()
def work():
    for _ in range(400):
        batches.put(torch.randn(8, 4))
threading.Thread(target=work, daemon=True).start()
for _ in range(400):
    last = step(batches.get())
print(last)
""",
    "a thread that puts into a container": """
batches = collections.deque()
def work():
    draw = torch.Generator().manual_seed(1)
    for _ in range(300):
        batches.append(torch.randn(8, 4, generator=draw))
        time.sleep(0.0005)
threading.Thread(target=work, daemon=True).start()
for _ in range(300):
    until = time.time() + 20
    while not batches:
        assert time.time() < until, "a batch was lost"
    last = step(batches.popleft())
print(last)
""",
    "a thread that waits to be asked": """
batches, free, ready = queue.Queue(), threading.Semaphore(0), threading.Semaphore(0)
def work():
    while True:
        batches.put(torch.randn(8, 4, generator=draw)); ready.release(); free.acquire()
draw = torch.Generator().manual_seed(1)
threading.Thread(target=work, daemon=True).start()
for number in range(5):
    ready.acquire()
    print(number, step(batches.get_nowait()))
    free.release()
""",
    "a process in the step": """
if __name__ == "__main__":
    here, there = mp.Pipe()
    for number in range(5):
        process = mp.Process(target=send, args=(number, there))
        process.start()
        print(here.recv(), step(torch.randn(8, 4)))
        process.join()
""",
    "a process that nobody joins": """
if __name__ == "__main__":
    mp.get_context("fork").Process(target=train).start()
""",
    "a counter that processes share": """
if __name__ == "__main__":
    counter = mp.Value("i", 0)
    processes = [mp.get_context("fork").Process(target=train, args=(counter,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(counter.value)
""",
    "a process that is ended after its training": """
def busy(into):
    train()
    into.put(b"x" * 10_000_000)  # more than a pipe holds: it waits to be read
if __name__ == "__main__":
    into = mp.Queue()
    process = mp.get_context("fork").Process(target=busy, args=(into,))
    process.start()
    process.join(6)
    process.terminate()
    process.join(20)
    print(process.exitcode)
    process.kill()
""",
}


def watched(folder: Path, run: Any) -> tuple[str, dict[str, Any]]:
    done = run("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=folder)
    assert (folder / "r.json").exists(), done.stderr
    return done.stdout, json.loads((folder / "r.json").read_text())


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_training_is_as_without_nanodoc(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + SCRIPTS[name])
    bare = python("train.py", cwd=tmp_path)
    assert bare.returncode == 0, bare.stderr
    out, report = watched(tmp_path, nanodoc)
    assert out == bare.stdout
    assert report["findings"] == []


def test_a_queue_of_a_process_where_nobody_imported_it_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        HEAD
        + """
if __name__ == "__main__":
    batches = mp.JoinableQueue()
    process = mp.Process(target=fill, args=(batches,), daemon=True)
    process.start()
    for number in range(12):
        x = torch.from_numpy(batches.get())
        batches.task_done()
        print(number, step(x))
"""
    )
    bare = python("train.py", cwd=tmp_path)
    out, report = watched(tmp_path, fresh_nanodoc)
    assert out == bare.stdout
    assert report["run"]["step_found"].endswith("replay of step 0 bitwise the same")


def test_an_error_of_the_scripts_own_after_a_childs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        HEAD
        + """
def fails():
    train()
    raise ValueError("no such shard")
if __name__ == "__main__":
    process = mp.get_context("fork").Process(target=fails)
    process.start()
    process.join()
    {}["rate"]
"""
    )
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert "KeyError: 'rate'" in done.stderr
