"""A plain TCP connection between ranks, before any process group: it tells which pair of hosts
can't talk, and who answers instead."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from nanodoc.net.record import RankFacts

# beyond, ranks at distances 1, 2, 4, …: every host is still tried from several others
_ALL_PAIRS_UP_TO = 16
_HELLO_BYTES = 512


class Door:
    """A port on which this rank says who it is to whoever connects; both gloo and NCCL need such
    ports to be open."""

    def __init__(self) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._server = socket.create_server(
            ("", 0), family=family, dualstack_ipv6=dual, backlog=512
        )
        self.port = int(self._server.getsockname()[1])

    def open(self, facts: RankFacts) -> None:
        threading.Thread(target=self._answer, args=(_hello(facts),), daemon=True).start()

    def _answer(self, hello: bytes) -> None:
        with contextlib.suppress(OSError):  # closed: the check is over
            while True:
                visitor, _ = self._server.accept()
                with contextlib.suppress(OSError), visitor:
                    visitor.sendall(hello)

    def close(self) -> None:
        self._server.close()


def _hello(facts: RankFacts) -> bytes:
    return (
        f"nanodoc rank {facts.rank} pid {facts.pid} on {facts.host}"[: _HELLO_BYTES - 1].encode()
        + b"\n"
    )


def peers_of(rank: int, world_size: int) -> list[int]:
    """Whom `rank` connects to."""
    if world_size <= _ALL_PAIRS_UP_TO:
        return [other for other in range(world_size) if other != rank]
    distances = [1 << power for power in range(world_size.bit_length()) if 1 << power < world_size]
    return [(rank + distance) % world_size for distance in distances]


def try_links(rank: int, everyone: Mapping[int, RankFacts], timeout: float) -> str | None:
    """What is wrong with the connections from `rank` to the others, None if nothing is."""
    peers = peers_of(rank, len(everyone))
    if not peers:
        return None
    with ThreadPoolExecutor(max_workers=_ALL_PAIRS_UP_TO) as pool:
        said = [
            text
            for text in pool.map(lambda other: _try_link(everyone[other], timeout), peers)
            if text is not None
        ]
    return "; ".join(said) or None


def _try_link(other: RankFacts, timeout: float) -> str | None:
    where = f"rank {other.rank} ({other.host}, {other.address} port {other.port})"
    if other.address is None:
        return f"rank {other.rank} ({other.host}) has no local address that reaches MASTER_ADDR"
    try:
        with (
            socket.create_connection((other.address, other.port), timeout=timeout) as link,
            link.makefile("rb") as lines,
        ):
            heard = lines.readline(_HELLO_BYTES)
    except TimeoutError:
        return (
            f"no connection to {where}: it timed out (a firewall, or an address on a different "
            "network)"
        )
    except OSError as error:
        return f"no connection to {where}: {error.strerror or error}"
    if heard != _hello(other):
        # a bridge such as docker0 has the same address on every host: one ends up talking to
        # oneself
        return (
            f"a different process answers at the address of {where}: "
            f"{heard.decode(errors='replace').strip()[:100] or 'it sent nothing'}"
        )
    return None
