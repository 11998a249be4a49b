"""Trainings for a device: AMP, checkpoints, custom functions, two devices, errors. Written to a
file of the test's folder."""

RECIPES = '''
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Root(nn.Module):
    def __init__(self, how="plain"):
        super().__init__()
        self.linear, self.how = nn.Linear(4, 4, bias=False), how

    def root(self, x):
        return torch.sqrt(self.linear(x).pow(2))  # root

    def forward(self, x):
        if self.how == "plain":
            return self.root(x)
        return checkpoint(self.root, x, use_reentrant=self.how == "reentrant")


def recipe(model, rows=None, **more):
    rows = torch.ones(3, 4) if rows is None else rows
    def loss_fn(model, batch):
        return model(batch).float().mean()
    return {"model": model, "loss_fn": loss_fn, "data": [rows], "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 4, **more}


def zero_row():
    rows = torch.ones(3, 4)
    rows[1] = 0.0
    return rows.requires_grad_()


def plain(): return recipe(Root(), zero_row())
def checkpointed(): return recipe(Root("checkpoint"), zero_row())
def reentrant(): return recipe(Root("reentrant"), zero_row())


class Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (x - x)  # inverse


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return Inverse.apply(torch.sigmoid(self.linear(x)))


def custom(): return recipe(Custom())


class Halves(nn.Module):
    def __init__(self, other="sim:1", poison=False):
        super().__init__()
        self.first, self.second, self.other = nn.Linear(4, 8).to("sim:0"), nn.Linear(8, 3).to(other), other
        self.drop, self.poison = nn.Dropout(0.2), poison

    def forward(self, x):
        h = self.drop(torch.relu(self.first(x))).to(self.other)
        return torch.log(self.second(h) * 0.0) if self.poison else self.drop(self.second(h))  # halves


def halves_recipe(**options):
    torch.manual_seed(0)
    model = Halves(**options)
    def loss_fn(model, batch):
        return F.mse_loss(model(batch[0]), batch[1].to(model.other))
    data = [(torch.randn(6, 4), torch.randn(6, 3)) for _ in range(4)]
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": torch.optim.AdamW(model.parameters()), "max_steps": 8}


def halves(): return halves_recipe()
def poisoned_halves(): return halves_recipe(poison=True)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, ids):
        return self.head(self.words(ids).mean(1))  # looks up


def tags(bad_id=False, bad_label=False):
    torch.manual_seed(0)
    model = Tagger()
    data = [(torch.randint(0, 50, (4, 6)), torch.randint(0, 3, (4,))) for _ in range(8)]
    if bad_id:
        data[5][0][2, 3] = 50
    if bad_label:
        data[5][1][1] = 3
    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])  # compares
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": torch.optim.Adam(model.parameters()), "max_steps": 8}


def own_step(made):
    def train_step(model, batch, optimizer):
        optimizer.zero_grad()
        loss = made["loss_fn"](model, batch)
        loss.backward()
        optimizer.step()
        return loss
    return {**made, "train_step": train_step}


def well(): return tags()
def ids(): return tags(bad_id=True)
def labels(): return tags(bad_label=True)
def observed_ids(): return own_step(tags(bad_id=True))


def deep():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(12)))
    def loss_fn(model, batch):
        return model(batch).square().mean()  # grows
    data = [torch.randn(64, 256), torch.randn(16384, 256)]
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 2}


class Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.ones(4) * 2.0  # forgotten

    def forward(self, x):
        return self.linear(x) @ self.scale  # meets


def forgetful(): return recipe(Forgetful())


def overflowing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    x = torch.randn(32, 8)
    data = [(x[i : i + 8], torch.randint(0, 3, (8,))) for i in range(0, 32, 8)]
    return {"model": model, "criterion": nn.CrossEntropyLoss(), "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
            "amp": {"dtype": "float16", "scaler": True, "init_scale": 2.0**24}, "max_steps": 20}


def fast():
    """A NaN after some good steps, with dropout drawn on the device."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))
    data = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]
    def loss_fn(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return loss + torch.log(batch[0].abs().sum(1)).mean()  # log
    data[3][0][1] = 0.0
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2), "max_steps": 6}
'''
