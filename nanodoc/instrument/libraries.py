"""What nanodoc uses of libraries and of Python's standard library that they do not promise to keep,
all in one place. `tests/instrument/test_torch_contract.py` asks of each name whether it exists, as
far as the library is installed."""

from __future__ import annotations

import random
import sys
from typing import Any

TRAINERS = frozenset(
    {
        "transformers.trainer",
        "lightning.pytorch.loops.training_epoch_loop",
        "pytorch_lightning.loops.training_epoch_loop",
        "ignite.engine",
        "skorch.net",
        "deepxde.model",
        "pytorch_tabnet.abstract_model",
        "pytorch_tabnet.pretraining",
        "denoising_diffusion_pytorch.denoising_diffusion_pytorch",
        "segmentation_models_pytorch.utils.train",
        "pytorch_metric_learning.trainers.base_trainer",
        *(
            f"stable_baselines3.{name}.{name}"
            for name in ("a2c", "ddpg", "dqn", "ppo", "sac", "td3")
        ),
    }
)
"""The modules with the loops of trainers, whose iterations are a training's steps."""

AVERAGES = {
    "torch_ema.ema": "ExponentialMovingAverage",
    "diffusers.training_utils": "EMAModel",
}
"""Averages of the weights that libraries keep: the class, by its module."""

ATTRIBUTES: dict[str, str] = {
    "_inst": "random",
    "_rand": "numpy.random.mtrand",
    "_getframe": "sys",
    "_current_frames": "sys",
    "_get_running_loop": "asyncio",
    "_args_from_interpreter_flags": "subprocess",
    "_ConnectionBase": "multiprocessing.connection",
    "_children": "multiprocessing.process",
    "_bootstrap": "multiprocessing.process.BaseProcess",
    "_target": "multiprocessing.process.BaseProcess()",
    "_args": "multiprocessing.process.BaseProcess()",
    "_start_method": "multiprocessing.context.ForkServerProcess",
    "_write_to_self": "asyncio.selector_events.BaseSelectorEventLoop",
    "_asdict": "a named tuple",
    "_fields": "a named tuple",
}
"""Private names of Python's and of libraries' that nanodoc uses, and whose they are."""


def python_generator() -> Any:
    """The generator behind the functions of `random`; None where Python has it elsewhere."""
    return getattr(random, "_inst", None)


def numpy_generator() -> Any:
    """The `RandomState` behind the functions of `numpy.random`, which the script may have replaced.
    None where NumPy is not loaded."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    mtrand = sys.modules.get("numpy.random.mtrand")
    return getattr(mtrand, "_rand", numpy.random)
