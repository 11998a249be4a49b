"""Masked language model: a Transformer encoder fills in hidden tokens of a small grammar."""

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, MASK, FIRST, VOCAB = 0, 1, 2, 34
LENGTH = 20


def sentences(count):
    """Each token is its predecessor plus the sentence's own step; sentences have any length."""
    start = torch.randint(VOCAB - FIRST, (count, 1))
    step = torch.randint(1, 5, (count, 1))
    tokens = FIRST + (start + step * torch.arange(LENGTH)) % (VOCAB - FIRST)
    lengths = torch.randint(10, LENGTH + 1, (count, 1))
    return torch.where(torch.arange(LENGTH) < lengths, tokens, PAD)


def hide(tokens, rate=0.2):
    """Hidden tokens: most become MASK, some a random token, some stay."""
    chosen = (torch.rand(tokens.shape) < rate) & (tokens != PAD)
    labels = torch.where(chosen, tokens, -100)
    dice = torch.rand(tokens.shape)
    hidden = tokens.clone()
    hidden[chosen & (dice < 0.8)] = MASK
    random_tokens = torch.randint(FIRST, VOCAB, tokens.shape)
    hidden = torch.where(chosen & (dice > 0.9), random_tokens, hidden)
    return hidden, labels


class MaskedLM(nn.Module):
    def __init__(self, width=48, heads=4, layers=2, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width, padding_idx=PAD)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, VOCAB)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens):
        padding_mask = tokens == PAD
        positions = self.positions(torch.arange(tokens.shape[1]))
        x = self.tokens(tokens) + positions
        x = self.encoder(x, src_key_padding_mask=padding_mask)
        return self.decoder(self.norm(x))


def masked_loss(logits, labels):
    return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)


def train_step(model, optimizer, scheduler, tokens):
    hidden, labels = hide(tokens)
    loss = masked_loss(model(hidden), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return loss.item()


def evaluate(model, tokens):
    model.eval()
    torch.manual_seed(77)
    hidden, labels = hide(tokens)
    with torch.no_grad():
        guess = model(hidden).argmax(-1)
    asked = labels != -100
    return (guess[asked] == labels[asked]).float().mean().item()


def main():
    torch.manual_seed(0)
    corpus, held_out = sentences(2000), sentences(400)
    model = MaskedLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    epochs, batch_size = 5, 64
    total = epochs * (len(corpus) // batch_size)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=8e-3, total_steps=total)
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(corpus))
        losses = []
        for i in range(0, len(corpus) - batch_size + 1, batch_size):
            losses.append(train_step(model, optimizer, scheduler, corpus[order[i : i + batch_size]]))
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
    print(f"held-out accuracy {evaluate(model, held_out):.4f}")


if __name__ == "__main__":
    main()
