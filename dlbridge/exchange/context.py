"""An exchange as it goes on: its policies, the way that it takes, and the receipt in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from copy import copy as copied
from operator import index
from typing import Any, Literal, NoReturn, TypedDict, TypeVar

import numpy as np

from dlbridge._core import native
from dlbridge.cuda.driver import NONE, as_stream
from dlbridge.device import Device
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.text import did_you_mean, escape_controls

T = TypeVar("T")


# ---- the policies: what may be copied, shared, detached, and what must be refused ---------------

Readonly = Literal["respect", "share", "copy"]
Immutable = Literal["share", "respect", "copy"]
Grad = Literal["refuse", "detach"]
Layout = Literal["any", "contiguous"]
Narrow = Literal["checked"]


class Policies(TypedDict, total=False):
    """The keywords of `convert`, for type checkers; `Policy` says what they mean."""

    device: object
    copy: bool | None
    readonly: Readonly
    immutable: Immutable
    grad: Grad
    layout: Layout | None
    narrow: Narrow | None
    dtype: object
    stream: Any


class Policy:
    """One exchange's policies, checked.

    Attributes:
        device: the Device the result must be on, or None for where the data is.
        own_device: what `device` was given as where that names one device and not only a kind of
            memory: "cpu:0", or a device object of a framework, but not "cpu"; else None.
        copy: None (share, copy only where it must), False (share or refuse), True (always copy).
        readonly: for memory flagged read-only that the consumer cannot protect: "respect" refuses,
            "share" shares it anyway, "copy" copies it.
        immutable: for values of JAX and TensorFlow, which consumers get as read-only where they can
            protect memory: "share" shares it with the others as well, "respect" leaves these to
            `readonly`, "copy" copies it for all of them, so that the result may be written.
        grad: "refuse" a tensor that requires a gradient, or "detach" it.
        layout: None, or "contiguous" for compact row-major memory, copied if it must; "any" is kept
            as None.
        narrow: None refuses 64-bit numbers where the consumer has none; "checked" copies them to 32
            bits, complex128 to complex64. Integers must fit, finite values must stay finite; the
            rest is rounded.
        dtype: the DType that the result must have, by a copy if necessary, or None for that of the
            data. Values are converted as by `Tensor.__setitem__`: towards the wider kind only
            (bool, integer, real, complex). Integers must keep their value, and finite numbers must
            stay finite; other numbers are rounded.
        stream: the stream on which the consumer works, for memory of a device that has streams: its
            number, -1 for no order at all, or None for the consumer's current one.
        kept: the object that `stream` was given as, which keeps the stream alive, or None.
        call: what was called, for error texts.
    """

    __slots__ = (
        "call",
        "copy",
        "device",
        "dtype",
        "grad",
        "immutable",
        "kept",
        "layout",
        "narrow",
        "own_device",
        "readonly",
        "stream",
    )

    def __init__(
        self,
        call: str,
        *,
        device: object = None,
        copy: bool | None = None,
        readonly: Readonly = "respect",
        immutable: Immutable = "share",
        grad: Grad = "refuse",
        layout: Layout | None = None,
        narrow: Narrow | None = None,
        dtype: object = None,
        stream: Any = None,
    ) -> None:
        self.call = call
        self.copy = _check_copy(call, copy)
        self.readonly = readonly
        self.immutable = immutable
        self.grad = grad
        self.layout = layout
        self.narrow = narrow
        self.stream = _check_stream(call, stream)
        self.kept = None if stream is None or isinstance(stream, (int, str)) else stream
        for name, choices in native.POLICY_WORDS.items():
            value: object = getattr(self, name)
            if not (value is None or isinstance(value, str)) or value not in choices:
                _refuse(call, name, choices, value)
        if layout == "any":
            self.layout = None
        self.device = None if device is None else _as_device(call, device)
        self.own_device = device if self.device is not None and _is_one(device) else None
        self.dtype = None if dtype is None else _as_dtype(call, dtype)

    def staying_on(self, device: Any) -> Policy:
        """Return this policy for a result on one of the host's devices; None names none."""
        if device is None:
            return self
        made = copied(self)
        made.device, made.own_device = _as_device(self.call, device), device
        return made


