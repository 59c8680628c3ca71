"""Every exception of dlbridge.

    DLBridgeError
    ├── ExchangeError (BufferError)        a tensor cannot go from here to there; `reason` says why
    ├── ViewError (ValueError)             a view cannot be made without a copy
    ├── UnsupportedTypeError (TypeError)   this object is not a tensor, or not of a kind we know;
    │                                      a keyword of `__dlpack__` has another type than it may
    ├── ArgumentError (ValueError)         an argument has the wrong value
    ├── FrameworkMissingError (ImportError) the framework asked for is not installed
    ├── AllocationError (MemoryError)      an allocator could not give the memory
    ├── WireError (ValueError)             bytes are no TensorProto, GraphDef, … that makes sense
    ├── MPIError (RuntimeError)            another process has ended, or MPI has
    │   └── MPITimeoutError (TimeoutError) other processes did not come in time
    ├── CUDAError (RuntimeError)           a function of the CUDA driver failed, or there is none
    └── KernelError (RuntimeError)         a kernel returned a failure, or is not known any more
        └── KernelDefectError              debug mode found a kernel doing what it must not

Each carries `reason`, a short code that programs can test, and a text that says which call, what
was required, what came and what to do. `REASONS` lists the codes of `ExchangeError`, `FINDINGS`
those of `KernelDefectError`.
"""

from __future__ import annotations

import re
from typing import Any

from dlbridge.text import escape_controls

__all__ = [
    "FINDINGS",
    "REASONS",
    "AllocationError",
    "ArgumentError",
    "CUDAError",
    "DLBridgeError",
    "ExchangeError",
    "FrameworkMissingError",
    "KernelDefectError",
    "KernelError",
    "MPIError",
    "MPITimeoutError",
    "UnsupportedTypeError",
    "ViewError",
    "WireError",
]

REASONS: dict[str, str] = {
    "alignment": "the data pointer is not aligned as the consumer needs",
    "byte_order": "the data is not in the machine's byte order",
    "conjugate": "the tensor is a lazy complex conjugate",
    "consumed": "the capsule was consumed before",
    "copy_required": "a copy is needed, and copy=False forbids it",
    "device": "the data is on a device that this exchange cannot serve",
    "dtype": "the dtype cannot be represented",
    "flags": "the flags carry bits that the standard does not define",
    "lanes": "the dtype has no lanes, or more than the consumer knows",
    "lazy": "the tensor has no memory: symbolic, traced, fake, deleted or not evaluated",
    "lent": "the producer would free or move memory that is lent",
    "masked": "a mask would be lost",
    "ndim": "the number of dimensions is negative or too large",
    "negative_bit": "the tensor is a lazy negation",
    "null_data": "the data pointer is NULL although the tensor has elements",
    "null_shape": "the shape pointer is NULL although the tensor has dimensions",
    "overflow": "shape or strides overflow 64 bits",
    "overlap": "memory that a kernel writes overlaps other memory of the call",
    "producer": "the producer's own export failed",
    "consumer": "the consumer's own import failed",
    "quantized": "the values are quantised: scale and zero point would be lost",
    "readonly": "the memory is read-only and the consumer cannot protect it",
    "requires_grad": "the tensor requires a gradient that would be lost",
    "shape": "a dimension is negative",
    "sharded": "the array is spread over several devices",
    "sparse": "the tensor is not dense",
    "stream": "the stream value is not allowed for this device",
    "strides": "the consumer cannot represent these strides",
    "subclass": "a subclass without plain memory of its own",
    "version": "no DLPack version that both sides speak can carry this tensor",
}
"""The codes of `ExchangeError.reason`, each with its meaning."""

FINDINGS: dict[str, str] = {
    "changed_input": "the kernel wrote into an argument that it only reads",
    "nan": "a result is NaN, and no argument was",
    "out_of_bounds": "the kernel wrote beside a tensor",
    "read_beside": "a result was computed from memory beside an argument",
    "read_unwritten": "a result was computed from memory that the kernel had not written",
    "unwritten": "the kernel left elements of a result as they were",
}
"""The codes of `KernelDefectError.reason`, each with its meaning."""


class DLBridgeError(Exception):
    """Root of every exception that dlbridge raises; `reason` is a code that programs can test."""

    reason: str = "error"
    ag_pass_through = True  # read by TensorFlow's AutoGraph, which else replaces the exception

    def __init__(self, *args: Any, **keywords: Any) -> None:
        shown = [escape_controls(x, lines=True) if isinstance(x, str) else x for x in args]
        super().__init__(*shown, **keywords)


