"""## What it checks
A ReduceLROnPlateau that expects falling values (`mode="min"`, the default) but gets a variable
named after an accuracy, F1, AUC or IoU; or that expects rising values but gets a loss, an error or
a perplexity. Only an info: the name alone says which end is the good one.

## Why it matters
Every epoch that improves counts as one that does not, and the learning rate falls until nothing is
learned.

## Example
    scheduler = ReduceLROnPlateau(optimizer)
    scheduler.step(accuracy)

## Fix
    scheduler = ReduceLROnPlateau(optimizer, mode="max")

## See also
ND609 learning-rate-range, ND613 wrong-mode
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.learning.claims import Standing, learning_claim

_RISE = re.compile(
    r"(?i)(?<![a-z])(acc|accuracy|f1|auc|auroc|iou|miou|recall|precision|bleu)(?![a-z])"
)
_FALL = re.compile(r"(?i)(?<![a-z])(loss|error|err|mse|mae|rmse|perplexity|ppl|nll)(?![a-z])")
_GIVEN = re.compile(r"\.step\((.*)\)")
_TOKEN = re.compile(r"[A-Za-z0-9]+|[^\w\s.\[\]()'\",]")
_PART = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+|\W")
_BESIDE = (
    *("val", "valid", "validation", "test", "dev", "train", "training", "eval", "epoch", "best"),
    *("avg", "average", "mean", "total", "running", "score", "scores", "metric", "metrics", "self"),
    *("item", "get", "results", "result", "history", "stats", "log", "logs", "float", "macro"),
    *("micro", "weighted", "top", "at", "k", "state", "trainer", "meter", "now", "current", "rate"),
)
"""Words that say nothing of which end is the good one. Any other may turn it around: a negative
loss, an improvement, a drop."""


@rule(
    "ND660",
    "plateau-mode",
    "info",
    "a ReduceLROnPlateau with the wrong mode for its metric",
    needs=("loop", "stats"),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for scheduler in evidence.loop.schedulers if evidence.loop is not None else ():
        at = scheduler.stepped_at
        given = _GIVEN.search(at.code) if at is not None else None
        if scheduler.mode is None or given is None or at is None or not _is_plain(given[1]):
            continue
        rises, falls = (bool(words.search(given[1])) for words in (_RISE, _FALL))
        if rises == falls or rises == (scheduler.mode == "max"):
            continue
        rates = [max(step) for step in (evidence.stats.rates if evidence.stats else ()) if step]
        lowered = bool(rates) and rates[-1] < max(rates)
        other = "max" if rises else "min"
        course = f": the rate has gone from {max(rates):.3g} to {rates[-1]:.3g}" if lowered else ""
        yield learning_claim(
            rule,
            ("rate",),
            standing=Standing(stage=Stage.SCHEDULE, specificity=Specificity.SPECIAL),
            title=f'ReduceLROnPlateau expects {_END[scheduler.mode]} values (mode="'
            f'{scheduler.mode}") but gets {given[1].strip()}',
            explanation=f"The value passed at {at.place} improves as it "
            f"{'rises' if rises else 'falls'}, which counts as no progress{course}.",
            culprit=Culprit(kind="optimizer", location=scheduler.built_at or at),
            phase="optimizer",
            # the more of the rate is gone, the less can the mode be meant
            weight=confidence(0.6, 0.8 * (1 - rates[-1] / max(rates)) if lowered else 0.0),
            notes=[("stepped at", at.place), ("mode", scheduler.mode)],
            fix=f'mode="{other}"',
        )
        return


def _is_plain(given: str) -> bool:
    """It is named by its metric, and nothing is computed of it: -accuracy falls as it gets
    better."""
    named = re.sub(r"\[-?\d+\]", " ", given).replace("_", " ")
    parts = [
        part
        for token in _TOKEN.findall(named)
        for part in ([token] if _is_known(token) else _PART.findall(token))
    ]
    return all(map(_is_known, parts))


def _is_known(word: str) -> bool:
    metric = _RISE.search(word) or _FALL.search(word)
    return word.isdigit() or word.lower() in _BESIDE or metric is not None


_END = {"min": "falling", "max": "rising"}
