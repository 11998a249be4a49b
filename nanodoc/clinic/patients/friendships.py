"""Two circles of friends, told apart by who knows whom."""

import torch
import torch.nn.functional as F
from torch import nn

PEOPLE = 60


class MeanOfFriends(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.of_friends = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, people, edges):
        known, knows = edges[0], edges[1]
        sums = torch.zeros_like(people).index_add(0, knows, people[known])
        count = torch.zeros(len(people), 1, device=people.device)
        count = count.index_add(0, knows, torch.ones(len(known), 1, device=people.device))
        return self.own(people) + self.of_friends(sums / count.clamp(min=1))


def recipe(as_rows):
    torch.manual_seed(0)
    circle = torch.arange(PEOPLE) % 2
    pairs = []
    for person in range(PEOPLE):
        for friend in torch.randint(0, PEOPLE // 2, (3,)).tolist():
            other = 2 * friend + person % 2
            if other != person:
                pairs += [(person, other), (other, person)]
    people = torch.randn(PEOPLE, 8) + circle[:, None] / 4
    edges = as_rows(torch.tensor(pairs))
    model = MeanOfFriends()
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2]),
        "data": [(people, edges, circle)],
        "optimizer": torch.optim.Adam(model.parameters(), 1e-2),
    }


def sick():
    return recipe(lambda pairs: pairs.reshape(2, -1))


def healthy():
    return recipe(lambda pairs: pairs.t().contiguous())
