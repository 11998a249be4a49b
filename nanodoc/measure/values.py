"""What is measured of the values that one public function call takes and makes: targets, ids,
activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from nanodoc.accelerator import in_widest
from nanodoc.facts.calls import (
    ATTENTION,
    BINARIES,
    BINARY,
    CLASSIFICATION,
    OF_SIGNS,
    REGRESSION,
    ArgumentFacts,
)
from nanodoc.measure.edges import is_misread
from nanodoc.measure.labels import blanks, class_dimension
from nanodoc.measure.masks import of_given_mask, of_masked_scores
from nanodoc.measure.pairs import Pairings, nearness_of_pairs
from nanodoc.measure.slopes import Slopes

RECTIFIERS = frozenset(("relu", "relu6", "hardtanh", "threshold", "clamp_min"))
SQUASHERS = frozenset(("sigmoid", "tanh"))
_LOOKUP = "embedding"
_TAKING = ("getitem", "unbind", "select")
_SCALING = ("add", "sub", "mul", "div", "truediv", "rmul")
_PRODUCTS = ("mul", "rmul", "imul")
_FEWEST_FLAGS, _MOST_FLAGS = 8, 1 << 16
_LAST_DIMENSION = frozenset(("linear", "layer_norm", "matmul", "rms_norm"))
_READERS = ("linear", "conv1d", "conv2d")
_MOST_READ = 1 << 20  # values
_FLAT = 0.01
"""A derivative below this is flat: sigmoid beyond 0.01 … 0.99, tanh beyond ±0.995."""
_SLACK = 0.05
"""Of the targets' range: noise around the end of an activation's range is within its reach."""
_MOST = 20_000_000
"""Elements; a larger tensor is not looked at."""

Maker = Callable[[ArgumentFacts], "tuple[str, ArgumentFacts | None] | None"]


class Units:
    """One activation's units over several batches."""

    def __init__(self) -> None:
        self.alive: torch.Tensor | None = None
        self.flat = 0
        self.values = 0

    def add(self, out: torch.Tensor, dimension: int, kind: str) -> None:
        values = out.detach()
        if kind in SQUASHERS:
            away = values.float().abs() if kind == "tanh" else values.float()
            slope = (1 - away * away) if kind == "tanh" else away * (1 - away)
            self.flat += int((slope < _FLAT).sum())
        alive = (values != 0).movedim(dimension, 0).flatten(1).any(1)
        self.alive = (
            alive if self.alive is None or self.alive.shape != alive.shape else self.alive | alive
        )
        self.values += values.numel()


