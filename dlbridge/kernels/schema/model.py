"""Schema: what a kernel takes and gives, in one line of text; everything else follows from it.

    mylib::axpy(x: float[n], y: float[n], *, alpha: float = 1.0) -> float[n]

Argument checks, texts of errors, allocation of results, fake kernels and shape functions of every
framework, `help` and signatures are made from it. `docs/schema.md` explains the notation;
`schema.parse` has the grammar.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter as Item
from inspect import Signature
from keyword import iskeyword
from typing import Any, NamedTuple, NoReturn, final

from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, DLBridgeError
from dlbridge.kernels.schema import bind
from dlbridge.kernels.schema.parse import Parser, parse_expression
from dlbridge.kernels.schema.parts import (
    EACH,
    LIST_KINDS,
    MAX_CALL_NAMES,
    MAX_CALL_TENSORS,
    MAX_DTYPES,
    MAX_EXTENT,
    MAX_LISTED,
    MAX_LISTS,
    MAX_NAMES,
    MAX_OPERANDS,
    MAX_PACKS,
    MAX_SCALARS,
    MAX_STEPS,
    MAX_TENSORS,
    MISSING,
    SETS,
    Arguments,
    Bindings,
    Described,
    Dim,
    DTypeSet,
    Parameter,
    Part,
    Result,
    Solution,
    default_name,
    dtype_key,
    dtype_of_key,
    is_dtype_name,
    is_outside,
    is_transferable,
    join_parts,
    make_set,
    read_list,
    short_name,
    write_many,
)
from dlbridge.shape import MAX_RANK


@final
class Schema:
    """The arguments and results of a kernel. Immutable; equal schemas have equal text.

    Attributes:
        namespace, name: of the operator in every framework; `qualified` is "namespace::name".
        parameters: every Parameter, in the order of the call.
        results: every Result.
        tensors: the parameters that are tensors. Places count from 0 here; results follow.
        scalars: the others.
        mutated: places of the tensors that are written in place.
        names, packs, dtypes: named dimensions, packs, dtype variables, by first appearance.
        sizes: (place among the scalars, name) of those that are dimensions.
        text: the schema in the canonical notation, also `str(schema)`.
        typed: place among the scalars and name of those that say the dtype of a tensor, or are one
            of a set.
        spread: place among the scalars and name of the lists that are packs.
        positional, by_name, computed: names by position; name -> Parameter; places of the tensors
            that have expressions for dimensions.
        solved: the names that only expressions determine, in the order in which they can be solved.
        has_lists: whether an argument or a result is a list of tensors. Calls are then bound by
            another schema, in which each tensor has a place of its own: see `flatten`.
        conditions: of each result the argument that decides whether it is there, or "".
        counts: the dimensions of results that the kernel says. Calls are then made by another
            schema, which has their bounds: see `bounded`.
        numbers: places of the results that are numbers. Calls are then made by another schema,
            which has tensors in their place: see `as_tensors`.

    Args:
        elements: a schema that `flatten` makes, whose arguments may be called "xs[0]".

    Raises:
        ArgumentError: a name is given twice, a result is not determined, a limit is exceeded, ….

    Example:
        >>> schema = Schema.parse("mylib::mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]")
        >>> schema.qualified, schema.tensors[1].name, schema.results[0].name, schema.names
        ('mylib::mm', 'y', 'out', ('m', 'k', 'n'))
    """

    __slots__ = (
        "by_name", "computed", "conditions", "counts", "dtypes", "elements", "has_lists", "mutated",
        "name", "names", "namespace", "numbers", "packs", "parameters", "positional", "qualified",
        "results", "scalars", "sizes", "solved", "spread", "tensors", "text", "typed",
    )  # fmt: skip

    namespace: str
    name: str
    qualified: str
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    tensors: tuple[Parameter, ...]
    scalars: tuple[Parameter, ...]
    mutated: tuple[int, ...]
    names: tuple[str, ...]
    packs: tuple[str, ...]
    dtypes: tuple[DTypeSet, ...]
    sizes: tuple[tuple[int, str], ...]
    typed: tuple[tuple[int, str], ...]
    spread: tuple[tuple[int, str], ...]
    text: str
    positional: tuple[str, ...]
    by_name: dict[str, Parameter]
    computed: tuple[int, ...]
    conditions: tuple[str, ...]
    solved: tuple[Solution, ...]
    has_lists: bool
    counts: tuple[Dim, ...]
    numbers: tuple[int, ...]
    elements: bool

    def __init__(
        self,
        namespace: str,
        name: str,
        parameters: Iterable[Parameter],
        results: Iterable[Result] = (),
        *,
        elements: bool = False,
    ) -> None:
        parts = tuple(parameters), tuple(results)
        if not (is_name(namespace) and is_name(name)):
            raise ArgumentError(f"Schema: {f'{namespace}::{name}'!r} cannot name an operator")
        flaw = find_flaw(*parts, elements)
        if flaw is not None:
            raise ArgumentError(f"Schema: {namespace}::{name}: {flaw.text}")
        self._set("namespace", namespace)
        self._set("name", name)
        self._set("elements", elements)
        self._set("qualified", f"{namespace}::{name}")
        for field, value in derive_fields(*parts).items():
            self._set(field, value)
        self._set("text", write_schema(self))

    @staticmethod
    def parse(text: str) -> Schema:
        """Return the schema in `text`; see `docs/schema.md` for the notation.

        Raises:
            ArgumentError: the text is no schema, or not a possible one; the place is marked.
        """
        parser = Parser(text)
        namespace, name, parameters, results = parser.read()
        flaw = find_flaw(parameters, results)
        if flaw is not None:
            parser.reader.refuse(flaw.text, parser.places[flaw.part or 0])
        return Schema(namespace, name, parameters, results)

    # ---- calls ---------------------------------------------------------------------------------

    def arrange(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        traced: bool = False,
        symbolic: bool = False,
    ) -> Arguments:
        """Sort the arguments of a call as Python would; convert scalars.

        Args:
            args: those by position.
            kwargs: those by name; with results, `out` (one tensor, or a tuple of them) is one.
            traced: leave a scalar that is no number of Python or NumPy as it is: a tracer.
            symbolic: leave any `int` and dtype as it is: an int that comes out of data is such to
                dynamo, and has no value to compare with limits; it cannot trace the reading of a
                dtype.

        Raises:
            UnsupportedTypeError: an argument is missing, unexpected, given twice or of a wrong
                kind. Tensors are not looked at.
            ArgumentError: a scalar does not fit 64 bits.

        Example:
            >>> Schema.parse("a::f(x: f32[n], *, k: int = 2)").arrange(("x",), {"k": 3})
            Arguments(tensors=['x'], scalars=[3], out=None)
        """
        return bind.arrange(self, args, kwargs, traced, symbolic)

    def spell(
        self, tensors: Sequence[Any], scalars: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments by position and by name of a call that `arrange` sorts like this.

        Example:
            >>> Schema.parse("a::f(x: f32[n], *, k: int = 2)").spell(["x"], [3])
            (['x'], {'k': 3})
        """
        left = {True: iter(tensors), False: iter(scalars)}
        args: list[Any] = []
        kwargs = {}
        for part in self.parameters:
            # dynamo of older torch reads no properties of named tuples
            value = next(left[part.kind == "tensor"])
            if part.keyword_only:
                kwargs[part.name] = value
            else:
                args.append(value)
        return args, kwargs

    def bind(
        self, tensors: Sequence[Described | None], scalars: Sequence[Any] | None = None
    ) -> Bindings:
        """Return what a call binds: named dimensions, packs, dtypes.

        Args:
            tensors: one for each of `self.tensors`; None for an optional one that is left out.
                Extents may be symbolic: they are compared with `==`, expressions use `+ - * //`.
                None is an extent, and a shape, that is not known and fits everything.
            scalars: one for each of `self.scalars`, of which only those are looked at that are
                dimensions or dtypes; None for one that is not known. Without it all are unknown.

        Raises:
            UnsupportedTypeError: a wrong dtype, or a required tensor is left out.
            ArgumentError: a negative scalar that is a dimension; else a wrong shape. The dtype is
                looked at first.

        Example:
            >>> schema = Schema.parse("mylib::top_k(x: f32[n], *, k: int) -> f32[k]")
            >>> x = Described((10,), DType("float32"))
            >>> schema.results_of(schema.bind([x], [3]))
            [((3,), DType('float32'))]
        """
        return bind.bind(self, tensors, scalars)

    def results_of(self, bindings: Bindings) -> list[tuple[Any, DType]]:
        """Return (shape, dtype) of each result; what is not known is None.

        Raises:
            ArgumentError: a dimension is negative, beyond 63 bits, or divides by zero.
        """
        return bind.results_of(self, bindings)

    def check_out(
        self, bindings: Bindings, outs: Sequence[Described | None], *, returned: bool = False
    ) -> None:
        """Compare buffers for the results with what the results will be.

        Args:
            bindings: of the call.
            outs: the buffers.
            returned: the wrapped function returned them; else the caller passed them.

        Raises:
            UnsupportedTypeError: a wrong dtype, or a wrong number of them.
            ArgumentError: a wrong shape.
        """
        bind.check_out(self, bindings, outs, returned=returned)

    def read_scalars(self, values: Sequence[Any]) -> list[Any]:
        """Return scalars as calls have them: programs have dtypes as numbers, and lists as text.

        Raises:
            ArgumentError: the number of values is wrong, or a text is not a list.
        """
        if len(values) != len(self.scalars):
            raise ArgumentError(
                f"{self.qualified} takes {len(self.scalars)} scalars, got {len(values)}"
            )
        return [_read_scalar(*each) for each in zip(self.scalars, values, strict=True)]

    def error(
        self,
        place: int | str,
        described: Described | None,
        bindings: Bindings | None = None,
    ) -> DLBridgeError:
        """Return (not raise) the exception for a tensor that does not fit.

        Args:
            place: a place, inputs first and then results; or a name.
            described: the tensor, or None where one is missing.
            bindings: what is known by then.
        """
        found = self.place_of(place) if isinstance(place, str) else place
        return bind.mismatch(self, found, described, bindings or Bindings())

    def part(self, place: int) -> Parameter | Result:
        """Return the tensor parameter, or the result, at a place."""
        count = len(self.tensors)
        return self.tensors[place] if place < count else self.results[place - count]

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the tensors that the kernel writes: arguments in place, then results."""
        arguments = [self.tensors[place].name for place in self.mutated]
        return (*arguments, *[result.name for result in self.results])

    def place_name(self, place: int) -> str:
        """Return what the caller calls the tensor at a place: for results "out" or "out[1]"."""
        result = place - len(self.tensors)
        if result < 0:
            return self.tensors[place].name
        return "out" if len(self.results) == 1 else f"out[{result}]"

    def place_of(self, name: str) -> int:
        """Return the place of a tensor argument or result by name."""
        for place, part in enumerate(join_parts(self.tensors, self.results)):
            if part.name == name:
                return place
        raise ArgumentError(f"{self.qualified}: no tensor argument or result is called {name!r}")

    # ---- others' forms -------------------------------------------------------------------------

    def encode(self) -> tuple[Any, ...]:
        """Return the schema as plain tuples for the native core.

        (dtype sets, name count, pack count, parameters, results, scalars, solutions): a set is a
        tuple of dtype keys (code | bits << 8 | lanes << 16), none for any dtype; a parameter (set,
        dims, optional, mutated), a result (set, dims), a scalar (kind, optional, name or -1, set or
        -1, pack or -1, count or -1); a dim ("c", extent), ("n", name), ("_",), ("p", pack) or ("e",
        ((operation, value), …)) in postfix; a solution (parameter, index of its dim, name).
        """
        return encode(self)

    def encode_arguments(self) -> tuple[Any, ...]:
        """Return (name, kind, index, keyword_only, has_default, default) for each parameter.

        The index counts tensors and scalars apart.
        """
        return encode_arguments(self)

    def torch_schema(self) -> str:
        """Return the schema of torch's operator, without its namespace.

        Defaults that torch cannot read are left out: inf, nan, subnormal numbers, text with escapes
        or beyond ASCII.

        Example:
            >>> Schema.parse("a::f(x!: f32[n], *, k: int? = None) -> f32[]").torch_schema()
            'f(Tensor(a!) x, *, SymInt? k=None) -> Tensor'
        """
        return torch_schema(self)

    def signature(self) -> Signature:
        """Return the call as `inspect.signature` shows it; annotations are the schema's types."""
        return signature(self)

    def help(self, summary: str = "", layout: str = "contiguous") -> str:
        """Return a docstring: `summary`, the schema, a line for each argument, the errors.

        Args:
            summary: what the kernel does, in one sentence.
            layout: "contiguous" (other memory is copied for the kernel) or "strided".
        """
        return help_text(self, summary, layout)

    # ---- other schemas -------------------------------------------------------------------------

    def named(self, qualified: str) -> Schema:
        """Return the same schema for "namespace::name"."""
        namespace, _, name = qualified.partition("::")
        return Schema(namespace, name, self.parameters, self.results, elements=self.elements)

    def with_parts(self, parameters: Iterable[Parameter], results: Iterable[Result]) -> Schema:
        """Return a schema of the same name with other arguments and results."""
        return Schema(self.namespace, self.name, parameters, results, elements=self.elements)

    def with_mutated(self, names: Iterable[str | int]) -> Schema:
        """Return a schema in which these tensors are written in place as well.

        Args:
            names: names of tensor arguments, or their places.

        Raises:
            ArgumentError: no such tensor argument.
        """
        return _with_mutated(self, names)

    def bounded(self) -> Schema:
        """Return the schema without dimensions that the kernel says.

        Results have the bounds instead, and behind them stands what the kernel says: an i64[] for
        each such dimension, of its name.

        Example:
            >>> print(Schema.parse("a::nonzero(x: f32[n]) -> i64[k<=n]").bounded())
            a::nonzero(x: f32[n]) -> (out: i64[n], k: i64[])
        """
        return _make_bounded(self)

    def as_tensors(self) -> Schema:
        """Return the schema with a tensor without dimensions for each result that is a number.

        Example:
            >>> print(Schema.parse("a::count(x: f32[n]) -> int").as_tensors())
            a::count(x: f32[n]) -> i64[]
        """
        return self.with_parts(self.parameters, [part._replace(number="") for part in self.results])

    def vjp(self, name: str | None = None) -> Schema:
        """Return the schema of a kernel that computes this one's vector-Jacobian product.

        It takes this kernel's tensors, then a cotangent for each result that may be floating
        (`grad` if there is one result, else `grad_<result>`), and by name this kernel's scalars. It
        gives `grad_<argument>` for each tensor that may be floating, with its dims and dtype.

        Args:
            name: "namespace::name"; by default this kernel's with "_vjp" at the end.

        Raises:
            ArgumentError: this kernel writes in place; it has no floating argument or result; the
                gradient of an optional argument would have dims or a dtype of its own.
        """
        return _make_vjp(self, name)

    @property
    def has_optional_results(self) -> bool:
        """Whether the presence of a result depends on an argument; see `conditions`."""
        return any(self.conditions)

    @property
    def takes_out(self) -> bool:
        """Whether a call can be given `out`: all results are tensors of a size known before."""
        return len(self.results) > 0 and len(self.counts) + len(self.numbers) == 0

    # ---- a value -------------------------------------------------------------------------------

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if type(other) is Schema else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Schema.parse({self.text!r})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Schema.parse, (self.text,)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Schema is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Schema is immutable: cannot delete {name}")


