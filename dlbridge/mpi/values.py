"""Tensors at the ends of a call: the source as compact host memory, the result as the caller's."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

from dlbridge._core import native
from dlbridge.dtype import DType, make_dtype
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    MPIError,
    UnsupportedTypeError,
    name_call,
)
from dlbridge.exchange import adapter
from dlbridge.exchange.exchange import as_tensor, kind
from dlbridge.exchange.trees import is_tree
from dlbridge.mpi.quick import learn_type
from dlbridge.tensor.memory import empty
from dlbridge.tensor.picture import read_layout
from dlbridge.tensor.values import PADDED, assign

_CPU = (1, 0)
MOST_DIMENSIONS = 64
_FORM = struct.Struct("<BBHI")
_MOST = 2**56  # elements: no machine has more, and their bits can be counted
_SAME = "run the same dlbridge on all ranks"


class Kind(NamedTuple):
    """The shape and dtype of a tensor, on which all ranks must agree."""

    shape: tuple[int, ...]
    dtype: tuple[int, int, int]

    def pack(self) -> bytes:
        """Return it as the bytes of a message."""
        code, bits, lanes = self.dtype
        count = len(self.shape)
        return _FORM.pack(code, bits, lanes, count) + struct.pack(f"<{count}q", *self.shape)

    @staticmethod
    def unpack(data: bytes | memoryview) -> tuple[Kind, int]:
        """Return what `pack` wrote, and how many bytes that took.

        Raises:
            MPIError: it is nothing that `pack` writes.
        """
        if len(data) < _FORM.size:
            raise MPIError(f"a tensor is described in {len(data)} bytes; {_SAME}")
        code, bits, lanes, count = _FORM.unpack_from(data)
        size = _FORM.size + 8 * count
        if count > MOST_DIMENSIONS or len(data) < size:
            raise MPIError(f"{count} dimensions are described in {len(data)} bytes; {_SAME}")
        shape = struct.unpack_from(f"<{count}q", data, _FORM.size)
        if min(shape, default=0) < 0 or math.prod(max(n, 1) for n in shape) > _MOST:
            raise MPIError(f"a tensor of the shape {shape} is announced; {_SAME}")
        try:
            make_dtype(code, bits, lanes)
        except DLBridgeError as error:
            raise MPIError(f"a tensor of no dtype is announced: {error}; {_SAME}") from error
        return Kind(shape, (code, bits, lanes)), size

    def empty(self) -> native.TensorBase:
        """Return new memory for such a tensor."""
        return empty(self.shape, make_dtype(*self.dtype))

    @property
    def is_packed(self) -> bool:
        """Whether elements share bytes."""
        return self.dtype[1] % 8 != 0 and self.dtype[0] != 6

    def __str__(self) -> str:
        return f"{make_dtype(*self.dtype)}[{', '.join(map(str, self.shape))}]"


class Source(NamedTuple):
    """A tensor that goes out: compact, of the CPU's memory; and what its results become."""

    tensor: native.TensorBase
    kind: Kind
    framework: str
    device: object


def take(call: str, x: Any) -> Source:
    """Return `x` as it is sent: transposed tensors are compacted, those of a GPU copied."""
    found = adapter.adapter_of_type(type(x))
    taken = native.take(x)
    try:
        tensor: native.TensorBase = as_tensor(x) if taken is None else taken
    except DLBridgeError as error:
        if isinstance(error, UnsupportedTypeError) and is_tree(x):
            raise UnsupportedTypeError(
                f"{call}: a tensor is required, got a tree of the type {type(x).__name__}; "
                "allreduce, bcast and gather take trees; make a call for each of its tensors"
            ) from error
        name_call(error, call)
        raise
    device = None
    if tensor._device_pair != _CPU:
        device, tensor = tensor.device, tensor.to("cpu")
    if tensor.flags & PADDED:  # one form of sub-byte elements on the way
        tensor = native.copied(tensor, _CPU, "C", 0)
    elif not tensor.is_contiguous:
        tensor = tensor.copy()
    if tensor.ndim > MOST_DIMENSIONS:
        raise ArgumentError(
            f"{call}: a tensor of at most {MOST_DIMENSIONS} dimensions is required, got "
            f"{tensor.ndim}; reshape it"
        )
    name = "numpy" if found is None else found.name
    if taken is not None:
        learn_type(type(x), name)
    return Source(tensor, Kind(tensor.shape, tensor._dtype_triple), name, device)


def give(result: native.TensorBase, framework: str, device: object = None) -> Any:
    """Return a result as an array of a framework, on the device of the source."""
    if device is not None:
        return native.convert(result, framework, device=device)
    return native.convert(result, framework)


class Destination:
    """The tensor that a call writes, `out` of the user.

    Raises:
        ExchangeError: it is read-only, requires a gradient that is recorded, has elements that
            share an address, or is of a framework whose arrays are never written.
    """

    def __init__(self, call: str, out: Any) -> None:
        found = adapter.adapter_of_type(type(out))
        try:
            tensor = native.from_dlpack(out, copy=False)
        except DLBridgeError as error:
            if error.reason != "requires_grad":
                name_call(error, f"{call}: out")
                raise
            raise ExchangeError(
                "requires_grad",
                f"{call}: out requires a gradient, which knows nothing of what is written to it; "
                "make the call within torch.no_grad()",
            ) from error
        if tensor.readonly:
            raise ExchangeError(
                "readonly",
                f"{call}: out must be writable, got {kind(tensor)}; "
                "without out the result is returned",
            )
        if read_layout(tensor.shape, tensor.strides).kind == "overlapping":
            raise ExchangeError(
                "overlap",
                f"{call}: out must have an address of its own for each element, got "
                f"{kind(tensor)} with strides {tensor.strides}; without out the result is returned",
            )
        if native.take(out) is not None:
            learn_type(type(out), "numpy" if found is None else found.name)
        self.call = call
        self.out = out
        self._tensor: native.TensorBase = tensor
        self.kind = Kind(tensor.shape, tensor._dtype_triple)

    def check(self, wanted: Kind) -> None:
        """Refuse another shape or dtype than the result has."""
        if self.kind != wanted:
            raise ArgumentError(f"{self.call}: out must be {wanted}, got {self.kind}")

    def memory(self, *sources: native.TensorBase | None) -> native.TensorBase:
        """Return the memory to receive into: its own where that is possible."""
        tensor = self._tensor
        is_plain = tensor.is_contiguous and not tensor.flags & PADDED
        if not is_plain or tensor._device_pair != _CPU or _touches(tensor, sources):
            return self.kind.empty()
        return tensor

    def finish(self, received: native.TensorBase) -> Any:
        """Put the result into the user's tensor, if it is not there yet; return that."""
        if received is not self._tensor:
            assign(self._tensor, received)
        return self.out


def _touches(tensor: native.TensorBase, others: tuple[native.TensorBase | None, ...]) -> bool:
    start, end = tensor.data_ptr, tensor.data_ptr + tensor.nbytes
    return any(
        other is not None and other.data_ptr < end and start < other.data_ptr + other.nbytes
        for other in others
    )


def dtype_of(kind: Kind) -> DType:
    """Return the dtype of a kind."""
    return make_dtype(*kind.dtype)
