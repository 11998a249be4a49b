"""The thresholds of the rules about learning, by name: what `thresholds:` in the configuration and
`--threshold NAME=VALUE` change.

Defaults are those of the catalogue; where others are their source, it stands beside them. Nothing
here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from nanodoc.errors import UsageError
from nanodoc.facts.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number that a rule compares with."""

    code: str
    default: float
    meaning: str


THRESHOLDS: Mapping[str, Threshold] = {
    "unnormalised-input.mean": Threshold("ND107", 10.0, "|mean| of the median sample (DLCheck)"),
    "unnormalised-input.largest": Threshold(
        "ND107", 50.0, "largest |x| of the median sample (torch-audit)"
    ),
    "class-imbalance.ratio": Threshold(
        "ND109", 10.0, "most frequent class to least frequent (SageMaker Debugger)"
    ),
    "padding-dominated.share": Threshold(
        "ND110", 0.5, "share of one token (SageMaker Debugger, NLPSequenceRatio)"
    ),
    "slow-loader.share": Threshold("ND112", 0.5, "share of the time spent waiting for data"),
    "vanishing-gradients.ratio": Threshold(
        "ND602", 1e-3, "gradient norm of the first layers over that of the last"
    ),
    "vanishing-gradients.mean": Threshold("ND602", 1e-7, "mean |gradient| of a layer"),
    "dead-units.share": Threshold(
        "ND603", 0.5, "share of a layer's units that are zero for every sample"
    ),
    "saturated-activations.share": Threshold("ND604", 0.5, "share of the outputs in the flat part"),
    "learning-rate-range.gone": Threshold(
        "ND609", 1e-4, "times the peak: a rate below it moves nothing"
    ),
    "initial-loss.times-chance": Threshold("ND611", 2.0, "first loss over ln C"),
    "loss-spike.times": Threshold(
        "ND615", 10.0, "a loss over the median of the ten steps around it"
    ),
    "collapsed-output.spread": Threshold(
        "ND618", 1e-6, "largest difference between samples, relative to the largest output"
    ),
    "unscaled-accumulation.micro-batches": Threshold(
        "ND623", 4.0, "summed losses from which on it is a warning"
    ),
    "unreachable-target.share": Threshold(
        "ND629", 0.1, "share of the targets out of the activation's reach"
    ),
}


def limit(evidence: Evidence, name: str) -> float:
    """The threshold `name`, as configured."""
    return evidence.thresholds.get(name, THRESHOLDS[name].default)


def check_thresholds(given: Mapping[str, float], source: str) -> None:
    """Raises `UsageError` for a name that is no threshold."""
    for name in given:
        if name not in THRESHOLDS:
            near = get_close_matches(name, THRESHOLDS, 1, cutoff=0.3)
            raise UsageError(
                f"{source}: no threshold {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
                + " (nanodoc explain CODE lists them)"
            )


def described(code: str) -> str:
    """The thresholds of one rule, a line each, as `nanodoc explain` prints them; "" without any."""
    lines = [
        f"    {name} = {one.default:g}    {one.meaning}\n"
        for name, one in THRESHOLDS.items()
        if one.code == code
    ]
    return (
        "\nThresholds (--threshold NAME=VALUE, or `thresholds:` in the configuration):\n"
        + "".join(lines)
        if lines
        else ""
    )
