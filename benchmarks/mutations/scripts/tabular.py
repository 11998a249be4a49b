"""Income from mixed columns: embeddings for categories, scaled numbers, a wide and a deep part."""

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

LEVELS = [7, 12, 4]


def table(rows, rng, effects):
    categories = np.stack([rng.integers(0, n, rows) for n in LEVELS], axis=1)
    age = rng.uniform(18, 70, rows)
    hours = rng.normal(38, 8, rows)
    debt = rng.lognormal(8, 1, rows)
    income = 900 + 25 * hours + 14 * age - 0.12 * (age - 45) ** 2 - 60 * np.log(debt)
    for column, effect in enumerate(effects):
        income = income + 150 * effect[categories[:, column]]
    income = income + 40 * rng.normal(size=rows)
    numbers = np.stack([age, hours, np.log(debt)], axis=1)
    return (
        torch.from_numpy(categories),
        torch.tensor(numbers, dtype=torch.float32),
        torch.tensor(income, dtype=torch.float32),
    )


class WideAndDeep(nn.Module):
    def __init__(self, levels, numbers, width=32):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(n, 4) for n in levels])
        self.norm = nn.BatchNorm1d(4 * len(levels) + numbers)
        self.deep1 = nn.Linear(4 * len(levels) + numbers, width)
        self.deep2 = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.05)
        self.wide = nn.Linear(numbers, 1)
        self.out = nn.Linear(width, 1)

    def forward(self, categories, numbers):
        parts = [embed(categories[:, i]) for i, embed in enumerate(self.embeddings)]
        x = torch.cat([*parts, numbers], dim=1)
        h = self.norm(x)
        h = torch.relu(self.deep1(h))
        h = h + self.dropout(torch.relu(self.deep2(h)))
        return (self.out(h) + self.wide(numbers)).squeeze(1)


class Trainer:
    def __init__(self, model, loader, lr, weight_decay):
        self.model, self.loader = model, loader
        decayed = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest}]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=0.0)
        self.loss_fn = nn.MSELoss()

    def epoch(self, penalty=1e-4):
        self.model.train()
        for categories, numbers, income in self.loader:
            predicted = self.model(categories, numbers)
            size = sum(e.weight.pow(2).sum() for e in self.model.embeddings)
            loss = self.loss_fn(predicted, income) + penalty * size
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def r_squared_eval(model, categories, numbers, income):
    model.eval()
    with torch.no_grad():
        predicted = model(categories, numbers)
    return 1 - ((predicted - income).pow(2).sum() / (income - income.mean()).pow(2).sum()).item()


if __name__ == "__main__":
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    effects = [rng.normal(size=n) for n in LEVELS]
    categories, numbers, income = table(3000, rng, effects)
    test_categories, test_numbers, test_income = table(1000, rng, effects)
    center, scale = numbers.mean(dim=0), numbers.std(dim=0)
    middle, spread_std = income.mean(), income.std()
    data = TensorDataset(categories, (numbers - center) / scale, (income - middle) / spread_std)
    model = WideAndDeep(LEVELS, numbers.shape[1])
    trainer = Trainer(model, DataLoader(data, batch_size=64, shuffle=True), lr=5e-3, weight_decay=1e-2)
    for epoch in range(8):
        print(f"epoch {epoch}: loss {trainer.epoch():.4f}")
    test_numbers = (test_numbers - center) / scale
    test_income = (test_income - middle) / spread_std
    print(f"held-out R2 {r_squared_eval(model, test_categories, test_numbers, test_income):.4f}")
