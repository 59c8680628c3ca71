"""Operators of torch's dispatcher, one for each kernel that torch code needs as such.

`torch.ops.<namespace>.<name>` computes new results; its `out` overload writes into buffers. A
kernel without results has the first only. Bodies are C functions (torch_op.c); where libtorch lacks
what these need, or their pool is empty, torch.library makes the same operators in Python.

What is registered stays: compiled and exported graphs may hold an operator for ever. When a name is
wrapped anew with the same schema nothing changes here, since bodies and rules look the kernel up
when they run. With another schema the operator is defined anew under its old name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import operator_schemas

from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.kernels.kernel import find
from dlbridge.kernels.schema_parts import MISSING

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema import Schema

# Where the body runs. Everything else that a dispatcher knows has rules of its own.
_KEYS = ("CPU", "CUDA")
_LETTERS = {"tensor": "t", "int": "i", "float": "f", "bool": "b", "str": "s"}

Rules = Callable[["Operator", Any, bool], None]


class Operator:
    """The operators of one name.

    Attributes:
        name: "namespace::name", the kernel's.
        schema: of the kernel that they were defined for, or of one that needs the same ones.
        definitions: their schemas as torch writes them: the functional one, that with `out`.
        out_names: the arguments of the `out` overload that are buffers for results.
        out_at: before which argument they stand. By position they are faster, so that they come
            before those by name only, unless there are defaults before.
        default, out: the overloads as `torch.ops` has them; `out` is None without results.
    """

    __slots__ = ("default", "definitions", "name", "out", "out_at", "out_names", "schema", "undo")

    def __init__(self, schema: Schema) -> None:
        self.name = schema.qualified
        self.schema = schema
        self.out_names = _out_names(schema)
        self.out_at = _out_at(schema)
        self.definitions = _definitions(schema, self.out_names, self.out_at)
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
        for part in self.schema.parameters:
            value = next(values[part.is_tensor])
            if part.keyword_only:
                kwargs[part.name] = value
            else:
                args.append(value)
        if self.out_at == len(args):
            return [*args, *outs], kwargs
        return args, kwargs | dict(zip(self.out_names, outs, strict=False))

    def unpack(
        self, is_out: bool, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return tensors, scalars and buffers of a call; torch leaves out what equals defaults."""
        sorted_: dict[bool, list[Any]] = {True: [], False: []}
        names = [part.name for part in self.schema.parameters]
        if is_out:
            names[self.out_at : self.out_at] = self.out_names
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        for part in self.schema.parameters:
            value = given.get(part.name, part.default)
            sorted_[part.is_tensor].append(None if value is MISSING else value)
        outs = [given[name] for name in self.out_names] if is_out else []
        return sorted_[True], sorted_[False], outs


_OPERATORS: dict[str, Operator] = {}
_RULES: list[Rules] = []
_RULED: set[str] = set()
_LIBRARIES: dict[str, Any] = {}
_NUMBERS: dict[tuple[str, str], int] = {}
_LOCK = RLock()
_SHIM: list[str | None] = []


def operator(kernel: Kernel) -> Operator:
    """Return the operators of a kernel that is known by its name; they are registered if need be.

    Raises:
        ArgumentError: the kernel has no schema, or its name means another kernel by now.
    """
    schema = kernel.schema
    if schema is None:
        raise ArgumentError(
            f"{kernel.name}: an operator of torch needs a schema; give one to dlbridge.wrap"
        )
    found = _OPERATORS.get(kernel.name)
    if found is None or found.schema is not schema:
        found = _renew(kernel, schema)
    return found


def current(name: str) -> tuple[Operator, Kernel]:
    """Return what a name means now, for rules that torch calls by name."""
    kernel = find(name)
    return operator(kernel), kernel


def add_rules(rules: Rules) -> Rules:
    """Have `rules(operator, library, is_out)` called once for each overload that is registered."""
    _RULES.append(rules)
    return rules


def overload_name(name: str, is_out: bool) -> str:
    """Return the name of an overload, as libraries take it."""
    return f"{name}.out" if is_out else name


def registered(name: str) -> bool:
    """Return whether the kernel of this name has an operator."""
    return name in _OPERATORS


def _nothing() -> None:
    pass


def _renew(kernel: Kernel, schema: Schema) -> Operator:
    if find(kernel.name) is not kernel:
        raise ArgumentError(
            f"{kernel.name}: another kernel was wrapped under this name since, and torch knows "
            "operators by name; wrap one of them under another name"
        )
    with _LOCK:
        made = Operator(schema)
        old = _OPERATORS.get(made.name)
        if old is not None and old.definitions == made.definitions:
            old.schema = schema
            return old
        if old is not None:
            del _OPERATORS[made.name]
            old.undo()
        _define(made)
        _OPERATORS[made.name] = made
        return made


# ---- torch's schemas -----------------------------------------------------------------------------


def _out_names(schema: Schema) -> tuple[str, ...]:
    taken = {part.name for part in schema.parameters}
    names = []
    for index in range(len(schema.results)):
        name = "out" if len(schema.results) == 1 else f"out{index}"
        while name in taken:
            name += "_"
        names.append(name)
    return tuple(names)


