"""The samples that alone make a step fail, found by running it on parts of its batch and told in
the finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nanodoc.diagnosis.finding import Finding
from nanodoc.experiments.samples import GuiltySamples, parts_of
from nanodoc.experiments.trial import Say, StepTrials, Trial
from nanodoc.replay.step_state import StepState
from nanodoc.report.report import OTHERS
from nanodoc.tensors.nested import batch_size

_SAMPLES = "samples that fail alone"
SEARCH = 0.25  # share of the time left that the search of guilty samples may take


class Blame:
    """Looks for the guilty samples of one step, or its guilty micro-batch."""

    def __init__(
        self,
        trials: StepTrials,
        capsule: StepState,
        indices: Sequence[int] | None,
        say: Say,
    ) -> None:
        self._trials = trials
        self._capsule = capsule
        self._indices = indices
        self._say = say
        self.guilty = False
        """Samples were found that fail alone while the others pass."""
        self.rest: tuple[StepState, float, str] | None = None
        """The step without the guilty samples, its loss, and what it is."""

    def look(
        self, fail: Callable[[Trial], bool], finding: Finding, *, divisible: bool = True
    ) -> Finding:
        """The finding with the samples whose trials `fail` says fail alone, where there are some
        and the others pass. Unless `divisible`, a part of a batch would tell nothing."""
        if not self._trials.place.allows(self._trials.seconds, _SAMPLES):
            return finding
        return self._trials.in_time(
            lambda: self._found(fail, finding, divisible), finding, _SAMPLES
        )

    def _found(self, fail: Callable[[Trial], bool], finding: Finding, divisible: bool) -> Finding:
        capsule, indices, before = self._capsule, self._indices, ""
        if len(capsule.batches) > 1:
            self._say("searching for the micro-batch that fails alone …")
            number = self._guilty_micro_batch(capsule, fail)
            if number is None:
                return finding
            sizes = [batch_size(batch) or 0 for batch in capsule.batches]
            first, before = sum(sizes[:number]), f"micro-batch {number}, "
            capsule, indices = (
                replace(capsule, batches=[capsule.batches[number]]),
                indices[first : first + sizes[number]] if indices else None,
            )
            if sizes[number] == 1:
                rest = replace(
                    self._capsule,
                    batches=[batch for i, batch in enumerate(self._capsule.batches) if i != number],
                )
                return self._blamed(finding, (0,), rest, indices, before)
        parts = (
            parts_of(
                capsule, self._trials.runner.recipe.data, indices, self._trials.place.part(SEARCH)
            )
            if divisible
            else None
        )
        if parts is None:
            return finding
        self._say("searching for the samples that fail alone …")
        if indices is not None and len(indices) != parts.size:
            indices = None  # its rows are no samples
        search = GuiltySamples(
            parts, lambda rows: fail(self._trials.outcome(rows)), self._trials.place.part(SEARCH)
        )
        guilty = finding.culprit.samples
        if not search.confirm(guilty):
            guilty = search.search()
        if not guilty:
            return finding
        others = parts.of([row for row in range(parts.size) if row not in set(guilty)])
        return (
            self._blamed(finding, guilty, others, indices, before, search.company)
            if others is not None
            else finding
        )

    def _guilty_micro_batch(self, capsule: StepState, fail: Callable[[Trial], bool]) -> int | None:
        """The number of the only one of several micro-batches that fails alone."""
        failing = [
            i
            for i, batch in enumerate(capsule.batches)
            if fail(self._trials.outcome(replace(capsule, batches=[batch])))
        ]
        return failing[0] if len(failing) == 1 else None

    def _blamed(
        self,
        finding: Finding,
        guilty: Sequence[int],
        rest: StepState,
        indices: Sequence[int] | None,
        before: str,
        company: int = 0,
    ) -> Finding:
        """The finding with the `guilty` samples of what lies `before`, if the `rest` passes."""
        without = self._trials.outcome(rest)
        if not without.healthy:
            return finding
        if without.loss is not None:
            self.rest = (rest, without.loss, OTHERS)
        self.guilty = True
        named = ", ".join(map(str, guilty[:8])) + (", …" if len(guilty) > 8 else "")
        each = ", each" if len(guilty) > 1 else ""
        how = f"{each} with {company} that pass" if company else " alone"
        rows = (
            {
                "name": f"{before}sample{'s' if len(guilty) > 1 else ''} {named}{how}",
                "outcome": "fails",
                "loss": None,
                "seconds": None,
            },
            {
                "name": "the batch without " + ("them" if len(guilty) > 1 else "it"),
                "outcome": "passes",
                "loss": without.loss,
                "seconds": round(without.seconds, 4),
            },
        )
        at = (
            tuple(indices[row] for row in guilty if row < len(indices))
            if indices
            else finding.culprit.dataset_indices
        )
        culprit = replace(finding.culprit, samples=tuple(guilty), dataset_indices=at)
        return replace(finding, culprit=culprit, experiments=(*finding.experiments, *rows))
