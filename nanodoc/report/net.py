"""The report of `nanodoc net` for a reader, and its guide: how to launch over several hosts."""

from __future__ import annotations

from rich.text import Text

from nanodoc._version import __version__
from nanodoc.net.compare import named
from nanodoc.net.model import (
    FAILED,
    NOT_REACHED,
    NOTE,
    OK,
    WAITED,
    CheckOutcome,
    NetReport,
    Problem,
    RankOutcome,
)
from nanodoc.net.nccl_log import meaning
from nanodoc.report.terminal import printed
from nanodoc.strict_json import written
from nanodoc.text import clean, seconds

_STYLES = {
    OK: "green",
    FAILED: "bold red",
    WAITED: "yellow",
    NOTE: "bold yellow",
    NOT_REACHED: "dim",
}
_MARKS = {OK: "✓", FAILED: "✗", NOT_REACHED: "·"}
_WIDTH = 120
_LONGEST_HOST = 24
_MOST_SAID = 2


def render_json(report: NetReport) -> str:
    """Schema 1 of this command's own."""
    return written(report.as_dict()) + "\n"


def render(report: NetReport, *, color: bool = False) -> str:
    """A line for each rank, one for each check, the speed of all_reduce, then what was noticed and
    the verdict."""
    out = Text()
    hosts = f" on {len(report.hosts)} host{'' if len(report.hosts) == 1 else 's'}"
    ranks = f"{report.world_size} rank{'' if report.world_size == 1 else 's'}"
    out.append(
        f"nanodoc {report.nanodoc} · net · {ranks}{hosts} · {report.backend or 'no backend yet'} "
        f"· timeout {report.timeout:g} s\n",
        "bold",
    )
    for rank in report.ranks:
        out.append_text(_rank(rank, report))
    out.append("\n")
    for check in report.checks:
        out.append_text(_check(check, report.world_size))
    out.append_text(_speeds(report))
    for problem in report.problems:
        out.append_text(_problem(problem))
    out.append_text(_log(report))
    return printed(out.append_text(_verdict(report)), _WIDTH, color)


def _rank(rank: RankOutcome, report: NetReport) -> Text:
    wide = len(str(report.world_size - 1))
    longest = min(max((len(host) for host in report.hosts), default=1), _LONGEST_HOST)
    facts = rank.facts
    host = clean(facts.host)[:_LONGEST_HOST] if facts is not None else "?"
    out = Text(f"  rank {rank.rank:>{wide}}  {host:<{longest}}  ")
    if facts is not None:
        interface = f" ({clean(facts.interface)})" if facts.interface else ""
        out.append(
            f"pid {facts.pid:<7} {clean(facts.device)}  "
            f"{clean((facts.address or 'no address') + interface)}  "
        )
    # "FAILED in ring: …", "waited in ring for …", but "FAILED: its process ended"
    colon = "" if rank.text.startswith(("in ", "for ", "before ")) else ":"
    return out.append(rank.state, _STYLES[rank.state]).append(f"{colon} {clean(rank.text)}\n")


def _check(check: CheckOutcome, world_size: int) -> Text:
    out = Text("  ").append(_MARKS[check.state], _STYLES[check.state]).append(f" {check.name:<18}")
    if check.quickest is not None and check.slowest is not None:
        out.append(f"{seconds(check.quickest):>8}")
        if world_size > 1:
            out.append(f" … {seconds(check.slowest)}")
        if check.ranks_through < world_size:
            out.append(f"  ({check.ranks_through} of {world_size} ranks passed)")
    else:
        out.append("not reached" if check.state == NOT_REACHED else "no rank passed", "dim")
    return out.append("\n")


def _speeds(report: NetReport) -> Text:
    out = Text()
    if not report.speeds:
        return out
    out.append("\n  all_reduce      time   algorithm         bus\n")
    for speed in report.speeds:
        size = f"{speed.size / 2**20:g} MiB" if speed.size >= 2**20 else f"{speed.size} B"
        if speed.seconds is None:
            out.append(
                f"  {size:>10}  skipped: it would take more than half of the timeout\n", "dim"
            )
            continue
        out.append(f"  {size:>10}  {seconds(speed.seconds):>8}")
        out.append(
            "  the latency\n"
            if speed.size < 2**20
            else f"  {_rate(speed.algorithm_bandwidth)}  "
            f"{_rate(speed.bus_bandwidth(report.world_size))}\n"
        )
    return out


