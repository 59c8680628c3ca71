"""Saved programs find kernels by name, whichever came first: the kernel or its framework."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

KERNEL = """
import sys
import dlbridge
cube = dlbridge.wrap(
    lambda x: x**3, "import_order::cube(x: f32[n]) -> f32[n]", abi="python:numpy"
)
"""
# Framework -> what saves a program, and what loads and runs it; `path` is where.
PROGRAMS = {
    "torch": (
        """
        import torch

        class Module(torch.nn.Module):
            def forward(self, x):
                return torch.ops.import_order.cube(x) + 1

        x = torch.ones(3)
        torch.export.save(torch.export.export(Module(), (x,)), path + ".pt2")
        torch.jit.save(torch.jit.trace(Module(), (x,)), path + ".pt")
        """,
        """
        import torch
        x = torch.full((3,), 2.0)
        print(torch.jit.load(path + ".pt")(x).tolist())
        print(torch.jit.load(open(path + ".pt", "rb"))(x).tolist())
        print(torch.export.load(path + ".pt2").module()(x).tolist())
        print((torch.ops.import_order.cube(x) + 1).tolist())
        """,
    ),
    "jax": (
        """
        import jax
        check = jax.export.DisabledSafetyCheck.custom_call("dlbridge")
        program = jax.export.export(jax.jit(lambda x: cube(x) + 1), disabled_checks=[check])
        open(path, "wb").write(program(jax.ShapeDtypeStruct((3,), "float32")).serialize())
        """,
        """
        import jax
        program = jax.export.deserialize(bytearray(open(path, "rb").read()))
        print(program.call(jax.numpy.full((3,), 2.0)).tolist())
        """,
    ),
    "tensorflow": (
        """
        import tensorflow as tf
        module = tf.Module()
        signature = [tf.TensorSpec([3], tf.float32)]
        module.f = tf.function(lambda x: cube(x) + 1, input_signature=signature)
        tf.saved_model.save(module, path)
        """,
        """
        import tensorflow as tf
        print(tf.saved_model.load(path).f(tf.fill([3], 2.0)).numpy().tolist())
        """,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.full
def test_programs_load_in_either_order(
    name: str, framework: Any, run_python: Any, tmp_path: Any
) -> None:
    framework(name)
    if name == "jax":
        pytest.importorskip("flatbuffers")
    save, load = map(textwrap.dedent, PROGRAMS[name])
    path = f"path = {str(tmp_path / 'program')!r}\n"
    run_python(f"{path}{KERNEL}{save}").check()
    before = run_python(f"{path}{KERNEL}assert {name!r} not in sys.modules\n{load}").check()
    after = run_python(f"{path}import {name}\n{KERNEL}{load}").check()
    lines = before.splitlines()
    assert set(lines) == {"[9.0, 9.0, 9.0]"}
    assert after.splitlines() == lines


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_package_of_aotinductor_loads(framework: Any, run_python: Any, tmp_path: Any) -> None:
    """Its loader is C++, and asks the dispatcher alone."""
    framework("torch")
    path = f"path = {str(tmp_path / 'program.pt2')!r}\n"
    save = """
import torch

class Module(torch.nn.Module):
    def forward(self, x):
        return torch.ops.import_order.cube(x) + 1

program = torch.export.export(Module(), (torch.ones(3),))
torch._inductor.aoti_compile_and_package(program, package_path=path)
"""
    load = "print(torch._inductor.aoti_load_package(path)(torch.full((3,), 2.0)).tolist())"
    run_python(f"{path}{KERNEL}{save}", timeout=280).check()
    for head in (f"{KERNEL}import torch\n", f"import torch\n{KERNEL}"):
        assert run_python(f"{path}{head}{load}").check() == "[9.0, 9.0, 9.0]\n"


def test_an_import_that_fails_is_watched_again(run_python: Any, tmp_path: Any) -> None:
    """And other modules are imported as ever."""
    (tmp_path / "jax.py").write_text(
        "import os\nif os.environ.pop('FAIL', ''): raise ImportError\n"
    )
    code = f"""
    {textwrap.indent(KERNEL, "    ").strip()}
    from dlbridge import registry
    sys.path.insert(0, {str(tmp_path)!r})
    try:
        import jax
    except ImportError:
        print(sorted(name for name in registry._WATCH.waiting if '.' not in name))
    import jax, json
    print(sorted(name for name in registry._WATCH.waiting if '.' not in name))
    """
    assert run_python(code, FAIL="1").check().splitlines() == [
        "['jax', 'tensorflow', 'torch']",
        "['tensorflow', 'torch']",
    ]