def _read_scalar(part: Parameter, value: Any) -> Any:
    if part.kind == "dtype" and isinstance(value, int):
        return dtype_of_key(value)
    if part.kind in LIST_KINDS and isinstance(value, str):
        return read_list(value, part.kind)
    return value


# ---- rules, checked once when a schema is made, and fields that follow from the parts ------------

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ELEMENT = re.compile(r"(.+)\[\d+\]", re.ASCII)


class Flaw(NamedTuple):
    """A mistake and its part: parameters count from 0, results follow; None is all of them."""

    text: str
    part: int | None


class Names(NamedTuple):
    """The names that a schema's tensors share, each in order of first appearance."""

    names: tuple[str, ...]
    packs: tuple[str, ...]
    dtypes: tuple[str, ...]


def collect_names(parts: tuple[Part, ...]) -> Names:
    """Return the named dimensions, packs and dtype variables of parameters and results."""
    dims = [dim for part in parts for dim in part.dims]
    names = dict.fromkeys(name for dim in dims for name in dim.names)
    packs = dict.fromkeys(str(dim.value) for dim in dims if dim.kind == "pack")
    dtypes = dict.fromkeys(part.dtype.variable for part in parts if part.dtype is not None)
    return Names(tuple(names), tuple(packs), tuple(dtypes))


