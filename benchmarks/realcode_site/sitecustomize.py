"""Runs in every process of a script: seeds what the script does not seed, keeps weights from being
downloaded and made data from being refused, ends the script after so many optimizer steps of its
own, and hashes all weights and buffers at its end."""

from __future__ import annotations

import atexit
import hashlib
import os
import random
import sys
from typing import Any

_REPLAYS = ("script/recovered.py", "replay/step.py")


def _watch() -> None:
    import torch
    import torch.hub
    from torch.optim.optimizer import register_optimizer_step_post_hook

    random.seed(0)
    torch.manual_seed(0)
    modules: list[Any] = []
    making, loading = torch.nn.Module.__init__, torch.nn.Module.load_state_dict
    nothing: dict[str, Any] = {}  # of the net: random weights do as well

    def init(module: Any, *args: Any, **kwargs: Any) -> None:
        modules.append(module)
        making(module, *args, **kwargs)

    def load(module: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        return None if state is nothing else loading(module, state, *args, **kwargs)

    torch.nn.Module.__init__ = init  # type: ignore[method-assign, assignment]  # for as long as it runs
    torch.nn.Module.load_state_dict = load  # type: ignore[method-assign, assignment]  # as above
    torch.hub.load_state_dict_from_url = lambda *args, **kwargs: nothing
    most, steps = int(os.environ.get("REALCODE_STEPS") or 0), 0

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal steps
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.endswith(_REPLAYS):
                return
            frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
        steps += 1
        if steps == most:
            sys.exit(0)

    if most:
        register_optimizer_step_post_hook(stepped)

    atexit.register(_hash, modules)


def _hash(modules: list[Any]) -> None:
    import torch

    digest = hashlib.sha256()
    for module in modules:
        for table in (vars(module).get("_parameters", {}), vars(module).get("_buffers", {})):
            for name, value in table.items():
                if value is not None and value.layout is torch.strided:
                    flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
                    digest.update(name.encode() + flat.numpy().tobytes())
    with open(os.environ["REALCODE_HASH"], "a", encoding="utf-8") as file:
        file.write(digest.hexdigest() + "\n")


class _WhenTorchIsThere:
    """Asked for every module that is imported; finds none."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        torch = sys.modules.get("torch")
        optim = getattr(torch, "optim", None)
        if hasattr(torch, "compile") and hasattr(optim, "Optimizer"):
            sys.meta_path.remove(self)
            _watch()


class _WhenCifarIsThere:
    """The same for torchvision's CIFAR: made pictures have another checksum than the real ones."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        cifar = sys.modules.get("torchvision.datasets.cifar")
        if hasattr(cifar, "CIFAR100"):
            sys.meta_path.remove(self)
            vars(cifar)["check_integrity"] = lambda file, checksum=None: os.path.isfile(file)


if os.environ.get("REALCODE_HASH"):
    sys.meta_path[:0] = [_WhenTorchIsThere(), _WhenCifarIsThere()]
