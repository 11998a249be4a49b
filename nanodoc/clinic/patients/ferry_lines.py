"""Harbours get positions by how often ferries come from one to the other in up to four trips. The
chances of a trip are the timetable divided by the ferries that leave; multiplied with them, the
fourth power is beyond all measure."""

import torch
from torch import nn

HARBOURS = 60


def trips(chances, longest=4):
    """The chances of coming from one harbour to another in 1, 2, … trips, one for each length."""
    after = [chances]
    for _ in range(longest - 1):
        after.append(after[-1] @ chances)
    return torch.stack(after)


class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(HARBOURS, 8) / 3)
        self.goal = nn.Parameter(torch.randn(HARBOURS, 8) / 3)

    def forward(self, wanted):
        fits = torch.nn.functional.logsigmoid(self.start @ self.goal.T)
        misses = torch.nn.functional.logsigmoid(-self.start @ self.goal.T)
        return -(wanted.mean(0) * fits).sum(1).mean() - misses.mean()


def sick():
    timetable, leaving = _timetable()
    chances = timetable * leaving
    return _recipe(trips(chances))


def healthy():
    timetable, leaving = _timetable()
    chances = timetable / leaving
    return _recipe(trips(chances))


def _timetable():
    torch.manual_seed(0)
    ferries = torch.randint(0, 9, (HARBOURS, HARBOURS)).float()
    return ferries, ferries.sum(1, keepdim=True)


def _recipe(wanted):
    torch.manual_seed(1)
    model = Places()
    return {
        "model": model,
        "data": list(range(40)),
        "loss_fn": lambda model, batch: model(wanted),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
    }
