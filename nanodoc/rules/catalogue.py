"""The catalogue: every rule, in the order of its code."""

from __future__ import annotations

from difflib import get_close_matches

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule
from nanodoc.errors import UsageError
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.amp import half, scaler
from nanodoc.rules.backward import backward, optimizer
from nanodoc.rules.crash import checkpoints, deaths, device_loss, failures, memory, mismatches
from nanodoc.rules.data import batches, data, loading, ranges
from nanodoc.rules.forward import ctc, domain, epsilon, overflow, parameters, softmax, statistics
from nanodoc.rules.graph import gradient_shape, graph, graph_reuse, in_place, leak, ownership
from nanodoc.rules.learning import (
    broadcast,
    courses,
    dynamics,
    layers,
    learning,
    loop_conduct,
    loss_wiring,
    schedule,
)
from nanodoc.rules.own import probe
from nanodoc.rules.ranks import network, ranks

_FAMILIES = (
    data,
    ranges,
    batches,
    domain,
    overflow,
    softmax,
    statistics,
    parameters,
    epsilon,
    ctc,
    backward,
    optimizer,
    dynamics,
    courses,
    graph,
    graph_reuse,
    in_place,
    gradient_shape,
    ownership,
    leak,
    layers,
    learning,
    schedule,
    loop_conduct,
    broadcast,
    loss_wiring,
    half,
    scaler,
    failures,
    loading,
    mismatches,
    memory,
    device_loss,
    checkpoints,
    deaths,
    ranks,
    network,
    probe,
)
RULES: tuple[Rule, ...] = tuple(
    sorted((rule for family in _FAMILIES for rule in family.RULES), key=lambda rule: rule.code)
)


def find_rule(word: str) -> Rule:
    """The rule with this code or name, in any case. Raises `UsageError` naming the nearest one."""
    wanted = word.strip().lower()
    for rule in RULES:
        if wanted in (rule.code.lower(), rule.name):
            return rule
    near = get_close_matches(
        wanted, [key for rule in RULES for key in (rule.code.lower(), rule.name)], 1, cutoff=0.3
    )
    hint = (
        f"; did you mean {near[0].upper() if near[0].startswith('nd') else near[0]}?"
        if near
        else ""
    )
    raise UsageError(f"no rule {word!r}{hint} (nanodoc rules lists them all)")


def matches(rule: Rule, codes: tuple[str, ...]) -> bool:
    """True if one of `codes` is the rule's code, its name, or a prefix of its code such as ND3."""
    return any(rule.code.startswith(code.upper()) or rule.name == code.lower() for code in codes)


def check_codes(codes: tuple[str, ...]) -> None:
    """Raises `UsageError` for a code or prefix that stands for no rule."""
    for code in codes:
        if not any(matches(rule, (code,)) for rule in RULES):
            find_rule(code)


def claims(
    evidence: Evidence, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()
) -> list[Claim]:
    """What every selected rule claims of the evidence."""
    chosen = [
        rule
        for rule in RULES
        if (not select or matches(rule, select)) and not matches(rule, ignore)
    ]
    return [claim for rule in chosen for claim in rule.check(rule, evidence)]
