"""One operator of torch's dispatcher: its schemas, and how calls are laid out in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.kernels.schema.parts import MISSING

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema


class Operator:
    """The operators of one name.

    Attributes:
        name: "namespace::name", the kernel's.
        schema: of the kernel that they were defined for, or of one that needs the same ones.
        layout: the schema with its arguments as the operators have them.
        definitions: their schemas as torch writes them: the functional one, that with `out`.
        out_names: the arguments of the `out` overload that are buffers for results.
        out_at: before which argument they stand. By position they are faster, so that they come
            before those by name only, unless there are defaults before.
        out_by_name: whether they stand last, by name only.
        packet: what `torch.ops` has under this name.
        default, out: its overloads as `torch.ops` has them; `out` is None without results.
    """

    __slots__ = (
        "default",
        "definitions",
        "layout",
        "name",
        "out",
        "out_at",
        "out_by_name",
        "out_names",
        "packet",
        "schema",
        "undo",
    )

    def __init__(self, schema: Schema) -> None:
        self.name = schema.qualified
        self.schema = schema
        self.layout = _lay_out(schema)
        self.out_names = _out_names(schema)
        self.out_by_name = any(
            part.default is not MISSING
            for part in self.layout.parameters[: len(self.layout.positional)]
        )
        self.out_at = len(self.layout.parameters if self.out_by_name else self.layout.positional)
        self.definitions = _definitions(self.layout, self.out_names, self.out_by_name)
        self.packet: Any = None
        self.default: Any = None
        self.out: Any = None
        self.undo: Callable[[], None] = _nothing

    @property
    def names(self) -> tuple[str, ...]:
        """The overloads as libraries name them."""
        return tuple(definition.partition("(")[0] for definition in self.definitions)

    def pack(
        self, tensors: Sequence[Any], scalars: Sequence[Any], outs: Sequence[Any] = ()
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments for a sorted call: of `out`, if there are any."""
        values = {True: iter(tensors), False: iter(scalars)}
        args: list[Any] = []
        kwargs = {}
        for part in self.layout.parameters:
            value = next(values[part.is_tensor])
            if part.keyword_only:
                kwargs[part.name] = value
            else:
                args.append(value)
        if not self.out_by_name:
            return [*args, *outs], kwargs
        return args, kwargs | dict(zip(self.out_names, outs, strict=False))

    def unpack(
        self, is_out: bool, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return tensors, scalars and buffers of a call; torch leaves out what equals defaults."""
        sorted_: dict[bool, list[Any]] = {True: [], False: []}
        names = [part.name for part in self.layout.parameters]
        if is_out:
            names[self.out_at : self.out_at] = self.out_names
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        for part in self.layout.parameters:
            value = given.get(part.name, part.default)
            sorted_[part.is_tensor].append(None if value is MISSING else value)
        outs = [given[name] for name in self.out_names] if is_out else []
        return sorted_[True], sorted_[False], outs


def _nothing() -> None:
    pass


# ---- torch's schemas -----------------------------------------------------------------------------


def _lay_out(schema: Schema) -> Schema:
    """Return the schema with tensors by position, which is how torch batches them.

    Tensors keep their order, and so do scalars. torch wants no argument without a default after
    one with, so defaults before a tensor without one are left out.
    """
    by_name = [part for part in schema.parameters if part.keyword_only]
    moved = [part._replace(keyword_only=False) for part in by_name if part.is_tensor]
    if not moved:
        return schema
    first = [*schema.parameters[: len(schema.positional)], *moved]
    if any(part.default is MISSING for part in moved):
        first = [part._replace(default=MISSING) for part in first]
    parts = [*first, *(part for part in by_name if not part.is_tensor)]
    return type(schema)(schema.namespace, schema.name, parts, schema.results)


def _out_names(schema: Schema) -> tuple[str, ...]:
    taken = {part.name for part in schema.parameters}
    names = []
    for index in range(len(schema.results)):
        name = "out" if len(schema.results) == 1 else f"out{index}"
        while name in taken:
            name += "_"
        names.append(name)
    return tuple(names)


def _definitions(schema: Schema, out_names: tuple[str, ...], out_by_name: bool) -> tuple[str, ...]:
    text = schema.torch_schema()
    if not schema.results:
        return (text,)
    name, _, rest = text.partition("(")
    inside = rest[: rest.rindex(") -> ")]
    outs = ", ".join(f"Tensor(r{index}!) {out}" for index, out in enumerate(out_names))
    if not out_by_name:  # nothing before them has a default, so this is no text
        before, star, after = inside.partition("*, ")
        before = before.removesuffix(", ")
        items = [before, outs, f"{star}{after}"]
    else:
        is_starred = any(part.keyword_only for part in schema.parameters)
        items = [inside, outs if is_starred else f"*, {outs}"]
    return text, f"{name}.out({', '.join(item for item in items if item)}) -> ()"
