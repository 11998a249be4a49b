"""The line of the user's that makes the labels of a step."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from nanodoc.examination.running import states_in
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.inspection import LabelFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.recipe import Recipe
from nanodoc.tensors.nested import batch_size, keys_of, tensor_leaves
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.named_numbers import keys_written_at, reshaped_at, written_into_at
from nanodoc.trace.returned import Key, collator_of, line_in_data, line_of_variable, lines_calling
from nanodoc.trace.unread import remembered_steps, swapped_ends
from nanodoc.vocabulary.calls import BINARY, CLASSIFICATION, REGRESSION, TAKES

_WITH_TARGETS = (*CLASSIFICATION, *REGRESSION, "ctc_loss")
_WEIGHTED = ("CrossEntropyLoss", "NLLLoss")
_WEIGHTED_BINARY = ("BCEWithLogitsLoss",)
_MAKES_LABELS = re.compile("LanguageModeling|CompletionOnly")  # collators of transformers and TRL
_SHIFTING = re.compile(r"For(CausalLM|ConditionalGeneration)$|LMHeadModel$")
_TAKING = (*TAKES, "roll")


def labels_at(recipe: Recipe, calls: StepCalls) -> SourceSpan | None:
    """Of what the first loss compares with; None where the source does not tell."""
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.name in _WITH_TARGETS and call.index in reaching and len(call.arguments) > 1:
            with contextlib.suppress(Exception):  # functions and objects of any kind
                return _in_the_step(calls, call) or _made_at(
                    recipe, calls.origin(call.arguments[1])
                )
    return None


def loss_by_hand(calls: StepCalls) -> SourceSpan | None:
    """The user's own loss of labels that came as a part `labels` of the batch: models of
    transformers are given such labels as they are, and shift them themselves. A loss that stands in
    their place has to do so, too."""
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.name in CLASSIFICATION and call.index in reaching and len(call.arguments) > 1:
            own = call.called_from is None and call.location is not None
            leaf = calls.leaf(call.arguments[1]) or ""
            named = leaf.startswith("batch") and leaf.endswith("['labels']")
            users = call.location is not None and frame_kind(call.location.file) == USER
            return call.site if own and named and users else None
    return None


def _in_the_step(calls: StepCalls, loss: CallFacts) -> SourceSpan | None:
    """Where the labels are taken out of the ids that are looked up as well: what one of the two is
    shifted by, the step says, and not the data."""
    labels = loss.arguments[1]
    leaf = calls.leaf(labels)
    taken = [call for call in calls.path(labels) if call.name in _TAKING]
    looked_up = [a for call in calls.calls if call.name == "embedding" for a in call.arguments]
    if leaf is not None:
        same = any(calls.leaf(argument) == leaf for argument in looked_up)
    else:  # of what the step has from nowhere known: both are taken by one statement
        places = {call.site for call in taken}
        lines = {(place.file, place.line) for place in places if place is not None}
        others = (call.site for argument in looked_up for call in calls.path(argument))
        same = any((place.file, place.line) in lines for place in others if place is not None)
    return (taken[-1] if taken else loss).site if same else None


def _made_at(recipe: Recipe, origin: CallFacts | ArgumentFacts) -> SourceSpan | None:
    if isinstance(origin, CallFacts):
        return origin.site
    found = line_of_leaf(recipe, origin.leaf) if origin.leaf is not None else None
    return found or _column_at(recipe, origin.leaf) or _example_at(recipe)


def _example_at(recipe: Recipe) -> SourceSpan | None:
    """The only line of the script that makes the samples of a list, objects of a library that are
    told of a label: `InputExample(texts=[...], label=score)`."""
    loader = getattr(recipe.train_step, "loader", None) or recipe.data
    dataset = getattr(loader, "dataset", None)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(dataset, list) or not dataset or main is None:
        return None
    kind = type(dataset[0])
    if kind.__module__ in ("builtins", "__main__") or not hasattr(dataset[0], "label"):
        return None
    found = lines_calling(os.path.abspath(main), (kind.__name__,), keyword="label")
    return found[0] if len(found) == 1 else None


def _column_at(recipe: Recipe, leaf: str | None) -> SourceSpan | None:
    """The only line of the script that names the labels' column of a table (`datasets`): what its
    collator takes for labels, or the part of the batch itself."""
    loader = getattr(recipe.train_step, "loader", None) or recipe.data
    columns = getattr(getattr(loader, "dataset", None), "column_names", None)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(columns, list) or main is None or frame_kind(os.path.abspath(main)) != USER:
        return None
    keys = [*(keys_of(leaf)[-1:] if leaf else []), *_label_columns(collator_of(loader))]
    wanted = next((key for key in keys if key in columns), None)
    found = keys_written_at(os.path.abspath(main), wanted) if isinstance(wanted, str) else []
    return found[0] if len(found) == 1 else None


def _label_columns(collator: Any) -> list[str]:
    """What sentence-transformers' collator looks for."""
    named = getattr(collator, "valid_label_columns", None)
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def swapped_flags(recipe: Recipe, calls: StepCalls) -> SourceSpan | None:
    """The line that gives the names of `terminated` and `truncated` to each other's values, where
    the first name is then read by itself: an episode's end and its limit of time are two things to
    a target."""
    if not any(call.name in REGRESSION for call in calls.calls):
        return None
    files = user_files(call.called_from or call.location for call in calls.calls)
    return next(
        (line for file in files for line in swapped_ends(file, states_in(file, recipe))),
        None,
    )


