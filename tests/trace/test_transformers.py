"""transformers' GPT-2, BERT and T5 from small configs, with a singular op planted in a random
layer."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose, marked, run_engine

transformers = pytest.importorskip("transformers")

LAYERS = 4
FAMILIES = ("gpt2", "bert", "t5")


class LogOfZero(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(*args, **kwargs)
        hole = torch.ones_like(hidden)
        hole[0, 1, 2] = 0.0
        return hidden + torch.log(hole)  # planted in forward


class SqrtOfZero(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(*args, **kwargs)
        hole = torch.ones_like(hidden)
        hole[0, 1, 2] = 0.0
        return hidden + torch.sqrt(hidden.pow(2) * hole)  # planted in backward


def family(
    name: str,
) -> tuple[nn.Module, list[tuple[nn.Module, str, str]], dict[str, torch.Tensor]]:
    """The model, its (parent, attribute, path) places for a plant, and a batch."""
    torch.manual_seed(0)
    ids = torch.randint(0, 60, (2, 8))
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=60,
            n_positions=16,
            n_embd=16,
            n_layer=LAYERS,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
        model = transformers.GPT2LMHeadModel(config)
        return (
            model,
            [(model.transformer.h[i], "mlp", f"transformer.h.{i}.mlp") for i in range(LAYERS)],
            {"input_ids": ids, "labels": ids},
        )
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=60,
            hidden_size=16,
            num_hidden_layers=LAYERS,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
        model = transformers.BertForMaskedLM(config)
        places = [
            (model.bert.encoder.layer[i], "intermediate", f"bert.encoder.layer.{i}.intermediate")
            for i in range(LAYERS)
        ]
        return (
            model,
            places,
            {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids},
        )
    config = transformers.T5Config(
        vocab_size=60,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=LAYERS,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config)
    places = [
        (
            model.encoder.block[i].layer[1],
            "DenseReluDense",
            f"encoder.block.{i}.layer.1.DenseReluDense",
        )
        for i in range(LAYERS)
    ]
    places += [
        (
            model.decoder.block[i].layer[2],
            "DenseReluDense",
            f"decoder.block.{i}.layer.2.DenseReluDense",
        )
        for i in range(LAYERS)
    ]
    return model, places, {"input_ids": ids, "labels": ids}


def recipe(model: nn.Module, batch: dict[str, torch.Tensor]) -> Recipe:
    return Recipe(
        model=model,
        loss_fn=lambda model, batch: model(**batch).loss,
        data=[batch],
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
    )


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 14))]
)
def test_the_planted_layer_and_line_are_named(seed: int) -> None:
    chance = random.Random(seed)
    model, places, batch = family(FAMILIES[seed % 3])
    parent, attribute, path = chance.choice(places)
    kind = chance.choice([LogOfZero, SqrtOfZero])
    setattr(parent, attribute, kind(getattr(parent, attribute)))
    model.train()
    findings = diagnose(recipe(model, batch))
    assert findings
    first = findings[0].culprit
    assert first.module == path
    assert first.location is not None
    planted = "planted in forward" if kind is LogOfZero else "planted in backward"
    assert first.location.line == marked(__file__, planted)


@pytest.mark.parametrize("name", FAMILIES)
def test_without_a_plant_nothing_is_reported(name: str) -> None:
    model, _, batch = family(name)
    model.train()
    outcome = run_engine(recipe(model, batch), steps=3)
    assert outcome.evidence.trip is None
    assert diagnose(recipe(model, batch), steps=3) == ()
