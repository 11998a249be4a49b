"""Mutants of training scripts: trainings with one mistake, put in by operators on the syntax tree.

`scripts/mutate --generate` makes them and keeps those that do harm in plain Python. A mutant
counts where the held-out metric is worse than the mean of the healthy script by more than the
range over five seeds (near that border the median of three seeds decides), where it is NaN, or
where the training raises. `scripts/mutate --score` runs nanodoc on each and judges its first
warning or critical finding: right (line and cause), half (one of both), wrong, or missed (none).

Half of the scripts are sealed, by a hash of their names: of their mutants nothing but the class is
kept. A rate that is better for the open half was gained by writing to the test.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.mutations.generate import generate, stored
from benchmarks.mutations.kept import default_cache
from benchmarks.mutations.plain import Plain
from benchmarks.mutations.score import Scorer, table
from benchmarks.mutations.subjects import Layouts, Subject, subjects


def main() -> None:
    """Entry point of `scripts/mutate`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, help="holds `examples` and `nanoGPT`")
    parser.add_argument("--generate", action="store_true", help="make mutants and check them")
    parser.add_argument("--score", action="store_true", help="run nanodoc on them")
    parser.add_argument("--only", default="", help="parts of names of scripts, with commas between")
    parser.add_argument("--kind", default="", help="with --score: only this kind of mistake")
    parser.add_argument("--limit", type=int, default=0, help="with --score: so many of each half")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="with --score: also write the score here")
    parser.add_argument("--cache", type=Path, default=default_cache())
    given = parser.parse_args()
    chosen = [one for one in subjects() if _wanted(one, given.only)]
    layouts = Layouts(given.checkouts, given.cache)
    if given.generate:
        generate(chosen, layouts, Plain(layouts, given.cache))
    if given.score:
        scorer = Scorer(layouts, given.cache)
        names = {subject.name for subject in chosen}
        mutants = [
            mutant
            for mutant in stored()
            if mutant.script in names and given.kind in ("", mutant.kind)
        ]
        score = scorer.score(chosen, mutants, jobs=given.jobs, limit=given.limit)
        print(table(score))
        if given.json:
            given.json.write_text(json.dumps(score, indent=1) + "\n", "utf-8")


def _wanted(subject: Subject, only: str) -> bool:
    return not only or any(word in subject.name for word in only.split(","))
