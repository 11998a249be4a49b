"""`nanodoc.merged`: one report of ranks that have each watched their own loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nanodoc
from nanodoc.report.report import Report
from tests.helpers import line_of
from tests.helpers import nanodoc as command

SCRIPT = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nanodoc

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
draw = torch.Generator().manual_seed(0 if "alike" in sys.argv else rank)
batches = [torch.randn(16, 4, generator=draw) for _ in range(10)]
with nanodoc.watch(model, optimizer, snapshot_dir=f"rank{rank}") as watch:
    for step, x in enumerate(watch.steps(batches)):
        y = x.sum(1, keepdim=True)
        out = model(x)
        if "sick" in sys.argv and rank == 1 and step == 5:
            out = out / (out.sum() * 0)
        loss = nn.functional.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
gathered = [None, None]
dist.all_gather_object(gathered, watch.report())
whole = nanodoc.merged(reversed(gathered))
if rank == 0:
    first = next(iter(whole.findings), None)
    told = {
        "verdict": whole.verdict,
        "codes": [finding.code for finding in whole.findings],
        "ranks": [one.ended for one in whole.ranks],
        "rank": first and first.rank,
        "line": first and first.culprit.location and first.culprit.location.line,
    }
    open("told.json", "w").write(json.dumps(told))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("word", "verdict", "first", "ranks"),
    [
        ("well", "nothing found", None, ["well", "well"]),
        ("sick", "critical", "ND202", ["clean", "sick"]),
        ("alike", "warning", "ND806", ["well", "well"]),
    ],
)
def test_two_ranks(
    tmp_path: Path, word: str, verdict: str, first: str | None, ranks: list[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = command("python", path.name, word, cwd=tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["verdict"], told["ranks"]) == (verdict, ranks)
    assert told["codes"][:1] == ([first] if first else [])
    if word == "sick":
        assert (told["rank"], told["line"]) == (1, line_of(path, "out = out / (out.sum() * 0)"))


def test_what_is_no_report_of_a_rank() -> None:
    alone = nanodoc.examine({"model": _model(), "loss_fn": _loss, "data": [None]}, steps=1)
    assert isinstance(alone, Report)
    for given in ([], [alone], [None]):
        with pytest.raises(nanodoc.UsageError, match=r"^merged\(\) takes "):
            nanodoc.merged(given)  # type: ignore[arg-type]  # what a user may give


def _model() -> object:
    import torch

    return torch.nn.Linear(1, 1)


def _loss(model: object, batch: object) -> object:
    import torch

    return model(torch.ones(1, 1)).sum()  # type: ignore[operator]
