"""The parts of a schema: dimensions, dtypes, parameters and results, and the values of a call.

Extents may be symbolic (`torch.SymInt`, JAX's symbolic dimensions): they are compared with `==` and
go through `+ - * //` and nothing else, so that the framework records what it must. An extent that
is not known yet (TensorFlow's None) is None, and so is whatever is computed from it.

A set of dtypes in a schema is a variable: every tensor that names the same set has the same dtype.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from dlbridge import dtype as dtypes
from dlbridge.dtype import NAMES, DType, as_dtype, make_dtype
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import protocol
from dlbridge.signals import not_from_handler

# Those of kernel.h.
MAX_TENSORS = 32  # of a schema as it is written, where a list counts as one
MAX_CALL_TENSORS = 4096  # of a call, with all tensors of its lists
MAX_SCALARS = 16
MAX_NAMES = 32
MAX_PACKS = 4
MAX_DTYPES = 16
MAX_CALL_NAMES = 65536  # dimensions and packs of a call, where each tensor has its own
MAX_LISTS = 8  # arguments that are lists of numbers
MAX_LISTED = 64  # numbers in one of them

SEVERAL = (tuple, list)  # lists of tensors, and several results; older dynamo has no unions

# ---- dimensions ----------------------------------------------------------------------------------

Step = tuple[str, int | str]

MAX_EXTENT = 2**63 - 1
MAX_OPERANDS = 16  # of one expression, so the native stack has 16 places
MAX_STEPS = 2 * MAX_OPERANDS - 1
MAX_NESTED = 32  # parentheses in one another: 15 can mean something

NAMELESS = "..."  # the name of the pack that has none
EACH = "?"  # begins the names whose extents differ between the tensors of a list

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,  # `//` in a schema's text
}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
_OPERAND = 3


class Dim(NamedTuple):
    """One dimension of a parameter or result.

    Attributes:
        kind: "constant" (exactly `value`), "name" (bound by the first tensor that has it), "any"
            (`_`: whatever comes), "pack" (`...` or `*name`: any number of dimensions),
            "expression" (`2*n`: computed) or "counted" (`k<=n`: the kernel says it); and "if", for
            how many tensors an optional result is.
        value: the extent of a constant, the name of a name or pack ("..." if it has none), what
            is counted, or what decides, else "". A name whose extent differs between the tensors of
            a list begins with "?".
        steps: an expression in postfix: ("c", extent), ("n", name), ("+" "-" "*" "/", ""); of what
            is counted, its bound.

    Example:
        >>> str(Dim("expression", "", (("n", "n"), ("c", 2), ("/", ""))))
        'n//2'
    """

    kind: str
    value: int | str = ""
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return _WRITERS[self.kind](self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the dimension needs or binds.

        A pack's own name is none of them, and neither is that of what is counted.
        """
        if self.kind == "name":
            return (str(self.value),)
        return tuple([str(value) for operation, value in self.steps if operation == "n"])

    @property
    def bound(self) -> Dim:
        """How large it can be: of what is counted its bound, else itself."""
        return make_expression(self.steps) if self.kind == "counted" else self

    def is_linear(self, name: str) -> bool:
        """Tell whether an expression is one number times `name`, plus another, whatever they are.

        Example:
            >>> steps = (("n", "n"), ("n", "k"), ("*", ""), ("c", 1), ("+", ""))
            >>> Dim("expression", "", steps).is_linear("n")
            True
        """
        degrees: list[float] = []  # how often `name` is a factor; infinity where that means nothing
        for operation, value in self.steps:
            if operation in ("c", "n"):
                degrees.append(int(operation == "n" and value == name))
                continue
            right, left = degrees.pop(), degrees.pop()
            if operation == "/":
                degrees.append(math.inf if left or right else 0)
            else:
                degrees.append(left + right if operation == "*" else max(left, right))
        return degrees == [1]

    def solve(self, name: str, extent: Any, names: Mapping[str, Any]) -> Any:
        """Return what `name` is where a linear expression has this extent; None where unknown.

        Raises:
            ArithmeticError: no value of the name gives this extent, or every value does.
        """
        base = self.evaluate({**names, name: 0})
        next_ = self.evaluate({**names, name: 1})
        if extent is None or base is None or next_ is None:
            return None
        factor, rest = _operate("-", next_, base), _operate("-", extent, base)
        is_plain = isinstance(factor, int)
        value = rest if is_plain and factor == 1 else _operate("/", rest, factor)
        if is_plain and isinstance(value, int) and (value < 0 or value * factor != rest):
            raise ArithmeticError(f"no {name} makes it {extent}")
        return value

    def evaluate(self, names: Mapping[str, Any]) -> Any:
        """Return the extent where `names` are bound, or None where one of them is unknown.

        Raises:
            ZeroDivisionError, OverflowError: there is no value, or it is beyond 64 bits.
        """
        if self.kind == "constant":
            return self.value
        if self.kind in ("name", "counted"):
            return names.get(str(self.value))
        stack: list[Any] = []
        for operation, value in self.steps:
            if operation == "c":
                stack.append(value)
            elif operation == "n":
                stack.append(names.get(str(value)))
            else:
                right, left = stack.pop(), stack.pop()
                known = left is not None and right is not None
                stack.append(_operate(operation, left, right) if known else None)
        return stack.pop() if stack else None


