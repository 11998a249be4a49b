"""CTC on made-up spectrograms: each token is a bump in some frequency bands."""

import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VOCAB = 6
BANDS = 20
BLANK = 0


class Utterances(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        gen = torch.Generator().manual_seed(seed)
        shapes = torch.randn(VOCAB + 1, BANDS, generator=torch.Generator().manual_seed(7))
        self.items = []
        for _ in range(count):
            tokens = [rng.randint(1, VOCAB) for _ in range(rng.randint(3, 6))]
            frames = []
            for token in tokens:
                frames += [shapes[token]] * rng.randint(2, 4)
                frames += [torch.zeros(BANDS)] * rng.randint(1, 2)
            spectrogram = torch.stack(frames)
            spectrogram = spectrogram + 0.3 * torch.randn(spectrogram.shape, generator=gen)
            self.items.append((spectrogram, torch.tensor(tokens)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    spectrograms, tokens = zip(*batch)
    frames = torch.tensor([len(one) for one in spectrograms])
    lengths = torch.tensor([len(one) for one in tokens])
    return pad_sequence(spectrograms, batch_first=True), frames, torch.cat(tokens), lengths


class Recogniser(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.conv = nn.Conv1d(BANDS, hidden, 3, padding=1)
        self.norm = nn.LayerNorm(hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, VOCAB + 1)

    def forward(self, x):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        x = torch.relu(self.norm(x))
        x, _ = self.rnn(x)
        return self.out(x).log_softmax(dim=-1)


def greedy(log_probs, frames):
    for row, length in zip(log_probs.argmax(-1), frames):
        collapsed = torch.unique_consecutive(row[:length])
        yield collapsed[collapsed != BLANK].tolist()


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def error_rate_eval(model, loader):
    model.eval()
    errors = total = 0
    with torch.no_grad():
        for spectrograms, frames, tokens, lengths in loader:
            guesses = greedy(model(spectrograms), frames)
            for guess, truth in zip(guesses, tokens.split(lengths.tolist())):
                errors += edit_distance(guess, truth.tolist())
                total += len(truth)
    return errors / total


if __name__ == "__main__":
    torch.manual_seed(0)
    train_loader = DataLoader(Utterances(400, 1), batch_size=16, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(Utterances(80, 2), batch_size=40, collate_fn=collate)
    model = Recogniser()
    ctc = nn.CTCLoss(blank=BLANK, zero_infinity=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(5):
        model.train()
        for spectrograms, frames, tokens, lengths in train_loader:
            log_probs = model(spectrograms)
            loss = ctc(log_probs.transpose(0, 1), tokens, frames, lengths)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    print(f"held-out error rate {error_rate_eval(model, dev_loader):.4f}")
