"""Speech recognition with CTC: strided frames, and one transcript longer than its frames."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(drop_long):
    torch.manual_seed(0)
    encoder = nn.Conv1d(8, 12, 4, stride=4)
    audio = torch.randn(24, 8, 48)
    texts = torch.randint(1, 12, (24, 10))
    lengths = torch.randint(2, 5, (24,))
    frames = torch.full((24,), 12)
    frames[17] = 5
    lengths[17] = 4 if drop_long else 9

    def loss_fn(model, batch):
        audio, texts, frames, lengths = batch
        logp = F.log_softmax(model(audio), 1).permute(2, 0, 1)
        return F.ctc_loss(logp, texts, frames, lengths)

    tensors = (audio, texts, frames, lengths)
    batches = [tuple(t[i : i + 8] for t in tensors) for i in range(0, 24, 8)]
    return {
        "model": encoder,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.Adam(encoder.parameters()),
        "max_steps": 3,
    }


def sick():
    return recipe(drop_long=False)


def healthy():
    texts = recipe(drop_long=True)
    # distinct neighbours: repeated labels would need frames for the blanks between them
    for batch in texts["data"]:
        batch[1][:] = torch.arange(1, 11)
    return texts
