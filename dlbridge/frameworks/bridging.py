"""bridge: a whole module of one framework as a function, or a module, of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import adapter, exchange, trees
from dlbridge.exchange.context import Narrow
from dlbridge.exchange.protocol import describe, root_module

Params = dict[str, dict[str, Any]]
_WITHOUT_BRIDGE = frozenset(("tensorflow", "keras", "tf_keras"))  # where their models come from


def bridge(
    f: Any,
    /,
    to: object,
    *,
    params: Any = None,
    buffers: Any = None,
    mutable: bool = False,
    batch: Literal["sequential", "batched"] = "sequential",
    narrow: Narrow | None = None,
) -> Any:
    """Return a torch.nn.Module as a function for JAX, or a function of JAX as a torch.nn.Module.

    **`to="jax"`** returns (function, params). `function(params, *args, **kwargs)` calls the module
    with the arrays of `params` for its
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

    **`to="torch"`** returns a torch.nn.Module. `module(*args, **kwargs)` is
    `f(params, *args, **kwargs)`, with tensors of torch; JAX compiles it, once for each signature,
    and differentiates it. Floating and complex arrays of `params` are the module's parameters, its
    other arrays and those of `buffers` are buffers, by their paths in the trees; all of them are
    copies, since optimisers write into them. All other leaves are compiled in. Every call lends the
    memory of the tensors to JAX and takes its results, without a copy. Derivatives are of any
    order, torch.compile has the call as one operator, and torch.func.vmap is `jax.vmap`.

    Args:
        f: the module; all its tensors on one device, and without any it runs on that of the
            arguments. Or the function, which takes the tree `params`, then the tree `buffers` where
            there is one, then the arguments.
        to: "jax" or "torch".
        params: the tree of parameters of a function of JAX.
        buffers: a tree of arrays that are not trained; None for none.
        mutable: of a module, True returns (result, buffers), with the buffers as the call leaves
            them; False refuses a call that would change one. Of a function, True says that it
            returns (result, buffers), and a call writes them into the module's buffers.
        batch: how `jax.vmap` computes a batch of a module: "sequential", one by one, or "batched",
            by torch.func.vmap where the module writes no tensor and draws no random numbers.
        narrow: as of `convert`, for the parameters of a module.

    Raises:
        UnsupportedTypeError: `f` is neither a torch.nn.Module, for JAX, nor a function, for torch.
        ArgumentError: the target is another, a value is unknown, an argument is of the other
            direction, the module's parameters have no shape yet or are on several devices, or two
            arrays would have one name. Calls raise it as well, for tensors on two devices.
        ExchangeError: a parameter cannot be represented in the target.
    """
    target = adapter.target(to, "bridge")
    if trees.is_module(f):
        given = {"params": params is not None, "buffers": buffers is not None}
        _refuse(given, "is for a function of JAX; a torch.nn.Module has its own tensors")
        return _to_jax(f, to, target, mutable, batch, narrow)
    if target.name not in ("jax", "torch"):
        raise ArgumentError(
            "bridge: a torch.nn.Module goes to 'jax', a function of JAX to 'torch', got "
            f"to={target.name!r}"
        )
    if _WITHOUT_BRIDGE.intersection(map(root_module, type(f).__mro__)):
        raise UnsupportedTypeError(
            f"bridge: models of TensorFlow and Keras are not supported, got {describe(f)}; with "
            "the JAX backend of Keras, pass a function that calls model.stateless_call"
        )
    if target.name == "torch" and callable(f):
        given = {"narrow": narrow is not None, "batch": batch != "sequential"}
        _refuse(given, 'is for a torch.nn.Module, with to="jax"')
        return _to_torch(f, target, params, buffers, mutable)
    wanted = "function of JAX" if target.name == "torch" else "torch.nn.Module"
    raise UnsupportedTypeError(
        f"bridge: the first argument must be a {wanted}, got {describe(f)}; make a kernel of a "
        "function with dlbridge.wrap"
    )


def _refuse(given: dict[str, bool], why: str) -> None:
    for name, is_given in given.items():
        if is_given:
            raise ArgumentError(f"bridge: {name} {why}")


def _to_jax(
    f: Any, to: object, target: adapter.Framework, mutable: bool, batch: str, narrow: Narrow | None
) -> tuple[Callable[..., Any], Params]:
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


def _to_torch(f: Any, target: adapter.Framework, params: Any, buffers: Any, mutable: bool) -> Any:
    if params is None:
        raise ArgumentError(
            "bridge: a function of JAX needs params=, the tree of its parameters, which it takes "
            "first; () for a function without any"
        )
    if mutable and buffers is None:
        raise ArgumentError(
            "bridge: mutable=True needs buffers=, the tree of arrays that the function takes after "
            "its parameters and returns after its result"
        )
    target.import_module("bridge")
    adapter.adapter("jax").import_module("bridge")
    adapter.start(target)
    adapter.start(adapter.adapter("jax"))
    model = adapter.load_module("jax", "models").Model(f, params, buffers, mutable)
    return adapter.load_module("torch", "layers").Layer(model)
