"""A process that the kernel keeps from writing to files but in some folders: Linux's Landlock.
Nothing here imports torch.

The numbers are those of linux/landlock.h: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls, on every architecture
_VERSION = 1  # a flag of the first
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38
_WRITE_FILE, _FIRST_OF_FOLDERS, _LAST_OF_FOLDERS = 1, 4, 12  # remove …, make …
_REFER, _TRUNCATE = 13, 14
_CONNECT = 1  # over TCP
_WITH_TRUNCATE, _WITH_NETWORK = 3, 4  # versions


def can_be_kept_from_writing() -> bool:
    """The kernel has it, and truncating a file counts as writing to it (6.2)."""
    return _version() >= _WITH_TRUNCATE


def can_be_kept_from_connecting() -> bool:
    """And it can refuse connections over TCP (6.7)."""
    return _version() >= _WITH_NETWORK


def keep_from_writing(but_in: Iterable[str], *, connecting: bool = True) -> None:
    """From now on this thread, those that it starts, and their processes can neither make, change
    nor remove files outside of these folders, whatever code does it; without `connecting` they
    can't connect over TCP either, where the kernel knows how. What is open already stays so.
    It cannot be taken back. Raises `OSError`."""
    libc = _libc()
    version = _version()
    if libc is None or version < _WITH_TRUNCATE:
        raise OSError("this kernel can't restrict file writes")
    bits = [_WRITE_FILE, *range(_FIRST_OF_FOLDERS, _LAST_OF_FOLDERS + 1), _REFER, _TRUNCATE]
    handled = sum(1 << bit for bit in bits)
    network = 1 << _CONNECT if not connecting and version >= _WITH_NETWORK else 0
    attributes = (ctypes.c_uint64 * 2)(handled, network)  # kernels take zeros they don't know
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    rules = libc.syscall(_CREATE, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    if rules < 0:
        raise _error()
    try:
        for folder in but_in:
            _allow(libc, rules, folder, handled)
        if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT, rules, 0):
            raise _error()
    finally:
        os.close(rules)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _allow(libc: ctypes.CDLL, rules: int, folder: str, handled: int) -> None:
    try:
        parent = os.open(folder, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined,unused-ignore]  # Linux
    except FileNotFoundError:
        return
    try:
        rule = _Beneath(handled, parent)
        if libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)):
            raise _error()
    finally:
        os.close(parent)


def _version() -> int:
    libc = _libc()
    if libc is None:
        return 0
    found: int = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(found, 0)


def _libc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
