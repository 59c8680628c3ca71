"""to_pytorch_func and its family, convert_func: as TVM's, and where TVM's refuse."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError

NAMES = {
    "to_pytorch_func": "torch",
    "to_jax_func": "jax",
    "to_numpy_func": "numpy",
    "to_cupy_func": "cupy",
    "to_tensorflow_func": "tensorflow",
    "to_mxnet_func": "mxnet",
    "to_paddle_func": "paddle",
    "to_tvm_func": "tvm",
}


@pytest.fixture(scope="module")
def product(matmul: Any) -> Any:
    """Return two matrices and their product."""
    a, b = np.random.default_rng(0).random((2, 4, 4), "f4")
    return a, b, a @ b


# ---- the family ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "framework_name"), NAMES.items())
def test_a_kernel_gives_its_own_bound_function(
    name: str, framework_name: str, framework: Any, compiled: Any
) -> None:
    """So compilers see one function, however it was asked for."""
    framework({"tvm": "tvm_ffi"}.get(framework_name, framework_name))
    kernel = compiled("axpy")
    assert getattr(dlbridge, name)(kernel) is getattr(kernel, framework_name)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_without_an_abi_is_refused(name: str) -> None:
    """wrap takes the abi."""
    with pytest.raises(ArgumentError, match="does not say whose tensors it takes"):
        getattr(dlbridge, name)(lambda x: x)
    with pytest.raises(UnsupportedTypeError, match="never taken for an address"):
        getattr(dlbridge, name)(4711)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_documented_under_its_name(name: str) -> None:
    """They are made by one maker."""
    function = getattr(dlbridge, name)
    assert function.__name__ == name
    assert "Args:" in function.__doc__


# ---- against TVM's own ---------------------------------------------------------------------------


def test_to_pytorch_func_does_what_tvms_does(framework: Any, matmul: Any, product: Any) -> None:
    """The module and its function, writing into the last tensor, returning None."""
    torch = framework("torch")
    from tvm.contrib.dlpack import to_pytorch_func as peer

    a, b, c = (torch.from_numpy(each).clone() for each in product)
    for function in (matmul, matmul["main"]):
        mine, theirs = torch.zeros(4, 4), torch.zeros(4, 4)
        assert peer(function)(a, b, theirs) is None
        assert dlbridge.to_pytorch_func(function)(a, b, mine) is None
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, c)


def test_views_that_tvm_refuses_work(framework: Any, matmul: Any) -> None:
    """Misaligned and strided tensors, as inputs and as the destination."""
    torch = framework("torch")
    from tvm.contrib.dlpack import to_pytorch_func as peer

    a, b = torch.rand(4, 4).T, torch.rand(17)[1:].reshape(4, 4)
    out = torch.zeros(4, 8)[:, ::2]
    for x, y, z in ((a, b, torch.zeros(4, 4)), (b, b.clone(), out)):
        with pytest.raises(Exception, match=r"align|contiguous|strides|compact"):
            peer(matmul)(x, y, z)
        dlbridge.to_pytorch_func(matmul)(x, y, z)
        torch.testing.assert_close(z, x @ y)


def test_errors_of_tvm_come_as_they_are(framework: Any, matmul: Any) -> None:
    """A wrong dtype or number of arguments is TVM's own TypeError."""
    torch = framework("torch")
    function = dlbridge.to_pytorch_func(matmul)
    x = torch.zeros(4, 4)
    with pytest.raises(TypeError, match=r"Expected 3 arguments"):
        function(x, x.clone())
    with pytest.raises(TypeError, match=r"Mismatched a\.dtype on argument #0"):
        function(x.double(), x, x.clone())


def test_gradients_are_refused_and_not_dropped(framework: Any, matmul: Any) -> None:
    """TVM's own drops them without a word."""
    torch = framework("torch")
    x = torch.zeros(4, 4, requires_grad=True)
    y, out = torch.zeros(4, 4), torch.zeros(4, 4)
    with pytest.raises(ExchangeError) as caught:
        dlbridge.to_pytorch_func(matmul)(x, y, out)
    assert caught.value.reason == "requires_grad"
    with torch.no_grad():
        dlbridge.to_pytorch_func(matmul)(x, y, out)


def test_the_destination_counts_its_version(framework: Any, matmul: Any) -> None:
    """Autograd must notice that a saved tensor has changed."""
    torch = framework("torch")
    x, out = torch.ones(4, 4), torch.zeros(4, 4)
    strided = torch.zeros(4, 8)[:, ::2]
    for destination in (out, strided):
        version = destination._version
        dlbridge.to_pytorch_func(matmul)(x, x.clone(), destination)
        assert destination._version > version


def test_calls_with_numbers_keep_the_rules_of_autograd(framework: Any) -> None:
    """They take the Python path: gradients are refused, versions counted."""
    torch, tvm_ffi = framework("torch"), framework("tvm_ffi")

    def fill(n: int, out: Any) -> int:
        np.from_dlpack(out)[:] = n
        return n

    function = dlbridge.to_pytorch_func(tvm_ffi.convert(fill))
    parameter = torch.zeros(4, requires_grad=True)
    with pytest.raises(ExchangeError, match="requires a gradient"):
        function(3, parameter)
    with torch.no_grad():
        version = parameter._version
        assert function(3, parameter) == 3
        assert parameter.tolist() == [3] * 4
        assert parameter._version > version


