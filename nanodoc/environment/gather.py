"""Gathers all of it. torch is imported here and nowhere above, for `nanodoc --help` must not wait
for it."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
import warnings
from types import ModuleType

from nanodoc import cuda
from nanodoc.environment import packages, system
from nanodoc.environment.checks import run_checks
from nanodoc.environment.model import Environment, Gpu, found_out
from nanodoc.environment.variables import redacted, relevant

_SMI_SECONDS = 10  # a driver in trouble makes nvidia-smi wait for ever


def gather() -> Environment:
    """The environment of this process and the outcome of every check."""
    driver = nvidia_driver()
    # torch warns of a driver that is too old: the check says it
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        module = _torch()
        gpus = _gpus(module)
        return Environment(
            facts={**_system_facts(), **_torch_facts(module), "driver": driver or "none"},
            gpus=gpus,
            packages=packages.installed(),
            variables=relevant(os.environ),
            checks=tuple(run_checks(module, gpus, driver)),
        )


def _torch() -> ModuleType | BaseException:
    try:
        return importlib.import_module("torch")
    except Exception as error:  # an ImportError, or an OSError of a shared library
        return error


def _system_facts() -> dict[str, str]:
    gib = 2**30
    return {
        "python": found_out(
            lambda: (
                f"{platform.python_version()} ({platform.python_implementation()}, "
                f"{redacted(sys.executable)})"
            )
        ),
        "os": found_out(system.operating_system),
        "cpu": found_out(lambda: f"{system.processor()}, {system.usable_cores():g} usable"),
        "memory": found_out(
            lambda: (
                f"{system.memory()[0] / gib:.1f} GiB, {system.memory()[1] / gib:.1f} GiB available"
            )
        ),
    }


def _torch_facts(module: ModuleType | BaseException) -> dict[str, str]:
    if isinstance(module, BaseException):
        return {"torch": redacted(found_out(lambda: _raise(module)))}
    facts = {
        "torch": lambda: f"{module.__version__}{' (debug)' if module.version.debug else ''}",
        "built for": lambda: _built_for(module),
        "cuDNN": lambda: module.backends.cudnn.version() or "none",
        "NCCL": lambda: (
            (cuda.nccl_version() if module.distributed.is_nccl_available() else None) or "none"
        ),
        "distributed": lambda: ", ".join(
            name
            for name in ("gloo", "nccl", "mpi", "ucc")
            if module.distributed.is_backend_available(name)
        ),
        "MPS": lambda: "available" if module.backends.mps.is_available() else "none",
        "threads": lambda: (
            f"{module.get_num_threads()} within an op, {module.get_num_interop_threads()} between "
            "ops"
        ),
    }
    return {key: found_out(value) for key, value in facts.items()}


def _raise(error: BaseException) -> object:
    raise error


def _built_for(module: ModuleType) -> str:
    architectures = cuda.architectures()
    build = cuda.build() or (
        "XPU"
        if module.xpu._is_compiled()
        else "MPS"
        if module.backends.mps.is_built()
        else "CPU only"
    )
    return f"{build} ({' '.join(architectures)})" if architectures else build


def _gpus(module: ModuleType | BaseException) -> tuple[Gpu, ...]:
    if isinstance(module, BaseException):
        return ()
    try:
        if cuda.available():
            return tuple(
                _gpu(index, cuda.properties(index)) for index in range(cuda.device_count())
            )
        return _other_accelerators()
    except Exception:  # the check named GPU runs into the same, and says it
        return ()


def _gpu(index: int, told: cuda.Properties) -> Gpu:
    return Gpu(
        index=index,
        name=told.name,
        memory=told.memory,
        capability=told.capability,
        supported=told.supported,
    )


def _other_accelerators() -> tuple[Gpu, ...]:
    """Those of other makers; whether torch has code for one, only CUDA tells."""
    from nanodoc import accelerator  # imports torch

    return tuple(
        Gpu(
            index=device.index or 0,
            name=accelerator.device_name(device) or device.type,
            memory=(accelerator.memory_info(device) or (0, 0))[1],
            capability=device.type,
            supported=None,
        )
        for device in accelerator.all_accelerators()
    )


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, as nvidia-smi or the kernel say it; None where there is
    none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_SMI_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return system.nvidia_kernel_module()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown (nvidia-smi: {type(error).__name__})"
    lines = done.stdout.split()
    if done.returncode == 0 and lines:
        return lines[0]
    return system.nvidia_kernel_module()