def remembered_at(calls: StepCalls) -> SourceSpan | None:
    """The only line that gives a memory the states before and behind a step of an environment."""
    if not any(call.notes.read is not None for call in calls.calls):
        return None
    files = user_files(call.called_from or call.location for call in calls.calls)
    found = [line for file in files for line in remembered_steps(file)]
    return found[0] if len(found) == 1 else None


def edges_at(calls: StepCalls, *, misread: bool) -> SourceSpan | None:
    """Where a list of pairs is reshaped to two rows, in the files of a step with misread edges."""
    if not misread and not any(call.notes.misread_edges is not None for call in calls.calls):
        return None
    places = [call.called_from or call.location for call in calls.calls]
    return reshaped_at(user_files(places), 2)


def weights_at(calls: StepCalls) -> SourceSpan | None:
    """Where the criterion with class weights was made, in the file that calls it; None where no
    loss has weights, or several places make such a criterion."""
    call = next((call for call in calls.calls if call.options.get("weights")), None)
    if call is None or call.site is None:
        return None
    file = os.path.abspath(call.site.file)
    if call.name == BINARY:
        found = lines_calling(file, _WEIGHTED_BINARY, keyword="pos_weight")
    else:
        found = lines_calling(file, _WEIGHTED, keyword="weight")
    return found[0] if len(found) == 1 else None


def ignoring_at(calls: StepCalls) -> SourceSpan | None:
    """Where the criterion was told which label to ignore, in the file that calls it; None where no
    label was, or several places make such a criterion."""
    call = next((call for call in calls.calls if call.options.get("ignore_index", -1) >= 0), None)
    if call is None or call.site is None:
        return None
    file = os.path.abspath(call.site.file)
    found = lines_calling(file, _WEIGHTED, keyword="ignore_index")
    return found[0] if len(found) == 1 else None


def criterion_at(calls: StepCalls) -> SourceSpan | None:
    """Where the user makes the object of a library whose method computes the loss; None where the
    loss is computed by the user's own code or torch, or the user's files make several of them."""
    reaching = calls.reaching_the_loss()
    known = [call for call in calls.calls if call.name in _WITH_TARGETS and call.index in reaching]
    # what a trainer divides or scales is a loss already
    for call in known or [calls.calls[index] for index in calls.losses]:
        place = call.location
        owner, dot, _ = (place.function if place is not None else "").partition(".")
        if place is None or not dot or frame_kind(os.path.abspath(place.file)) == USER:
            continue
        callers = [call.called_from] if call.called_from is not None else []
        files = user_files(callers or [c.called_from or c.location for c in calls.calls])
        found = [line for file in files for line in lines_calling(file, (owner,))]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def shifts_labels(model: torch.nn.Module) -> bool:
    """A language model of transformers, which shifts the labels that it is given by itself
    (`ForCausalLMLoss`); those with an encoder do not."""
    return any(
        _SHIFTING.search(kind.__name__) and kind.__module__.startswith("transformers.")
        for module in model.modules()
        if not getattr(getattr(module, "config", None), "is_encoder_decoder", False)
        for kind in type(module).__mro__
    )


