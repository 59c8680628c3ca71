"""The rules given as `vjp=` and `jvp=`: which values they ask for by name, how they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dlbridge._core import native
from dlbridge.errors import UnsupportedTypeError
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.schema import MISSING, Schema


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
    except (TypeError, ValueError):
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


# ---- kernels -----------------------------------------------------------------------------------


def _read_kernel(schema: Schema, kernel: Any, word: str, kinds: Mapping[str, str]) -> Rule:
    own: Schema | None = kernel.schema
    if own is None or own.mutated or not own.results:
        raise UnsupportedTypeError(
            f"{schema.qualified}: its {word} {kernel.name} must have a schema with results, and "
            "write nothing in place"
        )
    names = []
    for parameter in own.parameters:
        kind = kinds.get(parameter.name)
        if kind is None and (parameter.default is not MISSING or parameter.optional):
            continue
        if kind is None:
            raise _unknown(schema, parameter.name, word, kinds)
        if kind != parameter.kind:
            raise UnsupportedTypeError(
                f"{schema.qualified}: its {word} {own.qualified} takes {parameter.name!r} as "
                f"{parameter.kind}, but here it is {kind}"
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
