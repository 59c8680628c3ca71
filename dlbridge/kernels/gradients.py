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

Without a jvp, tangents are by the transpose of the vjp, which is linear in the cotangents: JAX and
torch differentiate the rule by these. So a Kernel serves for it if it has a vjp of its own.

A Python function gets the caller's own arrays, traced ones too, and may call other kernels.

Cotangents and gradients of complex numbers are as torch, TensorFlow and Paddle have them, in every
framework: of y = f(x), f holomorphic, the gradient is grad * conj(f'(x)). Those of JAX are the
conjugates, before the rule is called and after it. Tangents are the same everywhere.

"torch" or "jax" instead of a rule differentiates the Python function of that framework: a second
kernel, "<name>_vjp", is derived from it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError, KernelError, UnsupportedTypeError
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.kinds import read_signature
from dlbridge.kernels.schema import (
    MISSING,
    Described,
    Parameter,
    Result,
    Schema,
    cotangent_name,
    described,
    join_parts,
    same_shape,
)
from dlbridge.signals import not_from_handler

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel

Function = Callable[..., Any]
Values = Sequence[Any]


def _floating(parts: Sequence[Parameter | Result]) -> tuple[int, ...]:
    """Return the places of the tensors that can have a gradient, cotangent or tangent."""
    return tuple(
        place
        for place, part in enumerate(parts)
        if part.dtype is not None
        and part.dtype.may_be_floating
        and not (isinstance(part, Result) and part.number)
    )


def cotangent_names(schema: Schema) -> dict[str, int]:
    """Return what rules call cotangents: name -> place of the result."""
    found = _floating(schema.results)
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
        return {part.name: _kind(part) for part in (*self.schema.scalars, *self.schema.tensors)}

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
        if len(names) == 1 and _kind(parts[wanted[0]]) == _LIST and not _holds_list(several):
            several = [value]
        if len(several) != len(names):
            plural = "" if len(names) == 1 else "s"
            raise self._wrong(
                f"{len(several)} of them", f"{len(names)} {self.what}{plural}: {', '.join(names)}"
            )
        for place, one in zip(wanted, several, strict=True):
            found[place] = one
        return found

    def collect(self, value: Any) -> Values:
        """Return what the rule gave, by argument or by result; None where it gave nothing."""
        raise NotImplementedError

    def wrong_list(self, name: str, count: int, value: Any) -> UnsupportedTypeError:
        """Return the exception for what the rule gave for a list of `count` tensors."""
        is_list = isinstance(value, tuple | list)
        got = (
            f"a list of {len(value)} for {name!r}"
            if is_list
            else f"for {name!r}: {describe(value)}"
        )
        return self._wrong(got, f"a list of {count} {self.what}s")

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


_LIST = "list of tensors"


def _kind(part: Parameter | Result) -> str:
    """Return what kind of value a rule gets for an argument or a result."""
    if isinstance(part, Parameter) and not part.is_tensor:
        return part.kind
    return _LIST if part.is_list else "tensor"


def _holds_list(values: Sequence[Any]) -> bool:
    return len(values) == 1 and (values[0] is None or isinstance(values[0], tuple | list))


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
        wanted: places of the tensor arguments that can have a gradient, and are given one.
    """

    word = "vjp"
    what = "gradient"

    def __init__(self, schema: Schema, given: Any, wanted: Sequence[int] | None = None) -> None:
        super().__init__(schema, given)
        self.wanted = _floating(schema.tensors) if wanted is None else tuple(wanted)
        names = self.rule.names
        is_derived = self.rule.is_derived
        self.saved = Saved(
            tuple(place for name, place in self._tensors.items() if is_derived or name in names),
            tuple(place for place, part in enumerate(schema.results) if part.name in names),
        )

    def _others(self) -> dict[str, str]:
        results = self.schema.results
        names = {part.name: _kind(part) for part in results}
        moving = cotangent_names(self.schema)
        return names | {name: _kind(results[place]) for name, place in moving.items()}

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
                the primals say, as far as they were kept.

        Raises:
            ArgumentError: a gradient of the wrong shape.
            UnsupportedTypeError: of the wrong dtype, or the wrong number of them.
        """
        if self.rule.is_derived:
            moving = [cotangents[place] for place in _floating(self.schema.results)]
            value = self._call_derived(primals, moving, scalars)
        else:
            values = self._forward(primals, scalars)
            values |= {part.name: results[i] for i, part in enumerate(self.schema.results)}
            values |= {name: cotangents[i] for name, i in cotangent_names(self.schema).items()}
            value = self.rule(values)
        found = self.collect(value)
        if expected is None:
            expected = [None if one is None else described(one) for one in primals]
        pairs = enumerate(zip(found, expected, strict=True))
        return [self.check(place, got, like) for place, (got, like) in pairs]

    def collect(self, value: Any) -> Values:
        """Return what the rule gave by tensor argument; None where it gave nothing."""
        return self._collect(value, self.schema.tensors, self.wanted)

    def check(self, place: int, got: Any, expected: Described | None) -> Any:
        """Return a gradient that fits the tensor argument; None where there can be none."""
        return self._check(self.schema.tensors[place].name, got, expected)


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
        self.wanted = _floating(schema.results)

    def _others(self) -> dict[str, str]:
        moving = [self.schema.tensors[place] for place in _floating(self.schema.tensors)]
        return {f"tangent_{part.name}": _kind(part) for part in moving}

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
            moving = [tangents[place] for place in _floating(self.schema.tensors)]
            value = self._call_derived(primals, moving, scalars)
        else:
            values = self._forward(primals, scalars)
            values |= {f"tangent_{name}": tangents[i] for name, i in self._tensors.items()}
            value = self.rule(values)
        found = self.collect(value)
        seen = [None if one is None else described(one) for one in primals]
        bound = self.schema.bind(seen, scalars)
        expected = [Described(*one) for one in self.schema.results_of(bound)]
        names = [part.name for part in self.schema.results]
        return [self._check(*one) for one in zip(names, found, expected, strict=True)]

    def collect(self, value: Any) -> Values:
        """Return what the rule gave by result; None where it gave nothing."""
        return self._collect(value, self.schema.results, self.wanted)


# ---- of a kernel -------------------------------------------------------------------------------

Either = TypeVar("Either", Vjp, Jvp)
_VJPS: WeakKeyDictionary[Kernel, Vjp] = WeakKeyDictionary()
_JVPS: WeakKeyDictionary[Kernel, Jvp] = WeakKeyDictionary()
_PARTIAL: WeakKeyDictionary[Kernel, dict[tuple[int, ...], Vjp]] = WeakKeyDictionary()


def make_vjp(kernel: Kernel) -> Vjp | None:
    """Return the vjp of a kernel, made once; None where it was wrapped without one."""
    return _make(kernel, kernel.vjp, Vjp, _VJPS)


def make_vjp_for(kernel: Kernel, places: Sequence[int]) -> Vjp | None:
    """Return the vjp of a kernel for some of its tensor arguments, where it can be derived so.

    Otherwise it gives the gradients of all. So an argument that is not differentiated costs nothing
    in a function that makes its own derivative.
    """
    rule, schema = kernel.vjp, kernel.schema
    if not isinstance(rule, Automatic) or schema is None or not _makes_own(kernel):
        return make_vjp(kernel)
    everything = _floating(schema.tensors)
    wanted = tuple(place for place in everything if place in places)
    if wanted == everything:
        return make_vjp(kernel)
    known = _PARTIAL.setdefault(kernel, {})
    found = known.get(wanted)
    if found is None:
        found = known[wanted] = Vjp(schema, rule.derive(kernel, "vjp", wanted), wanted)
    return found


def _makes_own(kernel: Kernel) -> bool:
    return any(isinstance(each.callable, Derivable) for each in kernel.functions.values())


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


def may_transpose(kernel: Kernel) -> bool:
    """Return whether a framework can differentiate the kernel's vjp by the cotangents.

    That is its transpose, by which tangents go forwards. A Kernel has a vjp for that, or not; a
    Python function may call kernels that have none, which then say so.
    """
    rule = kernel.vjp if kernel.whole is None else kernel.whole.vjp
    if isinstance(rule, native.KernelBase):
        return cast("Kernel", rule).vjp is not None
    return rule is not None


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
    _check_rule(kernel, kernel.vjp, Vjp, _VJPS, wrap)
    _check_rule(kernel, kernel.jvp, Jvp, _JVPS, wrap)


def _check_rule(
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
    if isinstance(given, str) and (kernel.lists or kernel.numbers):  # of those that make calls
        return
    _make(kernel, Automatic(given, wrap) if isinstance(given, str) else given, kind, known)


def is_differentiable(schema: Schema) -> bool:
    """Return whether a result, and an argument, of the schema can be floating."""
    return bool(_floating(schema.tensors) and _floating(schema.results))


def _check_schema(schema: Schema, word: str) -> None:
    if schema.mutated:
        names = ", ".join(schema.tensors[place].name for place in schema.mutated)
        raise ArgumentError(
            f"{schema.qualified}: {word}= of a kernel that writes into {names} would see other "
            "values than the kernel did; return them as results"
        )
    for places, what in (
        (_floating(schema.tensors), "tensor argument"),
        (_floating(schema.results), "result"),
    ):
        if not places:
            is_number = any(part.number == "float" for part in schema.results)
            raise ArgumentError(
                f"{schema.qualified}: {word}= has nothing to differentiate: no {what} is floating"
                + "; a number is a constant, and f32[] a result with a derivative" * is_number
            )


# ---- given rules: what they ask for, how they are called -----------------------------------------


class Rule(NamedTuple):
    """A rule.

    Attributes:
        names: what it asks for.
        by_position: how many of `names` are passed by position.
        function: the Python function, or the kernel.
        labels: the names of arguments that the results of a kernel are gradients of, if they say.
        is_derived: it takes everything by position, whatever the names: tensors of the forward
            call, then cotangents or tangents; and scalars by name.
    """

    names: tuple[str, ...]
    by_position: int
    function: Callable[..., Any]
    labels: tuple[str, ...] = ()
    is_derived: bool = False

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Call the rule with those of `values` that it asks for."""
        given = [values[name] for name in self.names]
        count = self.by_position
        found = self.function(
            *given[:count], **dict(zip(self.names[count:], given[count:], strict=True))
        )
        if not self.labels:
            return found
        several = found if isinstance(found, tuple) else (found,)
        return dict(zip(self.labels, several, strict=True))


def read_rule(schema: Schema, given: Any, word: str, kinds: Mapping[str, str]) -> Rule:
    """Return the rule that `given` is.

    Args:
        schema: of the forward kernel.
        given: a Python function or a Kernel.
        word: "vjp" or "jvp".
        kinds: the names that a rule may ask for: "tensor", or the kind of a scalar.

    Raises:
        UnsupportedTypeError: nothing that can be called, or it asks for what there is not.
    """
    if isinstance(given, native.KernelBase):
        return _read_kernel(schema, given, word, kinds)
    if not callable(given):
        raise UnsupportedTypeError(
            f"{schema.qualified}: {word}= must be a Kernel, a Python function, 'torch' or 'jax', "
            f"got {given!r}"
        )
    try:
        parameters = inspect.signature(given).parameters.values()
    except not_from_handler(TypeError, ValueError):
        raise UnsupportedTypeError(
            f"{schema.qualified}: {word}= has no parameters that can be read: {describe(given)}; "
            "pass a function of Python"
        ) from None
    return Rule(*_read_parameters(schema, list(parameters), word, kinds), given)


def _read_parameters(
    schema: Schema, parameters: list[inspect.Parameter], word: str, kinds: Mapping[str, str]
) -> tuple[tuple[str, ...], int]:
    by_position: list[str] = []
    by_name: list[str] = []
    for parameter in parameters:
        if parameter.kind == parameter.VAR_POSITIONAL:
            raise _unknown(schema, f"*{parameter.name}", word, kinds)
        if parameter.kind == parameter.VAR_KEYWORD:
            by_name += [name for name in kinds if name not in (*by_position, *by_name)]
        elif parameter.name in kinds:
            only = parameter.kind == parameter.POSITIONAL_ONLY
            (by_position if only else by_name).append(parameter.name)
        elif parameter.default is parameter.empty:
            raise _unknown(schema, parameter.name, word, kinds)
    return (*by_position, *by_name), len(by_position)


def _unknown(
    schema: Schema, name: str, word: str, kinds: Mapping[str, str]
) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{schema.qualified}: its {word} asks for {name!r}; what it can have is {', '.join(kinds)}"
    )


def _read_kernel(schema: Schema, kernel: Any, word: str, kinds: Mapping[str, str]) -> Rule:
    own: Schema | None = kernel.schema
    if own is None or own.mutated or not own.results:
        raise UnsupportedTypeError(
            f"{schema.qualified}: its {word} {kernel.name} must have a schema with results, and "
            "write nothing in place"
        )
    names = []
    may_lack = {result.name: result.condition for result in schema.results if result.condition}
    for name, place in cotangent_names(schema).items():
        if schema.results[place].condition:
            may_lack[name] = schema.results[place].condition
    for parameter in own.parameters:
        kind = kinds.get(parameter.name)
        if kind is None and (parameter.default is not MISSING or parameter.optional):
            continue
        if kind is None:
            raise _unknown(schema, parameter.name, word, kinds)
        if kind != _kind(parameter):
            raise UnsupportedTypeError(
                f"{schema.qualified}: its {word} {own.qualified} takes {parameter.name!r} as "
                f"{_kind(parameter)}, but here it is {kind}"
            )
        if parameter.name in may_lack and not parameter.optional:
            raise UnsupportedTypeError(
                f"{schema.qualified}: its {word} {own.qualified} takes {parameter.name!r}, which "
                f"is None where {may_lack[parameter.name]} says so: its type must be "
                f"{parameter.type_text}?"
            )
        names.append(parameter.name)
    return Rule(tuple(names), 0, kernel, _labels(schema, own, word))


def _labels(schema: Schema, own: Schema, word: str) -> tuple[str, ...]:
    """Return the arguments named by results `grad_<argument>`, where all results do so."""
    prefix = "grad_" if word == "vjp" else "tangent_"
    parts = schema.tensors if word == "vjp" else schema.results
    known = {f"{prefix}{part.name}": part.name for part in parts}
    names = [result.name for result in own.results]
    return tuple(known[name] for name in names) if all(name in known for name in names) else ()


# ---- derived rules: vjp="torch" and vjp="jax" ----------------------------------------------------


class Derivable:
    """A Python function of a kernel that makes its own derivative."""

    def __call__(self, *tensors: Any) -> Any:
        """Return the results."""
        raise NotImplementedError

    def derive(self, wanted: Sequence[int]) -> Derivable:
        """Return the function from tensors and cotangents to gradients.

        Args:
            wanted: the places of the tensors whose gradients it returns, of floating ones, sorted.
        """
        raise NotImplementedError


class Automatic(NamedTuple):
    """A rule to be derived by a framework from the kernel's own function.

    The vjp of a derived kernel is one: it is derived in turn once somebody differentiates twice.

    Attributes:
        framework: "torch" or "jax"; for a `Derivable` function, the framework of its arrays.
        wrap: `dlbridge.wrap`, which makes the kernel of the derivative.
    """

    framework: str
    wrap: Callable[..., Kernel]

    def derive(self, kernel: Kernel, word: str, wanted: Sequence[int] | None = None) -> Rule:
        """Return as a rule the kernel "<name>_vjp" (or _jvp): the derivative of the function.

        It is a Python function of the same framework, and can be differentiated in turn.

        Args:
            kernel: its function is derived.
            word: "vjp" or "jvp".
            wanted: of a `Derivable`, the tensors whose gradients the kernel "<name>_vjp_0_2"
                returns; None: all.

        Raises:
            ArgumentError: the kernel is no Python function of that framework, takes optional
                tensors, or must write into `out`.
        """
        schema, framework = kernel.schema, self.framework
        assert schema is not None
        derivable = word == "vjp" and _makes_own(kernel)
        if framework not in ("torch", "jax") and not derivable:
            raise ArgumentError(
                f"{schema.qualified}: {word}= must be a Kernel, a Python function, 'torch' or "
                f"'jax', got {framework!r}"
            )
        function = _find_function(kernel, framework, word)
        _check_derivable(schema, function, framework, word)
        lengths = "" if kernel.flat is None else "".join(f"_{each}" for each in kernel.flat.lengths)
        name = f"{schema.qualified}{lengths}_{word}"
        if word == "vjp":
            derivative = _without_clashes(schema).vjp(name)
        else:
            derivative = _jvp_schema(schema).named(name)
        everything = _floating(schema.tensors)
        if wanted is not None:
            pairs = zip(everything, derivative.results, strict=True)
            kept = [result for place, result in pairs if place in wanted]
            named = derivative.named("_".join([name, *map(str, wanted)]))
            derivative = named.with_parts(named.parameters, kept)
        if isinstance(function, Derivable):
            made: Any = function.derive(everything if wanted is None else wanted)
        else:
            made = _make_derivative(function, schema, framework, word)
        made.__name__ = derivative.name
        second = self.wrap(made, derivative, abi=f"python:{framework}", vjp=self)
        return Rule((), 0, second, is_derived=True)


def _find_function(kernel: Kernel, framework: str, word: str) -> Function:
    for each in kernel.functions.values():
        if each.framework == framework:
            function: Function = each.callable
            return function
    raise ArgumentError(
        f"{kernel.name}: {word}={framework!r} differentiates a Python function of {framework}, "
        f"and this is {kernel.kind}; pass a Kernel or a Python function"
    )


def _check_derivable(schema: Schema, function: Function, framework: str, word: str) -> None:
    optional = [part.name for part in schema.tensors if part.optional]
    signature = read_signature(function)
    out = signature.parameters.get("out") if signature is not None else None
    refusals = {
        f"the tensor {', '.join(optional)} is optional": bool(optional),
        "the function writes into `out` and returns nothing": out is not None
        and out.default is out.empty,
    }
    for why, applies in refusals.items():
        if applies:
            raise ArgumentError(
                f"{schema.qualified}: {word}={framework!r} cannot be derived: {why}; "
                "pass a Python function"
            )


def _without_clashes(schema: Schema) -> Schema:
    """Return the schema with other names for arguments called as a cotangent will be.

    So they are in a derived kernel that is differentiated in turn; functions get tensors by
    position, so the names do not matter to them.
    """
    schema = _without_elements(schema)
    names = [part.name for part in schema.parameters]
    taken = {cotangent_name(schema, result) for result in schema.results}
    renamed = []
    for part in schema.parameters:
        name = part.name
        while name in taken or (name != part.name and name in names):
            name += "_"
        renamed.append(part._replace(name=name))
    return schema.with_parts(renamed, schema.results)


def _without_elements(schema: Schema) -> Schema:
    """Return the schema with names for what are tensors of a list: "xs_0" for "xs[0]"."""
    taken = {part.name for part in join_parts(schema.parameters, schema.results)}

    def rename(part: Any) -> Any:
        name = part.name.replace("[", "_").removesuffix("]")
        while name != part.name and name in taken:
            name += "_"
        return part._replace(name=name)

    parameters = [rename(part) for part in schema.parameters]
    return schema.with_parts(parameters, [rename(part) for part in schema.results])


def _jvp_schema(schema: Schema) -> Schema:
    schema = _without_elements(schema)
    moving = _floating(schema.tensors)
    tensors = [part._replace(keyword_only=False) for part in schema.tensors]
    tangents = [
        schema.tensors[place]._replace(name=f"tangent_{schema.tensors[place].name}")
        for place in moving
    ]
    scalars = [part._replace(keyword_only=True) for part in schema.scalars]
    results = [
        schema.results[place]._replace(name=f"tangent_{schema.results[place].name}")
        for place in _floating(schema.results)
    ]
    return schema.with_parts([*tensors, *tangents, *scalars], results)


def _restricted(function: Function, schema: Schema, primals: Sequence[Any]) -> Function:
    """Return `function` of its floating arguments alone, giving its floating results alone."""
    moving, wanted = _floating(schema.tensors), _floating(schema.results)

    def forward(*values: Any) -> tuple[Any, ...]:
        given = list(primals)
        for place, value in zip(moving, values, strict=True):
            given[place] = value
        found = function(*given)
        several = found if isinstance(found, tuple | list) else (found,)
        return tuple(several[place] for place in wanted)

    return forward


def _make_derivative(function: Function, schema: Schema, framework: str, word: str) -> Function:
    count, moving = len(schema.tensors), _floating(schema.tensors)
    differentiate = _DIFFERENTIATE[word]

    def derivative(*tensors: Any, **scalars: Any) -> Any:
        primals, others = tensors[:count], tensors[count:]
        forward = _restricted(partial(function, **scalars), schema, primals)
        return differentiate(framework, forward, [primals[place] for place in moving], others)

    # Where values decide on the size of a result, jax.jit can compile no derivative either.
    if schema.counts or getattr(function, "_needs_values", False):
        derivative._needs_values = True  # type: ignore[attr-defined]
        return derivative
    return _compile_jax(derivative, schema) if framework == "jax" else derivative


def _pull_back(framework: str, forward: Function, primals: Sequence[Any], given: Any) -> Any:
    pull = _namespace(framework).vjp(forward, *primals)[1]
    return conjugates(pull(tuple(conjugates(given)))) if framework == "jax" else pull(given)


def conjugates(arrays: Iterable[Any]) -> list[Any]:
    """Return cotangents or gradients of JAX as rules have them, or those of rules as JAX has them.

    Arrays of JAX; None stays None.
    """
    return [each if each is None or each.dtype.kind != "c" else each.conj() for each in arrays]


def _push_forward(framework: str, forward: Function, primals: Sequence[Any], given: Any) -> Any:
    return _namespace(framework).jvp(forward, tuple(primals), given)[1]


_DIFFERENTIATE = {"vjp": _pull_back, "jvp": _push_forward}


def _namespace(framework: str) -> Any:
    """Return where the framework has `vjp` and `jvp`, which agree in what they take."""
    module: Any = sys.modules[framework]
    return module.func if framework == "torch" else module


def _compile_jax(function: Function, schema: Schema) -> Function:
    """Return the function jitted: scalars are static, since it may decide by them."""
    names = [part.name for part in schema.scalars]
    compiled = sys.modules["jax"].jit(function, static_argnames=names)

    def derivative(*tensors: Any, **scalars: Any) -> Any:
        return compiled(*tensors, **scalars)

    return derivative
