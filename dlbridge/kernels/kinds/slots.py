"""Parameters of C functions as the core reads them: what each is given, and where that is found.

Host functions (`c_call`) and GPU kernels (`cuda_launch`) are called with the same slots; what the
names of a C signature mean is said in `raw`.
"""

from __future__ import annotations

from dlbridge._core import ffi
from dlbridge.errors import ArgumentError
from dlbridge.kernels.kinds import raw
from dlbridge.kernels.schema import Schema, join_parts

# name, kind, index, size in bytes, whether it is signed, dimension
Slot = tuple[str, str, int, int, bool, int]

END = 2**31 - 1  # up to the last dimension: that of abi.c
_KINDS = {"int": "i", "bool": "i", "float": "f"}  # of scalars that are numbers


def encode(schema: Schema, values: Values, parameter: raw.CParameter) -> Slot | None:
    """Return the slot of a parameter of a C signature that fits the schema.

    None: it is a list, a length of one, a text or a dtype, which the core does not pass.
    """
    name, kind, size = parameter.name, parameter.type, size_of(parameter)
    for place, part in enumerate(join_parts(schema.tensors, schema.results)):
        if part.name == name:
            return (name, "t", place, size, False, 0) if part.many is None else None
    is_signed = raw.is_integer(kind) and raw.is_signed(kind)
    for index, scalar in enumerate(schema.scalars):
        if scalar.name == name:
            passed = _KINDS.get(scalar.kind)
            return None if passed is None else (name, passed, index, size, is_signed, 0)
    if name == "stream":
        return name, "p", 0, size, False, 0
    if name in schema.names or name in schema.packs:
        return name, "v", values.number(name, "C signature"), size, is_signed, 0
    return None


def size_of(parameter: raw.CParameter) -> int:
    """Return the size of a parameter, in bytes."""
    return 8 if parameter.is_pointer else ffi.sizeof(parameter.type)


class Values:
    """The numbers that parameters and sizes are made of, each with where it is found.

    Attributes:
        rows: (name, ((tensor, first dimension, end), …)); a tensor below 0 is a scalar.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.rows: list[tuple[str, tuple[tuple[int, int, int], ...]]] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str, option: str) -> int:
        """Return the number of a named dimension, a pack or a scalar that is a dimension."""
        if name not in self._numbers:
            sources = self._find(name)
            if not sources:
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
        return tuple(
            (place, extents.start, END if extents.stop is None else extents.stop)
            for place, extents in raw.find_extent(self.schema, name)
        )

    def _known(self) -> list[str]:
        schema = self.schema
        scalars = [name for _, name in schema.sizes]
        return [name for name in raw.known_extents(schema) if name not in scalars] + scalars


NO_DIMENSION = "is not a dimension of the schema"
