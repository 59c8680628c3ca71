"""bridge: a whole module of one framework as a function, or a module, of another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
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
    """Return a model of another framework as a function for JAX, or as a torch.nn.Module.

    **`to="jax"`** returns (function, params) of a torch.nn.Module, of a model or layer of Keras 3
    on TensorFlow, of a tf.Module, or of a function of TensorFlow.
    `function(params, *args, **kwargs)` calls it with the arrays of `params` in place of its
    tensors, and returns its results as JAX arrays. It works inside `jax.jit`, `jax.grad`,
    `jax.vmap` and `jax.lax.scan`; the other framework computes it and differentiates it. Shapes and
    dtypes are found once for each signature, on fake tensors of torch or by TensorFlow's tracing.
    `params` is `{"params": {name: array}, "buffers": {name: array}}` and shares the memory of the
    tensors; a shared parameter appears once. Differentiate with respect to `params["params"]`:
    buffers are constants, whose gradients are zero.

    The function captures a torch.nn.Module as it is now, with its mode and its hooks. It computes
    in the torch.autocast in which it is called, or is traced by JAX. It is pure: new values of
    buffers are returned, and torch draws random numbers from a seed that comes from `rng=`, a JAX
    key: `jax.random.bits(key, dtype="uint32")`. A torch.nn.Module that writes into any other tensor
    that outlives the call, such as a plain attribute, is refused.

    Results are copied into JAX's memory. Arguments are shared; if there are more than 511 tensors,
    the smallest are packed into one copy per dtype. 64-bit integers are 32 bits wide
    where JAX has none. A backward pass runs the model once more.

    **`to="torch"`** returns a torch.nn.Module of a function of JAX or TensorFlow, a tf.Module, or
    a model or layer of Keras 3 on TensorFlow. Of a function, `module(*args, **kwargs)` is
    `f(params, *args, **kwargs)` with tensors of torch; the other framework compiles it, once for
    each signature, and differentiates it. Parameters and buffers are copies, since optimisers write
    into them. All other leaves are compiled in.

    Every call lends the memory of the tensors to the other framework and takes its results, without
    a copy; JAX computes on the CPU in the thread of the call. Derivatives are of any order,
    torch.compile has the call as one operator, and torch.func.vmap is `jax.vmap`, or
    `tf.vectorized_map`. Keras gets the mode of the torch module as `training=`.

    A function is TensorFlow's if its trees hold one of its tensors, or if tf.function made it.
    Floating and
    complex arrays of `params` are parameters, its other arrays and those of `buffers` are buffers,
    by their paths in the trees. Of a tf.Module and of Keras, trainable variables are parameters and
    the others buffers: by the paths of attributes, and by those of Keras without the name of the
    model. A tf.Module computes in a private copy, one call at a time.

    Args:
        f: the module; all its tensors on one device, and without any it runs on that of the
            arguments. Or the function, which takes the tree `params`, then the tree `buffers` where
            there is one, then the arguments. Or the model, built, or the tf.Module.
        to: "jax" or "torch".
        params: the tree of parameters of a function.
        buffers: a tree of arrays that are not trained; None for none.
        mutable: True allows a call that changes buffers, and False refuses it. For JAX, the
            function then returns (result, buffers), with the buffers as the call leaves them; a
            torch.nn.Module writes them into its own. For a function, True means that it
            returns (result, buffers) itself.
        batch: for JAX, how `jax.vmap` computes a batch: "sequential", one by one, or "batched",
            by torch.func.vmap or tf.vectorized_map where the model writes no tensor and draws no
            random numbers.
        narrow: for JAX, as of `convert`, for the parameters.

    Raises:
        UnsupportedTypeError: `f` cannot be bridged to this target.
        ArgumentError: the target is another, a value is unknown, an argument is of the other
            direction, the module's parameters have no shape yet or are on several devices, or two
            arrays would have one name. Calls raise it as well, for tensors on two devices, and for
            what TensorFlow computes in a shape that depends on values.
        ExchangeError: a parameter cannot be represented in the target.
    """
    target = adapter.target(to, "bridge")
    if trees.is_module(f):
        given = {"params": params is not None, "buffers": buffers is not None}
        _refuse(given, "is for a function; a torch.nn.Module has its own tensors")
        if target.name != "jax":
            raise ArgumentError(f"bridge: a torch.nn.Module goes to 'jax', got to={target.name!r}")
        make = partial(_module_of_torch, f)
        return _to_jax(make, to, target, mutable, batch, narrow)
    if target.name not in ("jax", "torch"):
        raise ArgumentError(
            "bridge: a torch.nn.Module goes to 'jax', a function of JAX to 'torch', and a function "
            "of TensorFlow, a tf.Module or a Keras model to 'jax' or 'torch', got "
            f"to={target.name!r}"
        )
    source = _source_of(f, params, buffers)
    if source is None or (source == "jax" and target.name == "jax"):
        wanted = "a function of JAX or TensorFlow"
        if target.name == "jax":
            wanted = (
                "a torch.nn.Module, a model of TensorFlow, or a function of TensorFlow with "
                "tensors in params=, or made by tf.function"
            )
        raise UnsupportedTypeError(
            f"bridge: the first argument must be {wanted}, got {describe(f)}; make a kernel of a "
            "function with dlbridge.wrap"
        )
    if target.name == "torch":
        given = {"narrow": narrow is not None, "batch": batch != "sequential"}
        _refuse(given, 'is for to="jax"')
    if _is_model(f):
        given = {"params": params is not None, "buffers": buffers is not None}
        _refuse(given, f"is for a function; {describe(f)} has its own variables")
        _check_model(f)
    else:
        _check_trees(params, buffers, mutable)
    if target.name == "torch":
        return _to_torch(f, target, source, params, buffers, mutable)
    make = partial(_module_of_tensorflow, f, params, buffers, mutable)
    return _to_jax(make, to, target, mutable, batch, narrow)


def _source_of(f: Any, params: Any, buffers: Any) -> str | None:
    """Return the framework of a function or model, "jax" or "tensorflow"; None for others."""
    if _is_model(f):
        return "tensorflow"
    if not callable(f):
        return None
    leaves = trees.tensors_of((params, buffers), keeps_unknown=True)
    is_tensorflow = _is_of_tensorflow(f) or any(_is_of_tensorflow(leaf) for _, leaf in leaves)
    return "tensorflow" if is_tensorflow else "jax"


def _is_model(f: Any) -> bool:
    return _is_of_tensorflow(f) and not _is_function_of_tensorflow(f)


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


def _check_trees(params: Any, buffers: Any, mutable: bool) -> None:
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


def _to_jax(
    make: Callable[[], Any],
    to: object,
    target: adapter.Framework,
    mutable: bool,
    batch: str,
    narrow: Narrow | None,
) -> tuple[Callable[..., Any], Params]:
    if batch not in ("sequential", "batched"):
        raise ArgumentError(f"bridge: batch must be 'sequential' or 'batched', got {batch!r}")
    exchange.check("bridge", to, {"narrow": narrow})
    target.import_module("bridge")
    module = make()
    params = {
        "params": trees.convert_tree(module.parameters, target.name, grad="detach", narrow=narrow),
        "buffers": trees.convert_tree(module.buffers, target.name, grad="detach", narrow="checked"),
    }
    functions = adapter.load_module(target.name, "functions")
    function: Callable[..., Any] = functions.make_function(module, mutable, batch == "batched")
    return function, params


def _module_of_torch(f: Any) -> Any:
    return adapter.load_module("torch", "modules").Module(f)


def _module_of_tensorflow(f: Any, params: Any, buffers: Any, mutable: bool) -> Any:
    source = adapter.adapter("tensorflow")
    source.import_module("bridge")
    adapter.start(source)
    model = adapter.load_module("tensorflow", "models").make_model(f, params, buffers, mutable)
    return adapter.load_module("tensorflow", "modules").Module(model)


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
