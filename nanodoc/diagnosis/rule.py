"""A rule of the catalogue: one module, whose docstring is what `nanodoc explain` prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Finding, Severity
from nanodoc.facts.evidence import Evidence

Trial = Literal["values", "samples"]
Check = Callable[["Rule", Evidence], Iterable[Claim]]

_OPTIONS = "## Options\n"
_SEE_ALSO = "## See also\n"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a rule compares with. `meaning` says of what, and where the default comes
    from. In the configuration it is called `<rule's name>.<its own name>`."""

    default: float
    meaning: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One entry of the catalogue."""

    code: str
    name: str
    severity: Severity
    summary: str
    doc: str
    """The module's docstring."""
    check: Check
    family: str = ""
    """The folder that the rule's module lies in, such as "data"."""
    needs: tuple[str, ...] = ()
    """Fields of `Evidence` without which the rule can say nothing. Where one was not measured, the
    report says that the rule was not checked."""
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    preflight: str | None = None
    """The check of `--preflight` that a finding of this rule fails."""
    trials: tuple[Trial, ...] = ()
    """Which experiments can tell more of a finding: those about "values" that are not finite or
    grow, or those that look for the "samples" that raise."""
    supersedes: tuple[str, ...] = ()
    """Codes of findings of single ranks that a finding of this rule about all ranks explains."""

    def finding(self, **fields: Any) -> Finding:
        """A finding with this rule's code, name, family and severity; `severity` may be given."""
        own = {
            "code": self.code,
            "name": self.name,
            "family": self.family,
            "severity": self.severity,
        }
        return Finding(**{**own, **fields})

    def limit(self, evidence: Evidence, name: str) -> float:
        """The threshold `name` of this rule, as configured."""
        return evidence.thresholds.get(f"{self.name}.{name}", self.thresholds[name].default)

    @property
    def page(self) -> str:
        """What `nanodoc explain` prints of it: the docstring, with the options it has."""
        text, found, rest = self.doc.partition(_SEE_ALSO)
        written = text.partition(_OPTIONS)[2]
        if not written:
            text += _OPTIONS + ("" if self.thresholds else "None.\n\n")
        if self.thresholds:
            text += "Thresholds (--threshold NAME=VALUE, or `thresholds:` in the configuration):\n"
            for name, threshold in self.thresholds.items():
                text += f"    {self.name}.{name} = {threshold.default:g}    {threshold.meaning}\n"
            text += "\n"
        return text + found + rest


def matches(one: Rule | Finding, codes: Iterable[str]) -> bool:
    """True if one of `codes` is the code of the rule, or of the finding's, its name, or a prefix of
    its code such as ND3."""
    return any(
        one.code.startswith(code.upper()) or one.name == code.lower() for code in codes if code
    )


def rule(  # noqa: PLR0913 - one keyword per field of a rule
    code: str,
    name: str,
    severity: Severity,
    summary: str,
    *,
    needs: tuple[str, ...] = (),
    thresholds: Mapping[str, Threshold] | None = None,
    preflight: str | None = None,
    trials: tuple[Trial, ...] = (),
    supersedes: tuple[str, ...] = (),
) -> Callable[[Check], Rule]:
    """Turns the check of a rule's module into the `Rule`; the module's docstring is its page."""

    def made(check: Check) -> Rule:
        module = sys.modules[check.__module__]
        return Rule(
            code=code,
            name=name,
            severity=severity,
            summary=summary,
            doc=(module.__doc__ or "").strip() + "\n",
            check=check,
            family=module.__name__.split(".")[-2],
            needs=needs,
            thresholds=thresholds or {},
            preflight=preflight,
            trials=trials,
            supersedes=supersedes,
        )

    return made
