"""Errors that lose a CUDA context, and memory of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accelerator.recipes import RECIPES
from tests.gpu import on_cuda
from tests.helpers import fresh_nanodoc, marked, report_of

pytestmark = on_cuda

MEMORY = """

def memory():
    torch.cuda.set_per_process_memory_fraction(0.2)  # other tests run beside this one
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)])
    def loss_fn(model, batch):
        out, kept = batch.repeat(1 << 12, 1), []
        for _ in range(1000):
            out = model(out)  # fills it
        return out.sum()
    return {"model": model, "loss_fn": loss_fn, "data": [torch.rand(64, 4096)] * 2, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECIPES + MEMORY)


@pytest.mark.parametrize(
    ("name", "code", "line", "title"),
    [
        ("ids", "ND102", "looks up", "index 50 at [2, 3]"),
        ("labels", "ND103", "compares", "label 3 at [1]"),
    ],
)
def test_a_device_side_assert_is_named_by_a_look_on_the_cpu(
    tmp_path: Path, name: str, code: str, line: str, title: str
) -> None:
    report = report_of(
        fresh_nanodoc(
            "run", f"train.py:{name}", "--device", "cuda", "--output-format", "json", cwd=tmp_path
        )
    )
    finding = report["findings"][0]
    assert (finding["code"], finding["step"]) == (code, 5)
    assert finding["title"].startswith(title)
    assert finding["culprit"]["location"]["line"] == marked(tmp_path / "train.py", line)
    assert any(row["label"] == "on the GPU" for row in finding["evidence"])


def test_what_holds_the_memory_of_a_gpu(tmp_path: Path) -> None:
    report = report_of(
        fresh_nanodoc(
            "run", "train.py:memory", "--device", "cuda", "--output-format", "json", cwd=tmp_path
        )
    )
    finding = report["findings"][0]
    assert finding["code"] == "ND704"
    assert any(
        f"train.py:{marked(tmp_path / 'train.py', 'fills it')}" in row["label"]
        for row in finding["evidence"]
    )
