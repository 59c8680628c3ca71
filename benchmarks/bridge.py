"""Calls of bridged modules, against the module's own call: at most 1.5 times it and 5 microseconds.

A module has two layers of `WIDTHS` units, for a batch of as many rows. Its own call is one of a
compiled function in JAX and TensorFlow, and eager in torch. In torch, gradients of models of JAX
and TensorFlow are returned, as these return theirs, or added to `.grad` by `.backward()`.
torch2jax and torch_jax_interop are timed in the same rounds where they are installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dlbridge
from benchmarks.pages import put, table
from benchmarks.timing import Effort, compare, describe_machine, render
from dlbridge.exchange import adapter

QUICK = Effort(rounds=3, round_ns=0.2e6)
# Many calls of each in a round: the first ones find nothing of theirs in the caches.
THOROUGH = Effort(rounds=101, round_ns=1.0e7)
WIDTHS = (8, 256)
FACTOR, MORE_NS = 1.5, 5e3  # the bar
PEERS = ("torch2jax", "torch_jax_interop")

Names = dict[str, Any]


class Row(NamedTuple):
    """One way of calling a module: in its own framework, bridged, and bridged by peers."""

    direction: str
    call: str
    own: str
    bridged: str
    peers: Mapping[str, str] = {}


ROWS = [
    Row("torch to JAX", "eager", "frozen(x)", "wait(function(params, jx))",
        {"torch2jax": "wait(t2j(jx, state_dict=weights))",
         "torch_jax_interop": "wait(interop(interop_params, jx))"}),
    Row("torch to JAX", "jax.jit", "frozen(x)", "wait(jitted(params, jx))",
        {"torch2jax": "wait(t2j_jitted(weights, jx))"}),
    Row("torch to JAX", "jax.jit of jax.vjp", "module(x).backward(x)",
        "wait(gradients(params, jx))", {"torch2jax": "wait(t2j_gradients(weights, jx))"}),
    Row("JAX to torch", "no parameter requires grad", "wait(apply(own, jx))", "layer_frozen(x)",
        {"torch_jax_interop": "wrapped_frozen(x)"}),
    Row("JAX to torch", "forward of training", "wait(apply_vjp(own, jx)[0])", "layer(x)",
        {"torch_jax_interop": "wrapped(x)"}),
    Row("JAX to torch", "forward and backward", "wait(pull(apply_vjp(own, jx)[1], jx))",
        "grad(layer(x), layer_weights, x)",
        {"torch_jax_interop": "grad(wrapped(x), wrapped_weights, x)"}),
    Row("JAX to torch", "forward and .backward()", "wait(pull(apply_vjp(own, jx)[1], jx))",
        "layer(x).backward(x)", {"torch_jax_interop": "wrapped(x).backward(x)"}),
    Row("JAX to torch", "torch.compile", "wait(apply(own, jx))", "layer_compiled(x)"),
    Row("TensorFlow to JAX", "eager", "tf_call(tx)", "wait(tf_function(tf_params, jx))"),
    Row("TensorFlow to JAX", "jax.jit", "tf_call(tx)", "wait(tf_jitted(tf_params, jx))"),
    Row("TensorFlow to torch", "no parameter requires grad", "tf_call(tx)", "tf_frozen(x)"),
    Row("TensorFlow to torch", "forward and backward", "tf_gradients(tx)",
        "grad(tf_layer(x), tf_weights, x)"),
    Row("TensorFlow to torch", "forward and .backward()", "tf_gradients(tx)",
        "tf_layer(x).backward(x)"),
]  # fmt: skip


def run(*, quick: bool) -> dict[str, Any]:
    """Measure and print all rows; return the figures, times in nanoseconds."""
    figures = []
    for width in WIDTHS:
        names = make_names(width)
        for row in ROWS:
            if is_possible(row.own, names) and is_possible(row.bridged, names):
                figures.append(measure(row, width, names, QUICK if quick else THOROUGH))
                print(row.direction, row.call, width, "...", flush=True)
    print_figures(figures)
    return {"machine": describe_machine(), "rows": figures}


# ---- names of the statements ---------------------------------------------------------------------


def make_names(width: int) -> Names:
    """Return the values of the names in the statements; those of missing packages are left out."""
    x = np.random.default_rng(0).standard_normal((width, width), np.float32)
    names: Names = {}
    if adapter.is_installed("torch"):
        names |= {"x": dlbridge.to_torch(x).clone()}  # whose memory is aligned
    if adapter.is_installed("jax"):
        names |= make_jax_names(x)
    if adapter.is_installed("tensorflow"):
        names |= make_tensorflow_names(x)
    makers: dict[Callable[[Any, Names], Names], tuple[str, ...]] = {
        make_torch_to_jax: ("torch", "jax"),
        make_jax_to_torch: ("torch", "jax"),
        make_tensorflow_to_jax: ("tensorflow", "jax"),
        make_tensorflow_to_torch: ("tensorflow", "torch"),
        make_torch2jax: ("torch", "jax", "torch2jax"),
        make_torch_jax_interop: ("torch", "jax", "torch_jax_interop"),
    }
    for make, needs in makers.items():
        if all(is_importable(each) for each in needs):
            names |= make(x, names)
    return names


def is_importable(name: str) -> bool:
    """Return whether a package and everything it imports are installed."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def make_jax_names(x: Any) -> Names:
    """Return a compiled function of JAX, its parameters, and its derivative in two parts."""
    import jax

    def apply(params: Any, x: Any) -> Any:
        for layer in params:
            x = x @ layer["w"] + layer["b"]
        return x

    width = len(x)
    random = np.random.default_rng(1)
    own = [
        {
            "w": jax.numpy.asarray(random.standard_normal((width, width), np.float32) / width),
            "b": jax.numpy.zeros(width),
        }
        for _ in range(2)
    ]
    return {
        "jx": jax.numpy.asarray(x),
        "own": own,
        "function_of_jax": apply,
        "apply": jax.jit(apply),
        "apply_vjp": jax.jit(lambda params, x: jax.vjp(lambda own: apply(own, x), params)),
        "pull": jax.jit(lambda pull, cotangent: pull(cotangent)),
        "wait": jax.block_until_ready,
    }


