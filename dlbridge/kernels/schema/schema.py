"""Schema: what a kernel takes and gives, in one line of text; everything else follows from it.

    mylib::axpy(x: float[n], y: float[n], *, alpha: float = 1.0) -> float[n]

Argument checks, texts of errors, allocation of results, fake kernels and shape functions of every
framework, `help` and signatures are made from it. `docs/schema.md` explains the notation;
`schema_text` has the grammar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, DLBridgeError
from dlbridge.kernels.schema import call as schema_call
from dlbridge.kernels.schema import check as schema_check
from dlbridge.kernels.schema import errors as schema_errors
from dlbridge.kernels.schema import export as schema_export
from dlbridge.kernels.schema import help as schema_help
from dlbridge.kernels.schema import variants as schema_variants
from dlbridge.kernels.schema.dims import Dim as Dim
from dlbridge.kernels.schema.dtypes import DTypeSet as DTypeSet
from dlbridge.kernels.schema.parts import MISSING as MISSING
from dlbridge.kernels.schema.parts import Arguments as Arguments
from dlbridge.kernels.schema.parts import Bindings as Bindings
from dlbridge.kernels.schema.parts import Described as Described
from dlbridge.kernels.schema.parts import Parameter as Parameter
from dlbridge.kernels.schema.parts import Result as Result
from dlbridge.kernels.schema.parts import join_parts
from dlbridge.kernels.schema.rules import derive_fields, find_flaw, is_name
from dlbridge.kernels.schema.text import Parser

if TYPE_CHECKING:
    from inspect import Signature


@final
class Schema:
    """What a kernel takes and gives. Immutable; equal schemas have equal text.

    Attributes:
        namespace, name: of the operator in every framework; `qualified` is "namespace::name".
        parameters: every Parameter, in the order of the call.
        results: every Result.
        tensors: the parameters that are tensors. Places count from 0 here; results follow.
        scalars: the others.
        mutated: places of the tensors that are written in place.
        names, packs, dtypes: named dimensions, packs, dtype variables, by first appearance.
        sizes: (place among the scalars, name) of those that are dimensions, too.
        text: the schema in the canonical notation, also `str(schema)`.
        positional, by_name, computed: names by position; name -> Parameter; places of the tensors
            that have expressions for dimensions.

    Raises:
        ArgumentError: a name is given twice, a result is not determined, a limit is exceeded, ….

    Example:
        >>> schema = Schema.parse("mylib::mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]")
        >>> schema.qualified, schema.tensors[1].name, schema.results[0].name, schema.names
        ('mylib::mm', 'y', 'out', ('m', 'k', 'n'))
    """

    __slots__ = (
        "by_name", "computed", "dtypes", "mutated", "name", "names", "namespace", "packs",
        "parameters", "positional", "qualified", "results", "scalars", "sizes", "tensors", "text",
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
    text: str
    positional: tuple[str, ...]
    by_name: dict[str, Parameter]
    computed: tuple[int, ...]

    def __init__(
        self,
        namespace: str,
        name: str,
        parameters: Iterable[Parameter],
        results: Iterable[Result] = (),
    ) -> None:
        parts = tuple(parameters), tuple(results)
        if not (is_name(namespace) and is_name(name)):
            raise ArgumentError(f"Schema: {f'{namespace}::{name}'!r} cannot name an operator")
        flaw = find_flaw(*parts)
        if flaw is not None:
            raise ArgumentError(f"Schema: {namespace}::{name}: {flaw.text}")
        self._set("namespace", namespace)
        self._set("name", name)
        self._set("qualified", f"{namespace}::{name}")
        for field, value in derive_fields(*parts).items():
            self._set(field, value)
        self._set("text", schema_export.write_schema(self))

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
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, traced: bool = False
    ) -> Arguments:
        """Sort the arguments of a call as Python would; convert scalars.

        Args:
            args: those by position.
            kwargs: those by name; with results, `out` (one tensor, or a tuple of them) is one.
            traced: leave a scalar that is no number of Python or NumPy as it is: a tracer.

        Raises:
            UnsupportedTypeError: an argument is missing, unexpected, given twice or of a wrong
                kind. Tensors are not looked at.
            ArgumentError: a scalar does not fit 64 bits.

        Example:
            >>> Schema.parse("a::f(x: f32[n], *, k: int = 2)").arrange(("x",), {"k": 3})
            Arguments(tensors=['x'], scalars=[3], out=None)
        """
        return schema_call.arrange(self, args, kwargs, traced)

    def bind(
        self, tensors: Sequence[Described | None], scalars: Sequence[Any] | None = None
    ) -> Bindings:
        """Return what a call binds: named dimensions, packs, dtypes.

        Args:
            tensors: one for each of `self.tensors`; None for an optional one that is left out.
                Extents may be symbolic: they are compared with `==`, expressions use `+ - * //`.
                None is an extent, and a shape, that is not known and fits everything.
            scalars: one for each of `self.scalars`, of which only those are looked at that are
                dimensions; None for one that is not known. Without it all are unknown.

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
        return schema_check.bind(self, tensors, scalars)

    def results_of(self, bindings: Bindings) -> list[tuple[Any, DType]]:
        """Return (shape, dtype) of each result; what is not known is None.

        Raises:
            ArgumentError: a dimension is negative, beyond 63 bits, or divides by zero.
        """
        return schema_check.results_of(self, bindings)

    def check_out(self, bindings: Bindings, outs: Sequence[Described | None]) -> None:
        """Compare buffers for the results with what the results will be.

        Raises:
            UnsupportedTypeError: a wrong dtype, or a wrong number of them.
            ArgumentError: a wrong shape.
        """
        schema_check.check_out(self, bindings, outs)

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
        return schema_errors.mismatch(self, found, described, bindings or Bindings())

    def part(self, place: int) -> Parameter | Result:
        """Return the tensor parameter, or the result, at a place."""
        count = len(self.tensors)
        return self.tensors[place] if place < count else self.results[place - count]

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

        (dtype sets, name count, pack count, parameters, results, scalars): a set is a tuple of
        dtype keys (code | bits << 8 | lanes << 16), none for any dtype; a parameter (set, dims,
        optional, mutated), a result (set, dims), a scalar (kind, optional, name or -1); a dim
        ("c", extent), ("n", name), ("_",), ("p", pack) or ("e", ((operation, value), …)) in
        postfix.
        """
        return schema_export.encode(self)

    def encode_arguments(self) -> tuple[Any, ...]:
        """Return (name, kind, index, keyword_only, has_default, default) for each parameter.

        The index counts tensors and scalars apart.
        """
        return schema_export.encode_arguments(self)

    def torch_schema(self) -> str:
        """Return the schema of torch's operator, without its namespace.

        Defaults that torch cannot read are left out: inf, nan, subnormal numbers, text with escapes
        or beyond ASCII.

        Example:
            >>> Schema.parse("a::f(x!: f32[n], *, k: int? = None) -> f32[]").torch_schema()
            'f(Tensor(a!) x, *, int? k=None) -> Tensor'
        """
        return schema_export.torch_schema(self)

    def signature(self) -> Signature:
        """Return the call as `inspect.signature` shows it; annotations are the schema's types."""
        return schema_export.signature(self)

    def help(self, summary: str = "", layout: str = "contiguous") -> str:
        """Return a docstring: `summary`, the schema, a line for each argument, the errors.

        Args:
            summary: what the kernel does, in one sentence.
            layout: "contiguous" (other memory is copied for the kernel) or "strided".
        """
        return schema_help.help_text(self, summary, layout)

    # ---- other schemas -------------------------------------------------------------------------

    def named(self, qualified: str) -> Schema:
        """Return the same schema for "namespace::name"."""
        namespace, _, name = qualified.partition("::")
        return Schema(namespace, name, self.parameters, self.results)

    def with_mutated(self, names: Iterable[str | int]) -> Schema:
        """Return a schema in which these tensors, too, are written in place.

        Args:
            names: names of tensor arguments, or their places.

        Raises:
            ArgumentError: no such tensor argument.
        """
        return schema_variants.with_mutated(self, names)

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
        return schema_variants.make_vjp(self, name)

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
