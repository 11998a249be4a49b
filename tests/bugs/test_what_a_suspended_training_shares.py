"""A step that was run again took an item of an event loop's queue, and the training hung at the end of
it; generators of a script were held, and their `finally` ran when the process ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc, python

HEAD = """
import asyncio
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def batch():
    x = torch.randn(16, 4)
    return x, x.sum(1, keepdim=True)

def step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()

def batches():
    try:
        while True:
            yield batch()
    finally:
        print("closed", torch.rand(1).item())
"""
SCRIPTS = {
    "what is awaited has a close() of its own": """
class Client:
    closed = False
    def close(self):
        self.closed = True
    def __await__(self):
        step(*batch())
        yield from asyncio.sleep(0).__await__()

async def main():
    client = Client()
    for number in range(4):
        await client
        print(number, client.closed)
asyncio.run(main())
""",
    "tasks that are gathered while another trains": """
async def note(number):
    await asyncio.sleep(0)
    return number

async def other():
    for _ in range(3):
        async with asyncio.timeout(9):
            step(*batch())
        await asyncio.sleep(0)

async def training():
    for number in range(4):
        noted = await asyncio.gather(note(number), note(-number))
        x, y = batch()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        print(noted)

async def main():
    await asyncio.gather(training(), other())
asyncio.run(main())
""",
    "generators that were made before": """
def twice():
    yield step(*batch())
    yield step(*batch())

def rounds(parts):
    for part in parts:
        yield from part
        print("a round")
print(list(rounds([twice() for _ in range(4)])))
""",
    "a variable of the module lets go of its generator": """
data = batches()
def training():
    for _ in range(4):
        x, y = next(data)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()
print(training())
del data
""",
    "a loop of the module lets go of its generator": """
data = batches()
for number in range(4):
    x, y = next(data)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
del data
""",
    "a queue that is awaited while another trains": """
async def critic():
    async with asyncio.Lock():
        for _ in range(2):
            async with asyncio.timeout(9):
                step(*batch())
            await asyncio.sleep(0)

async def actor(queue):
    for _ in range(5):
        number = await queue.get()
        x, y = batch()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        print(number)

async def feed(queue):
    for number in range(5):
        await asyncio.sleep(0)
        queue.put_nowait(number)

async def main():
    queue = asyncio.Queue()
    await asyncio.gather(actor(queue), critic(), feed(queue))
asyncio.run(main())
""",
    "a queue that is asked at once": """
async def main():
    queue = asyncio.Queue()
    for number in range(6):
        queue.put_nowait(number)
    while not queue.empty():
        number = queue.get_nowait()
        await asyncio.sleep(0)
        x, y = batch()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        print(number)
asyncio.run(main())
""",
    "a generator that trains is closed": """
def training(data):
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss.item()
going = training(batches())
print(next(going), next(going))
going.close()
del going
""",
    "a function lets go of its generator": """
def training(data):
    for number, (x, y) in zip(range(4), data):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()
print(training(batches()))
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_training_is_as_without_nanodoc(name: str, tmp_path: Path) -> None:
    end = 'print("after", torch.rand(1).item(), sum(p.sum().item() for p in model.parameters()))\n'
    (tmp_path / "train.py").write_text(HEAD + SCRIPTS[name] + end)
    bare = python("train.py", cwd=tmp_path)
    assert bare.returncode == 0, bare.stderr
    watched = nanodoc("run", "train.py", cwd=tmp_path)
    assert (watched.stdout, watched.returncode) == (bare.stdout, 0), watched.stderr
    assert "step train.py:" in watched.stderr
    assert "never awaited" not in watched.stderr
