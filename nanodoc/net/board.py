"""The store as a notice board: every rank pins up its record, the reporter reads them all.

The board has a connection of its own, so that a collective that hangs in the process group's store
never blocks it.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from datetime import timedelta

from nanodoc.instrument.torch_private import PrefixStore, TCPStore
from nanodoc.net.launch import Launch
from nanodoc.net.record import RankRecord

_RETRY_SECONDS = 0.2
# a store that is reachable answers in milliseconds; this bounds how long a lost one blocks
_ANSWER_SECONDS = 5


class NoRendezvousError(Exception):
    """The store at MASTER_ADDR:MASTER_PORT can't be reached; `str(error)` says how far it got."""


class Board:
    """The notices of one run."""

    def __init__(self, store: TCPStore, launch: Launch) -> None:
        self._kept = store
        store.set_timeout(timedelta(seconds=_ANSWER_SECONDS))
        self._store = PrefixStore(f"nanodoc-net/{launch.attempt}", store)
        self._rank, self._known = launch.rank, set[int]()

    def publish(self, record: RankRecord) -> None:
        self._store.set(f"rank/{self._rank}", record.to_json())

    def read(self, ranks: Iterable[int]) -> dict[int, RankRecord]:
        """The records of those of `ranks` that have published one."""
        wanted = list(ranks)
        for rank in wanted:
            # a get of a key that isn't there would wait for it
            if rank not in self._known and self._store.check([f"rank/{rank}"]):
                self._known.add(rank)
        there = [rank for rank in wanted if rank in self._known]
        texts = self._store.multi_get([f"rank/{rank}" for rank in there]) if there else []
        return {rank: RankRecord.from_json(text) for rank, text in zip(there, texts, strict=True)}

    def announce(self, name: str, value: object) -> None:
        self._store.set(name, json.dumps(value))

    def announced(self, name: str) -> object | None:
        return json.loads(self._store.get(name)) if self._store.check([name]) else None

    def claim(self, name: str) -> bool:
        """True for the first rank that asks for `name`."""
        return self._store.compare_set(name, "", str(self._rank)).decode() == str(self._rank)


def connect(launch: Launch, timeout: float, *, host: bool = False) -> TCPStore:
    """A connection to the run's store; with `host`, the store itself.

    Raises:
        NoRendezvousError: nothing at that address answered within `timeout` seconds, or it isn't a
        store.
    """
    if not host:
        _wait_for_port(launch, timeout)
    try:
        return TCPStore(
            launch.address,
            launch.port,
            is_master=host,
            wait_for_workers=False,
            timeout=timedelta(seconds=max(timeout, 1.0)),
        )
    except RuntimeError as error:  # torch's store errors are all of these
        said = " ".join(str(error).split())
        if host and "EADDRINUSE" in said:
            raise NoRendezvousError(
                f"port {launch.port} is in use on this host; set MASTER_PORT to a free one"
            ) from None
        what = "rank 0 can't open the store" if host else "the server there is not a torch TCPStore"
        raise NoRendezvousError(f"{what} at {launch.address}:{launch.port}: {said[:200]}") from None


def _wait_for_port(launch: Launch, timeout: float) -> None:
    """Tries plain connections first: torch's own client fills stderr with warnings while it
    waits."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            left = max(deadline - time.monotonic(), 0.1)
            socket.create_connection((launch.address, launch.port), timeout=left).close()
            return
        except socket.gaierror:
            said = f"the name {launch.address} can't be resolved on this host"
        except TimeoutError:
            said = (
                "connections time out: a firewall blocks them, or this host can't reach that "
                "address"
            )
        except OSError as error:
            said = (
                f"{error.strerror or error}: rank 0 was not started, has ended, or listens on a "
                "different port"
            )
        if time.monotonic() + _RETRY_SECONDS >= deadline:
            raise NoRendezvousError(
                f"no answer from rank 0 at {launch.address}:{launch.port} within {timeout:g} s "
                f"({said})"
            )
        time.sleep(_RETRY_SECONDS)
