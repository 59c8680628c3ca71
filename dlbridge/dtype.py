"""DType: a DLPack dtype as a value.

A DType is a type code, a width in bits and a number of lanes. There is one object for each, so
`is` and `==` agree. `DType(x)` reads what any framework uses as a dtype; `.to(name)` gives that
framework's own object. The names of each framework are in its adapter, found by the module of the
object's type. No framework is imported before `.to` asks for it.

Type codes that are newer than DLPack 1.3 have no name: they are carried, and written by their
numbers, as `code19_bits16`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import index
from typing import Any, NoReturn, final

import numpy as np

from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError, ExchangeError, UnsupportedTypeError
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

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
    18: ("bcomplex", (32,), None),
}
NAMES: dict[tuple[int, int], str] = {
    (code, bits): family if bits == plain else f"{family}{bits}"
    for code, (family, widths, plain) in _FAMILIES.items()
    for bits in widths
}
_SCALARS: dict[str, tuple[int, int]] = {name: key for key, name in NAMES.items()}
CODES = frozenset(_FAMILIES)  # of DLPack 1.3
_LAST_CODE = max(CODES)
_BY_NUMBER = re.compile(r"code([1-9]\d{1,2})_bits([1-9]\d{0,2})(?:x(\d{1,19}))?")
# The beginnings of names and of short names; the first that fits counts.
_SHORTER = (
    ("float8_", "f8"),
    ("float6_", "f6"),
    ("float4_", "f4"),
    ("bfloat", "bf"),
    ("bcomplex", "bc"),
    ("float", "f"),
    ("complex", "c"),
    ("uint", "u"),
    ("int", "i"),
)


def short_name(name: str) -> str:
    """Return the short form of a DType's name, in which schemas are written.

    Example:
        >>> [short_name(name) for name in ("float32", "bool", "float8_e4m3fn", "int4x2")]
        ['f32', 'bool', 'f8e4m3fn', 'i4x2']
    """
    for prefix, shorter in _SHORTER:
        if name.startswith(prefix):
            return shorter + name.removeprefix(prefix)
    return name


# NumPy counts bytes where the short names count bits.
_AMBIGUOUS = {
    f"{kind}{size}": (f"{name}{size}", f"{name}{8 * size}")
    for kind, name in (("i", "int"), ("u", "uint"))
    for size in (1, 2, 4, 8)
}
# The names that C and PyTorch have for dtypes.
WORDS = {
    "half": "float16",
    "float": "float32",
    "single": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "bfloat": "bfloat16",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
_OTHER_NAMES = {
    **{short_name(name): name for name in _SCALARS if short_name(name) not in _AMBIGUOUS},
    **WORDS,
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bool_": "bool",
}
FLOATING_CODES = frozenset((2, 4, *range(7, 18)))
COMPLEX_CODES = frozenset((5, 18))

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

_interned: dict[tuple[int, int, int], DType] = {}
converted: dict[tuple[type, object], DType] = {}  # filled by as_dtype; the core reads it
_exported: dict[tuple[DType, str], Any] = {}


@final
class DType:
    """One DLPack dtype: `code`, `bits` of one lane, `lanes`.

    Equality accepts everything that `DType(x)` accepts (`DType("float32") == torch.float32`) and is
    False for anything else. The hash is that of a DType: dicts do not mix DTypes with the dtypes of
    other libraries.

    Example:
        >>> DType("float32x4").triple, DType(np.int16), DType((4, 16)).itemsize
        ((2, 32, 4), DType('int16'), 2)
    """

    __slots__ = ("bits", "code", "lanes", "name")

    code: int
    bits: int
    lanes: int
    name: str

    def __new__(cls, x: object) -> DType:
        """Return the DType that `x` stands for; see `as_dtype`."""
        return as_dtype(x)

    @staticmethod
    def from_tensorflow_number(number: int) -> DType:
        """Return the DType of one of TensorFlow's `DataType` numbers.

        Raises:
            ExchangeError: reason "dtype"; DLPack cannot name it (string, quantised, reference, …).
            UnsupportedTypeError: `number` is not an integer.
        """
        number = _integer(number, "DType.from_tensorflow_number: number")
        return make_dtype(*read_tensorflow_number(number))

    @property
    def triple(self) -> tuple[int, int, int]:
        """(code, bits, lanes), the three fields of DLDataType."""
        return self.code, self.bits, self.lanes

    @property
    def itembits(self) -> int:
        """Bits of one element when packed: `bits * lanes`."""
        return self.bits * self.lanes

    @property
    def itemsize(self) -> int:
        """Bytes of one element, rounded up: 1 for int4; see `itembits` and `packed_bytes`."""
        return (self.bits * self.lanes + 7) // 8

    @property
    def is_packed(self) -> bool:
        """True when one lane is narrower than a byte, so that neighbours share bytes."""
        return self.bits < 8

    @property
    def is_integer(self) -> bool:
        """True for int and uint of any width."""
        return self.code in (0, 1)

    @property
    def is_floating(self) -> bool:
        """True for real floating point, from float64 to float4."""
        return self.code in FLOATING_CODES

    @property
    def is_complex(self) -> bool:
        """True for complex32, complex64, complex128, and bcomplex32 of two bfloat16."""
        return self.code in COMPLEX_CODES

    @property
    def is_bool(self) -> bool:
        """True for bool."""
        return self.code == 6

    @property
    def tensorflow_number(self) -> int:
        """TensorFlow's `DataType` number; ExchangeError "dtype" when it has none."""
        if self.name not in TENSORFLOW_NUMBERS:
            refuse(f"TensorFlow has no DataType number for {self.name}")
        return TENSORFLOW_NUMBERS[self.name]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype, from ml_dtypes where NumPy has none of its own."""
        dtype: np.dtype[Any] = self.to("numpy")
        return dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same, where NumPy and TensorFlow look for it: np.empty(3, dtype=DType("int8"))."""
        try:
            return self.numpy
        except DLBridgeError as error:
            raise AttributeError(str(error)) from error

    def __dlpack_data_type__(self) -> tuple[int, int, int]:
        """Return (code, bits, lanes), where tvm-ffi and others look for it."""
        return self.triple

    def packed_bytes(self, count: int) -> int:
        """Return the bytes of `count` elements in compact memory, rounded up to whole bytes.

        Raises:
            UnsupportedTypeError: `count` is not an integer.
            ArgumentError: `count` is negative.
        """
        count = _integer(count, "DType.packed_bytes: count")
        if count < 0:
            raise ArgumentError(f"DType.packed_bytes: count must not be negative, got {count}")
        return (self.bits * self.lanes * count + 7) // 8

    def to(self, framework: str) -> Any:
        """Return the dtype object of `framework`, importing that framework if need be.

        Args:
            framework: "numpy", "torch", "jax", "tensorflow", "tvm", "paddle", "mlx", "cupy" or
                "dpnp". JAX, CuPy and dpnp use NumPy's dtype objects; "tvm" gives tvm_ffi's.

        Raises:
            ExchangeError: reason "dtype"; the framework has no such dtype.
            FrameworkMissingError: it is not installed.
        """
        registry.require_name(framework, "DType.to")
        found = _exported.get((self, framework))
        if found is None:
            found = _exported[self, framework] = _write(self.name, framework)
        return found

    def __eq__(self, other: object) -> bool:
        if type(other) is DType:
            return self is other
        try:
            return as_dtype(other) is self
        except not_from_handler(Exception):  # whatever cannot be read as one is none
            # An array would compare its elements with the DType.
            return False if hasattr(other, "__array__") else NotImplemented

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"DType({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[int, int, int], DType], tuple[int, int, int]]:
        return make_dtype, self.triple

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"DType is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"DType is immutable: cannot delete {name}")


