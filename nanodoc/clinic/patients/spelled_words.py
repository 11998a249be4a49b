"""Words of a few letters, spoken frame by frame, with the loss that needs no alignment."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ALPHABET = "efhinorstuvwx"
WORDS = ["one", "two", "three", "five", "six", "seven", "nine", "fifteen"]
LONGEST, FRAMES = 7, 30


class Spoken(Dataset):
    def __init__(self, first):
        generator = torch.Generator().manual_seed(0)
        self.sounds = torch.randn(len(ALPHABET), 8, generator=generator)
        self.noise = torch.randn(256, FRAMES, 8, generator=generator) / 4
        self.index = {letter: i for i, letter in enumerate(ALPHABET, start=first)}

    def __len__(self):
        return len(self.noise)

    def __getitem__(self, i):
        word = WORDS[i % len(WORDS)]
        frames = self.noise[i].clone()
        for k, letter in enumerate(word):
            frames[4 * k : 4 * k + 3] += self.sounds[ALPHABET.index(letter)]
        labels = [self.index[letter] for letter in word]
        return frames, torch.tensor(labels + [0] * (LONGEST - len(word))), len(word)


def recipe(first):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, len(ALPHABET) + 1))
    criterion = nn.CTCLoss()

    def loss_fn(model, batch):
        frames, labels, lengths = batch
        logs = model(frames).log_softmax(-1).transpose(0, 1)
        spoken = torch.full((len(frames),), FRAMES, device=frames.device)
        return criterion(logs, labels, spoken, lengths)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(Spoken(first), batch_size=32, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), 1e-2),
    }


def sick():
    return recipe(0)


def healthy():
    return recipe(1)
