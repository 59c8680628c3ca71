"""Kernels that take or give lists of tensors: one kernel without lists for each length of them.

    mylib::stack(xs: f32[n][k]) -> f32[k, n]

A call binds the lengths, finds or makes the kernel for them, calls it with all tensors in a row,
and groups what it returns. That kernel is called, compiled, differentiated and batched as any
other: no framework knows lists, but for torch, whose operator takes `Tensor[]`.

A kernel in C gets all tensors in a row, and asks `dlb_get_tensors` where a list begins. Functions
of Python get lists, and so do C functions with a signature, as arrays of addresses. A vjp or a jvp
gets and returns lists.

An optional result, `mean: f32[n]? if save`, is such a list, of one tensor or of none: so there is a
kernel with it and one without. What callers, functions of Python and rules see is the tensor or
None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter as Item
from inspect import Signature
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.kernels import binding, gradients
from dlbridge.kernels.gradients import Automatic, Derivative, Jvp, Rule, Vjp
from dlbridge.kernels.kinds import Function, c_call, read_signature
from dlbridge.kernels.kinds.raw import raw_caller
from dlbridge.kernels.schema import (
    Flat,
    Schema,
    conditions_of,
    flatten,
    gather,
    join_parts,
    lengths_of,
    spread,
)

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel


class Lists:
    """The kernels that serve the calls of one with lists.

    Attributes:
        whole: the kernel with lists.
        wrap: `dlbridge.wrap`, by which derivatives are derived.
    """

    def __init__(self, whole: Kernel) -> None:
        self.whole = whole
        self.wrap: Callable[..., Kernel]
        self._kernels: dict[tuple[int, ...], Kernel] = {}
        self._are_lists = [part.many is not None for part in self.schema.tensors]
        self._lock = registry.lock()
        # Of calls that C makes by itself: the kernel, and the lengths of its results.
        self._direct: dict[tuple[int, ...], tuple[Kernel, tuple[int, ...]]] = {}
        by_position = [part for part in self.schema.parameters if not part.keyword_only]
        self._is_optional = self.schema.has_optional_results
        self._choices = _choices_of(self.schema) if self._is_optional else None
        if not self._is_optional and not any(part.keyword_only for part in self.schema.tensors):
            whole.serve_lists(tuple([part.many is not None for part in by_position]), self._direct)

    @property
    def schema(self) -> Schema:
        """The schema with lists."""
        assert self.whole.schema is not None
        return self.whole.schema

    def check(self, wrap: Callable[..., Kernel]) -> None:
        """Make one of the kernels, so that what cannot work is refused when it is wrapped.

        Raises:
            DLBridgeError: as `wrap` does.
        """
        self.wrap = wrap
        lengths = [
            int(part.many.value) if part.many.kind == "constant" else 1
            for part in self.schema.tensors
            if part.many is not None
        ]
        lengths += [1 for result in self.schema.results if result.condition]
        kernel = self.kernel(tuple(lengths))
        gradients.make_vjp(kernel)
        gradients.make_jvp(kernel)

    def serving(self, tensors: Sequence[Any], scalars: Sequence[Any]) -> Kernel:
        """Return the kernel for the lists of a call, whose arguments are as `arrange` sorts them.

        Raises:
            ArgumentError: lists of other lengths than the schema says; or as `kernel`.
            UnsupportedTypeError: what decides about a result is not known yet.
        """
        lengths = tuple([len(each) for each, is_list in zip(tensors, self._are_lists) if is_list])  # noqa: B905
        if self._is_optional:
            lengths = (*lengths, *map(int, conditions_of(self.schema, tensors, scalars)))
        found = self._kernels.get(lengths)  # which fitted before
        if found is None or lengths not in self._direct:
            found = self.kernel(lengths_of(self.schema, tensors, scalars))
            self._serve_directly(found)
        return found

    def _serve_directly(self, kernel: Kernel) -> None:
        flat = kernel.flat
        assert flat is not None
        counts = tuple([-1 if count is None else count for count in flat.results])
        self._direct[flat.lengths] = kernel, counts

    def kernel(self, lengths: tuple[int, ...]) -> Kernel:
        """Return the kernel for lists of these lengths.

        Raises:
            ArgumentError: there are too many tensors, or too few to determine the results.
        """
        found = self._kernels.get(lengths)
        if found is None:
            with self._lock:
                found = self._kernels.get(lengths)
                if found is None:
                    found = self._kernels[lengths] = self._make(flatten(self.schema, lengths))
        return found

    def _make(self, flat: Flat) -> Kernel:
        whole = self.whole
        recipe = dataclasses.replace(
            whole.recipe,
            schema=flat.schema,
            functions={
                platform: _flat_function(function, flat)
                for platform, function in whole.functions.items()
            },
            vjp=self._rule(whole.vjp, gradients.make_vjp, flat),
            jvp=self._rule(whole.jvp, gradients.make_jvp, flat),
            batch=_flat_batch(whole.batch, flat),
            flat=flat,
            whole=whole,
        )
        return type(whole)(recipe)

    def _rule(self, given: Any, make: Callable[[Kernel], Vjp | Jvp | None], flat: Flat) -> Any:
        """Return a rule of tensors in a row; what a framework derives is derived when needed."""
        if given is None or not gradients.is_differentiable(flat.schema):
            return None
        if isinstance(given, str):
            return Automatic(given, self.wrap)
        whole = make(self.whole)
        assert whole is not None
        return _flat_rule(whole, flat)

    # ---- calls ---------------------------------------------------------------------------------

    def call(self, framework: str | None, args: Any, kwargs: Any) -> Any:
        """Call the kernel: with tensors of `framework`, or with those of any one.

        Raises:
            UnsupportedTypeError, ArgumentError: the arguments do not fit the schema.
        """
        if self._choices is not None:
            found = self._call_chosen(self._choices, framework, args, kwargs or {})
            if found is not NotImplemented:
                return found
        schema = self.schema
        arguments = schema.arrange(tuple(args), dict(kwargs or {}), traced=True)
        kernel = self.serving(arguments.tensors, arguments.scalars)
        flat = kernel.flat
        assert flat is not None
        tensors = spread(arguments.tensors, flat.counts)
        values, named = flat.schema.spell(tensors, arguments.scalars)
        if arguments.out is not None:
            outs = _spread_out(flat, arguments.out)
            if flat.schema.results:
                named["out"] = outs[0] if len(outs) == 1 else tuple(outs)
        function = kernel if framework is None else getattr(kernel, framework)
        found = function(*values, **named)
        is_functional = False
        if flat.written:
            name = framework or next(map(binding.framework_name, tensors), None)
            is_functional = name in binding.FUNCTIONAL
        return group_results(flat, found, is_functional)

    def _call_chosen(
        self, choices: Sequence[_Choice], framework: str | None, args: Any, kwargs: Any
    ) -> Any:
        """Call a kernel that is there already, which takes the arguments as they are.

        NotImplemented, and nothing has happened, where `call` must look.
        """
        if "out" in kwargs:
            return NotImplemented
        chosen = []
        for place, name, default, may_lack in choices:
            value = args[place] if place < len(args) else kwargs.get(name, default)
            if not may_lack and value is not True and value is not False:
                return NotImplemented
            chosen.append(value if not may_lack else value is not None)
        kernel = self._kernels.get(tuple(chosen))
        if kernel is None:
            return NotImplemented
        function = kernel if framework is None else getattr(kernel, framework)
        found = function(*args, **kwargs)
        assert kernel.flat is not None
        counts = kernel.flat.results
        left = iter((found,) if sum(chosen) + len(counts) - len(chosen) == 1 else found)
        results = [None if count == 0 else next(left) for count in counts]
        return tuple(results) if len(results) > 1 else results[0]

    def function(self, framework: str) -> Callable[..., Any]:
        """Return what `kernel.<framework>` is."""
        kernel = self.whole
        called = native.bind_kernel(kernel, framework, kernel.__name__, kernel.__doc__ or "")

        def call(*args: Any, **kwargs: Any) -> Any:
            if kernel.prepare("traced"):
                return kernel.traced(*args, **kwargs)
            return called(*args, **kwargs)

        call.__name__ = kernel.__name__
        call.__qualname__ = kernel.__qualname__
        call.__doc__ = kernel.__doc__
        call.__signature__ = self.schema.signature()  # type: ignore[attr-defined]
        call.autograph_info__ = {}  # type: ignore[attr-defined]  # see Kernel
        return call


class _Choice(NamedTuple):
    """Where a call says whether an optional result is there.

    Attributes:
        place: of the argument, by position; beyond all of them where it is passed by name.
        name: of the argument.
        default: its default.
        may_lack: whether it decides by whether it is None; else it is a bool.
    """

    place: int
    name: str
    default: Any
    may_lack: bool


def _choices_of(schema: Schema) -> tuple[_Choice, ...] | None:
    """Return where a call says which results are there.

    None where its arguments are not those of the kernels that serve it, or values that were written
    come back with the results.
    """
    if schema.mutated or any(part.is_list for part in join_parts(schema.tensors, schema.results)):
        return None
    places = {name: place for place, name in enumerate(schema.positional)}
    parts = [schema.by_name[result.condition] for result in schema.results if result.condition]
    return tuple(
        [
            _Choice(places.get(part.name, len(schema.parameters)), part.name, part.default,
                    part.optional)
            for part in parts
        ]
    )  # fmt: skip


def _spread_out(flat: Flat, out: Sequence[Any]) -> list[Any]:
    for part, value, count in zip(flat.whole.results, out, flat.results, strict=True):
        if part.condition and len(value) != count:
            expected = "None" if value else "a tensor"
            raise ArgumentError(
                f"{flat.whole.qualified}: out: expected {expected} for {part.name!r}, as "
                f"{part.condition} says"
            )
        if count is not None and len(value) != count:
            raise ArgumentError(
                f"{flat.whole.qualified}: out: expected {count} tensors for {part.name!r}, got "
                f"{len(value)}"
            )
    return spread(out, flat.results)


def group_results(
    flat: Flat, found: Any, is_functional: bool = False, *, lists: bool = False
) -> Any:
    """Return the results of a call as the schema with lists has them.

    Args:
        flat: of the kernel that was called.
        found: what it returned: nothing, a tensor, or a tuple of them.
        is_functional: whether arguments that are written come back after the results.
        lists: whether optional results are lists, of one tensor or of none.
    """
    counts = (*flat.results, *(flat.written if is_functional else ()))
    several = _several(found, sum([1 if count is None else count for count in counts]))
    grouped = gather(several, counts)
    if not lists:
        grouped[: len(flat.results)] = unwrap(flat.whole, grouped[: len(flat.results)])
    return tuple(grouped) if len(grouped) > 1 else (grouped[0] if grouped else None)


def unwrap(schema: Schema, results: Sequence[Any]) -> list[Any]:
    """Return results, of which the optional ones are lists, with tensors or None for them."""
    return [
        (value[0] if len(value) else None) if result.condition else value
        for result, value in zip(schema.results, results)  # noqa: B905  (see bind._assign)
    ]


def _several(found: Any, count: int) -> list[Any]:
    if count == 0:
        return []
    return [found] if count == 1 else list(found)


# ---- keys ----------------------------------------------------------------------------------------


def write_key(key: str, lengths: Sequence[int]) -> str:
    """Return the key by which programs know a kernel for lists of these lengths.

    Example:
        >>> write_key("mylib::stack", (2, 3))
        'mylib::stack[2,3]'
    """
    return f"{key}[{','.join(map(str, lengths))}]"


def read_key(key: str) -> tuple[str, tuple[int, ...]]:
    """Return the key of the kernel with lists, and their lengths."""
    name, _, lengths = key.removesuffix("]").partition("[")
    numbers = lengths.split(",")
    return name, tuple([int(each) for each in numbers if each.isdecimal()])


# ---- functions -----------------------------------------------------------------------------------


def _flat_function(function: Function, flat: Flat) -> Function:
    """Return the function as it is called with all tensors in a row."""
    if function.framework is not None:
        return dataclasses.replace(function, callable=_grouping(function.callable, flat))
    if function.is_raw and c_call.target(function.abi, flat.whole, flat) is not None:
        return dataclasses.replace(function, flat=flat)
    if function.is_raw:
        caller = raw_caller(function.address, function.abi, flat.whole)
        return dataclasses.replace(
            function, abi="python:dlbridge", address=0, callable=_grouping(caller, flat)
        )
    return function


def _grouping(function: Callable[..., Any], flat: Flat) -> Callable[..., Any]:
    """Return a function of tensors in a row that calls one of lists; `out` is grouped as well."""
    signature = read_signature(function)
    needs_out = _needs_out(signature, flat)

    def call(*tensors: Any, **given: Any) -> Any:
        if needs_out or "out" in given:
            given["out"] = group_results(flat, given.get("out"))
        found = function(*gather(tensors, flat.counts), **given)
        several = [found] if len(flat.results) == 1 else found
        if found is None or not isinstance(several, (tuple, list)):
            return found
        if len(several) != len(flat.results):
            return tuple(several)  # which is refused
        row = tuple(_spread_results(flat, several))
        return row if len(row) != 1 else row[0]

    if signature is not None:
        call.__signature__ = _signature(signature, flat)  # type: ignore[attr-defined]
    call.__name__ = getattr(function, "__name__", flat.schema.name)
    if getattr(function, "only_reads", False):
        call.only_reads = True  # type: ignore[attr-defined]
    return call


def _needs_out(signature: Signature | None, flat: Flat) -> bool:
    """Return whether the function must be given `out`, in which no tensor is."""
    out = None if signature is None else signature.parameters.get("out")
    if out is None or out.default is not out.empty or flat.schema.results:
        return False
    return bool(flat.whole.results)


def _spread_results(flat: Flat, several: Sequence[Any]) -> Iterator[Any]:
    for part, value, count in zip(flat.whole.results, several, flat.results, strict=True):
        if part.condition:
            if count:
                yield value
        elif count is not None and isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value


def _signature(signature: Signature, flat: Flat) -> Signature:
    """Return a signature with the tensors in a row, and everything else by name."""
    first = [Item(f"tensor_{at}", Item.POSITIONAL_ONLY) for at in range(len(flat.schema.tensors))]
    by_position = (Item.POSITIONAL_ONLY, Item.POSITIONAL_OR_KEYWORD)
    given = list(signature.parameters.values())
    count = len(flat.whole.tensors)
    positional = [each for each in given if each.kind in by_position][count:]
    named = [each for each in given if each.kind == Item.KEYWORD_ONLY]
    others = [each.replace(kind=Item.KEYWORD_ONLY) for each in positional]
    rest = [each for each in given if each.kind == Item.VAR_KEYWORD]
    by_name = [each for each in (*others, *named) if flat.schema.results or each.name != "out"]
    return Signature([*first, *by_name, *rest])


# ---- derivatives and batches ---------------------------------------------------------------------


def _flat_rule(whole: Derivative, flat: Flat) -> Rule:
    """Return a rule of tensors in a row that calls one of lists."""
    known = _values_of(flat)
    groups = [known.get(name) for name in whole.rule.names]
    names = [
        each
        for name, group in zip(whole.rule.names, groups, strict=True)
        for each in ([name] if group is None else group)
    ]
    counts = [None if group is None else len(group) for group in groups]
    optional = _optional_values(flat)

    def call(*values: Any) -> dict[str, Any]:
        given = dict(zip(whole.rule.names, gather(values, counts), strict=True))
        for name in optional.intersection(given):
            given[name] = given[name][0] if given[name] else None
        return _spread_derivatives(whole, flat, whole.rule(given))

    return Rule(tuple(names), len(names), call)


def _optional_values(flat: Flat) -> frozenset[str]:
    """Return what a rule may ask for that is an optional result, or the cotangent of one."""
    optional = [result.name for result in flat.whole.results if result.condition]
    cotangents = [
        name
        for name, place in gradients.cotangent_names(flat.whole).items()
        if flat.whole.results[place].condition
    ]
    return frozenset([*optional, *cotangents])


def _values_of(flat: Flat) -> dict[str, list[str] | None]:
    """Return what a rule may ask for, and what of it is a list: the names of its tensors."""
    found = dict(flat.names)
    for part in flat.whole.tensors:
        own = found[part.name]
        moved = None if own is None else [f"tangent_{name}" for name in own]
        found[f"tangent_{part.name}"] = moved
    for name, place in gradients.cotangent_names(flat.whole).items():
        result = flat.whole.results[place].name
        own = found[result]
        found[name] = None if own is None else [f"grad_{each}" for each in own]
    return found


def _spread_derivatives(whole: Derivative, flat: Flat, value: Any) -> dict[str, Any]:
    """Return what a rule gave by the names of the flat schema."""
    is_vjp = isinstance(whole, Vjp)
    parts: Sequence[Any] = flat.whole.tensors if is_vjp else flat.whole.results
    counts = flat.counts if is_vjp else flat.results
    found: dict[str, Any] = {}
    for part, count, given in zip(parts, counts, whole.collect(value), strict=True):
        names = flat.names[part.name]
        if given is None:
            continue
        if not part.is_list and names is not None:
            found |= dict.fromkeys(names, given)
            continue
        if count is None or names is None:
            found[part.name] = given
            continue
        if not isinstance(given, (tuple, list)) or len(given) != count:
            raise whole.wrong_list(part.name, count, given)
        found |= {name: each for name, each in zip(names, given, strict=True) if each is not None}
    return found


def _flat_batch(batch: Any, flat: Flat) -> Any:
    """Return the rule for a batch, of which a function gets and returns lists."""
    if not callable(batch):
        return batch

    def call(size: int, is_batched: Sequence[bool], *tensors: Any, **scalars: Any) -> Any:
        grouped = gather(tensors, flat.counts)
        marks = tuple(gather(is_batched, flat.counts))
        found = batch(size, marks, *grouped, **scalars)
        several = [found] if len(flat.results) == 1 else found
        if not isinstance(several, (tuple, list)) or len(several) != len(flat.results):
            return found  # which is refused
        return tuple(_spread_results(flat, several))

    return call


def refuse_functions(functions: Mapping[str, Function], schema: Schema) -> None:
    """Refuse functions that cannot be given lists of tensors.

    Raises:
        ArgumentError: such a function, and a schema with a list.
    """
    parts = join_parts(schema.tensors, schema.results)
    name = next((part.name for part in parts if part.many is not None), None)
    for function in functions.values():
        takes = function.abi == "dltensors" or function.framework is not None or function.is_raw
        if name is None or (takes and not function.is_gpu):
            continue
        listed = next(part for part in parts if part.name == name)
        kind = "a list of tensors" if listed.is_list else "an optional result"
        what = "abi='pointers'" if function.abi == "pointers" else function.kind
        raise ArgumentError(
            f"wrap: {schema.qualified}: {name!r} is {kind}, which {what} cannot be "
            "given; abi='dltensors', a C signature for the CPU and functions of Python can"
        )
