"""Who am I among the ranks: the variables of torchrun, or those of `srun`. Nothing here imports
torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nanodoc.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One rank's place: as torchrun's variables say it, or SLURM's."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int
    hosted: bool  # torchrun's agent already keeps a store at address:port
    attempt: str = "0"  # a restart by torchrun must not read the notices of the attempt before


def read_launch(environment: Mapping[str, str]) -> Launch | None:
    """The place of this process, None when nothing launched it as a rank.

    Raises:
        UsageError: a variable is missing or makes no sense.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    # SLURM_PROCID alone is also set in the batch script itself; SLURM_STEP_NUM_TASKS only in what
    # srun started
    if "SLURM_PROCID" in environment and _number(environment, "SLURM_STEP_NUM_TASKS", "0") > 1:
        return _of_slurm(environment)
    return None


def _of_torchrun(environment: Mapping[str, str]) -> Launch:
    rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if not 0 <= rank < world_size:
        raise UsageError(
            f"RANK is {rank} and WORLD_SIZE {world_size}; ranks go from 0 to WORLD_SIZE - 1"
        )
    address = environment.get("MASTER_ADDR", "").strip()
    if not address:
        raise UsageError(
            "MASTER_ADDR is not set; start the ranks with torchrun, or set it to the host of rank 0"
        )
    return Launch(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environment, "LOCAL_RANK", str(rank)),
        address=address,
        port=_port(_number(environment, "MASTER_PORT")),
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _of_slurm(environment: Mapping[str, str]) -> Launch:
    rank, world_size = (
        _number(environment, "SLURM_PROCID"),
        _number(environment, "SLURM_STEP_NUM_TASKS"),
    )
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    address = environment.get("MASTER_ADDR") or first_host(nodes)
    if not address:
        raise UsageError("SLURM lists no nodes here; set MASTER_ADDR to the host of rank 0")
    # one port for each job, the same on every node: jobs that share a node rarely get the same one
    job = _number(environment, "SLURM_JOB_ID", "0")
    return Launch(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environment, "SLURM_LOCALID", "0"),
        address=address,
        port=_port(_number(environment, "MASTER_PORT", str(15000 + job % 10000))),
        hosted=False,
    )


def first_host(nodes: str) -> str:
    """The first host of a SLURM node list: `gpu[03-07,12],login1` gives `gpu03`; "" for an empty
    one."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodes.strip())
    return "" if match is None else match[1] + (match[2] or "") + (match[3] or "")


def _number(environment: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = environment.get(name, default)
    if text is None:
        raise UsageError(
            f"{name} is not set; start the ranks with torchrun, or set RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT"
        )
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}; it must be a whole number") from None


def _port(port: int) -> int:
    if not 0 < port < 2**16:
        raise UsageError(f"MASTER_PORT is {port}; ports go from 1 to 65535")
    return port