def find_flaw(
    parameters: tuple[Parameter, ...], results: tuple[Result, ...], elements: bool = False
) -> Flaw | None:
    """Return the first thing that is wrong, or None; see `Schema` for `elements`."""
    parts = parameters, results
    flaws = itertools.chain(
        _check_counts(*parts, elements),
        _check_names(*parts, elements),
        *[
            check(*parts)
            for check in (
                _check_order, _check_values, _check_lists, _check_many, _check_optional,
                _check_sizes, _check_dtypes, _check_extents, _check_bound,
            )
        ],
        _check_limits(*parts, elements),
    )  # fmt: skip
    return next(flaws, None)


def derive_fields(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> dict[str, Any]:
    """Return the fields that follow from the parts, and the parts."""
    tensors = tuple([part for part in parameters if part.is_tensor])
    parts = join_parts(tensors, results)
    found = collect_names(parts)
    variables = {part.dtype.variable: part.dtype for part in parts if part.dtype}
    for part in parameters:
        if part.among is not None:
            variables.setdefault(part.name, DTypeSet("", part.among.dtypes, part.name))
    scalars = [part.name for part in parameters if not part.is_tensor]
    computed = [
        place
        for place, part in enumerate(tensors)
        if any(dim.kind == "expression" for dim in part.dims)
    ]
    return {
        "parameters": parameters,
        "results": results,
        "tensors": tensors,
        "scalars": tuple([part for part in parameters if not part.is_tensor]),
        "mutated": tuple([place for place, part in enumerate(tensors) if part.mutated]),
        "names": found.names,
        "sizes": tuple(
            [(place, name) for place, name in enumerate(scalars) if name in found.names]
        ),
        "typed": tuple(
            [
                (place, name)
                for place, name in enumerate(scalars)
                if name in variables and not variables[name].text
            ]
        ),
        "spread": tuple(
            [(place, name) for place, name in enumerate(scalars) if name in found.packs]
        ),
        "packs": found.packs,
        "dtypes": tuple(variables.values()),
        "positional": tuple([part.name for part in parameters if not part.keyword_only]),
        "by_name": {part.name: part for part in parameters},
        "conditions": tuple(result.condition for result in results),
        "computed": tuple(computed),
        "solved": tuple(find_solutions(parameters)),
        "has_lists": any(part.many is not None for part in parts),
        "counts": find_counts(results),
        "numbers": tuple([place for place, part in enumerate(results) if part.number]),
    }


def find_counts(results: tuple[Result, ...]) -> tuple[Dim, ...]:
    """Return the dimensions that the kernel says, each once, in order of first appearance."""
    found: dict[int | str, Dim] = {}
    for part in results:
        for dim in part.dims:
            if dim.kind == "counted":
                found.setdefault(dim.value, dim)
    return tuple(found.values())


def find_solutions(parameters: tuple[Parameter, ...]) -> list[Solution]:
    """Return what can be solved: an expression that is linear in its one name that is not known.

    Only tensors that must be passed are looked at.
    """
    known = _given_names(parameters)
    tensors = [part for part in parameters if part.is_tensor]
    dims = [
        (place, index, dim)
        for place, part in enumerate(tensors)
        for index, dim in enumerate(part.dims)
        if dim.kind == "expression" and not part.optional
    ]
    found: list[Solution] = []
    while True:
        for place, index, dim in dims:
            lacking = {name for name in dim.names if name not in known}
            if len(lacking) == 1 and dim.is_linear(name := lacking.pop()):
                found.append(Solution(place, index, name))
                known.add(name)
                break
        else:
            return found


def _given_names(parameters: tuple[Parameter, ...]) -> set[str]:
    """Return the names that a call gives without an expression to be solved."""
    required = tuple([part for part in parameters if part.is_tensor and not part.optional])
    scalars = [part.name for part in parameters if not part.is_tensor]
    return {*_bound_by(required).names, *scalars, *_lengths(parameters)}


def _lengths(parts: Iterable[Part]) -> list[str]:
    """Return the names that are lengths of lists."""
    return [str(part.many.value) for part in parts if part.many and part.many.kind == "name"]


def is_name(name: object) -> bool:
    """Return whether Python, C++ and the frameworks all take `name` as one."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and not iskeyword(name)


def _check_counts(
    parameters: tuple[Parameter, ...], results: tuple[Result, ...], elements: bool
) -> Iterator[Flaw]:
    """Other checks compare parts with each other, so there must not be too many."""
    tensors = sum([part.is_tensor for part in parameters])
    limit = MAX_CALL_TENSORS if elements else MAX_TENSORS
    counts = (
        (
            tensors + len(results) + len(find_counts(results)),
            limit,
            "tensors, results and their counts included",
        )
        if find_counts(results)
        else (tensors + len(results), limit, "tensors, results included"),
        (len(parameters) - tensors, MAX_SCALARS, "scalars"),
        (sum([part.kind in LIST_KINDS for part in parameters]), MAX_LISTS, "lists of numbers"),
    )
    yield from _exceeded(counts)
    for index, part in enumerate(join_parts(parameters, results)):
        if len(part.dims) > MAX_RANK:
            yield Flaw(f"{part.name!r} has more than {MAX_RANK} dimensions", index)
        for dim in part.dims:
            if len(dim.steps) > MAX_STEPS:
                text = (
                    f"an expression of {part.name!r} is too long: at most {MAX_OPERANDS} operands"
                )
                yield Flaw(text, index)


def _exceeded(counts: Iterable[tuple[int, int, str]]) -> Iterator[Flaw]:
    for count, limit, what in counts:
        if count > limit:
            yield Flaw(f"at most {limit} {what}, got {count}", None)


def _check_names(
    parameters: tuple[Parameter, ...], results: tuple[Result, ...], elements: bool
) -> Iterator[Flaw]:
    seen: set[str] = set()
    for index, part in enumerate(join_parts(parameters, results)):
        what = "argument" if index < len(parameters) else "result"
        if not is_name(_ELEMENT.sub(r"\1", part.name) if elements else part.name):
            yield Flaw(f"{part.name!r} cannot be the name of an {what}", index)
        if part.name in seen:
            yield Flaw(f"the name {part.name!r} is given twice", index)
        if results and part.name == "out" and index < len(parameters):
            yield Flaw("an argument cannot be called 'out': that is where results go", index)
        seen.add(part.name)


def _check_order(parameters: tuple[Parameter, ...], _: tuple[Result, ...]) -> Iterator[Flaw]:
    with_default = ""
    keyword_only = False
    for index, parameter in enumerate(parameters):
        if keyword_only and not parameter.keyword_only:
            yield Flaw(f"{parameter.name!r} by position after arguments by name only", index)
        keyword_only = parameter.keyword_only
        if keyword_only:
            continue
        if with_default and parameter.default is MISSING:
            yield Flaw(
                f"argument {parameter.name!r} without a default after {with_default!r}, "
                "which has one",
                index,
            )
        if parameter.default is not MISSING:
            with_default = parameter.name


def _check_values(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    for index, parameter in enumerate(parameters):
        value = parameter.default
        if parameter.kind == "int" and type(value) is int and not -(2**63) <= value <= MAX_EXTENT:
            yield Flaw(f"the default {value} does not fit 64 bits", index)
        if isinstance(value, str) and not is_transferable(value):
            yield Flaw("a string must be Unicode text without NUL characters", index)
    for index, part in enumerate(join_parts(parameters, results)):
        packs = [str(dim) for dim in part.dims if dim.kind == "pack"]
        if len(packs) > 1:
            yield Flaw(f"{part.name!r} has more than one pack: {', '.join(packs)}", index)
        for dim in part.dims:
            if dim.kind == "constant" and is_outside(dim.value):
                yield Flaw(f"the dimension {dim} is not an extent", index)
            if any(is_outside(value) for operation, value in dim.steps if operation == "c"):
                yield Flaw(f"a number in {dim} exceeds 63 bits", index)


def _check_lists(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    """A list that has the name of a pack is that pack."""
    found = collect_names(join_parts(parameters, results))
    for index, part in enumerate(parameters):
        is_list = part.kind in LIST_KINDS
        numbers = part.default if is_list and isinstance(part.default, tuple) else ()
        if len(numbers) > MAX_LISTED or (part.length or 0) > MAX_LISTED:
            yield Flaw(f"{part.name!r} has more than {MAX_LISTED} numbers", index)
        if part.length not in (None, len(numbers)) and isinstance(part.default, tuple):
            yield Flaw(f"the default of {part.name!r} must have {part.length} numbers", index)
        if part.kind == "int[]" and any(not -(2**63) <= each <= MAX_EXTENT for each in numbers):
            yield Flaw(f"the default {write_literal(numbers)} does not fit 64 bits", index)
        if is_list and part.kind[:-2] in found.dtypes:
            yield Flaw(
                f"{part.kind[:-2]!r} is the dtype of a tensor, and {part.name!r} no list", index
            )
        if part.is_tensor or part.name not in found.packs:
            continue
        if part.kind != "int[]" or part.optional:
            text = f"{part.name!r} is a pack: it must be int[], not {part.type_text}"
            yield Flaw(text, index)
        if any(map(is_outside, numbers)):
            yield Flaw(f"{part.name!r} is a pack: it cannot be {write_literal(numbers)}", index)


def _check_many(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    """Lists of tensors have a length that is known, and only they have names with "?"."""
    found = collect_names(join_parts(parameters, results))
    scalars = [part.name for part in parameters if not part.is_tensor]
    lengths = _lengths(parameters)
    each = {name for part in parameters for name in _own_names(part)}
    for index, part in enumerate(join_parts(parameters, results)):
        own = _own_names(part)
        if part.many is None or not part.is_list:
            if own:
                text = f"'?' marks what each tensor of a list has, and {part.name!r} is not a list"
                yield Flaw(f"{own[0]!r}: {text}", index)
            continue
        if isinstance(part, Parameter) and (part.optional or part.default is not MISSING):
            yield Flaw(f"{part.name!r} is a list of tensors, which may be empty, not None", index)
        name = str(part.many.value)
        if part.many.kind == "constant" and not 0 <= int(part.many.value) <= MAX_CALL_TENSORS:
            yield Flaw(f"{part.name!r} has {name} tensors: at most {MAX_CALL_TENSORS}", index)
        if part.many.kind == "name" and (name in scalars or name in found.packs):
            what = "an argument" if name in scalars else "a pack"
            yield Flaw(f"{name!r} is the length of {part.name!r}, and {what} as well", index)
        is_known = name in lengths if part.many.kind == "name" else bool(each.intersection(own))
        if isinstance(part, Result) and part.many.kind != "constant" and not is_known:
            yield Flaw(
                f"the length of {part.name!r} is not determined: give it and the list that it is "
                "the length of one name, as in f32[n][k]",
                index,
            )


def _check_optional(
    parameters: tuple[Parameter, ...], results: tuple[Result, ...]
) -> Iterator[Flaw]:
    """What decides whether a result is there is known before the call, and one always is."""
    by_name = {part.name: part for part in parameters}
    for index, result in enumerate(results, len(parameters)):
        if not result.condition:
            continue
        part = by_name.get(result.condition)
        if part is None or part.optional == (part.kind == "bool"):
            got = "no argument" if part is None else f"{part.name}: {part.type_text}"
            yield Flaw(
                f"{result.name!r} is there if {result.condition!r}, which must be a bool, or an "
                f"argument that may be None; it is {got}",
                index,
            )
    if results and all(result.condition for result in results):
        yield Flaw("one result must always be there", len(parameters))


def _own_names(part: Part) -> list[str]:
    """Return the names whose extents differ between the tensors of a list, with their "?"."""
    names = [name for dim in part.dims for name in (*dim.names, str(dim.value))]
    return [name for name in names if name.startswith(EACH)]


def _check_sizes(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    """A scalar that has the name of a dimension is that dimension."""
    names = set(collect_names(join_parts(parameters, results)).names)
    for index, part in enumerate(parameters):
        if part.is_tensor or part.name not in names:
            continue
        if part.kind != "int" or part.optional:
            yield Flaw(f"{part.name!r} is a dimension: it must be int, not {part.type_text}", index)
        if is_outside(part.default):
            yield Flaw(f"{part.name!r} is a dimension: it cannot be {part.default}", index)


def _check_dtypes(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    """A scalar of kind dtype that has the name of a variable is that variable."""
    given = {part.name for part in parameters if part.kind == "dtype"}
    for index, part in enumerate(join_parts(parameters, results)):
        if index < len(parameters) and part.name in given and is_dtype_name(part.name):
            yield Flaw(f"{part.name!r} is a dtype, not a name for one", index)
        if part.dtype is None or not part.dtype.name:
            continue
        if part.dtype.text and part.dtype.name in given:
            yield Flaw(f"{part.dtype.name!r} is an argument, and defined as a dtype again", index)
        if not part.dtype.text and part.dtype.name not in given:
            yield Flaw(f"the dtype {part.dtype.name!r} of {part.name!r} is not an argument", index)


def _check_extents(
    parameters: tuple[Parameter, ...], results: tuple[Result, ...]
) -> Iterator[Flaw]:
    """What the kernel says is the first dimension of results, and has one bound."""
    counts = {str(dim.value): dim for dim in find_counts(results)}
    taken = {part.name for part in join_parts(parameters, results)}
    found = collect_names(parameters)
    for index, part in enumerate(join_parts(parameters, results)):
        for place, dim in enumerate(part.dims):
            if dim.kind != "counted":
                used = [name for name in dim.names if name in counts and index >= len(parameters)]
                if used:
                    text = f"{used[0]!r} is what the kernel says: it stands alone, not in {dim}"
                    yield Flaw(text, index)
                continue
            name = str(dim.value)
            if index < len(parameters):
                text = f"'{dim}' is of results: the extent of an argument is known before the call"
                yield Flaw(text, index)
            elif name in taken or name in found.names or name in found.packs:
                yield Flaw(f"{name!r} is what the kernel says, and has another meaning", index)
            elif name in counts[name].names:
                yield Flaw(f"{name!r} is its own bound", index)
            elif isinstance(part, Result) and part.condition:
                yield Flaw(f"{part.name!r} is optional, and cannot have '{dim}'", index)
            elif part.many is not None:
                yield Flaw(f"{part.name!r} is a list, whose tensors cannot have '{dim}'", index)
            elif place > 0:
                text = f"'{dim}' must be the first dimension of {part.name!r}: rows lie in a row"
                yield Flaw(text, index)
            elif dim != counts[name]:
                yield Flaw(f"{name!r} has two bounds: '{counts[name]}' and '{dim}'", index)


def _check_bound(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    """Everything that is computed must be known whatever optional arguments are left out."""
    required = tuple([part for part in parameters if part.is_tensor and not part.optional])
    solved = [solution.name for solution in find_solutions(parameters)]
    bound = _bound_by(required)
    dtypes = [part.name for part in parameters if part.kind == "dtype" and not part.optional]
    lists = [part.name for part in parameters if part.kind == "int[]"]
    bound = bound._replace(
        names=(*_given_names(parameters), *solved),
        packs=(*bound.packs, *lists),
        dtypes=(*bound.dtypes, *dtypes),
    )
    for index, part in enumerate(parameters):
        known = {*bound.names, *_bound_by((part,)).names}
        for dim in part.dims:
            if dim.kind == "expression":
                yield from _check_dim(dim, known, "dimension", part.name, index)
    for index, result in enumerate(results, len(parameters)):
        if result.dtype.only is None and result.dtype.variable not in bound.dtypes:
            yield Flaw(_undetermined(f"dtype {str(result.dtype)!r}", result.name), index)
        for dim in result.dims:
            known = set(bound.packs if dim.kind == "pack" else bound.names)
            yield from _check_dim(dim, known, "dimension", result.name, index)


def _bound_by(parameters: tuple[Parameter, ...]) -> Names:
    """Return what these tensors determine: a name in an expression is not bound by it."""
    dims = [dim for part in parameters for dim in part.dims]
    names = tuple([str(dim.value) for dim in dims if dim.kind == "name"])
    return Names(names, *collect_names(parameters)[1:])


def _check_dim(dim: Dim, known: set[str], what: str, owner: str, index: int) -> Iterator[Flaw]:
    if dim.kind == "any":
        yield Flaw(f"{owner!r} is a result: '_' says nothing about its size", index)
    needed = (str(dim.value),) if dim.kind == "pack" else dim.names
    for name in needed:
        if name not in known:
            yield Flaw(_undetermined(f"{what} {name!r}", owner), index)


def _undetermined(what: str, owner: str) -> str:
    return f"{what} of {owner!r} is not determined by any argument that must be passed"


def _check_limits(
    parameters: tuple[Parameter, ...], results: tuple[Result, ...], elements: bool
) -> Iterator[Flaw]:
    found = collect_names(join_parts(parameters, results))
    for name in set(found.names) & set(found.packs):
        yield Flaw(f"{name!r} is a dimension and a pack", None)
    limited = tuple(
        [part.name for part in parameters if part.among and part.name not in found.dtypes]
    )
    counts = (
        (len(found.names), MAX_CALL_NAMES if elements else MAX_NAMES, "named dimensions"),
        (len(found.packs), MAX_CALL_NAMES if elements else MAX_PACKS, "packs"),
        (len(found.dtypes + limited), MAX_DTYPES, "different dtypes and sets"),
    )
    yield from _exceeded(counts)


# ---- schemas made from another one ---------------------------------------------------------------


def _with_mutated(schema: Schema, names: Iterable[str | int]) -> Schema:
    """Return the schema with more tensors that are written; see `Schema.with_mutated`."""
    wanted = {_tensor_name(schema, name) for name in names}
    parameters = [
        part._replace(mutated=part.mutated or part.name in wanted) for part in schema.parameters
    ]
    return schema.with_parts(parameters, schema.results)


def _tensor_name(schema: Schema, name: str | int) -> str:
    names = [part.name for part in schema.tensors]
    found = name in names if isinstance(name, str) else 0 <= name < len(names)
    if not found:
        raise ArgumentError(
            f"{schema.qualified}: mutates: expected tensor arguments ({', '.join(names)}), "
            f"got {name!r}"
        )
    return name if isinstance(name, str) else names[name]


def _make_bounded(schema: Schema) -> Schema:
    """Return the schema with bounds and counts; see `Schema.bounded`."""
    results = [
        part._replace(dims=tuple([dim.bound for dim in part.dims])) for part in schema.results
    ]
    dtype = make_set(["i64"])
    for part in schema.dtypes:  # a variable of the same set is the same one
        if not part.name and part.dtypes == dtype.dtypes:
            dtype = part
    counts = [Result(str(dim.value), dtype, ()) for dim in schema.counts]
    return schema.with_parts(schema.parameters, [*results, *counts])


def _make_vjp(schema: Schema, name: str | None) -> Schema:
    """Return the schema of the vjp; see `Schema.vjp`."""
    if schema.mutated:
        written = ", ".join([schema.tensors[place].name for place in schema.mutated])
        raise _refuse(schema, f"it writes {written} in place")
    tensors = _name_dims(schema)
    cotangents = [
        Parameter(
            cotangent_name(schema, result),
            "tensor",
            result.dtype,
            tuple([_as_argument(dim) for dim in result.dims]),
            optional=bool(result.condition),
            many=result.many if result.is_list else None,
        )
        for result in schema.results
        if result.may_have_gradient
    ]
    gradients = [
        Result(f"grad_{part.name}", part.dtype, part.dims, part.many)
        for part in tensors
        if part.dtype is not None and part.dtype.may_be_floating
    ]
    if not (cotangents and gradients):
        raise _refuse(schema, f"it has no floating {'argument' if cotangents else 'result'}")
    scalars = [part._replace(keyword_only=True) for part in schema.scalars]
    namespace, _, last = (name or f"{schema.qualified}_vjp").partition("::")
    try:
        parameters = [*tensors, *cotangents, *scalars]
        return Schema(namespace, last, parameters, gradients, elements=schema.elements)
    except ArgumentError as error:
        raise _refuse(schema, str(error)) from error


def _as_argument(dim: Dim) -> Dim:
    """Return a dimension of a result as an argument of its shape has it."""
    return Dim("name", dim.value) if dim.kind == "counted" else dim


def cotangent_name(schema: Schema, result: Result) -> str:
    """Return what a vjp calls the cotangent of a result."""
    return "grad" if len(schema.results) == 1 else f"grad_{result.name}"


def _name_dims(schema: Schema) -> list[Parameter]:
    """Return the tensors, passed by position, with a name for every `_` so that it is known."""
    scalars = [part.name for part in schema.scalars]  # which would be dimensions
    taken = {*schema.names, *scalars}
    tensors = []
    for part in schema.tensors:
        dims = []
        for index, dim in enumerate(part.dims):
            if dim.kind == "any":
                name = f"{part.name}_{index}"
                while name in taken:
                    name += "_"
                taken.add(name)
                dim = Dim("name", name if part.many is None else EACH + name)
            dims.append(dim)
        tensors.append(part._replace(dims=tuple(dims), default=MISSING, keyword_only=False))
    return tensors


def _refuse(schema: Schema, why: str) -> ArgumentError:
    return ArgumentError(f"{schema.qualified}: no schema of a vjp can be derived: {why}")


# ---- a schema as others read it: as text, for the native core, for torch, for Python, as help ----

_SMALLEST_NORMAL = 2.0**-1022


# ---- text --------------------------------------------------------------------------------------


def write_schema(schema: Schema) -> str:
    """Return the text that is read back as an equal schema."""
    defined = _look_like_lists(schema)
    items = write_parameters(schema.parameters, defined)
    return f"{schema.qualified}({', '.join(items)}){write_results(schema.results, defined)}"


def _look_like_lists(schema: Schema) -> set[str]:
    """Return "int[]" and "float[]" where a tensor's type would be read as one of a list."""
    parts = join_parts(schema.tensors, schema.results)
    found = set()
    for kind in LIST_KINDS:
        written = [part for part in parts if part.dtype and str(part.dtype) == kind[:-2]]
        if written and all(
            isinstance(part, Parameter)
            and not part.mutated
            and part.many is None
            and [dim.kind for dim in part.dims] in ([], ["constant"])
            for part in written
        ):
            found.add(kind)
    return found


def write_parameters(parameters: tuple[Parameter, ...], defined: set[str]) -> list[str]:
    """Return the items between the parentheses, `*` among them."""
    items: list[str] = []
    for parameter in parameters:
        if parameter.keyword_only and "*" not in items:
            items.append("*")
        mark = "!" if parameter.mutated else ""
        text = f"{parameter.name}{mark}: {write_type(parameter, defined)}"
        if parameter.default is not MISSING:
            text += f" = {write_literal(parameter.default)}"
        items.append(text)
    return items


def write_results(results: tuple[Result, ...], defined: set[str]) -> str:
    """Return the arrow and what follows it, or nothing."""
    count = len(results)
    items = []
    for index, result in enumerate(results):
        name = "" if result.name == default_name(index, count) else f"{result.name}: "
        items.append(name + write_type(result, defined))
    if not items:
        return ""
    if count == 1 and items[0][:1] and ":" not in items[0]:
        return f" -> {items[0]}"
    return f" -> ({', '.join(items)})"


def write_type(part: Parameter | Result, defined: set[str]) -> str:
    """Return a type; a variable with a name is defined where it appears first."""
    if part.dtype is None or (isinstance(part, Result) and part.number):
        return part.type_text
    dtype = part.dtype.name if part.dtype.name in defined else str(part.dtype)
    if f"{dtype}[]" in defined:
        dtype = "|".join(map(short_name, part.dtype.dtypes))
    defined.add(part.dtype.name)
    optional = "?" if isinstance(part, Parameter) and part.optional else ""
    dims = ", ".join([_write_dim(dim, defined) for dim in part.dims])
    return f"{dtype or part.dtype.text}[{dims}]{write_many(part.many)}{optional}"


def _write_dim(dim: Dim, defined: set[str]) -> str:
    """Return a dimension; the bound of what is counted stands where it appears first."""
    if dim.kind != "counted":
        return str(dim)
    mark = f"{dim.value}<="
    is_known = mark in defined
    defined.add(mark)
    return str(dim.value) if is_known else str(dim)


def write_literal(value: Any) -> str:
    """Return a default as it stands in a schema; strings in double quotes."""
    if isinstance(value, DType):
        return short_name(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(repr, value))}]"
    if not isinstance(value, str):
        return repr(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    letters = [c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped]
    return f'"{"".join(letters)}"'


# ---- the native core ---------------------------------------------------------------------------


def encode(schema: Schema) -> tuple[Any, ...]:
    """Return the tuples that `native.KernelBase` reads; see `Schema.encode`."""
    numbers = {name: index for index, name in enumerate(schema.names)}
    packs = {name: index for index, name in enumerate(schema.packs)}
    dtypes = {part.variable: index for index, part in enumerate(schema.dtypes)}

    def encode_tensor(part: Parameter | Result) -> tuple[int, tuple[Any, ...]]:
        assert part.dtype is not None
        dims = tuple([_encode_dim(dim, numbers, packs) for dim in part.dims])
        return dtypes[part.dtype.variable], dims

    return (
        tuple([_encode_set(dtype) for dtype in schema.dtypes]),
        len(numbers),
        len(packs),
        tuple([(*encode_tensor(part), part.optional, part.mutated) for part in schema.tensors]),
        tuple([encode_tensor(result) for result in schema.results]),
        tuple(
            [
                (
                    part.kind,
                    part.optional,
                    numbers.get(part.name, -1),
                    dtypes[part.name] if (place, part.name) in schema.typed else -1,
                    packs.get(part.name, -1),
                    -1 if part.length is None else part.length,
                )
                for place, part in enumerate(schema.scalars)
            ]
        ),
        tuple([(each.place, each.dim, numbers[each.name]) for each in schema.solved]),
    )


def _encode_set(dtype: DTypeSet) -> tuple[int, ...]:
    return tuple(map(dtype_key, dtype.dtypes))


def _encode_dim(dim: Dim, numbers: dict[str, int], packs: dict[str, int]) -> tuple[Any, ...]:
    if dim.kind == "expression":
        steps = [
            (operation, numbers[str(value)] if operation == "n" else value or 0)
            for operation, value in dim.steps
        ]
        return "e", tuple(steps)
    if dim.kind == "constant":
        return "c", dim.value
    if dim.kind == "any":
        return ("_",)
    return ("p", packs[str(dim.value)]) if dim.kind == "pack" else ("n", numbers[str(dim.value)])


def encode_expression(
    schema: Schema, option: str, size: int | str, number: Callable[[str], int]
) -> tuple[tuple[str, int], ...]:
    """Return an option's integer or expression as the steps that the core computes.

    Args:
        schema: of the kernel.
        option: its name, for texts.
        size: the integer or the expression.
        number: returns the number of a name, or refuses it.

    Raises:
        ArgumentError: it is not an expression, or has a number of more than 63 bits.
    """
    try:
        dim = parse_expression(size) if isinstance(size, str) else None
    except ArgumentError as error:
        text = str(error).removeprefix("Schema: ")
        raise ArgumentError(f"{schema.qualified}: {option}: {text}") from None
    if dim is None:
        steps: tuple[tuple[str, Any], ...] = (("c", size),)
    else:
        steps = dim.steps or ((dim.kind[0], dim.value),)  # "constant" or "name"
    numbers = [value for operation, value in steps if operation == "c"]
    if not all(-MAX_EXTENT <= value <= MAX_EXTENT for value in numbers):
        raise ArgumentError(f"{schema.qualified}: {option}: a number in {size} exceeds 63 bits")
    return tuple(
        (operation, number(str(value)) if operation == "n" else int(value or 0))
        for operation, value in steps
    )


def encode_cost(
    schema: Schema, cost: int | str, lengths: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """Return the steps that compute the cost of a call from the schema's dimensions.

    Args:
        schema: without lists.
        cost: a number or an expression.
        lengths: of lists, by the names that they have in the schema with lists.

    Raises:
        ArgumentError: it is no expression, or has a name that the schema does not know.
    """

    def number(name: str) -> int:
        if name in lengths:
            return len(schema.names) + list(lengths).index(name)
        if name not in schema.names:
            known = ", ".join([*schema.names, *lengths]) or "none"
            raise ArgumentError(
                f"{schema.qualified}: cost: {name!r} is not a dimension of the schema; it "
                f"has {known}"
            )
        return schema.names.index(name)

    count = len(schema.names)
    values = list(lengths.values())
    return tuple(
        ("c", values[value - count]) if operation == "n" and value >= count else (operation, value)
        for operation, value in encode_expression(schema, "cost", cost, number)
    )


def encode_arguments(schema: Schema) -> tuple[Any, ...]:
    """Return how arguments of a call are found; see `Schema.encode_arguments`."""
    counts = {True: 0, False: 0}
    rows = []
    for part in schema.parameters:
        has_default = part.default is not MISSING
        default = part.default if has_default else None
        index = counts[part.is_tensor]
        rows.append((part.name, part.kind, index, part.keyword_only, has_default, default))
        counts[part.is_tensor] += 1
    return tuple(rows)


# ---- torch -------------------------------------------------------------------------------------


def torch_schema(schema: Schema) -> str:
    """Return torch's own schema of the operator; see `Schema.torch_schema`."""
    hidden = _hidden_defaults(schema.parameters)
    items: list[str] = []
    marks = iter(["a", *[f"a{number}" for number in range(1, len(schema.mutated))]])
    for parameter in schema.parameters:
        if parameter.keyword_only and "*" not in items:
            items.append("*")
        alias = f"({next(marks)}!)" if parameter.mutated else ""
        kind = f"Tensor{alias}" if parameter.is_tensor else parameter.kind
        kind += "[]" if parameter.many is not None else ""
        if kind in ("int", "int[]"):  # torch may compile one program for all values, or know none
            count = "" if parameter.length is None else parameter.length
            kind = "SymInt" if kind == "int" else f"SymInt[{count}]"
        if kind == "float[]":
            kind = f"float[{'' if parameter.length is None else parameter.length}]"
        if kind == "dtype":
            kind = "ScalarType"
        text = f"{kind}{'?' if parameter.optional else ''} {parameter.name}"
        if parameter.default is not MISSING and parameter.name not in hidden:
            text += f"={write_literal(parameter.default)}"
        items.append(text)
    kinds = [_torch_result(part) for part in schema.results]
    results = kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"
    return f"{schema.name}({', '.join(items)}) -> {results}"


def _torch_result(part: Result) -> str:
    if part.number:
        kind = "SymInt" if part.number == "int" else part.number
        return f"{kind}?" if part.condition else kind
    return "Tensor" if part.many is None else "Tensor[]"


def _hidden_defaults(parameters: tuple[Parameter, ...]) -> set[str]:
    """Return whose defaults to leave out, because torch's parser cannot read them.

    Positional ones before such a one go with it: torch wants defaults last.
    """
    hidden: set[str] = set()
    before: list[str] = []
    for parameter in parameters:
        before = [] if parameter.keyword_only else [*before, parameter.name]
        is_list = parameter.optional and isinstance(
            parameter.default, tuple
        )  # which it cannot read
        if is_list or not _is_read_by_torch(parameter.default):
            hidden.update(before, (parameter.name,))
    return hidden


def _is_read_by_torch(default: Any) -> bool:
    if isinstance(default, DType):
        return False
    if isinstance(default, tuple):
        return all(map(_is_read_by_torch, default))
    if isinstance(default, float):
        return default == 0 or _SMALLEST_NORMAL <= abs(default) < math.inf
    text = write_literal(default) if isinstance(default, str) else ""
    return text.isascii() and "\\" not in text


# ---- Python ------------------------------------------------------------------------------------


def signature(schema: Schema) -> Signature:
    """Return the call as Python sees it; see `Schema.signature`."""
    if not all(part.name.isidentifier() for part in schema.parameters):  # "xs[0]"
        return Signature([Item("args", Item.VAR_POSITIONAL), Item("kwargs", Item.VAR_KEYWORD)])
    items = [
        Item(
            part.name,
            Item.KEYWORD_ONLY if part.keyword_only else Item.POSITIONAL_OR_KEYWORD,
            default=Item.empty if part.default is MISSING else part.default,
            annotation=part.type_text,
        )
        for part in schema.parameters
    ]
    if schema.takes_out:
        kind = "tuple"
        if len(schema.results) == 1:
            kind = "list" if schema.results[0].is_list else "tensor"
        items.append(Item("out", Item.KEYWORD_ONLY, default=None, annotation=f"{kind}?"))
    types = [result.type_text for result in schema.results]
    returns = types[0] if len(types) == 1 else f"({', '.join(types)})" if types else None
    return Signature(items, return_annotation=returns)


# ---- help: one line for each argument and result -------------------------------------------------

_SHARED = {
    "contiguous": "shared if it is row-major, else copied",
    "strided": "shared",
}
_WRITTEN = {
    "contiguous": "written in place, through a copy unless it is row-major",
    "strided": "written in place",
}


def help_text(schema: Schema, summary: str, layout: str) -> str:
    """Return the help of a kernel; see `Schema.help`."""
    sections = [summary.strip() or f"Run the kernel {schema.qualified}.", str(schema)]
    arguments = [_argument(schema, parameter, layout) for parameter in schema.parameters]
    if schema.takes_out:
        arguments.append(_out(schema))
    if arguments:
        sections.append(_section("Args", arguments))
    if schema.results:
        sections.append(_section("Returns", [_result(schema, part) for part in schema.results]))
    sections.append(_section("Raises", _errors(schema)))
    return "\n\n".join(sections) + "\n"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *[f"    {line}" for line in lines]])


