"""The call of a kernel: what dlbridge adds to a kernel that does nothing, against its peers.

Ours and each peer's statement run in turn in one process. A call inside a compiled graph is the
slope between a chain of many calls and a chain of one.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import find_spec, module_from_spec
from itertools import chain as join
from itertools import cycle
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

import dlbridge
from benchmarks.timing import QUICK, THOROUGH, Effort, compare, describe_machine, render

CHAIN = 51
MANY = 64  # results of one program
SIZE = 4
SIZES = (4, 5, 6)  # of tensors that take turns


class Row(NamedTuple):
    """One comparison: what it is of, our statement, the peer's, and the ratio to reach."""

    what: str
    ours: str
    against: str
    peer: str
    target: float | None = None


class Slope(NamedTuple):
    """The same inside a graph: the chains are found by these keys in the table of names."""

    what: str
    ours: str
    against: str
    peer: str
    target: float | None = None


EMPTY, TVM_FFI = "empty builtin", "tvm-ffi"
ROWS = [
    Row("numpy", "numpy_noop(a, b, c)", EMPTY, "empty(a, b, c)", 2.5),
    Row("numpy", "numpy_noop(a, b, c)", TVM_FFI, "tvm_noop(a, b, c)", 0.15),
    Row("numpy, without a schema", "numpy_bare(a, b, c)", EMPTY, "empty(a, b, c)", 2.5),
    Row("numpy, without a schema", "numpy_bare(a, b, c)", TVM_FFI, "tvm_noop(a, b, c)", 0.15),
    Row("torch eager fast path", "torch_noop(t, u, v)", EMPTY, "empty(t, u, v)", 8),
    Row("torch eager fast path", "torch_noop(t, u, v)", TVM_FFI, "tvm_noop(t, u, v)", 0.6),
    Row("torch eager fast path", "torch_noop(t, u, v)", "torch.ops.aten.add.out",
        "torch_ops_add(t, u, out=v)", 1),
    Row("jax arrays, direct", "jax_look(j, k, l)", EMPTY, "empty(j, k, l)", 45),
    Row("jax arrays, direct", "jax_look(j, k, l)", TVM_FFI, "tvm_noop(j, k, l)", 0.25),
    Row("jax arrays, direct, without a schema", "jax_bare(j, k, l)", TVM_FFI, "tvm_noop(j, k, l)",
        0.25),
    Row("torch operator, destination-passing", "operator(t, u, v)", "torch.add(out=)",
        "torch_add(t, u, out=v)", 1.3),
    Row("whole jax.jit call", "jitted(j, k)", "native jitted add", "jitted_add(j, k)", 1.1),
    Row("to_pytorch_func(tvm_module)", "ours_of_tvm(p, q, r)", "TVM's to_pytorch_func",
        "tvm_of_tvm(p, q, r)", 0.4),
    # Calls that are not all alike; tvm-ffi refuses read-only arrays.
    Row("numpy, a read-only input", "numpy_noop(d, b, c)", EMPTY, "empty(d, b, c)"),
    Row("numpy, a strided input", "numpy_noop(s, b, c)", TVM_FFI, "tvm_noop(s, b, c)"),
    Row("numpy, 1,000 arrays in turn", "numpy_noop(next(arrays), b, c)", TVM_FFI,
        "tvm_noop(next(arrays), b, c)"),
    Row("numpy, 3 shapes in turn", "numpy_noop(*next(shapes))", TVM_FFI, "tvm_noop(*next(shapes))"),
    Row("numpy, 8 kernels in turn", "next(eight)(a, b, c)", TVM_FFI, "next(tvm_eight)(a, b, c)"),
    Row("numpy, 2 threads", "in_threads(numpy_noop, a, b, c)", TVM_FFI,
        "in_threads(tvm_noop, a, b, c)"),
    Row("torch, a strided input", "torch_noop(w, u, v)", TVM_FFI, "tvm_noop(w, u, v)"),
    Row("torch, 1,000 tensors in turn", "torch_noop(next(tensors), u, v)", TVM_FFI,
        "tvm_noop(next(tensors), u, v)"),
    Row("torch, 3 shapes in turn", "torch_noop(*next(sizes))", TVM_FFI, "tvm_noop(*next(sizes))"),
    Row("torch, 2 threads", "in_threads(torch_noop, t, u, v)", TVM_FFI,
        "in_threads(tvm_noop, t, u, v)"),
    Row("jax, 1,000 arrays in turn", "jax_look(next(values), k, l)", TVM_FFI,
        "tvm_noop(next(values), k, l)"),
    Row("jax, without a schema, a new result", "jax_new(j, k, l)", TVM_FFI, "tvm_noop(j, k, l)"),
    # What a new array alone costs in jaxlib: the least that a kernel with a result can take.
    Row("jax, a new array over memory that is there", "jax_import(own.__dlpack__(), cpu, None)",
        TVM_FFI, "tvm_noop(j, k, l)"),
    Row("jax, a new array object around an array", "jax_array(aval, sharding, [j], False, True)",
        TVM_FFI, "tvm_noop(j, k, l)"),
    Row("jax, one of 64 new results of a program", "next(new_arrays)", TVM_FFI,
        "tvm_noop(j, k, l)"),
    # For information.
    Row("numpy, GIL released", "numpy_released(a, b, c)", EMPTY, "empty(a, b, c)"),
    Row("torch eager, GIL released", "torch_released(t, u, v)", EMPTY, "empty(t, u, v)"),
    Row("torch, without a schema", "torch_bare(t, u, v)", TVM_FFI, "tvm_noop(t, u, v)"),
    Row("numpy, result allocated", "functional(a, b)", "np.add", "np_add(a, b)"),
    Row("torch, result allocated", "functional(t, u)", "torch.add", "torch_add(t, u)"),
    Row("jax eager, result allocated", "functional(j, k)", "jnp.add", "jnp_add(j, k)"),
    Row("tensorflow eager", "functional(g, h)", "tf.add", "tf_add(g, h)"),
    Row("numpy, a size that the kernel says", "counted(a)", "np.flatnonzero", "np_flatnonzero(a)"),
    Row("torch, a size that the kernel says", "counted(t)", "torch.nonzero", "torch_nonzero(t)"),
    Row("numpy, an optional result", "optional(a, b)", "one without", "functional(a, b)"),
    Row("torch, an optional result", "optional(t, u)", "one without", "functional(t, u)"),
    Row("numpy, 5,000 kernels known", "functional(a, b)", "one of the last", "last_of_many(a, b)"),
]  # fmt: skip