def _out_at(schema: Schema) -> int:
    count = len(schema.positional)
    plain = all(part.default is MISSING for part in schema.parameters[:count])
    return count if plain else len(schema.parameters)


def _definitions(schema: Schema, out_names: tuple[str, ...], out_at: int) -> tuple[str, ...]:
    text = schema.torch_schema()
    if not schema.results:
        return (text,)
    name, _, rest = text.partition("(")
    inside = rest[: rest.rindex(") -> ")]
    outs = ", ".join(f"Tensor(r{index}!) {out}" for index, out in enumerate(out_names))
    if out_at == len(schema.positional):  # nothing before them has a default, so this is no text
        before, star, after = inside.partition("*, ")
        before = before.removesuffix(", ")
        items = [before, outs, f"{star}{after}"]
    else:
        by_name = any(part.keyword_only for part in schema.parameters)
        items = [inside, outs if by_name else f"*, {outs}"]
    return text, f"{name}.out({', '.join(item for item in items if item)}) -> ()"


# ---- registration --------------------------------------------------------------------------------


def _define(made: Operator) -> None:
    namespace = made.schema.namespace
    library = _LIBRARIES.get(namespace)
    if library is None:
        library = _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
    number = _number(made.schema)
    undo = _define_in_python(made) if number is None else _define_in_c(made, number)
    _look_up(made)
    for is_out, _ in enumerate(made.definitions):
        name = overload_name(made.name, bool(is_out))
        if name not in _RULED:  # rules look the kernel up by name, so that once is enough
            _RULED.add(name)
            for rules in _RULES:
                rules(made, library, bool(is_out))
    made.undo = undo


def _number(schema: Schema) -> int | None:
    """Return the C function of this name and these arguments; None where Python must do."""
    if shim_lacks() is not None:
        return None
    letters = "".join(
        _LETTERS[part.kind].upper() if part.optional else _LETTERS[part.kind]
        for part in schema.parameters
    )
    if "s" in letters.lower() and not native.torch_op_has_strings():
        return None
    key = schema.qualified, letters
    if key not in _NUMBERS:
        number = native.torch_op_take(schema.qualified, letters, _out_at(schema))
        if number is None:
            return None
        _NUMBERS[key] = number
    return _NUMBERS[key]


def _define_in_c(made: Operator, number: int) -> Callable[[], None]:
    namespace = made.schema.namespace
    libraries = [native.torch_op_define(namespace, made.definitions)]
    libraries += [native.torch_op_implement(namespace, made.names, key, number) for key in _KEYS]

    def undo() -> None:
        for library in reversed(libraries):
            native.torch_op_remove(library)

    return undo


def _define_in_python(made: Operator) -> Callable[[], None]:
    from dlbridge.kernels.torch_fallback import body

    library = torch.library.Library(made.schema.namespace, "FRAGMENT")
    for definition, name in zip(made.definitions, made.names, strict=True):
        library.define(definition)
        for key in _KEYS:
            library.impl(name, body(made.name, name.endswith(".out")), key)
    undo: Callable[[], None] = library._destroy
    return undo


def _look_up(made: Operator) -> None:
    """Set the overloads: the objects that `torch.ops` had for this name before, if it had any.

    The dispatcher keeps the overload that it hands to `__torch_dispatch__`, and compiled graphs
    keep theirs. So objects of an earlier definition become what the new ones are.
    """
    namespace = getattr(torch.ops, made.schema.namespace)
    own = made.schema.name
    old = vars(namespace).pop(own, None)
    signatures = getattr(operator_schemas, "_SCHEMA_TO_SIGNATURE_CACHE", {})
    for overload in ("", "out"):
        signatures.pop((made.name, overload), None)
    packet = getattr(namespace, own)
    for overload in ("default", "out") if made.out_names else ("default",):
        fresh = getattr(packet, overload)
        kept = vars(old).get(overload) if old is not None else None
        if kept is not None:
            vars(kept).update(vars(fresh))
            setattr(packet, overload, kept)
    if old is not None:
        vars(old).clear()
        vars(old).update(vars(packet))
        setattr(namespace, own, old)
        packet = old
    made.default = packet.default
    made.out = packet.out if made.out_names else None


# ---- the shim ------------------------------------------------------------------------------------


def shim_lacks() -> str | None:
    """Return what libtorch does not have of what C needs, or None: operators are made in C."""
    if not _SHIM:
        _SHIM.append(open_shim())
    return _SHIM[0]


def open_shim(hidden: str | None = None) -> str | None:
    """Look libtorch's functions up, all but `hidden`; return the first that is missing."""
    if not sys.platform.startswith("linux"):
        return sys.platform
    folder = Path(torch.__file__).parent / "lib"
    cuda = folder / "libtorch_cuda.so"
    is_rocm = torch.version.hip is not None
    return native.torch_op_open(
        str(folder / "libtorch_cpu.so"), str(cuda) if cuda.exists() else None, is_rocm, hidden
    )