def brought_at(recipe: Recipe, leaf: str) -> SourceSpan | None:
    """The line that makes a part of the batch; None where the source does not tell."""
    with contextlib.suppress(Exception):  # functions and objects of any kind
        return line_of_leaf(recipe, leaf)
    return None


def left_out_at(
    recipe: Recipe, calls: StepCalls, ignored: int, leaf: str | None = None
) -> SourceSpan | None:
    """Where labels become the number that stands for none; where a library's collator makes them,
    the line that makes that. `leaf` of the batch holds them, where no loss tells which does."""
    with contextlib.suppress(Exception):  # functions and objects of any kind
        found = _left_out_at(recipe, calls, ignored)
        return found or (line_of_leaf(recipe, leaf) if leaf else labels_at(recipe, calls))
    return None


def _left_out_at(recipe: Recipe, calls: StepCalls, ignored: int) -> SourceSpan | None:
    loader = getattr(recipe.train_step, "loader", None) or recipe.data
    kind = type(collator_of(loader))
    collator = kind.__name__
    if any(_MAKES_LABELS.search(base.__name__) for base in kind.__mro__):
        places = [call.called_from or call.location for call in calls.calls]
        found = [line for file in user_files(places) for line in lines_calling(file, (collator,))]
        if len(found) == 1:
            return found[0]
    functions = (
        collator_of(loader),
        getattr(type(getattr(loader, "dataset", None)), "__getitem__", None),
        recipe.train_step,
        recipe.loss_fn,
    )
    return written_into_at(functions, ignored)


def user_files(places: Iterable[SourceSpan | None]) -> set[str]:
    """Those of the places, and the script's."""
    files = {os.path.abspath(place.file) for place in places if place is not None}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    files |= {os.path.abspath(main)} if main else set()
    return {file for file in files if frame_kind(file) == USER}


def mask_at(recipe: Recipe, batches: list[Any]) -> SourceSpan | None:
    """Of the part of the batch that holds only 0 and 1, and both, in the shape of ids beside it."""
    leaves = dict(tensor_leaves(batches[0], "batch")) if len(batches) == 1 else {}
    flat = [t for t in leaves.values() if t.dim() == 2 and not t.is_floating_point()]
    for path, tensor in leaves.items():
        beside = any(t is not tensor and t.shape == tensor.shape and int(t.max()) > 1 for t in flat)
        if beside and tensor.dim() == 2 and bool(((tensor == 0) | (tensor == 1)).all()):
            with contextlib.suppress(Exception):  # functions and objects of any kind
                return line_of_leaf(recipe, path)
    return None


def line_of_leaf(recipe: Recipe, leaf: str) -> SourceSpan | None:
    """The line that makes a part of the batch, such as `batch['labels']`."""
    if not leaf.startswith("batch"):
        return None
    path: list[Key] = keys_of(leaf)
    step: Any = recipe.train_step
    if not getattr(step, "of_script", False):
        return line_in_data(recipe.data, path)
    names = {**step.namespace, **step.variables}
    rest = list(path)
    variable = str(rest.pop(0)) if rest and rest[0] in names else step.batch_name
    found = line_of_variable(step.code, names, variable, rest) if step.code and variable else None
    # a trainer's loop is no code of the user's: the part has the same key in their data
    loader = step.loader
    return found or (line_in_data(loader, path[-1:]) if loader is not None and path else None)


def class_labels(step: int, batches: Sequence[Any], calls: StepCalls) -> LabelFacts | None:
    """None for a step without class labels, or with some that could not be counted."""
    reaching = calls.reaching_the_loss()
    losses = [
        call for call in calls.calls if call.name in CLASSIFICATION and call.index in reaching
    ]
    samples = sum(batch_size(batch) or 0 for batch in batches)
    rows = sum(_rows(call.arguments[1]) for call in losses if len(call.arguments) > 1)
    labels = (call.notes.labels for call in losses)
    counts = [known.counts for known in labels if known is not None and known.counts is not None]
    if not losses or not samples or len(counts) < len(losses):
        return None
    classes = {count.top for count in counts}
    mixed = len(classes) > 1 or any(count.seen > 1 for count in counts)
    return LabelFacts(
        step=step,
        samples=min(samples, rows) if rows else samples,
        only=None if mixed else classes.pop(),
    )


def _rows(labels: ArgumentFacts) -> int:
    """A label without a dimension is that of one sample, however large the batch is."""
    return labels.shape[0] if labels.shape else 1
