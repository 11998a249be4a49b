"""What a rule is, and what rules share: claims on root causes, confidence earned by evidence,
findings from births."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict, Unpack

from nanodoc.diagnosis.claim import Claim, RootKey, Specificity, confidence
from nanodoc.diagnosis.finding import GROWTH, ChainLink, Culprit, CulpritKind, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, OpFacts
from nanodoc.facts.source import SourceSpan

LARGE_GRADIENTS = 100.0
"""A gradient norm at which clipping and weight decay stop meaning what they usually do."""


class Told(TypedDict):
    """What a finding says to its reader. Its severity is the rule's where none is given."""

    title: str
    explanation: str
    severity: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Account:
    """What a rule says of one case: its title, its explanation and its fixes."""

    title: str
    explanation: str
    fixes: tuple[Fix, ...] = ()


def birth_confidence(evidence: Evidence, birth: Birth, exact: float) -> float:
    """Earned by: the step was reproduced; the singular values were seen at the failing elements
    (`exact`, a share); the line is known; no other root competes."""
    rivals = max(1, len({root_of(rival) for rival in evidence.births}) + len(evidence.leaves))
    return confidence(
        {"bitwise": 0.5, "tolerance": 0.3, "as_it_ran": 0.3}.get(evidence.reproduced, 0.0),
        0.8 * exact,
        0.3 if birth.site.location is not None else 0.0,
        0.4 / rivals,
    )


def root_of(birth: Birth) -> RootKey:
    """Births on the same call of the user's code are one root cause."""
    site = birth.site
    return location_key(site.location) or ("op", site.index)


def location_key(location: SourceSpan | None) -> RootKey:
    return ("line", location.file, location.line, location.column) if location else ()


def birth_claim(
    rule: Rule,
    evidence: Evidence,
    birth: Birth,
    *,
    exact: float,
    specificity: Specificity = Specificity.FAMILY,
    extra: Iterable[tuple[str, Any]] = (),
    fixes: Iterable[Fix] = (),
    growth: bool = False,
    **told: Unpack[Told],
) -> Claim:
    """The claim of `rule` on one birth, with the culprit, chain and effects filled in from the
    evidence. With `growth`, also how the value grew."""
    site = birth.site
    trip = evidence.trip
    told["explanation"] = " ".join(told["explanation"].split())
    step = trip.step if trip else evidence.failure_step
    return Claim(
        root=root_of(birth),
        specificity=specificity,
        position=site.index,
        finding=rule.finding(
            confidence=birth_confidence(evidence, birth, exact),
            **told,
            culprit=_blamed(evidence, culprit_of(site, birth)),
            phase=birth.phase,
            step=step,
            evidence=(*(_growth(birth) if growth else ()), *extra, *_inside(site)),
            chain=tuple(link(op) for op in birth.chain),
            effects=effects(evidence),
            experiments=replay_row(evidence),
            fixes=tuple(fixes),
        ),
    )


def _blamed(evidence: Evidence, culprit: Culprit) -> Culprit:
    """An op of the recipe's criterion has no line of the user's: the one that made the criterion is
    to blame; for an op of a model that is no Python (TorchScript), the one that made the model."""
    if culprit.location is not None or culprit.module:
        return culprit
    outside = culprit.module is None and evidence.criterion_site is not None
    site = evidence.criterion_site if outside else evidence.model_site
    return replace(culprit, location=site) if site is not None else culprit


def _growth(birth: Birth) -> list[tuple[str, str]]:
    if not birth.growth:
        return []
    return [(GROWTH, " → ".join(f"{point.absmax:.3g} ({point.what})" for point in birth.growth))]


def culprit_of(
    site: OpFacts, birth: Birth | None = None, kind: CulpritKind = "op", **more: Any
) -> Culprit:
    """The culprit an op is, with the samples of its birth."""
    return Culprit(
        kind=kind,
        op=site.op,
        node=(birth.op.node if birth else None) or site.node,
        module=site.module,
        module_type=site.module_type,
        samples=birth.samples if birth else (),
        dataset_indices=birth.dataset_indices if birth else (),
        location=site.site,
        **more,
    )


