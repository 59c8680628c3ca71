"""keras.Variable: the value of its backend, whichever that is."""

from __future__ import annotations

from typing import Any

import pytest

CODE = """
import keras, numpy, dlbridge

variable = keras.Variable(numpy.arange(3, dtype="float32"), name="weight")
with dlbridge.receipts() as log:
    print(dlbridge.convert(variable, "dlbridge", grad="detach").tolist())
    print(dlbridge.to_numpy(variable, grad="detach").tolist())
    print(dlbridge.convert_tree({"w": [variable]}, "numpy", grad="detach")["w"][0].tolist())
print({each.source for each in log}, all(each.shared for each in log))
variable.assign(variable + 1)
print(dlbridge.to_numpy(variable, grad="detach").tolist())
"""


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch", "tensorflow"])
@pytest.mark.full
def test_a_variable_is_the_value_of_its_backend(
    framework: Any, run_python: Any, backend: str
) -> None:
    framework("keras")
    framework(backend)
    run = run_python(CODE, KERAS_BACKEND=backend)
    source = "tensorflow" if backend == "tensorflow" else "keras"
    assert run.stdout.splitlines() == [
        *["[0.0, 1.0, 2.0]"] * 3,
        f"{{'{source}'}} True",
        "[1.0, 2.0, 3.0]",
    ], run.stderr
