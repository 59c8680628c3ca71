"""Saved programs in another process: importing the module that wraps the kernel is enough."""

from __future__ import annotations

import pytest

WRAP = """
    import dlbridge
    kernel = dlbridge.wrap(
        lambda x, by: x * by, "reload::scale(x: f32[n], *, by: float = 2.0) -> f32[n]",
        abi="python:numpy",
    )
"""
JAX = (
    """
    import sys, jax
    from jax import export, numpy as jnp
    """,
    """
    checks = [export.DisabledSafetyCheck.custom_call("dlbridge")]
    made = export.export(jax.jit(kernel), disabled_checks=checks)(jnp.ones(2))
    open(sys.argv[1], "wb").write(made.serialize())
    """,
    "    print(export.deserialize(open(sys.argv[1], 'rb').read()).call(jnp.ones(2)).tolist())\n",
)
TORCH = (
    """
    import sys, torch
    class Module(torch.nn.Module):
        def forward(self, x):
            return kernel(x)
    """,
    "    torch.export.save(torch.export.export(Module(), (torch.ones(2),)), sys.argv[1])\n",
    "    print(torch.export.load(sys.argv[1]).module()(torch.ones(2)).tolist())\n",
)
TENSORFLOW = (
    """
    import sys, tensorflow as tf
    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def call(self, x):
            return kernel(x)
    """,
    "    tf.saved_model.save(Module(), sys.argv[1])\n",
    "    print(tf.saved_model.load(sys.argv[1]).call(tf.ones(2)).numpy().tolist())\n",
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "texts"), [("jax", JAX), ("torch", TORCH), ("tensorflow", TENSORFLOW)]
)
def test_a_saved_program_runs_where_its_kernel_is_wrapped(
    framework, run_python, tmp_path, name, texts
) -> None:
    framework(name)
    if name == "jax":
        pytest.importorskip("jax.export")
        pytest.importorskip("flatbuffers")
    start, save, load = texts
    path = tmp_path / "program.pt2"
    run_python(start + WRAP + save, path).check()
    assert run_python(start + WRAP + load, path).check().splitlines()[-1] == "[2.0, 2.0]"
