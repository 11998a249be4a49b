"""Training loops as people write them, as whole scripts. Each prints a digest of its weights at its
end; `BAD` stands where one of them is planted with a NaN."""

from __future__ import annotations

HEAD = """
import hashlib, random, sys
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, Y = torch.randn(48, 6), torch.randint(0, 3, (48,))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        x = F.dropout(torch.tanh(self.norm(self.first(x))), 0.1, self.training)
        BAD
        return self.last(x)

def digest(*modules):
    parts = [t.detach().numpy().tobytes() for m in modules for t in m.state_dict().values()]
    print(hashlib.sha256(b"".join(parts)).hexdigest(), torch.rand(1).item())
"""

STYLES = {
    "functions called per epoch": """
def train(model, loader, optimizer, epoch):
    model.train()
    total = 0.0
    for i, (data, target) in enumerate(loader):  # step
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if i % 2 == 0:
            print(epoch, i, loss.item())
    return total

def test(model, loader):
    model.eval()
    with torch.no_grad():
        print(sum((model(d).argmax(1) == t).sum().item() for d, t in loader))

if __name__ == "__main__":
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    for epoch in range(2):
        train(model, loader, optimizer, epoch)
        test(model, loader)
        schedule.step()
    digest(model)
""",
    "flat file, while True, micro-batches, the next batch fetched early": """
def get_batch():
    i = torch.randint(0, 40, (8,))
    return X[i], Y[i]

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
x, y = get_batch()
step, best = 0, float("inf")
while True:  # step
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (1 - step / 20)
    if step % 4 == 0:
        model.eval()
        with torch.no_grad():
            val = F.cross_entropy(model(X), Y).item()
        model.train()
        print("val", val)
        if val < best:
            best = val
            torch.save(model.state_dict(), "best.pt")
    for micro in range(2):
        loss = F.cross_entropy(model(x), y) / 2
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    if step > 9:
        break
digest(model)
""",
    "an optimizer step every second batch": """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
for i, (x, y) in enumerate(DataLoader(TensorDataset(X, Y), batch_size=6)):  # step
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    losses.append(loss.item())
    if (i + 1) % 2:
        continue
    optimizer.step()
    optimizer.zero_grad()
print(losses)
digest(model)
""",
    "two networks against each other": """
def make():
    return nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 6))
G, D = make(), Net()
d_opt = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
g_opt = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
for epoch in range(2):
    for i, data in enumerate(DataLoader(TensorDataset(X), batch_size=8), 0):  # step
        D.zero_grad()
        real = F.softplus(-D(data[0])).mean()
        real.backward()
        fake = G(torch.randn(8, 4))
        false = F.softplus(D(fake.detach())).mean()
        false.backward()
        d_opt.step()
        G.zero_grad()
        cheat = F.softplus(-D(fake)).mean()
        cheat.backward()
        g_opt.step()
        print(epoch, i, real.item(), cheat.item())
digest(G, D)
""",
    "a closure that is called several times": """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
for i in range(4):  # step
    def closure():
        optimizer.zero_grad()
        out = model(X)
        loss = criterion(out, Y)
        print("loss", loss.item())
        loss.backward()
        return loss
    optimizer.step(closure)
digest(model)
""",
    "no optimizer at all": """
model = nn.Linear(6, 3)
from itertools import count
for number in count(1):  # step
    index = torch.randint(0, 48, (16,))
    x, y = X[index], Y[index]
    model.zero_grad()
    output = F.cross_entropy(model(x), y)
    loss = output.item()
    output.backward()
    for param in model.parameters():
        param.data.add_(-0.1 * param.grad)
    if number > 12:
        break
print(loss)
digest(model)
""",
    "a class with private names, super() and a counter": """
class Base:
    def __init__(self):
        self.model, self.seen, self.history = Net(), 0, []
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-3)
    def report(self, loss):
        self.history.append(loss)
        print("step", self.seen, loss)

class Trainer(Base):
    def __init__(self):
        super().__init__()
        self.__loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    def report(self, loss):
        super().report(round(loss, 6))
    def __one(self, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(self.model(x), y)
        return loss
    def fit(self, epochs):
        for epoch in range(epochs):
            batches = iter(self.__loader)
            while True:  # step
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                self.seen += 1
                self.optimizer.zero_grad()
                loss = self.__one(batch)
                loss.backward()
                self.optimizer.step()
                self.report(loss.item())

trainer = Trainer()
trainer.fit(2)
digest(trainer.model)
""",
    "generators, zip, a teacher and an average by hand": """
import copy, itertools
import numpy as np
def stream(rng):
    while True:
        yield torch.from_numpy(rng.integers(0, 48, 8))
model, teacher = Net(), Net().eval()
for p in teacher.parameters():
    p.requires_grad_(False)
average = copy.deepcopy(model)
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
indices = stream(np.random.default_rng(0))
def loop(steps):
    done = 0
    def said(loss):
        nonlocal done
        done += 1
        print(done, loss)
    for (x,), index in zip(DataLoader(TensorDataset(X), batch_size=8), itertools.islice(indices, steps)):  # step
        y = Y[index]
        more = X[next(indices)]
        lam = np.random.beta(0.4, 0.4)
        mixed = lam * x + (1 - lam) * more
        out = model(mixed)
        soft = F.kl_div(F.log_softmax(out, 1), F.softmax(teacher(mixed), 1), reduction="batchmean")
        loss = F.cross_entropy(out, y) + soft
        optimizer.zero_grad()
        try:
            loss.backward()
            optimizer.step()
        finally:
            said(loss.item())
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.mul_(0.9).add_(p, alpha=0.1)
np.random.seed(0)
loop(5)
loop(4)
digest(model, average)
""",
    "a critic that is trained more often": """
G, C = nn.Linear(3, 6), Net()
g_opt, c_opt = (torch.optim.RMSprop(m.parameters(), lr=1e-3) for m in (G, C))
for step in range(4):  # step
    for _ in range(3):
        c_opt.zero_grad()
        fake = G(torch.randn(8, 3)).detach()
        e = torch.rand(8, 1)
        mix = (e * X[:8] + (1 - e) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(C(mix).sum(), mix, create_graph=True)
        loss = C(fake).mean() - C(X[:8]).mean() + ((slope.norm(2, 1) - 1) ** 2).mean()
        loss.backward()
        c_opt.step()
    g_opt.zero_grad()
    g_loss = -C(G(torch.randn(8, 3))).mean()
    g_loss.backward()
    g_opt.step()
    print(step, loss.item(), g_loss.item())
digest(G, C)
""",
    "workers, and an exit code of its own": """
import atexit
atexit.register(print, "at exit")
def main():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, num_workers=1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:  # step
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    torch.save(model, "model.pt")  # pickles the class by its name in __main__
    digest(torch.load("model.pt", weights_only=False))
if __name__ == "__main__":
    main()
    sys.exit(5)
""",
    "a generator that yields its losses": """
def training(model, optimizer, loader):
    for epoch in range(2):
        for x, y in loader:  # step
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield epoch, loss.item()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
for epoch, loss in training(model, optimizer, loader):
    print(epoch, loss + torch.rand(()).item())
digest(model)
""",
    "a generator that is told what to train on": """
def training(model, optimizer):
    loss = torch.zeros(())
    while True:  # step
        x, y = yield loss.item()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
model = Net()
trainer = training(model, torch.optim.Adam(model.parameters(), lr=0.05))
next(trainer)
for start in range(0, 48, 8):
    print(trainer.send((X[start:start + 8], Y[start:start + 8])))
digest(model)
""",
    "a coroutine that takes batches from a queue": """
import asyncio
async def produce(queue):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True):
        await queue.put((x, y))
    await queue.put(None)
async def consume(queue, model, optimizer):
    while True:  # step
        item = await queue.get()
        if item is None:
            break
        x, y = item
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        await asyncio.sleep(0)
        print(loss.item())
async def main():
    queue, model = asyncio.Queue(2), Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    await asyncio.gather(produce(queue), consume(queue, model, optimizer))
    digest(model)
asyncio.run(main())
""",
    "a step function that is awaited": """
import asyncio
async def batches():
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True):
        await asyncio.sleep(0)
        yield x, y
async def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
async def main():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    async for x, y in batches():  # step
        loss = await train_step(model, optimizer, x, y)
        print(loss)
    digest(model)
asyncio.run(main())
""",
    "batches that are awaited in a comprehension": """
import asyncio
async def fetch(place):
    await asyncio.sleep(0)
    return X[place:place + 8], Y[place:place + 8]
async def main():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for place in range(0, 36, 4):  # step
        parts = [await fetch(start) for start in (place, place + 8)]
        x, y = (torch.cat(both) for both in zip(*parts))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())
    digest(model)
asyncio.run(main())
""",
    "a trainer's step in a list comprehension": """
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters(), lr=0.05)
    def step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

def main():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    trainer = Trainer(Net())
    for epoch in range(2):
        losses = [trainer.step(x, y) for x, y in loader]  # step
        print(epoch, losses)
    digest(trainer.model)
main()
""",
    "a generator expression that is summed, at the top of a file": """
x = "kept"
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
def advance(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
for epoch in range(2):
    total = sum(
        advance(x, y)
        for x, y in loader  # step
        if len(x) == 8
    )
    print(epoch, total, x)
digest(model)
""",
    "a step that is mapped over the batches": """
def fit(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    def go(batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    for epoch in range(2):
        for loss in map(go, loader):  # step
            print(loss)
    print(list(map(lambda batch: round(go(batch), 4), loader)))
model = Net()
fit(model, DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True))
digest(model)
""",
    "epochs and batches in one comprehension": """
def main():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    def advance(epoch, x, y):
        loss = F.cross_entropy(model(x), y) / (1 + epoch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    print({(epoch, i): advance(epoch, x, y)
           for epoch in range(2)
           for i, (x, y) in enumerate(loader)})  # step
    digest(model)
main()
""",
    "an optimizer that steps at the top of its iteration": """
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
optimizer.zero_grad()
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True):  # step
        optimizer.step()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        print(loss.item())
digest(model)
""",
    "losses that were made before the loop over the optimizers": """
one, two = Net(), Net()
pairs = [(one, torch.optim.Adam(one.parameters())), (two, torch.optim.Adam(two.parameters()))]
for x, y in DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True):  # step
    losses = [F.cross_entropy(model(x), y) for model, _ in pairs]
    for (model, optimizer), loss in zip(pairs, losses):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print([loss.item() for loss in losses])
digest(one, two)
""",
}
