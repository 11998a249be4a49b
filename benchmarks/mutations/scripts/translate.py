"""Sequence to sequence with attention: a sentence is read, and written backwards in another alphabet."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS, WORDS = 0, 1, 2, 12


def pair(rng):
    source = [rng.randint(3, WORDS + 2) for _ in range(rng.randint(3, 7))]
    target = [(3 * (word - 3)) % WORDS + 3 for word in reversed(source)] + [EOS]
    return source, target


def batch_of(pairs):
    width = max(len(s) for s, _ in pairs)
    height = max(len(t) for _, t in pairs)
    source = torch.tensor([s + [PAD] * (width - len(s)) for s, _ in pairs])
    target = torch.tensor([t + [PAD] * (height - len(t)) for _, t in pairs])
    return source, target


class Encoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(WORDS + 3, size, padding_idx=PAD)
        self.rnn = nn.GRU(size, size, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * size, size)

    def forward(self, source):
        outputs, hidden = self.rnn(self.embed(source))
        hidden = torch.cat([hidden[0], hidden[1]], dim=-1)
        return self.bridge(outputs), torch.tanh(self.bridge(hidden))


class Decoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(WORDS + 3, size)
        self.cell = nn.GRUCell(2 * size, size)
        self.query = nn.Linear(size, size, bias=False)
        self.out = nn.Linear(2 * size, WORDS + 3)

    def forward(self, word, hidden, memory, mask):
        weights = torch.bmm(memory, self.query(hidden).unsqueeze(2)).squeeze(2)
        weights = weights.masked_fill(~mask, -1e9).softmax(dim=1)
        context = (weights.unsqueeze(2) * memory).sum(dim=1)
        hidden = self.cell(torch.cat([self.embed(word), context], dim=1), hidden)
        return self.out(torch.cat([hidden, context], dim=1)), hidden


class Translator(nn.Module):
    def __init__(self, size=48):
        super().__init__()
        self.encoder, self.decoder = Encoder(size), Decoder(size)

    def forward(self, source, target, teacher_forcing=1.0):
        memory, hidden = self.encoder(source)
        mask = source != PAD
        word = torch.full((len(source),), BOS)
        steps = []
        for t in range(target.shape[1]):
            logits, hidden = self.decoder(word, hidden, memory, mask)
            steps.append(logits)
            forced = torch.rand(len(source)) < teacher_forcing
            word = torch.where(forced, target[:, t], logits.argmax(-1))
        return torch.stack(steps, dim=1)


def train(model, pairs, epochs=6, size=32):
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
    for epoch in range(epochs):
        model.train()
        random.shuffle(pairs)
        for i in range(0, len(pairs), size):
            source, target = batch_of(pairs[i : i + size])
            logits = model(source, target, teacher_forcing=0.9)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, rate {scheduler.get_last_lr()[0]:.5f}")


def evaluate(model, pairs):
    model.eval()
    source, target = batch_of(pairs)
    with torch.no_grad():
        guess = model(source, target, teacher_forcing=0.0).argmax(-1)
    asked = target != PAD
    return (guess[asked] == target[asked]).float().mean().item()


if __name__ == "__main__":
    random.seed(4)
    torch.manual_seed(4)
    rng = random.Random(9)
    pairs = [pair(rng) for _ in range(1400)]
    model = Translator()
    train(model, pairs[:1200])
    print(f"held-out accuracy {evaluate(model, pairs[1200:]):.4f}")