SLOPES = [
    Slope("inside a jit graph", "jax", "jax-tvm-ffi", "jax_tvm_ffi", 0.9),
    Slope("inside a jit graph", "jax", "jax.pure_callback", "pure_callback", 1 / 300),
    Slope("inside tf.function", "tensorflow", "tf.numpy_function", "numpy_function", 1 / 30),
    Slope("a node of ONNX Runtime", "onnxruntime", "its own Neg", "onnxruntime_neg", 1.3),
    Slope("Python torch kernel inside jax.jit", "torch_in_jax", "jax.pure_callback",
          "pure_callback", 1 / 20),
]  # fmt: skip

SOURCE = """
#include "dlbridge_kernel.h"

int noop(void *context, DLTensor *tensors, int count) {
    (void)context, (void)tensors;
    return count == 3 ? 0 : -1;
}
"""

COUNTED_SOURCE = """
#include "dlbridge_kernel.h"

int two(void *context, DLTensor *tensors, int count) {
    (void)context;
    *(int64_t *)tensors[2].data = 2;
    return count == 3 ? 0 : -1;
}

int any(void *context, DLTensor *tensors, int count) {
    (void)context, (void)tensors, (void)count;
    return 0;
}
"""

NEGATE_SOURCE = """
#include "dlbridge_kernel.h"

int negate(void *context, DLTensor *tensors, int count) {
    const float *x = tensors[0].data;
    float *y = tensors[1].data;
    (void)context, (void)count;
    for (int64_t i = 0; i < tensors[0].shape[0]; i++)
        y[i] = -x[i];
    return 0;
}
"""

