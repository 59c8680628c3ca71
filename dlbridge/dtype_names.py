"""What every framework calls a dtype: from its objects to DLDataType fields, and back.

Fields are (code, bits, lanes). A reader is chosen by the module of the object's type, so nothing is
imported to read; `write_dtype` imports the framework that it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import index
from typing import Any, NoReturn

import numpy as np

from dlbridge.errors import (
    ArgumentError,
    ExchangeError,
    FrameworkMissingError,
    UnsupportedTypeError,
)

Fields = tuple[int, int, int]

_INTEGER_WIDTHS = (1, 2, 4, 8, 16, 32, 64)

# Type code -> name, widths in bits, and the width that the name leaves out.
_FAMILIES: dict[int, tuple[str, tuple[int, ...], int | None]] = {
    0: ("int", _INTEGER_WIDTHS, None),
    1: ("uint", _INTEGER_WIDTHS, None),
    2: ("float", (16, 32, 64), None),
    3: ("handle", (32, 64), 64),
    4: ("bfloat", (16,), None),
    5: ("complex", (32, 64, 128), None),
    6: ("bool", (1, 8), 8),
    7: ("float8_e3m4", (8,), 8),
    8: ("float8_e4m3", (8,), 8),
    9: ("float8_e4m3b11fnuz", (8,), 8),
    10: ("float8_e4m3fn", (8,), 8),
    11: ("float8_e4m3fnuz", (8,), 8),
    12: ("float8_e5m2", (8,), 8),
    13: ("float8_e5m2fnuz", (8,), 8),
    14: ("float8_e8m0fnu", (8,), 8),
    15: ("float6_e2m3fn", (6,), 6),
    16: ("float6_e3m2fn", (6,), 6),
    17: ("float4_e2m1fn", (4,), 4),
}
NAMES: dict[tuple[int, int], str] = {
    (code, bits): family if bits == plain else f"{family}{bits}"
    for code, (family, widths, plain) in _FAMILIES.items()
    for bits in widths
}
_SCALARS: dict[str, tuple[int, int]] = {name: key for key, name in NAMES.items()}
FLOATING_CODES = frozenset((2, 4, *range(7, 18)))

_PYTHON_TYPES: dict[object, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    complex: "complex128",
}
_NUMPY_OWN = frozenset(
    NAMES[code, bits]
    for code, widths in {
        0: (8, 16, 32, 64),
        1: (8, 16, 32, 64),
        2: (16, 32, 64),
        5: (64, 128),
        6: (8,),
    }.items()
    for bits in widths
)
# TensorFlow's DataType numbers, without those that DLPack cannot name (string, quantised, ...).
_TENSORFLOW: dict[int, str] = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    26: "float8_e4m3fnuz",
    27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz",
    29: "int4",
    30: "uint4",
    31: "int2",
    32: "uint2",
    33: "float4_e2m1fn",
}
TENSORFLOW_NUMBERS = {name: number for number, name in _TENSORFLOW.items()}


def read_dtype(x: Any) -> Fields:
    """Return the fields of any framework's dtype, or of a name, tuple or type; see `as_dtype`."""
    for kind, read in _KINDS.items():
        if isinstance(x, kind):
            return read(x)
    reader = _READERS.get(str(type(x).__module__).partition(".")[0])
    if reader is None:
        raise _unsupported(x)
    return reader(x)


def _unsupported(x: object) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"DType: cannot read {type(x).__name__} {x!r} as a dtype; pass a name such as 'float32', "
        "a framework's dtype or a tuple (code, bits, lanes)"
    )


def refuse(text: str) -> NoReturn:
    """Raise the refusal of a dtype that one side cannot name."""
    raise ExchangeError("dtype", text)


def _from_name(name: str) -> Fields:
    lanes = "1"
    scalar = name
    if name not in _SCALARS:
        scalar, _, lanes = name.rpartition("x")
    if scalar in _SCALARS and lanes.isdecimal():
        return *_SCALARS[scalar], int(lanes)
    if name[:1] in ("<", ">", "=", "|"):
        try:
            return _from_numpy(np.dtype(name))
        except TypeError:
            pass
    raise ArgumentError(
        f"DType: unknown name {name!r}; known are {', '.join(_SCALARS)}, each with xN for N lanes"
    )


def _from_tuple(fields: tuple[Any, ...]) -> Fields:
    try:
        code, bits, lanes = map(index, fields if len(fields) > 2 else (*fields, 1))
    except (TypeError, ValueError):
        raise _unsupported(fields) from None
    return code, bits, lanes


def _from_type(kind: type) -> Fields:
    if kind in _PYTHON_TYPES:
        return _from_name(_PYTHON_TYPES[kind])
    if issubclass(kind, np.generic | np.dtype):
        return _from_numpy(np.dtype(kind))
    if type(kind).__module__.startswith("jax."):  # jnp.float32 is a class with a dtype
        return _from_numpy(kind.dtype)  # type: ignore[attr-defined]
    raise _unsupported(kind)