class ExchangeError(DLBridgeError, BufferError):
    """A tensor cannot go from this producer to this consumer; `reason` is a key of `REASONS`.

    The text ends with the reason in brackets, to search for: "Errors and reasons" in the
    documentation has a part about each.

    Example:
        >>> str(ExchangeError("strides", "to_torch: torch has no negative strides"))
        'to_torch: torch has no negative strides [strides]'
    """

    def __init__(self, reason: str, text: str) -> None:
        code = f" [{reason}]"  # once, also where the text is that of another refusal or unpickled
        super().__init__(text if text.endswith(code) else text + code)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ExchangeError], tuple[str, str]]:
        return type(self), (self.reason, str(self))


# How the text of a refusal begins that was made before the call of the user was known.
_INNER_CALL = re.compile(
    r"(?:from_dlpack|__dlpack__|to_[a-z]+|take_object|as_dtype|as_tensor|empty|zeros|ones|full"
    r"|wrap|Library\.wrap|load_library): "
)
# Of the calls, those with the policies of an exchange.
_WITH_POLICIES = re.compile(r"(?:to_(?!dlpack)|explain|convert_tree|receipts)")


def name_call(error: DLBridgeError, call: str) -> None:
    """Begin the text of a refusal with the call that the user made, and advise what that takes."""
    text = str(error)
    if not text.startswith((f"{call}: ", f"{call}(")):
        inner = _INNER_CALL.match(text)
        text = f"{call}: {text[inner.end() :] if inner else text}"
    if not _WITH_POLICIES.match(call):
        text = text.replace(' or grad="detach"', "")
    error.args = (text,)


class ViewError(DLBridgeError, ValueError):
    """The view asked for cannot be made over this memory without a copy, or not at all."""

    reason = "copy_required"


class UnsupportedTypeError(DLBridgeError, TypeError):
    """The object is not a tensor, or not of a kind that dlbridge knows or the keyword takes."""

    reason = "type"


class ArgumentError(DLBridgeError, ValueError):
    """An argument has a value that the call does not take."""

    reason = "argument"


class FrameworkMissingError(DLBridgeError, ImportError):
    """The framework asked for by name cannot be imported here, or finds no device to run on."""

    reason = "missing"
    __str__ = Exception.__str__  # ImportError's shows no call that has named itself since


class AllocationError(DLBridgeError, MemoryError):
    """An allocator, a producer or a consumer could not get the memory that it needs."""

    reason = "memory"


class WireError(DLBridgeError, ValueError):
    """Bytes, text or a message from elsewhere that are no TensorProto, GraphDef, … as required."""

    reason = "wire"


class MPIError(DLBridgeError, RuntimeError):
    """Another process of the MPI job has ended, or MPI is out of this one's reach."""

    reason = "mpi"


class MPITimeoutError(MPIError, TimeoutError):
    """A call of `dlbridge.mpi` was not over in time; the text says what stays under way."""

    reason = "timeout"


class CUDAError(DLBridgeError, RuntimeError):
    """A function of the CUDA driver failed, or there is no driver.

    Attributes:
        code: the CUresult, or -1 where no function was called.
        name: its name, "CUDA_ERROR_INVALID_VALUE", or "".
    """

    reason = "cuda"

    def __init__(self, text: str, code: int = -1, name: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.name = name

    def __reduce__(self) -> tuple[type[CUDAError], tuple[str, int, str]]:
        return type(self), (str(self), self.code, self.name)


class KernelError(DLBridgeError, RuntimeError):
    """A kernel returned a failure, kept a tensor that it had on loan, or is no longer known."""

    reason = "kernel"


class KernelDefectError(KernelError):
    """Debug mode found a kernel doing what it must not; `reason` is a key of `FINDINGS`.

    Example:
        >>> str(KernelDefectError("nan", "a::f: result 'out': 2 of 3 elements are NaN"))
        "a::f: result 'out': 2 of 3 elements are NaN [nan]"
    """

    def __init__(self, reason: str, text: str) -> None:
        code = f" [{reason}]"  # once, as of ExchangeError
        super().__init__(text if text.endswith(code) else text + code)
        self.reason = reason

    def __reduce__(self) -> tuple[type[KernelDefectError], tuple[str, str]]:
        return type(self), (self.reason, str(self))
