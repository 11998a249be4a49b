"""What a run found, against what its user has accepted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from nanodoc.config import Config
from nanodoc.report.accepted import accept
from nanodoc.report.baseline import (
    DEFAULT,
    Known,
    check_baseline_file,
    known_as,
    read_baseline,
    write_baseline,
)
from nanodoc.report.report import Report

OFF = "off"


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """What was read before the run: the training may change its folder and files."""

    known: tuple[Known, ...] = ()
    file: str = ""
    new: Path | None = None
    """Where this run's is to be written."""


def read_baselines(config: Config) -> Baselines:
    """Raises `UsageError` where the baseline cannot be read, or the new one cannot be written."""
    if config.write_baseline is not None:
        check_baseline_file(Path(config.write_baseline))
        return Baselines(file=config.write_baseline, new=Path(config.write_baseline).absolute())
    file = config.baseline or (DEFAULT if Path(DEFAULT).is_file() else OFF)
    if file == OFF:
        return Baselines()
    return Baselines(known=read_baseline(Path(file)), file=file)


def with_accepted(report: Report, config: Config, baselines: Baselines) -> Report:
    """The report with the accepted findings set apart; with `write_baseline`, what this run found
    becomes the baseline."""
    shown = accept(
        report,
        allow=config.allow,
        baseline=baselines.known,
        baseline_file=baselines.file,
        all_rules=not config.select and not config.ignore,
    )
    if baselines.new is None:
        return shown
    if not report.whole:
        return _unwritten(shown, "the run did not go to its end")
    try:
        write_baseline(baselines.new, shown.findings, report.nanodoc)
    except OSError as error:
        return _unwritten(shown, f"{baselines.file}: {error.strerror or error}")
    return accept(
        shown,
        baseline=[known_as(finding) for finding in shown.findings],
        baseline_file=baselines.file,
        all_rules=False,
    )


def _unwritten(report: Report, why: str) -> Report:
    return replace(
        report, not_checked=(*report.not_checked, ("baseline", f"it was not written: {why}"))
    )