def _from_numpy(dtype: np.dtype[Any]) -> Fields:
    if not dtype.isnative:
        raise ExchangeError(
            "byte_order",
            f"DLPack carries the machine's byte order only, got {dtype!r}; "
            "convert with x.astype(x.dtype.newbyteorder('='))",
        )
    if dtype.name not in _SCALARS:
        refuse(f"DLPack has no dtype for NumPy's {dtype!r}")
    return *_SCALARS[dtype.name], 1


def _from_struct(struct: Any) -> Fields:
    try:
        return int(struct.code), int(struct.bits), int(struct.lanes)
    except AttributeError:
        raise _unsupported(struct) from None


def _from_named(x: Any) -> Fields:
    """Read a dtype whose text ends in its name, as "torch.float32" does."""
    if type(x).__name__.lower() not in ("dtype", "datatype"):
        raise _unsupported(x)
    name = str(x).rpartition(".")[2]
    name = _FOREIGN_NAMES.get(name, name)
    if name not in _SCALARS and name != "float4_e2m1fnx2":
        refuse(f"DLPack has no dtype for {x}")
    return _from_name(name)


def _from_paddle(x: Any) -> Fields:
    """Read Paddle's enumerator: the text of its uint16 says bfloat16."""
    if type(x).__name__.lower() not in ("dtype", "datatype"):
        raise _unsupported(x)
    name: str = x.name.lower()
    if name not in _SCALARS:
        refuse(f"DLPack has no dtype for Paddle's {x!r}")
    return _from_name(name)


def _from_tensorflow(x: Any) -> Fields:
    try:
        number = x.as_datatype_enum
    except AttributeError:
        raise _unsupported(x) from None
    return read_tensorflow_number(number)


def read_tensorflow_number(number: int) -> Fields:
    """Return the fields of one of TensorFlow's `DataType` numbers."""
    if number not in _TENSORFLOW:
        refuse(f"DLPack has no dtype for TensorFlow's DataType number {number}")
    return *_SCALARS[_TENSORFLOW[number]], 1


_FOREIGN_NAMES = {"bool_": "bool", "float4_e2m1fn_x2": "float4_e2m1fnx2"}

_KINDS: dict[type, Callable[[Any], Fields]] = {
    str: _from_name,  # tvm_ffi.dtype, too
    tuple: _from_tuple,
    type: _from_type,
    np.dtype: _from_numpy,
}
# The first part of type(x).__module__.
_READERS: dict[str, Callable[[Any], Fields]] = {
    "_cffi_backend": _from_struct,
    "dlbridge": _from_tensorflow,  # proto.datatypes.DataType
    "mlx": _from_named,
    "paddle": _from_paddle,
    "tensorflow": _from_tensorflow,
    "torch": _from_named,
    "tvm": _from_named,
}


def write_dtype(name: str, framework: str) -> Any:
    """Return the dtype object of `framework` for a DType's name; see `DType.to`."""
    if framework not in _WRITERS:
        raise ArgumentError(
            f"DType.to: unknown framework {framework!r}; known are {', '.join(_WRITERS)}"
        )
    module_name, write = _WRITERS[framework]
    module = _import(module_name)
    try:
        return write(module, name)
    except (AttributeError, TypeError, ValueError):
        refuse(f"{framework} has no dtype for {name}")


def _import(module_name: str) -> Any:
    try:
        return import_module(module_name)
    except ImportError as error:
        raise FrameworkMissingError(f"DType.to: cannot import {module_name}: {error}") from error


def _write_numpy(module: Any, name: str) -> Any:
    own = name in _NUMPY_OWN
    return module.dtype(name if own else getattr(_import("ml_dtypes"), name))


def _write_torch(module: Any, name: str) -> Any:
    return getattr(module, "float4_e2m1fn_x2" if name == "float4_e2m1fnx2" else name)


def _write_attribute(module: Any, name: str) -> Any:
    return getattr(module, "bool_" if name == "bool" else name)


def _write_scalar_type(module: Any, name: str) -> Any:
    return np.dtype(_write_attribute(module, name))


# Framework -> module to import, and its dtype object for a name.
_WRITERS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "numpy": ("numpy", _write_numpy),
    "torch": ("torch", _write_torch),
    "jax": ("jax.numpy", _write_scalar_type),
    "tensorflow": ("tensorflow", lambda module, name: module.as_dtype(name)),
    "tvm": ("tvm_ffi", lambda module, name: module.dtype(name)),
    "paddle": ("paddle", lambda module, name: getattr(module, name)),
    "mlx": ("mlx.core", _write_attribute),
    "cupy": ("cupy", _write_scalar_type),
    "dpnp": ("dpnp", _write_scalar_type),
}
