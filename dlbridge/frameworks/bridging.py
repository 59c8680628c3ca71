"""bridge: a whole module of one framework as a function, or a module, of another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import adapter, exchange, trees
from dlbridge.exchange.context import Narrow
from dlbridge.exchange.protocol import describe, root_module

Params = dict[str, dict[str, Any]]
_TENSORFLOW = frozenset(("tensorflow", "keras", "tf_keras"))  # its models and tensors


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
    """Return a torch.nn.Module as a function for JAX, or a model of another framework as one.

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

    **`to="torch"`** returns a torch.nn.Module of a function of JAX or TensorFlow, a tf.Module, or
    a model or layer of Keras 3 on TensorFlow. Of a function, `module(*args, **kwargs)` is
    `f(params, *args, **kwargs)` with tensors of torch; the other framework compiles it, once for
    each signature, and differentiates it. It is TensorFlow's if a leaf of a tree is, or if
    tf.function made it. Floating and complex arrays of `params` are the module's parameters, its
    other arrays and those of `buffers` are buffers, by their paths in the trees. Of a tf.Module and
    of Keras, trainable variables are parameters and the others buffers: by the paths of attributes,
    and by those of Keras without the name of the model. All of them are copies, since optimisers
    write into them. All other leaves are compiled in.

    Every call lends the memory of the tensors to the other framework and takes its results, without
    a copy. Derivatives are of any order, torch.compile has the call as one operator, and
    torch.func.vmap is `jax.vmap`, or `tf.vectorized_map`. A tf.Module computes in a private copy,
    one call at a time. Keras gets the mode of the torch module as `training=`.

    Args:
        f: the module; all its tensors on one device, and without any it runs on that of the
            arguments. Or the function, which takes the tree `params`, then the tree `buffers` where
            there is one, then the arguments. Or the model, built, or the tf.Module.
        to: "jax" or "torch".
        params: the tree of parameters of a function.
        buffers: a tree of arrays that are not trained; None for none.
        mutable: of a module, True returns (result, buffers), with the buffers as the call leaves
            them; False refuses a call that would change one. Of a function, True says that it
            returns (result, buffers), and a call writes them into the module's buffers. Of a
            tf.Module or Keras model, True writes what a call assigns into the buffers.
        batch: how `jax.vmap` computes a batch of a module: "sequential", one by one, or "batched",
            by torch.func.vmap where the module writes no tensor and draws no random numbers.
        narrow: as of `convert`, for the parameters of a module.

    Raises:
        UnsupportedTypeError: `f` is neither a torch.nn.Module, for JAX, nor a function or model
            of JAX, TensorFlow or Keras, for torch.
        ArgumentError: the target is another, a value is unknown, an argument is of the other
            direction, the module's parameters have no shape yet or are on several devices, or two
            arrays would have one name. Calls raise it as well, for tensors on two devices, and for
            what TensorFlow computes in a shape that depends on values.
        ExchangeError: a parameter cannot be represented in the target.
    """
    target = adapter.target(to, "bridge")
    if trees.is_module(f):
        given = {"params": params is not None, "buffers": buffers is not None}
        _refuse(given, "is for a function of JAX; a torch.nn.Module has its own tensors")
        return _to_jax(f, to, target, mutable, batch, narrow)
    if target.name not in ("jax", "torch"):
        raise ArgumentError(
            "bridge: a torch.nn.Module goes to 'jax', a function of JAX or TensorFlow, a tf.Module "
            f"or a Keras model to 'torch', got to={target.name!r}"
        )
    is_model = _is_of_tensorflow(f) and not _is_function_of_tensorflow(f)
    if target.name == "torch" and (is_model or callable(f)):
        given = {"narrow": narrow is not None, "batch": batch != "sequential"}
        _refuse(given, 'is for a torch.nn.Module, with to="jax"')
        if is_model:
            given = {"params": params is not None, "buffers": buffers is not None}
            _refuse(given, f"is for a function; {describe(f)} has its own variables")
            _check_model(f)
            return _to_torch(f, target, "tensorflow", None, None, mutable)
        return _function_to_torch(f, target, params, buffers, mutable)
    if _is_of_tensorflow(f):
        raise UnsupportedTypeError(
            f"bridge: models of TensorFlow and Keras go to 'torch' alone, got {describe(f)} and "
            f"to={target.name!r}; with the JAX backend of Keras, call model.stateless_call in JAX"
        )
    wanted = "function of JAX or TensorFlow" if target.name == "torch" else "torch.nn.Module"
    raise UnsupportedTypeError(
        f"bridge: the first argument must be a {wanted}, got {describe(f)}; make a kernel of a "
        "function with dlbridge.wrap"
    )


def _is_of_tensorflow(x: object) -> bool:
    return not _TENSORFLOW.isdisjoint(map(root_module, type(x).__mro__))


def _is_function_of_tensorflow(f: Any) -> bool:
    """Return whether an object of TensorFlow is a function: of tf.function, or of a SavedModel."""
    return not hasattr(f, "stateless_call") and not _is_module_of_tensorflow(f)


def _is_module_of_tensorflow(f: object) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(f, tensorflow.Module)


def _check_model(model: Any) -> None:
    """Refuse models of Keras that compute in another framework."""
    if _is_module_of_tensorflow(model):
        return
    backend = sys.modules["keras"].backend.backend()
    if backend != "tensorflow":
        raise UnsupportedTypeError(
            f"bridge: {describe(model)} computes in {backend}; with the JAX backend of Keras, pass "
            "a function that calls model.stateless_call"
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


def _function_to_torch(
    f: Any, target: adapter.Framework, params: Any, buffers: Any, mutable: bool
) -> Any:
    if params is None:
        raise ArgumentError(
            "bridge: a function needs params=, the tree of its parameters, which it takes first; "
            "() for a function without any"
        )
    if mutable and buffers is None:
        raise ArgumentError(
            "bridge: mutable=True needs buffers=, the tree of arrays that the function takes after "
            "its parameters and returns after its result"
        )
    leaves = trees.tensors_of((params, buffers), keeps_unknown=True)
    is_tensorflow = _is_of_tensorflow(f) or any(_is_of_tensorflow(leaf) for _, leaf in leaves)
    return _to_torch(f, target, "tensorflow" if is_tensorflow else "jax", params, buffers, mutable)


def _to_torch(
    f: Any, target: adapter.Framework, source: str, params: Any, buffers: Any, mutable: bool
) -> Any:
    target.import_module("bridge")
    adapter.adapter(source).import_module("bridge")
    adapter.start(target)
    adapter.start(adapter.adapter(source))
    models = adapter.load_module(source, "models")
    return adapter.load_module("torch", "layers").Layer(
        models.make_model(f, params, buffers, mutable)
    )
