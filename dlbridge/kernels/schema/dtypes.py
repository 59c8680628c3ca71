"""Dtypes in a schema: short names, sets, and the variables that they are.

A set of dtypes in a schema is a variable: every tensor that names the same set has the same dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from dlbridge.dtype import NAMES, DType, as_dtype

# What a name begins with, and what a short name begins with; the first that fits.
_SHORTER = (
    ("float8_", "f8"),
    ("float6_", "f6"),
    ("float4_", "f4"),
    ("bfloat", "bf"),
    ("float", "f"),
    ("complex", "c"),
    ("uint", "u"),
    ("int", "i"),
)


@cache
def short_name(dtype: DType) -> str:
    """Return what a schema calls a dtype.

    Example:
        >>> [short_name(as_dtype(name)) for name in ("float32", "bool", "float8_e4m3fn", "int4x2")]
        ['f32', 'bool', 'f8e4m3fn', 'i4x2']
    """
    for prefix, shorter in _SHORTER:
        if dtype.name.startswith(prefix):
            return shorter + dtype.name.removeprefix(prefix)
    return dtype.name


_BY_NAME: dict[str, DType] = {}
for _name in NAMES.values():
    _dtype = as_dtype(_name)
    _BY_NAME[_name] = _BY_NAME[short_name(_dtype)] = _dtype

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
    if scalar in _BY_NAME and lanes.isdecimal() and 1 <= int(lanes) <= 0xFFFF:
        return as_dtype(f"{_BY_NAME[scalar].name}x{int(lanes)}")
    return None


class DTypeSet(NamedTuple):
    """One dtype variable of a schema.

    Attributes:
        text: the set as written, with short names: "f32", "float", "f32|f64".
        dtypes: its members; none means every dtype.
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
        return f"{self.name}={self.text}" if self.name else self.text

    @property
    def variable(self) -> str:
        """What identifies the variable within one schema: its name, else its set."""
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
        """Tell whether `dtype` is a member."""
        return not self.dtypes or dtype in self.dtypes


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
