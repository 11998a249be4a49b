"""Neural collaborative filtering with sampled negatives (pairwise ranking)."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Interactions(Dataset):
    def __init__(self, pairs, items):
        self.pairs = pairs
        self.items = items
        self.seen = {(int(u), int(i)) for u, i in pairs}

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        user, item = self.pairs[index]
        other = int(torch.randint(self.items, ()))
        while (int(user), other) in self.seen:
            other = int(torch.randint(self.items, ()))
        return user, item, other


class Ranker(nn.Module):
    def __init__(self, users, items, size=24):
        super().__init__()
        self.users = nn.Embedding(users, size)
        self.items = nn.Embedding(items, size)
        self.item_bias = nn.Embedding(items, 1)
        self.fc1 = nn.Linear(3 * size, 32)
        self.fc2 = nn.Linear(32, 1)
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.items.weight, std=0.1)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, user, item):
        u, i = self.users(user), self.items(item)
        joined = torch.cat([u, i, u * i], dim=-1)
        deep = self.fc2(torch.relu(self.fc1(joined)))
        shallow = (u * i).sum(-1, keepdim=True)
        return (deep + shallow + self.item_bias(item)).squeeze(-1)


def make_pairs(users, items, taste):
    """Users like items of their own taste; each has ten."""
    affinity = torch.randn(users, taste) @ torch.randn(taste, items)
    affinity = affinity + torch.randn(users, items)
    liked = affinity.topk(10, dim=1).indices
    liked = liked.gather(1, torch.rand(users, 10).argsort(1))
    owner = torch.arange(users).unsqueeze(1).expand_as(liked)
    pairs = torch.stack([owner, liked], dim=-1)
    return pairs[:, 1:].reshape(-1, 2), pairs[:, 0]


@torch.no_grad()
def hit_rate_eval(model, train_pairs, held_out, items, k=10):
    model.eval()
    users = held_out[:, 0]
    grid_u = users.repeat_interleave(items)
    grid_i = torch.arange(items).repeat(len(users))
    scores = model(grid_u, grid_i).view(len(users), items)
    scores[train_pairs[:, 0], train_pairs[:, 1]] = -1e9
    top = scores.topk(k, dim=1).indices
    return (top == held_out[:, 1:]).any(1).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    torch.manual_seed(0)
    users, items = 200, 120
    train_pairs, held_out = make_pairs(users, items, taste=4)
    loader = DataLoader(Interactions(train_pairs, items), batch_size=64, shuffle=True)
    model = Ranker(users, items)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-5)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for user, liked, other in loader:
            difference = model(user, liked) - model(user, other)
            loss = -nn.functional.logsigmoid(difference).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(user)
        print(f"epoch {epoch}: ranking loss {total / len(train_pairs):.4f}")
    print(f"held-out hit rate {hit_rate_eval(model, train_pairs, held_out, items):.4f}")


if __name__ == "__main__":
    main()
