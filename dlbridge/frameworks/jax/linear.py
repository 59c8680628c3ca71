"""A linear map that comes with its transpose, as JAX's own `linear_call`, but batches as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

try:
    from jax.extend.core import Primitive
except ImportError:  # before 0.4.36
    from jax.core import Primitive

Arrays = Sequence[Any]
Map = Callable[[Arrays, Arrays], Arrays]


class Linear:
    """`forward(kept, moving)`, linear in `moving`, and `backward(kept, cotangents)`."""

    def __init__(self, forward: Map, backward: Map) -> None:
        self.forward = forward
        self.backward = backward

    def __call__(self, kept: Arrays, moving: Arrays) -> list[Any]:
        """Apply the map."""
        found: list[Any] = _linear.bind(*kept, *moving, linear=self, count=len(kept))
        return found

    def flat(self, count: int) -> Callable[..., list[Any]]:
        """Return `forward` as a function of all arrays in a row."""
        return lambda *arrays: list(self.forward(arrays[:count], arrays[count:]))

    def batched(self, axes: Sequence[int | None], count: int) -> Linear:
        """Return the same for a batch, which comes out along axis 0."""
        kept_axes, moving_axes = list(axes[:count]), list(axes[count:])

        def forward(kept: Arrays, moving: Arrays) -> Arrays:
            mapped = jax.vmap(self.forward, in_axes=(kept_axes, moving_axes))
            found: Arrays = mapped(list(kept), list(moving))
            return found

        def backward(kept: Arrays, cotangents: Arrays) -> Arrays:
            mapped = jax.vmap(self.backward, in_axes=(kept_axes, 0))
            found = mapped(list(kept), list(cotangents))
            return [
                each.sum(0) if axis is None else jnp.moveaxis(each, 0, axis)
                for each, axis in zip(found, moving_axes, strict=True)
            ]

        return Linear(forward, backward)


# ---- the primitive -------------------------------------------------------------------------------


def _apply(*arrays: Any, linear: Linear, count: int) -> list[Any]:
    return linear.flat(count)(*arrays)


def _infer(*avals: Any, linear: Linear, count: int) -> list[Any]:
    structs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in avals]
    found = jax.eval_shape(linear.flat(count), *structs)
    return [jax.core.ShapedArray(each.shape, each.dtype) for each in found]


def _batch(arrays: Arrays, axes: Any, *, linear: Linear, count: int) -> Any:
    marks = [axis if isinstance(axis, int) else None for axis in axes]
    found = linear.batched(marks, count)(arrays[:count], arrays[count:])
    return found, [0] * len(found)


def _transpose(cotangents: Arrays, *arrays: Any, linear: Linear, count: int) -> list[Any]:
    wanted = [
        ad.instantiate_zeros(each) if isinstance(each, ad.Zero) else each for each in cotangents
    ]
    found = Linear(linear.backward, linear.forward)(arrays[:count], wanted)
    return [None] * count + found


def _differentiate(primals: Arrays, tangents: Arrays, *, linear: Linear, count: int) -> Any:
    """Keep the transpose where only `moving` changes; else JAX looks into `forward`."""
    outcome = linear(primals[:count], primals[count:])
    moving = [ad.instantiate_zeros(each) for each in tangents[count:]]
    if all(isinstance(each, ad.Zero) for each in tangents[:count]):
        return outcome, linear(primals[:count], moving)
    both = [*map(ad.instantiate_zeros, tangents[:count]), *moving]
    return jax.jvp(linear.flat(count), tuple(primals), tuple(both))


_linear = Primitive("dlbridge_linear")
_linear.multiple_results = True
_linear.def_impl(_apply)
_linear.def_abstract_eval(_infer)
batching.primitive_batchers[_linear] = _batch
ad.primitive_transposes[_linear] = _transpose
ad.primitive_jvps[_linear] = _differentiate
mlir.register_lowering(_linear, mlir.lower_fun(_apply, multiple_results=True))