def _argument(schema: Schema, parameter: Parameter, layout: str) -> str:
    kind = _tensor(schema, parameter) if parameter.is_tensor else _scalar(parameter)
    words = [f"{kind}, or None" if parameter.optional else kind]
    if parameter.is_tensor:
        words.append((_WRITTEN if parameter.mutated else _SHARED)[layout])
    elif parameter.name in schema.names:
        words.append("a dimension, at least 0")
    elif parameter.name in schema.packs:
        words.append("dimensions, at least 0")
    elif parameter.kind == "dtype":
        words.append("of any framework, or its name")
        if parameter.among is not None:
            words.append(f"one of {_members(parameter.among)}")
    if parameter.default is not MISSING:
        words.append(f"{write_literal(parameter.default)} if left out")
    return f"{parameter.name}: {'; '.join(words)}."


def _scalar(parameter: Parameter) -> str:
    if parameter.kind not in LIST_KINDS:
        return parameter.kind
    count = "" if parameter.length is None else f"{parameter.length} "
    return f"list or tuple of {count}{parameter.kind[:-2]}"


def _out(schema: Schema) -> str:
    if len(schema.results) == 1 and schema.results[0].is_list:
        return "out: a list of tensors to write the results into, and to return."
    if len(schema.results) == 1:
        return "out: a tensor to write the result into, of the same framework, and to return."
    names = ", ".join([result.name for result in schema.results])
    return f"out: a tuple of tensors ({names}) to write the results into, and to return."


