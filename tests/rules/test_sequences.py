"""Next tokens and paddings: what a step of ids says by itself, and what looks alike and is well."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose

PAD = 0


def _ids(length: int = 12) -> torch.Tensor:
    return torch.randint(1, 30, (16, length), generator=torch.Generator().manual_seed(1))


class Reader(nn.Module):
    """One layer of attention; `mask` says by (query, key) or by key what may be seen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Embedding(30, 16), nn.Embedding(16, 16)
        self.projected = nn.Linear(16, 48)
        self.head = nn.Linear(16, 30)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = self.projected(x).chunk(3, -1)
        out: torch.Tensor = self.head(x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        return out


def _causal(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def _found(model: nn.Module, loss_fn: Any, data: list[Any]) -> set[str]:
    recipe = Recipe(
        model=model,
        data=data,
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
    )
    return {f.name for f in diagnose(recipe, 4) if f.severity != "info"}


def _language_model(labels: Any, *, time_first: bool = False, mask: Any = _causal) -> set[str]:
    model = Reader()

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        read = ids[:, :-2]
        scores = model(read, mask(read.shape[1]))
        target = labels(ids)
        if time_first:
            return F.cross_entropy(scores.transpose(0, 1).flatten(0, 1), target.t().flatten())
        return F.cross_entropy(scores.transpose(1, 2), target)

    return _found(model, loss_fn, [_ids() for _ in range(4)])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (lambda ids: ids[:, 1:-1], set()),
        (lambda ids: ids[:, :-2], {"unshifted-labels"}),
        (lambda ids: ids[:, 2:], {"unshifted-labels"}),
        (lambda ids: ids[:, :-2].flip(0), set()),  # some other labels
        (lambda ids: torch.where(ids[:, :-2] % 7 == 0, 3, ids[:, :-2]), set()),  # masked ones
    ],
)
def test_labels_and_inputs(labels: Any, expected: set[str]) -> None:
    assert _language_model(labels) == expected


def test_what_is_read_of_the_answer() -> None:
    everything = lambda length: torch.ones(length, length, dtype=torch.bool)  # noqa: E731
    assert _language_model(lambda ids: ids[:, 1:-1], mask=everything) == {"missing-causal-mask"}


@pytest.mark.parametrize(("mask", "expected"), [(_causal, set()), (None, {"missing-causal-mask"})])
def test_a_cross_entropy_by_hand(mask: Any, expected: set[str]) -> None:
    model = Reader()

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        read, answer = ids[:, :-1], ids[:, 1:]
        scores = model(read, mask(read.shape[1]) if mask is not None else None)
        chosen = scores.gather(-1, answer.unsqueeze(-1)).squeeze(-1)
        loss: torch.Tensor = (scores.logsumexp(-1) - chosen).mean()
        return loss

    assert _found(model, loss_fn, [_ids() for _ in range(4)]) == expected


@pytest.mark.parametrize(("first", "expected"), [(1, set()), (2, {"unshifted-labels"})])
def test_padded_sequences_whose_last_label_is_behind_what_is_read(
    first: int, expected: set[str]
) -> None:
    model = Reader()
    ends = torch.arange(16) % 5 + 5

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(9)
        seen = places < ends[:, None]
        read = ids[:, :9].masked_fill(~seen, PAD)
        labels = ids[:, first : 9 + first].masked_fill(~seen, -100)
        mask = _causal(9) & seen[:, None, :]
        return F.cross_entropy(model(read, mask).transpose(1, 2), labels)

    assert _found(model, loss_fn, [_ids() for _ in range(4)]) == expected


