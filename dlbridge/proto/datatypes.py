"""DataType: TensorFlow's dtypes, including those that no array has (string, resource, …).

There is one object for each of TensorFlow's `DataType` numbers, and one more for the reference to
it (number + 100), so our own code compares with `is`. `as_dtype` reads the dtypes of all
frameworks. Attributes are computed once; types of ml_dtypes are looked up on first use of `.numpy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, final

import numpy as np

from dlbridge import dtype as dlpack_dtypes
from dlbridge.dtype import DType
from dlbridge.errors import DLBridgeError, UnsupportedTypeError
from dlbridge.signals import not_from_handler

REFERENCE = 100  # the number of a reference type minus that of its base type


class Row(NamedTuple):
    """One dtype of TensorFlow: its number, name, kind and NumPy's name for it."""

    number: int
    name: str
    kind: str
    numpy: Any = None


# Kinds: f floating, i signed, u unsigned, c complex, b bool, q quantised, s string, h handle.
# NumPy's own types are named here; None is a type of ml_dtypes with the same name as ours.
TABLE = (
    Row(1, "float32", "f", np.float32),
    Row(2, "float64", "f", np.float64),
    Row(3, "int32", "i", np.int32),
    Row(4, "uint8", "u", np.uint8),
    Row(5, "int16", "i", np.int16),
    Row(6, "int8", "i", np.int8),
    Row(7, "string", "s", np.object_),
    Row(8, "complex64", "c", np.complex64),
    Row(9, "int64", "i", np.int64),
    Row(10, "bool", "b", np.bool_),
    Row(11, "qint8", "q", np.int8),
    Row(12, "quint8", "q", np.uint8),
    Row(13, "qint32", "q", np.int32),
    Row(14, "bfloat16", "f"),
    Row(15, "qint16", "q", np.int16),
    Row(16, "quint16", "q", np.uint16),
    Row(17, "uint16", "u", np.uint16),
    Row(18, "complex128", "c", np.complex128),
    Row(19, "float16", "f", np.float16),
    Row(20, "resource", "h"),
    Row(21, "variant", "h"),
    Row(22, "uint32", "u", np.uint32),
    Row(23, "uint64", "u", np.uint64),
    Row(24, "float8_e5m2", "f"),
    Row(25, "float8_e4m3fn", "f"),
    Row(26, "float8_e4m3fnuz", "f"),
    Row(27, "float8_e4m3b11fnuz", "f"),
    Row(28, "float8_e5m2fnuz", "f"),
    Row(29, "int4", "i"),
    Row(30, "uint4", "u"),
    Row(31, "int2", "i"),
    Row(32, "uint2", "u"),
    Row(33, "float4_e2m1fn", "f"),
)
# The names of OpDefs and enumerators where they are not ours, in lower case.
WIRE_NAMES = {"float32": "float", "float64": "double", "float16": "half"}
# Kinds whose values have a range, and those of `limits`, which TensorFlow knows for few types.
LIMITS = {
    "float32": (0, 1),
    "float64": (0, 1),
    "bool": (0, True),
    **{f"{sign}int{bits}": None for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@final
class DataType:
    """One of TensorFlow's dtypes, such as `tf.float32`.

    Attributes:
        number: TensorFlow's `DataType` number; that of a reference type is 100 more.
        name: "float32", "string", "qint8", "float32_ref", …
        wire_name: the name in OpDefs and enumerators: "float", "double", "half", else `name`.
        dlpack: dlbridge's DType, or None for string, resource, variant and quantised types.
        is_floating, is_integer, is_unsigned, is_complex, is_bool, is_quantized: the kind of the
            type; quantised types are not integers.
        is_numpy_compatible: whether NumPy arrays can hold it; not resource and variant.
        is_ref: whether it is a reference type, as TensorFlow 1.x's variables have.
        base_dtype: the type referred to, or the type itself.
        real_dtype: float32 of complex64, float64 of complex128, else the type itself.
        as_ref: the reference type.

    Equality accepts everything `as_dtype` does (`float32 == "float32"`); the hash is that of a
    DataType. Calling the class is calling `as_dtype`.

    Example:
        >>> DataType("float32"), str(float32), float32.number, float32 == np.float32
        (tf.float32, "<dtype: 'float32'>", 1, True)
    """

    __slots__ = (
        "as_numpy_dtype", "as_ref", "base_dtype", "dlpack", "is_bool", "is_complex", "is_floating",
        "is_integer", "is_numpy_compatible", "is_quantized", "is_ref", "is_unsigned", "kind",
        "name", "number", "numpy", "real_dtype", "wire_name",
    )  # fmt: skip

    as_numpy_dtype: Any
    as_ref: DataType
    base_dtype: DataType
    dlpack: DType | None
    is_bool: bool
    is_complex: bool
    is_floating: bool
    is_integer: bool
    is_numpy_compatible: bool
    is_quantized: bool
    is_ref: bool
    is_unsigned: bool
    kind: str
    name: str
    number: int
    numpy: np.dtype[Any] | None
    real_dtype: DataType
    wire_name: str

    def __new__(cls, x: object) -> DataType:
        """Return the DataType of `x`; see `as_dtype`."""
        return as_dtype(x)

    @property
    def as_datatype_enum(self) -> int:
        """The same as `number`."""
        return self.number

    @property
    def _is_ref_dtype(self) -> bool:
        return self.is_ref

    @property
    def size(self) -> int:
        """Bytes of one element in NumPy; 0 for string, resource and variant."""
        dtype = self.numpy if self.is_numpy_compatible else None
        return 0 if dtype is None or dtype.hasobject else dtype.itemsize

    @property
    def min(self) -> Any:
        """The least finite value, as a NumPy scalar or an int; UnsupportedTypeError without one."""
        return self._extreme("min")

    @property
    def max(self) -> Any:
        """The greatest finite value, as a NumPy scalar or an int."""
        return self._extreme("max")

    @property
    def limits(self) -> tuple[Any, Any]:
        """The range of pixels of this type: from 0 to `max`, or to 1 for float32 and float64.

        Raises:
            ValueError: TensorFlow defines none for this type.
        """
        base = self.base_dtype.name
        if base not in LIMITS:
            raise ValueError(f"{self} does not have defined limits.")
        return LIMITS[base] or (0, self.max)

    def is_compatible_with(self, other: object) -> bool:
        """Return whether `other` is this type or the type that this one refers to."""
        return as_dtype(other) in (self, self.base_dtype)

    def _extreme(self, which: str) -> Any:
        if not (self.is_floating or self.is_integer):
            raise UnsupportedTypeError(f"{self} has no {which}: it is not a real number")
        dtype = self.numpy
        assert dtype is not None
        tables: Any = np if dtype.isbuiltin == 1 else _ml_dtypes()
        if self.is_floating:
            return getattr(tables.finfo(dtype), which)
        return int(getattr(tables.iinfo(dtype), which))

    def __getattr__(self, name: str) -> Any:
        """Look up the types of ml_dtypes, whose attributes are not set until they are asked for."""
        if name not in ("numpy", "as_numpy_dtype"):
            raise AttributeError(f"DataType has no attribute {name!r}")
        if not self.is_numpy_compatible:
            raise AttributeError(f"{self} has no NumPy type")
        scalar = getattr(_ml_dtypes(), self.base_dtype.name)
        object.__setattr__(self, "as_numpy_dtype", scalar)
        object.__setattr__(self, "numpy", np.dtype(scalar))
        return getattr(self, name)

    def __eq__(self, other: object) -> bool:
        if type(other) is DataType:
            return self is other
        if other is int or other is str or other is bytes or other is complex:
            return False  # in TensorFlow they are equal to no dtype
        try:
            return as_dtype(other) is self
        except DLBridgeError:
            # An array would compare its elements with the DataType.
            return False if hasattr(other, "__array__") else NotImplemented

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"tf.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: {self.name!r}>"

    def __reduce__(self) -> tuple[Callable[[int], DataType], tuple[int]]:
        return _of_number, (self.number,)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"DataType is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"DataType is immutable: cannot delete {name}")


def _ml_dtypes() -> Any:
    """Return the module ml_dtypes; the dtypes of DLPack import it, or say how to install it."""
    import sys

    assert dlpack_dtypes.bfloat16.numpy is not None
    return sys.modules["ml_dtypes"]


# ---- the table ----------------------------------------------------------------------------------


def _create(row: Row, reference: bool) -> DataType:
    made = object.__new__(DataType)
    wire_name = WIRE_NAMES.get(row.name, row.name)
    suffix = "_ref" if reference else ""
    fields: dict[str, Any] = {
        "number": row.number + REFERENCE * reference,
        "name": row.name + suffix,
        "wire_name": wire_name + suffix,
        "kind": row.kind,
        "is_floating": row.kind == "f",
        "is_integer": row.kind in "iu",
        "is_unsigned": row.kind == "u",
        "is_complex": row.kind == "c",
        "is_bool": row.kind == "b",
        "is_quantized": row.kind == "q",
        "is_numpy_compatible": row.kind != "h",
        "is_ref": reference,
        "dlpack": None if row.kind in "qsh" else DType(row.name),
    }
    if row.numpy is not None:
        # A quantised type is a structure of one field, to distinguish it from its integer.
        pair = np.dtype([(row.name, row.numpy)]) if row.kind == "q" else np.dtype(row.numpy)
        fields |= {"numpy": pair, "as_numpy_dtype": pair if row.kind == "q" else row.numpy}
    elif row.kind == "h":
        fields["numpy"] = None
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


DATA_TYPES: dict[int, DataType] = {}
"""Every DataType by its number."""

for _row in TABLE:
    for _reference in (False, True):
        _made = _create(_row, _reference)
        DATA_TYPES[_made.number] = _made
for _made in DATA_TYPES.values():
    _base = DATA_TYPES[_made.number % REFERENCE]
    _real = {"complex64": 1, "complex128": 2}.get(_base.name, _made.number)
    object.__setattr__(_made, "base_dtype", _base)
    object.__setattr__(_made, "as_ref", DATA_TYPES[_base.number + REFERENCE])
    object.__setattr__(_made, "real_dtype", DATA_TYPES[_real])


def _of_number(number: int) -> DataType:
    return DATA_TYPES[number]


def _of(name: str) -> DataType:
    return _BY_NAME[name]


_BY_NAME = {key: made for made in DATA_TYPES.values() for key in (made.name, made.wire_name)}
_BY_DLPACK = {made.dlpack: made for made in DATA_TYPES.values() if not made.is_ref and made.dlpack}

float32 = _of("float32")
float64 = double = _of("float64")
int32 = _of("int32")
uint8 = _of("uint8")
int16 = _of("int16")
int8 = _of("int8")
string = _of("string")
complex64 = _of("complex64")
int64 = _of("int64")
bool_ = _of("bool")
qint8 = _of("qint8")
quint8 = _of("quint8")
qint32 = _of("qint32")
bfloat16 = _of("bfloat16")
qint16 = _of("qint16")
quint16 = _of("quint16")
uint16 = _of("uint16")
complex128 = _of("complex128")
float16 = half = _of("float16")
resource = _of("resource")
variant = _of("variant")
uint32 = _of("uint32")
uint64 = _of("uint64")
float8_e5m2 = _of("float8_e5m2")
float8_e4m3fn = _of("float8_e4m3fn")
float8_e4m3fnuz = _of("float8_e4m3fnuz")
float8_e4m3b11fnuz = _of("float8_e4m3b11fnuz")
float8_e5m2fnuz = _of("float8_e5m2fnuz")
int4 = _of("int4")
uint4 = _of("uint4")
int2 = _of("int2")
uint2 = _of("uint2")
float4_e2m1fn = _of("float4_e2m1fn")
float32_ref = _of("float32_ref")
float64_ref = _of("float64_ref")
int32_ref = _of("int32_ref")
int64_ref = _of("int64_ref")


def __getattr__(name: str) -> DataType:
    """Return a reference type by its name, such as `string_ref`."""
    if name.endswith("_ref") and name in _BY_NAME:
        return _BY_NAME[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ---- reading ------------------------------------------------------------------------------------

# Python's types mean the dtype that `tf.constant` gives their values, so int is 32 bits wide.
_converted: dict[tuple[type, object], DataType] = {
    (type, float): float32,
    (type, int): int32,
    (type, bool): bool_,
    (type, complex): complex128,
    (type, str): string,
    (type, bytes): string,
    (type, object): string,
}


def is_dtype_name(name: str) -> bool:
    """Return whether `as_dtype` takes this text."""
    return name in _BY_NAME


def as_dtype(x: object) -> DataType:
    """Return the DataType that `x` means.

    Args:
        x: a DataType; a name ("float32", "float", "float32_ref"); a number; a type or dtype of
            NumPy, of any byte order (text and objects are string), or an array with such a dtype;
            a DType of dlbridge or a dtype of PyTorch, JAX, TensorFlow, …; float (float32), int
            (int32), bool, complex (complex128), str, bytes or object (string).

    Raises:
        UnsupportedTypeError: TensorFlow has no such dtype.
    """
    if type(x) is DataType:
        return x
    key = (type(x), x)
    try:
        found = _converted.get(key)
    except not_from_handler(TypeError):  # not hashable
        return _read(x)
    if found is None:
        found = _converted[key] = _read(x)
    return found


def _read(x: Any) -> DataType:
    number = x if type(x) is int else getattr(x, "as_datatype_enum", None)
    found = DATA_TYPES.get(number) if type(number) is int else None
    if isinstance(x, str):
        found = _BY_NAME.get(x) or (_from_dlpack(x) if x.isidentifier() else None)
    elif found is None and number is None:
        found = _from_numpy(x) or _from_dlpack(x)
    if found is None:
        raise UnsupportedTypeError(
            f"as_dtype: {x!r} is not a TensorFlow dtype; expected a name such as 'float32', a "
            "DataType, a dtype of NumPy or of a framework, or a DataType number"
        )
    return found


def _from_numpy(x: Any) -> DataType | None:
    """Read a NumPy dtype or scalar type that DLPack does not know: text, objects, quantised.

    An array of NumPy or JAX stands for its dtype, as in TensorFlow.
    """
    if not isinstance(x, np.generic) and isinstance(getattr(x, "dtype", None), np.dtype):
        x = x.dtype
    if not (isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic))):
        return None
    try:
        dtype = np.dtype(x)
    except not_from_handler(TypeError):  # an abstract type, such as np.number
        return None
    if dtype.kind in "OSU":
        return string
    if dtype.names is not None and len(dtype.names) == 1:
        named = _BY_NAME.get(dtype.names[0])
        return named if named is not None and named.is_quantized and named.numpy == dtype else None
    return _from_dlpack(dtype.newbyteorder("="))


def _from_dlpack(x: Any) -> DataType | None:
    try:
        return _BY_DLPACK.get(dlpack_dtypes.as_dtype(x))
    except not_from_handler(DLBridgeError, TypeError):
        return None
