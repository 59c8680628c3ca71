"""Exceptions of C++ and panics of Rust that leave a kernel become errors with their text."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import KernelError

ROOT = Path(__file__).resolve().parents[2]
X = np.zeros(2, np.float32)

CPP = r"""
#include <stdexcept>
#include <string>
#include "dlbridge_kernel.h"

extern "C" int check(void *context, DLTensor *tensors, int count) noexcept {
    return dlb_guard(context, [&]() -> int {
        int64_t how = dlb_get_int(context, 0);
        if (how == 1)
            throw std::invalid_argument("takes 3 tensors, got " + std::to_string(count));
        if (how == 2)
            throw 7;
        if (how == 3)
            return dlb_set_error(context, "said in the kernel");
        static_cast<float *>(tensors[0].data)[0] = 5;
        return how == 4 ? 44 : 0;
    });
}

extern "C" int without_a_context(DLTensor *) noexcept {
    return dlb_guard(nullptr, []() -> int { throw std::runtime_error("lost"); });
}
"""

RUST = r"""
#![crate_type = "cdylib"]
#[repr(C)]
pub struct Context {
    size: usize,
    kernel: *const i8,
    user: *mut u8,
    stream: *mut u8,
    scalars: *const i64,
    scalar_count: i64,
    error: *mut i8,
    error_size: usize,
}
pub struct DLTensor;

unsafe fn run(_tensors: *mut DLTensor, count: i32) {
    if count == 1 { panic!("takes 3 tensors, got {count}") }
    if count == 2 { panic!("plain text") }
}
"""


def build(command: list[str], source: Path, folder: Path) -> ctypes.CDLL:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    library = folder / "library.so"
    # Without a sanitizer that this process was started with: rustc crashes in it.
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [*command, str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("cpp")
    source = folder / "kernel.cpp"
    source.write_text(CPP)
    flags = ["-std=c++11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    return build(["c++", *flags, f"-I{ROOT / 'include'}"], source, folder)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (1, "test::check: takes 3 tensors, got 1"),
        (2, "test::check: an exception that is no std::exception"),
        (3, "test::check: said in the kernel"),
        (4, "test::check: the kernel returned status 44"),
    ],
)
def test_exceptions_of_cpp_are_errors(cpp: Any, how: int, text: str) -> None:
    """`dlb_guard` in the public header, which compiles as C++11 without warnings."""
    kernel = dlbridge.wrap(cpp.check, "test::check(x!: f32[n], *, how: int)", abi="dltensors")
    with pytest.raises(KernelError) as caught:
        kernel(X, how=how)
    assert str(caught.value) == text
    x = X.copy()
    kernel(x, how=0)
    assert x[0] == 5


def test_an_exception_without_a_context_is_a_status(cpp: Any) -> None:
    kernel = dlbridge.wrap(cpp.without_a_context, "test::lost(x!: f32[n])", abi="pointers")
    with pytest.raises(KernelError, match="test::lost: the kernel returned status -1"):
        kernel(X)


def test_panics_of_rust_are_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The lines of docs/kernels.md. Rust also prints a panic, with a backtrace where asked to."""
    page = (ROOT / "docs" / "kernels.md").read_text()
    (shown,) = re.findall(r"```rust\n(.*?)```", page, re.DOTALL)
    source = tmp_path / "kernel.rs"
    source.write_text(RUST + shown)
    library = build(["rustc", "--edition=2021"], source, tmp_path)
    one = dlbridge.wrap(library.axpy, "test::one(x!: f32[n])", abi="dltensors")
    with pytest.raises(KernelError, match="test::one: takes 3 tensors, got 1"):
        one(X)
    two = dlbridge.wrap(library.axpy, "test::two(x!: f32[n], y: f32[n])", abi="dltensors")
    with pytest.raises(KernelError, match="test::two: plain text"):
        two(X, np.ones_like(X))
    assert "plain text" in capfd.readouterr().err
    three = dlbridge.wrap(library.axpy, "test::three(x!: f32[n], y: f32[n], z: f32[n])",
                          abi="dltensors")  # fmt: skip
    three(X, np.ones_like(X), np.ones_like(X))
