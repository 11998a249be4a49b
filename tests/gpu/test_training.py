"""On a GPU of any maker: the same diagnosis, the same neutrality; on CUDA, which can count them,
one synchronisation a step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from nanodoc import Recipe, accelerator
from nanodoc.experiments.experiments import Elsewhere
from nanodoc.experiments.run import ExperimentRun
from nanodoc.experiments.step import Step
from nanodoc.looks.scheduler import Looks
from nanodoc.loop.engine import Engine
from nanodoc.measure.gradients import Scratch, packed_vitals
from nanodoc.watchers.requested_steps import LookOptions
from tests.gpu import DEVICE, on_a_gpu
from tests.helpers import line_of
from tests.loop.models import MODELS

pytestmark = on_a_gpu
cuda_only = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="only CUDA counts its synchronisations"
)


class Root(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.linear, self.checkpointed = nn.Linear(4, 4, bias=False), checkpointed

    def root(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(self.linear(x).pow(2))  # root on a GPU

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.root, x, use_reentrant=False) if self.checkpointed else self.root(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_a_backward_birth_leads_to_the_users_line(
    checkpointed: bool, dtype: torch.dtype | None
) -> None:
    rows = torch.ones(3, 4)
    rows[1] = 0.0
    recipe = Recipe(model=Root(checkpointed), loss_fn=lambda m, b: m(b).float().mean(), data=[rows])
    outcome = Engine(recipe, DEVICE, dtype, steps=1).run()
    (birth,) = outcome.evidence.births
    assert birth.site.location is not None
    assert birth.site.location.line == line_of(__file__, "# root on a GPU")
    assert birth.samples == (1,)


@pytest.fixture
def _deterministic() -> Iterator[None]:
    """What computes the same twice. Fused attention has no deterministic backward on CUDA."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("name", MODELS)
def test_watched_training_is_bitwise_the_same(name: str) -> None:
    device = DEVICE
    results: list[dict[str, Any]] = []
    for watched in (False, True):
        recipe = MODELS[name]()
        recipe.model.to(device)
        recipe = replace(recipe, optimizer=torch.optim.AdamW(recipe.model.parameters(), lr=1e-2))
        torch.manual_seed(0)
        if watched:
            Engine(recipe, device, None, steps=10, looks=LookOptions(steps=(3,), frames=True)).run()
        else:
            batches = list(recipe.data)
            for step in range(10):
                recipe.optimizers[0].zero_grad()
                assert recipe.loss_fn is not None
                recipe.loss_fn(
                    recipe.model, tuple(t.to(device) for t in batches[step % len(batches)])
                ).backward()
                recipe.optimizers[0].step()
        results.append(
            copy.deepcopy(recipe.model.state_dict())
            | {"rng": torch.get_device_module(device).get_rng_state(device)}
        )
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


@cuda_only
def test_the_tripwire_synchronises_once() -> None:
    recipe = MODELS["gpt"]()
    recipe.model.cuda()
    assert recipe.loss_fn is not None
    loss = recipe.loss_fn(recipe.model, tuple(t.cuda() for t in next(iter(recipe.data))))
    loss.backward()
    named, scratch = list(recipe.model.named_parameters()), Scratch()
    packed_vitals([loss], named, scratch=scratch)
    torch.cuda.synchronize()
    with pytest.warns(UserWarning, match="synchroniz") as seen:  # noqa: PT031  # the mode must be put back whatever happens
        torch.cuda.set_sync_debug_mode("warn")
        try:
            packed_vitals([loss], named, scratch=scratch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    said = [str(warning.message) for warning in seen]
    # torch says of the mode itself that it is a prototype
    assert len([words for words in said if "prototype" not in words]) == 1, said


def amp_step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss: torch.Tensor = torch.nn.functional.cross_entropy(
            model(batch[0]).flatten(0, -2), batch[1].flatten()
        )
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss


def synchronisations(run: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    said = [str(warning.message) for warning in seen]
    # torch says once in a process that the mode itself is a prototype
    return sum("synchroniz" in words and "prototype" not in words for words in said)


@cuda_only
@pytest.mark.parametrize("observed", [False, True])
def test_a_monitored_amp_step_synchronises_once_more_than_a_bare_one(observed: bool) -> None:
    device, made = torch.device("cuda", 0), MODELS["gpt"]()
    made.model.to(device)
    batch = tuple(t.to(device) for t in next(iter(made.data)))
    recipe = replace(
        made,
        data=[batch],
        optimizer=torch.optim.AdamW(made.model.parameters()),
        scaler=torch.amp.GradScaler("cuda", init_scale=256.0),
        train_step=amp_step if observed else None,
    )
    # a copy of the weights for experiments, once in many steps, is another copy to the host
    engine = Engine(
        recipe, device, None if observed else torch.float16, steps=10, checkpoints=False
    )
    for number in range(4):
        assert engine._step(number) is None
    bare = synchronisations(lambda: amp_step(recipe.model, batch, recipe.optimizer, recipe.scaler))
    assert synchronisations(lambda: engine._step(4)) == bare + 1


def test_frames_on_a_gpu() -> None:
    recipe = MODELS["gpt"]()
    engine = Engine(
        recipe, DEVICE, torch.float16, steps=2, looks=LookOptions(steps=(1,), frames=True)
    )
    (table,) = engine.run().frames
    assert all(
        t.absmax is not None
        for frame in table.frames
        for t in frame.tensors
        if t.dtype in ("float16", "float32")
    )
    assert any(t.flushed is not None for frame in table.frames for t in frame.tensors)


def test_experiments_on_a_gpu() -> None:
    """The step that fails on the GPU is run on the CPU and in float64, and everything comes back to
    where it was."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, bias=False)
    data = [torch.randn(6, 4) for _ in range(4)]
    data[2][1] = 0.0
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: torch.sqrt(m(b).pow(2).sum(1)).mean(),
        data=data,
        optimizer=torch.optim.Adam(model.parameters()),
    )
    engine = Engine(recipe, DEVICE, None, steps=4)
    outcome = engine.run()
    assert outcome.start is not None
    before = model.weight.detach().clone()
    elsewhere = Elsewhere(
        other=lambda: engine.another(outcome.start), earlier=engine.checkpoints.before(2)
    )  # type: ignore[arg-type]
    step = Step(outcome.start, elsewhere, engine.checkpoints)
    differential = ExperimentRun(
        engine.runner, engine.keeper, engine.replayer, step, Looks(), lambda text: None
    )
    pattern = differential.examine(outcome.evidence).pattern
    assert pattern is not None
    assert pattern.passes("cpu") is False
    assert pattern.passes("float64") is (False if accelerator.has_float64(DEVICE) else None)
    assert pattern.passes("other-batch") is True
    assert pattern.passes("first-weights") is False
    assert model.weight.device == DEVICE
    assert torch.equal(model.weight, before)