def test_writes_beside_the_last_tensor_are_not_lost(framework: Any) -> None:
    """Nobody said so, but TVM's functions may have several destinations."""
    tvm_ffi = framework("tvm_ffi")

    def fill(low: Any, high: Any) -> None:
        np.from_dlpack(low)[:], np.from_dlpack(high)[:] = 1, 2

    low, high = np.zeros((2, 8), "f4")[:, ::2]
    dlbridge.to_numpy_func(tvm_ffi.convert(fill))(low, high)
    assert (low.tolist(), high.tolist()) == ([1] * 4, [2] * 4)


@pytest.mark.parametrize("name", ["to_numpy_func", "to_tvm_func"])
def test_other_frameworks_get_the_same(
    name: str, framework: Any, matmul: Any, product: Any
) -> None:
    """In place, in the caller's own memory."""
    framework("tvm_ffi")
    a, b, c = product
    out = np.zeros((4, 4), "f4")
    into = {"to_numpy_func": lambda x: x, "to_tvm_func": dlbridge.to_tvm}[name]
    destination = into(out)
    getattr(dlbridge, name)(matmul)(into(a), into(b), destination)
    np.testing.assert_allclose(dlbridge.to_numpy(destination), c, rtol=1e-5)


def test_jax_arrays_are_never_a_destination(framework: Any, matmul: Any) -> None:
    """tvm-ffi itself writes into them; here what would be written is a new array."""
    jnp = framework("jax.numpy")
    x, out = jnp.ones((4, 4)), jnp.zeros((4, 4))
    kernel = dlbridge.wrap(matmul)
    for function in (kernel, kernel.jax):
        assert float(function(x, x, out).sum()) == 64
        assert float(out.sum()) == 0


def test_tensorflow_needs_a_schema(framework: Any, matmul: Any) -> None:
    """Its tensors are immutable, and its graphs want to know shapes beforehand."""
    framework("tensorflow")
    with pytest.raises(UnsupportedTypeError, match="wrap the kernel with a schema"):
        dlbridge.to_tensorflow_func(matmul)


def test_a_callable_of_torch_says_whose_tensors_it_takes(framework: Any) -> None:
    """Modules of torch and functions of NumPy need no abi; results come back converted."""
    torch = framework("torch")
    layer = torch.nn.Linear(3, 2).requires_grad_(False)
    x = np.ones(3, "f4")
    result = dlbridge.to_numpy_func(layer)(x)
    assert type(result) is np.ndarray
    np.testing.assert_allclose(result, layer(torch.ones(3)).numpy())
    assert torch.equal(dlbridge.to_pytorch_func(np.add)(torch.ones(2), torch.ones(2)),
                       torch.full((2,), 2.0))  # fmt: skip


# ---- convert_func --------------------------------------------------------------------------------


def test_convert_func_is_tvms(framework: Any, matmul: Any, product: Any) -> None:
    """The same arguments, the same effect: a drop-in."""
    torch = framework("torch")
    from torch.utils.dlpack import to_dlpack
    from tvm.contrib.dlpack import convert_func as peer

    a, b, c = (torch.from_numpy(each).clone() for each in product)
    for convert in (peer, dlbridge.convert_func):
        out = torch.zeros(4, 4)
        assert convert(matmul["main"], torch.Tensor, to_dlpack)(a, b, out) is None
        torch.testing.assert_close(out, c)


def test_convert_func_leaves_other_arguments_alone(framework: Any) -> None:
    """Only instances of the named class are converted."""
    tvm_ffi = framework("tvm_ffi")
    function = tvm_ffi.convert(lambda x, n, text: f"{x.shape[0] + n} {text}")
    call = dlbridge.convert_func(function, np.ndarray, lambda x: x.__dlpack__())
    assert call(np.zeros(3, "f4"), 4, "dogs") == "7 dogs"


def test_convert_func_takes_kernels_and_callables(compiled: Any) -> None:
    """They get Tensors over the same memory."""
    x, out = np.arange(3, dtype="f4"), np.zeros(3, "f4")
    into = dlbridge.convert_func(compiled("add", None), np.ndarray, lambda x: x.__dlpack__())
    assert into(x, x, out) is None
    assert out.tolist() == [0, 2, 4]
    seen = dlbridge.convert_func(lambda *args: args, np.ndarray, lambda x: x)(x, 1)
    assert type(seen[0]) is dlbridge.Tensor
    assert (seen[0].data_ptr, seen[1]) == (x.ctypes.data, 1)


def test_convert_func_refuses_what_cannot_be_called() -> None:
    """When it is made, not when it is called."""
    with pytest.raises(UnsupportedTypeError, match="to_dlpack_func must be a function"):
        dlbridge.convert_func(lambda x: x, np.ndarray, 7)
    with pytest.raises(UnsupportedTypeError, match="convert_func:"):
        dlbridge.convert_func(7, np.ndarray, lambda x: x)


def test_bound_functions_tell_their_signature() -> None:
    """They are builtin functions, whose text `inspect` reads."""
    kernel = dlbridge.wrap(
        lambda x, by, mode: by * x,
        "functions_signed::scale(x: f32[n], *, by: float = 2.0, mode: str? = None) -> f32[n]",
        abi="python:numpy",
    )
    signature = "(x, *, by=2.0, mode=None, out=None)"
    assert str(inspect.signature(kernel.numpy)) == signature
    assert kernel.numpy.__doc__ == kernel.__doc__
