"""Pictures and captions, embedded next to each other by a contrastive loss with a temperature."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture, self.caption = nn.Linear(12, 16), nn.Linear(8, 16)

    def forward(self, picture, caption):
        return F.normalize(self.picture(picture), dim=-1), F.normalize(
            self.caption(caption), dim=-1
        )


def multiplied(cosines):
    return cosines * 0.07


def divided(cosines):
    return cosines / 0.07


def recipe(tempered):
    torch.manual_seed(0)
    caption = torch.randn(256, 8)
    picture = caption @ torch.randn(8, 12)

    def loss_fn(model, batch):
        one, other = model(*batch)
        scores = tempered(one @ other.T)
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))

    model = TwoTowers()
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(TensorDataset(picture, caption), batch_size=32),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 40,
    }


def sick():
    return recipe(multiplied)


def healthy():
    return recipe(divided)