def link(op: OpFacts) -> ChainLink:
    """One op of a chain as the report shows it."""
    ins = [fact.absmax for fact in op.inputs if fact.absmax is not None]
    bad = next((fact for fact in op.outputs if fact.nonfinite), None)
    out = op.outputs[0] if op.outputs and (bad is None or op.outputs[0].nonfinite) else bad
    return ChainLink(
        op=op.op,
        module=op.module,
        line=op.location.line if op.location else None,
        dtype=out.dtype if out else None,
        shape=out.shape if out else (),
        absmax_in=max(ins) if ins else None,
        absmax_out=out.absmax if out else None,
        nonfinite_out=out.nonfinite if out else 0,
    )


def effects(evidence: Evidence) -> tuple[tuple[str, int | None], ...]:
    """What the root cause did: to the loss, the gradients, the program."""
    found: list[tuple[str, int | None]] = []
    trip = evidence.trip
    if trip is not None:
        if trip.loss is not None and trip.loss - trip.loss != 0:
            found.append((f"the loss is {trip.loss}", trip.step))
        shown = trip.bad_parameters[:3]
        places = (*trip.bad_at, *(None for _ in shown))
        found.extend(
            (f"parameter {name} has a non-finite gradient{_from(at)}", trip.step)
            for name, at in zip(shown, places, strict=False)
        )
        if len(trip.bad_parameters) > len(shown):
            found.append(
                (
                    f"{len(trip.bad_parameters) - len(shown)} more parameters have non-finite "
                    "gradients",
                    trip.step,
                )
            )
        found.extend(
            (
                f"probe {probe.label!r} saw {'NaN' if probe.maximum != probe.maximum else '+inf'}",
                trip.step,
            )
            for probe in evidence.probed
            if probe.bad
        )
        if trip.zero_gradients:
            found.append(
                ("every gradient is exactly zero: the step itself damages no weights", trip.step)
            )
    amp = evidence.amp_facts
    # found in a step that was skipped
    if trip is not None and amp is not None and amp.story and trip.grad_norm is None:
        found.append((amp.story, None))
    if evidence.failure is not None:
        found.append(
            (
                f"the code raises {evidence.failure.type}: {evidence.failure.first_line[:160]}",
                evidence.failure_step,
            )
        )
    return tuple(found)


def _from(index: tuple[int, ...] | None) -> str:
    return "" if index is None else f", first at [{', '.join(map(str, index))}]"


def replay_row(evidence: Evidence) -> tuple[dict[str, Any], ...]:
    """The one experiment every examination makes: the same step again."""
    if evidence.reproduced in ("not_run", "as_it_ran"):
        return ()
    outcome = {
        "bitwise": "fails again, bitwise the same",
        "tolerance": "fails again, nearly the same",
    }.get(evidence.reproduced, "not reproduced")
    if evidence.reproduced == "no" and (evidence.births or evidence.leaves):
        outcome = "fails again, with a different loss"
    loss = evidence.trip.loss if evidence.trip else None
    return ({"name": "same again", "outcome": outcome, "loss": loss},)


def count(number: int, noun: str) -> str:
    """`3 elements`, `1 element`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def values(minimum: float | None, maximum: float | None) -> str:
    """A range as a reader would write it."""
    if minimum is None or maximum is None:
        return "no finite value"
    return f"{minimum:.4g}" if minimum == maximum else f"{minimum:.4g} … {maximum:.4g}"


def _inside(site: OpFacts) -> list[tuple[str, Any]]:
    """The library's line, where the user's only calls it."""
    library = site.location
    if site.called_from is None or library is None:
        return []
    return [("in the library", f"{library.place}: {library.code.splitlines()[0]}")]
