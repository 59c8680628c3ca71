"""Models of TensorFlow as modules for `dlbridge.frameworks.jax.functions`, as in `torch.modules`.

Each signature is traced once. Arrays are passed as NumPy arrays over the memory of the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from dlbridge._core import native
from dlbridge.dtype import as_dtype
from dlbridge.errors import ArgumentError
from dlbridge.frameworks.models import Call, Form
from dlbridge.frameworks.tensorflow.models import Model, Program, Rebuild
from dlbridge.kernels.gradients import Derivable


class Traced(NamedTuple):
    """What a call does, for arguments of certain shapes and dtypes.

    Attributes:
        results: shape and dtype of each tensor that the model returns, in order.
        written: the places, among the operands, of the buffers that the call changes.
        call: the model's Call.
        model: the model that was called.
        is_random: False: calls that draw random numbers are refused.
    """

    results: Sequence[Form]
    written: frozenset[int]
    call: Call
    model: Model
    is_random: bool = False

    def returned(self, tensors: Sequence[Any]) -> Any:
        """Return the result of the model, with these tensors in it."""
        return self.model.unflatten(self.call.structure, tensors)


class Module:
    """A model as a function of its parameters, its buffers, and the tensors among its arguments.

    Attributes:
        name: of the model.
        parameters, buffers: its tensors by their names.
    """

    arrays = "numpy"
    platforms = ("cpu",)

    def __init__(self, model: Model) -> None:
        self._model = model
        self.name = model.name
        self.advice = ", or call it with training=False" if model.follows_mode else ""
        self.parameters = {each.name: each.array for each in model.held if each.is_trained}
        self.buffers = {each.name: each.array for each in model.held if not each.is_trained}
        self._own = [(tuple(each.array.shape), as_dtype(each.array.dtype)) for each in model.held]

    def modes(self) -> None:
        """Return the modes of TensorFlow that a call depends on: none."""

    def trace(self, forms: Sequence[Form], rebuild: Rebuild) -> Traced:
        """Trace a call; parameters and buffers have the model's own dtypes in it.

        Raises:
            ArgumentError: a shape depends on values, or random numbers are drawn without a seed.
        """
        call = self._model.trace([*self._own, *forms[len(self._own) :]], rebuild)
        program: Any = call.program
        if program.draws:
            raise ArgumentError(
                f"{self.name}: the call draws random numbers without a seed, and a function of "
                "JAX must be pure; use tf.random.stateless_uniform with a seed argument, or a "
                "keras.random.SeedGenerator, whose state is a buffer"
            )
        return Traced(program.results[: call.size], frozenset(call.updated), call, self._model)

    def function(self, _: Rebuild, traced: Traced, taken: Any, made: Any) -> _Packed:
        """Return the function of one signature, which takes and returns packed arrays."""
        program: Any = traced.call.program
        return _Packed(program, taken, made)

    def is_buffer(self, place: int) -> bool:
        """Return whether the operand at `place` is a buffer."""
        return len(self.parameters) <= place < len(self._own)

    def batched(self, function: _Packed, marks: Sequence[bool], size: int) -> _Packed:
        """Return the function mapped over axis 0 of the marked arguments."""
        return function.batched(marks, size)


class _Packed(Derivable):
    """A program as a function of packed NumPy arrays."""

    __name__ = "call"

    def __init__(self, program: Program, taken: Any, made: Any) -> None:
        self._program = program
        self._taken = taken
        self._made = made
        self._dtypes = [dtype.to("numpy") for _, dtype in program.forms]
        self._narrow = [dtype.to("numpy") for _, dtype in made.forms]

    def __call__(self, *packed: Any) -> Any:
        given = _cast(self._taken.unpack(packed), self._dtypes)
        operands = [native.convert(each, "tensorflow") for each in given]
        try:
            found = self._program.run(*operands)
        except tf.errors.OpError as error:
            raise _shortened(error) from None
        arrays = _cast([native.convert(each, "numpy") for each in found], self._narrow)
        return self._made.outcome(arrays, _join)

    def derive(self, wanted: Sequence[int]) -> _Packed:
        """Return the function from packed operands and cotangents to packed gradients."""
        moving, taken = self._made.moving(), self._taken
        needs = tuple(sorted(place for group in wanted for place in taken.groups[group]))
        program: Any = self._program.derivative(needs)
        return _Packed(program, taken + moving, taken.only(wanted))

    def batched(self, marks: Sequence[bool], size: int) -> _Packed:
        """Return the function mapped over axis 0 of the marked arrays."""
        axes: list[int | None] = [None] * len(self._taken.forms)
        for group, is_marked in zip(self._taken.groups, marks, strict=True):
            for place in group:
                axes[place] = 0 if is_marked else None
        program: Any = self._program.batched(tuple(axes), size)
        return _Packed(program, self._taken, self._made)


def _shortened(error: Any) -> Exception:
    """Return an error without its stack trace, since JAX shows only the start of a message."""
    why = error.message.rpartition("\n\n")[2].partition("\n\t [[{{")[0]
    made: Exception = type(error)(error.node_def, error.op, why)
    return made


_join = partial(np.concatenate, axis=-1)


def _cast(arrays: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    pairs = zip(arrays, dtypes, strict=True)
    return [each if each.dtype == dtype else each.astype(dtype) for each, dtype in pairs]
