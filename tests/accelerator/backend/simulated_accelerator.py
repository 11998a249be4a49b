"""The simulated accelerator as torch sees it: the device type `sim`, and what
`torch.get_device_module("sim")` offers.

`build()` compiles `simulated.cpp` once per environment and source; `register()` loads it. A process
with `environment()` registers it when torch is imported: the folder `autoload` holds an entry point
of `torch.backends`, as the packages of makers of accelerators do.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).with_name("simulated.cpp")
FOLDER = Path(__file__).parent
_library: Any = None


class Counts(NamedTuple):
    """What the backend counted since it was loaded."""

    copies_to_host: int
    scalar_reads: int
    synchronisations: int
    """Further ones: `synchronize`, and ops whose shape or answer depends on values."""
    ops: int

    def since(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def waits(self) -> int:
        """How often the host waited for the device."""
        return self.copies_to_host + self.scalar_reads + self.synchronisations


def missing() -> str | None:
    """Why it can't be built here; None where it can."""
    if sys.platform != "linux":
        return "the simulated accelerator is built on Linux only"
    return (
        None
        if _compiler()
        else "no C++ compiler (c++, g++ or clang++) to build the simulated accelerator"
    )


def _compiler() -> str | None:
    return next(
        (
            path
            for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++")
            if name and (path := shutil.which(name))
        ),
        None,
    )


def library_path() -> Path:
    """Where the compiled library lies: in the environment, named after what it was made of."""
    import torch

    told = f"{torch.__version__} {sysconfig.get_platform()} {sys.version_info[:2]}".encode()
    return (
        Path(sys.prefix)
        / "share"
        / "nanodoc-tests"
        / f"simulated-{hashlib.sha256(SOURCE.read_bytes() + told).hexdigest()[:16]}.so"
    )


def build() -> Path:
    """Compiles the library where it is not there yet, one process at a time. Raises
    `CalledProcessError`, its stderr the compiler's."""
    import torch

    target = library_path()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    root = Path(torch.__file__).parent
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            made = target.with_suffix(f".{os.getpid()}")
            libraries = [
                "-L",
                str(root / "lib"),
                "-lc10",
                "-ltorch",
                "-ltorch_cpu",
                f"-Wl,-rpath,{root / 'lib'}",
            ]
            flags = [
                "-std=c++20",
                "-shared",
                "-fPIC",
                "-O0",
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                "-w",
            ]
            command = [
                str(_compiler()),
                *flags,
                "-I",
                str(root / "include"),
                str(SOURCE),
                "-o",
                str(made),
                *libraries,
            ]
            subprocess.run(command, check=True, capture_output=True, text=True)
            made.replace(target)
    return target


class SimulatedModule:
    """What `torch.get_device_module("sim")` returns."""

    @staticmethod
    def is_available() -> bool:
        return True

    is_initialized = is_available

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 2

    @staticmethod
    def current_device() -> int:
        return int(_library.sim_current_device())

    @staticmethod
    def set_device(device: Any) -> None:
        _library.sim_set_device(_index(device))

    class device:  # as torch.cuda.device
        def __init__(self, device: Any) -> None:
            self._index = _index(device)

        def __enter__(self) -> None:
            self._before = SimulatedModule.current_device()
            _library.sim_set_device(self._index)

        def __exit__(self, *exc: Any) -> None:
            _library.sim_set_device(self._before)

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        return "Simulated accelerator"

    @staticmethod
    def synchronize(device: Any = None) -> None:
        import torch

        torch.accelerator.synchronize(_index(device))

    @staticmethod
    def get_amp_supported_dtype() -> list[Any]:
        import torch

        return [torch.float16, torch.bfloat16]

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        for index in range(2):
            _library.sim_seed(index, seed % 2**64)

    @staticmethod
    def manual_seed(seed: int) -> None:
        _library.sim_seed(SimulatedModule.current_device(), seed % 2**64)

    @staticmethod
    def get_rng_state(device: Any = None) -> Any:
        import torch

        state = torch.empty(_library.sim_rng_bytes(), dtype=torch.uint8)
        _library.sim_get_rng(_index(device), ctypes.c_void_p(state.data_ptr()))
        return state

    @staticmethod
    def set_rng_state(state: Any, device: Any = None) -> None:
        state = state.contiguous()
        if state.dtype.itemsize != 1 or state.numel() != _library.sim_rng_bytes():
            raise RuntimeError("RNG state is of the wrong size")
        _library.sim_set_rng(_index(device), ctypes.c_void_p(state.data_ptr()))


def _index(device: Any) -> int:
    import torch

    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    return int(_library.sim_current_device()) if index is None or index < 0 else int(index)


def register() -> None:
    """Makes `sim` a device of this process. Nothing happens where the library was not built."""
    global _library
    path = library_path()
    if _library is not None or not path.exists():
        return
    import torch

    _library = ctypes.CDLL(str(path))
    _library.sim_seed.argtypes = [ctypes.c_int, ctypes.c_uint64]
    _library.sim_limit.argtypes = [ctypes.c_int, ctypes.c_int64]
    _library.sim_rng_bytes.restype = ctypes.c_int64
    _library.sim_register()
    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", SimulatedModule)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True
    )
    configure(os.environ)


def configure(settings: Any) -> None:
    """SIM_MEMORY (bytes a device), SIM_PLANT ("aten::relu 3": the third relu loses the device),
    SIM_SHARE_GENERATOR (draws come from the CPU's generator, so that values are the CPU's),
    SIM_WITHOUT_FLOAT64 (as Apple's GPUs)."""
    for device in range(2):
        _library.sim_limit(device, int(settings.get("SIM_MEMORY", 1 << 40)))
    op, _, call = settings.get("SIM_PLANT", "").partition(" ")
    _library.sim_plant(op.encode(), int(call or 0))
    _library.sim_share_host_generator(bool(settings.get("SIM_SHARE_GENERATOR")))
    _library.sim_without_float64(bool(settings.get("SIM_WITHOUT_FLOAT64")))


def counts() -> Counts:
    numbers = (ctypes.c_int64 * 4)()
    _library.sim_counts(numbers)
    return Counts(*numbers)


def environment() -> dict[str, str]:
    """What a process needs to have the device: add it to its environment."""
    folders = (str(FOLDER), str(FOLDER.parent / "autoload"), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
