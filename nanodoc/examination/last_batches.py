"""Some of the last batches run once more when the run is over, with every public function call
written down: what was called with which shapes, which units are dead, what the model returns.
Silent bugs show there and nowhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.aliases import alias_at
from nanodoc.examination.averages import stale_averages
from nanodoc.examination.discarded import discarded, lost_updates
from nanodoc.examination.edge_pairs import misread_edges, reshaped_pairs_at, trained_nodes
from nanodoc.examination.labels import (
    brought_at,
    class_labels,
    criterion_at,
    edges_at,
    ignoring_at,
    labels_at,
    left_out_at,
    loss_by_hand,
    mask_at,
    remembered_at,
    shifts_labels,
    swapped_flags,
    unread_flags,
    weights_at,
)
from nanodoc.examination.leaking_op import LeakingOp
from nanodoc.examination.mask_lines import mask_made_at
from nanodoc.examination.model_watch import ModelWatch
from nanodoc.examination.objective import weighed_data
from nanodoc.examination.pair_labels import PairLabels, may_be_pairs
from nanodoc.examination.returns import ReturnsLook
from nanodoc.examination.seeded_draws import Seeds, redrawn, seeded_at, seeds_of
from nanodoc.examination.sequence_look import SequenceLook
from nanodoc.examination.shuffled_apart import shuffled_apart
from nanodoc.examination.still_networks import FirstWeights, held_by
from nanodoc.examination.wanted_pairs import away, pairs_of
from nanodoc.facts.calls import CallFacts, StepCalls, is_attention
from nanodoc.facts.inspection import (
    InspectionFacts,
    LabelFacts,
    PairFacts,
    SwappedPairs,
    UnitFacts,
)
from nanodoc.facts.policy import ReturnFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.measure.values import Units, ValueProbe
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.traced_replay import leaves_of
from nanodoc.tensors.nested import batches_among, graphs_among, tensor_leaves
from nanodoc.trace.calls import CallLog
from nanodoc.trace.eager import run_eagerly
from nanodoc.vocabulary.calls import DROPOUTS, SQUASHERS

_MOST_BATCHES = 4
_SECONDS = 5.0  # after which no further batch is looked at
_ARE_NEAR = 0.8  # farther others: a loss that pairs these is right
_LOG_PROB = ".log_prob("  # in the source of a line


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

    def inspect(
        self, last: StepState, past: Sequence[PastStep], first: StepState | None = None
    ) -> tuple[InspectionFacts | None, str]:
        """(facts, "") or (None, why there are none). `past` are the steps whose batches are still
        there, `first` is the run's start, with its weights."""
        began = time.perf_counter()
        probe = ValueProbe()
        watch = ModelWatch(self._model, self._build, held_by(self._runner.recipe.optimizers))
        others = [
            state
            for state in past
            if state.step != last.step and state.intact and len(state.batches) == len(last.batches)
        ]
        chosen = [*_spread(others, _MOST_BATCHES - 1)]
        looked = 0
        averages = stale_averages(self._runner.recipe, first)
        labels: list[LabelFacts | None] = []
        drawn: list[Seeds] = []
        with state_preserved(self._runner, self._keeper), warnings_unsaid(), run_eagerly():
            for state in chosen:
                if time.perf_counter() - began > _SECONDS:
                    break
                try:
                    start = replace(
                        last, batches=state.batches, rng=state.rng, numbers=state.numbers
                    )
                    seen = self._run(start, probe, None)
                    labels.append(class_labels(state.step, state.batches, seen))
                    drawn.append(seeds_of(seen))
                    looked += 1
                except (UserCodeError, UsageError):
                    continue
            try:
                calls = self._run(last, probe, watch)
            except (UserCodeError, UsageError) as error:
                name = type(getattr(error, "cause", error)).__name__
                return None, f"the last step raised {name} when it was re-run"
        pairs = self._pairs(last, first, pairs_of(calls))
        labels.append(class_labels(last.step, last.batches, calls))
        return InspectionFacts(
            step=last.step,
            labels=tuple(step for step in labels if step is not None),
            calls=calls,
            batches=looked + 1,
            units=tuple(_units(calls, probe)),
            stale_averages=averages,
            pairs=pairs,
            returns=self._returns(last, calls),
            redrawn=(again := redrawn(calls, drawn)),
            seeded_at=seeded_at(calls, again),
            swapped_pairs=self._swapped_pairs(last, calls),
            still_dropping=self._still_dropping(last, calls),
            **self._of_the_model(watch, calls),
            **self._of_the_source(last, calls),
            **self._sequences(last, calls),
        ), ""

    def _of_the_model(self, watch: ModelWatch, calls: StepCalls) -> dict[str, Any]:
        """What `watch` saw of the networks, and the objects that the training reaches."""
        recipe = self._runner.recipe
        return {
            "output": watch.output,
            "modes": tuple(watch.modes),
            "training": watch.training,
            "maximised": self._maximised(),
            "still": watch.still.found(calls, self._first_weights),
            "unmoved": watch.still.unmoved(self._first_weights),
            "augmented": watch.augmentations.apart(),
            "likelihood": watch.likelihoods.minimised(),
            "model_called_at": watch.called_at,
            "causal_mask_at": mask_made_at(self._model, calls),
            "objective": weighed_data(recipe, calls),
        }

    def _of_the_source(self, last: StepState, calls: StepCalls) -> dict[str, Any]:
        """What the source of the calls' lines tells."""
        recipe = self._runner.recipe
        known = self._known_batches(last.batches)
        misread = misread_edges(known)
        return {
            "alias_at": alias_at(recipe, calls),
            "discarded": discarded(calls),
            "lost_updates": lost_updates(recipe, calls),
            "labels_at": labels_at(recipe, calls),
            "loss_by_hand": loss_by_hand(calls),
            "weights_at": weights_at(calls),
            "ignoring_at": ignoring_at(calls),
            "unread_flags": unread_flags(recipe, calls),
            "swapped_flags": swapped_flags(recipe, calls),
            "remembered_at": remembered_at(calls),
            "misread_edges": misread,
            "trained_nodes": trained_nodes(known),
            "edges_at": edges_at(calls, misread=misread is not None),
            "reshaped_pairs_at": reshaped_pairs_at(recipe, self._build),
            "criterion_at": criterion_at(calls),
            "shuffled": shuffled_apart(recipe, self._build, calls),
        }

    def _pairs(
        self, last: StepState, first: StepState | None, found: PairFacts | None
    ) -> PairFacts | None:
        """With the first weights as well, where that moved samples apart that belong together."""
        if found is None or first is None or first.weights is None or found.wanted > _ARE_NEAR:
            return found
        start = replace(last, weights=first.weights)
        with (
            state_preserved(self._runner, self._keeper, moving=True),
            warnings_unsaid(),
            run_eagerly(),
        ):
            try:
                before = pairs_of(self._run(start, ValueProbe(), None)) or found
            except (UserCodeError, UsageError):
                return found
        return max(found, before, key=away)

    def _returns(self, last: StepState, calls: StepCalls) -> ReturnFacts | None:
        """Of a step that asks a distribution for log-probabilities."""
        if not any(_LOG_PROB in c.location.code for c in calls.calls if c.location):
            return None
        look = ReturnsLook(maximised=self._maximised())
        self._look(last, look, look.on_loss)
        return look.facts

    def _swapped_pairs(self, last: StepState, calls: StepCalls) -> SwappedPairs | None:
        if not may_be_pairs(calls):
            return None
        look = PairLabels()
        self._look(last, look)
        return look.swapped

    def _still_dropping(self, last: StepState, calls: StepCalls) -> tuple[int, ...]:
        """The calls of dropout, other than those of dropout layers, that drop in eval mode."""
        own = [call for call in calls.calls if call.name in DROPOUTS and call.module is not None]
        own = [call for call in own if "Dropout" not in (call.module_type or "")]
        if not any(call.options.get("training") for call in own):
            return ()
        modes = {module: module.training for module in self._model.modules()}
        with state_preserved(self._runner, self._keeper), warnings_unsaid(), run_eagerly():
            try:
                seen = self._run(last, ValueProbe(), None, evaluating=True)
                switched = any(module.training for module in modes)  # by the step itself
            except (UserCodeError, UsageError):
                return ()
            finally:
                for module, training in modes.items():
                    module.training = training
        dropped = {(c.module, c.site) for c in seen.calls if c.options.get("training")}
        return tuple(c.index for c in own if not switched and (c.module, c.site) in dropped)

    def _maximised(self) -> bool:
        groups = [group for o in self._runner.recipe.optimizers for group in o.param_groups]
        return any(group.get("maximize") for group in groups)

    def _look(
        self,
        last: StepState,
        look: ReturnsLook | SequenceLook | LeakingOp | PairLabels,
        on_loss: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        """Runs the last step once more under `look`."""
        with state_preserved(self._runner, self._keeper), warnings_unsaid(), run_eagerly():
            self._keeper.restore(last)
            batches = [self._runner.moved(batch) for batch in last.batches]
            with contextlib.suppress(UserCodeError, UsageError), look:
                run_step(self._runner, batches, on_loss=on_loss)

    def _sequences(self, last: StepState, calls: StepCalls) -> dict[str, Any]:
        """Of a step that looks up ids."""
        if not any(call.name == "embedding" for call in calls.calls):
            return {}
        recipe = self._runner.recipe
        look = SequenceLook(self._known_batches(last.batches), shifting=shifts_labels(self._model))
        self._look(last, look)
        mask = mask_at(recipe, last.batches) if look.padding is not None else None
        seen = look.facts
        if seen is not None and seen.distance == 1 and seen.reads_later > 0:
            self._look(last, leaking := LeakingOp(look.read))
            seen = replace(seen, mixing=leaking.found)
        if seen is not None and seen.at is None and seen.distance > 1 and look.brought:
            seen = replace(seen, at=brought_at(recipe, look.brought))
        if seen is not None and (seen.unasked_end or seen.prompts):
            seen = replace(seen, left_out_at=left_out_at(recipe, calls, seen.ignored, look.brought))
        return {
            "sequence": seen,
            "padding": look.padding,
            "mask_at": mask,
            "reader_at": self._reader_at(calls) if seen is not None else None,
        }

    def _reader_at(self, calls: StepCalls) -> SourceSpan | None:
        """Of the first attention that no line of the user's own computes."""
        for call in calls.calls:
            if is_attention(call):
                inside = call.called_from is not None and call.module
                return self._build.module_made_at(call.module) if inside and call.module else None
        return None

    def _known_batches(self, batches: list[Any]) -> list[Any]:
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

    def _run(
        self,
        capsule: StepState,
        probe: ValueProbe,
        watch: ModelWatch | None,
        *,
        evaluating: bool = False,
    ) -> StepCalls:
        self._keeper.restore(capsule)
        if evaluating:
            self._model.eval()
        batches = [self._runner.moved(batch) for batch in capsule.batches]
        known = leaves_of(self._model, self._known_batches(batches))
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


def _spread(steps: Sequence[PastStep], most: int) -> list[PastStep]:
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
