"""The looks at the data of a run: where bad values of a batch were made, and what single samples
show when they are drawn again."""

from __future__ import annotations

from dataclasses import replace

from nanodoc.examination.epoch_order import one_order
from nanodoc.examination.far_line import far_leaf, far_line
from nanodoc.examination.large_loss import HUGE
from nanodoc.examination.making import MakingSearch, Source, with_makings
from nanodoc.examination.stray_edges import edges_of
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import LargeFacts
from nanodoc.looks.scheduler import Look, Place, Stage
from nanodoc.loop.watched_run import WatchedRun
from nanodoc.pipeline.item_look import item_facts
from nanodoc.pipeline.run_plan import Run
from nanodoc.progress import Progress
from nanodoc.recipe.data_loader import loader_of

MADE, ITEMS = "where the data are made", "samples drawn again"
_DRAWING = 4.0  # seconds, in which some samples are drawn
_SEARCH = 20.0  # seconds, in which a line is looked for
_LEAST = 1.0  # seconds that a search has whatever else took its time: a finding lacks its line


class DataLooks:
    """The looks at one run's data, which add what they find to the `evidence`."""

    def __init__(
        self, run: Run, engine: WatchedRun, evidence: Evidence, progress: Progress
    ) -> None:
        self.evidence = evidence
        self._run = run
        self._engine = engine
        self._progress = progress

    def register(self) -> None:
        """Adds those that the end of the run asks for."""
        well = self.evidence.trip is None and self.evidence.failure is None
        looks = self._engine.looks
        looks.add(
            Look(
                name=MADE,
                group=MADE,
                stage=Stage.DATA,
                likely=0.9,  # the values are bad already where they enter the step
                runs=0,
                seconds=_LEAST,
                most=_SEARCH,
                due=True,
                least=_LEAST,
                asks=lambda: bool(self.evidence.leaves),
                work=self._find_makings,
            )
        )
        looks.add(
            Look(
                name="where huge values are made",
                group=MADE,
                stage=Stage.DATA,
                likely=0.5,  # they lie there before the step
                runs=0,
                seconds=_LEAST,
                most=_SEARCH,
                asks=lambda: self._large() is not None,
                work=self._find_large,
            )
        )
        looks.add(
            Look(
                name="the order of the epochs",
                group=ITEMS,
                stage=Stage.DATA,
                due=True,  # nothing is run for it
                runs=0,
                asks=lambda: well and self.evidence.data is not None,
                work=self._compare_epochs,
            )
        )
        looks.add(
            Look(
                name=ITEMS,
                group=ITEMS,
                stage=Stage.DATA,
                likely=0.1,  # few data sets spoil their samples, or share some with another split
                runs=0,
                seconds=0.1,
                share=0.75,
                most=_DRAWING + _SEARCH,
                asks=lambda: well and self._source().dataset is not None,
                work=self._draw_items,
            )
        )

    def with_far_line(self, evidence: Evidence) -> Evidence:
        """The evidence with the line that makes the values of inputs far from mean 0 and deviation
        1. Only where an experiment has shown that they matter is the data set built anew for it."""
        pattern, data = evidence.pattern, evidence.data
        far = pattern.far if pattern is not None else None
        path = far.path if far is not None else far_leaf(evidence)
        self.evidence = evidence

        def find(place: Place) -> None:
            if data is not None and path is not None:
                search = self._search(place, rebuilding=far is not None)
                found = far_line(search, data, path)
                self.evidence = replace(evidence, data=replace(data, far_at=found))

        self._engine.looks.add(
            Look(
                name="where inputs far from 0 are made",
                group=MADE,
                stage=Stage.LINES,
                likely=0.5,
                runs=0,
                seconds=_LEAST,
                share=0.5,
                most=_SEARCH,
                due=True,
                least=_LEAST,
                asks=lambda: data is not None and path is not None,
                work=find,
            )
        )
        self._engine.looks.run(Stage.LINES)
        return self.evidence

    def _find_makings(self, place: Place) -> None:
        self._progress.say("tracing the bad values back to where the batch is made …")
        evidence, search = self.evidence, self._search(place)
        step = evidence.trip.step if evidence.trip is not None else evidence.failure_step or 0
        self.evidence = replace(evidence, leaves=with_makings(search, evidence.leaves, step))

    def _large(self) -> LargeFacts | None:
        """What came into the step with values that make its loss huge."""
        inspection = self.evidence.inspection
        large = inspection.large if inspection is not None else None
        return large if large is not None and large.name else None

    def _find_large(self, place: Place) -> None:
        large, inspection = self._large(), self.evidence.inspection
        if large is None or inspection is None or large.op.site is None:
            return
        found = self._search(place).of_size(large.op.site, HUGE)
        if found is not None:
            line, grown_at = found
            large = replace(large, made_at=line.line, variable=line.name, grown_at=grown_at)
        self.evidence = replace(self.evidence, inspection=replace(inspection, large=large))

    def _compare_epochs(self, place: Place) -> None:
        evidence, made_at = self.evidence, self._engine.build.made_for_loader_at
        order = one_order(self._source(), len(evidence.losses), made_at)
        if evidence.data is not None:
            self.evidence = replace(evidence, data=replace(evidence.data, one_order=order))

    def _draw_items(self, place: Place) -> None:
        made_at, source = self._engine.build.made_for_loader_at, self._source()
        items = item_facts(source, min(_DRAWING, place.left / 3))
        if items is not None and (overlap := items.overlap) is not None:
            line = made_at(source.validated_on[overlap.number])
            items = replace(items, overlap=replace(overlap, line=line))
        if items is not None and (sampling := items.sampling) is not None:
            items = replace(items, sampling=replace(sampling, line=made_at(source.sampler)))
        if items is not None and (stray := items.stray) is not None:
            line = self._search(place).of_part(stray.index, edges_of)
            items = replace(items, stray=replace(stray, line=line))
        self.evidence = replace(self.evidence, items=items)

    def _search(self, place: Place, *, rebuilding: bool = True) -> MakingSearch:
        engine, rebuilt = self._engine, self._run.rebuilt if rebuilding else None
        seconds = min(max(place.left, _LEAST), _SEARCH)
        return MakingSearch(engine.runner, engine.keeper, self._source(), rebuilt, seconds)

    def _source(self) -> Source:
        """What the batches come from."""
        source = self._run.data() if self._run.data is not None else None
        if source is None:
            # one of a stream has no length to be true by
            loader = loader_of(self._engine.recipe.data)
            source = Source.of_loader(self._engine.recipe.data if loader is None else loader)
        return source