EMPTY_SOURCE = """
#include <Python.h>

static PyObject *empty(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module, (void)args, (void)count;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"empty", (PyCFunction)(void (*)(void))empty, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "emptiness", NULL, -1, methods,
                                 NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_emptiness(void) {
    return PyModule_Create(&definition);
}
"""

TVM_SOURCE = """
void noop(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView z) {}
"""


def run(*, quick: bool) -> dict[str, Any]:
    """Measure and print everything; return the figures, times in nanoseconds."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    effort = QUICK if quick else THOROUGH
    names, chains = make_names(), make_chains()
    figures: dict[str, Any] = {
        "machine": describe_machine(),
        "calls": [measure_row(row, names, effort) for row in ROWS if is_possible(row, names)],
        "graphs": [
            measure_slope(slope, chains, effort)
            for slope in SLOPES
            if slope.ours in chains and slope.peer in chains
        ],
    }
    print_figures([*figures["calls"], *figures["graphs"]])
    return figures


# ---- kernels -------------------------------------------------------------------------------------


def make_names() -> dict[str, Any]:
    """Return what the statements mean; what is not installed is absent."""
    noop = dlbridge.compile_c(SOURCE, "noop", "benchmark::noop(x: f32[n], y: f32[n], z!: f32[n])")
    released = dlbridge.wrap(noop, name="benchmark::released", gil="release")
    look = dlbridge.wrap(noop, "benchmark::look(x: f32[n], y: f32[n], z: f32[n])")
    bare = dlbridge.compile_c(SOURCE, "noop")
    functional = dlbridge.wrap(noop, "benchmark::pair(x: f32[n], y: f32[n]) -> f32[n]")
    names: dict[str, Any] = {
        "empty": compile_empty(),
        "numpy_noop": noop.numpy,
        "numpy_released": released.numpy,
        "numpy_bare": dlbridge.to_numpy_func(bare),
        "functional": functional,
        "counted": dlbridge.compile_c(
            COUNTED_SOURCE, "two", "benchmark::two(x: f32[n]) -> i64[k<=n]"
        ),
        "optional": dlbridge.compile_c(
            COUNTED_SOURCE,
            "any",
            "benchmark::any(x: f32[n], y: f32[n], more: bool = False) -> (f32[n], f32[n]? if more)",
        ),
        "np_add": np.add,
        "np_flatnonzero": np.flatnonzero,
        "last_of_many": make_many(noop)[-1],
        "in_threads": in_threads,
        "next": next,
        "eight": cycle([dlbridge.wrap(noop, name=f"benchmark::one{i}").numpy for i in range(8)]),
        **{name: np.ones(SIZE, np.float32) for name in "abcd"},
        "s": np.ones(2 * SIZE, np.float32)[::2],
        "arrays": cycle([np.ones(SIZE, np.float32) for _ in range(1000)]),
        "shapes": cycle([[np.ones(size, np.float32) for _ in range(3)] for size in SIZES]),
    }
    names["d"].flags.writeable = False
    names |= make_torch_names(noop, released, bare) | make_jax_names(look, bare, functional)
    return names | make_tvm_names() | make_tensorflow_names()


def make_many(noop: dlbridge.Kernel) -> list[dlbridge.Kernel]:
    """Return 5,000 kernels with names of their own, all known to the registry."""
    text = "benchmark::many{}(x: f32[n], y: f32[n]) -> f32[n]"
    return [dlbridge.wrap(noop, text.format(number)) for number in range(5000)]


def compile_empty() -> Callable[..., None]:
    """Return a builtin function of Python that does nothing with its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "empty.c"), Path(folder, "empty.so")
        source.write_text(EMPTY_SOURCE)
        include = sysconfig.get_paths()["include"]
        command = ["cc", "-shared", "-fPIC", "-O3", f"-I{include}", str(source), "-o", str(binary)]
        subprocess.run(command, check=True)
        loader = ExtensionFileLoader("emptiness", str(binary))
        module = module_from_spec(ModuleSpec("emptiness", loader, origin=str(binary)))
        loader.exec_module(module)
    function: Callable[..., None] = module.empty
    return function