def _is_one(device: Any) -> bool:
    """Return whether a device was given with its number, or as an object of a framework."""
    if isinstance(device, str):
        return device.rpartition(":")[2].isdecimal()
    if isinstance(device, (Device, tuple)):
        return Device(device).id != 0
    return getattr(device, "index", 0) is not None  # torch.device("cpu") has none


def _as_dtype(call: str, dtype: object) -> DType:
    try:
        return as_dtype(dtype)
    except (ArgumentError, UnsupportedTypeError) as error:
        raise type(error)(f"{call}: dtype={dtype!r}: {error}") from None


def _as_device(call: str, device: object) -> Device:
    try:
        return Device(device)
    except (ArgumentError, UnsupportedTypeError) as error:
        raise type(error)(f"{call}: device={device!r}: {error}") from None


def _check_copy(call: str, copy: Any) -> bool | None:
    """Return `copy`; by identity, since 1 == True, and an array equals nothing in particular."""
    if isinstance(copy, np.bool_):
        copy = bool(copy)
    if copy is not None and copy is not True and copy is not False:
        _refuse(call, "copy", (None, True, False), copy)
    return copy


def _check_stream(call: str, stream: Any) -> int | None:
    """Return the number of a stream; 0 is refused only where there is CUDA memory."""
    if stream is None or (isinstance(stream, str) and stream == "current"):
        return None
    if isinstance(stream, str) and stream == "none":
        return NONE
    if hasattr(stream, "__index__") and not isinstance(stream, bool) and index(stream) in (NONE, 0):
        return index(stream)
    try:
        return as_stream(stream)
    except ArgumentError:
        raise ArgumentError(
            f'{call}: stream must be "current", "none", the integer of a stream as in __dlpack__ '
            f"or the stream of a framework, got {stream!r}"
            + did_you_mean(stream, ("current", "none") if isinstance(stream, str) else ())
        ) from None


def _refuse(call: str, name: str, choices: tuple[object, ...], value: object) -> NoReturn:
    allowed = ", ".join(map(repr, choices))
    words = [word for word in choices if isinstance(word, str)]
    nearest = did_you_mean(value, words) if isinstance(value, str) else ""
    raise ArgumentError(f"{call}: {name} must be one of {allowed}, got {value!r}{nearest}")


POLICIES = tuple(Policy.__init__.__kwdefaults__ or ())


# ---- the way: from whom to whom, by which entry points, and who copied why ----------------------


class DryRunEnd(Exception):  # noqa: N818  (no error: it ends a dry run where a copy would begin)
    """Raised in a dry run in place of a copy."""


class ExchangeContext:
    """The state of one exchange: the two sides, the route, and who copied why."""

    __slots__ = (
        "copied_by",
        "data_ptr_in",
        "dry_run",
        "ordered",
        "route",
        "source",
        "stream",
        "stream_of",
        "target",
        "why",
    )

    def __init__(
        self,
        source: str,
        target: str,
        *,
        dry_run: bool = False,
        stream_of: Callable[[int], int] = native.cuda_current_stream,
    ) -> None:
        self.source = source
        self.target = target
        self.dry_run = dry_run
        self.stream_of = stream_of  # the consumer's current stream on a CUDA device
        self.stream: int | None = None
        self.ordered: bool | None = None
        self.route: list[str] = []
        self.copied_by: str | None = None
        self.why: str | None = None
        self.data_ptr_in: int | None = None

    def copying(
        self, by: str, why: str, copy: Callable[[], T], planned: Callable[[], T] | None = None
    ) -> T:
        """Note a copy, after those before it, and make it.

        A dry run continues with the result of `planned`, or ends here without it.
        """
        self.copied_by = by if self.copied_by is None else f"{self.copied_by}, {by}"
        self.why = why if self.why is None else f"{self.why}, {why}"
        if not self.dry_run:
            return copy()
        if planned is None:
            self.route.append("copy")
            raise DryRunEnd
        return planned()


# ---- receipts -----------------------------------------------------------------------------------


