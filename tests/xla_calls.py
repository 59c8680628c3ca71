"""Calls as XLA makes them, by hand: the structs of XLA's foreign functions, filled in with ctypes.

The layouts are those of xla/ffi/api/c_api.h, written down once more, so that the handler is not
checked against its own declarations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dlbridge._core import native

F32, F64, S8, S32, U32 = 11, 12, 2, 4, 8  # numbers of xla::PrimitiveType
_EXECUTE = 3  # XLA_FFI_ExecutionStage
_SLOTS = 12  # functions between those for the stream and for the device
_BASE = (("size", ctypes.c_size_t), ("extensions", ctypes.c_void_p))


def _struct(name: str, *fields: tuple[str, Any]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": [*_BASE, *fields]})


ErrorCreate = _struct("ErrorCreate", ("message", ctypes.c_char_p), ("code", ctypes.c_int))
StreamGet = _struct("StreamGet", ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))
DeviceGet = _struct("DeviceGet", ("context", ctypes.c_void_p), ("ordinal", ctypes.c_int32))
Version = _struct("Version", ("major", ctypes.c_int), ("minor", ctypes.c_int))
Buffer = _struct(
    "Buffer",
    ("dtype", ctypes.c_int),
    ("data", ctypes.c_void_p),
    ("rank", ctypes.c_int64),
    ("dims", ctypes.POINTER(ctypes.c_int64)),
)
Buffers = _struct(
    "Buffers",
    ("count", ctypes.c_int64),
    ("types", ctypes.POINTER(ctypes.c_int)),
    ("buffers", ctypes.POINTER(ctypes.POINTER(Buffer))),
)


class Span(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("length", ctypes.c_size_t))


class Scalar(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_int), ("value", ctypes.c_void_p))


Attributes = _struct(
    "Attributes",
    ("count", ctypes.c_int64),
    ("types", ctypes.POINTER(ctypes.c_int)),
    ("names", ctypes.POINTER(ctypes.POINTER(Span))),
    ("values", ctypes.POINTER(ctypes.c_void_p)),
)
CreateError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ErrorCreate))
GetStream = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(StreamGet))
GetDevice = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(DeviceGet))
Api = _struct(
    "Api",
    ("version", Version),
    ("internal", ctypes.c_void_p),
    ("create_error", CreateError),
    ("get_message", ctypes.c_void_p),
    ("destroy_error", ctypes.c_void_p),
    ("register_handler", ctypes.c_void_p),
    ("get_stream", GetStream),
    ("others", ctypes.c_void_p * _SLOTS),
    ("get_device", GetDevice),
)
Call = _struct(
    "Call",
    ("api", ctypes.POINTER(Api)),
    ("context", ctypes.c_void_p),
    ("stage", ctypes.c_int),
    ("arguments", Buffers),
    ("results", Buffers),
    ("attributes", Attributes),
)
Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Call))
_KINDS = {int: (5, ctypes.c_int64), float: (12, ctypes.c_double)}  # of scalars: S64, F64


class Operand(NamedTuple):
    """A buffer as XLA passes it."""

    address: int
    shape: tuple[int, ...]
    dtype: int = F32


class Xla:
    """An XLA that runs calls on one stream of one device.

    Args:
        stream: what it answers when it is asked for the stream: 0 is the default one.
        device: the number that it tells of its device; None: it has no such function yet.
        platform: "CUDA", "cpu" or "ROCM".
    """

    def __init__(self, stream: int, device: int | None = 0, platform: str = "CUDA") -> None:
        self.stream, self.device = stream, device
        self.error: tuple[int, str] | None = None
        self._functions = CreateError(self._keep), GetStream(self._stream), GetDevice(self._device)
        self.api = Api(ctypes.sizeof(Api), None, Version(32, None, 0, 1), None, self._functions[0])
        self.api.get_stream = self._functions[1]
        self.api.get_device = self._functions[2]
        if device is None:
            self.api.size = Api.others.offset
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.handler = Handler(address(native.xla_handler(platform), None))

    def run(
        self,
        kernel: str,
        operands: Sequence[Operand],
        results: Sequence[Operand],
        attributes: Mapping[str, int | float | str] | None = None,
    ) -> str | None:
        """Call the handler; return the text of its error, or None."""
        self.error = None
        call = Call(ctypes.sizeof(Call), None, ctypes.pointer(self.api), 7, _EXECUTE)
        call.arguments, call.results = _buffers(operands), _buffers(results)
        call.attributes, kept = _attributes({"kernel": kernel, **(attributes or {})})
        failed = self.handler(ctypes.byref(call))
        assert bool(failed) == (self.error is not None), kept
        return None if self.error is None else self.error[1]

    def _keep(self, arguments: Any) -> int:
        self.error = arguments[0].code, arguments[0].message.decode()
        return 1

    def _stream(self, arguments: Any) -> None:
        assert arguments[0].context == 7
        arguments[0].stream = self.stream

    def _device(self, arguments: Any) -> None:
        assert arguments[0].context == 7
        arguments[0].ordinal = self.device


def _buffers(operands: Sequence[Operand]) -> Any:
    made = [
        Buffer(
            ctypes.sizeof(Buffer),
            None,
            each.dtype,
            each.address or None,
            len(each.shape),
            (ctypes.c_int64 * len(each.shape))(*each.shape),
        )
        for each in operands
    ]
    pointers = (ctypes.POINTER(Buffer) * len(made))(*map(ctypes.pointer, made))
    types = (ctypes.c_int * len(made))(*[1] * len(made))
    return Buffers(ctypes.sizeof(Buffers), None, len(made), types, pointers)


def _attributes(values: Mapping[str, int | float | str]) -> tuple[Any, list[Any]]:
    names, types, pointers, kept = [], [], [], []
    for name, value in sorted(values.items()):
        names.append(ctypes.pointer(Span(name.encode(), len(name))))
        if isinstance(value, str):
            stored: Any = Span(value.encode(), len(value.encode()))
        else:
            dtype, kind = _KINDS[type(value)]
            number = kind(value)
            kept.append(number)
            stored = Scalar(dtype, ctypes.addressof(number))
        types.append(4 if isinstance(value, str) else 3)
        kept.append(stored)
        pointers.append(ctypes.addressof(stored))
    count = len(names)
    made = Attributes(
        ctypes.sizeof(Attributes),
        None,
        count,
        (ctypes.c_int * count)(*types),
        (ctypes.POINTER(Span) * count)(*names),
        (ctypes.c_void_p * count)(*pointers),
    )
    return made, kept
