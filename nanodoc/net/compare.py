"""What the ranks say about themselves, held side by side: versions, addresses, devices, clocks.
Nothing here imports torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from nanodoc.net.interfaces import fits, is_loopback
from nanodoc.net.model import FAILED, NOTE, Problem
from nanodoc.net.record import RankFacts
from nanodoc.text import ranges

# seconds; logs of several hosts can no longer be read side by side, and certificates begin to fail
_CLOCKS_APART = 5.0


def compared(
    facts: Sequence[RankFacts], backend: str | None, clocks: Mapping[int, float]
) -> tuple[Problem, ...]:
    """The problems that the facts alone show; `clocks` is how far each rank's clock is ahead of the
    reporter's, in seconds."""
    return (
        *_versions(facts, backend),
        *_asked_interfaces(facts),
        *_several_hosts(facts),
        *_one_network(facts),
        *_own_gpus(facts, backend),
        *_gpus_of_some(facts),
        *_clocks(facts, clocks),
    )


def _versions(facts: Sequence[RankFacts], backend: str | None) -> list[Problem]:
    found: list[Problem] = []
    for name, state, of in _COMPARED_VERSIONS:
        if name == "NCCL" and backend != "nccl":
            state = NOTE
        texts = {fact.rank: of(fact) for fact in facts}
        most, _ = Counter(texts.values()).most_common(1)[0]
        odd: dict[tuple[str, str], list[int]] = defaultdict(list)
        for fact in facts:
            if texts[fact.rank] != most:
                odd[fact.host, texts[fact.rank]].append(fact.rank)
        for (host, text), ranks in odd.items():
            found.append(
                Problem(
                    state=state,
                    text=f"{named(ranks)} ({host}) run{'s' if len(ranks) == 1 else ''} {name} "
                    f"{text}; the others run {most}",
                    help=f"install the same {name} on every host; check that every rank starts the "
                    "same python",
                )
            )
    return found


_COMPARED_VERSIONS: tuple[tuple[str, str, Callable[[RankFacts], str]], ...] = (
    ("torch", FAILED, lambda facts: facts.torch),
    ("NCCL", FAILED, lambda facts: facts.nccl or "none"),
    ("CUDA", NOTE, lambda facts: facts.cuda or "none"),
    ("Python", NOTE, lambda facts: facts.python),
    ("nanodoc", NOTE, lambda facts: facts.nanodoc),
)


def _asked_interfaces(facts: Sequence[RankFacts]) -> list[Problem]:
    """Variables that name an interface which isn't there, once for each host."""
    found: dict[tuple[str, str], Problem] = {}
    for fact in facts:
        for variable, value in fact.asked_interfaces.items():
            if fact.interfaces and not any(fits(variable, value, name) for name in fact.interfaces):
                found[fact.host, variable] = Problem(
                    state=FAILED,
                    text=f"{variable}={value} matches no interface of {fact.host} (it has "
                    f"{', '.join(fact.interfaces)})",
                    help=f"set {variable} to the interface that connects the hosts; if its name "
                    "differs between hosts, set it on each one",
                )
    return list(found.values())


def _several_hosts(facts: Sequence[RankFacts]) -> list[Problem]:
    """Addresses that mean something on their own host only; on one host they do no harm."""
    hosts = {fact.host for fact in facts}
    if len(hosts) < 2:
        return []
    found = []
    for host in sorted(hosts):
        here = [fact for fact in facts if fact.host == host]
        ranks, first = named([facts.rank for facts in here]), here[0]
        if is_loopback(first.address):
            found.append(
                Problem(
                    state=FAILED,
                    text=f"{ranks} ({host}) would announce {first.address}, a loopback address "
                    "that other hosts can't reach",
                    help="set MASTER_ADDR to an address or name that every host can reach (not "
                    "localhost), and GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the "
                    "interface that connects the hosts",
                )
            )
        elif is_loopback(first.resolves_to) and "GLOO_SOCKET_IFNAME" not in first.asked_interfaces:
            wanted = first.interface or "the interface that connects the hosts, such as eth0"
            found.append(
                Problem(
                    state=NOTE,
                    text=f"{host} resolves its hostname to {first.resolves_to}: gloo on {ranks} "
                    "would announce that address to other hosts",
                    help=f"export GLOO_SOCKET_IFNAME={wanted}, or put the host's real address "
                    "in its /etc/hosts",
                )
            )
    return found


def _one_network(facts: Sequence[RankFacts]) -> list[Problem]:
    networks: dict[str, list[RankFacts]] = defaultdict(list)
    for fact in facts:
        if fact.network is not None and not is_loopback(fact.address):
            networks[fact.network].append(fact)
    if len({fact.host for fact in facts}) < 2 or len(networks) < 2:
        return []
    said = "; ".join(
        f"{named([record.rank for record in there])} on {network} ({there[0].interface} on "
        f"{there[0].host})"
        for network, there in networks.items()
    )
    return [
        Problem(
            state=NOTE,
            text=f"the ranks use interfaces on different networks: {said}",
            help="if that is not intended, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the "
            "interface that connects the hosts",
        )
    ]


def _own_gpus(facts: Sequence[RankFacts], backend: str | None) -> list[Problem]:
    users: dict[tuple[str, str], list[RankFacts]] = defaultdict(list)
    for fact in facts:
        if fact.device_id is not None:
            users[fact.host, fact.device_id].append(fact)
    return [
        Problem(
            state=FAILED if backend == "nccl" else NOTE,
            text=f"{named([record.rank for record in there])} share one GPU ({there[0].device} on "
            f"{host}); NCCL refuses that",
            help="start at most one rank per GPU, and let each rank use the GPU with the index "
            "LOCAL_RANK",
        )
        for (host, _), there in users.items()
        if len(there) > 1
    ]


def _gpus_of_some(facts: Sequence[RankFacts]) -> list[Problem]:
    found = [
        Problem(
            state=FAILED,
            text=f"rank {fact.rank} ({fact.host}) can't use its GPU: {fact.device_error}",
            help="run nanodoc env on that host for details",
        )
        for fact in facts
        if fact.device_error is not None
    ]
    without = [fact for fact in facts if fact.device_id is None and fact.device_error is None]
    if without and len(without) < len(facts):
        text = (
            f"{named([fact.rank for fact in without])} ({without[0].host}) found no GPU, but other "
            "ranks did: all ranks use gloo"
        )
        found.append(
            Problem(
                state=NOTE,
                text=text,
                help="run nanodoc env on that host to see why; if that is intended, pass "
                "--backend gloo",
            )
        )
    return found


def _clocks(facts: Sequence[RankFacts], clocks: Mapping[int, float]) -> list[Problem]:
    away: dict[str, float] = {}
    for fact in facts:
        ahead = clocks.get(fact.rank, 0.0)
        if abs(ahead) > _CLOCKS_APART:
            away.setdefault(fact.host, ahead)
    return [
        Problem(
            state=NOTE,
            text=f"the clock on {host} differs from the first rank's by {ahead:+.0f} s",
            help="synchronise the clocks with NTP (check with timedatectl status)",
        )
        for host, ahead in away.items()
    ]


def named(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0–2, 5`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {ranges(sorted(ranks))}"
