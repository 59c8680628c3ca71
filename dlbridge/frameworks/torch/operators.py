"""Operators of torch's dispatcher, one for each kernel that torch code needs as such.

`torch.ops.<namespace>.<name>` computes new results; its `out` overload writes into buffers. A
kernel without results has the first only. Bodies are C functions (`_core/torch_op`); where
libtorch lacks what these need, or their pool is empty, torch.library makes the same operators in
Python.

Registrations stay: compiled and exported graphs may hold an operator until the process ends. So an
operator belongs to one kernel, and is named by its key (`kernels.kernel.recorded`). When a name is
wrapped again, the operator of the new kernel is `torch.ops.<namespace>.<name>__v2`: graphs find
theirs in torch.ops by name, each time that they run, and go on with the old one, forward and
backward.

Exported and compiled programs find their operators by name. So a kernel that was wrapped has one as
soon as it is looked up in torch.ops, and those that torch never sees cost nothing.

Fake kernels describe the results, for tracing, meta tensors and export. Shapes may be
symbolic. Arguments that do not fit the schema are refused with the words of a real call; the memory
of a tensor is never read.

Derivatives are the kernel's `vjp=` and `jvp=`; without a `jvp=`, tangents are by the transpose of
the vjp, which is linear in the cotangents. The rule stands at the dispatcher's autograd key,
which eager autograd, torch.func and the traces of torch.compile all pass. A call of plain tensors
runs at once; one that needs no derivative goes on to the next key. Without `vjp=` the results still
require a gradient, and backward raises: gradients are never dropped.

torch.vmap computes a batch by the kernel's `batch=`.

A kernel with an `autocast=` has its arguments cast in regions of torch.autocast, see `autocasting`.

Lists of tensors are `Tensor[]` of one operator, and each length of them is a kernel of its own
(`kernels.lists`). All rules work with the tensors of a call in a row, as that kernel takes them, by
its FlatOperator, which groups them for the operator.

Rules find operator and kernel by that key when they run (`current`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import combinations
from threading import Thread, local
from typing import Any

import torch
from torch import _C
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dlbridge import registry
from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    KernelError,
    UnsupportedTypeError,
)
from dlbridge.exchange import protocol
from dlbridge.frameworks.torch import autocasting, sharding
from dlbridge.frameworks.torch.internals import guard_is_open, queries_are_open, shim_lacks
from dlbridge.kernels import gradients
from dlbridge.kernels.binding import QUALITIES, Binding, binding
from dlbridge.kernels.counted import said_by
from dlbridge.kernels.kernel import Kernel, known, recorded, serving
from dlbridge.kernels.lists import group_results
from dlbridge.kernels.numbers import gives_constants
from dlbridge.kernels.schema import (
    DECIDE,
    LIST_KINDS,
    MISSING,
    Arguments,
    Described,
    Flat,
    Parameter,
    Result,
    Schema,
    gather,
    negative,
    refusal,
    spread,
    unfit,
)

# Where the body runs. Everything else that a dispatcher knows has rules of its own.
_KEYS = ("CPU", "CUDA")
_NO_TENSOR = "CompositeExplicitAutograd"  # where calls without any tensor go
_LETTERS = {
    "tensor": "t", "int": "i", "float": "f", "bool": "b", "str": "s", "dtype": "d", "int[]": "l",
    "float[]": "m",
}  # fmt: skip


class Operator:
    """The operators of one kernel.

    Attributes:
        name: "namespace::name", the kernel's key.
        own: what follows the namespace.
        schema: the kernel's.
        layout: the schema with its arguments as the operators have them.
        definitions: their schemas as torch writes them: the functional one, that with `out`.
        out_names: the arguments of the `out` overload that are buffers for results.
        out_at: before which argument they stand. By position they are faster, so that they come
            before those by name only, unless there are defaults before.
        out_by_name: whether they stand last, by name only.
        is_as_called: whether its other arguments are those of a call of the kernel, none of which
            is called `out`.
        packet: what `torch.ops` has for it.
        default, out: its overloads as `torch.ops` has them; `out` is None without results.
        shorter: overloads without optional tensors that are written, by the names of those.
        casts: what autocast does to the tensors of the functional one; None is nothing.
    """

    __slots__ = (
        "casts",
        "default",
        "definitions",
        "is_as_called",
        "layout",
        "name",
        "out",
        "out_at",
        "out_by_name",
        "out_names",
        "own",
        "packet",
        "schema",
        "shorter",
    )

    def __init__(self, key: str, schema: Schema, autocast: str | None = None) -> None:
        self.name = key
        self.casts = None if autocast is None else autocasting.Casts(schema, autocast)
        self.own = key.partition("::")[2]
        self.schema = schema
        self.layout = _lay_out(schema)
        self.out_names = _out_names(schema)
        self.out_by_name = any(
            part.default is not MISSING
            for part in self.layout.parameters[: len(self.layout.positional)]
        )
        self.out_at = len(self.layout.parameters if self.out_by_name else self.layout.positional)
        self.is_as_called = self.layout is schema and all(
            part.name != "out" for part in schema.parameters
        )
        named = self.layout.named(key)
        self.definitions = _definitions(named, self.out_names, self.out_by_name)
        self.packet: Any = None
        self.default: Any = None
        self.out: Any = None
        self.shorter: dict[tuple[str, ...], Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The overloads as libraries name them."""
        return tuple(definition.partition("(")[0] for definition in self.definitions)

    def pack(
        self,
        tensors: Sequence[Any],
        scalars: Sequence[Any],
        outs: Sequence[Any] = (),
        without: tuple[str, ...] = (),
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments for a sorted call.

        Of `out`, if there are any; or of the overload that lacks the arguments `without`.
        """
        next_tensor, next_scalar = iter(tensors), iter(scalars)
        args: list[Any] = []
        kwargs = {}
        for part in self.layout.parameters:
            # dynamo of older torch reads no properties of named tuples
            value = next(next_tensor if part.kind == "tensor" else next_scalar)
            if part.name in without:
                continue
            if part.kind == "dtype":
                value = own_dtype(value, self.name, part.name)
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
            if part.kind == "dtype" and isinstance(value, torch.dtype):
                value = DType(value)
            if part.kind in LIST_KINDS and isinstance(value, list):
                value = tuple(value)
            sorted_[part.is_tensor].append(None if value is MISSING else value)
        outs = [given[name] for name in self.out_names] if is_out else []
        return sorted_[True], sorted_[False], outs

    def give(self, found: Any) -> Any:
        """Return results as the dispatcher takes them, which are none, a tensor, or a tuple."""
        return found

    def take(self, found: Any) -> Any:
        """Return what `give` was given."""
        return found

    def batch_dims(self, in_dims: Sequence[Any]) -> list[int | None]:
        """Return which dimension of each tensor is the batch, of what torch.vmap says."""
        # Operators have all tensors by position, as torch batches nothing else.
        by_place = dict(zip((part.name for part in self.layout.parameters), in_dims))  # noqa: B905
        return [by_place.get(part.name) for part in self.schema.tensors]

    def cast(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], without: tuple[str, ...] = ()
    ) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
        """Return the arguments as they are within autocast; None where it leaves them alone.

        Of the functional overload, or of the one that lacks the arguments `without`, whose other
        arguments are given by name.
        """
        if self.casts is None:
            return None
        tensors, scalars, _ = self.unpack(False, args, kwargs)
        found = self.casts.apply(tensors)
        return None if found is None else self.pack(found, scalars, (), without)

    def call_in_c(self, kernel: Kernel, is_out: bool, args: Any, kwargs: Any) -> Any:
        """Call the kernel in C; NotImplemented where it must be called in another way."""
        if not self.is_as_called:
            return NotImplemented
        if not is_out:
            return native.torch_call_plain(kernel, *args, **kwargs)
        if self.out_by_name:
            kwargs = dict(kwargs)
            outs = tuple([kwargs.pop(name) for name in self.out_names])
        else:
            end = self.out_at + len(self.out_names)
            outs = args[self.out_at : end]
            args = (*args[: self.out_at], *args[end:])
        out = outs if len(outs) > 1 else outs[0]
        return native.torch_call_plain(kernel, *args, **kwargs, out=out)


class FlatOperator(Operator):
    """The operators of a kernel with lists, for a kernel that serves lists of certain lengths.

    Attributes:
        whole: the operators, whose arguments are lists.
        flat: how tensors are grouped.
        schema: that of the kernel, without lists.
    """

    __slots__ = ("flat", "whole")

    def __init__(self, whole: Operator, flat: Flat) -> None:
        for each in Operator.__slots__:
            setattr(self, each, getattr(whole, each))
        self.whole = whole
        self.flat = flat
        self.schema = flat.schema

    def pack(
        self,
        tensors: Sequence[Any],
        scalars: Sequence[Any],
        outs: Sequence[Any] = (),
        without: tuple[str, ...] = (),
    ) -> tuple[list[Any], dict[str, Any]]:
        grouped = gather(outs, self.flat.results) if outs else []
        return self.whole.pack(gather(tensors, self.flat.counts), scalars, grouped, without)

    def unpack(
        self, is_out: bool, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        tensors, scalars, outs = self.whole.unpack(is_out, args, kwargs)
        row = spread(outs, self.flat.results) if is_out else []
        return spread(tensors, self.flat.counts), scalars, row

    def give(self, found: Any) -> Any:
        return group_results(self.flat, found, lists=True)

    def take(self, found: Any) -> Any:
        counts = self.flat.results
        parts = [found] if len(counts) == 1 else [found[at] for at in range(len(counts))]
        row: list[Any] = []  # by places, as a proxy of torch.fx has it
        for part, count in zip(parts, counts, strict=True):
            row += [part] if count is None else [part[at] for at in range(count)]
        return tuple(row) if len(row) > 1 else (row[0] if row else None)

    def batch_dims(self, in_dims: Sequence[Any]) -> list[int | None]:
        found: list[int | None] = []
        for dims, count in zip(self.whole.batch_dims(in_dims), self.flat.counts, strict=True):
            several: Any = [dims] if count is None else dims
            found += [None] * (count or 0) if several is None else several
        return found

    def cast(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], without: tuple[str, ...] = ()
    ) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
        return self.whole.cast(args, kwargs, without)

    def call_in_c(self, kernel: Kernel, is_out: bool, args: Any, kwargs: Any) -> Any:
        tensors, scalars, outs = self.unpack(is_out, args, kwargs)
        values, named = self.schema.spell(tensors, scalars)
        if is_out:
            named["out"] = tuple(outs) if len(outs) != 1 else outs[0]
        return native.torch_call_plain(kernel, *values, **named)


class CountedOperator(Operator):
    """The operator of a kernel that says extents of its results: it has no overload with `out`.

    It calls the kernel with the bounds and returns the first rows of its results, see
    `kernels.counted`.
    """

    __slots__ = Operator.__slots__  # dynamo of older torch finds none of a base class

    def call_in_c(self, kernel: Kernel, is_out: bool, args: Any, kwargs: Any) -> Any:
        tensors, scalars, _ = self.unpack(False, args, kwargs)
        values, named = self.schema.spell(tensors, scalars)
        found = native.torch_call_plain(kernel.bounded, *values, **named)
        return found if found is NotImplemented else self.cut(kernel, found)

    def cut(self, kernel: Kernel, found: Any) -> Any:
        """Return the results of a call, of those of the kernel that has the bounds."""
        assert kernel.counted is not None
        rows = kernel.counted.cut(found, binding("torch"))
        return tuple(rows) if len(rows) > 1 else rows[0]


class NumberOperator(Operator):
    """The operator of a kernel some of whose results are numbers, made of that of its tensors.

    Dispatchers see the other one, so that all rules are those of that. It has no overload with
    `out`.
    """

    __slots__ = Operator.__slots__  # dynamo of older torch finds none of a base class

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Return tensors and numbers, of the operator that gives tensors alone."""
        kernel = serving(self.name)
        found = operator(kernel.tensors).default(*args, **kwargs)
        results = self.schema.results
        if len(results) == 1:
            return _to_number(kernel, results[0], found)
        return tuple(
            [
                _to_number(kernel, result, value) if result.number else value
                for result, value in zip(results, found, strict=True)
            ]
        )


def _to_number(kernel: Kernel, result: Result, value: Any) -> Any:
    """Return what a schema of torch calls SymInt, float or bool."""
    if result.condition:  # a Tensor[], of one tensor or of none
        if not value:
            return None
        value = value[0]
    refuse_number(kernel, result, value)
    number = value.item()
    if isinstance(number, (torch.SymFloat, torch.SymBool)):
        raise KernelError(
            f"{kernel.name}: result {result.name!r} is not known while a program is traced, and "
            f"torch.ops can return an int that is not, but no {result.number}; call the kernel "
            "itself, which can be traced"
        )
    return number


def refuse_number(kernel: Kernel, result: Result, value: torch.Tensor) -> None:
    """Refuse to read a number of a tensor that has none, or one for each element of a batch."""
    if value.is_meta:
        why = "tensors on 'meta' have no values"
    elif is_batched(value):
        why = "within torch.vmap each element has one of its own"
    else:
        return
    raise KernelError(
        f"{kernel.name}: result {result.name!r} is a number ({result.number}), and {why}; call "
        ".tensors of the kernel, which returns a tensor in its place"
    )


def is_batched(value: torch.Tensor) -> bool:
    """Return whether a tensor is one for each element of a batch of torch.vmap."""
    while _C._functorch.is_functorch_wrapped_tensor(value):
        if _C._functorch.is_batchedtensor(value):
            return True
        value = _C._functorch.get_unwrapped(value)
    return False


def is_in_vmap() -> bool:
    """Return whether a function of torch.vmap runs, or dynamo traces one: it calls this."""
    functorch = _C._functorch
    stack = functorch.get_interpreter_stack() or ()
    return any(each.key() == functorch.TransformType.Vmap for each in stack)


is_in_vmap._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as by torch.compiler


def own_dtype(x: Any, kernel: str, argument: str) -> torch.dtype | None:
    """Return torch's dtype of what a call gave for one; dynamo traces it."""
    if x is None or isinstance(x, torch.dtype):
        return x
    name = x.name if isinstance(x, DType) else x  # dynamo takes no DType for a constant
    return _read_dtype(name, kernel, argument)


def _read_dtype(x: Any, kernel: str, argument: str) -> torch.dtype:
    try:
        dtype: torch.dtype = DType(x).to("torch")
    except DLBridgeError as error:
        text = refusal(kernel, argument, "dtype of torch", repr(x), str(error))
        raise UnsupportedTypeError(text) from error
    return dtype


_read_dtype._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as by torch.compiler


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
    if not schema.takes_out:
        return ()
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
    if not out_names:
        return (text,)
    name, _, rest = text.partition("(")
    inside = rest[: rest.rindex(") -> ")]
    lists = ["" if part.many is None else "[]" for part in schema.results]
    pairs = enumerate(zip(out_names, lists, strict=True))
    outs = ", ".join(f"Tensor(r{index}!){brackets} {out}" for index, (out, brackets) in pairs)
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
_LIBRARIES: dict[str, Any] = {}
_UNDO: list[Callable[[], None]] = []  # which keep registrations: a Library ends its own with it
_NUMBERS: dict[tuple[str, str, int], int] = {}
_LOCK = registry.lock()
_BEING_DEFINED = local()


def operator(kernel: Kernel) -> Operator:
    """Return the operators of a kernel; they are registered if need be.

    Raises:
        ArgumentError: the kernel has no schema.
    """
    schema = kernel.schema
    if schema is None:
        raise ArgumentError(
            f"{kernel.name}: an operator of torch needs a schema; give one to dlbridge.wrap"
        )
    if kernel.flat is not None:
        return _flat_operator(kernel)
    found = _OPERATORS.get(kernel.key)
    return found if found is not None else registry.load(_make, recorded(kernel), kernel)


def _flat_operator(kernel: Kernel) -> Operator:
    found: Operator | None = vars(kernel).get("_torch_operator")
    if found is None:
        assert kernel.whole is not None
        assert kernel.flat is not None
        made = FlatOperator(operator(kernel.whole), kernel.flat)
        found = vars(kernel).setdefault("_torch_operator", made)
    return found


def current(key: str, is_out: bool, args: Any, kwargs: Any) -> tuple[Operator, Kernel]:
    """Return the operator and the kernel of a key, for rules that torch calls by it.

    With lists, they are those for the lengths that the lists of the call have.
    """
    kernel = serving(key)
    made = operator(kernel)
    if kernel.lists is None:
        return made, kernel
    tensors, scalars, _ = made.unpack(is_out, args, kwargs)
    served = kernel.lists.serving(tensors, scalars)
    return operator(served), served


def _make(key: str, kernel: Kernel) -> Operator:
    schema = kernel.schema
    assert schema is not None
    with _LOCK:
        found = _OPERATORS.get(key)
        if found is not None:
            return found
        kind = CountedOperator if schema.counts else Operator
        kind = NumberOperator if schema.numbers else kind
        made = kind(key, schema, kernel.autocast)
        _BEING_DEFINED.key = key  # torch.ops looks it up
        try:
            _define_composite(made) if isinstance(made, NumberOperator) else _define(made)
        finally:
            _BEING_DEFINED.key = None
        _OPERATORS[key] = made
        if not schema.numbers:
            sharding.offer(made.default, schema, made.layout, kernel.sharding)
        return made


# ---- registration --------------------------------------------------------------------------------


def _library(namespace: str) -> Any:
    library = _LIBRARIES.get(namespace)
    if library is None:
        library = _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
    return library


def _define_composite(made: NumberOperator) -> None:
    library = torch.library.Library(made.schema.namespace, "FRAGMENT")
    try:
        library.define(made.definitions[0])
        library.impl(made.own, made.run, "CompositeImplicitAutograd")
        _look_up(made)
    except BaseException:
        library._destroy()
        raise
    _UNDO.append(library._destroy)


def _define(made: Operator) -> None:
    library = _library(made.schema.namespace)
    number = _number(made)
    undo = _define_in_python(made) if number is None else _define_in_c(made, number)
    try:
        _look_up(made)
        for is_out, _ in enumerate(made.definitions):
            add_rules(made, library, bool(is_out), current)
        made.shorter = _define_shorter(made)
    except BaseException:
        undo()
        raise
    _UNDO.append(undo)


_MOST_OPTIONAL = 4  # optional tensors that are written: there is an overload for each choice


def _define_shorter(made: Operator) -> dict[tuple[str, ...], Any]:
    """Define overloads for calls that leave out optional tensors which the kernel would write.

    Inductor cannot compile an operator with results one of whose written arguments is None
    (pytorch#180618), so graphs call an operator that does not have it. They are returned by the
    names of what each of them lacks.
    """
    schema = made.schema
    names = [part.name for part in schema.tensors if part.optional and part.mutated]
    if not schema.results or len(names) > _MOST_OPTIONAL:
        return {}
    return {
        without: _define_without(made, without)
        for count in range(1, len(names) + 1)
        for without in combinations(names, count)
    }


def _define_without(made: Operator, without: tuple[str, ...]) -> Any:
    parts = [part for part in made.layout.parameters if part.name not in without]
    schema = type(made.schema)(made.schema.namespace, made.own, parts, made.schema.results)
    overload = f"without_{'_'.join(without)}"
    own = f"{made.own}.{overload}"
    rest = schema.torch_schema().removeprefix(made.own)
    names = [part.name for part in parts]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        tensors, scalars, _ = made.unpack(False, (), given)
        values, named = made.pack(tensors, scalars)
        return made.default(*values, **named)

    library = _LIBRARIES[made.schema.namespace]
    library.define(f"{own}{rest}")
    for key in _keys(made):
        library.impl(own, run, key)
    torch.library.register_fake(f"{made.schema.namespace}::{own}", run, lib=library)
    library.impl(own, torch.library.fallthrough_kernel, "Autograd")
    _add_casts(made, library, own, lambda: getattr(made.packet, overload), without)
    return getattr(made.packet, overload)


def _number(made: Operator) -> int | None:
    """Return the C function of this name and these arguments; None where Python must do."""
    if shim_lacks() is not None or made.schema.has_lists or made.schema.counts:
        return None
    letters = "".join(
        _LETTERS[part.kind].upper() if part.optional else _LETTERS[part.kind]
        for part in made.layout.parameters
    )
    if "s" in letters.lower() and not native.torch_op_has_strings():
        return None
    if {"l", "m"} & set(letters.lower()) and not native.torch_op_has_lists():
        return None
    key = made.name, letters, made.out_at
    if key not in _NUMBERS:
        number = native.torch_op_take(made.name, letters, made.out_at)
        if number is None:
            return None
        _NUMBERS[key] = number
    return _NUMBERS[key]


def _keys(made: Operator) -> tuple[str, ...]:
    may_lack_tensors = all(part.optional or part.many is not None for part in made.schema.tensors)
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


def _look_up(made: Operator) -> None:
    """Set the overloads that `torch.ops` has."""
    namespace = getattr(torch.ops, made.schema.namespace)
    vars(namespace).pop(made.own, None)
    made.packet = getattr(namespace, made.own)
    made.default = made.packet.default
    made.out = made.packet.out if made.out_names else None


# ---- torch.ops -----------------------------------------------------------------------------------


class _Namespace(torch._ops._OpNamespace):  # type: ignore[misc]
    """`torch.ops.<namespace>` of kernels; it may hold operators of others."""

    __module__ = torch._ops._OpNamespace.__module__  # operators are pickled by it

    def __getattr__(self, name: str) -> Any:
        key = f"{self.name}::{name}"
        if key in _OPERATORS or getattr(_BEING_DEFINED, "key", None) == key:
            return super().__getattr__(name)
        kernel = known(key)
        if kernel is None:
            return super().__getattr__(name)
        packet = operator(kernel).packet  # of another name, if the key is of another process
        setattr(self, name, packet)
        return packet


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
        made, kernel = current(name, is_out, args, kwargs)
        result = made.call_in_c(kernel, is_out, args, kwargs)
        if result is not NotImplemented:
            return None if is_out else made.give(result)
        tensors, scalars, outs = made.unpack(is_out, args, kwargs)
        if outs or made.schema.mutated:
            refuse_gradients(made.schema, [*tensors, *outs])
            _refuse_inference(made.schema, tensors, outs)
        plain = [None if each is None else each.detach() for each in tensors]
        buffers = [each.detach() for each in outs]  # which count versions together with theirs
        arguments = Arguments(plain, scalars, buffers or None)
        torch_binding = binding("torch")
        with torch_binding.working(next((each for each in plain if each is not None), None)):
            try:
                result = Binding.call(torch_binding, kernel.bounded, arguments)  # no dispatcher
            except ExchangeError:  # refused before the kernel ran
                raise
            except BaseException:  # what a kernel wrote before it failed counts as well
                for _, tensor in written(made.schema, tensors, outs):
                    torch_binding.wrote(tensor)
                raise
        if isinstance(made, CountedOperator):
            result = made.cut(kernel, result)
        return None if is_out else made.give(result)

    return run


def _refuse_inference(schema: Schema, tensors: list[Any], outs: list[Any]) -> None:
    """Refuse to write into tensors of inference mode outside of it, as torch does."""
    if torch.is_inference_mode_enabled():
        return
    for place, tensor in written(schema, tensors, outs):
        if tensor.is_inference():
            wanted, found, hint = QUALITIES["readonly"]
            got = describe(tensor)
            raise unfit(schema, place, "readonly", (wanted, found), got, hint)


# ---- beyond its body: without memory, differentiated, batched ------------------------------------


Lookup = Callable[[str, bool, Any, Any], "tuple[Operator, Kernel]"]


def add_rules(operator: Operator, library: Any, is_out: bool, current: Lookup) -> None:
    """Register everything but the body of an overload, once.

    Args:
        operator: the operators of a name.
        library: the torch.library.Library of its namespace.
        is_out: the overload with `out`, or the functional one.
        current: returns what the name means when a rule runs, as the function `current` does.
    """
    full = overload_name(operator.name, is_out)
    own = overload_name(operator.own, is_out)
    torch.library.register_fake(full, fake(current, operator.name, is_out), lib=library)
    if not is_out:
        _add_casts(operator, library, own, lambda: operator.default)
    if is_out or operator.schema.mutated:
        # The body refuses what autograd would have to know of, so autograd need not look.
        library.impl(own, torch.library.fallthrough_kernel, "Autograd")
        rule = writing_rule(current, operator.name, is_out)
        library.impl(own, rule, "FuncTorchDynamicLayerFrontMode")
        return
    is_whole = operator.schema.has_lists or bool(operator.schema.counts)
    differentiate = autograd_kernel(current, operator.name, is_whole)
    library.impl(own, differentiate, "Autograd", with_keyset=True)
    compute_batch = batching_rule(current, operator.name)
    torch.library.register_vmap(operator.name, compute_batch, lib=library)


def overload_name(name: str, is_out: bool) -> str:
    """Return the name of an overload, as libraries take it."""
    return f"{name}.out" if is_out else name


# ---- without memory ------------------------------------------------------------------------------


def fake(current: Lookup, name: str, is_out: bool) -> Callable[..., Any]:
    """Return the fake kernel of an operator: that of a name, or its `out` overload."""

    def results(*args: Any, **kwargs: Any) -> Any:
        operator, _ = current(name, is_out, args, kwargs)
        schema = operator.schema
        tensors, scalars, outs = operator.unpack(is_out, args, kwargs)
        made = check(schema, tensors, scalars, outs or None)
        if schema.counts:
            made = _with_extents(schema, made, tensors, scalars)
        if outs or schema.mutated:
            refuse_gradients(schema, [*tensors, *outs])
        if is_out:
            return None
        device = next((each.device for each in tensors if each is not None), "cpu")
        new = [torch.empty(shape, dtype=dtype.to("torch"), device=device) for shape, dtype in made]
        return operator.give(tuple(new) if len(new) > 1 else (new[0] if new else None))

    return results


def _with_extents(
    schema: Schema,
    made: Sequence[tuple[Any, DType]],
    tensors: Sequence[Any],
    scalars: Sequence[Any],
) -> list[tuple[Any, DType]]:
    """Return shapes and dtypes of results with new symbols for what the kernel says."""
    seen = [None if each is None else describe(each) for each in tensors]
    rooms = schema.bounded().results_of(schema.bind(seen, scalars))
    context = torch.library.get_ctx()
    said: dict[str, Any] = {}
    found = []
    for result, (shape, dtype), (room, _) in zip(schema.results, made, rooms, strict=False):
        name = said_by(result)
        if name is None:
            found.append((shape, dtype))
            continue
        if name not in said:
            limits = {"max": room[0]} if type(room[0]) is int else {}
            said[name] = context.new_dynamic_size(min=0, **limits)
            torch._check(said[name] <= room[0])
        found.append(((said[name], *shape[1:]), dtype))
    return found


def check(
    schema: Schema,
    tensors: Sequence[Any],
    scalars: Sequence[Any],
    outs: Sequence[Any] | None,
) -> list[tuple[Any, DType]]:
    """Return shape and dtype of each result, or raise what a call with these tensors raises."""
    described = [None if each is None else describe(each) for each in tensors]
    bindings = schema.bind(described, scalars)
    _bound_sizes(schema, scalars)
    made = schema.results_of(bindings)
    if outs is not None:
        schema.check_out(bindings, [describe(each) for each in outs])
    _refuse_devices(schema, [*tensors, *(outs or ())])
    return made


def _decide(comparison: torch.SymBool) -> bool:
    """Return what a comparison of sizes says; where it depends on data, what its call would need.

    Then only the call can tell, and refuses what does not fit, as all calls do.
    """
    from torch.fx.experimental import symbolic_shapes

    if not symbolic_shapes.free_unbacked_symbols(comparison):
        return bool(comparison)
    return not symbolic_shapes.statically_known_true(torch.sym_not(comparison))


DECIDE[torch.SymBool] = _decide


def _bound_sizes(schema: Schema, scalars: Sequence[Any]) -> None:
    """Tell torch that symbols are not negative; of those that come out of data it knows nothing."""
    sizes = [(name, scalars[place]) for place, name in schema.sizes]
    for place, name in schema.spread:
        sizes += [(f"{name}[{number}]", value) for number, value in enumerate(scalars[place])]
    for name, value in sizes:
        if isinstance(value, torch.SymInt):
            refused = str(negative(schema, name, value))
            torch._check(value >= 0, lambda text=refused: text)


def describe(tensor: Any) -> Described:
    """Return what a schema looks at of a tensor."""
    return Described(tuple(tensor.shape), DType(tensor.dtype), "torch.Tensor", str(tensor.device))


def written(schema: Schema, tensors: Sequence[Any], outs: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the tensors of a call that the kernel writes, each with its place."""
    found = [(place, tensors[place]) for place in schema.mutated]
    found += enumerate(outs, len(schema.tensors))
    return [(place, tensor) for place, tensor in found if tensor is not None]


def _refuse_devices(schema: Schema, tensors: Sequence[Any]) -> None:
    present = [(place, each) for place, each in enumerate(tensors) if each is not None]
    for place, tensor in present[1:]:
        first, like = present[0]
        if tensor.device != like.device:
            name = schema.place_name(place)
            expected = f"{schema.part(place).expected()} on {like.device} as "
            expected += repr(schema.place_name(first))
            hint = "move the tensors to one device"
            got = describe(tensor).text()
            raise ExchangeError("device", refusal(schema.qualified, name, expected, got, hint))


def refuse_gradients(schema: Schema, tensors: Sequence[Any]) -> None:
    """Refuse a call that writes into its arguments where autograd would have to know of it."""
    for place, tensor in enumerate(tensors):
        if tensor is not None and needs_gradient(tensor):
            wanted, found, hint = QUALITIES["requires_grad"]
            got = describe(tensor)
            raise unfit(schema, place, "requires_grad", (wanted, found), got, hint)


def needs_gradient(tensor: Any) -> bool:
    """Return whether autograd, backward or forward, has to know what happens to a tensor."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return True
    return getattr(forward_ad, "_current_level", -1) >= 0 and has_tangent(tensor)


def has_tangent(tensor: Any) -> bool:
    """Return whether a tensor carries a tangent of forward-mode differentiation."""
    if tensor.layout is not torch.strided:  # of others torch cannot make the view that it returns
        return False
    return torch._VF._unpack_dual(tensor, level=0)[1] is not None


# ---- autocast ------------------------------------------------------------------------------------


def _add_casts(
    made: Operator,
    library: Any,
    own: str,
    overload: Callable[[], Any],
    without: tuple[str, ...] = (),
) -> None:
    """Have autocast cast the tensors of an overload's calls, as the kernel's `autocast=` says.

    Calls that write into `out` are left alone, as those of torch's own functions are.
    """
    if made.casts is None:
        return
    names = [part.name for part in made.layout.parameters if part.name not in without]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        values, named = made.cast((), given, without) or (args, kwargs)
        with autocasting.below():
            return overload()(*values, **named)

    for key in autocasting.KEYS:
        library.impl(own, call, key)


# ---- derivatives ---------------------------------------------------------------------------------


class Call:
    """One call below autograd, and what its derivatives have to know of it.

    Attributes:
        levels: the grad modes of the caller, backward and forward, within torch.func; else None.
            A rule runs with both modes off, and the levels around it would then take the call for
            a constant.
    """

    __slots__ = ("kernel", "keys", "levels", "operator", "scalars")

    def __init__(self, operator: Operator, kernel: Kernel, keys: Any, scalars: list[Any]) -> None:
        self.operator = operator
        self.kernel = kernel
        self.keys = keys
        self.scalars = scalars
        self.levels: tuple[bool, bool] | None = None
        if _C._are_functorch_transforms_active():
            self.levels = torch.is_grad_enabled(), _C._is_fwd_grad_enabled()

    def run(self, tensors: Sequence[Any]) -> Any:
        """Run the operator on these tensors."""
        args, kwargs = self.operator.pack(tensors, self.scalars)
        if self.levels is None:
            return self.operator.take(go_on(self.operator, self.keys, args, kwargs))
        with grad_modes(*self.levels):
            return self.operator.take(go_on(self.operator, self.keys, args, kwargs))


@contextmanager
def grad_modes(backward: bool, forward: bool) -> Iterator[None]:
    """Set the grad modes of both kinds in a `with` block."""
    before = torch.is_grad_enabled(), _C._is_fwd_grad_enabled()
    try:
        try:
            _set_grad_modes(backward, forward)
            yield
        finally:
            _set_grad_modes(*before)
    finally:  # once more, for an interrupt of the first time
        _set_grad_modes(*before)


def _set_grad_modes(backward: bool, forward: bool) -> None:
    _C._set_grad_enabled(backward)
    _C._set_fwd_grad_enabled(forward)


def go_on(operator: Operator, keys: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Call the operator at the dispatch keys after autograd's."""
    with _C._AutoDispatchBelowAutograd():
        return operator.default.redispatch(keys & _C._after_autograd_keyset, *args, **kwargs)


class Rule(torch.autograd.function._SingleLevelFunction):  # type: ignore[misc]
    """The derivative of an operator, at one level: the dispatcher has sorted the levels out."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> Any:
        """Run the operator."""
        return call.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the derivatives need."""
        call, *tensors = inputs
        results = output if isinstance(output, tuple) else (output,)
        ctx.call = call
        ctx.mark_non_differentiable(*[each for each in results if not is_differentiable(each)])
        ctx.vjp, ctx.jvp = gradients.make_vjp(call.kernel), gradients.make_jvp(call.kernel)
        ctx.expected = [None if each is None else describe(each) for each in tensors]
        ctx.made = [(each.shape, DType(each.dtype)) for each in results]
        if ctx.vjp is not None:
            saved = ctx.vjp.saved
            kept = [*_keep(tensors, saved.primals), *_keep(results, saved.results)]
            ctx.save_for_backward(*kept)
            if ctx.jvp is None:
                ctx.save_for_forward(*kept)
        if ctx.jvp is not None:
            ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Return the gradients of the tensors, by the kernel's vjp."""
        call = ctx.call
        if ctx.vjp is None:
            raise no_rule(call.kernel, "vjp", "gradient")
        saved = list(ctx.saved_tensors)
        primals, results = saved[: len(ctx.expected)], saved[len(ctx.expected) :]
        found = ctx.vjp(primals, call.scalars, results, list(cotangents), ctx.expected)
        refuse_foreign(call.kernel.name, "vjp", found)
        needed = ctx.needs_input_grad[1:]
        return None, *[grad if need else None for grad, need in zip(found, needed, strict=True)]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the tangents of the results, by the kernel's jvp or the transpose of its vjp."""
        call = ctx.call
        if not any(dtype.is_floating or dtype.is_complex for _, dtype in ctx.made):
            return (None,) * len(ctx.made) if len(ctx.made) > 1 else None
        if ctx.jvp is None and not gradients.may_transpose(call.kernel):
            if not gives_constants(call.kernel):
                raise no_rule(call.kernel, "jvp", "tangent")
            still = tuple([_zeros(shape, dtype, tangents[1:]) for shape, dtype in ctx.made])
            return still if len(still) > 1 else still[0]
        find = _tangents if ctx.jvp is not None else _transposed
        if call.levels is None:
            return find(ctx, ctx.saved_tensors, tangents[1:])
        with grad_modes(*call.levels):
            # Forward mode is on for the levels around, so tangents of this one must not be seen.
            primals = [
                None if each is None else forward_ad.unpack_dual(each, level=0).primal
                for each in ctx.saved_tensors
            ]
            return find(ctx, primals, tangents[1:])


def _transposed(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Return the tangents by the kernel's vjp, which is linear in the cotangents: its transpose.

    That is its derivative by them, at this level of torch.func: no other may be entered here.
    """
    call, count = ctx.call, len(ctx.expected)
    keeps_graph = torch.is_grad_enabled()
    with torch.enable_grad(), enable_inplace_requires_grad(True):
        cotangents = [_new_variable(shape, dtype, tangents) for shape, dtype in ctx.made]
        found = ctx.vjp(saved[:count], call.scalars, saved[count:], cotangents, ctx.expected)
        refuse_foreign(call.kernel.name, "vjp", found)
        pairs = [
            (gradient, tangent)
            for gradient, tangent in zip(found, tangents, strict=True)
            if gradient is not None and tangent is not None and gradient.requires_grad
        ]
        moving = [each for each in cotangents if each is not None]
        made: Sequence[Any] = [None] * len(moving)
        if pairs:
            gradients, given = zip(*pairs, strict=True)
            made = torch.autograd.grad(
                gradients, moving, given, create_graph=keeps_graph, allow_unused=True
            )
    left = iter(
        torch.zeros_like(each) if one is None else one
        for each, one in zip(moving, made, strict=True)
    )
    results = tuple([None if each is None else next(left) for each in cotangents])
    return results if len(results) > 1 else results[0]


def _new_variable(shape: Any, dtype: DType, tangents: Sequence[Any]) -> Any:
    """Return a cotangent of such a result; None where it can have none."""
    made = _zeros(shape, dtype, tangents)
    return None if made is None else made.requires_grad_()


def _zeros(shape: Any, dtype: DType, tangents: Sequence[Any]) -> Any:
    """Return the tangent of a result that does not move; None where it can have none."""
    if not (dtype.is_floating or dtype.is_complex):
        return None
    like = next(each for each in tangents if each is not None)
    return torch.zeros(shape, dtype=dtype.to("torch"), device=like.device)


def _tangents(ctx: Any, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    given = [
        torch.zeros_like(primal)
        if tangent is None and primal is not None and is_differentiable(primal)
        else tangent
        for primal, tangent in zip(primals, tangents, strict=True)
    ]
    found = tuple(ctx.jvp(primals, ctx.call.scalars, given))
    refuse_foreign(ctx.call.kernel.name, "jvp", found)
    results = tuple(
        [  # torch asserts that a floating result has a tangent
            _zeros(shape, dtype, given) if one is None else one
            for one, (shape, dtype) in zip(found, ctx.made, strict=True)
        ]
    )
    return results if len(results) > 1 else results[0]


def refuse_foreign(name: str, word: str, found: Sequence[Any]) -> None:
    """Refuse what a rule returned in arrays of others: torch could not differentiate on."""
    for each in found:
        if each is not None and not isinstance(each, torch.Tensor):
            raise UnsupportedTypeError(
                f"{name}: its {word} must return torch tensors for torch tensors; it "
                f"returned {protocol.describe(each)}; convert it, or pass a Kernel as {word}="
            )


def is_differentiable(tensor: Any) -> bool:
    """Return whether a result can have a gradient."""
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _keep(tensors: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [each if place in places else None for place, each in enumerate(tensors)]


def no_rule(kernel: Kernel, word: str, what: str) -> KernelError:
    """Return the exception for a derivative that the kernel was wrapped without."""
    other = ""
    if word == "jvp" and kernel.vjp is not None:
        other = ", and its vjp, a Kernel, has no vjp= of its own to be transposed by"
    return KernelError(
        f"{kernel.name}: it has no {what}: it was wrapped without {word}={other}; give it one with "
        f"dlbridge.wrap(kernel, {word}=...), or pass tensors that need none"
    )


def autograd_kernel(current: Lookup, name: str, is_whole: bool = False) -> Callable[..., Any]:
    """Return what stands at the autograd key of the functional operator of a name."""
    knows_tangents = guard_is_open()  # else C does not see those of a compiled graph

    def differentiate(keys: Any, *args: Any, **kwargs: Any) -> Any:
        is_wanted = not knows_tangents and is_needed(args, kwargs)
        if not is_wanted:
            result = native.torch_call_plain(serving(name), *args, **kwargs)
            if result is not NotImplemented:
                return result
        operator, kernel = current(name, False, args, kwargs)
        if knows_tangents:
            is_wanted = is_needed(args, kwargs)
        if not (operator.schema.results and is_wanted):
            return go_on(operator, keys, args, kwargs)
        tensors, scalars, _ = operator.unpack(False, args, kwargs)
        return _apply(rule(name), Call(operator, kernel, keys, scalars), tensors)

    def differentiate_whole(keys: Any, *args: Any, **kwargs: Any) -> Any:
        operator, kernel = current(name, False, args, kwargs)
        tensors, scalars, _ = operator.unpack(False, args, kwargs)
        is_wanted = not knows_tangents and is_needed(tensors, {})
        if not is_wanted:
            result = operator.call_in_c(kernel, False, args, kwargs)
            if result is not NotImplemented:
                return operator.give(result)
        if knows_tangents:
            is_wanted = is_needed(tensors, {})
        if not (operator.schema.results and is_wanted):
            return go_on(operator, keys, args, kwargs)
        return operator.give(_apply(rule(name), Call(operator, kernel, keys, scalars), tensors))

    return differentiate_whole if is_whole else differentiate


def is_needed(args: Sequence[Any], kwargs: Any) -> bool:
    """Return whether a derivative may be asked of a call with these arguments."""
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return True
    if torch.is_grad_enabled() and _any_requires_grad(*args, **kwargs):
        return True
    if _C._are_functorch_transforms_active():
        return True
    # Graphs of torch.compile enter a level without setting that number: their tensors are asked,
    # but not while a tracer would record the question.
    if _C._len_torch_dispatch_stack() or torch.jit.is_tracing():
        return True
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    if any(map(is_traceable_wrapper_subclass, tensors)):  # has_tangent fails for DTensor of 2.6
        return True
    return any(map(has_tangent, tensors))


def _any_of_these(*args: Any, **kwargs: Any) -> bool:
    return any(getattr(each, "requires_grad", False) for each in (*args, *kwargs.values()))


_any_requires_grad: Callable[..., bool] = getattr(_C, "_any_requires_grad", _any_of_these)


def _apply(made: Any, call: Call, tensors: list[Any]) -> Any:
    from torch._functorch.autograd_function import enable_single_level_autograd_function

    with enable_single_level_autograd_function():
        return made.apply(call, *tensors)


_RULES: dict[str, Any] = {}


def rule(name: str) -> Any:
    """Return the Rule of an operator: a class of its own, whose name shows up in `grad_fn`."""
    made = _RULES.get(name)
    if made is None:
        made = _RULES.setdefault(name, type(name.replace("::", "_"), (Rule,), {}))
    return made


# ---- batches -------------------------------------------------------------------------------------


class Batch:
    """A call over a batch: batched tensors have the batch in front, the others are shared."""

    __slots__ = ("is_batched", "kernel", "operator", "scalars", "size", "tensors")

    def __init__(
        self, called: tuple[Operator, Kernel], size: int, in_dims: Any, args: Any, kwargs: Any
    ) -> None:
        self.operator, self.kernel = called
        tensors, self.scalars, _ = self.operator.unpack(False, args, kwargs)
        dims = self.operator.batch_dims(in_dims)
        self.size = size
        self.is_batched = tuple(dim is not None for dim in dims)
        self.tensors = [
            each if dim is None else each.movedim(dim, 0)
            for each, dim in zip(tensors, dims, strict=True)
        ]

    def run(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Call the operator."""
        args, kwargs = self.operator.pack(tensors, self.scalars)
        found = self.operator.take(self.operator.default(*args, **kwargs))
        return found if isinstance(found, tuple) else (found,)


def sequential(batch: Batch) -> tuple[Any, ...]:
    """Call the kernel once for each element of the batch."""
    if batch.size == 0:
        return tuple(_new_results(batch))
    found = _over_memory(batch)
    if found is not None:
        return found
    columns = [
        each.unbind(0) if is_batched else [each] * batch.size
        for each, is_batched in zip(batch.tensors, batch.is_batched, strict=True)
    ]
    rows = [batch.run(row) for row in zip(*columns, strict=True)]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _new_results(batch: Batch) -> list[Any]:
    """Return results of the whole batch, not yet computed; refuse what a call would refuse."""
    first = [
        each.new_empty(each.shape[1:]) if is_batched else each
        for each, is_batched in zip(batch.tensors, batch.is_batched, strict=True)
    ]
    device = next((each.device for each in first if each is not None), None)
    return [
        torch.empty((batch.size, *shape), dtype=dtype.to("torch"), device=device)
        for shape, dtype in check(batch.operator.schema, first, batch.scalars, None)
    ]


@cache
def _initial_keys() -> tuple[Any, Any]:
    """Return the dispatch keys that are included and excluded where no transform is at work.

    Each thread starts with them; which they are differs between versions of torch.
    """
    found: list[Any] = []

    def look() -> None:
        found.append((_C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()))

    thread = Thread(target=look)
    thread.start()
    thread.join()
    included, excluded = found[0]
    return included, excluded


def _over_memory(batch: Batch) -> tuple[Any, ...] | None:
    """Have C call the kernel for each element; None where torch must have a say.

    Each call has the shapes of a call of its own, and passes the same checks. To the transforms
    around this one plain tensors are constants, so that their dispatch keys have no say.
    """
    schema = batch.operator.schema
    if not schema.results or any(part.name == "out" for part in schema.parameters):
        return None
    if not guard_is_open() and not queries_are_open():  # then C calls no kernel for a batch
        return None
    if _C._len_torch_dispatch_stack() or torch.jit.is_tracing():
        return None
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return None
    given = [each for each in batch.tensors if each is not None]
    with _C._ForceDispatchKeyGuard(*_initial_keys()):
        if not all(map(native.torch_direct_allows, given)):
            return None
    results = _new_results(batch)
    tensors = [
        each[0] if is_batched else each
        for each, is_batched in zip(batch.tensors, batch.is_batched, strict=True)
    ]
    steps = [
        each.stride(0) * each.element_size() if is_batched else 0
        for each, is_batched in zip(batch.tensors, batch.is_batched, strict=True)
    ]
    steps += [each.stride(0) * each.element_size() for each in results]
    args, kwargs = schema.spell(tensors, batch.scalars)
    outs = tuple(each[0] for each in results)
    out = outs if len(outs) > 1 else outs[0]
    call, kernel, size = native.torch_call_batch, batch.kernel, batch.size
    with _C._ForceDispatchKeyGuard(*_initial_keys()):
        is_done = call(kernel, size, tuple(steps), *args, **kwargs, out=out)
    return tuple(results) if is_done else None


def broadcast(batch: Batch) -> tuple[Any, ...]:
    """Call the kernel once: the batch is one more leading dimension of what has a pack in front."""
    schema = batch.operator.schema
    pairs = list(zip(schema.tensors, batch.is_batched, strict=True))
    fits = all(_has_room(part) for part, is_batched in pairs if is_batched)
    if not (fits and all(_has_room(result) for result in schema.results)):
        return sequential(batch)
    tensors = [
        each.expand(batch.size, *each.shape)
        if each is not None and _has_room(part) and not is_batched
        else each
        for each, (part, is_batched) in zip(batch.tensors, pairs, strict=True)
    ]
    return batch.run(tensors)


def _has_room(part: Parameter | Result) -> bool:
    return bool(part.dims) and part.dims[0].kind == "pack"


def called(batch: Batch) -> tuple[Any, ...]:
    """Have the rule that the kernel was wrapped with compute the batch."""
    kernel: Kernel = batch.kernel
    assert callable(kernel.batch)
    names = [part.name for part in batch.operator.schema.scalars]
    scalars = dict(zip(names, batch.scalars, strict=True))
    found = kernel.batch(batch.size, batch.is_batched, *batch.tensors, **scalars)
    several = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    count = len(batch.operator.schema.results)
    if len(several) != count or not all(isinstance(each, torch.Tensor) for each in several):
        kinds = ", ".join(type(each).__name__ for each in several)
        raise UnsupportedTypeError(
            f"{kernel.name}: batch must return {count} tensor{'s' if count != 1 else ''}, got "
            f"{len(several)}: {kinds}"
        )
    return several


_WAYS: dict[str, Callable[[Batch], tuple[Any, ...]]] = {
    "sequential": sequential,
    "broadcast": broadcast,
}


def batching_rule(current: Lookup, name: str) -> Callable[..., Any]:
    """Return the vmap rule of the functional operator of a name."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        called_now = current(name, False, args, kwargs)
        cast = called_now[0].cast(args, kwargs)  # autocast's keys come after this one
        if cast is not None:
            with autocasting.below():
                return rule(info, in_dims, *cast[0], **cast[1])
        schema = called_now[0].schema
        if schema.counts:
            raise KernelError(
                f"{name}: within torch.vmap each element would have {schema.counts[0].value} "
                "of its own; call .bounded of the kernel, whose results have the bound"
            )
        batch = Batch(called_now, info.batch_size, in_dims, args, kwargs)
        way = batch.kernel.batch
        found = called(batch) if callable(way) else _WAYS[way](batch)
        give = batch.operator.give
        if len(found) == 1:
            return give(found[0]), give(0)
        return give(found), give((0,) * len(found))

    return rule


# ---- calls that write, within torch.func --------------------------------------------------------


def writing_rule(current: Lookup, name: str, is_out: bool) -> Callable[..., Any]:
    """Return what serves a call that writes into its arguments within transforms of torch.func.

    Where no tensor of it is differentiated, it is no business of torch.func.grad and its like, so
    it runs once, below them: statistics and caches are kept this way. torch.vmap would have to run
    it for each element of a batch, one after another, in the same memory.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        level = retrieve_current_functorch_interpreter()
        if level.key() not in _DIFFERENTIATING:
            raise KernelError(
                f"{name}: a call that writes into its arguments has no meaning within torch.vmap "
                "and the like; leave out= away, or use a kernel that returns results"
            )
        operator, _ = current(name, is_out, args, kwargs)
        tensors, scalars, outs = operator.unpack(is_out, args, kwargs)
        refuse_gradients(operator.schema, [*tensors, *outs])
        unwrap = partial(_unwrap, level=level.level())
        with level.lower():  # to the level around this one, or to the operator itself
            values, named = operator.pack([*map(unwrap, tensors)], scalars, [*map(unwrap, outs)])
            return (operator.out if is_out else operator.default)(*values, **named)

    return call


_DIFFERENTIATING = (_C._functorch.TransformType.Grad, _C._functorch.TransformType.Jvp)


def _unwrap(tensor: Any, level: int) -> Any:
    return None if tensor is None else _C._functorch._unwrap_for_grad(tensor, level)
