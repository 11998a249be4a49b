"""What a launcher would tell the only process of a training. Nothing here imports torch."""

from __future__ import annotations

import os
import socket

_ADDRESS = "127.0.0.1"
_OF_SLURM = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}


def group_of_one() -> dict[str, str]:
    """torchrun's variables, and those of SLURM that are set."""
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": str(_free_port()),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        **{name: value for name, value in _OF_SLURM.items() if name in os.environ},
    }


def _free_port() -> int:
    """A port of this host that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind((_ADDRESS, 0))
        port: int = listener.getsockname()[1]
        return port
