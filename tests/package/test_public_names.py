"""The names at the root of the package: dtypes, functions that make Tensors, short ways out."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge
from dlbridge import DType, dtype
from dlbridge.errors import AllocationError, ArgumentError, ExchangeError
from dlbridge.kernels.elf import Image

DTYPES = [name for name in dlbridge.__all__ if isinstance(getattr(dlbridge, name), DType)]
PLAIN = [name for name in DTYPES if (name[0] in "iuf" and "_" not in name) or name == "bfloat16"]

# ---- dtypes ------------------------------------------------------------------------------------


def test_every_dtype_of_dlpack_has_a_name() -> None:
    """But opaque handles, and the widths that only ml_dtypes' newest have."""
    constants = {name: x for name, x in vars(dtype).items() if isinstance(x, DType)}
    assert {*constants, "bool"} - {"handle"} == {*DTYPES, "bool"}
    assert all(getattr(dlbridge, name) is constants[name] for name in DTYPES)


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_the_one_of_its_name(name: str) -> None:
    constant = getattr(dlbridge, name)
    assert constant is DType(name.removesuffix("_"))
    assert constant == name.removesuffix("_")
    assert constant.name == name.removesuffix("_")


def test_dtypes_compare_with_those_of_frameworks(framework: Any) -> None:
    torch, jax = framework("torch"), framework("jax")
    assert dlbridge.float32 == np.float32 == dlbridge.float32
    assert dlbridge.bfloat16 == torch.bfloat16
    assert dlbridge.int8 == jax.numpy.int8
    assert dlbridge.int8 != torch.uint8
    assert np.zeros(2, dlbridge.int16).dtype == np.int16
    assert dlbridge.float16.to("torch") is torch.float16


def test_bool_is_a_name_that_a_star_does_not_import() -> None:
    assert dlbridge.bool is dlbridge.bool_ is DType(bool)
    assert "bool" not in dlbridge.__all__
    assert "bool_" in dlbridge.__all__


# ---- new tensors -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PLAIN, "bool_", "complex64", "complex128"])
def test_ones(name: str) -> None:
    tensor = dlbridge.ones((2, 3), getattr(dlbridge, name))
    assert (tensor.shape, tensor.dtype) == ((2, 3), getattr(dlbridge, name))
    assert tensor.tolist() == [[1] * 3] * 2
    assert tensor.data_ptr % 64 == 0


@given(
    st.integers(-99, 99) | st.floats(-99, 99),
    st.none() | st.integers(-99, 99) | st.floats(-99, 99),
    st.integers(-9, 9).filter(bool) | st.floats(0.5, 9),
)
def test_arange_is_numpys(start: float, stop: float | None, step: float) -> None:
    expected = np.arange(0, start, step) if stop is None else np.arange(start, stop, step)
    tensor = dlbridge.arange(start, stop, step)
    assert np.array_equal(tensor.numpy(), expected)
    assert tensor.dtype == expected.dtype


def test_arange_refuses_what_it_cannot_make() -> None:
    assert dlbridge.arange(3, dtype=dlbridge.float32).tolist() == [0.0, 1.0, 2.0]
    assert dlbridge.arange(0, 1, 0.5, dlbridge.float16).tolist() == [0.0, 0.5]
    with pytest.raises(ArgumentError, match="arange: "):
        dlbridge.arange(0, 3, 0)
    with pytest.raises((ArgumentError, AllocationError), match="arange: "):
        dlbridge.arange(2**62)
    with pytest.raises(ExchangeError, match="does not fit int8"):
        dlbridge.arange(200, dtype="int8")
    with pytest.raises(ExchangeError, match="without loss"):
        dlbridge.arange(0, 1, 0.5, "int8")


LIKE = {
    "empty_like": dlbridge.empty_like,
    "zeros_like": dlbridge.zeros_like,
    "ones_like": dlbridge.ones_like,
    "full_like": lambda x, *args, **kwargs: dlbridge.full_like(x, 7, *args, **kwargs),
}
VALUES = {"zeros_like": 0, "ones_like": 1, "full_like": 7}


@pytest.mark.parametrize("name", LIKE)
def test_like_a_tensor(name: str) -> None:
    """The result is compact and writable, whatever it is like."""
    base = dlbridge.zeros((2, 3), "int16").T
    for x in (base, base.broadcast_to((4, 3, 2))[0], np.zeros((3, 2), "int16")):
        tensor = LIKE[name](x)
        assert (tensor.shape, tensor.dtype, tensor.device) == ((3, 2), dlbridge.int16, "cpu")
        assert tensor.is_contiguous
        assert not tensor.readonly
        if name in VALUES:
            assert tensor.tolist() == [[VALUES[name]] * 2] * 3
    assert LIKE[name](base, dlbridge.float64, alignment=128).dtype is dlbridge.float64


@pytest.mark.parametrize("name", LIKE)
def test_like_a_tensor_of_a_framework(name: str, framework: Any) -> None:
    torch = framework("torch")
    assert LIKE[name](torch.ones(2, dtype=torch.bfloat16)).dtype is dlbridge.bfloat16


# ---- the short ways out ------------------------------------------------------------------------


def test_numpy_shares_the_memory() -> None:
    tensor = dlbridge.zeros((2, 2), dlbridge.float32)
    tensor.numpy()[0, 1] = 5
    assert tensor.tolist() == [[0, 5], [0, 0]]
    assert not tensor.broadcast_to((3, 2, 2)).numpy().flags.writeable
    assert dlbridge.ones(3, dlbridge.int4).numpy().tolist() == [1, 1, 1]


def test_cpu_is_the_tensor_itself_there() -> None:
    tensor = dlbridge.zeros(3, "int8")
    assert tensor.cpu().data_ptr == tensor.data_ptr
    assert tensor.cpu().device == "cpu"


def test_memory_out_of_reach_is_refused() -> None:
    tensor = dlbridge._core.native.take_object(None, 64, (2,), None, (2, 32, 1), (8, 0))
    with pytest.raises(ExchangeError, match=r"numpy\(\) reads memory"):
        tensor.numpy()


# ---- signatures --------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["", ".check", ".cuda", ".mpi", ".proto"])
def test_no_signature_shows_the_address_of_an_object(module: str) -> None:
    """As `help` and the reference print them."""
    space = import_module(f"dlbridge{module}")
    for name in getattr(space, "__all__", dir(space)):
        try:
            shown = str(inspect.signature(getattr(space, name)))
        except (TypeError, ValueError):  # no function, or one of C that does not tell
            continue
        assert " object at 0x" not in shown, name


# ---- the library of the core -------------------------------------------------------------------


def test_the_library_of_the_core_shows_other_libraries_its_entries_alone() -> None:
    """Python's, and ONNX Runtime's; names that begin with two underscores are of compilers."""
    (library,) = Path(dlbridge._core.__file__).parent.glob("_cffi*.so")
    shown = [name for name in Image(library).names() if not name.startswith("__")]
    assert sorted(shown) == ["PyInit__cffi", "PyInit__native", "RegisterCustomOps"]
