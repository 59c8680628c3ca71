"""GPU kernels as targets: what the core needs to launch them without Python.

The C signature of a kernel says what its parameters are given, as in `raw`; grid, block and shared
memory are integers, or expressions over the names of the schema:

    wrap(kernel, "mylib::scale(x: f32[n], *, a: float) -> f32[n]",
         abi="void(const float *x, float *out, float a, int64_t n)",
         grid="(n + 255) // 256", block=256)

A grid without blocks is not launched: there is nothing to do.

Kernels of `numba.cuda.jit` are compiled once for the types of the schema. The names of the
function's parameters say what they are given, as in a C signature: arrays for tensors and results,
numbers for scalars and dimensions. Numba passes an array as seven and more parameters: two that
are NULL, the number of items, the size of one, the address, then the shape and the strides in
bytes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge._core import ffi, native
from dlbridge.errors import ArgumentError, KernelError
from dlbridge.kernels.kinds import raw
from dlbridge.kernels.kinds.slots import NO_DIMENSION, Slot, Values, encode, size_of
from dlbridge.kernels.schema import (
    Parameter,
    Result,
    Schema,
    encode_expression,
    join_parts,
)
from dlbridge.signals import not_from_handler

if TYPE_CHECKING:
    from dlbridge.kernels.kinds.recognition import Function


Size = int | str
Sizes = tuple[Size, ...]


class Launch(NamedTuple):
    """How a kernel is launched, as `wrap` was given it; empty where it said nothing."""

    grid: Sizes = ()
    block: Sizes = ()
    shared: Size = 0
    constants: tuple[tuple[str, Any], ...] = ()  # of Triton kernels


NO_LAUNCH = Launch()


def read_launch(grid: object, block: object, shared: object, constants: object) -> Launch:
    """Return what `wrap` was given as grid=, block= and so on, checked as far as types go.

    Raises:
        ArgumentError: a size is neither an integer nor text, or there are more than three.
    """
    sizes = _read_sizes("grid", grid), _read_sizes("block", block), _read_shared(shared)
    return Launch(*sizes, _read_constants(constants))


def _read_constants(given: object) -> tuple[tuple[str, Any], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ArgumentError(f"wrap: constants must be a dict by name, got {given!r}")
    return tuple(given.items())


def _read_sizes(option: str, given: object) -> Sizes:
    if given is None:
        return ()
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not 1 <= len(sizes) <= 3 or not all(map(_is_size, sizes)):
        raise ArgumentError(
            f"wrap: {option} must be one to three integers or expressions such as "
            f"'(n + 255) // 256', got {given!r}"
        )
    return sizes


def _read_shared(given: object) -> Size:
    if given is None:
        return 0
    if not _is_size(given):
        raise ArgumentError(f"wrap: shared must be bytes or an expression, got {given!r}")
    return given  # type: ignore[return-value]


def _is_size(value: object) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


# ---- the target ----------------------------------------------------------------------------------


def target(name: str, function: Function, schema: Schema | None, launch: Launch) -> Any:
    """Return how the core launches a GPU kernel, a `native.CudaLaunch`.

    Args:
        name: the kernel's, for texts.
        function: a GPU kernel with its loader; its abi is a C signature.
        schema: the kernel's.
        launch: grid, block, shared memory.

    Raises:
        ArgumentError: something is missing, or does not fit the schema.
    """
    if schema is None:
        raise ArgumentError(f"{name}: {function.kind} needs a schema, which says what it takes")
    if not launch.grid or not launch.block:
        raise ArgumentError(
            f"{name}: {function.kind} needs grid= and block=, as in "
            "grid='(n + 255) // 256', block=256"
        )
    if launch.constants:
        raise ArgumentError(f"{name}: constants= are of Triton kernels, not of {function.kind}")
    values = Values(schema)
    assert function.parameters is not None
    parameters = function.parameters(schema, values)
    programs = [_program(schema, values, *each) for each in _sizes(launch)]
    assert function.load is not None
    try:
        return native.CudaLaunch(function.load, tuple(values.rows), parameters, tuple(programs))
    except not_from_handler(ValueError) as error:
        raise ArgumentError(f"{name}: launch: {error}") from None


def _sizes(launch: Launch) -> list[tuple[str, Size]]:
    """Return the seven sizes of a launch, with the option that each is of."""
    grid, block = ((*sizes, 1, 1)[:3] for sizes in (launch.grid, launch.block))
    named = [("grid", size) for size in grid] + [("block", size) for size in block]
    return [*named, ("shared", launch.shared)]


def _program(schema: Schema, values: Values, option: str, size: Size) -> tuple[Any, ...]:
    """Return a size as the steps that the core computes."""
    return encode_expression(schema, option, size, lambda name: values.number(name, option))


# ---- parameters of kernels in C ------------------------------------------------------------------


class KnownParameters(NamedTuple):
    """What is known of a compiled kernel's parameters, as `cuda.modules.Function` has it."""

    signature: str | None
    compiled: tuple[tuple[str, int], ...] | None


