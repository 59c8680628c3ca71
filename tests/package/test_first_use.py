"""What is found out, imported or compiled at the first use, when eight threads meet it first."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

# In a fresh process, where nothing is known of the framework yet; switches between threads after
# each bytecode. Each thread begins with another use.
PROGRAM = '''
import importlib
import sys
import threading

import numpy as np

name, order = sys.argv[1:]
if order == "before":
    importlib.import_module(name)
import dlbridge

library = importlib.import_module(name)
SOURCE = """
#include "dlpack.h"
int twice(void *context, DLTensor *tensors, int count) {
    const float *x = tensors[0].data;
    float *out = tensors[1].data;
    for (int64_t i = 0; i < tensors[0].shape[0]; i++)
        out[i] = 2 * x[i];
    return 0;
}
"""
kernel = dlbridge.compile_c(
    SOURCE, "twice", "first::twice(x: f32[n]) -> f32[n]", vjp=lambda grad: 2 * grad
)
python = dlbridge.wrap(lambda x: x + 1, "first::plus(x: f32[n]) -> f32[n]", abi=f"python:{name}")
base = np.arange(4, dtype="f4")
array = {
    "numpy": lambda: base,
    "torch": lambda: library.arange(4, dtype=library.float32),
    "jax": lambda: library.numpy.arange(4, dtype="float32"),
}[name]()


def gradient():
    if name == "torch":
        x = array.clone().requires_grad_()
        kernel(x).sum().backward()
        return x.grad
    if name == "jax":
        return library.grad(lambda x: kernel(x).sum())(array)
    return 2 * np.ones(4, "f4")


def listed(x):
    return dlbridge.from_dlpack(x).tolist()


USES = (
    lambda: dlbridge.to_numpy(array).tolist(),
    lambda: listed(dlbridge.convert(base, name)),
    lambda: listed(array),
    lambda: listed(kernel(array)),
    lambda: listed(getattr(kernel, name)(array)),
    lambda: listed(python(array)),
    lambda: dlbridge.DType(dlbridge.DType("float32").to(name)).name,
    lambda: str(dlbridge.Device(dlbridge.Device("cpu").to(name))),
    lambda: listed(gradient()),
    lambda: dlbridge.convert_tree({"a": [array]}, "numpy")["a"][0].tolist(),
    lambda: listed(dlbridge.convert(dlbridge.arange(4, dtype="float32"), name, copy=True)),
)
answers = {}
start = threading.Barrier(8)


def work(number):
    start.wait()
    for i in range(len(USES)):
        use = (i + number) % len(USES)
        try:
            answers[number, use] = USES[use]()
        except BaseException as error:
            answers[number, use] = repr(error)


sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.setswitchinterval(0.005)
expected = [use() for use in USES]
assert expected[0] == [0, 1, 2, 3] and expected[3] == [0, 2, 4, 6], expected
wrong = {key: found for key, found in answers.items() if found != expected[key[1]]}
assert not wrong and len(answers) == 8 * len(USES), wrong
'''


@pytest.mark.subprocess
@pytest.mark.timeout(180)
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.fast(lambda name, order: (name, order) == ("torch", "after"))
def test_eight_threads_may_use_a_framework_first(name: str, order: str, run_python: Any) -> None:
    """Exchanges, dtypes, devices, kernels in C and Python, derivatives, trees."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    run_python(PROGRAM, name, order, timeout=170).check()
