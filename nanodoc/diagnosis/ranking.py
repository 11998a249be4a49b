"""From claims to findings: one finding per root cause, the likeliest cause first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nanodoc.diagnosis.finding import SEVERITIES, Finding
from nanodoc.facts.amp import BACKWARD_AFTER_UNSCALE, STEPPED_SCALED

if TYPE_CHECKING:
    from nanodoc.diagnosis.claim import Claim

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
        if known is None or (claim.fit, claim.finding.confidence) > (
            known.fit,
            known.finding.confidence,
        ):
            best[claim.root] = claim
    roots = _without_effects(list(best.values()))
    ordered = sorted(
        roots, key=lambda c: (SEVERITIES.index(c.finding.severity), c.order, -c.finding.confidence)
    )
    return tuple(claim.finding for claim in ordered)[:_MOST_FINDINGS]


def _without_effects(claims: list[Claim]) -> list[Claim]:
    """Sick weights and updates explain whatever the next step does; a non-finite value explains the
    exception it leads to."""
    kinds = {claim.root[0] for claim in claims}
    if any(claim.root[0] == "sick" and claim.finding.severity == "critical" for claim in claims):
        return [claim for claim in claims if claim.root[0] == "sick"]
    # updates too large by the loss scale blow the weights up, whatever overflows first
    if any(claim.root[0] == "scaler-call" and claim.root[1] in _BLOWING_UP for claim in claims):
        claims = [claim for claim in claims if claim.root[0] not in ("line", "op", "optimizer")]
    if "optimizer" in kinds:
        claims = [claim for claim in claims if claim.root[0] == "optimizer"]
    # what layers came to has its cause in the loop, the loss, the data; what the model as a whole
    # came to, in any of these
    serious = [claim for claim in claims if claim.finding.severity != "info"]
    if any(claim.symptom == 0 and claim.root[0] in _CAUSES for claim in serious):
        claims = [claim for claim in claims if claim.symptom == 0]
    elif any(claim.symptom < 2 for claim in serious):
        claims = [claim for claim in claims if claim.symptom < 2]
    if kinds & {"line", "op", "leaf"}:
        claims = [
            claim for claim in claims if claim.root[0] not in ("failure", "probe") or claim.fit > 0
        ]
    return claims
