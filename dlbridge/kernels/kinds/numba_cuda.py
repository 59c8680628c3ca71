"""Kernels of `numba.cuda.jit`: compiled once for the types of the schema, launched by the core.

The names of the function's parameters say what they are given, as in a C signature: arrays for
tensors and results, numbers for scalars and dimensions. Numba passes an array as seven and more
parameters: two that are NULL, the number of items, the size of one, the address, then the shape
and the strides in bytes.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from dlbridge.errors import ArgumentError, KernelError
from dlbridge.kernels.kinds import cuda_launch
from dlbridge.kernels.schema import Parameter, Result, Schema, join_parts

if TYPE_CHECKING:
    from dlbridge.kernels.kinds.cuda_launch import Parameter as Slot
    from dlbridge.kernels.kinds.cuda_launch import Values

_SCALARS = {"int": "int64", "float": "float64", "bool": "boolean"}


class Compiled:
    """One dispatcher, and the types that a schema gives its parameters.

    Attributes:
        dispatcher: the CUDADispatcher.
        types: of its parameters, Numba's; there once `parameters` was called.
    """

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher
        self.types: tuple[Any, ...] = ()
        self._kept: list[Any] = []

    def load(self, device: int) -> int:
        """Return the address of the CUfunction on a device; it is compiled when first needed."""
        with sys.modules["numba"].cuda.gpus[device]:
            kernel = self.dispatcher.compile(self.types)
            if kernel.cooperative:
                raise KernelError(
                    f"{self.dispatcher.__name__}: its blocks wait for each other, and dlbridge "
                    "launches no such grids; wrap a Python function that calls it"
                )
            kernel.bind()
            function = kernel._codelibrary.get_cufunc()
        self._kept.append(function)
        return cuda_launch.find_address(function.handle, device)

    def parameters(self, schema: Schema, values: Values) -> tuple[Slot, ...]:
        """Return what the core passes, parameter by parameter.

        Raises:
            ArgumentError: a parameter's name means nothing in the schema, or has no type of Numba.
        """
        names = list(inspect.signature(self.dispatcher.py_func).parameters)
        readers = [_reader(schema, values, name) for name in names]
        for name in schema.written:
            if name not in names:
                raise _refuse(
                    schema, name, "is written by the kernel, but it has no such parameter"
                )
        self.types = tuple([kind for kind, _ in readers])
        return tuple([slot for _, slots in readers for slot in slots])


def _reader(schema: Schema, values: Values, name: str) -> tuple[Any, list[Slot]]:
    """Return the type of a parameter, and the slots that it becomes."""
    for place, part in enumerate(join_parts(schema.tensors, schema.results)):
        if part.name == name:
            return _array_type(schema, part), _array_slots(values, part, place)
    for index, scalar in enumerate(schema.scalars):
        if scalar.name == name:
            return _scalar(schema, name, index, scalar)
    number = values.number(name, "Numba's parameters")
    return _types().int64, [(name, "v", number, 8, True, 0)]


def _scalar(schema: Schema, name: str, index: int, scalar: Parameter) -> tuple[Any, list[Slot]]:
    if scalar.kind not in _SCALARS or scalar.optional:
        raise _refuse(schema, name, "is no number, which is all that a GPU kernel takes")
    kind = "f" if scalar.kind == "float" else "i"
    size = 1 if scalar.kind == "bool" else 8
    return getattr(_types(), _SCALARS[scalar.kind]), [(name, kind, index, size, True, 0)]


def _array_type(schema: Schema, part: Parameter | Result) -> Any:
    dtypes = part.dtype.dtypes if part.dtype is not None else ()
    is_fixed = len(dtypes) == 1 and all(dim.kind != "pack" for dim in part.dims)
    if not is_fixed or getattr(part, "optional", False):
        raise _refuse(
            schema,
            part.name,
            "must have one dtype and a fixed number of dimensions, for which Numba compiles",
        )
    numba = sys.modules["numba"]
    return numba.types.Array(numba.from_dtype(dtypes[0].numpy), len(part.dims), "C")


def _array_slots(values: Values, part: Parameter | Result, place: int) -> list[Slot]:
    name, ndim = part.name, len(part.dims)
    assert part.dtype is not None
    size = part.dtype.dtypes[0].itemsize
    count = values.extent(name, place, 0, None)
    extents = [values.extent(name, place, dim, dim + 1) for dim in range(ndim)]
    return [
        (name, "c", 0, 8, True, 0),
        (name, "c", 0, 8, True, 0),
        (name, "v", count, 8, True, 0),
        (name, "c", size, 8, True, 0),
        (name, "t", place, 8, False, 0),
        *[(name, "v", extent, 8, True, 0) for extent in extents],
        *[(name, "s", place, 8, True, dim) for dim in range(ndim)],
    ]


def _types() -> Any:
    return sys.modules["numba"].types


def _refuse(schema: Schema, name: str, why: str) -> ArgumentError:
    return ArgumentError(f"{schema.qualified}: Numba's parameters: {name!r} {why}")
