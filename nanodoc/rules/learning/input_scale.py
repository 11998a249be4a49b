"""How ND107 and ND606 tell of inputs that were standardised, with which a run does better."""

from __future__ import annotations

from nanodoc.diagnosis.finding import Fix
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.trials import FarInputs


def inputs_to_blame(evidence: Evidence) -> FarInputs | None:
    """Those that were shown to make the run diverge."""
    far = evidence.pattern.far if evidence.pattern is not None else None
    return far if far is not None and far.diverged else None


def of_the_inputs(far: FarInputs) -> str:
    """What was seen of inputs that are not standardised."""
    into = f" into {far.module}" if far.module else ""
    return (
        f"{far.path} is passed unnormalised{into}, with values from {far.minimum:.3g} to "
        f"{far.maximum:.3g}: standardised, the same steps with the same learning rate end at a "
        f"loss of {far.last_loss:.3g}."
    )


def standardise(far: FarInputs) -> Fix:
    """The fix that was tried on the run's steps."""
    return Fix(
        title="standardise the inputs: (x - mean) / std per feature, images as x / 255",
        verified=True,
        outcome=f"with that the steps end at loss {far.last_loss:.3g}",
    )
