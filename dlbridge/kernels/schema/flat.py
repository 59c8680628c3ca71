"""Calls with lists of tensors: a schema without lists for each length of the lists.

    mylib::add(xs: f32[n][k], ys: f32[?m][]) -> f32[n][k]      with two xs and one of ys is
    mylib::add(xs[0]: f32[n], xs[1]: f32[n], ys[0]: f32[m[0]]) -> (out[0]: f32[n], out[1]: f32[n])

An optional result, `mean: f32[n]? if save`, is a list of one tensor or of none, which has its own
name. Calls have the tensor or None where lists are lists.

Everything that frameworks do with a call, they do with such a flat one: allocation, checks, traces,
derivatives, batches. What is grouped in lists is grouped here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.kernels.schema.bind import refusal, type_name
from dlbridge.kernels.schema.model import Schema, find_flaw
from dlbridge.kernels.schema.parts import (
    EACH,
    MAX_CALL_TENSORS,
    Dim,
    Parameter,
    Part,
    Result,
    join_parts,
    make_expression,
)
from dlbridge.signals import not_from_handler


class Flat(NamedTuple):
    """A schema with lists, for lists of certain lengths.

    Attributes:
        whole: the schema with lists.
        schema: the one without.
        lengths: of the arguments that are lists, in order; then of the results that are optional.
        counts: of each tensor argument of `whole`, how many tensors it is; None without a list.
        results: the same of its results.
        written: the same of the arguments that are written in place.
        known: the lengths that have names, in `whole` as dimensions.
    """

    whole: Schema
    schema: Schema
    lengths: tuple[int, ...]
    counts: tuple[int | None, ...]
    results: tuple[int | None, ...]
    written: tuple[int | None, ...]
    known: dict[str, int]

    @property
    def sizes(self) -> list[int]:
        """How many tensors each argument, then each result, is."""
        return [1 if count is None else count for count in (*self.counts, *self.results)]

    @property
    def names(self) -> dict[str, list[str] | None]:
        """The names of the tensors of each argument and result; None if it is not a list."""
        parts = join_parts(self.whole.tensors, self.whole.results)
        counts = (*self.counts, *self.results)
        return {
            part.name: None if count is None else [_name(part, at) for at in range(count)]
            for part, count in zip(parts, counts, strict=True)
        }


def _name(part: Part, place: int) -> str:
    """Return what a tensor of a list, or an optional result, is called."""
    return element(part.name, place) if part.is_list else part.name


def element(name: str, place: int) -> str:
    """Return what a tensor of a list is called: "xs[0]"."""
    return f"{name}[{place}]"


def spread(values: Iterable[Any], counts: Sequence[int | None]) -> list[Any]:
    """Return tensors of a call with lists as the flat call has them.

    Example:
        >>> spread(["x", ["a", "b"]], (None, 2))
        ['x', 'a', 'b']
    """
    found: list[Any] = []
    for value, count in zip(values, counts, strict=True):
        if count is None:
            found.append(value)
        else:
            found += value
    return found


def gather(values: Iterable[Any], counts: Sequence[int | None]) -> list[Any]:
    """Return what `spread` was given.

    Example:
        >>> gather(["x", "a", "b"], (None, 2))
        ['x', ['a', 'b']]
    """
    left = iter(values)
    return [next(left) if count is None else [next(left) for _ in range(count)] for count in counts]


def conditions_of(
    schema: Schema, tensors: Sequence[Any], scalars: Sequence[Any]
) -> tuple[bool, ...]:
    """Return, for each optional result of a call, whether it is there.

    Raises:
        UnsupportedTypeError: the argument that decides is not a bool, but a value that is traced.
    """
    if not schema.has_optional_results:
        return ()
    given = {
        **dict(zip([part.name for part in schema.tensors], tensors)),  # noqa: B905  (see bind._assign)
        **dict(zip([part.name for part in schema.scalars], scalars)),  # noqa: B905
    }
    found = []
    for place, condition in enumerate(schema.conditions):
        if not condition:
            continue
        value = given[condition]
        if schema.by_name[condition].optional:
            found.append(value is not None)
        elif type(value) is bool:
            found.append(value)
        else:
            raise _refuse_condition(schema, schema.results[place], value)
    return tuple(found)


def _refuse_condition(schema: Schema, result: Result, value: Any) -> UnsupportedTypeError:
    hint = (
        f"it decides whether {result.name!r} is a result, so that compilers must know it: make it "
        "static, as in jax.jit(f, static_argnames=...), or a constant of the program"
    )
    text = refusal(schema.qualified, result.condition, "bool", type_name(value), hint)
    return UnsupportedTypeError(text)


def lengths_of(
    schema: Schema, tensors: Sequence[Any], scalars: Sequence[Any] = ()
) -> tuple[int, ...]:
    """Return the lengths of the lists of a call, whose arguments are as `arrange` sorts them.

    Raises:
        ArgumentError: a list is longer or shorter than the schema says.
        UnsupportedTypeError: as `conditions_of`.
    """
    lengths = []
    known: dict[str, tuple[str, int]] = {}
    for part, value in zip(schema.tensors, tensors, strict=True):
        if part.many is None:
            continue
        count = len(value)
        lengths.append(count)
        for name in _shared_lengths(part):
            first, expected = known.setdefault(name, (part.name, count))
            if expected != count:
                text = f"a list of {expected}, as {first!r} is"
                raise ArgumentError(refusal(schema.qualified, part.name, text, f"one of {count}"))
        if part.many.kind == "constant" and part.many.value != count:
            text = f"a list of {part.many}"
            raise ArgumentError(refusal(schema.qualified, part.name, text, f"one of {count}"))
    return *lengths, *map(int, conditions_of(schema, tensors, scalars))


def _shared_lengths(part: Part) -> Iterator[str]:
    """Yield what lists of the same length share: its name, or names of which each has its own."""
    assert part.many is not None
    if part.many.kind == "name":
        yield str(part.many.value)
    for dim in part.dims:
        for name in (*dim.names, str(dim.value)):
            if name.startswith(EACH):
                yield name


def flatten(schema: Schema, lengths: Sequence[int]) -> Flat:
    """Return a schema for lists of these lengths, which fit it.

    Raises:
        ArgumentError: there are too many tensors, or too few to determine the results.
    """
    left = iter(lengths)
    counts = tuple([None if part.many is None else next(left) for part in schema.tensors])
    known: dict[str, int] = {}
    for part, count in zip(schema.tensors, counts, strict=True):
        if count is not None:
            known |= dict.fromkeys(_shared_lengths(part), count)
    results = tuple(
        [
            None
            if part.many is None
            else next(left)
            if part.condition
            else _result_length(schema, part, known)
            for part in schema.results
        ]
    )
    _check_count(schema, counts, results)
    constants = {name: count for name, count in known.items() if not name.startswith(EACH)}
    parameters: list[Parameter] = []
    given: list[Result] = []
    remaining = iter(counts)
    try:
        for part in schema.parameters:
            parameters += _elements(part, next(remaining) if part.is_tensor else None, constants)
        for result, count in zip(schema.results, results, strict=True):
            given += _elements(result, count, constants)
    except not_from_handler(ArithmeticError) as error:
        raise _impossible(schema, counts, f"a dimension {error}") from None
    flaw = find_flaw(tuple(parameters), tuple(given), elements=True)
    if flaw is not None:
        raise _impossible(schema, counts, flaw.text)
    flat = Schema(schema.namespace, schema.name, parameters, given, elements=True)
    written = tuple([counts[place] for place in schema.mutated])
    return Flat(schema, flat, tuple(lengths), counts, results, written, constants)


def _result_length(schema: Schema, part: Result, known: dict[str, int]) -> int:
    assert part.many is not None
    if part.many.kind == "constant":
        lengths = {int(part.many.value)}
    else:
        lengths = set()
    lengths |= {known[name] for name in _shared_lengths(part) if name in known}
    if len(lengths) > 1:
        several = " and ".join(map(str, sorted(lengths)))
        raise ArgumentError(
            f"{schema.qualified}: result {part.name!r} would have {several} tensors"
        )
    return lengths.pop()


def _check_count(
    schema: Schema, counts: Sequence[int | None], results: Sequence[int | None]
) -> None:
    total = sum([1 if count is None else count for count in (*counts, *results)])
    if total > MAX_CALL_TENSORS:
        raise ArgumentError(
            f"{schema.qualified}: a call has at most {MAX_CALL_TENSORS} tensors, with results, and "
            f"this one has {total}: {_sizes(schema, counts)}; call it with parts of the lists"
        )


def _impossible(schema: Schema, counts: Sequence[int | None], why: str) -> ArgumentError:
    return ArgumentError(f"{schema.qualified}: with {_sizes(schema, counts)}: {why}")


def _sizes(schema: Schema, counts: Sequence[int | None]) -> str:
    pairs = zip(schema.tensors, counts, strict=True)
    return ", ".join(
        [
            f"{count} tensor{'' if count == 1 else 's'} in {part.name!r}"
            for part, count in pairs
            if count is not None
        ]
    )


def _elements(part: Any, count: int | None, constants: dict[str, int]) -> list[Any]:
    """Return the parts that a part is; lengths become constants, names of each its own."""
    if count is None:
        return [part._replace(dims=tuple([_rename(dim, constants, 0) for dim in part.dims]))]
    return [
        part._replace(
            name=_name(part, at),
            dims=tuple([_rename(dim, constants, at) for dim in part.dims]),
            many=None,
        )
        for at in range(count)
    ]


def _rename(dim: Dim, constants: dict[str, int], place: int) -> Dim:
    if dim.kind == "pack":
        return dim._replace(value=_own(str(dim.value), place))
    if not dim.names:
        return dim
    steps = dim.steps or (("n", dim.value),)
    return make_expression(
        ("c", constants[str(value)])
        if operation == "n" and value in constants
        else (operation, _own(str(value), place) if operation == "n" else value)
        for operation, value in steps
    )


def _own(name: str, place: int) -> str:
    return element(name.removeprefix(EACH), place) if name.startswith(EACH) else name