def make_tensorflow_names(x: Any) -> Names:
    """Return a tf.Module, its compiled call, and what computes its results and gradients."""
    import tensorflow as tf

    class Layers(tf.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.w = [tf.Variable(tf.random.normal((width, width)) / width) for _ in range(2)]
            self.b = [tf.Variable(tf.zeros(width)) for _ in range(2)]

        def __call__(self, x: Any) -> Any:
            for w, b in zip(self.w, self.b, strict=True):
                x = x @ w + b
            return x

    layers = Layers(len(x))

    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = layers(x)
        return y, tape.gradient(y, layers.trainable_variables, output_gradients=x)

    tx = tf.constant(x)
    return {
        "tx": tx,
        "layers_of_tensorflow": layers,
        "tf_call": tf.function(layers),
        "tf_gradients": tf.function(gradients),
    }


def make_torch_to_jax(x: Any, _: Names) -> Names:
    """Return a module of torch, and its bridged function in JAX."""
    import jax

    module = make_module(len(x))
    frozen = make_module(len(x)).requires_grad_(False)
    function, params = dlbridge.bridge(module, to="jax")
    return {
        "module": module,
        "frozen": frozen,
        "function": function,
        "params": params,
        "jitted": jax.jit(function),
        "gradients": jax.jit(make_gradients(function)),
    }


def make_gradients(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function from parameters and an argument to the gradients of the parameters."""
    import jax

    def gradients(params: Any, x: Any) -> Any:
        if "buffers" not in params:
            return jax.vjp(lambda own: function(own, x), params)[1](x)
        weights = params["params"]
        return jax.vjp(lambda own: function({**params, "params": own}, x), weights)[1](x)

    return gradients


def make_module(width: int) -> Any:
    """Return two layers of torch."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, width))


def make_jax_to_torch(_: Any, names: Names) -> Names:
    """Return the bridged modules of the function of JAX."""
    return make_layers("layer", names["function_of_jax"], names["own"])


def make_layers(name: str, f: Any, params: Any) -> Names:
    """Return three bridged modules: trained, frozen, and both frozen and compiled."""
    import torch

    def make(*, trained: bool) -> Any:
        return dlbridge.bridge(f, to="torch", params=params).requires_grad_(trained)

    compiled = torch.compile(make(trained=False), fullgraph=True, backend="aot_eager")
    layer = make(trained=True)
    return {
        "grad": torch.autograd.grad,
        name: layer,
        f"{name}_weights": list(layer.parameters()),
        f"{name}_frozen": make(trained=False),
        f"{name}_compiled": compiled,
    }


def make_tensorflow_to_jax(_: Any, names: Names) -> Names:
    """Return the bridged function of the module of TensorFlow in JAX."""
    import jax

    function, params = dlbridge.bridge(names["layers_of_tensorflow"], to="jax")
    return {"tf_function": function, "tf_params": params, "tf_jitted": jax.jit(function)}


def make_tensorflow_to_torch(_: Any, names: Names) -> Names:
    """Return the bridged modules of the module of TensorFlow in torch."""
    import torch

    layers = names["layers_of_tensorflow"]
    bridged = dlbridge.bridge(layers, to="torch")
    return {
        "grad": torch.autograd.grad,
        "tf_layer": bridged,
        "tf_weights": list(bridged.parameters()),
        "tf_frozen": dlbridge.bridge(layers, to="torch").requires_grad_(False),
    }


def make_torch2jax(x: Any, _: Names) -> Names:
    """Return the same module of torch, translated into JAX."""
    import jax
    import torch2jax  # type: ignore[import-not-found,unused-ignore]

    module = make_module(len(x))
    translated = torch2jax.t2j(module)
    weights = {name: torch2jax.t2j(each) for name, each in module.named_parameters()}

    def call(weights: Any, x: Any) -> Any:
        return translated(x, state_dict=weights)

    return {
        "t2j": translated,
        "weights": weights,
        "t2j_jitted": jax.jit(call),
        "t2j_gradients": jax.jit(make_gradients(call)),
    }


def make_torch_jax_interop(x: Any, names: Names) -> Names:
    """Return the modules that torch_jax_interop makes."""
    import torch_jax_interop  # type: ignore[import-not-found,unused-ignore]

    function, params = torch_jax_interop.torch_module_to_jax(make_module(len(x)), names["x"])

    def wrap() -> Any:
        return torch_jax_interop.WrappedJaxFunction(names["apply"], names["own"], clone_params=True)

    wrapped = wrap()
    return {
        "interop": function,
        "interop_params": params,
        "wrapped": wrapped,
        "wrapped_weights": list(wrapped.parameters()),
        "wrapped_frozen": wrap().requires_grad_(False),
    }


def is_possible(statement: str, names: Names) -> bool:
    """Return whether everything that a statement needs is installed."""
    return set(compile(statement, "", "eval").co_names) <= {*names, "backward"}


# ---- measuring -----------------------------------------------------------------------------------


def measure(row: Row, width: int, names: Names, effort: Effort) -> dict[str, Any]:
    """Measure a row."""
    peers = {name: text for name, text in row.peers.items() if is_possible(text, names)}
    own, bridged, *others = compare([row.own, row.bridged, *peers.values()], names, effort)
    bar = FACTOR * own + MORE_NS
    return {
        "direction": row.direction,
        "call": row.call,
        "width": width,
        "own_ns": round(own),
        "bridged_ns": round(bridged),
        "bar_ns": round(bar),
        "reached": bridged <= bar,
        "peers_ns": dict(zip(peers, map(round, others), strict=True)),
    }


def print_figures(figures: list[dict[str, Any]]) -> None:
    """Print the table."""
    absent = {name for name in PEERS if not is_importable(name)}
    can = {(row.direction, row.call): row.peers for row in ROWS}

    def peer(name: str, row: dict[str, Any]) -> str:
        if name not in can[row["direction"], row["call"]]:
            return "cannot"
        return "not installed" if name in absent else f"{row['peers_ns'][name] / 1e3:,.1f}"

    rows = [
        [
            row["direction"],
            row["call"],
            f"{row['width']} x {row['width']}",
            f"{row['own_ns'] / 1e3:,.1f}",
            f"{row['bridged_ns'] / 1e3:,.1f}",
            f"{row['bridged_ns'] / row['own_ns']:.2f}",
            f"{row['bar_ns'] / 1e3:,.1f}",
            "yes" if row["reached"] else "NO",
            *(peer(name, row) for name in PEERS),
        ]
        for row in figures
    ]
    print("\nMicroseconds for one call")
    header = ["bridge", "call", "layers", "own", "bridged", "ratio", "at most", "reached", *PEERS]
    print(render(header, rows))


def write_pages(figures: dict[str, Any], root: Path) -> None:
    """Put the table into docs/performance.md; what misses the bar is bold."""
    header = ["", "call", "layers", "own", "bridged", "at most"]
    rows, last = [], ""
    directions = list(dict.fromkeys(row.direction for row in ROWS))
    for row in sorted(figures["rows"], key=lambda row: directions.index(row["direction"])):
        own, bridged, bar = (
            f"{row[name] / 1e3:,.0f}" for name in ("own_ns", "bridged_ns", "bar_ns")
        )
        shown = bridged if row["reached"] else f"**{bridged}**"
        first = "" if row["direction"] == last else row["direction"]
        size = f"{row['width']} x {row['width']}"
        rows.append([first, _CODE.get(row["call"], row["call"]), size, own, shown, bar])
        last = row["direction"]
    put(root / "docs/performance.md", "benchmark bridge", table(header, rows, words=3))


_CODE = {
    "jax.jit": "`jax.jit`",
    "jax.jit of jax.vjp": "`jax.jit` of `jax.vjp`",
    "torch.compile": "`torch.compile`",
    "forward and .backward()": "forward and `.backward()`",
}