def _operate(operation: str, left: Any, right: Any) -> Any:
    """Return what the operation gives. Plain integers have 64 bits here, as they have in C."""
    if operation == "/" and isinstance(right, int) and right == 0:
        raise ZeroDivisionError("divides by zero")
    value = OPERATORS[operation](left, right)
    if isinstance(value, int) and not -MAX_EXTENT - 1 <= value <= MAX_EXTENT:
        raise OverflowError("exceeds 64 bits")
    return value


def same_extent(one: Any, other: Any) -> bool:
    """Return whether two extents agree; one that is unknown agrees with anything."""
    if one is other or one is None or other is None:
        return True
    equal = one == other
    return equal if type(equal) is bool else DECIDE.get(type(equal), bool)(equal)


# What a framework says of a comparison of symbols, by the type that it has; else `bool` decides.
DECIDE: dict[type, Callable[[Any], bool]] = {}


def same_shape(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Return whether two shapes agree; one whose rank is unknown agrees with any."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(map(same_extent, one, other))


def is_outside(extent: Any) -> bool:
    """Return whether a plain integer is not an extent: negative or beyond 63 bits."""
    return isinstance(extent, int) and not 0 <= extent <= MAX_EXTENT


def make_expression(steps: Iterable[Step]) -> Dim:
    """Return the simplest dimension that says the same; without names it is a constant.

    Raises:
        ZeroDivisionError, OverflowError: a constant expression has no value.
    """
    dim = Dim("expression", "", tuple(steps))
    if not dim.names:
        return Dim("constant", dim.evaluate({}))
    if len(dim.steps) == 1:
        return Dim("name", dim.steps[0][1])
    return dim


def _write_pack(dim: Dim) -> str:
    name = str(dim.value).removeprefix(EACH)
    mark = EACH if name != dim.value else ""
    return f"{mark}{name}" if name.startswith(NAMELESS) else f"{mark}*{name}"


def _write_expression(dim: Dim) -> str:
    """Return the text with the fewest parentheses that is read back as the same steps."""
    stack: list[tuple[str, int]] = []
    for operation, value in dim.steps:
        if operation in ("c", "n"):
            stack.append((str(value), _OPERAND))
            continue
        binds = _BINDS[operation]
        (right, right_binds), (left, left_binds) = stack.pop(), stack.pop()
        if left_binds < binds:
            left = f"({left})"
        if right_binds <= binds:
            right = f"({right})"
        stack.append((f"{left}{'//' if operation == '/' else operation}{right}", binds))
    return stack[0][0]


_WRITERS: dict[str, Callable[[Dim], str]] = {
    "constant": lambda dim: str(dim.value),
    "name": lambda dim: str(dim.value),
    "any": lambda _: "_",
    "pack": _write_pack,
    "expression": _write_expression,
    "if": lambda dim: str(dim.value),
    "counted": lambda dim: f"{dim.value}<={_write_expression(dim)}",
}


# ---- dtypes --------------------------------------------------------------------------------------


@cache
def short_name(dtype: DType) -> str:
    """Return what a schema calls a dtype.

    Example:
        >>> [short_name(as_dtype(name)) for name in ("float32", "bool", "float8_e4m3fn", "int4x2")]
        ['f32', 'bool', 'f8e4m3fn', 'i4x2']
    """
    return dtypes.short_name(dtype.name)


_BY_NAME: dict[str, DType] = {}
for _name in NAMES.values():
    _dtype = as_dtype(_name)
    _BY_NAME[_name] = _BY_NAME[short_name(_dtype)] = _dtype

# "float" and "int" are sets, below.
_BY_NAME |= {
    word: as_dtype(name) for word, name in dtypes.WORDS.items() if word not in ("float", "int")
}

_INTEGERS = ("i8", "i16", "i32", "i64")
_UNSIGNED = ("u8", "u16", "u32", "u64")
_FLOATING = ("f16", "bf16", "f32", "f64")
_COMPLEX = ("c64", "c128")

# Sets with a name of their own. The empty one takes every dtype.
SETS: dict[str, tuple[DType, ...]] = {
    name: tuple([_BY_NAME[member] for member in members])
    for name, members in {
        "float": _FLOATING,
        "int": _INTEGERS,
        "uint": _UNSIGNED,
        "complex": _COMPLEX,
        "number": (*_INTEGERS, *_UNSIGNED, *_FLOATING, *_COMPLEX),
        "any": (),
    }.items()
}


def find_dtype(name: str) -> DType | None:
    """Return the one dtype of a short or full name, with `xN` for N lanes, or None."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    scalar, _, lanes = name.rpartition("x")
    if scalar in _BY_NAME and lanes.isdecimal() and len(lanes) <= 5 and 1 <= int(lanes) <= 0xFFFF:
        return as_dtype(f"{_BY_NAME[scalar].name}x{int(lanes)}")
    return None


class DTypeSet(NamedTuple):
    """One dtype variable of a schema.

    Attributes:
        text: the set as written, with short names: "f32", "float", "f32|f64"; "" where a scalar of
            kind dtype, which has the variable's name, says it.
        dtypes: its members, also of such a scalar; none means every dtype.
        name: of a variable that has one (`A=float[n]`), else "".

    Example:
        >>> A = DTypeSet("f32|f64", (as_dtype("float32"), as_dtype("float64")), "A")
        >>> A.variable, str(A), A.accepts(as_dtype("int8")), A.only
        ('A', 'A=f32|f64', False, None)
    """

    text: str
    dtypes: tuple[DType, ...]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.text}" if self.name and self.text else self.name or self.text

    @property
    def variable(self) -> str:
        """The identity of the variable within one schema: its name, else its set."""
        return self.name or self.text

    @property
    def only(self) -> DType | None:
        """The dtype of a set with one member, else None."""
        return self.dtypes[0] if len(self.dtypes) == 1 else None

    @property
    def may_be_floating(self) -> bool:
        """True when a tensor of this dtype could have a gradient: real or complex floating."""
        return not self.dtypes or any(
            dtype.is_floating or dtype.is_complex for dtype in self.dtypes
        )

    def accepts(self, dtype: DType) -> bool:
        """Return whether `dtype` is a member."""
        return not self.dtypes or dtype in self.dtypes


def dtype_key(dtype: DType) -> int:
    """Return the number that the native core has for a dtype."""
    code, bits, lanes = dtype.triple
    return code | bits << 8 | lanes << 16


def dtype_of_key(key: int) -> DType:
    """Return the dtype of a number that `dtype_key` gave."""
    return make_dtype(key & 0xFF, key >> 8 & 0xFF, key >> 16)


def is_dtype_name(name: str) -> bool:
    """Return whether a schema means a dtype or a set of them by `name`."""
    return name in SETS or find_dtype(name) is not None


def make_set(names: Iterable[str], name: str = "") -> DTypeSet:
    """Return the union of dtypes and sets by name.

    Raises:
        KeyError: a name that is neither, or "any" in a union; with that name.
    """
    atoms: dict[str, tuple[DType, ...]] = {}
    listed = list(names)
    for atom in listed:
        dtype = find_dtype(atom)
        if dtype is not None:
            atoms[short_name(dtype)] = (dtype,)
        elif atom in SETS and (atom != "any" or len(listed) == 1):
            atoms[atom] = SETS[atom]
        else:
            raise KeyError(atom)
    members = dict.fromkeys(dtype for part in atoms.values() for dtype in part)
    return DTypeSet("|".join(atoms), tuple(members), name)


# ---- parameters and results ----------------------------------------------------------------------

SCALAR_KINDS = ("int", "float", "bool", "str", "dtype")
LIST_KINDS = {"int[]": int, "float[]": float}  # lists of numbers, and what these are
# Results that are numbers, and the dtypes of the tensors without dimensions that hold them.
NUMBER_KINDS = {"int": "i64", "float": "f64", "bool": "bool"}


class Missing:
    """The type of MISSING, which stands for no default and for no argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


class Bindings:
    """The values that the tensors of one call give to the names in a schema.

    Attributes:
        names: named dimension -> extent; a name without an entry, or with None, is not known.
        packs: name of a pack -> tuple of extents; without an entry it is not known.
        dtypes: `DTypeSet.variable` -> DType.
    """

    __slots__ = ("dtypes", "names", "packs")

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.packs: dict[str, tuple[Any, ...]] = {}
        self.dtypes: dict[str, DType] = {}

    def __repr__(self) -> str:
        return f"Bindings(names={self.names}, packs={self.packs}, dtypes={self.dtypes})"


class Described(NamedTuple):
    """A tensor as far as a schema looks at it.

    Attributes:
        shape: its extents, which may be symbolic or None (unknown); None for an unknown rank.
        dtype: its DType.
        source: what it is, for texts: "torch.Tensor".
        device: where it is, for texts: "cpu".

    Example:
        >>> print(Described((56, 56), DType("float64"), "torch.Tensor", "cpu").text())
        f64[56, 56] (torch.Tensor, cpu)
    """

    shape: tuple[Any, ...] | None
    dtype: DType
    source: str = ""
    device: str = ""

    def text(self) -> str:
        """Return dtype, shape and, in parentheses, what it is and where."""
        origin = ", ".join([word for word in (self.source, self.device) if word])
        return f"{describe(self.shape, self.dtype)} ({origin})" if origin else self.plain

    @property
    def plain(self) -> str:
        """The text without what it is and where."""
        return describe(self.shape, self.dtype)


def describe(shape: tuple[Any, ...] | None, dtype: DType) -> str:
    """Return a dtype and a shape in the notation of schemas; `?` for what is not known."""
    extents = ["?..."] if shape is None else ["?" if dim is None else str(dim) for dim in shape]
    return f"{short_name(dtype)}[{', '.join(extents)}]"


class Solution(NamedTuple):
    """A name that no tensor has as a dimension, and the expression that determines it.

    Attributes:
        place: of the tensor.
        dim: which of its dimensions.
        name: what it is solved for.
    """

    place: int
    dim: int
    name: str


class Parameter(NamedTuple):
    """One argument of a kernel.

    Attributes:
        name: its name.
        kind: "tensor", or that of a scalar: "int", "float", "bool", "str", "dtype"; of a list of
            numbers, which counts among the scalars: "int[]", "float[]".
        dtype: a tensor's DTypeSet, None for a scalar.
        dims: a tensor's dimensions.
        optional: True when None may be passed.
        default: a scalar of Python, a tuple of numbers, a DType, None, or MISSING.
        keyword_only: True when it is passed by name only.
        mutated: True for a tensor that the kernel writes in place.
        length: how many numbers a list must have; None for any number of them.
        many: of a list of tensors, how many it has: a Dim of kind "any", "constant" or "name";
            None for one tensor.
        among: for an argument that is a dtype, those that may be passed; None allows any.
    """

    name: str
    kind: str
    dtype: DTypeSet | None = None
    dims: tuple[Dim, ...] = ()
    optional: bool = False
    default: Any = MISSING
    keyword_only: bool = False
    mutated: bool = False
    length: int | None = None
    many: Dim | None = None
    among: DTypeSet | None = None

    @property
    def is_tensor(self) -> bool:
        """True for a tensor, False for a scalar."""
        return self.kind == "tensor"

    @property
    def is_list(self) -> bool:
        """True for a list of tensors."""
        return self.many is not None

    @property
    def type_text(self) -> str:
        """The text between the colon and the default: "f32[n]?", "float"."""
        return self.expected()

    def expected(self, bindings: Bindings | None = None) -> str:
        """Return the type, with what is bound: "f32[k=56, n]"."""
        text = self.kind if self.dtype is None else expected_text(self.dtype, self.dims, bindings)
        text += write_many(self.many)
        if self.among is not None:
            text += f" in {self.among.text}"
        if self.length is not None:
            text = f"{self.kind[:-1]}{self.length}]"
        return f"{text}?" if self.optional else text


class Result(NamedTuple):
    """One result of a kernel.

    Attributes:
        name: its name; "out" for the only one, "out_0", "out_1", … where the text gives none.
        dtype: its DTypeSet.
        dims: its dimensions.
        many: of a list of tensors, how many it has, as for a Parameter; of an optional result a
            Dim of kind "if": inside, it is a list of one tensor or of none.
        number: of a number of Python "int", "float" or "bool", which has the dtype and the dims of
            the tensor that holds it; else "".
    """

    name: str
    dtype: DTypeSet
    dims: tuple[Dim, ...]
    many: Dim | None = None
    number: str = ""

    @property
    def is_list(self) -> bool:
        """True for a list of tensors."""
        return self.many is not None and self.many.kind != "if"

    @property
    def condition(self) -> str:
        """The argument that decides whether an optional result is there; else ""."""
        return str(self.many.value) if self.many is not None and self.many.kind == "if" else ""

    @property
    def may_have_gradient(self) -> bool:
        """Whether it could have a gradient; a number, which is a constant, has none."""
        return not self.number and self.dtype.may_be_floating

    @property
    def type_text(self) -> str:
        """The result's type: "f32[n]"."""
        return self.expected()

    def expected(self, bindings: Bindings | None = None) -> str:
        """Return the type, with what is bound: "f32[k=56, n=3]"."""
        text = self.number or expected_text(self.dtype, self.dims, bindings)
        return text + write_many(self.many)


Part = Parameter | Result


def write_many(many: Dim | None) -> str:
    """Return what follows a tensor's type: of a list "[]", "[2]", "[k]"; "? if save"; or ""."""
    if many is None:
        return ""
    if many.kind == "if":
        return f"? if {many.value}"
    return "[]" if many.kind == "any" else f"[{many}]"


def join_parts(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> tuple[Part, ...]:
    """Return parameters, then results: a tensor's place in what it gives is its place in a call."""
    return (*parameters, *results)


class Arguments(NamedTuple):
    """A call, sorted: tensors and scalars in the schema's order.

    Attributes:
        tensors: the caller's own objects, None for an optional one that is left out; a list of
            them for a list of tensors. So in `out`.
        scalars: int, float, bool, str of Python, a tuple of numbers, a DType, or None for an
            optional one that is left out.
        out: the objects given as `out=`, one for each result; None without it.
    """

    tensors: list[Any]
    scalars: list[Any]
    out: list[Any] | None


def expected_text(dtype: DTypeSet, dims: tuple[Dim, ...], bindings: Bindings | None) -> str:
    """Return dtype and dims with the values that names, packs and variables have by now."""
    if bindings is None:
        bindings = Bindings()
    extents = ", ".join([_dim_text(dim, bindings) for dim in dims])
    return f"{_dtype_text(dtype, bindings.dtypes)}[{extents}]"


def _dtype_text(dtype: DTypeSet, bound: Mapping[str, DType]) -> str:
    found = bound.get(dtype.variable)
    if found is None or (dtype.only is not None and not dtype.name):
        return str(dtype)
    return f"{dtype.variable}={short_name(found)}"


def _dim_text(dim: Dim, bindings: Bindings) -> str:
    if dim.kind == "pack":
        extents = bindings.packs.get(str(dim.value))
        if extents is None:
            return str(dim)
        return f"{dim}=({', '.join(map(str, extents))})"
    if dim.kind not in ("name", "expression", "counted"):
        return str(dim)
    try:
        extent = dim.bound.evaluate(bindings.names)
    except not_from_handler(ArithmeticError):
        extent = None
    if extent is None or (dim.kind == "counted" and dim.bound.kind == "constant"):
        return str(dim)
    return f"{dim}={extent}"


# ---- tensors of any framework --------------------------------------------------------------------


def described(value: Any) -> Described:
    """Return shape, dtype, kind and device of an array, a tensor or a tracer; no data is read.

    Extents are the framework's own, symbolic ones included; None where TensorFlow knows none.

    Raises:
        UnsupportedTypeError: it has no shape and dtype.

    Example:
        >>> import numpy
        >>> print(described(numpy.zeros((2, 3), "float32")).text())
        f32[2, 3] (numpy.ndarray, cpu)
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if dtype is None or not hasattr(type(value), "shape"):
        raise UnsupportedTypeError(f"{protocol.describe(value)} is not a tensor")
    return Described(_extents(shape), as_dtype(dtype), protocol.describe(value), _place(value))


def _extents(shape: Any) -> tuple[Any, ...] | None:
    rank = getattr(shape, "rank", len(shape) if isinstance(shape, tuple) else 0)
    if rank is None:  # a tensorflow.TensorShape that knows nothing
        return None
    return tuple(shape.as_list() if hasattr(shape, "as_list") else shape)


def _place(value: Any) -> str:
    try:
        device = getattr(value, "device", None)  # NumPy 1 has none
    except not_from_handler(Exception):  # a tracer may refuse the question, in any way
        return ""
    return str(getattr(device, "platform", device)) if device is not None else "cpu"


# ---- scalars -------------------------------------------------------------------------------------

_PLAIN = (bool, int, float, str, DType, type(None))


def is_plain(value: Any) -> bool:
    """Return whether a scalar has a value now: it is no tracer, and no list of such."""
    if isinstance(value, tuple):
        return all(isinstance(each, int | float) for each in value)
    return isinstance(value, _PLAIN)


def write_list(numbers: Iterable[int | float]) -> str:
    """Return a list as the native core reads it from a text; of floats it has the bits.

    Example:
        >>> write_list((3, -1)), write_list((1.0, -0.0))
        ('3,-1', '3ff0000000000000,8000000000000000')
    """
    return ",".join(
        struct.pack(">d", each).hex() if isinstance(each, float) else str(int(each))
        for each in numbers
    )


def read_list(text: str, kind: str) -> tuple[Any, ...]:
    """Return the list of a kind that `write_list` wrote.

    Raises:
        ArgumentError: the text is not such a list.
    """
    words = text.split(",") if text else []
    form = _INT if kind == "int[]" else _FLOAT
    if len(words) > MAX_LISTED or not all(form.fullmatch(word) for word in words):
        raise ArgumentError(f"{text!r} is not a list of {kind[:-2]}")
    if kind == "int[]":
        return tuple([int(word) for word in words])
    return tuple([struct.unpack(">d", bytes.fromhex(word))[0] for word in words])


_INT = re.compile(r"-?[0-9]{1,19}")
_FLOAT = re.compile(r"[0-9a-f]{16}")


def default_name(index: int, count: int) -> str:
    """Return the name of a result that has none in the text."""
    return "out" if count == 1 else f"out_{index}"


def is_transferable(text: str) -> bool:
    """Return whether C can get `text`: UTF-8 that ends at its first NUL."""
    try:
        return b"\0" not in text.encode()
    except not_from_handler(UnicodeEncodeError):
        return False
