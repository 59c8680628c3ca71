"""bridge: a whole module of one framework as a function of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import adapter, exchange, trees
from dlbridge.exchange.context import Narrow
from dlbridge.exchange.protocol import describe

Params = dict[str, dict[str, Any]]


def bridge(
    f: Any,
    /,
    to: object,
    *,
    mutable: bool = False,
    batch: Literal["sequential", "batched"] = "sequential",
    narrow: Narrow | None = None,
) -> tuple[Callable[..., Any], Params]:
    """Return a torch.nn.Module as a function for JAX, and its parameters and buffers.

    `function(params, *args, **kwargs)` calls the module with the arrays of `params` for its
    tensors, and returns what the module returns, with arrays of JAX. It works inside of `jax.jit`,
    `jax.grad`, `jax.vmap` and `jax.lax.scan`; torch computes it and differentiates it. Shapes and
    dtypes are found on fake tensors, once for each signature. `params` is
    `{"params": {name: array}, "buffers": {name: array}}` over the memory of the module's tensors; a
    shared parameter is there once. Differentiate with respect to `params["params"]`.

    The function is of the module as it is now: in training or evaluation, with its hooks. It is
    pure: what the module writes into its buffers is returned, and its random numbers come from
    `rng=`, a key of JAX (`jax.random.bits(key, dtype="uint32")` is the seed).

    Results are copied into memory of JAX; arguments are shared, except that the smallest of more
    than about a dozen tensors are passed in one packed copy for each dtype. 64-bit integers are 32
    bits wide where JAX has none. A backward pass runs the module once more.

    Args:
        f: the module; all its tensors on one device.
        to: "jax".
        mutable: True returns (result, buffers), with the buffers as the call leaves them. False
            refuses a call that would change one.
        batch: how `jax.vmap` computes a batch: "sequential", one by one, or "batched", by
            torch.func.vmap where the module writes no tensor and draws no random numbers.
        narrow: as of `convert`, for the parameters.

    Raises:
        UnsupportedTypeError: `f` is no torch.nn.Module.
        ArgumentError: the target is not JAX, a value is unknown, the module's parameters have no
            shape yet or are on several devices.
        ExchangeError: a parameter cannot be represented in JAX.
    """
    target = adapter.target(to, "bridge")
    if not trees.is_module(f):
        raise UnsupportedTypeError(
            f"bridge: the first argument must be a torch.nn.Module, got {describe(f)}; make a "
            "kernel of a function with dlbridge.wrap"
        )
    if target.name != "jax":
        raise ArgumentError(f"bridge: a torch.nn.Module goes to 'jax', got to={target.name!r}")
    if batch not in ("sequential", "batched"):
        raise ArgumentError(f"bridge: batch must be 'sequential' or 'batched', got {batch!r}")
    exchange.check("bridge", to, {"narrow": narrow})
    target.import_module("bridge")
    module = adapter.load_module("torch", "modules").Module(f)
    params = {
        "params": trees.convert_tree(module.parameters, target.name, grad="detach", narrow=narrow),
        "buffers": trees.convert_tree(module.buffers, target.name, grad="detach", narrow="checked"),
    }
    functions = adapter.load_module(target.name, "functions")
    function: Callable[..., Any] = functions.make_function(module, mutable, batch == "batched")
    return function, params