NOT_KNOWN = KnownParameters(None, None)


def read_parameters(
    text: str, known: KnownParameters, schema: Schema, values: Values
) -> tuple[Slot, ...]:
    """Return the parameters of a kernel whose C signature is `text`.

    Raises:
        ArgumentError: the text is no C signature, or does not fit the schema or what is known.
    """
    returned, parameters = raw.read_signature(schema, text)
    if returned != "void":
        raise ArgumentError(f"{schema.qualified}: C signature: a GPU kernel returns void")
    if known.compiled is not None:
        _compare_compiled(schema, parameters, known.compiled)
    if known.signature is not None and text != known.signature:
        _compare_pointers(schema, parameters, known.signature)
    return tuple(_encode(schema, values, parameter) for parameter in parameters)


def _compare_compiled(
    schema: Schema, parameters: list[raw.CParameter], compiled: tuple[tuple[str, int], ...]
) -> None:
    """Refuse a signature that passes other numbers or sizes than the kernel was compiled for."""
    passed = [(raw.is_float(each.type), size_of(each)) for each in parameters]
    if passed != [(kind == "f", size) for kind, size in compiled]:
        sizes = ", ".join(_KINDS.get(kind, "{} bytes").format(8 * size) for kind, size in compiled)
        raise ArgumentError(
            f"{schema.qualified}: C signature: the kernel was compiled with {len(compiled)} "
            f"parameters ({sizes}), and is to be called with "
            f"({', '.join(f'{each.text} {each.name}' for each in parameters)})"
        )


_KINDS = {"u": "{}-bit integer or address", "f": "{}-bit float"}


def _compare_pointers(schema: Schema, parameters: list[raw.CParameter], source: str) -> None:
    """Refuse pointers to elements of another size than the source has them."""
    for passed, own in zip(parameters, raw.parse_signature(schema, source)[1], strict=False):
        if not (passed.is_pointer and own.is_pointer):
            continue
        sizes = {ffi.sizeof(each.type.item) for each in (passed, own) if _is_sized(each)}
        if len(sizes) > 1:
            raise _refuse(
                schema, passed.name, f"is {passed.text!r}, and in the source it is {own.text!r}"
            )


def _is_sized(parameter: raw.CParameter) -> bool:
    return bool(parameter.type.item.kind == "primitive")


_PASSED = "tvif"  # tensors, dimensions, integers and floats
_UNREADABLE = {"str": "text", "dtype": "a dtype", "int[]": "a list", "float[]": "a list"}


def _encode(schema: Schema, values: Values, parameter: raw.CParameter) -> Slot:
    name = parameter.name
    for scalar in schema.scalars:
        if scalar.name == name and scalar.kind in _UNREADABLE:
            what = _UNREADABLE[scalar.kind]
            raise _refuse(schema, name, f"is {what}, which a GPU kernel cannot read")
    if name == "stream":
        raise _refuse(schema, name, "is not a parameter of a GPU kernel: it runs on the stream")
    slot = encode(schema, values, parameter)
    if slot[1] not in _PASSED:  # a list, or its length
        raise _refuse(schema, name, NO_DIMENSION)
    return slot


def _refuse(schema: Schema, name: str, why: str) -> ArgumentError:
    return ArgumentError(f"{schema.qualified}: C signature: {name!r} {why}")


# ---- where kernels of other libraries are: the address of their CUfunction on a device -----------
#
# A loader is called by the core, once for each device, with the device's primary context current.
# The libraries load and unload by themselves; the core keeps what a loader returned as long as it.

Loader = Callable[[int], int]


