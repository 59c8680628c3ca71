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
from collections.abc import Callable
from pathlib import Path
from threading import RLock, local
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import operator_schemas

from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.frameworks.torch.guard import guard_is_open
from dlbridge.frameworks.torch.operator import Operator
from dlbridge.kernels.kernel import find

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema.schema import Schema

# Where the body runs. Everything else that a dispatcher knows has rules of its own.
_KEYS = ("CPU", "CUDA")
_NO_TENSOR = "CompositeExplicitAutograd"  # where calls without any tensor go, too
_LETTERS = {"tensor": "t", "int": "i", "float": "f", "bool": "b", "str": "s"}

Rules = Callable[[Operator, Any, bool], None]


_OPERATORS: dict[str, Operator] = {}
_RULES: list[Rules] = []
_RULED: set[str] = set()
_LIBRARIES: dict[str, Any] = {}
_NUMBERS: dict[tuple[str, str, int], int] = {}
_LOCK = RLock()
_BEING_DEFINED = local()
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
    """Return whether the kernel of this name has an operator, or is being given one here."""
    return name in _OPERATORS or getattr(_BEING_DEFINED, "name", None) == name


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
        _BEING_DEFINED.name = made.name
        try:
            _define(made, old)
        finally:
            _BEING_DEFINED.name = None
        _OPERATORS[made.name] = made
        return made


# ---- registration --------------------------------------------------------------------------------


def _define(made: Operator, old: Operator | None) -> None:
    namespace = made.schema.namespace
    library = _LIBRARIES.get(namespace)
    if library is None:
        library = _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
    number = _number(made)
    made.undo = _define_in_python(made) if number is None else _define_in_c(made, number)
    try:
        _look_up(made, old)
        for is_out, _ in enumerate(made.definitions):
            _rule(made, library, bool(is_out))
    except BaseException:
        made.undo()
        raise


def _rule(made: Operator, library: Any, is_out: bool) -> None:
    """Add the rules of an overload: once, since they look the kernel up by name."""
    name = overload_name(made.name, is_out)
    if name in _RULED:
        return
    for rules in _RULES:
        rules(made, library, is_out)
    _RULED.add(name)


def _number(made: Operator) -> int | None:
    """Return the C function of this name and these arguments; None where Python must do."""
    if shim_lacks() is not None:
        return None
    letters = "".join(
        _LETTERS[part.kind].upper() if part.optional else _LETTERS[part.kind]
        for part in made.layout.parameters
    )
    if "s" in letters.lower() and not native.torch_op_has_strings():
        return None
    key = made.name, letters, made.out_at
    if key not in _NUMBERS:
        number = native.torch_op_take(made.name, letters, made.out_at)
        if number is None:
            return None
        _NUMBERS[key] = number
    return _NUMBERS[key]


def _keys(made: Operator) -> tuple[str, ...]:
    may_lack_tensors = all(part.optional for part in made.schema.tensors)
    return (*_KEYS, _NO_TENSOR) if may_lack_tensors else _KEYS


def _define_in_c(made: Operator, number: int) -> Callable[[], None]:
    namespace = made.schema.namespace
    libraries = [native.torch_op_define(namespace, made.definitions)]
    libraries += [
        native.torch_op_implement(namespace, made.names, key, number) for key in _keys(made)
    ]

    def undo() -> None:
        for library in reversed(libraries):
            native.torch_op_remove(library)

    return undo


def _define_in_python(made: Operator) -> Callable[[], None]:
    from dlbridge.frameworks.torch.fallback import body

    library = torch.library.Library(made.schema.namespace, "FRAGMENT")
    for definition, name in zip(made.definitions, made.names, strict=True):
        library.define(definition)
        for key in _keys(made):
            library.impl(name, body(made.name, name.endswith(".out")), key)
    undo: Callable[[], None] = library._destroy
    return undo


def _look_up(made: Operator, old: Operator | None) -> None:
    """Set the overloads: the objects that `torch.ops` had for this name before, if it had any.

    The dispatcher keeps the overload that it hands to `__torch_dispatch__`, and compiled graphs
    keep theirs. So objects of an earlier definition become what the new ones are.
    """
    namespace = getattr(torch.ops, made.schema.namespace)
    own = made.schema.name
    vars(namespace).pop(own, None)
    signatures = getattr(operator_schemas, "_SCHEMA_TO_SIGNATURE_CACHE", {})
    for overload in ("", "out"):
        signatures.pop((made.name, overload), None)
    packet = getattr(namespace, own)
    overloads = ("default", "out") if made.out_names else ("default",)
    fresh = {overload: getattr(packet, overload) for overload in overloads}
    if old is not None:
        kept = old.packet
        known = {name: vars(kept)[name] for name in overloads if name in vars(kept)}
        for name, overload in known.items():
            vars(overload).update(vars(fresh[name]))
        vars(kept).clear()
        vars(kept).update(vars(packet) | known)
        setattr(namespace, own, kept)
        packet = kept
    made.packet = packet
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
    guard_is_open()  # which hands in what was proved for this version of torch
    folder = Path(torch.__file__).parent / "lib"
    cuda = folder / "libtorch_cuda.so"
    is_rocm = torch.version.hip is not None
    return native.torch_op_open(
        str(folder / "libtorch_cpu.so"), str(cuda) if cuda.exists() else None, is_rocm, hidden
    )
