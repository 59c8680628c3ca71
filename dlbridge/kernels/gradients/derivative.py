"""What vjp and jvp have in common: a rule, called by name, whose values are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dlbridge.errors import ArgumentError, DLBridgeError, UnsupportedTypeError
from dlbridge.kernels.described import described
from dlbridge.kernels.gradients.rules import Rule, read_rule
from dlbridge.kernels.schema.dims import same_extent
from dlbridge.kernels.schema.parts import Described, Parameter, Result

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema

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
    """What Vjp and Jvp have in common: a rule, called by name, whose values are checked."""

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
        if same_dtype and _same_shape(found.shape, expected.shape):
            return None
        kind = ArgumentError if same_dtype else UnsupportedTypeError
        return kind(
            f"{self.schema.qualified}: {self.what} of {name!r}: expected {expected.plain}, got "
            f"{found.text()}"
        )


def _has_gradient(tensor: Described) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def _same_shape(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(map(same_extent, one, other))
