"""The scale of a script's batches: is that of a validation the training's?"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from nanodoc.accelerator import in_widest
from nanodoc.facts.asides import ScaleFacts
from nanodoc.instrument.frames import look_through
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.trace.spans import calling_places, resolved

look_through(__file__)

_FEWEST = 8  # samples of a batch: single ones differ
_MOST = 1 << 22  # values of a part
_OF_PICTURES = 2.5
"""Times the standard deviation. Pictures between 0 and 1 have about a third of the one that the
usual normalisation makes 1; parts of one set of pictures differ by less than a tenth."""
_OF_OTHERS = 20.0  # times: of tables and series, one outlier may make a few

_Scale = tuple[float, float]


class BatchScales:
    """Told of the first batch of each pass over a loader."""

    def __init__(self) -> None:
        self.found: ScaleFacts | None = None
        self._known: dict[int, tuple[weakref.ref[Any], dict[str, _Scale]]] = {}
        self.sampler: Any = None
        """What draws the numbers of the samples that were found, by which their loader is known."""

    def first_batch(self, iterator: Any, batch: Any, trained_on: Any) -> None:
        """A pass over a loader has begun with `batch`; `trained_on` is the training's data set,
        None where that is not known yet."""
        if self.found is not None:
            return
        dataset = iterator._dataset
        with contextlib.suppress(Exception):  # data sets and batches of any kind
            scales = dict(_scales(batch))
            self._known[id(dataset)] = weakref.ref(dataset), {p: s for p, (s, _) in scales.items()}
            known = self._known.get(id(trained_on))
            if trained_on is None or dataset is trained_on or known is None:
                return
            if known[0]() is not trained_on:
                return
            for part, (scale, shape) in scales.items():
                training = known[1].get(part)
                if training is not None and _differ(training, scale, pictures=len(shape) == 4):
                    own, caller = calling_places(3)
                    self.sampler = iterator._index_sampler
                    self.found = ScaleFacts(
                        part=part,
                        shape=shape,
                        training=training,
                        validation=scale,
                        made_at=resolved(caller or own),
                    )
                    return


def _scales(batch: Any) -> list[tuple[str, tuple[_Scale, tuple[int, ...]]]]:
    """(part, (its mean and standard deviation, its shape)) of all that may be inputs."""
    found = []
    for path, part in tensor_leaves(batch):
        wanted = part.is_floating_point() and part.dim() > 1 and part.shape[0] >= _FEWEST
        if wanted and part.numel() <= _MOST:
            values = in_widest(part.detach())
            found.append((path, ((float(values.mean()), float(values.std())), tuple(part.shape))))
    return found


def _differ(training: _Scale, other: _Scale, *, pictures: bool) -> bool:
    times = _OF_PICTURES if pictures else _OF_OTHERS
    small, large = sorted((training[1], other[1]))
    return 0 < small * times < large < float("inf")
