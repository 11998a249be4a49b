"""Reviews of different lengths, judged by a recurrent network; the telling word is the last one."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence


class Judge(nn.Module):
    def __init__(self, own_end):
        super().__init__()
        self.words = nn.Embedding(40, 16, padding_idx=0)
        self.read = nn.LSTM(16, 16, batch_first=True)
        self.judge = nn.Linear(16, 1)
        self.own_end = own_end

    def forward(self, ids):
        output, _ = self.read(self.words(ids))
        last = (ids != 0).sum(1) - 1
        if not self.own_end:
            return self.judge(output[:, -1]).squeeze(1)
        return self.judge(output[torch.arange(len(ids)), last]).squeeze(1)


def collate(rows):
    return pad_sequence([ids for ids, _ in rows], batch_first=True), torch.stack(
        [label for _, label in rows]
    )


def recipe(own_end):
    torch.manual_seed(0)
    lengths = torch.randint(8, 120, (320,)).tolist()
    reviews = [torch.randint(1, 40, (length,)) for length in lengths]
    data = [(ids, (ids[-1] > 20).float()) for ids in reviews]
    model = Judge(own_end)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.binary_cross_entropy_with_logits(
            model(batch[0]), batch[1]
        ),
        "data": torch.utils.data.DataLoader(data, batch_size=16, collate_fn=collate),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 40,
    }


def sick():
    return recipe(own_end=False)


def healthy():
    return recipe(own_end=True)
