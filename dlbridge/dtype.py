"""DType: a DLPack dtype as a value.

A DType is a type code, a width in bits and a number of lanes. There is one object for each, so
`is` and `==` agree. `DType(x)` reads what any framework uses as a dtype; `.to(name)` gives that
framework's own object. No framework is imported before `.to` asks for it: an object whose type
comes from torch means that torch is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, final

import numpy as np

from dlbridge.dtype_names import (
    FLOATING_CODES,
    NAMES,
    TENSORFLOW_NUMBERS,
    read_dtype,
    read_tensorflow_number,
    refuse,
    write_dtype,
)
from dlbridge.errors import DLBridgeError, ExchangeError

_interned: dict[tuple[int, int, int], DType] = {}
_converted: dict[tuple[type, object], DType] = {}
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
        """
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
        """True for complex32, complex64 and complex128."""
        return self.code == 5

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

    def packed_bytes(self, count: int) -> int:
        """Return the bytes of `count` elements in compact memory, rounded up to whole bytes."""
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
        found = _exported.get((self, framework))
        if found is None:
            found = _exported[self, framework] = write_dtype(self.name, framework)
        return found

    def __eq__(self, other: object) -> bool:
        if type(other) is DType:
            return self is other
        try:
            return as_dtype(other) is self
        except Exception:  # noqa: BLE001  (whatever cannot be read as one is none)
            return NotImplemented

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
        ExchangeError: reason "lanes" (no lane, or more than 65535) or "dtype" (not in DLPack 1.3).
    """
    found = _interned.get((code, bits, lanes))
    return _create(int(code), int(bits), int(lanes)) if found is None else found


def _create(code: int, bits: int, lanes: int) -> DType:
    if (code, bits) not in NAMES:
        refuse(f"DLPack 1.3 has no dtype with code {code} and {bits} bits")
    if not 1 <= lanes <= 0xFFFF:
        raise ExchangeError("lanes", f"a dtype has 1 to 65535 lanes, got {lanes}")
    scalar = NAMES[code, bits]
    created = object.__new__(DType)
    for field, value in (
        ("code", code),
        ("bits", bits),
        ("lanes", lanes),
        ("name", scalar if lanes == 1 else f"{scalar}x{lanes}"),
    ):
        object.__setattr__(created, field, value)
    return _interned.setdefault((code, bits, lanes), created)


def as_dtype(x: object) -> DType:
    """Return the DType that `x` stands for.

    Args:
        x: a DType; a name ("float32", "float32x4") or array interface typestr ("<f4"); a NumPy
            (or ml_dtypes) dtype or scalar type; a dtype of PyTorch, JAX, TensorFlow, Paddle, MLX,
            TVM; bool, int, float or complex (64-bit, as in NumPy); a tuple (code, bits[, lanes]);
            a cffi `DLDataType`.

    Raises:
        ExchangeError: a dtype that DLPack cannot name (reason "dtype") or whose bytes are not in
            the machine's order ("byte_order").
        ArgumentError: an unknown name.
        UnsupportedTypeError: not a dtype at all.
    """
    if type(x) is DType:
        return x
    if type(x) is tuple:  # would be found under equal tuples of other numbers
        return make_dtype(*read_dtype(x))
    key = (type(x), x)
    try:
        found = _converted.get(key)
    except TypeError:  # not hashable
        return make_dtype(*read_dtype(x))
    if found is None:
        found = _converted[key] = make_dtype(*read_dtype(x))
    return found


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