def of_cupy(kernel: Any) -> Loader:
    """Return the loader of a `cupy.RawKernel`, which is compiled for each device."""
    if getattr(kernel, "enable_cooperative_groups", False):
        raise ArgumentError(
            f"wrap: the RawKernel {kernel.name!r} has cooperative groups, whose grids dlbridge "
            "does not launch; wrap a Python function that calls it, with abi='python:cupy'"
        )
    kept = []

    def load(device: int) -> int:
        with sys.modules["cupy"].cuda.Device(device):
            function = kernel.kernel
        kept.append(function)
        return int(function.ptr)

    return load


def of_cuda_core(kernel: Any) -> Loader:
    """Return the loader of a `cuda.core.Kernel`; the kernel keeps its library."""

    def load(device: int) -> int:
        return find_address(getattr(kernel, "handle", None) or kernel._handle, device)

    return load


def find_address(handle: Any, device: int) -> int:
    """Return the address of a CUfunction, or of that of a CUkernel on the current device."""
    if type(handle).__name__ == "CUkernel":
        return _find_function(handle, device)
    return int(getattr(handle, "value", handle))


def of_library_kernel(handle: Any) -> Loader:
    """Return the loader of a `CUkernel`, which the driver loads where it is needed."""
    return partial(_find_function, handle)


def _find_function(handle: Any, device: int) -> int:
    code, function = import_module("cuda.bindings.driver").cuKernelGetFunction(handle)
    if int(code):
        raise KernelError(f"cuKernelGetFunction on cuda:{device}: {code.name}")
    return int(function)


def of_address(handle: Any) -> Loader:
    """Return the loader of a `CUfunction`, which is of one context only."""
    address = int(ffi.cast("uintptr_t", handle)) if isinstance(handle, ffi.CData) else int(handle)
    if not address:
        raise ArgumentError("wrap: a CUfunction that is NULL cannot be launched")
    return lambda _: address


def of_module(function: Any) -> Loader:
    """Return the loader of a function of a `dlbridge.cuda.Module`."""
    return function.load  # type: ignore[no-any-return]


# ---- kernels of numba.cuda.jit -------------------------------------------------------------------


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
        return find_address(function.handle, device)

    def parameters(self, schema: Schema, values: Values) -> tuple[Slot, ...]:
        """Return what the core passes, parameter by parameter.

        Raises:
            ArgumentError: a parameter's name means nothing in the schema, or has no type of Numba.
        """
        names = list(inspect.signature(self.dispatcher.py_func).parameters)
        readers = [_numba_reader(schema, values, name) for name in names]
        for name in schema.written:
            if name not in names:
                raise _refuse_numba(
                    schema, name, "is written by the kernel, but it has no such parameter"
                )
        self.types = tuple([kind for kind, _ in readers])
        return tuple([slot for _, slots in readers for slot in slots])


def _numba_reader(schema: Schema, values: Values, name: str) -> tuple[Any, list[Slot]]:
    """Return the type of a parameter, and the slots that it becomes."""
    for place, part in enumerate(join_parts(schema.tensors, schema.results)):
        if part.name == name:
            return _array_type(schema, part), _array_slots(values, part, place)
    for index, scalar in enumerate(schema.scalars):
        if scalar.name == name:
            return _numba_scalar(schema, name, index, scalar)
    number = values.number(name, "Numba's parameters")
    return _numba_types().int64, [(name, "v", number, 8, True, 0)]


def _numba_scalar(
    schema: Schema, name: str, index: int, scalar: Parameter
) -> tuple[Any, list[Slot]]:
    if scalar.kind not in _SCALARS or scalar.optional:
        raise _refuse_numba(schema, name, "is not a number, which is all that a GPU kernel takes")
    kind = "f" if scalar.kind == "float" else "i"
    size = 1 if scalar.kind == "bool" else 8
    return getattr(_numba_types(), _SCALARS[scalar.kind]), [(name, kind, index, size, True, 0)]


def _array_type(schema: Schema, part: Parameter | Result) -> Any:
    dtypes = part.dtype.dtypes if part.dtype is not None else ()
    is_fixed = len(dtypes) == 1 and all(dim.kind != "pack" for dim in part.dims)
    if not is_fixed or getattr(part, "optional", False):
        raise _refuse_numba(
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


def _numba_types() -> Any:
    return sys.modules["numba"].types


def _refuse_numba(schema: Schema, name: str, why: str) -> ArgumentError:
    return ArgumentError(f"{schema.qualified}: Numba's parameters: {name!r} {why}")
