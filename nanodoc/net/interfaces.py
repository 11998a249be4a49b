"""The network interfaces of this host and the addresses it would offer to other ranks; standard
library only."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from dataclasses import dataclass

_GET_ADDRESS, _GET_NETMASK = 0x8915, 0x891B  # SIOCGIFADDR and SIOCGIFNETMASK of linux/sockios.h

# lead to containers of this host, not to other hosts
BRIDGES = ("docker", "br-", "veth", "virbr", "cni", "flannel")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """An interface with an IPv4 address, and the network it belongs to, such as 10.0.0.0/16."""

    name: str
    address: str
    network: str


def interfaces() -> tuple[Interface, ...]:
    """The interfaces of this host; () where the system doesn't say (only Linux is asked)."""
    if not sys.platform.startswith("linux"):
        return ()
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                address, mask = (
                    _asked(probe, name, request) for request in (_GET_ADDRESS, _GET_NETMASK)
                )
                found.append(
                    Interface(
                        name=name,
                        address=address,
                        network=str(ipaddress.ip_network(f"{address}/{mask}", strict=False)),
                    )
                )
    return tuple(found)


def _asked(probe: socket.socket, name: str, request: int) -> str:
    import fcntl  # not on every platform

    answer = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


def address_towards(host: str, port: int) -> str | None:
    """The address of the interface that leads to `host`, None where none does. Connecting a
    datagram socket sends nothing."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, target in socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
    return None


def resolved(host: str) -> str | None:
    """The first address that `host` resolves to here."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def fits(variable: str, value: str, name: str) -> bool:
    """Whether `variable` lets the interface `name` be used: gloo takes a list of names, NCCL one of
    prefixes, `=` for exact names and `^` for those to be left out."""
    parts = [part for part in value.lstrip("^=").split(",") if part]
    if not variable.startswith("NCCL"):
        return name in parts
    exact = value.startswith(("=", "^="))
    return any(
        name == part if exact else name.startswith(part) for part in parts
    ) is not value.startswith("^")
