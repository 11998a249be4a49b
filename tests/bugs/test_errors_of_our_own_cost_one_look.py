"""An error of nanodoc's own ends what it was looking at, and neither the training nor the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanodoc import Recipe
from nanodoc.diagnosis.ranking import rank
from nanodoc.errors import UsageError
from nanodoc.examination.non_finite import Examiner
from nanodoc.loop.engine import Engine
from nanodoc.recipe.adapt import as_recipe
from nanodoc.rules.catalogue import claims
from nanodoc.watchers.grad_graph import GraphWatch
from nanodoc.watchers.learning import LearningWatch
from nanodoc.watchers.sampling import Sampler
from nanodoc.watchers.watch import Watch
from tests.helpers import nanodoc, run_engine


def training(loss_fn: Callable[..., Any] | None = None, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return {
        "model": model,
        "loss_fn": loss_fn or (lambda model, batch: model(batch).pow(2).mean()),
        "data": [torch.randn(8, 4) for _ in range(4)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        **more,
    }


def recipe(**fields: Any) -> Recipe:
    return as_recipe(training(**fields), "build")


@pytest.mark.parametrize("watch", [GraphWatch, LearningWatch, Sampler])
@pytest.mark.parametrize("moment", ["before_step", "after_step", "at_end", "facts"])
def test_a_watcher_that_breaks_is_left_out(
    watch: type[Watch], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = run_engine(recipe(), steps=4)
    calls = []

    def broken(self: Watch, *args: object) -> None:
        calls.append(1)
        raise KeyError("broken on purpose")

    monkeypatch.setattr(watch, moment, broken)
    outcome = run_engine(recipe(), steps=4)
    assert outcome.losses == sound.losses
    assert calls == [1]
    assert any("KeyError: 'broken on purpose'" in why for _, why in outcome.notes)


@pytest.mark.parametrize(
    ("owner", "moment"),
    [(LearningWatch, "after_step"), (Engine, "_capsule"), (Engine, "_finished")],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_what_torch_tells_wherever_we_are_is_not_ours(
    owner: Any, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler of SIGCHLD raises in code of ours, too: a watcher passed over it, and the run
    went on; in the engine it ended in a traceback of nanodoc's own."""
    sound, calls = getattr(owner, moment), []

    def told(self: Any, *args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. ")
        return sound(self, *args, **more)

    monkeypatch.setattr(owner, moment, told)
    outcome = run_engine(recipe(), steps=4)
    failure = outcome.evidence.failure
    assert failure is not None
    assert (failure.type, failure.phase) == ("RuntimeError", "data")
    assert [finding.code for finding in rank(claims(outcome.evidence))][:1] == ["ND708"]
    assert not any("nanodoc's own" in why for _, why in outcome.notes)


def test_a_developer_sees_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Watch, *args: object) -> None:
        raise KeyError("broken on purpose")

    monkeypatch.setattr(LearningWatch, "after_step", broken)
    monkeypatch.setenv("NANODOC_DEBUG", "1")
    with pytest.raises(KeyError, match="broken on purpose"):
        run_engine(recipe(), steps=2)


def test_the_users_exception_passes_every_watcher() -> None:
    def loss_fn(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise ValueError("the user's own")

    outcome = run_engine(recipe(loss_fn=loss_fn), steps=2)
    assert outcome.evidence.failure is not None
    assert outcome.evidence.failure.type == "ValueError"
    assert not any("nanodoc's own" in why for _, why in outcome.notes)


def test_a_step_that_cannot_be_examined_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Examiner, *args: object) -> None:
        raise KeyError("broken on purpose")

    monkeypatch.setattr(Examiner, "examine", broken)
    sick = recipe(loss_fn=lambda model, batch: model(batch).sum().mul(0).log())
    outcome = run_engine(sick, steps=2)
    assert outcome.evidence.trip is not None
    assert outcome.evidence.trip.step == 0
    why = dict(outcome.notes)["the step that failed"]
    assert why == "stopped by an error of nanodoc's own: KeyError: 'broken on purpose'"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scaler": 3}, "scaler must be a torch.amp.GradScaler"),
        ({"scheduler": 3}, "scheduler must be a scheduler"),
        ({"clip_grad_norm": -1}, "clip_grad_norm must be a number above 0"),
        ({"clip_grad_norm": "x"}, "clip_grad_norm must be a number above 0"),
    ],
)
def test_helpers_of_a_wrong_type_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        recipe(**fields)


@pytest.mark.parametrize(
    ("loss_fn", "said"),
    [
        (lambda model, batch: model(batch).sum().view(1).to_sparse(), "the loss is sparse_coo"),
        (
            lambda model, batch: torch.empty((), device="meta", requires_grad=True),
            "the loss is on the meta device",
        ),
    ],
)
def test_losses_without_a_value_are_refused(loss_fn: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run_engine(recipe(loss_fn=loss_fn))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_batch_of_nested_tensors() -> None:
    nested = [torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)]) for _ in range(4)]

    def loss_fn(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.nested.to_padded_tensor(model(batch), 0.0).pow(2).mean()

    outcome = run_engine(recipe(loss_fn=loss_fn, data=nested), steps=3)
    assert len(outcome.losses) == 3
    assert not any("nanodoc's own" in why for _, why in outcome.notes)


def test_the_end_of_a_generator_is_an_exception_like_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch\n\ndef build(loss_fn=None):\n    model = torch.nn.Linear(4, 1)\n"
        "    def loss_fn_(model, batch):\n        raise GeneratorExit\n"
        "    return {'model': model, 'loss_fn': loss_fn_ if loss_fn is None else loss_fn,\n"
        "            'data': [torch.randn(8, 4)],\n"
        "            'optimizer': torch.optim.SGD(model.parameters(), lr=0.1), 'max_steps': 2}\n\n"
        "def closes():\n    os.closerange(3, 256)\n"
        "    return build(lambda model, batch: model(batch).pow(2).mean())\n"
    )
    done = nanodoc("run", "train.py:build", "--in-process", cwd=tmp_path)
    assert done.returncode == 1
    assert "critical[ND709]: GeneratorExit" in done.stdout
    done = nanodoc("run", "train.py:closes", "--in-process", cwd=tmp_path)
    assert (done.returncode, "verdict: nothing found" in done.stdout) == (0, True)
