"""Kernels whose results are numbers of Python: `count(x: f32[n], *, above: float) -> int`.

Frameworks and compilers know results that are tensors. So a call is made by another kernel,
`tensors`, which has a tensor without dimensions for each number:

    mylib::count(x: f32[n], *, above: float) -> i64[]

It is a kernel like any other, in every framework, compiler and transform, with lists, optional
results and sizes that the kernel says. What the call returns is read from its results, at the very
end, and is a constant for derivatives, as what `x.item()` gives is. Where a program is traced, and
a value is not known, the call returns the tensor.

A function of C writes the number where a pointer of its name points, or returns it. One of Python
returns it, also where it writes its other results into `out`, and so does one of tvm-ffi.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Signature
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange.protocol import describe
from dlbridge.kernels import binding, gradients
from dlbridge.kernels.gradients import Rule
from dlbridge.kernels.inner import Inner
from dlbridge.kernels.kinds import Function, read_signature
from dlbridge.kernels.schema import Arguments, Result, Schema, conditions_of
from dlbridge.signals import not_from_handler

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel

SUFFIX = "__tensors"  # of the key of `tensors`; see also registry.c

# Types of tensors for which `Binding.call_numbers` has no rules; bindings add theirs.
PLAIN_TENSORS: set[type] = {np.ndarray}


class Numbers(Inner):
    """The calls of a kernel some of whose results are numbers.

    Attributes:
        whole: the kernel.
        results: place and result of each number.
    """

    def __init__(self, whole: Kernel) -> None:
        super().__init__(whole)
        self.results = [(place, self.schema.results[place]) for place in self.schema.numbers]
        self._is_alone = len(self.schema.results) == 1
        self._is_differentiable = gradients.is_differentiable(self.schema)

    @property
    def tensors(self) -> Kernel:
        """The kernel that makes the calls."""
        return self.kernel

    def _make(self) -> Kernel:
        whole = self.whole
        recipe = dataclasses.replace(
            whole.recipe,
            schema=self.schema.as_tensors(),
            functions={
                platform: _tensor_function(function, self.schema)
                for platform, function in whole.functions.items()
            },
            jvp=_tensor_jvp(whole),
            outer=whole,
        )
        made = type(whole)(recipe)
        whole.serve_numbers(made, tuple([bool(part.number) for part in self.schema.results]))
        return made

    def check(self) -> None:
        """Refuse what no kernel of numbers can do.

        Raises:
            ArgumentError: a batch would be one call, which returns one number.
        """
        if self.whole.batch == "broadcast":
            name = self.results[0][1].name
            raise ArgumentError(
                f"{self.schema.qualified}: batch='broadcast' cannot be where {name!r} is a number, "
                "which is one for a whole batch"
            )

    # ---- calls ---------------------------------------------------------------------------------

    def call(self, framework: str | None, args: Any, kwargs: Any) -> Any:
        """Call the kernel: with tensors of `framework`, or with those of any one.

        Raises:
            UnsupportedTypeError, ArgumentError: the arguments do not fit the schema.
        """
        if args and "out" not in kwargs and type(args[0]) in PLAIN_TENSORS:
            kernel = self.tensors
            function = kernel if framework is None else getattr(kernel, framework)
            try:
                found = function(*args, **kwargs)
            except UnsupportedTypeError:
                self.schema.arrange(args, kwargs, traced=True)  # its text knows no `out`
                raise
            return self.read(found)
        arguments = self.schema.arrange(tuple(args), dict(kwargs), traced=True)
        name = framework or _framework_of(arguments)
        if name is None:  # which is refused, or works where no tensor is needed
            return self.read(self.tensors(*args, **kwargs))
        return binding.binding(name).call_numbers(self.whole, arguments)

    def gives_constants(self, arguments: Arguments) -> bool:
        """Return whether no result of a call can have a derivative; a number cannot."""
        schema = self.schema
        if not (self._is_differentiable and schema.has_optional_results):
            return not self._is_differentiable
        choices = iter(conditions_of(schema, arguments.tensors, arguments.scalars))
        is_there = [next(choices) if result.condition else True for result in schema.results]
        return not any(
            there and not result.number and result.dtype.may_be_floating
            for there, result in zip(is_there, schema.results, strict=True)
        )

    def function(self, framework: str) -> Callable[..., Any]:
        """Return what `kernel.<framework>` is: a builtin function, of all frameworks."""
        return binding.binding(framework).number_function(self.whole)

    def read(self, found: Any) -> Any:
        """Return the results of a call, of what `tensors` returned."""
        if self._is_alone and not isinstance(found, tuple):
            return self._read_one(self.results[0][1], found)
        values = list(found)  # behind them may be new values of what the kernel wrote
        for place, result in self.results:
            values[place] = self._read_one(result, values[place])
        return tuple(values)

    def _read_one(self, result: Result, value: Any) -> Any:
        if value is None:  # an optional one
            return None
        if isinstance(value, np.ndarray):
            return value.item()
        name = binding.framework_name(value) or "dlbridge"
        return binding.binding(name).read_number(self.whole, result, value)


def _framework_of(arguments: Arguments) -> str | None:
    first = next((each for each in in_row(arguments.tensors) if each is not None), None)
    return None if first is None else binding.framework_name(first)


def in_row(tensors: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors of a call, those of lists among them, and None."""
    for value in tensors:
        yield from value if isinstance(value, (list, tuple)) else [value]


