"""Calls into the core, to be made while its allocations fail; a program, `report` runs it.

Each step is prepared by a function that returns the call and what must come of it.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from dlpack_peers import ModernProducer, describe

import dlbridge
import dlbridge.graph as tf
from dlbridge._core import native
from dlbridge.proto import load_tensor, make_tensor_proto

Call = Callable[[], Any]
Check = Callable[[Any], bool]
STEPS: dict[str, Callable[[], tuple[Call, Check]]] = {}
# CPython 3.11 dereferences NULL where both allocations of PyContextVar_Set fail.
ONCE = frozenset(("aligned NumPy arrays", "limited NumPy arrays", "a graph with a limit"))
MOST = 5_000  # allocations of one call

X = np.arange(12, dtype="f4").reshape(3, 4)
TWICE = """
#include "dlpack.h"

int twice(void *context, DLTensor *args, int count) {
    const float *x = args[0].data;
    float *out = args[1].data;
    for (int64_t i = 0; i < args[0].shape[0]; i++)
        out[i] = 2 * x[i];
    return 0;
}
"""


def step(name: str) -> Callable[[Callable[[], Any]], None]:
    """Add a step: a function that returns the call, or the call and its check."""

    def add(prepare: Callable[[], Any]) -> None:
        def prepared() -> tuple[Call, Check]:
            made = prepare()
            return made if isinstance(made, tuple) else (made, lambda result: True)

        STEPS[name] = prepared

    return add


def equals(expected: Any) -> Check:
    return lambda result: np.array_equal(np.asarray(result), np.asarray(expected))


# ---- exchange ----------------------------------------------------------------------------------


@step("from_dlpack of NumPy")
def _() -> Any:
    return lambda: dlbridge.from_dlpack(X), equals(X)


@step("from_dlpack of a Python producer")
def _() -> Any:
    return lambda: dlbridge.from_dlpack(ModernProducer(describe(X))), equals(X)


@step("to_numpy")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: dlbridge.to_numpy(tensor), equals(X)


@step("to_numpy, a copy")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: dlbridge.to_numpy(tensor, copy=True), equals(X)


@step("to_numpy, a copy of a layout of its own")
def _() -> Any:
    x = np.arange(90_000.0).reshape(300, 300)[::2, ::-3]
    return lambda: dlbridge.to_numpy(x, copy=True), equals(x)


@step("to_numpy, narrowed")
def _() -> Any:
    x = np.arange(5)
    return lambda: dlbridge.convert(x, "numpy", dtype="int32"), equals(x)


@step("read-only memory")
def _() -> Any:
    x = X.copy()
    x.flags.writeable = False
    return lambda: dlbridge.to_numpy(dlbridge.from_dlpack(x), readonly="copy"), equals(X)


@step("a refused exchange")
def _() -> Any:
    def refused() -> bool:
        try:
            dlbridge.to_numpy(X[:, ::2], copy=False, layout="contiguous")
        except dlbridge.ExchangeError:
            return True
        return False

    return refused, bool


@step("a legacy capsule")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: dlbridge.from_dlpack(dlbridge.to_dlpack(tensor)), equals(X)


@step("a versioned capsule")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: native.take_capsule(tensor.__dlpack__(max_version=(1, 3))), equals(X)


@step("a capsule of a copy")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    call = lambda: native.take_capsule(tensor.__dlpack__(copy=True, max_version=(1, 3)))  # noqa: E731
    return call, equals(X)


@step("an exchange table")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    table = type(tensor).__dlpack_c_exchange_api__
    return lambda: native.take_table(tensor, table), equals(X)


@step("the buffer protocol")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: dlbridge.from_buffer(memoryview(tensor).cast("B"), "float32"), equals(X.ravel())


@step("__array_struct__")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: np.array(tensor.__array_struct__ is not None), bool


@step("NumPy takes a Tensor")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: np.from_dlpack(tensor), equals(X)


@step("a tree")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    tree = {"a": X, "b": [tensor, X, (tensor, 3)], "c": "text"}
    return lambda: dlbridge.convert_tree(tree, "numpy"), lambda made: equals(X)(made["b"][2][0])


@step("receipts")
def _() -> Any:
    def call() -> Any:
        with dlbridge.receipts() as made:
            dlbridge.to_numpy(X, copy=True)
        return made[0]

    return call, lambda made: made.shared is False


@step("the ledger")
def _() -> Any:
    def call() -> Any:
        with dlbridge.ledger() as made:
            kept = dlbridge.from_dlpack(X).__dlpack__()
        return len(made.alive), kept

    return call


@step("aligned NumPy arrays")
def _() -> Any:
    def call() -> Any:
        with dlbridge.aligned_numpy():
            return np.resize(np.arange(1000.0), 3000)[:4]

    return call, equals([0, 1, 2, 3])


@step("limited NumPy arrays")
def _() -> Any:
    def call() -> Any:
        with native.limited_numpy(100_000):
            return np.ones(1000)

    return call, equals(np.ones(1000))


@step("a pickle")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: pickle.loads(pickle.dumps(tensor)), equals(X)


# ---- tensors -----------------------------------------------------------------------------------


@step("views")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: tensor[1:, ::2].reshape(2, 2).T[0], equals(X[1:, ::2].T[0])


@step("an assignment")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X.copy())

    def assign() -> Any:
        tensor[1:, ::2] = 1.0
        tensor[0] = X[1]
        return tensor

    return assign, lambda made: np.asarray(made)[2, 2] == 1


@step("new memory")
def _() -> Any:
    return lambda: dlbridge.empty((3, 4), "float32"), lambda made: made.shape == (3, 4)


@step("new memory in huge pages")
def _() -> Any:
    return lambda: dlbridge.empty((9 << 20,), "uint8"), lambda made: made.nbytes == 9 << 20


@step("zeros")
def _() -> Any:
    return lambda: dlbridge.zeros((3, 4), "float32"), equals(np.zeros((3, 4)))


@step("arange")
def _() -> Any:
    return lambda: dlbridge.arange(5), equals(range(5))


@step("equal")
def _() -> Any:
    tensor = dlbridge.from_dlpack(X)
    return lambda: dlbridge.equal(tensor, X), bool


@step("a shape")
def _() -> Any:
    long = (1,) * 100
    return lambda: dlbridge.TensorShape(long).record, lambda made: len(made) == 16


# ---- kernels -----------------------------------------------------------------------------------

_count = itertools.count()


@step("a kernel in C")
def _() -> Any:
    kernel = dlbridge.compile_c(TWICE, "twice", "allocations::twice(x: f32[n]) -> f32[n]")
    return lambda: kernel(X[0]), equals(2 * X[0])


@step("a kernel in Python")
def _() -> Any:
    kernel = dlbridge.wrap(
        lambda x: x * 2, "allocations::python(x: f32[n]) -> f32[n]", abi="python:numpy"
    )
    return lambda: kernel(X[0]), equals(2 * X[0])


@step("a call that its schema refuses")
def _() -> Any:
    text = "allocations::refusing(x: f32[n], y: f32[n]) -> f32[n]"
    kernel = dlbridge.wrap(lambda x, y: x, text, abi="python:numpy")

    def call() -> bool:
        try:
            kernel(X[0], X[0][:2])
        except dlbridge.ArgumentError:
            return True
        return False

    return call, bool


@step("the wrapping of a kernel")
def _() -> Any:
    text = (
        "allocations::f(x: f32[m, n], y: f32[2*m+1], *, k: int = 3, mode: str = 'a', "
        "z: any[...]?) -> f32[k, n]"
    )

    def call() -> Any:
        return dlbridge.wrap(lambda x, y, z, k, mode: x, text, abi="python:numpy")

    return call


@step("the registration of a kernel")
def _() -> Any:
    def call() -> Any:
        text = f"allocations::number{next(_count)}(x: f32[n]) -> f32[n]"
        return dlbridge.wrap(lambda x: x, text, abi="python:numpy")

    return call


# ---- graphs ------------------------------------------------------------------------------------


def make_graph() -> tuple[tf.Graph, Any, Any]:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None])
        parts = tf.dynamic_partition(x, tf.cast(x > 2.0, tf.int32), 2)
        y = (x + 1.0) * 2.0 + tf.reduce_sum(x) + tf.nn.relu(tf.concat(parts, 0))
    return graph, x, y


Y = (X[0] + 1) * 2 + X[0].sum() + X[0]


@step("a run of a graph")
def _() -> Any:
    graph, x, y = make_graph()
    session = tf.Session(graph=graph)
    return lambda: session.run(y, {x: X[0]}), equals(Y)


@step("the first run of a session")
def _() -> Any:
    graph, x, y = make_graph()

    def call() -> Any:
        with tf.Session(graph=graph) as session:
            return session.run(y, {x: X[0]})

    return call, equals(Y)


@step("a variable")
def _() -> Any:
    with tf.Graph().as_default() as graph:
        v = tf.Variable(np.zeros(1000, "f4"))
        add = tf.assign_add(v, tf.ones([1000]))
        start = tf.global_variables_initializer()
    session = tf.Session(graph=graph)

    def call() -> Any:
        session.run(start)
        return session.run(add)

    return call, equals(np.ones(1000))


@step("a graph with a limit")
def _() -> Any:
    graph, x, y = make_graph()
    session = tf.Session(graph=graph, max_bytes=1 << 20)
    return lambda: session.run(y, {x: X[0]}), equals(Y)


@step("a TensorProto")
def _() -> Any:
    made = make_tensor_proto(X).SerializeToString()
    return lambda: load_tensor(made), equals(X)


# ---- a framework each --------------------------------------------------------------------------


@step("torch: exchange")
def _() -> Any:
    torch = import_module("torch")
    x = torch.from_numpy(X)
    return lambda: dlbridge.to_torch(dlbridge.to_numpy(x)), equals(X)


@step("torch: a kernel that trains")
def _() -> Any:
    torch = import_module("torch")
    text = "allocations::trains(x: f32[n]) -> f32[n]"
    kernel = dlbridge.compile_c(TWICE, "twice", text, vjp=lambda grad, x: 2 * grad)
    function = dlbridge.to_pytorch_func(kernel)
    x = torch.from_numpy(X[0].copy()).requires_grad_()

    def call() -> Any:
        (found,) = torch.autograd.grad(function(x).sum(), x)
        return found

    return call, equals(np.full(4, 2))


@step("jax: exchange")
def _() -> Any:
    import_module("jax")
    return lambda: dlbridge.to_numpy(dlbridge.to_jax(X)), equals(X)


@step("tensorflow: exchange")
def _() -> Any:
    import_module("tensorflow")
    return lambda: dlbridge.to_numpy(dlbridge.to_tensorflow(X)), equals(X)


@step("tensorflow: a kernel")
def _() -> Any:
    tensorflow = import_module("tensorflow")
    kernel = dlbridge.compile_c(TWICE, "twice", "allocations::twice(x: f32[n]) -> f32[n]")
    function, x = dlbridge.to_tensorflow_func(kernel), tensorflow.constant(X[0])
    return lambda: function(x), equals(2 * X[0])


# ---- the program -------------------------------------------------------------------------------


class Failing:
    """`allocations.c`, preloaded, which lets one allocation of the core fail in a call."""

    def __init__(self) -> None:
        self.library = ctypes.PyDLL(os.environ["LD_PRELOAD"].split(":")[0])
        del os.environ["LD_PRELOAD"]  # of compilers, which are other processes
        attempt = self.library.attempt
        attempt.restype = ctypes.py_object
        attempt.argtypes = [ctypes.py_object, ctypes.c_long, ctypes.c_int]
        if not (self.library.find() or self._find()):
            raise RuntimeError("the function that evaluates bytecode was not found")
        lines = Path("/proc/self/maps").read_text().splitlines()
        ranges = [line.split()[0].split("-") for line in lines if native.__file__ in line]
        core = np._core if hasattr(np, "_core") else np.core  # before NumPy 2
        table = core.multiarray._ARRAY_API
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype = ctypes.c_void_p
        get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        watch = self.library.watch
        watch.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
        watch(int(ranges[0][0], 16), int(ranges[-1][1], 16), get_pointer(table, None))

    def _find(self) -> bool:
        """Look again, in the frame of another Python function."""
        return bool(self.library.find())

    def attempt(self, call: Call, before: int, stays: bool) -> tuple[int, Any, Any]:
        """Call; the allocation after `before` others fails, and with `stays` all after it."""
        failed, result, error = self.library.attempt(call, before, stays)
        return failed, result, error


def report(name: str) -> int:
    """Make the call of a step with each of its allocations failing; return how many there are.

    Raises:
        AssertionError: an error is no MemoryError, a result is wrong, or something stays alive.
    """
    failing = Failing()
    call, is_right = STEPS[name]()
    for _ in range(3):
        assert is_right(call()), "before any failure"
    failures = 0
    for stays in (False, True)[: 1 if name in ONCE else 2]:
        for before in range(MOST):
            gc.collect()
            alive = native.live()
            failed, result, error = failing.attempt(call, before, stays)
            what = f"{name}: allocation {before}{' and all after it' if stays else ''}"
            if error is not None:
                is_memory = isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError))
                assert is_memory, f"{what}: {error!r}"
            else:
                assert is_right(result), f"{what}: {result!r}"
            del result, error
            gc.collect()
            left = {kind: n - alive[kind] for kind, n in native.live().items() if n != alive[kind]}
            if name != "the registration of a kernel":  # which is for the whole process
                assert not left, f"{what}: {left}"
            assert is_right(call()), f"{what}: the call after it"
            if not failed:
                break
            failures += 1
        else:
            raise AssertionError(f"{name} never came to an end")
    return failures


if __name__ == "__main__":
    print(report(sys.argv[1]))