class ValueProbe:
    """Asked about every call of a step; keeps the units of activations by (module, place in the
    step)."""

    def __init__(self) -> None:
        self.units: dict[tuple[str, int], Units] = {}
        self.slopes = Slopes()
        self._pairings = Pairings()
        self.made_by: Maker = lambda argument: None
        self._count = self._softmaxes = self._lookups = self._weighted = 0
        self._labels: dict[int, torch.Tensor] = {}
        self._ids: dict[int, tuple[float, float]] = {}
        self._largest: dict[int, int] = {}

    def begin(self, made_by: Maker) -> None:
        """Another batch is about to be looked at."""
        self.made_by = made_by
        self.slopes.begin()
        self._pairings = Pairings()
        self._count = self._softmaxes = self._lookups = self._weighted = 0

    def measure(
        self,
        name: str,
        tensors: list[torch.Tensor],
        options: dict[str, Any],
        out: Any,
        arguments: list[ArgumentFacts],
    ) -> dict[str, float]:
        """Numbers by label; {} for what is of no interest. `slopes` adds to those of losses when
        the step is differentiated."""
        notes = self._measured(name, tensors, options, out, arguments)
        self.slopes.note(name, out, notes)
        return notes

    def _measured(
        self,
        name: str,
        tensors: list[torch.Tensor],
        options: dict[str, Any],
        out: Any,
        arguments: list[ArgumentFacts],
    ) -> dict[str, float]:
        if not tensors or any(
            t.is_nested or t.numel() > _MOST or t.layout is not torch.strided for t in tensors[:2]
        ):
            return {}
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            loss = self._of_loss(name, tensors, options, out)
            if loss is not None:
                return loss
            if name in ("softmax", "log_softmax"):
                return self._softmax(tensors[0], options)
            if name in ATTENTION:
                return of_given_mask(name, tensors)
            ids = self._of_ids(name, tensors)
            if ids:
                return ids
            if (
                (name in RECTIFIERS or name in SQUASHERS)
                and isinstance(out, torch.Tensor)
                and out.dim() > 1
                and out.requires_grad
            ):
                return self._activation(name, out, arguments)
            if name == "sub" and _are_the_same(tensors):
                return {"same": 1.0}
            if not isinstance(out, torch.Tensor):
                return {}
            told = self._pairings.note(name, out) or _of_others(name, tensors, out)
            return told | _read(name, tensors[0])

    def _of_loss(
        self, name: str, tensors: list[torch.Tensor], options: dict[str, Any], out: Any
    ) -> dict[str, float] | None:
        """None for what is no loss function."""
        if name in CLASSIFICATION and len(tensors) > 1:
            return {
                **_classification(tensors[0], tensors[1], options, out),
                **nearness_of_pairs(tensors[0], tensors[1]),
                **(self._all_labels(tensors[1], options) if options.get("weights") else {}),
            }
        if name == BINARY and options.get("weights") and len(tensors) > 1:
            return {"value": _number(out), **self._all_labels(_binary(tensors[1]), options)}
        if name in BINARIES and len(tensors) > 1:
            told = {"value": _number(out), **_range("target", tensors[1])}
            return told | _classes(tensors[:2])
        if name in REGRESSION and len(tensors) > 1:
            return {
                "value": _number(out),
                **_range("input", tensors[0]),
                **_range("target", tensors[1]),
                **_out_of_reach(tensors[1]),
                **_classes(tensors[:2]),
            }
        if name in OF_SIGNS:
            return {"value": _number(out), **_range("target", tensors[-1]), **_zeros(tensors[-1])}
        if name == "kl_div" and len(tensors) > 1:
            return {
                "value": _number(out),
                **_range("input", tensors[0]),
                **_range("target", tensors[1]),
            }
        if name == "ctc_loss" and tensors[0].is_floating_point():
            sums = in_widest(tensors[0].detach()).logsumexp(-1)
            told = {"value": _number(out), **_range("log_of_sum", sums)}
            return told | (blanks(tensors[1], options) if len(tensors) > 1 else {})
        return None

    def _of_ids(self, name: str, tensors: list[torch.Tensor]) -> dict[str, float]:
        """What is looked up in a table, and the rows of edges."""
        if name == _LOOKUP and len(tensors) > 1:
            return {"rows": tensors[1].shape[0], **self._all_ids(tensors[0])}
        if name in _TAKING and is_misread(tensors[0]):
            return {"misread_edges": float(tensors[0].shape[1])}
        return {}

    def _all_labels(self, target: torch.Tensor, options: dict[str, Any]) -> dict[str, float]:
        """How often the classes were labels in all batches so far, of a loss with class weights and
        of labels one by one."""
        self._weighted += 1
        if target.dim() != 1 or target.is_floating_point():
            return {}
        classes = len(options["weights"])
        kept = target[(target >= 0) & (target < classes) & (target != options.get("ignore_index"))]
        counts = torch.bincount(kept.long().cpu(), minlength=classes)
        known = self._labels.get(self._weighted)
        if known is not None and known.shape == counts.shape:
            counts = counts + known
        self._labels[self._weighted] = counts
        least = int(counts.where(counts > 0, counts.max() + 1).argmin())
        return {
            "all_labels": int(counts.sum()),
            "all_top": int(counts.argmax()),
            "all_top_count": int(counts.max()),
            "all_least": least,
            "all_least_count": int(counts[least]),
        }

    def _all_ids(self, ids: torch.Tensor) -> dict[str, float]:
        """The smallest and the largest of a lookup's ids; where they are one, in all batches so
        far."""
        self._lookups += 1
        found = _range("id", ids)
        if not found:
            return found
        low, high = self._ids.get(self._lookups, (found["id_min"], found["id_max"]))
        self._ids[self._lookups] = min(low, found["id_min"]), max(high, found["id_max"])
        if found["id_min"] == found["id_max"]:
            found["id_min"], found["id_max"] = self._ids[self._lookups]
        return found

    def _softmax(self, given: torch.Tensor, options: dict[str, Any]) -> dict[str, float]:
        """The largest size of its dimension in all batches so far: lengths differ from batch to
        batch."""
        dim = options.get("dim")
        if not isinstance(dim, int) or not -given.dim() <= dim < given.dim():
            return {}
        self._softmaxes += 1
        largest = self._largest[self._softmaxes] = max(
            self._largest.get(self._softmaxes, 0), int(given.shape[dim])
        )
        told = of_masked_scores(given) if dim in (-1, given.dim() - 1) else {}
        return {"largest": largest, **told}

    def _activation(
        self, name: str, out: torch.Tensor, arguments: list[ArgumentFacts]
    ) -> dict[str, float]:
        self._count += 1
        units = self.units.setdefault((name, self._count), Units())
        units.add(out, self._unit_dimension(out, arguments[0] if arguments else None), name)
        return {"activation": self._count}

    def _unit_dimension(self, out: torch.Tensor, argument: ArgumentFacts | None) -> int:
        """Channels come second in images, last in sequences."""
        if out.dim() != 3:
            return 1
        for _ in range(8):
            made = self.made_by(argument) if argument is not None else None
            if made is None:
                break
            if made[0].startswith("conv") or made[0] == "batch_norm":
                return 1
            if made[0] in _LAST_DIMENSION:
                return 2
            argument = made[1]
        return 2


