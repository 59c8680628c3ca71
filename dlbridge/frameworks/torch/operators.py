"""Operators of torch's dispatcher, one for each kernel that torch code needs as such.

`torch.ops.<namespace>.<name>` computes new results; its `out` overload writes into buffers. A
kernel without results has the first only. Bodies are C functions (`_core/torch_op`); where
libtorch lacks what these need, or their pool is empty, torch.library makes the same operators in
Python.

Registrations stay: compiled and exported graphs may hold an operator until the process ends.
When a name is wrapped again with the same schema nothing changes here, since bodies and rules look
the kernel up when they run. With another schema the operator is redefined under its old name.

Exported and compiled programs find their operators by name. So a kernel that was wrapped has one as
soon as it is looked up in torch.ops, and those that torch never sees cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock, local
from typing import Any

import torch
from torch.fx import operator_schemas

from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.frameworks.torch import transforms
from dlbridge.frameworks.torch.internals import shim_lacks
from dlbridge.kernels.binding import Binding, binding
from dlbridge.kernels.kernel import Kernel, find, published
from dlbridge.kernels.refusals import QUALITIES
from dlbridge.kernels.schema import MISSING, Arguments, Schema, unfit

# Where the body runs. Everything else that a dispatcher knows has rules of its own.
_KEYS = ("CPU", "CUDA")
_NO_TENSOR = "CompositeExplicitAutograd"  # where calls without any tensor go
_LETTERS = {"tensor": "t", "int": "i", "float": "f", "bool": "b", "str": "s"}


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
        next_tensor, next_scalar = iter(tensors), iter(scalars)
        args: list[Any] = []
        kwargs = {}
        for part in self.layout.parameters:
            # dynamo of older torch reads no properties of named tuples
            value = next(next_tensor if part.kind == "tensor" else next_scalar)
            if part.keyword_only:
                kwargs[part.name] = value
            else:
                args.append(value)
        if not self.out_by_name:
            return [*args, *outs], kwargs
        return args, {**kwargs, **dict(zip(self.out_names, outs))}  # noqa: B905  (see bind._assign)

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


# ---- the table of operators ----------------------------------------------------------------------

_OPERATORS: dict[str, Operator] = {}
_RULED: set[str] = set()
_LIBRARIES: dict[str, Any] = {}
_NUMBERS: dict[tuple[str, str, int], int] = {}
_LOCK = RLock()
_BEING_DEFINED = local()


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
        _BEING_DEFINED.name = made.name  # torch looks the name up while it forgets the old one
        try:
            if old is not None:
                del _OPERATORS[made.name]
                old.undo()
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
    name = transforms.overload_name(made.name, is_out)
    if name in _RULED:
        return
    transforms.add_rules(made, library, is_out, current)
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
    library = torch.library.Library(made.schema.namespace, "FRAGMENT")
    for definition, name in zip(made.definitions, made.names, strict=True):
        library.define(definition)
        for key in _keys(made):
            library.impl(name, _python_body(made.name, name.endswith(".out")), key)
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


# ---- torch.ops -----------------------------------------------------------------------------------


class _Namespace(torch._ops._OpNamespace):  # type: ignore[misc]
    """`torch.ops.<namespace>` of kernels; it may hold operators of others."""

    __module__ = torch._ops._OpNamespace.__module__  # operators are pickled by it

    def __getattr__(self, name: str) -> Any:
        kernel = published(f"{self.name}::{name}")
        if kernel is not None and not registered(kernel.name):
            operator(kernel)
        return super().__getattr__(name)


def offer(kernel: Kernel) -> None:
    """Have torch.ops find the operator of a kernel, which must have a schema."""
    assert kernel.schema is not None
    namespace = getattr(torch.ops, kernel.schema.namespace)
    if type(namespace) is torch._ops._OpNamespace:
        namespace.__class__ = _Namespace


# ---- bodies in Python, for a libtorch without what the bodies in C need --------------------------


def _python_body(name: str, is_out: bool) -> Callable[..., Any]:
    """Return a function of torch tensors that runs the kernel of this name on their memory."""

    def run(*args: Any, **kwargs: Any) -> Any:
        made, kernel = current(name)
        tensors, scalars, outs = made.unpack(is_out, args, kwargs)
        if outs or made.schema.mutated:
            transforms.refuse_gradients(made.schema, [*tensors, *outs])
            _refuse_inference(made.schema, tensors, outs)
        plain = [None if each is None else each.detach() for each in tensors]
        buffers = [each.detach() for each in outs]  # which count versions together with theirs
        arguments = Arguments(plain, scalars, buffers or None)
        torch_binding = binding("torch")
        with torch_binding.working(next((each for each in plain if each is not None), None)):
            result = Binding.call(torch_binding, kernel, arguments)  # without the dispatcher
        return None if outs else result

    return run


def _refuse_inference(schema: Schema, tensors: list[Any], outs: list[Any]) -> None:
    """Refuse to write into tensors of inference mode outside of it, as torch does."""
    if torch.is_inference_mode_enabled():
        return
    for place, tensor in transforms.written(schema, tensors, outs):
        if tensor.is_inference():
            wanted, found, hint = QUALITIES["readonly"]
            got = transforms.describe(tensor)
            raise unfit(schema, place, "readonly", (wanted, found), got, hint)
