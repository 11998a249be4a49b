"""## What it checks
Exceptions from a rendezvous or a connection between ranks: a port that is in use, a rank that never
arrived, a variable that no launcher set.

## Why it matters
The rank that reports it is the one that waited.

## Example
    torch.distributed.DistNetworkError: The server socket has failed to listen on any local network
    address.

## Fix
    torchrun --nproc-per-node 4 -m nanodoc net

## See also
ND801 rank-local-failure, ND804 desynchronised-ranks
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.crash.failure_claims import failure_claim

_UNREACHED = re.compile(
    r"client socket has (?:timed out|failed)|[Tt]imed out after \d+ seconds waiting for clients"
    r"|The server socket has failed to listen|[Aa]ddress already in use|NCCL error.*unhandled "
    r"system error|Socket Timeout|failed to connect|Connection refused|[Nn]etwork is unreachable"
    r"|Gloo connectFullMesh failed|environment variable (?:MASTER_ADDR|MASTER_PORT|RANK"
    r"|WORLD_SIZE) expected",
)

_TAKEN = re.compile(r"failed to listen|[Aa]ddress already in use")

_UNSET = re.compile(r"environment variable (?P<name>\w+) expected")


@rule(
    "ND805",
    "network",
    "critical",
    "ranks that do not find each other",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if (
        failure is None
        or not (failure.type.startswith("Dist") or failure.origin.startswith("distributed/"))
        or not _UNREACHED.search(failure.message)
    ):
        return
    unset = _UNSET.search(failure.message)
    if unset is not None:
        explanation = (
            f"init_process_group reads {unset['name']} from the environment, which a launcher sets."
        )
        fix = "torchrun --nproc-per-node N -m nanodoc run FILE.py:NAME"
    elif _TAKEN.search(failure.message):
        explanation = (
            "A different process listens on the port of the rendezvous: an earlier run that is "
            "still alive, or a second one on this machine."
        )
        fix = (
            "end the earlier run, or choose another port: torchrun --master-port 0, or "
            "--rdzv-endpoint=localhost:0"
        )
    else:
        explanation = (
            "A rank did not reach the others: one is missing, an address or interface is wrong, "
            "or a firewall blocks the connection."
        )
        fix = "torchrun --nproc-per-node N -m nanodoc net names the rank and the link"
    title = failure.first_line[:160]
    yield failure_claim(
        rule,
        evidence,
        title=title,
        explanation=explanation,
        fixes=[Fix(title=fix, confidence="likely")],
        specificity=Specificity.FAMILY,
    )
