"""Exceptions that say more by what happened than by where: told by their messages. Nothing here
imports torch."""

from __future__ import annotations

import re

from nanodoc.facts.cuda_errors import CONTEXT_LOST, names_cuda
from nanodoc.facts.failure import Failure

_WORKER_DIED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: (?P<signal>[\w ]+)"
    r"|exited unexpectedly)"
)
# Level Zero's (Intel) and CANN's (Ascend) errors after which a device answers no more calls of this
# process.
_DEVICE_LOST = re.compile(
    CONTEXT_LOST + r"|ERROR_DEVICE_LOST|vector core exception|aicore exception|aicore timeout"
)
# torch.AcceleratorError of a maker whose messages are not known, for what leaves the device as it
# was.
_DEVICE_STAYS = re.compile(
    r"invalid (?:device|argument|configuration|resource|value|pitch)|out of (?:bounds|range|memory)"
    r"|not supported|busy or unavailable|not initialized|no such device"
)
_MEMORY = re.compile(
    r"can't allocate memory|CUDA out of memory|out of memory|Unable to allocate [\d.]+ .iB"
    r"|std::bad_alloc|Storage size calculation overflowed"
)
_RAGGED = re.compile(
    r"stack expects each tensor to be equal size|stack\(\): expected|each element in list of batch "
    r"should be of equal size|batch must contain tensors|Trying to resize storage that is not "
    r"resizable|all input arrays must have the same shape|setting an array element with a sequence"
    r"|[Ss]izes of tensors must match|expected sequence of length \d+ at dim"
)
_PEER = re.compile(
    r"[Cc]onnection (?:was )?(?:closed|reset|refused) by (?:remote )?peer|Connection reset"
    r"|[Tt]imed out waiting|timeout caused pair closure|NCCL communicator was aborted|collective "
    r"operation timeout|remote process (?:has )?(?:exited|terminated)|ncclRemoteError|[Ss]ocket "
    r"[Tt]imeout|gloo.*Broken pipe|Wait timeout|Connect timeout|Read error .* Connection|Rank \d+ "
    r"(?:failed|successfully reached monitoredBarrier)|failed to pass monitoredBarrier"
)


def worker_died(failure: Failure) -> re.Match[str] | None:
    """A worker process of the data loader ended without an exception: the match names its signal,
    where torch knows it."""
    return _WORKER_DIED.search(failure.message)


def says_worker_died(error: BaseException) -> bool:
    """The same of an exception: torch's handler of SIGCHLD raises it wherever the process is, in
    our code as well."""
    return isinstance(error, RuntimeError) and _WORKER_DIED.search(str(error)) is not None


def is_told_anywhere(error: BaseException) -> bool:
    """An error of the training's that is raised wherever the process is: of its device, or of a
    worker of its loader."""
    lost = isinstance(error, RuntimeError) and says_device_is_lost(error)
    return lost or says_worker_died(error)


def device_is_lost(failure: Failure) -> bool:
    """The device answers this process no more after this error, so that nothing more can be learnt
    from it. CUDA's unrecoverable errors are known; of another maker's `AcceleratorError`, which
    torch raises for what a device reports late, those that leave it as it was are told by their
    messages."""
    return _is_lost(failure.type, failure.message)


_INDEX = re.compile(
    r"\bind(?:ex|ices)|out of (?:bounds|range)|[Cc]lass values|\btarget", re.IGNORECASE
)


def about_an_index(failure: Failure) -> bool:
    """An index or a label can be what the exception is about. Code may catch an IndexError and fail
    at something else later."""
    return (
        failure.type == "IndexError"
        or _INDEX.search(failure.message) is not None
        or device_is_lost(failure)
    )


KEPT_FROM_KERNEL = "(seen before the device's assert)"
"""The end of our own IndexError, raised in place of a kernel that would lose the device."""


def kept_from_kernel(failure: Failure) -> bool:
    """An index out of range was seen before the kernel got it; run again, the step would get there,
    and lose the device."""
    return failure.type == "IndexError" and failure.message.endswith(KEPT_FROM_KERNEL)


def says_device_is_lost(error: BaseException) -> bool:
    """The same of an exception. Devices report errors late: whatever waits for the device next
    raises it, a look of ours as well."""
    return _is_lost(type(error).__name__, str(error))


def _is_lost(kind: str, message: str) -> bool:
    if kind == "AcceleratorError" and not names_cuda(message):
        return _DEVICE_STAYS.search(message) is None
    return _DEVICE_LOST.search(message) is not None


def out_of_memory(failure: Failure) -> bool:
    """No more memory could be had, on the host or on the device; or a size was asked for that no
    memory has."""
    told = (
        failure.type in ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
        or _MEMORY.search(failure.message) is not None
    )
    return told and failure.raised_by_torch


def is_ragged(failure: Failure) -> bool:
    """The samples of a batch do not fit together, as the message says."""
    return (
        failure.phase == "data"
        and failure.collating
        and _RAGGED.search(failure.message) is not None
    )


def peer_left(failure: Failure) -> bool:
    """Another rank is gone or did not answer: an effect of whatever became of it. A broken pipe of
    the user's own is none."""
    return (
        failure.raised_by_torch
        and not failure.type.endswith("PipeError")
        and _PEER.search(failure.message) is not None
    )
