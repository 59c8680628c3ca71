"""Streams in an exchange: which one the consumer works on, and who orders it after the producer.

Only CUDA memory has them here. A producer is asked through `__dlpack__` with the consumer's stream
where it has no other way; where its current stream is known (an exchange table, CuPy), nothing is
asked for, and the core puts an event between the two streams, if they differ.
"""

from __future__ import annotations

from dlbridge._core import native
from dlbridge.cuda.driver import NONE
from dlbridge.device import CUDA_TYPES
from dlbridge.errors import ExchangeError
from dlbridge.exchange.context import ExchangeContext, Policy

_CPU = 1


def has_streams(device: tuple[int, int]) -> bool:
    """Return whether work on memory of a device, (type, id), is ordered here by streams."""
    return device[0] in CUDA_TYPES


def consumer_stream(policy: Policy, context: ExchangeContext, index: int) -> int:
    """Return the stream on which the consumer works on a CUDA device, or -1 for no order."""
    if policy.stream is None:
        return context.stream_of(index)
    refuse_zero(policy)
    return policy.stream


def refuse_zero(policy: Policy) -> None:
    """Refuse stream 0, which could mean either default stream.

    Raises:
        ExchangeError: with reason "stream".
    """
    if policy.stream == 0:
        raise ExchangeError(
            "stream",
            f"{policy.call}: stream 0 is ambiguous: pass 1 for the legacy default stream or 2 for "
            "the per-thread default stream",
        )


def stream_of_word(tensor: native.TensorBase, policy: Policy) -> int | None:
    """Return the stream that "current" or "none" means for `__dlpack__` of a tensor."""
    if not has_streams(tensor._device_pair):
        return None
    if policy.stream is None:
        return native.cuda_current_stream(tensor._device_pair[1])
    return policy.stream


def asked_stream(policy: Policy, context: ExchangeContext, device: tuple[int, int]) -> int | None:
    """Return the stream to ask a producer for through `__dlpack__`; None to leave it out."""
    if has_streams(device):
        return consumer_stream(policy, context, device[1])
    return None if device[0] == _CPU else policy.stream


def note_asked(tensor: native.TensorBase, stream: int | None) -> None:
    """Note that the producer made its memory ready for `stream`."""
    if stream is not None and has_streams(tensor._device_pair):
        native.cuda_set_streams(tensor, stream, NONE)


def note_producer(tensor: native.TensorBase, stream: int, kept: object = None) -> None:
    """Note that the producer works on `stream` and was not asked to order anything.

    `kept` is what the stream needs to live, for as long as the memory.
    """
    if has_streams(tensor._device_pair):
        native.cuda_set_streams(tensor, stream, stream)
        if kept is not None:
            native.cuda_keep(tensor, kept)


def settle(
    tensor: native.TensorBase, policy: Policy, context: ExchangeContext, *, is_taken: bool = False
) -> None:
    """Note the consumer's stream in the context.

    With `is_taken`, where no consumer is entered who does so, a stream that was named waits for the
    contents. The caller who names one starts the work on it himself: the memory goes back when the
    work enqueued by then has finished.
    """
    device = tensor._device_pair
    if not has_streams(device):
        return
    stream = consumer_stream(policy, context, device[1])
    context.stream, context.ordered = stream, stream != NONE
    if is_taken and policy.stream is not None and not context.dry_run:
        native.cuda_begin(tensor, stream, False)
        if policy.kept is not None:
            native.cuda_keep(tensor, policy.kept)


class Exporter:
    """The producer that a consumer calls `__dlpack__` of, with its own stream.

    Args:
        tensor, policy, context: of the exchange.
        is_legacy: the consumer takes legacy capsules only.
        waits: the consumer makes the stream that it passes wait for others of its own, so that
            only this stream may be used.
        kept: an object to keep alive until the consumer gives the memory back, such as its stream.
        worker: the stream on which the consumer's kernels run, where it orders that one after the
            stream that it passes, if it passes one; 0: they are the same.
    """

    __slots__ = ("_context", "_is_legacy", "_kept", "_policy", "_tensor", "_waits", "_worker")

    def __init__(
        self,
        tensor: native.TensorBase,
        policy: Policy,
        context: ExchangeContext,
        *,
        is_legacy: bool = False,
        waits: bool = False,
        kept: object = None,
        worker: int = 0,
    ) -> None:
        self._worker = worker
        self._tensor = tensor
        self._policy = policy
        self._context = context
        self._is_legacy = is_legacy
        self._waits = waits
        self._kept = kept

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a capsule of the memory, in order for the stream that is asked with."""
        versioned = not self._is_legacy and max_version is not None and max_version[0] >= 1
        to = self._choose(stream)
        return self._tensor._capsule(versioned, 0, True, to, self._kept, self._worker)

    def _choose(self, asked: int | None) -> int:
        wanted = self._policy.stream
        if not has_streams(self._tensor._device_pair) or wanted == NONE:
            return NONE
        if self._waits or wanted is None:
            wanted = asked or self._worker or 1
        self._context.stream = wanted
        return self._context.stream

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return what the tensor says."""
        return self._tensor.__dlpack_device__()
