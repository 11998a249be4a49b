"""Whether the end of a sequence is a label: what the batch says by its mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose

END, PAD = 0, 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(30, 16)
        self.layer = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(self.embed(ids))[0])
        return out


def _batch(seed: int, *, pad: int, left: bool, last: list[int]) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    rows, masks = [], []
    for end in last:
        length = int(torch.randint(5, 12, (), generator=drawn))
        ids = torch.randint(2, 30, (length,), generator=drawn)
        ids[-1] = end if end >= 0 else ids[-1]
        padding, ones = torch.full((14 - length,), pad), torch.ones(length)
        zeros = torch.zeros(14 - length)
        rows.append(torch.cat([padding, ids] if left else [ids, padding]))
        masks.append(torch.cat([zeros, ones] if left else [ones, zeros]))
    return {"input_ids": torch.stack(rows), "attention_mask": torch.stack(masks).long()}


def _by_id(batch: Any, pad: int) -> torch.Tensor:
    return batch["input_ids"].masked_fill(batch["input_ids"] == pad, -100)


def _by_mask(batch: Any, pad: int) -> torch.Tensor:
    return batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)


def _answers_only(batch: Any, pad: int) -> torch.Tensor:
    """The last two tokens are another speaker's."""
    labels = _by_mask(batch, pad)
    last = (batch["attention_mask"] * torch.arange(14)).amax(1)
    return labels.scatter(1, torch.stack([last, last - 1], 1), -100)


_ENDS = [END] * 8


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    ("labels", "pad", "last", "with_mask", "expected"),
    [
        (_by_id, END, _ENDS, True, True),
        (_by_id, END, [END] * 5 + [-1] * 3, True, True),  # some are cut off
        (_by_id, END, _ENDS, False, False),  # where a sequence ends, nothing says
        (_by_id, END, [-1] * 8, True, False),  # they have no end
        (_by_id, END, [END] + [-1] * 7, True, False),
        (_by_id, PAD, _ENDS, True, False),  # a padding of its own
        (_by_mask, END, _ENDS, True, False),
        (_answers_only, END, _ENDS, True, False),
    ],
)
def test_ends(
    labels: Any, pad: int, last: list[int], with_mask: bool, expected: bool, left: bool
) -> None:
    data = [_batch(seed, pad=pad, left=left, last=last) for seed in range(4)]
    found = _found(
        data, lambda batch: labels(batch, pad), without=() if with_mask else ("attention_mask",)
    )
    assert ("unasked-end" in found) == expected


class _Collator:
    """An object that is called, and puts the labels into the batch when they are done."""

    def __call__(self, items: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=END)
        lengths = torch.tensor([len(item) for item in items])
        batch = {"input_ids": ids, "attention_mask": torch.arange(ids.shape[1]) < lengths[:, None]}
        labels = ids.clone()
        labels[labels == END] = -100
        labels[:, 0] = -100  # what is asked
        batch["labels"] = labels
        return batch


def test_the_line_of_a_collator_that_is_an_object() -> None:
    drawn = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 12, (32,), generator=drawn).tolist()
    items = [torch.randint(2, 30, (n,), generator=drawn) for n in lengths]
    ended = [torch.cat([item, torch.tensor([END])]) for item in items]
    loader: Any = torch.utils.data.DataLoader(ended, 8, collate_fn=_Collator())  # type: ignore[arg-type]  # a list is a data set
    (found,) = [f for f in _findings(loader) if f.name == "unasked-end"]
    assert found.culprit.location is not None
    assert found.culprit.location.code == "labels[labels == END] = -100"


def _head(batch: Any, rows: slice, keep: slice) -> torch.Tensor:
    """Labels of the first five tokens, or of the others."""
    labels = _by_mask(batch, END)
    labels[rows, keep] = -100
    return labels


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (lambda batch: _head(batch, slice(None), slice(3, None)), True),
        (lambda batch: _head(batch, slice(None), slice(0, 3)), False),  # the answers
        (lambda batch: _head(batch, slice(1, None), slice(3, None)), False),  # not in each
        (lambda batch: _by_mask(batch, END), False),
        (lambda batch: _head(batch, slice(None), slice(2, 3)), False),  # with a gap
    ],
)
def test_prompts(labels: Any, expected: bool) -> None:
    data = [_batch(seed, pad=END, left=False, last=[END] * 16) for seed in range(4)]
    assert ("asked-prompts" in _found(data, labels)) == expected


def _by_hand(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As libraries compute it piece by piece: no loss function is called."""
    kept = labels >= 0
    chosen = scores.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return ((scores.logsumexp(-1) - chosen) * kept).sum() / kept.sum()


@pytest.mark.parametrize("head", [slice(3, None), slice(0, 3)])
def test_a_loss_that_is_no_function(head: slice) -> None:
    data = [_batch(seed, pad=END, left=False, last=[END] * 16) for seed in range(4)]
    for batch in data:
        batch["labels"] = _head(batch, slice(None), head)
    found = {f.name for f in _findings(data, loss=_by_hand)}
    assert ("asked-prompts" in found) == (head.start == 3)


def test_padding_that_the_mask_counts_in() -> None:
    """It is left out of the labels, and behind the sequences."""
    data = [_batch(seed, pad=END, left=False, last=[END] * 16) for seed in range(4)]
    for batch in data:
        batch["kept"], batch["attention_mask"] = (
            batch["attention_mask"],
            batch["attention_mask"].clone(),
        )
        batch["attention_mask"][:, :-1] = 1
    found = _found(data, lambda batch: batch["input_ids"].masked_fill(batch["kept"] == 0, -100))
    assert "asked-prompts" not in found


def _found(
    data: list[dict[str, torch.Tensor]], labels: Any, without: tuple[str, ...] = ()
) -> set[str]:
    for batch in data:
        batch["labels"] = labels(batch)
        for name in without:
            del batch[name]
    return {f.name for f in _findings(data)}


def _cross_entropy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _findings(data: Any, loss: Any = _cross_entropy) -> Any:
    model = Model()

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        result: torch.Tensor = loss(model(batch["input_ids"])[:, :-1], batch["labels"][:, 1:])
        return result

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recipe = Recipe(model=model, data=data, loss_fn=loss_fn, optimizer=optimizer)
    return diagnose(recipe, 4)
