"""Names of modules and parameters as the source has them: torch.compile puts what it compiles under
`_orig_mod`, which no line of the user's says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from nanodoc.diagnosis.finding import Finding

_COMPILED = re.compile(r"\b_orig_mod\.(?=\w)|(?<=\w)\._orig_mod\b")


def of_source(name: str) -> str:
    """A path in the model, without what torch.compile has added."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def with_source_names(finding: Finding) -> Finding:
    """The finding with such names. Messages of exceptions stay as they are."""
    if finding.family == "crash":
        return finding
    culprit = finding.culprit
    return replace(
        finding,
        title=_shown(finding.title),
        explanation=_shown(finding.explanation),
        culprit=replace(
            culprit,
            module=of_source(culprit.module) if culprit.module else culprit.module,
            parameter=of_source(culprit.parameter) if culprit.parameter else culprit.parameter,
        ),
        evidence=tuple((name, _shown(value)) for name, value in finding.evidence),
        effects=tuple((_shown(text), step) for text, step in finding.effects),
    )


def _shown(value: Any) -> Any:
    return _COMPILED.sub("", value) if isinstance(value, str) else value
