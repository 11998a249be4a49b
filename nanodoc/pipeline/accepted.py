"""What a run found, against what its user has accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nanodoc.config import Config
from nanodoc.report.accepted import accept, is_complete
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


def check_baselines(config: Config) -> None:
    """Raises `UsageError` where the baseline cannot be read, or the new one cannot be written:
    before a run, not after it."""
    if config.write_baseline is not None:
        check_baseline_file(Path(config.write_baseline))
    else:
        _known(config)


def with_accepted(report: Report, config: Config) -> Report:
    """The report with the accepted findings set apart; with `write_baseline`, what this run found
    becomes the baseline. Raises `UsageError` where a baseline cannot be read any more."""
    shown = accept(
        report,
        allow=config.allow,
        baseline=_known(config) if config.write_baseline is None else (),
        baseline_file=config.baseline or DEFAULT,
        all_rules=not config.select and not config.ignore,
    )
    if config.write_baseline is None:
        return shown
    if not is_complete(report):
        return _unwritten(shown, "the run did not go to its end")
    try:
        write_baseline(Path(config.write_baseline), shown.findings, report.nanodoc)
    except OSError as error:
        return _unwritten(shown, f"{config.write_baseline}: {error.strerror or error}")
    return accept(
        shown,
        baseline=[known_as(finding) for finding in shown.findings],
        baseline_file=config.write_baseline,
        all_rules=False,
    )


def _unwritten(report: Report, why: str) -> Report:
    return replace(
        report, not_checked=(*report.not_checked, ("baseline", f"it was not written: {why}"))
    )


def _known(config: Config) -> tuple[Known, ...]:
    if config.baseline == OFF:
        return ()
    if config.baseline is not None:
        return read_baseline(Path(config.baseline))
    return read_baseline(Path(DEFAULT)) if Path(DEFAULT).is_file() else ()