@pytest.mark.parametrize(("shifted", "expected"), [(0, set()), (1, {"unshifted-labels"})])
def test_labels_of_a_model_that_shifts_them_itself(shifted: int, expected: set[str]) -> None:
    """The loss is computed by no known function, as a fused kernel does."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    )
    rows = _ids(13)
    batch = {"input_ids": rows[:, :12], "labels": rows[:, shifted : 12 + shifted]}

    def loss_fn(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        scores = model(input_ids=batch["input_ids"]).logits[:, :-1]
        wanted = torch.eye(30)[batch["labels"][:, 1:]]
        loss: torch.Tensor = (scores.logsumexp(-1) - (scores * wanted).sum(-1)).mean()
        return loss

    assert _found(model, loss_fn, [batch] * 4) == expected


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = Reader(), Reader()

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen = self.source(source, None).mean(1, keepdim=True)
        out: torch.Tensor = self.target(target, _causal(target.shape[1])) + seen
        return out


@pytest.mark.parametrize("begin", [0, 1])
def test_an_encoder_may_read_what_the_decoder_is_to_say(begin: int) -> None:
    """A copying task: the source holds every answer, at the same place or one later."""
    model = Translator()

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        scores = model(ids[:, 1 - begin : -1 - begin or None], ids[:, :-2])
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:-1].flatten())

    assert _found(model, loss_fn, [_ids() for _ in range(4)]) == set()


@pytest.mark.parametrize(("dropped", "expected"), [(0.4, set()), (1.0, {"unshifted-labels"})])
def test_a_decoder_with_word_dropout(dropped: float, expected: set[str]) -> None:
    """A sentence VAE: the encoder reads the answer, the decoder most of the tokens before it."""
    model = Translator()

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        before = ids[:, :-2].masked_fill(torch.rand(ids[:, :-2].shape) < dropped, 29)
        scores = model(ids[:, 1:-1], before)
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:-1].flatten())

    assert _found(model, loss_fn, [_ids() for _ in range(4)]) == expected


def _padded(*, left: bool) -> torch.Tensor:
    ids = _ids()
    lengths = torch.arange(16) % 5 + 7
    places = torch.arange(12).expand(16, 12)
    hidden = places < 12 - lengths[:, None] if left else places >= lengths[:, None]
    return ids.masked_fill(hidden, PAD)


class Tagger(Reader):
    def __init__(self, visible: Any) -> None:
        super().__init__()
        self.visible = visible

    def forward(self, ids: torch.Tensor, mask: Any = None) -> torch.Tensor:
        return super().forward(ids, self.visible(ids))


def _keys(seen: torch.Tensor) -> torch.Tensor:
    return seen[:, None, :].expand(-1, seen.shape[1], -1)


@pytest.mark.parametrize(
    ("visible", "left", "expected"),
    [
        (lambda ids: _keys(ids != PAD), False, set()),
        (lambda ids: _keys(ids != PAD), True, set()),
        (lambda ids: _keys(ids == PAD), False, {"inverted-mask"}),
        (lambda ids: _keys(ids == PAD), True, {"inverted-mask"}),
        (lambda ids: None, False, set()),  # nothing masks it, and nothing is upside down
        (lambda ids: _causal(ids.shape[1]), True, set()),
        (lambda ids: _causal(ids.shape[1]), False, set()),
    ],
)
def test_masks_of_padding(visible: Any, left: bool, expected: set[str]) -> None:
    model = Tagger(visible)
    tags = torch.randint(0, 5, (16, 12), generator=torch.Generator().manual_seed(2))

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids).transpose(1, 2), tags.masked_fill(ids == PAD, -100))

    found = _found(model, loss_fn, [_padded(left=left) for _ in range(4)])
    assert found & {"inverted-mask", "missing-causal-mask", "unshifted-labels"} == expected


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Embedding(30, 16), nn.Embedding(16, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 30)

    def forward(self, ids: torch.Tensor) -> Any:
        length = ids.shape[1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=3)
        x = self.embed(ids) + self.places(torch.arange(length))
        return self.head(self.layers(x, mask=mask))


def test_the_line_that_makes_a_mask_of_later_positions() -> None:
    model = Encoder()

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = [_ids() for _ in range(4)]
    recipe = Recipe(model=model, data=data, loss_fn=loss_fn, optimizer=optimizer)
    (found,) = [f for f in diagnose(recipe, 4) if f.name == "missing-causal-mask"]
    assert found.culprit.location is not None
    assert "torch.triu(" in found.culprit.location.code


@pytest.mark.parametrize(("turned", "found"), [(True, False), (False, True)])
def test_a_model_that_reads_backwards(turned: bool, found: bool) -> None:
    """It asks for the token before; one that reads forwards has that in its input."""
    embed, reader, head = nn.Embedding(30, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 30)
    model = nn.ModuleList([embed, reader, head])

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        read = embed(ids[:, 1:])
        states = reader(read.flip(1))[0].flip(1) if turned else reader(read)[0]
        return F.cross_entropy(head(states).flatten(0, 1), ids[:, :-1].flatten())

    assert ("unshifted-labels" in _found(model, loss_fn, [_ids()])) == found
