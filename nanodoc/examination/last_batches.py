"""Some of the last batches run once more when the run is over, with every public function call
written down: what was called with which shapes, which units are dead, what the model returns.
Silent bugs show there and nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.aliases import alias_at
from nanodoc.examination.averages import stale_averages
from nanodoc.examination.discarded import discarded, lost_updates
from nanodoc.examination.edge_pairs import misread_edges, node_masks, reshaped_pairs_at
from nanodoc.examination.labels import (
    class_labels,
    criterion_at,
    edges_at,
    ignoring_at,
    labels_at,
    loss_by_hand,
    remembered_at,
    swapped_flags,
    weights_at,
)
from nanodoc.examination.mask_lines import mask_made_at
from nanodoc.examination.model_watch import ModelWatch
from nanodoc.examination.objective import weighed_data
from nanodoc.examination.seeded_draws import Seeds, redrawn, seeded_at, seeds_of
from nanodoc.examination.shuffled_apart import shuffled_apart
from nanodoc.examination.still_networks import FirstWeights, held_by
from nanodoc.examination.wanted_pairs import pairs_of
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.inspection import (
    InspectionFacts,
    LabelFacts,
    PairFacts,
    UnitFacts,
)
from nanodoc.looks.scheduler import Place
from nanodoc.measure.values import Units, ValueProbe
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.traced_replay import Replayer, leaves_of
from nanodoc.tensors.nested import batches_among, graphs_among, tensor_leaves
from nanodoc.trace.calls import CallLog
from nanodoc.trace.eager import run_eagerly
from nanodoc.vocabulary.calls import SQUASHERS

_MOST_BATCHES = 4
_ARE_NEAR = 0.8  # farther others: a loss that pairs these is right


class Inspector:
    """Looks at one run's last steps."""

    def __init__(self, runner: StepRunner, keeper: StateKeeper, build: BuildFacts) -> None:
        self._runner = runner
        self._keeper = keeper
        self._build = build
        self._model = runner.recipe.model
        self._named = list(self._model.named_parameters())
        self._first_weights = FirstWeights()

    def first_step(self) -> contextlib.AbstractContextManager[None]:
        """Open while the run's first step runs."""
        return self._first_weights.noted(self._runner.recipe.optimizers)

    def note_networks(self, values: Iterable[Any]) -> None:
        """As `first_step`, where hooks would change what the step computes: `values` are what it
        reads."""
        self._first_weights.note(values, self._runner.recipe.optimizers)

    def inspect(
        self,
        last: StepState,
        past: Sequence[PastStep],
        place: Place,
        first: StepState | None = None,
    ) -> tuple[InspectionFacts | None, str]:
        """(facts, "") or (None, why there are none). `past` are the steps whose batches are still
        there, and are looked at as far as `place` has time; `first` is the run's start, with its
        weights. What `LastSteps` asks is not among the facts yet."""
        probe = ValueProbe()
        watch = ModelWatch(self._model, self._build, held_by(self._runner.recipe.optimizers))
        others = [
            state
            for state in past
            if state.step != last.step and state.intact and len(state.batches) == len(last.batches)
        ]
        chosen = [*spread(others, _MOST_BATCHES - 1)]
        looked = 0
        averages = stale_averages(self._runner.recipe, first)
        labels: list[LabelFacts | None] = []
        drawn: list[Seeds] = []
        with self.aside():
            for state in chosen:
                if not place.allows(0.0, "more than one batch"):
                    break
                try:
                    start = replace(
                        last, batches=state.batches, rng=state.rng, numbers=state.numbers
                    )
                    seen = self.run(start, probe, None)
                    labels.append(class_labels(state.step, state.batches, seen))
                    drawn.append(seeds_of(seen))
                    looked += 1
                except (UserCodeError, UsageError):
                    continue
            try:
                calls = self.run(last, probe, watch)
            except (UserCodeError, UsageError) as error:
                name = type(getattr(error, "cause", error)).__name__
                return None, f"the last step raised {name} when it was re-run"
        labels.append(class_labels(last.step, last.batches, calls))
        pairs = pairs_of(calls)
        return InspectionFacts(
            step=last.step,
            labels=tuple(step for step in labels if step is not None),
            calls=calls,
            batches=looked + 1,
            units=tuple(_units(calls, probe)),
            stale_averages=averages,
            pairs=pairs if is_sure(pairs, first) else None,
            redrawn=(again := redrawn(calls, drawn)),
            seeded_at=seeded_at(calls, again),
            **self._of_the_model(watch, calls),
            **self._of_the_source(last, calls),
        ), ""

    def _of_the_model(self, watch: ModelWatch, calls: StepCalls) -> dict[str, Any]:
        """What `watch` saw of the networks, and the objects that the training reaches."""
        recipe = self._runner.recipe
        return {
            "output": watch.output,
            "modes": tuple(watch.modes),
            "training": watch.training,
            "maximised": self.maximised(),
            "still": watch.still.found(calls, self._first_weights),
            "unmoved": watch.still.unmoved(self._first_weights),
            "shared": watch.still.shared(self._runner.recipe.optimizers),
            "augmented": watch.augmentations.apart(),
            "likelihood": watch.likelihoods.minimised(),
            "model_called_at": watch.called_at,
            "causal_mask_at": mask_made_at(self._model, calls),
            "objective": weighed_data(recipe, calls),
        }

    def _of_the_source(self, last: StepState, calls: StepCalls) -> dict[str, Any]:
        """What the source of the calls' lines tells."""
        recipe = self._runner.recipe
        known = self.known_batches(last.batches)
        misread = misread_edges(known)
        return {
            "alias_at": alias_at(recipe, calls),
            "discarded": discarded(calls),
            "lost_updates": lost_updates(recipe, calls),
            "labels_at": labels_at(recipe, calls),
            "loss_by_hand": loss_by_hand(calls),
            "weights_at": weights_at(calls),
            "ignoring_at": ignoring_at(calls),
            "swapped_flags": swapped_flags(recipe, calls),
            "remembered_at": remembered_at(calls),
            "misread_edges": misread,
            "node_masks": node_masks(known),
            "edges_at": edges_at(calls, misread=misread is not None),
            "reshaped_pairs_at": reshaped_pairs_at(recipe, self._build),
            "criterion_at": criterion_at(calls),
            "shuffled": shuffled_apart(recipe, self._build, calls),
        }

    def replayer(self) -> Replayer:
        """For what needs the ops of a step; used inside `aside`."""
        return Replayer(self._runner, self._keeper)

    def maximised(self) -> bool:
        """An optimizer goes up the gradient."""
        groups = [group for o in self._runner.recipe.optimizers for group in o.param_groups]
        return any(group.get("maximize") for group in groups)

    def climbs_and_falls(self) -> bool:
        """One optimizer goes up the gradient, and another one down: which of them moves what is not
        told."""
        groups = [group for o in self._runner.recipe.optimizers for group in o.param_groups]
        return len({bool(group.get("maximize")) for group in groups}) > 1

    def look(
        self,
        last: StepState,
        look: contextlib.AbstractContextManager[Any],
        on_loss: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        """Runs the last step once more under `look`."""
        with self.aside():
            self._keeper.restore(last)
            batches = [self._runner.moved(batch) for batch in last.batches]
            with contextlib.suppress(UserCodeError, UsageError), look:
                run_step(self._runner, batches, on_loss=on_loss)

    @contextlib.contextmanager
    def aside(self, *, moving: bool = False) -> Iterator[None]:
        """Inside, steps are run again; everything is put back afterwards. `moving`: with other
        weights."""
        with (
            state_preserved(self._runner, self._keeper, moving=moving),
            warnings_unsaid(),
            run_eagerly(),
        ):
            yield

    def known_batches(self, batches: list[Any]) -> list[Any]:
        """Those of a step; a script's step may draw them itself."""
        if any(tensor_leaves(batches)):
            return batches
        step: Any = self._runner.recipe.train_step
        drawn = [value for _, value, _ in getattr(step, "recorded", ())]
        drawn = [value for value in drawn if not self._holds_weights(value)]
        bound = getattr(step, "variables", {})
        return batches_among(drawn) or graphs_among([*batches, *drawn, *bound.values()])

    def _holds_weights(self, value: Any) -> bool:
        """What a loop over parameters gives: one of them, or several with their names."""
        own = {id(tensor) for tensor in (*self._model.parameters(), *self._model.buffers())}
        return any(
            isinstance(tensor, torch.nn.Parameter) or id(tensor) in own
            for _, tensor in tensor_leaves(value)
        )

    def run(
        self,
        capsule: StepState,
        probe: ValueProbe,
        watch: ModelWatch | None,
        *,
        evaluating: bool = False,
    ) -> StepCalls:
        """The calls of a step that is run again; `probe` and `watch` measure in it. Raises what the
        step raises."""
        self._keeper.restore(capsule)
        if evaluating:
            self._model.eval()
        batches = [self._runner.moved(batch) for batch in capsule.batches]
        known = leaves_of(self._model, self.known_batches(batches))
        log = CallLog(self._model, known, probe.measure)
        probe.begin(log.made_of)
        if watch is not None:
            watch.begin(capsule, log.count)

        def on_loss(loss: torch.Tensor) -> None:
            log.on_loss(loss)
            probe.slopes.differentiated(loss)
            if watch is not None:
                watch.likelihoods.on_loss(loss)

        try:
            with log, contextlib.nullcontext() if watch is None else watch.noted():
                run_step(self._runner, batches, on_loss=on_loss)
        finally:
            if watch is not None:
                watch.end()
        return log.finish(self._build.layer_made_at)


def is_sure(pairs: PairFacts | None, first: StepState | None) -> bool:
    """The first weights could not show the pairs of a loss nearer to each other than these do."""
    known = first is not None and first.weights is not None
    return pairs is None or not known or pairs.wanted > _ARE_NEAR


def spread(steps: Sequence[PastStep], most: int) -> list[PastStep]:
    """`most` of the steps, evenly among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _units(calls: StepCalls, probe: ValueProbe) -> list[UnitFacts]:
    """One for each activation; calls from the same place in the same module are one, whatever they
    were given."""
    direct = _straight_to_the_loss(calls)
    places: dict[tuple[Any, ...], list[tuple[CallFacts, Units]]] = {}
    for call in calls.calls:
        number = call.notes.activation
        units = probe.units.get((call.name, number)) if number is not None else None
        if units is not None and units.alive is not None:
            places.setdefault(
                (call.name, call.module, call.location, units.alive.numel()), []
            ).append((call, units))
    found = []
    for same in places.values():
        call = same[-1][0]
        alive = torch.stack([units.alive for _, units in same if units.alive is not None]).any(0)
        values, flat = sum(units.values for _, units in same), sum(units.flat for _, units in same)
        found.append(
            UnitFacts(
                call=call,
                units=alive.numel(),
                dead=int((~alive).sum()),
                values=values,
                output=all(call.index in direct for call, _ in same),
                saturated=flat / values if call.name in SQUASHERS and values else 0.0,
            )
        )
    return found


def _straight_to_the_loss(calls: StepCalls) -> frozenset[int]:
    """Positions of the calls behind which no parameter is used any more."""
    reaching = calls.reaching_the_loss()
    seen: set[int] = set()
    waiting = list(calls.losses)
    while waiting:
        call: CallFacts = calls.calls[waiting.pop()]
        if call.index in seen or call.index not in reaching:
            continue
        seen.add(call.index)
        if not any(
            argument.made_by is None and argument.requires_grad for argument in call.arguments
        ):
            waiting += [
                argument.made_by for argument in call.arguments if argument.made_by is not None
            ]
    return frozenset(seen)