def in_threads(call: Callable[..., Any], *arguments: Any) -> None:
    """Call it 2,000 times in each of two threads."""

    def work() -> None:
        for _ in range(2000):
            call(*arguments)

    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def make_torch_names(
    noop: dlbridge.Kernel, released: dlbridge.Kernel, bare: dlbridge.Kernel
) -> dict[str, Any]:
    """Return tensors of torch and our functions of them."""
    if not find_spec("torch"):
        return {}
    import torch

    return {name: torch.ones(SIZE) for name in "tuv"} | {
        "w": torch.ones(2 * SIZE)[::2],
        "tensors": cycle([torch.ones(SIZE) for _ in range(1000)]),
        "sizes": cycle([[torch.ones(size) for _ in range(3)] for size in SIZES]),
        "torch_noop": noop.torch,
        "torch_released": released.torch,
        "torch_bare": dlbridge.to_pytorch_func(bare),
        "operator": find_operator(noop),
        "torch_add": torch.add,
        "torch_nonzero": torch.nonzero,
        "torch_ops_add": torch.ops.aten.add.out,
    }


def find_operator(kernel: dlbridge.Kernel) -> Any:
    """Return the operator of torch's dispatcher, registered if it is not yet."""
    import torch

    from dlbridge.kernels.binding import binding

    binding("torch").operator(kernel)  # type: ignore[attr-defined]
    return torch.ops.benchmark.noop.default


def make_jax_names(
    look: dlbridge.Kernel, bare: dlbridge.Kernel, functional: dlbridge.Kernel
) -> dict[str, Any]:
    """Return arrays of JAX, and programs with our kernel and with an addition."""
    if not find_spec("jax"):
        return {}
    import jax

    return {name: jax.numpy.ones(SIZE) for name in "jkl"} | {
        "jax_look": look.jax,
        "jax_bare": dlbridge.to_jax_func(dlbridge.wrap(bare, mutates=())),
        "jax_new": bare,
        **make_jax_arrays(),
        "values": cycle([jax.numpy.ones(SIZE) for _ in range(1000)]),
        "jitted": jax.jit(lambda x, y: functional(x, y)),
        "jitted_add": jax.jit(lambda x, y: x + y),
        "jnp_add": jax.numpy.add,
    }


def make_jax_arrays() -> dict[str, Any]:
    """Return jaxlib's own ways to a new array, by the names that it has since 0.6."""
    if not find_spec("jaxlib._jax"):
        return {}
    import jax
    from jaxlib import _jax

    x = jax.numpy.ones(SIZE)
    rows = jax.numpy.ones((MANY, SIZE))
    split = jax.jit(lambda rows: tuple(rows[i] for i in range(MANY)))
    return {
        "jax_import": _jax.dlpack_managed_tensor_to_buffer,
        "own": dlbridge.empty((SIZE,), "float32"),
        "cpu": jax.local_devices(backend="cpu")[0],
        "jax_array": type(x),
        "aval": x.aval,
        "sharding": x.sharding,
        "new_arrays": join.from_iterable(iter(lambda: split(rows), None)),
    }


def make_tvm_names() -> dict[str, Any]:
    """Return the same kernel as a function of tvm-ffi, and one that TVM compiled."""
    names: dict[str, Any] = {}
    if find_spec("tvm_ffi"):
        names["tvm_noop"] = load_tvm_noop()
        names["tvm_eight"] = cycle([names["tvm_noop"]] * 8)
    if find_spec("tvm") and find_spec("torch"):
        import torch
        from tvm.contrib.dlpack import to_pytorch_func

        module = build_tvm_add()
        names |= {"ours_of_tvm": dlbridge.to_pytorch_func(module)}
        names |= {"tvm_of_tvm": to_pytorch_func(module)}
        names |= {name: torch.ones(1) for name in "pqr"}
    return names