def make_dtype(code: int, bits: int, lanes: int = 1) -> DType:
    """Return the one DType of these DLDataType fields.

    Raises:
        ExchangeError: reason "lanes" (no lane, or more than 65535) or "dtype" (DLPack 1.3 has the
            code, but not of that width; or it does not fit the fields).
    """
    found = _interned.get((code, bits, lanes))
    return _create(int(code), int(bits), int(lanes)) if found is None else found


def _integer(value: Any, what: str) -> int:
    """Return `value` as an int; `what` is the call and the argument that it was given for."""
    if hasattr(value, "__index__"):
        return index(value)
    raise UnsupportedTypeError(f"{what} must be an integer, got {type(value).__name__}")


def _create(code: int, bits: int, lanes: int) -> DType:
    is_later = _LAST_CODE < code < 256 and 0 < bits < 256
    if (code, bits) not in NAMES and not is_later:
        refuse(f"DLPack 1.3 has no dtype with code {code} and {bits} bits")
    if not 1 <= lanes <= 0xFFFF:
        raise ExchangeError("lanes", f"a dtype has 1 to 65535 lanes, got {lanes}")
    scalar = f"code{code}_bits{bits}" if is_later else NAMES[code, bits]
    created = object.__new__(DType)
    for field, value in (
        ("code", code),
        ("bits", bits),
        ("lanes", lanes),
        ("name", scalar if lanes == 1 else f"{scalar}x{lanes}"),
    ):
        object.__setattr__(created, field, value)
    one = _interned.setdefault((code, bits, lanes), created)
    native.share(one)
    return one