def _result(schema: Schema, result: Result) -> str:
    if result.number:
        condition = f"; or None, as {result.condition} says" if result.condition else ""
        return f"{result.name}: {result.number} of Python{condition}."
    words = _tensor(schema, result)
    counted = next((dim for dim in result.dims if dim.kind == "counted"), None)
    if counted is not None:
        return (
            f"{result.name}: {words}, where the kernel says {counted.value}; a view of new memory "
            "of the caller's framework, which has room for the bound."
        )
    if result.condition:
        words += f"; or None, as {result.condition} says"
    given = ", or `out`" if schema.takes_out else ""
    return f"{result.name}: {words}; new memory of the caller's framework{given}."


def _tensor(schema: Schema, part: Part) -> str:
    assert part.dtype is not None
    dims = ", ".join(map(str, part.dims))
    shape = f"of shape [{dims}]" if dims else "without dimensions"
    words = [f"{_dtype(part.dtype)} {shape}"]
    if part.is_list:
        count = f"{part.many} " if part.many and part.many.kind != "any" else ""
        kind = "list or tuple" if isinstance(part, Parameter) else "list"
        words = [f"{kind} of {count}tensors, each a {words[0]}"]
    if part.dtype.only is None:
        words += _same_dtype(schema, part)
    return ", ".join(words)


def _dtype(dtype: DTypeSet) -> str:
    if not dtype.text:
        return f"tensor of the dtype {dtype.name!r},"
    if dtype.text == "any":
        return "tensor of any dtype,"
    return f"{_members(dtype)} tensor"


def _members(dtype: DTypeSet) -> str:
    names = [dtype.text] if dtype.text in SETS else [member.name for member in dtype.dtypes]
    return " or ".join(names)


def _same_dtype(schema: Schema, part: Part) -> list[str]:
    """Return which other tensors have the dtype that this one has, in words."""
    others = [
        other.name
        for other in join_parts(schema.tensors, schema.results)
        if other.dtype == part.dtype and other is not part
    ]
    return [f"of one dtype with {' and '.join(others)}"] if others else []


def _errors(schema: Schema) -> list[str]:
    lines = ["TypeError: a wrong number or kind of arguments, or a wrong dtype."]
    if any(part.dims for part in join_parts(schema.tensors, schema.results)):
        lines.append("ValueError: a wrong shape, or a scalar that does not fit.")
    if schema.tensors:
        lines.append("BufferError: memory that the kernel cannot take: its device, its layout, …")
    lines.append("KernelError: the kernel failed; the text is its own.")
    return lines