def load_tvm_noop() -> Any:
    import tvm_ffi.cpp

    return tvm_ffi.cpp.load_inline("benchmark_noop", cpp_sources=TVM_SOURCE, functions="noop").noop


def build_tvm_add() -> Any:
    """Return a TVM module that adds two tensors of one element."""
    import tvm
    from tvm import te

    a, b = te.placeholder((1,), name="a"), te.placeholder((1,), name="b")
    c = te.compute((1,), lambda i: a[i] + b[i], name="c")
    return tvm.compile(te.create_prim_func([a, b, c]), target="llvm")


def make_tensorflow_names() -> dict[str, Any]:
    if not find_spec("tensorflow"):
        return {}
    import tensorflow

    return {"g": tensorflow.ones(SIZE), "h": tensorflow.ones(SIZE), "tf_add": tensorflow.add}


# ---- chains --------------------------------------------------------------------------------------


def make_chains() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return, for each way into a graph, a chain of one call and a chain of many."""
    pair = dlbridge.compile_c(SOURCE, "noop", "benchmark::link(x: f32[n], y: f32[n]) -> f32[n]")
    return make_jax_chains(pair) | make_tensorflow_chains(pair) | make_onnxruntime_chains()


def chain(link: Callable[[Any, Any], Any], length: int) -> Callable[[Any, Any], Any]:
    """Return a function of two tensors that calls `link` so many times in a row."""

    def call(x: Any, y: Any) -> Any:
        for _ in range(length):
            x = link(x, y)
        return x

    return call


def first(x: Any, y: Any) -> Any:  # noqa: ARG001
    """Return the first argument: the least that a callback can do."""
    return x


def nothing(x: Any, y: Any, out: Any) -> None:
    """Do nothing: the least that a Python kernel can do."""


def make_jax_chains(pair: dlbridge.Kernel) -> dict[str, Any]:
    if not find_spec("jax"):
        return {}
    import jax

    like = jax.ShapeDtypeStruct((SIZE,), np.float32)
    links: dict[str, Any] = {
        "jax": pair,
        "pure_callback": lambda x, y: jax.pure_callback(first, like, x, y),
    }
    if find_spec("torch"):
        links["torch_in_jax"] = dlbridge.wrap(
            nothing,
            "benchmark::python(x: f32[n], y: f32[n]) -> f32[n]",
            abi="python:torch",
        )
    if find_spec("jax_tvm_ffi") and find_spec("tvm_ffi") and hasattr(jax, "ffi"):
        import jax_tvm_ffi

        jax_tvm_ffi.register_ffi_target("benchmark_noop", load_tvm_noop(), platform="cpu")
        links["jax_tvm_ffi"] = jax.ffi.ffi_call("benchmark_noop", like)
    x = jax.numpy.ones(SIZE)

    def start(function: Any) -> Callable[[], Any]:
        return lambda: function(x, x).block_until_ready()

    return {
        name: tuple(start(jax.jit(chain(link, length))) for length in (1, CHAIN))
        for name, link in links.items()
    }


def make_tensorflow_chains(pair: dlbridge.Kernel) -> dict[str, Any]:
    if not find_spec("tensorflow"):
        return {}
    import tensorflow

    x = tensorflow.ones(SIZE)

    def through_numpy(x: Any, y: Any) -> Any:
        return tensorflow.numpy_function(first, [x, y], tensorflow.float32)

    def start(function: Any) -> Callable[[], Any]:
        return lambda: function(x, x)

    links: dict[str, Any] = {"tensorflow": pair, "numpy_function": through_numpy}
    return {
        name: tuple(start(tensorflow.function(chain(link, length))) for length in (1, CHAIN))
        for name, link in links.items()
    }


def make_onnxruntime_chains() -> dict[str, Any]:
    if not (find_spec("onnxruntime") and find_spec("onnx")):
        return {}
    import onnxruntime
    from onnx import TensorProto, helper

    schema = "benchmark::negate(x: f32[n]) -> f32[n]"
    kernel = dlbridge.compile_c(NEGATE_SOURCE, "negate", schema)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_DISABLE_ALL  # it would take two Negs for none
    dlbridge.register_onnxruntime(options, kernel)
    feeds = {"v0": np.ones(SIZE, np.float32)}

    def start(op: str, domain: str, length: int) -> Callable[[], Any]:
        graph = helper.make_graph(
            [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], domain=domain) for i in range(length)],
            "chain",
            [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [SIZE])],
            [helper.make_tensor_value_info(f"v{length}", TensorProto.FLOAT, [SIZE])],
        )
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("benchmark", 1)]
        model = helper.make_model(graph, opset_imports=domains, ir_version=8)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return lambda: session.run(None, feeds)

    return {
        name: tuple(start(op, domain, length) for length in (1, CHAIN))
        for name, op, domain in (
            ("onnxruntime", "negate", "benchmark"),
            ("onnxruntime_neg", "Neg", ""),
        )
    }


# ---- measuring -----------------------------------------------------------------------------------


def is_possible(row: Any, names: dict[str, Any]) -> bool:
    """Return whether everything that both statements need is here."""
    trees = [ast.parse(text) for text in (row.ours, row.peer)]
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return used <= names.keys()


def measure_row(row: Row, names: dict[str, Any], effort: Effort) -> dict[str, Any]:
    ours, peer = compare([row.ours, row.peer], names, effort)
    return describe(row, ours, peer)


def measure_slope(slope: Slope, chains: dict[str, Any], effort: Effort) -> dict[str, Any]:
    """Measure both chains of both sides in turn; the slope is what one more call takes.

    The time is that of the processor, in all threads of the process: compiled programs have some.
    """
    one, many = chains[slope.ours]
    other_one, other_many = chains[slope.peer]
    names = {"one": one, "many": many, "other_one": other_one, "other_many": other_many}
    slopes: list[list[float]] = [[], []]
    parts = Effort(max(3, effort.rounds // 20), effort.round_ns)
    for _ in range(7 if effort.rounds > QUICK.rounds else 1):
        times = compare([f"{name}()" for name in names], names, parts, clock=time.process_time)
        slopes[0].append((times[1] - times[0]) / (CHAIN - 1))
        slopes[1].append((times[3] - times[2]) / (CHAIN - 1))
    return describe(slope, *map(median, slopes))


def describe(row: Row | Slope, ours: float, peer: float) -> dict[str, Any]:
    ratio = ours / peer
    return {
        "what": row.what,
        "against": row.against,
        "ours_ns": round(ours, 1),
        "peer_ns": round(peer, 1),
        "ratio": round(ratio, 5),
        "target": row.target,
        "reached": None if row.target is None else ratio <= row.target,
    }


def print_figures(figures: list[dict[str, Any]]) -> None:
    """Print a table, those rows first that have a target."""
    rows = [
        [
            row["what"],
            row["against"],
            f"{row['ours_ns']:,.0f}",
            f"{row['peer_ns']:,.0f}",
            f"{row['ratio']:.3g}",
            "" if row["target"] is None else f"{row['target']:.2g}",
            {None: "", True: "yes", False: "NO"}[row["reached"]],
        ]
        for row in sorted(figures, key=lambda row: row["target"] is None)
    ]
    header = ["call of a no-op", "against", "ours/ns", "theirs/ns", "ratio", "target", "reached"]
    versions = {name: sys.modules[name] for name in ("torch", "jax", "tensorflow", "tvm_ffi")
                if name in sys.modules}  # fmt: skip
    print(*(f"{name} {module.__version__}" for name, module in versions.items()), sep=", ")
    print("", render(header, rows), sep="\n")
