"""A rank whose connection another one had closed was asked where it waits before its report was
there. Its answer took the place of the error that it had noted, and it counted as the rank that
failed by itself."""

from __future__ import annotations

import torch

from nanodoc.config import Config
from nanodoc.facts.ranks import FAILED, RankFacts, is_root
from nanodoc.heartbeat.trail import Trail
from nanodoc.pipeline.common import run_info
from nanodoc.pipeline.post_mortem import outcome_of
from nanodoc.report.report import Report
from nanodoc.supervise.parent import Ended


def test_its_error_is_still_an_effect() -> None:
    info = run_info("train.py", "run", Config(), torch.device("cpu"), None, 8, 7, "not_run")
    facts = RankFacts(rank=0, world_size=2, host="here", own=FAILED, peer=True, step=7)
    report = Report(nanodoc="0", run=info, of_rank=facts)
    words = {"said": "asked", "frames": [], "waits": True}
    outcome = outcome_of(Ended(report=report, trail=Trail(words=words)), report, 0)
    assert outcome.ended == FAILED
    assert not is_root(outcome)
