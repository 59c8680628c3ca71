"""The collectives as a primitive of JAX, ordered among themselves and the user's ordered callbacks.

XLA may run what is independent in any order, and differently on each rank: the token of JAX's
ordered callbacks keeps the collectives in the order of the program.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from dlbridge.errors import ArgumentError
from dlbridge.mpi.linear import Parameters, result_shape, run, transpose


def is_needed(x: Any, is_plain: bool) -> bool:
    """Return whether a value is one of JAX, which may be traced or differentiated.

    Outside of programs the operator is the plain call. A call with arguments that only that has,
    of a value which is not traced, is made at once.
    """
    return isinstance(x, jax.core.Tracer if is_plain else jax.Array)


def call(x: Any, what: Parameters) -> Any:
    """Make the operator part of what is traced."""
    return _collective.bind(x, what=what)


_collective = Primitive("dlbridge_mpi")
(_ORDERED,) = jax.make_jaxpr(lambda x: io_callback(abs, x, x, ordered=True))(np.float32(0)).effects


def _evaluate(x: Any, *, what: Parameters) -> Any:
    return run(x, what)


def _infer(x: Any, *, what: Parameters) -> Any:
    return jax.core.ShapedArray(result_shape(x.shape, what), x.dtype), {_ORDERED}


def _lower(context: Any, x: Any, *, what: Parameters) -> Any:
    def callback(value: Any) -> tuple[Any]:
        return (np.asarray(run(np.asarray(value), what)),)

    results, token, _ = mlir.emit_python_callback(
        context, callback, context.tokens_in.get(_ORDERED), [x], context.avals_in,
        context.avals_out, has_side_effect=True, returns_token=True,
    )  # fmt: skip
    context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({_ORDERED: token})))
    return results


def _push_forward(primals: Any, tangents: Any, *, what: Parameters) -> Any:
    (x,), (tangent,) = primals, tangents
    if type(tangent) is ad.Zero:
        result = _collective.bind(x, what=what)
        return result, ad.Zero.from_primal_value(result)
    transpose(what)  # refuse before any rank waits
    return _collective.bind(x, what=what), _collective.bind(tangent, what=what)


def _pull_back(given: Any, _: Any, *, what: Parameters) -> Any:
    # The other ranks make the call, so zeros are sent like everything else.
    return (_collective.bind(ad.instantiate_zeros(given), what=transpose(what)),)


def _batch(values: Any, dimensions: Any, *, what: Parameters) -> Any:
    if what.name not in ("allreduce", "bcast", "reduce"):
        raise ArgumentError(f"{what.name}: jax.vmap is not supported; call it outside of vmap")
    return _collective.bind(values[0], what=what), dimensions[0]


_collective.def_impl(_evaluate)
_collective.def_effectful_abstract_eval(_infer)
mlir.register_lowering(_collective, _lower, cacheable=False)
ad.primitive_jvps[_collective] = _push_forward
ad.primitive_transposes[_collective] = _pull_back
batching.primitive_batchers[_collective] = _batch
