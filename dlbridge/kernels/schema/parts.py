"""What schemas are made of, what calls become, and their texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dlbridge.dtype import DType
from dlbridge.kernels.schema.dims import NAMELESS, Dim
from dlbridge.kernels.schema.dtypes import DTypeSet, short_name

SCALAR_KINDS = ("int", "float", "bool", "str")


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
    """What the tensors of one call say about the names in a schema.

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


class Parameter(NamedTuple):
    """One argument of a kernel.

    Attributes:
        name: its name.
        kind: "tensor", or that of a scalar: "int", "float", "bool", "str".
        dtype: a tensor's DTypeSet, None for a scalar.
        dims: a tensor's dimensions.
        optional: True when None may be passed.
        default: a scalar of Python, None, or MISSING.
        keyword_only: True when it is passed by name only.
        mutated: True for a tensor that the kernel writes in place.
    """

    name: str
    kind: str
    dtype: DTypeSet | None = None
    dims: tuple[Dim, ...] = ()
    optional: bool = False
    default: Any = MISSING
    keyword_only: bool = False
    mutated: bool = False

    @property
    def is_tensor(self) -> bool:
        """True for a tensor, False for a scalar."""
        return self.kind == "tensor"

    @property
    def type_text(self) -> str:
        """What stands between the colon and the default: "f32[n]?", "float"."""
        return self.expected()

    def expected(self, bindings: Bindings | None = None) -> str:
        """Return the type, with what is bound: "f32[k=56, n]"."""
        text = self.kind if self.dtype is None else expected_text(self.dtype, self.dims, bindings)
        return f"{text}?" if self.optional else text


class Result(NamedTuple):
    """One result of a kernel.

    Attributes:
        name: its name; "out" for the only one, "out_0", "out_1", … where the text gives none.
        dtype: its DTypeSet.
        dims: its dimensions.
    """

    name: str
    dtype: DTypeSet
    dims: tuple[Dim, ...]

    @property
    def type_text(self) -> str:
        """The result's type: "f32[n]"."""
        return expected_text(self.dtype, self.dims, None)

    def expected(self, bindings: Bindings | None = None) -> str:
        """Return the type, with what is bound: "f32[k=56, n=3]"."""
        return expected_text(self.dtype, self.dims, bindings)


Part = Parameter | Result


def join_parts(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> tuple[Part, ...]:
    """Return parameters, then results: a tensor's place in what it gives is its place in a call."""
    return (*parameters, *results)


class Arguments(NamedTuple):
    """A call, sorted: tensors and scalars in the schema's order.

    Attributes:
        tensors: the caller's own objects, None for an optional one that is left out.
        scalars: int, float, bool, str of Python, or None for an optional one that is left out.
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
        prefix = "" if dim.value == NAMELESS else "*"
        return f"{prefix}{dim.value}=({', '.join(map(str, extents))})"
    if dim.kind not in ("name", "expression"):
        return str(dim)
    try:
        extent = dim.evaluate(bindings.names)
    except ArithmeticError:
        extent = None
    return str(dim) if extent is None else f"{dim}={extent}"