def _rate(bandwidth: float | None) -> str:
    return f"{(bandwidth or 0.0) / 1e9:>5.2f} GB/s"


def _problem(problem: Problem) -> Text:
    out = (
        Text("\n")
        .append(problem.state, _STYLES[problem.state])
        .append(f": {clean(problem.text)}\n")
    )
    if problem.help is not None:
        out.append("  = ").append("help", "bold cyan").append(f": {clean(problem.help)}\n")
    return out


def _log(report: NetReport) -> Text:
    out = Text()
    if not report.verbose:
        return out
    if report.log:
        out.append("\nNCCL log (one line of each kind):\n")
    for line in report.log:
        out.append(f"  {clean(line)}\n", "dim").append(f"    → {meaning(line) or ''}\n")
    if not report.log:
        out.append(
            "\nNCCL wrote no log"
            + (": the backend was gloo\n" if report.backend == "gloo" else "\n")
        )
    return out


def _verdict(report: NetReport) -> Text:
    out = Text("\n")
    if report.healthy:
        out.append("verdict: healthy", "bold green").append(
            f" ({len(report.ranks)} of {report.world_size} ranks OK)"
        )
        if len(report.hosts) < 2:
            out.append(
                "; next: nanodoc net without a launcher prints how to launch on several hosts"
            )
        return out.append("\n")
    said: dict[str, list[int]] = {}
    for rank in report.ranks:
        if rank.state == FAILED:
            said.setdefault(clean(rank.text).partition(" (last seen")[0], []).append(rank.rank)
    parts = [f"{named(ranks)}: {text}" for text, ranks in said.items()]
    parts += [clean(problem.text) for problem in report.problems if problem.state == FAILED][
        : 0 if parts else 1
    ]
    more = f"; and {len(parts) - _MOST_SAID} more" if len(parts) > _MOST_SAID else ""
    parts = parts or ["ended before the checks were done"]
    out.append("verdict: failed", "bold red").append(f" ({'; '.join(parts[:_MOST_SAID])}{more})")
    if report.backend == "nccl" and not report.verbose:
        out.append("; next: add --verbose to see NCCL's log explained")
    return out.append("\n")


def guide(host: str, port: int) -> str:
    """How to run the check: one host, several hosts, SLURM, and when to look at NCCL's log."""
    return f"""nanodoc {__version__} · net: do all ranks reach each other, and how fast?

This process was not launched as a rank (RANK is not set). Use one of these:

  several processes on this host
    torchrun --nproc-per-node 2 -m nanodoc net        # as many as there are GPUs; without GPUs gloo is used
    nanodoc net --nproc 2                             # the same without torchrun

  several hosts: run the same line on each, at about the same time; this host is {host}
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint {host}:{port} --rdzv-id check -m nanodoc net

  SLURM: sbatch with
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=8
    #SBATCH --time=00:05:00
    head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint "$head:{port}" --rdzv-id "$SLURM_JOB_ID" -m nanodoc net
    (or, with --ntasks-per-node=8 and a GPU for each task: srun nanodoc net)

When it fails:
  a rank never arrives     a firewall, a wrong address, or a host where it was not started: the report names rank and host
  ranks don't connect      export GLOO_SOCKET_IFNAME=… and NCCL_SOCKET_IFNAME=…, the interface between the hosts (ip -br addr)
  NCCL hangs or is slow    --verbose sets NCCL_DEBUG=INFO and explains its lines: interface, InfiniBand or sockets, P2P or
                           shared memory. Set it in your training when init or the first collective fails; it costs nothing later
  rehearse a failure       --drill 1:die@all_reduce, 1:hang@barrier, 1:slow@ring, 1:wrong@all_gather or 1:version
"""  # noqa: E501 - a table for the terminal
