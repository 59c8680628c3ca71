"""Gradients of kernels: `vjp=` and `jvp=`, driven by the names of their parameters.

    def axpy_vjp(x, grad, *, alpha):        # of axpy(x, y, *, alpha) -> out
        return alpha * grad, grad           # one gradient for each floating tensor argument

A rule is a Python function, or a Kernel with a schema. Its parameters name what it needs:

    an argument's name      that tensor or scalar of the forward call
    a result's name         that result
    grad                    the cotangent of the only result, or
    grad_<result>           of each result that is floating
    tangent_<argument>      (jvp only) the tangent of an argument

Only the tensors that it names are kept for the backward pass. A vjp returns the gradients of the
floating tensor arguments in order: a tuple, a bare one if there is one, or a dict by the names of
arguments, where None, and what a dict leaves out, is zero. A jvp returns the tangents of the
results alike. A Kernel gives them as its results: in order or, where all are called
`grad_<argument>`, by name.

A Python function gets the caller's own arrays, traced ones too, and may call other kernels. Rules
for complex numbers follow the caller's framework, whose conventions differ by a conjugate.

"torch" or "jax" instead of a rule differentiates the Python function of that framework: a second
kernel, "<name>_vjp", is derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from dlbridge.errors import ArgumentError, DLBridgeError, KernelError, UnsupportedTypeError
from dlbridge.kernels.gradients.automatic import Automatic
from dlbridge.kernels.gradients.rules import Rule, read_rule
from dlbridge.kernels.schema import Described, Parameter, Result, Schema, described, same_shape

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel

Values = Sequence[Any]


def floating_arguments(schema: Schema) -> tuple[int, ...]:
    """Return the places of the tensor arguments that can have a gradient."""
    return _floating(schema.tensors)


def floating_results(schema: Schema) -> tuple[int, ...]:
    """Return the places of the results that can have a cotangent."""
    return _floating(schema.results)


def _floating(parts: Sequence[Parameter | Result]) -> tuple[int, ...]:
    return tuple(
        place
        for place, part in enumerate(parts)
        if part.dtype is not None and part.dtype.may_be_floating
    )


def cotangent_names(schema: Schema) -> dict[str, int]:
    """Return what rules call cotangents: name -> place of the result."""
    found = floating_results(schema)
    names = {f"grad_{schema.results[place].name}": place for place in found}
    return {"grad": 0, **names} if len(schema.results) == 1 and found else names


class Derivative:
    """A rule, called by name, whose values are checked: the base of Vjp and Jvp."""

    word: ClassVar[str]
    what: ClassVar[str]

    def __init__(self, schema: Schema, given: Any) -> None:
        self.schema = schema
        self._tensors = {part.name: place for place, part in enumerate(schema.tensors)}
        self._scalars = {part.name: place for place, part in enumerate(schema.scalars)}
        self.rule = given if isinstance(given, Rule) else self._read(given)

    def _read(self, given: Any) -> Rule:
        """Return the rule; refuse arguments that are called as a cotangent or tangent is."""
        others = self._others()
        for part in self.schema.parameters:
            if part.name in others:
                raise ArgumentError(
                    f"{self.schema.qualified}: {self.word}= finds values by name, and an argument "
                    f"is called {part.name!r}, as a {self.what} is; rename it"
                )
        return read_rule(self.schema, given, self.word, others | self._kinds())

    def _others(self) -> dict[str, str]:
        """Return the names of the values that the forward call does not have, and their kinds."""
        raise NotImplementedError

    def _kinds(self) -> dict[str, str]:
        """Return the names that a rule may ask for, and of what kind each is."""
        kinds = {part.name: part.kind for part in self.schema.scalars}
        return kinds | dict.fromkeys(self._tensors, "tensor")

    def _call_derived(self, primals: Values, moving: Values, scalars: Values) -> Any:
        names = [part.name for part in self.schema.scalars]
        return self.rule.function(*primals, *moving, **dict(zip(names, scalars, strict=True)))

    def _forward(self, primals: Values, scalars: Values) -> dict[str, Any]:
        values = {name: primals[place] for name, place in self._tensors.items()}
        return values | {name: scalars[place] for name, place in self._scalars.items()}

    def _collect(self, value: Any, parts: Sequence[Parameter | Result], wanted: Values) -> Values:
        """Return what the rule gave by place among `parts`; None where it gave nothing."""
        found: list[Any] = [None] * len(parts)
        names = {parts[place].name: place for place in wanted}
        if isinstance(value, Mapping):
            for name, one in value.items():
                if name not in names:
                    raise self._wrong(f"a {self.what} of {name!r}", f"only {', '.join(names)}")
                found[names[name]] = one
            return found
        several = list(value) if isinstance(value, tuple | list) else [value]
        if len(several) != len(names):
            plural = "" if len(names) == 1 else "s"
            raise self._wrong(
                f"{len(several)} of them", f"{len(names)} {self.what}{plural}: {', '.join(names)}"
            )
        for place, one in zip(wanted, several, strict=True):
            found[place] = one
        return found

    def _wrong(self, got: str, expected: str) -> UnsupportedTypeError:
        return UnsupportedTypeError(
            f"{self.schema.qualified}: its {self.word} must return {expected}; it returned {got}"
        )

    def _check(self, name: str, got: Any, expected: Described | None) -> Any:
        """Return a gradient that fits its argument; None where there can be none."""
        if got is None or (expected is not None and not _has_gradient(expected)):
            return None
        try:
            found = described(got)
        except UnsupportedTypeError as error:
            raise self._wrong(f"for {name!r}: {error}", f"a {self.what}") from None
        if expected is not None:
            wrong = self._mismatch(name, found, expected)
            if wrong is not None:
                raise wrong
        return got

    def _mismatch(self, name: str, found: Described, expected: Described) -> DLBridgeError | None:
        same_dtype = found.dtype is expected.dtype
        if same_dtype and same_shape(found.shape, expected.shape):
            return None
        kind = ArgumentError if same_dtype else UnsupportedTypeError
        return kind(
            f"{self.schema.qualified}: {self.what} of {name!r}: expected {expected.plain}, got "
            f"{found.text()}"
        )


def _has_gradient(tensor: Described) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


class Saved(NamedTuple):
    """The places of tensor arguments and of results that a backward pass needs."""

    primals: tuple[int, ...]
    results: tuple[int, ...]


class Vjp(Derivative):
    """A kernel's vector-Jacobian product, for the tensors of any framework.

    Attributes:
        schema: the forward kernel's.
        saved: which primals and results the rule names; the others may be passed as None.
        wanted: places of the tensor arguments that can have a gradient.
    """

    word = "vjp"
    what = "gradient"

    def __init__(self, schema: Schema, given: Any) -> None:
        super().__init__(schema, given)
        self.wanted = floating_arguments(schema)
        names = self.rule.names
        is_derived = self.rule.is_derived
        self.saved = Saved(
            tuple(place for name, place in self._tensors.items() if is_derived or name in names),
            tuple(place for place, part in enumerate(schema.results) if part.name in names),
        )

    def _others(self) -> dict[str, str]:
        names = [part.name for part in self.schema.results] + list(cotangent_names(self.schema))
        return dict.fromkeys(names, "tensor")

    def __call__(
        self,
        primals: Values,
        scalars: Values,
        results: Values,
        cotangents: Values,
        expected: Sequence[Described | None] | None = None,
    ) -> list[Any]:
        """Return one gradient for each tensor argument, None where there is none or it is zero.

        Args:
            primals: the tensor arguments of the forward call, in order.
            scalars: its scalars.
            results: its results.
            cotangents: one for each result, never None for one that is floating.
            expected: what the tensor arguments were, to compare the gradients with; by default
                the primals tell, as far as they were kept.

        Raises:
            ArgumentError: a gradient of the wrong shape.
            UnsupportedTypeError: of the wrong dtype, or the wrong number of them.
        """
        if self.rule.is_derived:
            moving = [cotangents[place] for place in floating_results(self.schema)]
            value = self._call_derived(primals, moving, scalars)
        else:
            values = self._forward(primals, scalars)
            values |= {part.name: results[i] for i, part in enumerate(self.schema.results)}
            values |= {name: cotangents[i] for name, i in cotangent_names(self.schema).items()}
            value = self.rule(values)
        found = self._collect(value, self.schema.tensors, self.wanted)
        if expected is None:
            expected = [None if one is None else described(one) for one in primals]
        names = [part.name for part in self.schema.tensors]
        return [self._check(*one) for one in zip(names, found, expected, strict=True)]


class Jvp(Derivative):
    """A kernel's Jacobian-vector product, for the tensors of any framework.

    Attributes:
        schema: the forward kernel's.
        wanted: places of the results that can have a tangent.
    """

    word = "jvp"
    what = "tangent"

    def __init__(self, schema: Schema, given: Any) -> None:
        super().__init__(schema, given)
        self.wanted = floating_results(schema)

    def _others(self) -> dict[str, str]:
        places = floating_arguments(self.schema)
        names = [f"tangent_{self.schema.tensors[place].name}" for place in places]
        return dict.fromkeys(names, "tensor")

    def __call__(self, primals: Values, scalars: Values, tangents: Values) -> list[Any]:
        """Return one tangent for each result, None where there is none or it is zero.

        Args:
            primals: the tensor arguments, in order.
            scalars: the scalars.
            tangents: one for each tensor argument; of floating ones only None for one left out.

        Raises:
            ArgumentError: a tangent of the wrong shape.
            UnsupportedTypeError: of the wrong dtype, or the wrong number of them.
        """
        if self.rule.is_derived:
            moving = [tangents[place] for place in floating_arguments(self.schema)]
            value = self._call_derived(primals, moving, scalars)
        else:
            values = self._forward(primals, scalars)
            values |= {f"tangent_{name}": tangents[i] for name, i in self._tensors.items()}
            value = self.rule(values)
        found = self._collect(value, self.schema.results, self.wanted)
        seen = [None if one is None else described(one) for one in primals]
        bound = self.schema.bind(seen, scalars)
        expected = [Described(*one) for one in self.schema.results_of(bound)]
        names = [part.name for part in self.schema.results]
        return [self._check(*one) for one in zip(names, found, expected, strict=True)]


# ---- of a kernel -------------------------------------------------------------------------------

Either = TypeVar("Either", Vjp, Jvp)
_VJPS: WeakKeyDictionary[Kernel, Vjp] = WeakKeyDictionary()
_JVPS: WeakKeyDictionary[Kernel, Jvp] = WeakKeyDictionary()


def make_vjp(kernel: Kernel) -> Vjp | None:
    """Return the vjp of a kernel, made once; None where it was wrapped without one."""
    return _make(kernel, kernel.vjp, Vjp, _VJPS)


def make_jvp(kernel: Kernel) -> Jvp | None:
    """Return the jvp of a kernel, made once; None where it was wrapped without one."""
    return _make(kernel, kernel.jvp, Jvp, _JVPS)


def _make(
    kernel: Kernel, given: Any, kind: type[Either], known: WeakKeyDictionary[Kernel, Either]
) -> Either | None:
    if given is None:
        return None
    found = known.get(kernel)
    if found is None:
        assert kernel.schema is not None
        if isinstance(given, Automatic):
            given = given.derive(kernel, kind.word)
        found = known[kernel] = kind(kernel.schema, given)
    return found


def no_gradient(kernel: Kernel, word: str = "vjp") -> KernelError:
    """Return the exception for a derivative through a kernel that was wrapped without one."""
    return KernelError(
        f"{kernel.name}: a derivative would pass through this kernel, and it has none; "
        f"{remedy(kernel, word)}, or stop the gradient before it"
    )


def remedy(kernel: Kernel, word: str = "vjp") -> str:
    """Return how to give the kernel a derivative: one that writes in place can have none."""
    if kernel.schema is not None and kernel.schema.mutated:
        return "wrap one that returns results, as this one writes into its arguments"
    return f"wrap it with {word}="


def check(kernel: Kernel, wrap: Callable[..., Kernel]) -> None:
    """Make the vjp and the jvp of a kernel that is wrapped, and refuse one that cannot work.

    Args:
        kernel: the new kernel.
        wrap: `dlbridge.wrap`, which makes a kernel of a derivative that is derived.

    Raises:
        ArgumentError: the kernel has no schema, writes in place, or has nothing to differentiate.
        UnsupportedTypeError: the rule cannot be called, or asks for unknown names.
    """
    _check(kernel, kernel.vjp, Vjp, _VJPS, wrap)
    _check(kernel, kernel.jvp, Jvp, _JVPS, wrap)


def _check(
    kernel: Kernel,
    given: Any,
    kind: type[Either],
    known: WeakKeyDictionary[Kernel, Either],
    wrap: Callable[..., Kernel],
) -> None:
    if given is None or isinstance(given, Automatic):  # of a derived kernel: made when needed
        return
    if kernel.schema is None:
        raise ArgumentError(
            f"{kernel.name}: {kind.word}= needs a schema, which names the arguments"
        )
    _check_schema(kernel.schema, kind.word)
    _make(kernel, Automatic(given, wrap) if isinstance(given, str) else given, kind, known)


def _check_schema(schema: Schema, word: str) -> None:
    if schema.mutated:
        names = ", ".join(schema.tensors[place].name for place in schema.mutated)
        raise ArgumentError(
            f"{schema.qualified}: {word}= of a kernel that writes into {names} would see other "
            "values than the kernel did; return them as results"
        )
    for places, what in (
        (floating_arguments(schema), "tensor argument"),
        (floating_results(schema), "result"),
    ):
        if not places:
            raise ArgumentError(
                f"{schema.qualified}: {word}= has nothing to differentiate: no {what} is floating"
            )