def as_dtype(x: object) -> DType:
    """Return the DType that `x` stands for.

    Args:
        x: a DType; a name ("float32", "float32x4", "code19_bits16"), also a short one ("f32",
            "bf16"), PyTorch's ("half", "float", "double", "int", "long") or NumPy's ("f4",
            "<f4"); a NumPy (or ml_dtypes) dtype or scalar type; a dtype of PyTorch, JAX,
            TensorFlow, Paddle, MLX, TVM; bool, int, float or complex (64-bit, as in NumPy); a tuple
            (code, bits[, lanes]); a cffi `DLDataType`; any object with `__dlpack_data_type__`.

    Raises:
        ExchangeError: a dtype that DLPack cannot name (reason "dtype") or whose bytes are not in
            the machine's order ("byte_order").
        ArgumentError: an unknown name.
        UnsupportedTypeError: not a dtype at all.
    """
    if type(x) is DType:
        return x
    if type(x) is tuple:  # would be found under equal tuples of other numbers
        return make_dtype(*_read(x))
    key = (type(x), x)
    try:
        found = converted.get(key)
    except not_from_handler(TypeError):  # not hashable
        return make_dtype(*_read(x))
    if found is None:
        found = make_dtype(*_read(x))
        if isinstance(x, str) or not hasattr(type(x), "__dlpack_data_type__"):
            converted[key] = found  # the others may be new objects each time
    return found


# ---- reading and writing dtypes ----


def _read(x: Any) -> Fields:
    for kind, read in _KINDS.items():
        if isinstance(x, kind):
            return read(x)
    reader = _READERS.get(str(type(x).__module__).partition(".")[0])
    return _from_framework(x) if reader is None else reader(x)


def _from_framework(x: Any) -> Fields:
    adapter = registry.adapter_of_object(x)
    if adapter is not None:
        return adapter.read_dtype(x)
    if isinstance(x, type) or not hasattr(x, "__dlpack_data_type__"):
        raise unsupported(x)
    return _from_tuple(tuple(x.__dlpack_data_type__()))


def unsupported(x: object) -> UnsupportedTypeError:
    """Return the error of an object that is not a dtype."""
    return UnsupportedTypeError(
        f"DType: cannot read {type(x).__name__} {x!r} as a dtype; pass a name such as 'float32', "
        "a framework's dtype or a tuple (code, bits, lanes)"
    )


def refuse(text: str) -> NoReturn:
    """Raise the refusal of a dtype that one side cannot name."""
    raise ExchangeError("dtype", text)


def _from_name(name: str) -> Fields:
    lanes = "1"
    scalar = name.removeprefix("torch.")  # as `str` writes PyTorch's
    if scalar not in _SCALARS and scalar not in _OTHER_NAMES:
        scalar, _, lanes = scalar.rpartition("x")
    scalar = _OTHER_NAMES.get(scalar, scalar)
    if scalar in _SCALARS and lanes.isdecimal() and len(lanes) < 20:
        return *_SCALARS[scalar], int(lanes)
    if numbers := _BY_NUMBER.fullmatch(scalar if lanes == "1" else name):
        code, bits, count = numbers.groups("1")
        return int(code), int(bits), int(count)
    if name[:1] in ("<", ">", "=", "|"):
        try:
            return read_numpy(np.dtype(name))
        except not_from_handler(TypeError):
            pass
    if name in _AMBIGUOUS:
        ours, numpys = _AMBIGUOUS[name]
        raise ArgumentError(
            f"DType: {name!r} is {ours} in bits, and NumPy's {numpys} in bytes; write one of these"
        )
    raise ArgumentError(
        f"DType: unknown name {name!r}; known are {', '.join(_SCALARS)}, each with xN for N lanes"
        f"{did_you_mean(name, (*_SCALARS, *_OTHER_NAMES))}"
    )


def _from_tuple(fields: tuple[Any, ...]) -> Fields:
    try:
        code, bits, lanes = map(index, fields if len(fields) > 2 else (*fields, 1))
    except not_from_handler(TypeError, ValueError):
        raise unsupported(fields) from None
    return code, bits, lanes


def _from_type(kind: type) -> Fields:
    if kind in _PYTHON_TYPES:
        return _from_name(_PYTHON_TYPES[kind])
    if issubclass(kind, np.generic | np.dtype):
        return read_numpy(np.dtype(kind))
    return _from_framework(kind)


def read_numpy(dtype: np.dtype[Any]) -> Fields:
    """Return the fields of a NumPy dtype."""
    if not dtype.isnative:
        raise ExchangeError(
            "byte_order",
            f"DLPack carries the machine's byte order only, got {dtype!r}; "
            "convert with x.astype(x.dtype.newbyteorder('='))",
        )
    if dtype.name not in _SCALARS:
        advice = _ADVICE_BY_KIND.get(dtype.kind)
        if dtype.names is not None:
            advice = f"pass its fields one by one, as x[{dtype.names[0]!r}]"
        refuse(f"DLPack has no dtype for NumPy's {dtype!r}" + (f"; {advice}" if advice else ""))
    return *_SCALARS[dtype.name], 1