def changed(function: Callable[[Any], Any], arguments: Arguments) -> Arguments:
    """Return the arguments with what a function returns for each tensor."""

    def change(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [*map(change, value)]
        return None if value is None else function(value)

    return arguments._replace(tensors=[*map(change, arguments.tensors)])


def names_of(kernel: Kernel) -> dict[str, str]:
    """Return which results of a kernel that makes calls are numbers for the caller: name, kind."""
    outer = kernel.recipe.outer
    if outer is None:
        return {}
    return {result.name: result.number for _, result in outer.numbers.results}


def gives_constants(kernel: Kernel) -> bool:
    """Return whether all floating results of a kernel that makes calls are numbers for callers."""
    assert kernel.schema is not None
    numbers = names_of(kernel)
    results = kernel.schema.results
    return all(each.name in numbers or not each.dtype.may_be_floating for each in results)


def _tensor_jvp(whole: Kernel) -> Any:
    """Return the jvp of `tensors`, by that of the kernel, which gives no tangents of numbers."""
    made = None if isinstance(whole.jvp, str) else gradients.make_jvp(whole)
    if made is None:
        return whole.jvp
    results, rule, collect = made.schema.results, made.rule, made.collect

    def call(*values: Any) -> dict[str, Any]:
        found = collect(rule(dict(zip(rule.names, values, strict=True))))
        pairs = zip(results, found, strict=True)
        return {result.name: each for result, each in pairs if each is not None}

    return Rule(rule.names, len(rule.names), call)


# ---- functions -----------------------------------------------------------------------------------


def _tensor_function(function: Function, schema: Schema) -> Function:
    """Return the function as `tensors` calls it: one of Python or of tvm-ffi gives tensors."""
    if function.abi == "tvm_ffi":
        caller = _tvm_caller(function, schema)
        return dataclasses.replace(function, abi="python:dlbridge", address=0, callable=caller)
    if function.framework is None:
        return function
    called = _returning_tensors(function.callable, function.framework, schema)
    return dataclasses.replace(function, callable=called)


def _returning_tensors(
    function: Callable[..., Any], framework: str, schema: Schema
) -> Callable[..., Any]:
    """Return a function that returns tensors, or writes them, where another returns numbers."""
    signature = read_signature(function)
    own = {part.name for part in schema.parameters}
    has_out = signature is not None and "out" in signature.parameters and "out" not in own
    takes_out = has_out and framework != "jax" and len(schema.numbers) < len(schema.results)
    made = binding.binding(framework)
    makers = [
        None if not result.number else made.number_maker(result.dtype.dtypes[0])
        for result in schema.results
    ]

    def call(*tensors: Any, **given: Any) -> Any:
        found = function(*tensors, **given)
        like = _first(tensors)
        results = []
        several = _several(schema, found, len(makers))
        for result, make, value in zip(schema.results, makers, several, strict=True):
            if make is not None and value is not None:
                number = value if made.is_tracing() else check_number(schema, result, value, made)
                results.append(make(number, like))
            else:
                results.append(value)
        return tuple(results) if len(results) > 1 else results[0]

    def fill(*tensors: Any, out: Any, **given: Any) -> Any:
        rooms = list(out)  # there is a tensor among the results, and a number
        left = tuple([room for at, room in enumerate(rooms) if at not in schema.numbers])
        found = function(*tensors, out=left if len(left) > 1 else left[0], **given)
        count = len(schema.numbers) + len(schema.counts)
        numbers = _several(schema, found, count)
        for place, value in zip(schema.numbers, numbers, strict=False):
            if rooms[place] is None and value is None:
                continue
            number = check_number(schema, schema.results[place], value, made)
            if rooms[place] is not None:
                made.write(rooms[place], number)
        extents = numbers[len(schema.numbers) :]
        return (extents[0] if len(extents) == 1 else tuple(extents)) if extents else None

    called = fill if takes_out else call
    called.__name__ = getattr(function, "__name__", schema.name)
    if getattr(function, "only_reads", False):
        called.only_reads = True  # type: ignore[attr-defined]
    if signature is not None:
        called.__signature__ = signature  # type: ignore[attr-defined]
        if has_out and not takes_out:
            called.__signature__ = _without_out(signature, schema)  # type: ignore[attr-defined]
    return called


def _first(tensors: Sequence[Any]) -> Any:
    """Return the first tensor of a call, or None; older dynamo traces no generators."""
    for value in tensors:
        if isinstance(value, (list, tuple)):
            value = value[0] if value else None
        if value is not None:
            return value
    return None


def _without_out(signature: Signature, schema: Schema) -> Signature:
    out = signature.parameters["out"]
    if out.default is out.empty:
        raise UnsupportedTypeError(
            f"{schema.qualified}: the function has a parameter 'out', and no result is a tensor to "
            "write into: it returns the numbers"
        )
    return signature.replace(
        parameters=[each for each in signature.parameters.values() if each.name != "out"]
    )


def _several(schema: Schema, found: Any, count: int) -> list[Any]:
    """Return what a function returned for each result, or for each number."""
    if count == 1:
        return [found]
    several = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(several) != count:
        raise UnsupportedTypeError(
            f"{schema.qualified}: the function must return {count} values, it returned "
            f"{len(several)}"
        )
    return several


_PLAIN: Mapping[str, tuple[type, ...]] = {
    "int": (int, np.integer),
    "float": (float, np.floating, int, np.integer),
    "bool": (bool, np.bool_),
}


def check_number(schema: Schema, result: Result, value: Any, made: binding.Binding) -> Any:
    """Return what a function of a framework returned for a result that is a number.

    Raises:
        UnsupportedTypeError: it is none, or one of another kind.
        ArgumentError: it does not fit 64 bits.
    """
    kind = result.number
    is_bool = isinstance(value, (bool, np.bool_))
    if isinstance(value, _PLAIN[kind]) and is_bool == (kind == "bool"):
        return _fit(schema, result, value)
    if made.is_symbol(value, kind):
        return value
    hint = ""
    if hasattr(value, "item") and not isinstance(value, np.generic):
        hint = "; a number of a tensor without dimensions is x.item()"
    raise UnsupportedTypeError(
        f"{schema.qualified}: result {result.name!r}: expected {kind}, the function returned "
        f"{describe(value)}{hint}"
    )


def _fit(schema: Schema, result: Result, value: Any) -> Any:
    number: int | float | None = None
    if result.number == "bool":
        number = bool(value)
    elif result.number == "int":
        number = int(value) if -(2**63) <= value < 2**63 else None
    else:
        try:
            number = float(value)
        except not_from_handler(OverflowError):  # of an int
            number = None
    if number is None:
        raise ArgumentError(
            f"{schema.qualified}: result {result.name!r}: the function returned an int that does "
            "not fit 64 bits"
        )
    return number


def _tvm_caller(function: Function, schema: Schema) -> Callable[..., Any]:
    """Return a function of Tensors that calls one of tvm-ffi, which returns the number."""
    if len(schema.numbers) > 1 or schema.counts:
        raise ArgumentError(
            f"wrap: {schema.qualified}: a function of tvm-ffi returns one number, and says no "
            "sizes beside it; declare tensors to write numbers into, as in i64[]"
        )
    at = schema.numbers[0]
    result = schema.results[at]
    mutated = {part.name for part in schema.parameters if part.mutated}
    own = binding.binding("dlbridge")

    def call(*tensors: Any, out: Any, **scalars: Any) -> None:
        outs = [out] if len(schema.results) == 1 else list(out)
        room = outs.pop(at)
        left = iter(tensors)
        given = [
            (part.name in mutated, next(left) if part.is_tensor else scalars[part.name])
            for part in schema.parameters
        ]
        given += [(True, each) for each in outs]
        value = binding.call_tvm(function, [each for _, each in given], [is_w for is_w, _ in given])
        own.write(room, check_number(schema, result, value, own))

    call.__name__ = schema.name
    return call
