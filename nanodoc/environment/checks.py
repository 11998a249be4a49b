"""The tick list. Each check runs what it speaks of, on small numbers that are known by heart."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

from nanodoc import cuda
from nanodoc.environment import packages, system
from nanodoc.environment.model import FAILED, NOTE, OK, Check, Gpu, unknown

_GIB = 2**30
# Docker gives 64 MiB; two workers with two batches of 256 images of 224×224 each take 0.6 GiB
_SMALL_SHARED_MEMORY = _GIB
_LITTLE_MEMORY = 2 * _GIB
# each tensor that a DataLoader worker hands over holds one, until it is freed
_FEW_OPEN_FILES = 1024
_INSTALL = (
    "pip install torch --index-url https://download.pytorch.org/whl/cu126 (or another CUDA: "
    "https://pytorch.org/get-started)"
)


def run_checks(
    module: ModuleType | BaseException, gpus: tuple[Gpu, ...], driver: str | None
) -> Iterator[Check]:
    """All checks; `module` is torch, or what importing it raised. One that breaks is a failed
    one."""
    if isinstance(module, BaseException):
        yield Check(
            name="torch",
            state=FAILED,
            text=f"can't be imported: {type(module).__name__}: {module}",
            help="reinstall it: pip install torch",
        )
    else:
        yield Check(name="torch", state=OK, text=f"{module.__version__} imports")
        checks: dict[str, Callable[[], Check]] = {
            "arithmetic": lambda: _arithmetic(module),
            "backward": lambda: _backward(module),
            "half precision": lambda: _half(module),
            "numpy": lambda: _numpy(module),
            "GPU": lambda: _gpu(module, driver),
            "GPU code": lambda: _gpu_code(gpus),
            "threads": lambda: _threads(module),
            "distributed": lambda: _distributed(module, len(gpus)),
            "torch pairing": lambda: packages.pairing(module.__version__),
        }
        yield from (_done(name, check) for name, check in checks.items())
    for name, check in (
        ("CUDA packages", packages.doubled),
        ("shared memory", _shared_memory),
        ("memory", _memory),
        ("open files", _open_files),
    ):
        yield _done(name, check)


def _done(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        return Check(
            name=name, state=FAILED, text=f"raised: {unknown(error)[len('unknown (') : -1]}"
        )


def _arithmetic(module: ModuleType) -> Check:
    """1 + 2 + … by addition, a product of matrices by BLAS, and a convolution by oneDNN: libraries
    that can be broken one by one."""
    numbers = module.arange(1, 1001, dtype=module.float32)
    square = module.arange(64, dtype=module.float32).reshape(8, 8)
    product = [
        [sum((8 * i + k) * (8 * k + j) for k in range(8)) for j in range(8)] for i in range(8)
    ]
    image = module.nn.functional.conv2d(module.ones(1, 3, 5, 5), module.ones(2, 3, 3, 3))
    wrong = [
        text
        for text, right in (
            (f"1 + … + 1000 = {float(numbers.sum()):g}", float(numbers.sum()) == 500500.0),
            ("a matrix product", (square @ square).tolist() == product),
            ("a convolution", bool((image == 27.0).all())),
        )
        if not right
    ]
    if wrong:
        return Check(
            name="arithmetic",
            state=FAILED,
            text=f"wrong on the CPU: {', '.join(wrong)}",
            help="reinstall torch; if the error persists, test the memory",
        )
    return Check(
        name="arithmetic",
        state=OK,
        text="sum, matrix product and convolution are correct on the CPU",
    )


def _backward(module: ModuleType) -> Check:
    point = module.tensor([1.0, 2.0], requires_grad=True)
    (point**3).sum().backward()
    gradient = point.grad.tolist()
    state = OK if gradient == [3.0, 12.0] else FAILED
    return Check(
        name="backward",
        state=state,
        text=f"the gradient of x³ at 1 and 2 is {gradient[0]:g} and {gradient[1]:g}",
    )


def _half(module: ModuleType) -> Check:
    """float16 and bfloat16 on every device, measured against 4, which both hold exactly."""
    said: list[str] = []
    missing: list[str] = []
    devices = ["cpu", *_accelerators()]
    for device in devices:
        for dtype in (module.float16, module.bfloat16):
            name = str(dtype).removeprefix("torch.")
            try:
                ones = module.ones(4, 4, dtype=dtype, device=device)
                works = float((ones @ ones)[0, 0]) == 4.0
            except (RuntimeError, TypeError):
                works = False
            (said if works else missing).append(f"{name} on {device}")
    if len(devices) == 1:
        said = [text.removesuffix(" on cpu") for text in said] if not missing else said
    elif cuda.available() and cuda.emulates_bfloat16():
        missing.append("native bfloat16 on the GPU (it is emulated)")
    if missing:
        return Check(
            name="half precision",
            state=NOTE,
            text=f"not working: {', '.join(missing)}",
            help="use a dtype that works, or float32",
        )
    return Check(
        name="half precision",
        state=OK,
        text=f"{' and '.join(said[:2])} work{'' if len(devices) == 1 else ', on every device'}",
    )


def _numpy(module: ModuleType) -> Check:
    """torch and NumPy are compiled against each other: NumPy 2 with an old torch imports and then
    fails."""
    version = packages.version_of("numpy")
    if version is None:
        return Check(
            name="numpy",
            state=NOTE,
            text="not installed; tensor.numpy() and many datasets need it",
            help="pip install numpy",
        )
    back = module.from_numpy(module.tensor([1.0, 2.0]).numpy()).tolist()
    return Check(
        name="numpy",
        state=OK if back == [1.0, 2.0] else FAILED,
        text=f"{version} and torch share tensors",
    )


def _gpu(module: ModuleType, driver: str | None) -> Check:
    devices = _accelerators()
    if devices:
        return _gpu_arithmetic(module, devices)
    if cuda.build() is None:
        if driver is not None:
            text = f"there is an NVIDIA driver ({driver}), but this torch is a CPU-only build"
            return Check(name="GPU", state=FAILED, text=text, help=_INSTALL)
        return Check(name="GPU", state=OK, text="none: no driver, and torch is a CPU-only build")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return Check(
            name="GPU",
            state=NOTE,
            text=f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU",
            help="unset CUDA_VISIBLE_DEVICES",
        )
    if driver is None:
        return Check(
            name="GPU",
            state=NOTE,
            text="torch is built for GPUs, but no driver is installed",
            help="install a driver, or run on a machine with a GPU",
        )
    try:
        cuda.initialize()
        said = "no device found"
    except Exception as error:  # torch's own words name a driver that is too old
        said = " ".join(str(error).split())[:200]
    help = (
        "if the driver is too old, update it or install torch for an older CUDA; in a container, "
        "check for --gpus all"
    )
    return Check(
        name="GPU",
        state=FAILED,
        text=f"driver {driver}, torch for {cuda.build()}: {said}",
        help=help,
    )


def _accelerators() -> list[str]:
    """The names of all devices besides the CPU."""
    from nanodoc import accelerator  # imports torch, which may be broken

    return [str(device) for device in accelerator.all_accelerators()]


def _gpu_arithmetic(module: ModuleType, devices: list[str]) -> Check:
    """The same product on every GPU and on the CPU; whole numbers, so TF32 and the order of sums
    change nothing."""
    first, second = (
        module.arange(256.0).remainder(7).reshape(16, 16),
        module.arange(256.0).remainder(5).reshape(16, 16),
    )
    right = first @ second
    wrong = [
        device
        for device in devices
        if not bool(((first.to(device) @ second.to(device)).cpu() == right).all())
    ]
    if wrong:
        help = (
            "check dmesg for Xid errors and nvidia-smi -q for ECC errors"
            if cuda.available()
            else "check the driver's log"
        )
        return Check(
            name="GPU",
            state=FAILED,
            text=f"a matrix product is wrong on {', '.join(wrong)}",
            help=help,
        )
    count = len(devices)
    return Check(
        name="GPU",
        state=OK,
        text=f"{count} GPU{'' if count == 1 else 's'} ({devices[0].split(':')[0]}), same matrix "
        "product as on the CPU",
    )


def _gpu_code(gpus: tuple[Gpu, ...]) -> Check:
    without = [gpu for gpu in gpus if gpu.supported is False]
    if without:
        named = ", ".join(f"GPU {gpu.index} ({gpu.name}, {gpu.capability})" for gpu in without)
        return Check(
            name="GPU code",
            state=FAILED,
            text=f"this build of torch has no code for {named}",
            help=_INSTALL,
        )
    return Check(
        name="GPU code",
        state=OK,
        text="this build has code for every GPU" if gpus else "no GPU",
    )


def _threads(module: ModuleType) -> Check:
    threads, usable, seen = module.get_num_threads(), system.usable_cores(), os.cpu_count() or 1
    said = f"{threads} threads for {usable:g} cores"
    # a bound process sees fewer cores by itself; only a quota misleads what counts them
    whole = max(1, math.floor(usable))
    if threads > math.ceil(usable):
        help = (
            f"export OMP_NUM_THREADS={whole} and use at most {whole} DataLoader workers: more "
            "threads than cores slow each other down"
        )
        return Check(name="threads", state=NOTE, text=f"{said} (the machine has {seen})", help=help)
    if (
        threads == 1
        and usable >= 4
        and os.environ.get("OMP_NUM_THREADS") == "1"
        and "LOCAL_WORLD_SIZE" not in os.environ
    ):
        return Check(
            name="threads",
            state=NOTE,
            text=f"{said}: OMP_NUM_THREADS is 1",
            help="unset it if one process has all cores to itself",
        )
    return Check(name="threads", state=OK, text=said)


def _distributed(module: ModuleType, gpus: int) -> Check:
    distributed = module.distributed
    if not distributed.is_available():
        return Check(
            name="distributed",
            state=NOTE,
            text="this torch is built without torch.distributed: no DDP or FSDP",
        )
    there = {
        "gloo": distributed.is_gloo_available(),
        "nccl": distributed.is_nccl_available(),
        "mpi": distributed.is_mpi_available(),
    }
    text = (
        f"{', '.join(name for name, is_there in there.items() if is_there) or 'no backend'} "
        "available"
    )
    if gpus > 1 and not there["nccl"] and sys.platform.startswith("linux"):
        return Check(
            name="distributed",
            state=FAILED,
            text=f"{gpus} GPUs, but NCCL is missing: {text}",
            help=_INSTALL,
        )
    return Check(name="distributed", state=OK, text=f"{text}; nanodoc net tests them")


def _shared_memory() -> Check:
    sizes = system.shared_memory()
    if sizes is None:
        return Check(name="shared memory", state=OK, text="no /dev/shm on this system")
    total, free = sizes
    text = f"/dev/shm has {free / _GIB:.2g} of {total / _GIB:.2g} GiB free"
    if free < _SMALL_SHARED_MEMORY:
        help = (
            "use docker run --shm-size=8g (or --ipc=host); DataLoader workers pass batches through "
            "it and die with a bus error when it is full"
        )
        return Check(name="shared memory", state=NOTE, text=text, help=help)
    return Check(name="shared memory", state=OK, text=text)


def _memory() -> Check:
    try:
        total, available = system.memory()
    except (OSError, KeyError):
        return Check(name="memory", state=OK, text="unknown on this system")
    limit = system.memory_limit()
    limited = (
        f"; the container's limit is {limit / _GIB:.3g} GiB"
        if limit is not None and limit < total
        else ""
    )
    text = f"{available / _GIB:.3g} of {total / _GIB:.3g} GiB available{limited}"
    if available < _LITTLE_MEMORY or (limit is not None and limit < _LITTLE_MEMORY):
        return Check(
            name="memory",
            state=NOTE,
            text=text,
            help="the kernel kills a process that uses more, without a Python error",
        )
    return Check(name="memory", state=OK, text=text)


def _open_files() -> Check:
    limits = system.open_files()
    if limits is None:
        return Check(name="open files", state=OK, text="no limit on this system")
    soft, hard = limits
    if 0 <= soft <= _FEW_OPEN_FILES and (hard > soft or hard < 0):
        help = (
            f"run ulimit -n {hard if hard > 0 else 'unlimited'} if DataLoader workers fail with "
            '"too many open files" or "ancdata"'
        )
        return Check(name="open files", state=NOTE, text=f"at most {soft}", help=help)
    return Check(name="open files", state=OK, text=f"at most {soft if soft >= 0 else 'any number'}")
