"""Kernels in C for the tests beside this file, compiled on first use."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernels.elementwise import increment as increment
from kernels.elementwise import twice as twice
from kernels.samples import cache_directory as cache_directory
from kernels.samples import compiled as compiled
from kernels.samples import library as library
from kernels.samples import matmul as matmul
from kernels.tensorflow_samples import samples as samples
from kernels.tensorflow_samples import tf as tf

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CPU = 1


def compile_c(source: Path, target: Path, *flags: str) -> Path:
    """Compile one C file, or skip the test where there is no compiler."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [*compiler.split(), "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-O1", "-g"]
    command += [f"-I{ROOT / 'include'}", "-o", str(target), str(source), *flags]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"{source.name} cannot be compiled here: {error}")
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], int]:
    """Return `address(name)` of the functions in `kernels.c`."""
    importlib.import_module("dlbridge.kernels.kernel")  # sets the core's hooks
    target = tmp_path_factory.mktemp("kernels") / "kernels.so"
    library = ctypes.CDLL(str(compile_c(HERE / "kernels.c", target, "-shared", "-fPIC")))

    def address(name: str) -> int:
        found = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert found is not None
        return found

    return address


@pytest.fixture
def make(functions: Callable[[str], int]) -> Callable[..., Any]:
    """Return `make(function, schema or None, convention=, user=, **options)`: a KernelBase."""
    from dlbridge._core import native
    from dlbridge.kernels.schema import Schema

    def build(
        function: str,
        text: str | None = None,
        *,
        convention: str = "dltensors",
        user: object = None,
        device: int = CPU,
        **options: Any,
    ) -> native.KernelBase:
        schema = None if text is None else Schema.parse(text)
        return native.KernelBase(
            f"test::{function}" if schema is None else schema.qualified,
            None if schema is None else schema.encode(),
            None if schema is None else schema.encode_arguments(),
            [(device, convention, functions(function), user)],
            schema=schema,
            **options,
        )

    return build


@pytest.fixture
def jax(framework: Any) -> Any:
    return framework("jax")


@pytest.fixture
def jnp(jax: Any) -> Any:
    return jax.numpy


@pytest.fixture
def slow_calls(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Return the list of the calls that C declines while the test runs."""
    if getattr(request.node, "callspec", None) is None or "torch" in request.node.name:
        request.getfixturevalue("proved_torch")
    binding = importlib.import_module("dlbridge.kernels.binding")
    native = importlib.import_module("dlbridge._core").native
    calls: list[Any] = []

    def slow_call(kernel: Any, framework: str | None, args: Any, kwargs: Any) -> Any:
        calls.append(framework)
        return binding.slow_call(kernel, framework, args, kwargs)

    native.set_kernel_hooks(slow_call=slow_call)
    yield calls
    native.set_kernel_hooks(slow_call=binding.slow_call)