def _classification(
    given: torch.Tensor, target: torch.Tensor, options: dict[str, Any], out: Any
) -> dict[str, float]:
    classes = given.shape[1] if given.dim() > 1 else given.shape[0]
    notes: dict[str, float] = {"value": _number(out), "classes": classes, **_range("input", given)}
    if target.is_floating_point() or not target.numel():
        return notes
    kept = target[target != options.get("ignore_index", -100)]
    notes["targets"], notes["ignored"] = target.numel(), target.numel() - kept.numel()
    if kept.numel() and int(kept.min()) >= 0 and int(kept.max()) < max(classes, 1):
        counts = torch.bincount(kept.flatten().long(), minlength=int(classes))
        notes["top_class"], notes["top_count"] = int(counts.argmax()), int(counts.max())
        seen = counts[counts > 0]
        notes["classes_seen"], notes["least_count"] = int(seen.numel()), int(seen.min())
    return notes


def _binary(target: torch.Tensor) -> torch.Tensor:
    """Labels 0 and 1 one by one; none where some are neither."""
    labels = target.flatten()
    return labels.long() if bool(((labels == 0) | (labels == 1)).all()) else labels


def _zeros(target: torch.Tensor) -> dict[str, float]:
    """The share of the targets that are 0; none where some are neither 0 nor 1."""
    plain = bool(((target == 0) | (target == 1)).all()) and target.numel() > 1
    return {"zeros": float((target == 0).float().mean())} if plain else {}


def _range(label: str, tensor: torch.Tensor) -> dict[str, float]:
    if not tensor.numel() or tensor.is_complex():
        return {}
    low, high = torch.aminmax(tensor.detach())
    return {f"{label}_min": float(low), f"{label}_max": float(high)}


