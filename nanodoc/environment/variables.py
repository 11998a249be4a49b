"""Environment variables that change how torch runs. Only names on a list are read, so that nothing
secret is ever shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_PREFIXES = (
    "CUDA_",
    "NCCL_",
    "TORCH_",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "MKL_",
    "KMP_",
    "GLOO_",
    "HSA_",
)
_NAMES = frozenset(
    (
        "OMP_NUM_THREADS",
        "OMP_PROC_BIND",
        "OMP_PLACES",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "GOMP_CPU_AFFINITY",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "NODE_RANK",
        "TOKENIZERS_PARALLELISM",
        "CUBLAS_WORKSPACE_CONFIG",
        "PYTHONHASHSEED",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_TF32_OVERRIDE",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_CPUS_PER_TASK",
        "SLURM_GPUS_PER_NODE",
        "SLURM_GPUS_ON_NODE",
        "SLURM_MEM_PER_NODE",
    )
)
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_SECRET_NAMES = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH", "PWD", "COOKIE")
_NOT_SECRET = frozenset(("TOKENIZERS_PARALLELISM",))
# what tokens of well-known services begin with: such a value is not shown whatever its name is
SECRET_VALUES = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|ASIA|ya29\.|eyJ)[\w\-.=/+]{8,}"
)
CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
QUERY_OF_URL = re.compile(r"(://[^\s?#]{1,2000})[?#]\S*")
_HOME = re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s:;,\"']+")
_HIDDEN = "***"
_LONGEST = 300


def attempt(environment: Mapping[str, str]) -> int:
    """Which start of the job this is, from 1: torchrun counts those it made again after a failure
    (--max-restarts), SLURM those after a requeue."""
    counts = (environment.get(name, "") for name in _RESTARTS)
    return 1 + sum(int(count) for count in counts if count.isascii() and count.isdigit())


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, sorted, with whatever could be private taken out of their
    values."""
    return {name: redacted(environment[name]) for name in sorted(environment) if _is_shown(name)}


def _is_shown(name: str) -> bool:
    if name in _NOT_SECRET:
        return True
    secret = any(word in name.upper() for word in _SECRET_NAMES)
    return not secret and (name in _NAMES or name.startswith(_PREFIXES))


def redacted(text: str) -> str:
    """`text` without credentials, queries of URLs, well-known tokens and the name of a home
    folder."""
    text = QUERY_OF_URL.sub(rf"\1?{_HIDDEN}", CREDENTIALS_IN_URL.sub(f"{_HIDDEN}@", text))
    text = SECRET_VALUES.sub(_HIDDEN, text)
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    return _HOME.sub("~", text)[:_LONGEST]
