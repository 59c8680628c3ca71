"""Models: a function of one framework and its arrays, for another to call; see `dlbridge.bridge`.

`jax.models` and `tensorflow.models` make them of functions and modules, `torch.layers` calls them.
For each signature of its arguments a model has one program, whose results have shapes and dtypes
that are known. A program is differentiated in two ways. Its `linearization` is a program that also
returns what the backward pass reads, and the backward pass. Its `derivative` is one more program,
of operands and cotangents, which can be differentiated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from dlbridge import registry
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError
from dlbridge.exchange.protocol import describe

Form = tuple[tuple[int, ...], DType]


class Held(NamedTuple):
    """An array of a model.

    Attributes:
        name: its path in the tree, as torch writes names: "layers.0.weight".
        array: its first value.
        is_trained: whether it is a parameter, and not a buffer.
    """

    name: str
    array: Any
    is_trained: bool


class Linearization(NamedTuple):
    """A program and its backward pass.

    Attributes:
        program: what is differentiated, with respect to the operands at the places `needs`.
        forward: returns the results of the program, and then what only the backward pass reads.
        backward: takes operands and results at these places, what `forward` keeps for it, and the
            cotangents of the results that can be differentiated; returns the gradients.
        operands, results: the places.
    """

    program: Program
    needs: tuple[int, ...]
    forward: Program
    backward: Program
    operands: tuple[int, ...]
    results: tuple[int, ...]


class Program(Protocol):
    """A function of arrays of certain forms, with arrays as results.

    Attributes:
        name: of the model, for messages.
        framework: whose arrays it takes.
        forms, results: sequences of the shape and dtype of each operand, and of each result.
        moving: the places of the results that can be differentiated, a sequence.
    """

    name: str
    framework: str
    forms: Any
    results: Any
    moving: Any

    @property
    def run(self) -> Callable[..., Sequence[Any]]:
        """Return the compiled function."""

    def settings(self) -> Any:
        """Return what has to be entered around a call, or None."""

    def takes_numpy(self) -> Sequence[bool]:
        """Return for which operands a NumPy array in aligned memory of the CPU serves as well now.

        The first operand is an array of the framework, since it says on which device to compute.
        """

    def linearization(self, needs: tuple[int, ...]) -> Linearization:
        """Return the program and its backward pass for the operands at these places."""

    def derivative(self, needs: tuple[int, ...]) -> Program:
        """Return the program of operands and cotangents that gives the gradients."""

    def tangents(self, places: tuple[int, ...]) -> Program:
        """Return the program of operands, and tangents of some, that gives those of the results."""

    def batched(self, axes: tuple[int | None, ...], size: int) -> Program:
        """Return the program of a batch, along these axes of the operands and axis 0 of results."""


class Derived:
    """A Program whose derivatives and batches are made once each, as a framework makes them."""

    def __init__(self, name: str, forms: Iterable[Form]) -> None:
        self.name = name
        self.forms = tuple(forms)
        self.results: Sequence[Form] = ()
        self.moving: tuple[int, ...] = ()
        self._made: dict[Hashable, Any] = {}
        self._lock = registry.lock()

    def takes_numpy(self) -> Sequence[bool]:
        """Return for which operands a NumPy array serves as well: for none."""
        return ()

    def linearization(self, needs: tuple[int, ...]) -> Linearization:
        """Return the program and its backward pass for the operands at these places."""
        found: Linearization = self._once(("linearization", needs), partial(self._linearize, needs))
        return found

    def derivative(self, needs: tuple[int, ...]) -> Program:
        """Return the program of operands and cotangents that gives the gradients."""
        found: Program = self._once(("derivative", needs), partial(self._differentiate, needs))
        return found

    def tangents(self, places: tuple[int, ...]) -> Program:
        """Return the program of operands, and tangents of some, that gives those of the results."""
        found: Program = self._once(("tangents", places), partial(self._push, places))
        return found

    def batched(self, axes: tuple[int | None, ...], size: int) -> Program:
        """Return the program of a batch, along these axes of the operands and axis 0 of results."""
        found: Program = self._once(("batch", axes, size), partial(self._map, axes, size))
        return found

    def _linearize(self, needs: tuple[int, ...]) -> Linearization:
        raise NotImplementedError

    def _differentiate(self, needs: tuple[int, ...]) -> Program:
        raise NotImplementedError

    def _push(self, places: tuple[int, ...]) -> Program:
        raise NotImplementedError

    def _map(self, axes: tuple[int | None, ...], size: int) -> Program:
        raise NotImplementedError

    def _set_results(self, results: Sequence[Form]) -> None:
        self.results = results
        self.moving = tuple(place for place, (_, dtype) in enumerate(results) if is_moving(dtype))

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        found = self._made.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = make()
            return found

    def _cotangents(self) -> list[Form]:
        return [self.results[place] for place in self.moving]

    def _batch_forms(self, axes: tuple[int | None, ...], size: int) -> list[Form]:
        return [
            (shape if axis is None else (*shape[:axis], size, *shape[axis:]), dtype)
            for (shape, dtype), axis in zip(self.forms, axes, strict=True)
        ]


class Call(NamedTuple):
    """One signature of a model.

    Attributes:
        program: computes results, and then the buffers as the call leaves them.
        structure: of what the function returns.
        size: how many of the results are in it; the rest are buffers.
        is_single: whether it is one array, in no tuple or other container.
        updated: the places of these buffers among the arrays of the model.
    """

    program: Program
    structure: Any
    size: int
    is_single: bool
    updated: tuple[int, ...]


class Model(Protocol):
    """A function as a function of its arrays, and of the arrays among its arguments.

    Attributes:
        name: of the function.
        framework: whose function it is.
        held: its arrays, in the order in which they are operands.
        follows_mode: whether a call takes `training=`, which is that of the module unless given.
        flatten: returns the leaves of a tree, and its structure.
        unflatten: the other way.
        is_wide: whether the framework has 64-bit types now.
    """

    name: str
    framework: str
    held: Sequence[Held]
    follows_mode: bool
    is_wide: Callable[[], bool]
    flatten: Callable[[Any], tuple[list[Any], Any]]
    unflatten: Callable[[Any, Sequence[Any]], Any]

    def take(self, leaf: Any) -> tuple[Any, Hashable] | None:
        """Return an argument as an array with memory, and the kind of key that it is; or None."""

    def call(self, structure: Any, static: Sequence[Any], forms: Sequence[Form]) -> Call:
        """Find out what a call does.

        Args:
            structure: of the arguments.
            static: of each leaf of them, (None, kind of key) of an array, else as of `fixed`.
            forms: shape and dtype of each operand: those held, and the arrays of the arguments.
        """


def fixed(value: Any) -> tuple[Any, Any]:
    """Return the pair that stands for an argument that is not an array, in `static` and in keys.

    Equal pairs are of the same value: 1, 1.0 and True differ, and 0.0 and -0.0; NaNs are one value.
    """
    kind: Any = type(value)
    if kind is float and math.isnan(value):
        value = math.nan
    if kind in (float, complex):
        kind = kind, repr(value)
    return kind, value


def is_moving(dtype: DType) -> bool:
    """Return whether values of a dtype can be differentiated."""
    return dtype.is_floating or dtype.is_complex


def name_of(function: Any) -> str:
    """Return the name of a function, or of the class of another object, for messages."""
    return getattr(function, "__name__", None) or type(function).__name__


def check_names(names: Iterable[str]) -> None:
    """Refuse two arrays with one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ArgumentError(
                f"bridge: two arrays of the trees would be called {name!r} in the module; give "
                "one of them another name"
            )
        seen.add(name)


def split_outcome(made: Any, name: str) -> tuple[Any, Any]:
    """Return the result and the buffers of a function that returns both."""
    if not isinstance(made, tuple) or len(made) != 2:
        raise ArgumentError(
            f"{name}: with mutable=True the function must return (result, buffers), got "
            f"{describe(made)}"
        )
    return made


def check_shape(path: str, array: Any, shape: Sequence[int], name: str) -> None:
    """Raise an ArgumentError unless `array` is an array of the shape that the buffer had."""
    is_array = hasattr(array, "shape") and hasattr(array, "dtype")
    if not is_array or tuple(array.shape) != tuple(shape):
        got = list(array.shape) if is_array else describe(array)
        raise ArgumentError(
            f"{name}: the buffer {path!r} must be returned in the shape {list(shape)}, got {got}"
        )