def _flags(tensors: list[torch.Tensor]) -> dict[str, float]:
    """The share of ones of a factor that is 0 or 1 everywhere, or 0 and one other number, and one
    for each row; or, of no such factor, that one is 0 everywhere."""
    nothing: dict[str, float] = {}
    for flags in tensors:
        if not _FEWEST_FLAGS <= flags.numel() <= _MOST_FLAGS or flags.requires_grad:
            continue
        one = flags.max()
        ones = flags == one
        column = sum(size > 1 for size in flags.shape) == 1
        if column and not bool(one) and bool(ones.all()):
            nothing = {"mask_zeros": 1.0}
        elif column and bool(one) and bool((ones | (flags == 0)).all()):
            return {"mask_ones": float(ones.float().mean())}
    return nothing


def _classes(tensors: list[torch.Tensor]) -> dict[str, float]:
    """The dimension of the classes, of labels of 0 and 1 beside scores of their shape."""
    if len(tensors) != 2 or tensors[0].shape != tensors[1].shape:
        return {}
    for labels in tensors:
        found = None if labels.requires_grad else class_dimension(labels)
        if found is not None:
            return {"class_dimension": found}
    return {}


def _masked(tensors: list[torch.Tensor]) -> dict[str, float]:
    """The range of what is multiplied with a mask of zeros and ones of its shape."""
    if len(tensors) != 2 or tensors[0].shape != tensors[1].shape:
        return {}
    mask, scores = sorted(tensors, key=lambda tensor: tensor.requires_grad)
    if mask.requires_grad or mask.numel() < _FEWEST_FLAGS:
        return {}
    ones = mask == 1
    flags = bool((ones | (mask == 0)).all() and ones.any() and not ones.all())
    return _range("masked", scores) if flags else {}


def _out_of_reach(target: torch.Tensor) -> dict[str, float]:
    """Shares of the targets that ReLU, sigmoid and tanh can't return."""
    if not target.numel():
        return {}
    values = in_widest(target.detach())
    slack = _SLACK * float(values.max() - values.min())
    return {
        "target_below_0": float((values < -slack).float().mean()),
        "target_outside_01": float(((values < -slack) | (values > 1 + slack)).float().mean()),
        "target_outside_11": float((values.abs() > 1 + slack).float().mean()),
    }


def _are_the_same(tensors: list[torch.Tensor]) -> bool:
    """Two of several values each, of which one learns; equal, and not all of them 0."""
    if len(tensors) != 2 or tensors[0].requires_grad == tensors[1].requires_grad:
        return False
    one, other = tensors
    if one.shape != other.shape or one.numel() < 2 or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) and bool(one.any())


def _read(name: str, given: torch.Tensor) -> dict[str, float]:
    """What the first layer of a network reads: a number that equal readings share, and where the
    tensor lies."""
    if name not in _READERS or given.requires_grad or not given.is_floating_point():
        return {}
    if given.dim() < 2 or given.numel() > _MOST_READ or not bool((given != given[:1]).any()):
        return {}
    values = in_widest(given.detach()).flatten()
    places = torch.arange(1, values.numel() + 1, device=values.device, dtype=values.dtype)
    return {"read": float((values * places.sqrt()).sum()), "read_at": float(given.data_ptr())}


def _of_others(name: str, tensors: list[torch.Tensor], out: torch.Tensor) -> dict[str, float]:
    if out.requires_grad:
        if name in _PRODUCTS and out.dim() > 1:
            return _classes(tensors) | _masked(tensors)
        return {"value": _number(out)} if out.dim() == 0 else {}
    flags = _flags(tensors) if name in _PRODUCTS else {}
    scaled = name in _SCALING and len(tensors) == 1 and out.dim() > 1 and out.is_floating_point()
    return flags or (_range("made", out) if scaled else {})


def _number(out: Any) -> float:
    return float(out) if isinstance(out, torch.Tensor) and out.numel() == 1 else math.nan