# What to do with arrays of NumPy that no other framework has, by the kind of their dtype.
_ADVICE_BY_KIND = {
    "M": 'pass the count of its units, x.view("int64")',
    "O": "cast it to numbers with x.astype",
    "S": "encode the text as numbers first",
    "T": "encode the text as numbers first",
    "U": "encode the text as numbers first",
    "V": 'pass its bytes, x.view("uint8")',
    "c": 'cast it with x.astype("complex128")',
    "f": 'cast it with x.astype("float64")',
    "m": 'pass the count of its units, x.view("int64")',
}


def _from_struct(struct: Any) -> Fields:
    try:
        return int(struct.code), int(struct.bits), int(struct.lanes)
    except not_from_handler(AttributeError):
        raise unsupported(struct) from None


def read_named(x: Any, name: str) -> Fields:
    """Return the fields of `x`, a framework's object for the dtype called `name`.

    Raises:
        UnsupportedTypeError: by its type, `x` is no dtype.
        ExchangeError: with reason "dtype", DLPack has no such dtype.
    """
    if type(x).__name__.lower() not in ("dtype", "datatype"):
        raise unsupported(x)
    if name not in _SCALARS and name != "float4_e2m1fnx2":
        refuse(f"DLPack has no dtype for {x!r}")
    return _from_name(name)


def read_tensorflow(x: Any) -> Fields:
    """Return the fields of an object that says its number in TensorFlow's `DataType`."""
    try:
        number = x.as_datatype_enum
    except not_from_handler(AttributeError):
        raise unsupported(x) from None
    return read_tensorflow_number(number)


def read_tensorflow_number(number: int) -> Fields:
    """Return the fields of one of TensorFlow's `DataType` numbers."""
    if number not in _TENSORFLOW:
        refuse(f"DLPack has no dtype for TensorFlow's DataType number {number}")
    return *_SCALARS[_TENSORFLOW[number]], 1


_KINDS: dict[type, Callable[[Any], Fields]] = {
    str: _from_name,  # also tvm_ffi.dtype
    tuple: _from_tuple,
    type: _from_type,
    np.dtype: read_numpy,
}
# By the first part of type(x).__module__, where that is no framework's.
_READERS: dict[str, Callable[[Any], Fields]] = {
    "_cffi_backend": _from_struct,
    "dlbridge": read_tensorflow,  # proto.datatypes.DataType
}


def _write(name: str, framework: str) -> Any:
    """Return the dtype object of `framework` for a DType's name; see `DType.to`."""
    adapter: registry.Adapter = registry.adapter(framework, "DType.to")
    try:
        return adapter.make_dtype(name)
    except DLBridgeError:
        raise
    except not_from_handler(AttributeError, TypeError, ValueError):
        refuse(f"{framework} has no dtype for {name}")


# ---- constants ----

int2 = make_dtype(0, 2)
int4 = make_dtype(0, 4)
int8 = make_dtype(0, 8)
int16 = make_dtype(0, 16)
int32 = make_dtype(0, 32)
int64 = make_dtype(0, 64)
uint2 = make_dtype(1, 2)
uint4 = make_dtype(1, 4)
uint8 = make_dtype(1, 8)
uint16 = make_dtype(1, 16)
uint32 = make_dtype(1, 32)
uint64 = make_dtype(1, 64)
float16 = make_dtype(2, 16)
float32 = make_dtype(2, 32)
float64 = make_dtype(2, 64)
handle = make_dtype(3, 64)
bfloat16 = make_dtype(4, 16)
bcomplex32 = make_dtype(18, 32)
complex32 = make_dtype(5, 32)
complex64 = make_dtype(5, 64)
complex128 = make_dtype(5, 128)
bool_ = make_dtype(6, 8)
float8_e3m4 = make_dtype(7, 8)
float8_e4m3 = make_dtype(8, 8)
float8_e4m3b11fnuz = make_dtype(9, 8)
float8_e4m3fn = make_dtype(10, 8)
float8_e4m3fnuz = make_dtype(11, 8)
float8_e5m2 = make_dtype(12, 8)
float8_e5m2fnuz = make_dtype(13, 8)
float8_e8m0fnu = make_dtype(14, 8)
float6_e2m3fn = make_dtype(15, 6)
float6_e3m2fn = make_dtype(16, 6)
float4_e2m1fn = make_dtype(17, 4)
