"""Characters that move a cursor or end a line, halves of surrogate pairs and credentials: what a
training is called or says reaches no report of any format as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanodoc.report.secrets import hidden
from nanodoc.strict_json import in_ascii, written
from tests.helpers import nanodoc

HOSTILE = "\x1b[31m\x9b31m\u202e\u2028\ud800\r::error::x"
TRAIN = """
import torch

HOSTILE = "\\x1b[31m\\x9b31m\\u202e\\u2028\\ud800\\r::error file=x::injected"

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_parameter(HOSTILE.replace(".", "_"), torch.nn.Parameter(torch.ones(4, 1)))
        self.unused = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x @ getattr(self, HOSTILE.replace(".", "_"))

def build(loss_fn=None):
    model = Model()
    return {"model": model, "loss_fn": loss_fn or (lambda m, b: m(b).mul(0).log().sum()),
            "data": [torch.randn(8, 4)], "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

def raises():
    def loss_fn(model, batch):
        raise RuntimeError(HOSTILE)
    return build(loss_fn)

def secret():
    def loss_fn(model, batch):
        raise RuntimeError("401 for https://user:hunter2@host/x?token=abc: password=hunter2, "
                           "Bearer sk-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
    return build(loss_fn)
"""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=())),
        lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
        max_leaves=12,
    )
)
def test_json_is_what_it_was_and_harmless(value: Any) -> None:
    text = written(value)
    assert json.loads(text) == value
    assert all(ch == "\n" or ch.isprintable() for ch in text)
    assert in_ascii(text).isascii()
    assert json.loads(in_ascii(text)) == value


def run(folder: Path, name: str, output_format: str, encoding: str = "utf-8") -> tuple[int, str]:
    """The exit code, and what stdout said."""
    (folder / "train.py").write_text(TRAIN)
    done = nanodoc(
        *("run", f"train.py:{name}", "--in-process"),
        *("--steps", "1", "--budget", "1", "--output-format", output_format),
        cwd=folder,
        PYTHONIOENCODING=encoding,
    )
    return done.returncode, done.stdout.encode("utf-8", "surrogateescape").decode(encoding)


@pytest.mark.parametrize("output_format", ["full", "concise", "json", "github"])
@pytest.mark.parametrize("name", ["build", "raises"])
def test_no_format_lets_it_through(tmp_path: Path, name: str, output_format: str) -> None:
    code, text = run(tmp_path, name, output_format)
    assert code == 1
    assert all(ch == "\n" or ch.isprintable() for ch in text)
    assert not any(line.startswith("::error file=x") for line in text.splitlines())
    if output_format == "json":
        assert json.loads(text)["findings"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("output_format", ["full", "json"])
def test_a_stream_with_few_letters_loses_no_report(
    tmp_path: Path, output_format: str, encoding: str
) -> None:
    code, text = run(tmp_path, "build", output_format, encoding)
    assert code == 1
    assert "ND206" in text
    if output_format == "json":
        assert json.loads(text)["verdict"] == "critical"


@pytest.mark.parametrize("output_format", ["full", "json", "github"])
def test_credentials_are_shown_in_no_format(tmp_path: Path, output_format: str) -> None:
    _, text = run(tmp_path, "secret", output_format)
    assert "401 for" in text
    for secret in ("hunter2", "token=abc", "sk-aaaa"):
        assert secret not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/a?key=1 is gone", "https://*****@host/a?***** is gone"),
        ("api_key = 'abcdef'", "api_key = '******'"),
        ("train.py -- --hub-token abcdef --lr 1", "train.py -- --hub-token ****** --lr 1"),
        ("AKIAIOSFODNN7EXAMPLE", "*" * 20),
    ],
)
def test_a_credential_keeps_its_length(text: str, shown: str) -> None:
    assert hidden(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "pad_token=50256",
        "loss = F.cross_entropy(logits, tokens[1:])",
        "key = self.key(x)  # attention",
        "tokenizer: gpt2, token 17",
        "train.py -- --tokenizer gpt2 --key-size 5",
        "passed 3 of 4; secretary problem",
    ],
)
def test_what_only_sounds_like_one_stays(text: str) -> None:
    assert hidden(text) == text
