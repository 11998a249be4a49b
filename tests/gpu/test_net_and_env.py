"""On a GPU: `nanodoc env` lists and tries it, `nanodoc net` uses NCCL where every rank has one of
its own. Skipped without a CUDA device."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.gpu import on_cuda
from tests.helpers import fresh_nanodoc, report_of

pytestmark = on_cuda


def net(ranks: int, *arguments: str) -> dict[str, Any]:
    done = fresh_nanodoc(
        "net",
        "--nproc",
        str(ranks),
        "--sizes",
        "1,64",
        "--timeout",
        "60",
        "--output-format",
        "json",
        *arguments,
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, json.dumps(report, indent=1)
    return report


def test_every_gpu_is_listed_and_calculates() -> None:
    done = fresh_nanodoc("env", "--output-format", "json")
    said = report_of(done)
    assert len(said["gpus"]) == torch.cuda.device_count()
    assert said["gpus"][0]["name"] == torch.cuda.get_device_name(0)
    assert said["gpus"][0]["supported"] is True
    assert said["facts"]["driver"][0].isdigit()
    assert {one["name"]: one["state"] for one in said["checks"]}["GPU"] == "OK"
    assert done.returncode == 0


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="no NCCL in this build")
def test_nccl_where_every_rank_has_a_gpu() -> None:
    report = net(torch.cuda.device_count(), "--verbose")
    assert report["backend"] == "nccl"
    assert report["ranks"][0]["facts"]["device"] == "cuda:0"
    assert {one["state"] for one in report["checks"]} == {"OK"}
    assert any("NCCL version" in line for line in report["log"])


def test_ranks_that_share_a_gpu_use_gloo_and_are_told() -> None:
    report = net(torch.cuda.device_count() + 1)
    assert report["backend"] == "gloo"
    assert any(
        "share one GPU" in one["text"] and one["state"] == "note" for one in report["problems"]
    )