class Receipt(native.Record):
    """The record of one exchange, made or only planned.

    Attributes:
        source, target: names of the frameworks ("dlbridge" for a Tensor).
        route: the entry points taken, e.g. "C exchange table -> NumPy C API".
        shared: whether the result is the source's memory.
        copied_by: who copied ("dlbridge", "torch", ...), or None; several in their order.
        why: the reason code of the copy, or None; one for each in `copied_by`.
        data_ptr_in, data_ptr_out: address of the first element before and after. `data_ptr_in` is
            None when the producer had to copy, `data_ptr_out` in a receipt of `explain`.
        nbytes: size in bytes; shape in elements; dtype and device of the result.
        stream: the stream of a CUDA device on which the consumer works, as in `__dlpack__`; -1
            where none was wanted, None for memory without streams.
        ordered: whether work on `stream` comes after the producer's work on the memory; None for
            memory without streams.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Receipt], tuple[tuple[object, ...]]]:
        return type(self), (self.fields(),)

    def __repr__(self) -> str:
        memory = "shared" if self.shared else f"copied by {self.copied_by} ({self._reason()})"
        order = "" if self.ordered is None else f", for {self._describe_stream()}"
        text = f"<Receipt {self.source} -> {self.target}: {memory}{order}, via {self.route}>"
        return escape_controls(text)

    def _reason(self) -> str | None:
        if self.source == "numpy" and self.why == "alignment":
            return "alignment; arrays made under dlbridge.aligned_numpy() are shared"
        return self.why

    def _describe_stream(self) -> str:
        return f"stream {self.stream:#x}" if self.ordered else "no stream"


Shown = tuple[int | None, tuple[int, ...] | None, DType | None, Device | None]


def fields_of(
    context: ExchangeContext, shown: Shown, data_ptr_out: int | None
) -> tuple[object, ...]:
    """Return the fields of a receipt; `shown` is nbytes, shape, dtype and device of the result."""
    copied_by, why = context.copied_by, context.why
    if copied_by is None and data_ptr_out not in (None, context.data_ptr_in) and shown[0]:
        copied_by, why = context.target, "consumer"
    route = " -> ".join(context.route)
    return (
        *(context.source, context.target, route, copied_by is None, copied_by, why),
        *(context.data_ptr_in, data_ptr_out, *shown, context.stream, context.ordered),
    )


def make_receipt(
    context: ExchangeContext, tensor: native.TensorBase | None, data_ptr_out: int | None = None
) -> Receipt:
    """Return the receipt of an exchange; without the address of its result, of a planned one."""
    shown: Shown = (None, None, None, None)
    if tensor is not None:
        shown = tensor.nbytes, tensor.shape, tensor.dtype, tensor.device
    return Receipt(fields_of(context, shown, data_ptr_out))


_LOGS: ContextVar[tuple[list[Receipt], ...]] = ContextVar("dlbridge_receipts", default=())
native.set_hooks(receipt_logs=_LOGS)


@contextmanager
def receipts() -> Iterator[list[Receipt]]:
    """Record a Receipt of every exchange made inside the block, in this thread or task.

    Example:
        >>> import numpy, dlbridge
        >>> with dlbridge.receipts() as log:
        ...     x = dlbridge.from_dlpack(numpy.ones(3))
        >>> log[0].shared, log[0].source
        (True, 'numpy')
    """
    log: list[Receipt] = []
    # An interrupt may come between any two steps. Each call of `next` or `list` is one step, and
    # whenever it comes, what `list` still does makes the sum of the two changes 0.
    steps = map(native.watch, (1, -1))
    try:
        try:
            next(steps)
            _LOGS.set((*_LOGS.get(), log))
            yield log
        finally:
            list(steps)
            _drop(log)
    finally:  # once more, for an interrupt of the first time
        list(steps)
        _drop(log)


def _drop(log: list[Receipt]) -> None:
    """Remove `log` from the open ones; it may be gone already."""
    logs = _LOGS.get()
    kept = tuple(each for each in logs if each is not log)
    if len(kept) < len(logs):
        _LOGS.set(kept)


def is_recording() -> bool:
    """Return whether a receipt log is open in this thread or task."""
    return bool(_LOGS.get())


def record(receipt: Receipt) -> None:
    """Add `receipt` to every open log of this thread or task."""
    for log in _LOGS.get():
        log.append(receipt)


def unrecorded_context() -> Context:
    """Return a copy of the present context, for another thread, in which no log is open."""
    made = copy_context()
    made.run(_LOGS.set, ())
    return made
