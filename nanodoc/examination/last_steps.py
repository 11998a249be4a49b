"""The looks at the last steps of a run: the steps once more, and then what the calls of the last
one give reason to ask. Each of these runs the step again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.asked_for import AskedForLook
from nanodoc.examination.equal_scores import became_equal, equal_in
from nanodoc.examination.eval_draws import EvalDraws
from nanodoc.examination.idle_terms import TermsLook, idle_term, untrained
from nanodoc.examination.labels import brought_at, left_out_at, mask_at, shifts_labels
from nanodoc.examination.large_loss import is_huge, made_large
from nanodoc.examination.last_batches import Inspector, is_sure, spread
from nanodoc.examination.leaking_op import LeakingOp
from nanodoc.examination.pair_labels import PairLabels, may_be_pairs
from nanodoc.examination.pairing import PairingLook
from nanodoc.examination.pulled_apart import PulledApart, shared_by_two
from nanodoc.examination.pushed_out import PushedOutLook, bounded
from nanodoc.examination.returns import ReturnsLook
from nanodoc.examination.rows_apart import RowsLook, draws_at_random, takes_rows
from nanodoc.examination.sequence_look import SequenceLook
from nanodoc.examination.transitions import (
    TransitionsLook,
    exchanged,
    moved,
    together,
    transitions,
)
from nanodoc.examination.unread_rows import ReadRowsLook, parts_taken, unread_rows
from nanodoc.examination.wanted_pairs import away, pairs_of
from nanodoc.facts.bootstrapped import reads_next_states
from nanodoc.facts.calls import CallFacts, StepCalls, is_attention
from nanodoc.facts.evidence import EXAMINATION
from nanodoc.facts.inspection import InspectionFacts
from nanodoc.facts.policy import TransitionFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.looks.scheduler import Look, Looks, Place, Stage
from nanodoc.measure.values import ValueProbe
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.step_state import StepState
from nanodoc.trace.spans import resolved
from nanodoc.vocabulary.calls import DROPOUTS, SUPERVISED

_SECONDS = 5.0  # after which no further batch is looked at
_STEPS = 4  # in which two optimizers are looked at
_MAY_DROP = (*DROPOUTS, "bernoulli")
_LOG_PROB = ".log_prob("  # in the source of a line

Asked = Callable[[StepCalls, Place], dict[str, Any]]
"""Gives fields of `InspectionFacts`."""


class LastSteps:
    """The looks at one run's last steps. `last` is the start of the last one, `past` are those
    before it whose batches are still there, `first` is the run's start, with its weights."""

    def __init__(
        self,
        inspector: Inspector,
        recipe: Recipe,
        build: BuildFacts,
        last: StepState,
        past: Sequence[PastStep],
        first: StepState | None,
    ) -> None:
        self._inspector = inspector
        self._recipe = recipe
        self._build = build
        self._last = last
        self._past = past
        self._first = first
        self.facts: InspectionFacts | None = None
        """What the last steps have shown so far; nothing is asked before there is something."""
        self.reason = ""
        """Why they have shown nothing."""

    def register(self, looks: Looks, asks: Callable[[], bool]) -> None:
        """Adds them to the looks of the run; none is taken unless `asks` says so."""

        def inspect(place: Place) -> None:
            seen = self._inspector.inspect(self._last, self._past, place, self._first)
            self.facts, self.reason = seen

        looks.add(
            Look(
                name="the last steps",
                group=EXAMINATION,
                stage=Stage.LAST_STEPS,
                due=True,  # most rules judge what it sees, and one batch alone may mislead them
                least=_SECONDS,
                most=_SECONDS,
                likely=0.5,
                runs=4,
                asks=asks,
                work=inspect,
            )
        )
        # a look that has found a reason in the calls is likely to tell something; the more of the
        # trainings with such calls are sick, the likelier (those of the clinic and of public code)
        self._add(looks, "later tokens and padding", 0.2, 2, self._looks_up_ids, self._sequences)
        self._add(looks, "rewards and log-probabilities", 0.2, 2, self._asks_policy, self._returns)
        # two optimizers rarely hold one parameter, and then mostly by mistake
        self._add(looks, "parameters of two optimizers", 0.3, 4, self._shares, self._pulled_apart)
        # with one optimizer a term seldom reaches what is stepped with elsewhere
        self._add(looks, "terms that train nothing", 0.3, 1, self._several, self._idle_term)
        # many flags of ends are kept the wrong way round, or used so
        self._add(looks, "next states", 0.4, 3, reads_next_states, self._transitions)
        # most parts of a batch are taken for a reason, which other steps then show
        self._add(looks, "samples that the loss reads", 0.3, 4, _takes_a_part, self._unread_rows)
        # few bounds stand in a choice between both; of those, some take the wrong one of the two
        self._add(looks, "values beyond their bounds", 0.3, 2, self._is_bounded, self._pushed)
        # most rows are taken for all parts alike
        self._add(looks, "rows of the same samples", 0.3, 2, takes_rows, self._rows_apart)
        # one loss call more each: it says whether anything was learnt
        self._add(looks, "targets of other samples", 0.3, 1, _has_targets, self._pairings)
        # few trainings hide a part of their inputs; of those that do, some have the mask inverted
        self._add(looks, "what the loss asks for", 0.1, 2, _reads_masks, self._asked_for)
        self._add(looks, "labels of pairs", 0.1, 1, may_be_pairs, self._swapped_pairs)
        # equal scores are there already: only their line is asked for
        self._add(looks, "scores that became equal", 0.9, 2, equal_in, self._equal)
        # a loss of millions is mostly a mistake, or targets that are not scaled
        self._add(looks, "values that made the loss huge", 0.5, 2, is_huge, self._large)
        # few write dropout by hand, and half of these forget the mode
        self._add(looks, "dropout in eval mode", 0.5, 1, _by_hand, self._still_dropping)
        # most losses of pairs are right, which the first weights then show
        self._add(looks, "pairs with the first weights", 0.05, 1, self._pairs_unsure, self._pairs)

    def _add(
        self,
        looks: Looks,
        name: str,
        likely: float,
        runs: float,
        asks: Callable[[StepCalls], Any],
        asked: Asked,
    ) -> None:
        def work(place: Place) -> None:
            assert self.facts is not None
            self.facts = replace(self.facts, **asked(self.facts.calls, place))

        looks.add(
            Look(
                name=name,
                group=EXAMINATION,
                stage=Stage.CLOSER,
                likely=likely,
                runs=runs,
                first=1,
                asks=lambda: self.facts is not None and bool(asks(self.facts.calls)),
                work=work,
            )
        )

    def _pairs_unsure(self, calls: StepCalls) -> bool:
        return not is_sure(pairs_of(calls), self._first)

    def _pairs(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        """With the first weights as well, where that moved samples apart that belong together."""
        found, first = pairs_of(calls), self._first
        assert found is not None
        assert first is not None
        try:
            start = replace(self._last, weights=first.weights)
            with self._inspector.aside(moving=True):
                before = pairs_of(self._inspector.run(start, ValueProbe(), None)) or found
        except (UserCodeError, UsageError):
            return {"pairs": found}
        return {"pairs": max(found, before, key=away)}

    def _asks_policy(self, calls: StepCalls) -> bool:
        """The step asks a distribution for log-probabilities."""
        asked = any(_LOG_PROB in c.location.code for c in calls.calls if c.location)
        return asked and not self._inspector.climbs_and_falls()

    def _returns(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        for start in self._starts(place):
            look = ReturnsLook(maximised=self._inspector.maximised())
            self._inspector.look(start, look, look.on_loss)
            if look.facts is not None:  # an episode may be too short to tell
                return {"returns": look.facts}
        return {}

    def _starts(self, place: Place) -> Iterator[StepState]:
        """The start of the last step, and then of some before it, with the weights of the last."""
        last = self._last
        yield last
        others = [one for one in self._past if one.intact and one.step != last.step]
        for one in spread(others, _STEPS - 1):
            if place.allows(place.one_run):
                yield replace(last, batches=one.batches, rng=one.rng, numbers=one.numbers)

    def _shares(self, calls: StepCalls) -> bool:
        return shared_by_two(self._recipe.optimizers) is not None

    def _pulled_apart(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        look = PulledApart(self._recipe.optimizers)
        for start in self._starts(place):
            self._inspector.look(start, look.one_step())
        return {"pulled_apart": look.facts()}

    def _several(self, calls: StepCalls) -> bool:
        return len(self._recipe.optimizers) > 1

    def _idle_term(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        look = TermsLook(self._recipe.optimizers)
        self._inspector.look(self._last, look, look.on_loss)
        named = {id(p): name for name, p in self._recipe.model.named_parameters()}
        return {
            "idle_term": idle_term(look, calls, named),
            "untrained": untrained(look, calls, named),
        }

    def _transitions(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        found = reads_next_states(calls)
        assert found is not None
        seen: TransitionFacts | None = None
        for start in self._starts(place):
            looks = [TransitionsLook(calls, found, change) for change in (None, exchanged, moved)]
            for look in looks:
                self._inspector.look(start, look)
            seen = together(seen, transitions(*looks))
            if seen is None or seen.read_going_on or seen.read_ending:
                break  # few batches hold the end of an episode
        return {"transitions": seen}

    def _is_bounded(self, calls: StepCalls) -> bool:
        return any(True for _ in bounded(calls)) and not self._inspector.climbs_and_falls()

    def _pushed(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        climbs = self._inspector.maximised()
        look = PushedOutLook(calls, {}, maximised=climbs)
        self._inspector.look(self._last, look, look.on_loss)
        if look.facts is None and look.bounds and place.allows(place.one_run):
            look = PushedOutLook(calls, look.bounds, maximised=climbs)
            self._inspector.look(self._last, look, look.on_loss)
        return {"pushed": look.facts}

    def _rows_apart(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        groups = [g for optimizer in self._recipe.optimizers for g in optimizer.param_groups]
        own = [p for group in groups for p in group["params"]]
        own += [*self._recipe.model.parameters(), *self._recipe.model.buffers()]
        look = RowsLook(own, shuffled=draws_at_random(self._recipe))
        self._inspector.look(self._last, look, look.on_loss)
        return {"rows_apart": look.found}

    def _unread_rows(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        for taken in parts_taken(calls):
            looks = []
            for start in self._starts(place):
                looks.append(look := ReadRowsLook(calls, taken))
                self._inspector.look(start, look)
            if (found := unread_rows(looks)) is not None:
                return {"unread_rows": found}
        return {}

    def _pairings(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        look = PairingLook()
        self._inspector.look(self._last, look)
        return {"pairings": tuple(look.found)}

    def _asked_for(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        look = AskedForLook(self._last.batches)
        if look.follows:
            followed = replace(self._last, batches=look.batches)
            self._inspector.look(followed, look, look.on_loss)
        return {"asked_for": look.found}

    def _swapped_pairs(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        look = PairLabels()
        self._inspector.look(self._last, look)
        return {"swapped_pairs": look.swapped}

    def _equal(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        with self._inspector.aside():
            return {"equal": became_equal(self._inspector.replayer(), self._last, calls)}

    def _large(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        with self._inspector.aside():
            return {"large": made_large(self._inspector.replayer(), self._last)}

    def _still_dropping(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        """The calls in networks, other than those of dropout layers, that drop in eval mode."""
        model, draws = self._recipe.model, EvalDraws()
        modes = {module: module.training for module in model.modules()}
        with self._inspector.aside():
            try:
                with draws:
                    self._inspector.run(self._last, ValueProbe(), None, evaluating=True)
                switched = any(module.training for module in modes)  # by the step itself
            except (UserCodeError, UsageError):
                return {}
            finally:
                for module, training in modes.items():
                    module.training = training
        dropped = set(map(resolved, draws.places)) if not switched else set()
        own = [c for c in _by_hand(calls) if c.site is not None and c.site in dropped]
        return {"still_dropping": tuple(call.index for call in own)}

    def _looks_up_ids(self, calls: StepCalls) -> bool:
        return any(call.name == "embedding" for call in calls.calls)

    def _sequences(self, calls: StepCalls, place: Place) -> dict[str, Any]:
        recipe, inspector, batches = self._recipe, self._inspector, self._last.batches
        known = inspector.known_batches(batches)
        look = SequenceLook(known, shifting=shifts_labels(recipe.model))
        inspector.look(self._last, look)
        mask = mask_at(recipe, batches) if look.padding is not None else None
        seen = look.facts
        reads_later = seen is not None and seen.distance == 1 and seen.reads_later > 0
        if reads_later and place.allows(place.one_run, "the layer that reads later tokens"):
            inspector.look(self._last, leaking := LeakingOp(look.read))
            seen = replace(seen, mixing=leaking.found) if seen is not None else None
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


def _has_targets(calls: StepCalls) -> bool:
    return any(call.name in SUPERVISED for call in calls.calls)


def _takes_a_part(calls: StepCalls) -> bool:
    return any(True for _ in parts_taken(calls))


def _reads_masks(calls: StepCalls) -> bool:
    """A call behind which something is hidden takes a mask."""
    return any(a.dtype == "bool" for call in calls.calls for a in call.arguments)


def _by_hand(calls: StepCalls) -> list[CallFacts]:
    """The calls in networks that drop values, or may, and are no dropout layer's."""
    inside = [call for call in calls.calls if call.module is not None]
    inside = [call for call in inside if "Dropout" not in (call.module_type or "")]
    return [call for call in inside if call.name in _MAY_DROP or call.options.get("dropout_p")]
