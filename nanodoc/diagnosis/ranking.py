"""From claims to findings: one finding per root cause, the likeliest cause first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage
from nanodoc.diagnosis.finding import SEVERITIES, Finding
from nanodoc.facts.amp import BACKWARD_AFTER_UNSCALE, STEPPED_SCALED
from nanodoc.facts.loop import CLIPPED_EARLY, CLIPPED_LATE, CLIPPED_NOTHING

_MOST_FINDINGS = 20
_CAUSES = (
    "line",
    "op",
    "loop",
    "optimizer",
    "rate",
    "data",
    "init",
    "mode",
    "scaler-call",
    "owner",
)
_GROWN = 2  # steps: updates have had the time to grow
_UNCLIPPED = (CLIPPED_EARLY, CLIPPED_LATE, CLIPPED_NOTHING)
_BLOWING_UP = (STEPPED_SCALED, BACKWARD_AFTER_UNSCALE)


def rank(claims: Iterable[Claim]) -> tuple[Finding, ...]:
    """Of all claims on a root the best fitting becomes the finding; effects of another root are
    dropped.

    Order: severity, then how far up the cause lies (weights before the step, then ops in the order
    they ran), then confidence.
    """
    best: dict[tuple[object, ...], Claim] = {}
    for claim in claims:
        known = best.get(claim.root)
        if known is None or _fitness(claim) > _fitness(known):
            best[claim.root] = claim
    roots = [_before_its_overflow(claim, best.values()) for claim in best.values()]
    roots = _without_effects(roots)
    return tuple(claim.finding for claim in sorted(roots, key=_order))[:_MOST_FINDINGS]


def _fitness(claim: Claim) -> tuple[Specificity, float]:
    return claim.specificity, claim.finding.confidence


def _order(claim: Claim) -> tuple[int, Stage, int, float]:
    finding = claim.finding
    return SEVERITIES.index(finding.severity), claim.stage, claim.position, -finding.confidence


def _before_its_overflow(claim: Claim, all_claims: Iterable[Claim]) -> Claim:
    """A clip that misses its gradients comes before what overflows after some steps of them."""
    if claim.root[0] != "loop" or claim.root[1] not in _UNCLIPPED:
        return claim
    late = (one.finding for one in all_claims if one.finding.name == "overflow")
    grown = any((finding.step or 0) >= _GROWN for finding in late)
    return replace(claim, stage=Stage.WEIGHTS) if grown else claim


def _without_effects(claims: list[Claim]) -> list[Claim]:
    """Sick weights and updates explain whatever the next step does; a non-finite value explains the
    exception it leads to."""
    kinds = {claim.root[0] for claim in claims}
    if any(claim.root[0] == "sick" and claim.finding.severity == "critical" for claim in claims):
        return [claim for claim in claims if claim.root[0] == "sick"]
    # updates too large by the loss scale blow the weights up, whatever overflows first
    if any(claim.root[0] == "scaler-call" and claim.root[1] in _BLOWING_UP for claim in claims):
        claims = [claim for claim in claims if claim.root[0] not in ("line", "op", "optimizer")]
    if any(claim.root[0] == "optimizer" for claim in claims):
        unclipped = [c for c in claims if c.root[0] == "loop" and c.root[1] in _UNCLIPPED]
        # a clip that misses its gradients has let them grow
        claims = unclipped or [claim for claim in claims if claim.root[0] == "optimizer"]
    # what layers came to has its cause in the loop, the loss, the data; what the model as a whole
    # came to, in any of these
    serious = [claim for claim in claims if claim.finding.severity != "info"]
    if any(claim.scope is Scope.CAUSE and claim.root[0] in _CAUSES for claim in serious):
        claims = [claim for claim in claims if claim.scope is Scope.CAUSE]
    elif any(claim.scope < Scope.MODEL for claim in serious):
        claims = [claim for claim in claims if claim.scope < Scope.MODEL]
    if kinds & {"line", "op", "leaf"}:
        claims = [claim for claim in claims if not _is_mere_symptom(claim)]
    return claims


def _is_mere_symptom(claim: Claim) -> bool:
    """An exception or a probe's word of which no rule knows more than that it came."""
    return claim.root[0] in ("failure", "probe") and claim.specificity is Specificity.FALLBACK
