"""LSTM forecaster of hourly demand: two seasons, a trend and noise."""

import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

WINDOW = 36
HORIZON = 6


class Forecaster(nn.Module):
    def __init__(self, hidden=40, layers=1, dropout=0.1):
        super().__init__()
        self.lstm = nn.LSTM(3, hidden, num_layers=layers, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden, HORIZON)

    def forward(self, x):
        out, _ = self.lstm(x)
        last = out[:, -1]
        return self.fc(self.dropout(last))


class Scaler:
    def fit(self, values):
        self.mean, self.std = values.mean(), values.std()
        return self

    def transform(self, values):
        return (values - self.mean) / self.std

    def back(self, values):
        return values * self.std + self.mean


def demand(hours):
    t = torch.arange(hours, dtype=torch.float32)
    day = torch.sin(2 * math.pi * t / 24)
    week = torch.sin(2 * math.pi * t / 168)
    return 500 + 0.02 * t + 80 * day + 40 * day * week + 60 * week + 10 * torch.randn(hours), t


def windows(series, t):
    clock = torch.stack([torch.sin(2 * math.pi * t / 24), torch.cos(2 * math.pi * t / 24)], dim=1)
    features = torch.cat([series.unsqueeze(1), clock], dim=1)
    xs, ys = [], []
    for start in range(0, len(series) - WINDOW - HORIZON, 3):
        stop = start + WINDOW
        xs.append(features[start:stop])
        ys.append(series[stop : stop + HORIZON])
    return torch.stack(xs), torch.stack(ys)


class Experiment:
    def __init__(self, lr=5e-3, epochs=6):
        torch.manual_seed(11)
        series, t = demand(4000)
        split = 3200
        self.scaler = Scaler().fit(series[:split])
        scaled = self.scaler.transform(series)
        self.train_set = TensorDataset(*windows(scaled[:split], t[:split]))
        self.test_set = windows(scaled[split:], t[split:])
        self.model = Forecaster()
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.5)
        self.epochs = epochs

    def run_epoch(self, loader):
        self.model.train()
        total = 0.0
        for x, y in loader:
            self.optimizer.zero_grad()
            prediction = self.model(x)
            loss = self.criterion(prediction, y)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
            self.optimizer.step()
            total += loss.item()
        return total / len(loader)

    def fit(self):
        loader = DataLoader(self.train_set, batch_size=32, shuffle=True)
        for epoch in range(self.epochs):
            loss = self.run_epoch(loader)
            self.scheduler.step()
            print(f"epoch {epoch + 1}/{self.epochs} loss={loss:.4f}")

    def evaluate(self):
        self.model.eval()
        x, y = self.test_set
        with torch.no_grad():
            prediction = self.model(x)
        return (self.scaler.back(prediction) - self.scaler.back(y)).abs().mean().item()


if __name__ == "__main__":
    experiment = Experiment()
    experiment.fit()
    print(f"held-out MAE {experiment.evaluate():.3f}")
