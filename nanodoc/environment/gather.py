"""Gathers all of it. torch is imported here and nowhere above, for `nanodoc --help` must not wait for it."""

from __future__ import annotations

import importlib
import os
import platform
import re
import subprocess
import sys
import warnings
from types import ModuleType

from nanodoc.environment import packages, system
from nanodoc.environment.checks import run_checks
from nanodoc.environment.model import Environment, Gpu, found_out
from nanodoc.environment.variables import redacted, relevant

_SMI_SECONDS = 10  # a driver in trouble makes nvidia-smi wait for ever
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)[af]?$")


def gather() -> Environment:
    """The environment of this process and the outcome of every check."""
    driver = nvidia_driver()
    with warnings.catch_warnings(record=True):  # torch warns of a driver that is too old: the check says it
        warnings.simplefilter("always")
        module = _torch()
        gpus = _gpus(module)
        return Environment(
            facts={**_system_facts(), **_torch_facts(module), "driver": driver or "none"}, gpus=gpus, packages=packages.installed(),
            variables=relevant(os.environ), checks=tuple(run_checks(module, gpus, driver)),
        )  # fmt: skip


def _torch() -> ModuleType | BaseException:
    try:
        return importlib.import_module("torch")
    except Exception as error:  # an ImportError, or an OSError of a shared library
        return error


def _system_facts() -> dict[str, str]:
    gib = 2**30
    return {
        "python": found_out(lambda: f"{platform.python_version()} ({platform.python_implementation()}, {redacted(sys.executable)})"),
        "os": found_out(system.operating_system),
        "cpu": found_out(lambda: f"{system.processor()}, {system.usable_cores():g} usable"),
        "memory": found_out(lambda: f"{system.memory()[0] / gib:.1f} GiB, {system.memory()[1] / gib:.1f} GiB available"),
    }


def _torch_facts(module: ModuleType | BaseException) -> dict[str, str]:
    if isinstance(module, BaseException):
        return {"torch": redacted(found_out(lambda: _raise(module)))}
    facts = {
        "torch": lambda: f"{module.__version__}{' (debug)' if module.version.debug else ''}",
        "built for": lambda: _built_for(module),
        "cuDNN": lambda: module.backends.cudnn.version() or "none",
        "NCCL": lambda: ".".join(map(str, module.cuda.nccl.version())) if module.distributed.is_nccl_available() else "none",
        "distributed": lambda: ", ".join(name for name in ("gloo", "nccl", "mpi", "ucc") if module.distributed.is_backend_available(name)),
        "MPS": lambda: "available" if module.backends.mps.is_available() else "none",
        "threads": lambda: f"{module.get_num_threads()} within an op, {module.get_num_interop_threads()} between ops",
    }
    return {key: found_out(value) for key, value in facts.items()}


def _raise(error: BaseException) -> object:
    raise error


def _built_for(module: ModuleType) -> str:
    build = (
        f"CUDA {module.version.cuda}" if module.version.cuda else f"ROCm {module.version.hip}" if module.version.hip else "the CPU alone"
    )
    architectures = module.cuda.get_arch_list() if module.cuda.is_available() else []
    return f"{build} ({' '.join(architectures)})" if architectures else build


def _gpus(module: ModuleType | BaseException) -> tuple[Gpu, ...]:
    if isinstance(module, BaseException):
        return ()
    try:
        architectures = module.cuda.get_arch_list()
        return tuple(_gpu(module, index, architectures) for index in range(module.cuda.device_count()))
    except Exception:  # the check named GPU runs into the same, and says it
        return ()


def _gpu(module: ModuleType, index: int, architectures: list[str]) -> Gpu:
    properties = module.cuda.get_device_properties(index)
    if module.version.hip:
        name = str(getattr(properties, "gcnArchName", "unknown"))
        supported = any(name.split(":")[0] == one.split(":")[0] for one in architectures) if architectures else None
        return Gpu(index=index, name=properties.name, memory=properties.total_memory, capability=name, supported=supported)
    capability = (properties.major, properties.minor)
    return Gpu(
        index=index, name=properties.name, memory=properties.total_memory, capability=f"sm_{properties.major}{properties.minor}",
        supported=has_code(capability, architectures) if architectures else None,
    )  # fmt: skip


def has_code(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Whether a build for `architectures` runs on a GPU of `capability`.

    Machine code (sm_86) runs on the same major version from its minor version on, code for the driver to compile (compute_90) on
    everything from its own version on (NVIDIA, CUDA programming guide, "binary compatibility" and "PTX compatibility").
    """
    for one in architectures:
        match = _ARCHITECTURE.match(one)
        if match is None:
            continue
        built = int(match[2]), int(match[3])
        if (match[1] == "compute" or built[0] == capability[0]) and built <= capability:
            return True
    return False


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, as nvidia-smi or the kernel say it; None where there is none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=_SMI_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        return system.nvidia_kernel_module()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown (nvidia-smi: {type(error).__name__})"
    lines = done.stdout.split()
    if done.returncode == 0 and lines:
        return lines[0]
    return system.nvidia_kernel_module()
