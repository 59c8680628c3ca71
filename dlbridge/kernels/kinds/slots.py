"""Parameters of C functions as the core reads them: what each is given, and where that is found.

Host functions (`c_call`) and GPU kernels (`cuda_launch`) are called with the same slots; what the
names of a C signature mean is said in `raw`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dlbridge._core import ffi
from dlbridge.errors import ArgumentError
from dlbridge.kernels.kinds import raw
from dlbridge.kernels.schema import LIST_KINDS, Schema, join_parts

# name, kind, index, size in bytes, whether it is signed, dimension
Slot = tuple[str, str, int, int, bool, int]

END = 2**31 - 1  # up to the last dimension: that of abi.c
# Of scalars; a dtype is passed as an integer with the bits of its DLDataType.
_KINDS = {
    "int": "i", "bool": "i", "dtype": "i", "float": "f", "str": "z", "int[]": "l", "float[]": "l",
}  # fmt: skip


def encode(schema: Schema, values: Values, parameter: raw.CParameter) -> Slot:
    """Return the slot of a parameter of a C signature that fits the schema."""
    name, kind, size = parameter.name, parameter.type, size_of(parameter)
    is_signed = raw.is_integer(kind) and raw.is_signed(kind)
    parts = join_parts(schema.tensors, schema.results)
    for part, (first, count) in zip(parts, values.places, strict=True):
        if part.name == name:
            is_there = count is None or count > 0 or part.is_list
            passed = "a" if part.is_list else "t"
            return (name, passed, first, size, False, 0) if is_there else _number(name, 0, size)
    for index, scalar in enumerate(schema.scalars):
        if scalar.name == name:
            return name, _KINDS[scalar.kind], index, size, is_signed, 0
        if scalar.kind in LIST_KINDS and name == raw.count_name(scalar.name):
            return name, "n", index, size, is_signed, 0
    for part, (_, count) in zip(parts, values.places, strict=True):
        if part.many and part.is_list and name in (raw.count_name(part.name), part.many.value):
            return _number(name, count or 0, size, is_signed)
    if name == "stream":
        return name, "p", 0, size, False, 0
    return name, "v", values.number(name, "C signature"), size, is_signed, 0


def _number(name: str, number: int, size: int, is_signed: bool = False) -> Slot:
    return name, "c", number, size, is_signed, 0


def size_of(parameter: raw.CParameter) -> int:
    """Return the size of a parameter, in bytes."""
    return 8 if parameter.is_pointer else ffi.sizeof(parameter.type)


class Values:
    """The numbers that parameters and sizes are made of, each with where it is found.

    Args:
        schema: with lists, if there are any.
        counts: the number of tensors in each argument and result; None if it is not a list.

    Attributes:
        rows: (name, ((tensor, first dimension, end), …)); a tensor below 0 is a scalar.
        places: for each argument and result, the index of its first tensor, and its count.
    """

    def __init__(self, schema: Schema, counts: Sequence[int | None] = ()) -> None:
        self.schema = schema
        counts = counts or [None for _ in join_parts(schema.tensors, schema.results)]
        sizes = [1 if count is None else count for count in counts]
        firsts = accumulate(sizes, initial=0)
        self.places = list(zip(firsts, counts, strict=False))
        self.rows: list[tuple[str, tuple[tuple[int, int, int], ...]]] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str, option: str) -> int:
        """Return the number of a named dimension, a pack or a scalar that is a dimension."""
        if name not in self._numbers:
            sources = self._find(name)
            if not sources and name not in self._known():
                why = raw.OUT_OF_REACH if name in self.schema.names else NO_DIMENSION
                raise ArgumentError(
                    f"{self.schema.qualified}: {option}: {name!r} {why}; "
                    f"there are {', '.join(self._known()) or 'none'}"
                )
            self._numbers[name] = self._add(name, sources)
        return self._numbers[name]

    def extent(self, name: str, place: int, start: int, end: int | None) -> int:
        """Return the number of the product of some dimensions of one tensor."""
        return self._add(name, ((place, start, END if end is None else end),))

    def _add(self, name: str, sources: tuple[tuple[int, int, int], ...]) -> int:
        self.rows.append((name, sources))
        return len(self.rows) - 1

    def _find(self, name: str) -> tuple[tuple[int, int, int], ...]:
        if name not in self._known():
            return ()
        for index, scalar in enumerate(self.schema.scalars):
            if scalar.name == name:
                return ((-1 - index, 0, 0),)
        found = [(self.places[at], extents) for at, extents in raw.find_extent(self.schema, name)]
        return tuple(
            (first, extents.start, END if extents.stop is None else extents.stop)
            for (first, count), extents in found
            if count != 0
        )

    def _known(self) -> list[str]:
        schema = self.schema
        scalars = [name for _, name in schema.sizes]
        return [name for name in raw.known_extents(schema) if name not in scalars] + scalars


NO_DIMENSION = "is not a dimension of the schema"
