"""The environment as one frozen object; `report/environment.py` renders it. Nothing here imports
torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nanodoc._version import __version__

OK, NOTE, FAILED = "OK", "note", "FAILED"
SCHEMA = 1
_LONGEST_REASON = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One accelerator; `supported` says whether this build of torch has code for it, None where
    that can't be known."""

    index: int
    name: str
    memory: int
    capability: str
    supported: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One tick of the list: what was found, and what to do about it where there is something to
    do."""

    name: str
    state: str
    text: str
    help: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Everything that `nanodoc env` says. A fact that could not be found out reads "unknown
    (why)"."""

    facts: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    packages: Mapping[str, str]
    variables: Mapping[str, str]
    checks: tuple[Check, ...]
    nanodoc: str = __version__

    @property
    def healthy(self) -> bool:
        return all(check.state != FAILED for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The public JSON, schema 1; the labels of facts become keys without spaces."""
        facts = {label.lower().replace(" ", "_"): value for label, value in self.facts.items()}
        return {
            "schema": SCHEMA,
            "nanodoc": self.nanodoc,
            "verdict": "healthy" if self.healthy else "failed",
            "facts": facts,
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "packages": dict(self.packages),
            "variables": dict(self.variables),
            "checks": [asdict(check) for check in self.checks],
        }


def found_out(gather: Callable[[], object]) -> str:
    """What `gather` gives, as text. Whatever it raises becomes the reason why it is unknown: one
    odd driver must not cost the rest."""
    try:
        value = gather()
    except Exception as error:
        return unknown(error)
    return "unknown (the system does not report it)" if value is None or value == "" else str(value)


def unknown(error: BaseException) -> str:
    said = " ".join(str(error).split())[:_LONGEST_REASON]
    return f"unknown ({type(error).__name__}{f': {said}' if said else ''})"
