"""PyTorch's own rules: what its memory does not say, and every policy."""

from __future__ import annotations

import gc
import io
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import convert, from_dlpack, to_numpy, to_torch
from dlbridge._core import native
from dlbridge.frameworks import torch as adapter
from dlbridge.frameworks.torch import internals as torch_guard
from dlbridge.frameworks.torch import proofs
from peers.checks import receipt_of, refused
from peers.readers import filled

torch = pytest.importorskip("torch")

# ---- what is refused ---------------------------------------------------------------------------


class _Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def _resized() -> Any:
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    return x


def _shrunk() -> Any:
    x = torch.ones(3)
    x.untyped_storage().resize_(8)
    return x


def _uninitialised() -> Any:
    return torch.nn.LazyLinear(3).weight


REFUSED = {
    "uninitialised": ("lazy", _uninitialised),
    "uninitialised buffer": ("lazy", lambda: torch.nn.parameter.UninitializedBuffer()),
    "fake": ("lazy", _fake),
    "meta": ("lazy", lambda: torch.ones(3, device="meta")),
    "resized": ("null_data", _resized),
    "shrunk": ("null_data", _shrunk),
    "dispatching": ("subclass", lambda: torch.ones(3).as_subclass(_Dispatching)),
    "sparse": ("sparse", lambda: torch.eye(3).to_sparse()),
    "sparse rows": ("sparse", lambda: torch.eye(3).to_sparse_csr()),
    "nested": ("sparse", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    "mkldnn": ("sparse", lambda: torch.ones(3, 3).to_mkldnn()),
    "quantised": (
        "quantized",
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    ),
    "bits": ("dtype", lambda: torch.empty(3, dtype=torch.bits8)),
    "grad": ("requires_grad", lambda: torch.ones(3, requires_grad=True)),
    "parameter": ("requires_grad", lambda: torch.nn.Parameter(torch.ones(3))),
    "result": ("requires_grad", lambda: torch.ones(3, requires_grad=True) * 2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_tensors_without_plain_memory_are_refused(name: str) -> None:
    reason, make = REFUSED[name]
    if name == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no mkldnn")
    for call in (from_dlpack, to_numpy, dlbridge.as_tensor):
        refused(reason, call, make())


def test_tensors_inside_vmap_are_refused() -> None:
    reasons: list[str] = []

    def inside(x: Any) -> Any:
        for call in (from_dlpack, to_numpy):
            reasons.append(refused("lazy", call, x))
        return x

    torch.vmap(inside)(torch.ones(2, 3))
    torch.func.grad(lambda x: inside(x).sum())(torch.ones(3))
    assert len(reasons) == 4


def test_inside_vmap_a_known_type_does_not_take_the_c_path_by_mistake() -> None:
    assert to_numpy(torch.ones(2)).tolist() == [1, 1]  # the type is known from here on
    torch.vmap(lambda x: (refused("lazy", to_numpy, x), x)[1])(torch.ones(2, 3))


@pytest.mark.parametrize("nbytes", [4, 8, 44])
def test_a_tensor_that_reaches_beyond_its_storage_is_refused(nbytes: int) -> None:
    """`resize_` of the storage leaves the tensor's shape as it was: it would read foreign memory.

    The log makes the exchange take the Python path, where that is looked at.
    """
    for view in (torch.ones(12), torch.ones(3, 4).T, torch.ones(12)[11:]):
        view.untyped_storage().resize_(nbytes)
        with dlbridge.receipts():
            text = refused("null_data", from_dlpack, view)
        assert f"resized to {nbytes}" in text
    empty = torch.ones(12)[:0]
    empty.untyped_storage().resize_(nbytes)
    with dlbridge.receipts():
        assert from_dlpack(empty).shape == (0,)


def test_a_tensor_that_stays_in_torch_is_described_with_its_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    receipt = receipt_of(x, "torch")
    foreseen = dlbridge.explain(x, "torch")
    for seen in (receipt, foreseen):
        assert (seen.route, seen.nbytes, seen.shape) == ("identity", 12, (3,))
        assert (seen.dtype, seen.device, seen.data_ptr_in) == ("float32", "cpu", x.data_ptr())
    assert receipt.data_ptr_out == x.data_ptr()


# ---- what is resolved --------------------------------------------------------------------------

LAZY = {
    "conjugate": (lambda: torch.tensor([1 + 2j]).conj(), [1 - 2j]),
    "negative_bit": (lambda: torch.tensor([1 + 2j]).conj().imag, [-2]),
    "lazy": (lambda: torch._efficientzerotensor(2), [0, 0]),
}


@pytest.mark.parametrize("reason", LAZY)
def test_lazy_tensors_are_resolved_by_a_copy(reason: str) -> None:
    make, values = LAZY[reason]
    x = make()
    for call in (from_dlpack, to_numpy):
        assert call(x).tolist() == values
    receipt = receipt_of(x, "numpy")
    assert (receipt.copied_by, receipt.why) == ("torch", reason)
    assert "copy=False" in refused(reason, to_numpy, x, copy=False)


def test_conjugate_and_negative_at_once() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    both = torch._neg_view(x.conj())
    assert both.is_neg()
    assert both.is_conj()
    assert to_numpy(both).tolist() == [-1 + 2j, -3 - 1j]


# ---- policies ----------------------------------------------------------------------------------


def test_grad() -> None:
    x = torch.ones(3, requires_grad=True)
    text = refused("requires_grad", to_numpy, x)
    assert "detach" in text
    y = to_numpy(x, grad="detach")
    assert y.ctypes.data == x.data_ptr()
    assert to_numpy(torch.nn.Parameter(torch.ones(2)), grad="detach").tolist() == [1, 1]
    assert to_torch(x) is x  # nothing is lost in its own framework


def test_where_nothing_is_recorded_no_gradient_is_lost() -> None:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return to_torch(to_numpy(x) * 2)

        @staticmethod
        def backward(context: Any, grad: Any) -> Any:
            return to_torch(to_numpy(grad) * 2)

    x = torch.nn.Parameter(torch.ones(3))
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            assert to_numpy(x).ctypes.data == from_dlpack(x).data_ptr == x.data_ptr()
        refused("requires_grad", to_numpy, x)
    y = Function.apply(x)
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([2] * 3, [2] * 3)


def test_readonly() -> None:
    x = filled((4,), "float32")
    x.flags.writeable = False
    refused("readonly", to_torch, x)
    refused("readonly", to_torch, x, readonly="copy", copy=False)
    assert to_torch(x, readonly="share").data_ptr() == x.ctypes.data
    copied = to_torch(x, readonly="copy")
    assert copied.data_ptr() != x.ctypes.data
    assert receipt_of(x, "torch", readonly="copy").why == "readonly"
    assert receipt_of(x, "torch", copy=True).why == "requested"


def test_copy() -> None:
    x = filled((4,), "float32")
    assert to_torch(x, copy=False).data_ptr() == x.ctypes.data
    copied = to_torch(x, copy=True)
    assert copied.data_ptr() != x.ctypes.data
    own = torch.ones(3)
    assert to_torch(own, copy=True).data_ptr() != own.data_ptr()
    assert to_torch(own) is own


def test_layout() -> None:
    x = filled((4, 6), "float32")
    assert to_torch(x.T).stride() == (1, 6)
    assert to_torch(x.T, layout="contiguous").is_contiguous()
    refused("strides", to_torch, x[::-1], copy=False)
    channels_last = torch.ones(1, 3, 4, 5).to(memory_format=torch.channels_last)
    if hasattr(torch.Tensor, adapter._TABLE):  # older torch exports a stride of 1 there
        assert from_dlpack(channels_last).strides == channels_last.stride()


def test_device() -> None:
    x = filled((3,), "float32")
    assert to_torch(x, device="cpu").data_ptr() == x.ctypes.data
    refused("device", to_torch, x, device="cuda:0")
    refused("device", from_dlpack, torch.ones(3), device="cuda:0")


def test_immutable() -> None:
    x = filled((3,), "float32")
    assert to_torch(x, immutable="respect").data_ptr() == x.ctypes.data  # NumPy's is mutable


# ---- subclasses and dtypes ---------------------------------------------------------------------


def test_subclasses_that_own_plain_memory() -> None:
    class Plain(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Plain)
    assert from_dlpack(x).data_ptr == x.data_ptr()
    assert type(to_torch(x)) is torch.Tensor
    buffer = torch.nn.Buffer(torch.ones(2)) if hasattr(torch.nn, "Buffer") else torch.ones(2)
    assert from_dlpack(buffer).shape == (2,)
    with torch.inference_mode():
        inference = torch.ones(3)
    assert from_dlpack(inference).data_ptr == inference.data_ptr()


class Refusing(torch.Tensor):
    """A subclass that allows nothing of a tensor, as torch's ReadOnlyTensorWrapper."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("nothing is allowed")


class ReadOnly(Refusing):
    """One that has an export of its own."""

    def __dlpack__(self, **asked: Any) -> object:
        with torch._C.DisableTorchFunctionSubclass():
            array = self.as_subclass(torch.Tensor).numpy()
        array.flags.writeable = False
        return array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize("call", [from_dlpack, dlbridge.as_tensor, to_numpy, to_torch])
def test_a_subclass_that_allows_nothing_is_refused(call: Any) -> None:
    x = torch.ones(3).as_subclass(Refusing)
    name = f"{call.__name__}: "
    with pytest.raises(dlbridge.ExchangeError, match=f"^{name}.*nothing is allowed") as caught:
        call(x)
    assert caught.value.reason == "producer"
    assert type(caught.value.__cause__) is RuntimeError


def test_a_subclass_is_asked_for_the_export_that_it_has() -> None:
    wrap: Any = lambda x: x.as_subclass(ReadOnly)  # noqa: E731
    own = getattr(torch.utils.dlpack, "ReadOnlyTensorWrapper", None)  # from torch 2.14
    for make in filter(None, (wrap, own)):
        plain = torch.ones(3)
        x = make(plain)
        assert from_dlpack(x).readonly
        assert not to_numpy(x).flags.writeable
        assert to_numpy(x).ctypes.data == plain.data_ptr()
        refused("readonly", to_torch, x)
        assert to_torch(x, readonly="copy").tolist() == [1, 1, 1]


@pytest.mark.fact(49)
def test_a_backward_pass_that_failed_keeps_tensors_until_the_next() -> None:
    class Saves(torch.autograd.Function):
        saved: Any = None

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            saved = x * 2
            ctx.save_for_backward(saved)
            Saves.saved = weakref.ref(saved)
            return saved.clone()

    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            raise ValueError("no gradient")

    def run_backward() -> None:
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(ValueError, match="no gradient"):
            (Saves.apply(x) + Raises.apply(x)).sum().backward()

    run_backward()
    gc.collect()
    assert Saves.saved() is not None
    torch.ones(3, requires_grad=True).sum().backward()
    assert Saves.saved() is None


@pytest.mark.skipif(not hasattr(torch, "_lazy_clone"), reason="this torch copies at once")
def test_a_copy_on_write_tensor_is_copied_where_it_may_be_written() -> None:
    """torch makes the copy when it hands out the memory; a kernel that reads leaves it be."""
    twice = dlbridge.wrap(lambda x: x * 2, "cow::twice(x: f32[n]) -> f32[n]", abi="python:numpy")
    add = dlbridge.wrap(lambda x: x.__iadd__(1), "cow::add(x!: f32[n])", abi="python:numpy")
    x = torch.ones(3)
    shared = torch._lazy_clone(x)
    for _ in range(3):
        assert twice(shared).tolist() == [2, 2, 2]
        if torch.__version__ >= (2, 10):  # which has a function for a pointer to read from
            assert torch._C._is_cow_tensor(shared)
    add(shared)
    to_numpy(written := torch._lazy_clone(x))[0] = 7
    assert (x.tolist(), shared.tolist(), written.tolist()) == ([1] * 3, [2] * 3, [7, 1, 1])


DTYPES = {
    "bool": (6, 8, 1),
    "uint8": (1, 8, 1),
    "uint16": (1, 16, 1),
    "uint32": (1, 32, 1),
    "uint64": (1, 64, 1),
    "int8": (0, 8, 1),
    "int64": (0, 64, 1),
    "float16": (2, 16, 1),
    "float64": (2, 64, 1),
    "bfloat16": (4, 16, 1),
    "complex32": (5, 32, 1),
    "bcomplex32": (18, 32, 1),
    "complex64": (5, 64, 1),
    "complex128": (5, 128, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e4m3fnuz": (11, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_round(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    if name.startswith("float8") and not hasattr(torch.Tensor, adapter._TABLE):
        pytest.skip(f"torch {torch.__version__} exports no float8")
    dtype = getattr(torch, name)
    size = torch.empty(0, dtype=dtype).element_size()
    x = (torch.arange(4 * size) % 2).to(torch.uint8).view(dtype)
    tensor = from_dlpack(x)
    assert tensor.dtype.triple == DTYPES[name]
    assert tensor.dtype == dtype
    back = to_torch(tensor)
    assert back.dtype == dtype
    assert back.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("triple", [(0, 4, 1), (1, 1, 1), (15, 6, 1), (7, 8, 1), (3, 64, 1)])
def test_dtypes_that_torch_lacks_are_refused(triple: tuple[int, int, int]) -> None:
    refused("dtype", to_torch, native.allocate((4,), triple))


def test_vectors_are_refused() -> None:
    refused("lanes", to_torch, native.allocate((4,), (2, 32, 4)))


def test_broadcast_zero_size_and_scalars() -> None:
    wide = torch.ones(3).expand(4, 3)
    assert from_dlpack(wide).strides == (0, 1)
    assert to_numpy(wide).shape == (4, 3)
    assert to_numpy(torch.empty(0, 3)).shape == (0, 3)
    assert to_numpy(torch.tensor(2.5)).tolist() == 2.5
    assert to_torch(np.empty((0, 3), "float32")).shape == (0, 3)


# ---- the fall-backs ----------------------------------------------------------------------------


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Classify types again within the test, and once more after it."""
    native.forget_types()
    yield
    native.forget_types()


def _observe(x: Any) -> tuple[Any, ...]:
    tensor = from_dlpack(x)
    array = to_numpy(x)
    return (tensor.shape, tensor.strides, tensor.data_ptr, tensor.dtype.triple, array.tolist())


CASES = [
    lambda: torch.arange(6.0).reshape(2, 3),
    lambda: torch.arange(6.0).reshape(2, 3).T[1:],
    lambda: torch.tensor(3, dtype=torch.int8),
    lambda: torch.tensor([True, False]),
]


@pytest.mark.parametrize("missing", ["libtorch", "symbols", "table"])
def test_without_the_guard_or_the_table_all_is_as_before(
    missing: str, monkeypatch: pytest.MonkeyPatch, forgotten: None
) -> None:
    tensors = [make() for make in CASES]
    before = [_observe(x) for x in tensors]
    if missing == "table":
        monkeypatch.setattr(adapter, "_TABLE", "__no_such_table__")
    else:
        monkeypatch.setattr(adapter, "guard_is_open", lambda: False)
    native.forget_types()
    assert [_observe(x) for x in tensors] == before
    for name in ("grad", "sparse", "meta"):
        reason, make = REFUSED[name]
        refused(reason, from_dlpack, make())
    assert to_numpy(torch.tensor([1 + 2j]).conj().imag).tolist() == [-2]


def test_the_guard_does_not_open_without_its_library() -> None:
    sample = torch.ones(2)
    try:
        assert not native.torch_guard_open("/no/such.so", None, sample, torch.int8, torch.uint8)
        assert not native.torch_guard_allows(sample)
    finally:
        assert torch_guard._open_guard() == (proofs.proof() is not None)


def test_without_a_table_torch_still_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_TABLE", "__no_such_table__")
    x = filled((4, 6), "float32")
    with dlbridge.receipts() as log:
        y = to_torch(x)
    assert log[0].route.endswith("torch.from_dlpack")
    assert y.data_ptr() == x.ctypes.data
    assert y.shape == x.shape


# ---- known defects -----------------------------------------------------------------------------


@pytest.mark.preloaded("torch")
@pytest.mark.fact(1)
def test_negative_strides_are_copied_before_torch_sees_them(run_python: Callable[..., Any]) -> None:
    """torch 2.13 ends the process when it imports a negative stride."""
    run_python(
        """
        from importlib.util import find_spec
        import numpy as np, dlbridge, torch
        x = np.arange(6.0)[::-1]
        sources = [x, dlbridge.from_dlpack(x), dlbridge.to_numpy(x)]
        if find_spec("tvm_ffi"):
            sources.append(dlbridge.to_tvm(x))
        for source in sources:
            assert dlbridge.to_torch(source).tolist() == [5, 4, 3, 2, 1, 0]
            assert dlbridge.explain(source, "torch").why == "strides"
            try:
                dlbridge.to_torch(source, copy=False)
            except dlbridge.ExchangeError as error:
                assert error.reason == "strides"
            else:
                raise AssertionError("entered torch")
        """
    ).check()


@pytest.mark.fact(7)
def test_a_read_only_file_is_refused_copied_or_shared_on_request(tmp_path: Any) -> None:
    """torch ignores READ_ONLY: a write into a mapped file would end the process."""
    path = tmp_path / "x"
    np.arange(4.0).tofile(path)
    x = np.memmap(path, mode="r", dtype=np.float64)
    assert 'readonly="copy"' in refused("readonly", dlbridge.to_torch, x)
    copied = dlbridge.to_torch(x, readonly="copy")
    copied[0] = 7
    assert x[0] == 0
    shared = dlbridge.to_torch(x, readonly="share")
    assert shared.data_ptr() == x.ctypes.data


@pytest.mark.fact(13)
def test_lazy_signs_and_conjugations_are_kept() -> None:
    """torch exports the memory behind a lazy view: `conj().imag` would lose its sign."""
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert dlbridge.to_numpy(x.conj().imag).tolist() == [-2, 4]
    assert dlbridge.to_numpy(x.conj()).tolist() == [1 - 2j, 3 + 4j]
    refused("negative_bit", dlbridge.to_numpy, x.conj().imag, copy=False)
    refused("conjugate", dlbridge.to_numpy, x.conj(), copy=False)


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("kind", ["int", "uint"])
@pytest.mark.fact(13)
def test_integers_narrower_than_8_bits_are_refused(kind: str, bits: int) -> None:
    """torch exports int1 to int7 and uint1 to uint7 as 8-bit integers."""
    x = torch.empty(4, dtype=getattr(torch, f"{kind}{bits}"))
    refused("dtype", from_dlpack, x)


@pytest.mark.fact(13)
def test_tensors_without_memory_are_refused() -> None:
    """torch exports fake tensors and emptied storages with a NULL pointer."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    refused("lazy", from_dlpack, fake)
    gone = torch.ones(3)
    gone.untyped_storage().resize_(0)
    refused("null_data", from_dlpack, gone)


@pytest.mark.fact(13)
def test_a_gradient_is_refused_where_the_exchange_table_is_silent() -> None:
    """torch's C exchange table exports tensors that its `__dlpack__` refuses."""
    x = torch.ones(3, requires_grad=True)
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # torch 2.9 and later
        assert native.take_table(x, torch.Tensor.__dlpack_c_exchange_api__).shape == (3,)
    refused("requires_grad", from_dlpack, x)
    assert dlbridge.to_numpy(x, grad="detach").tolist() == [1, 1, 1]


@pytest.mark.fact(23)
def test_the_two_encodings_of_float4_are_told_apart() -> None:
    """torch stores pairs with 2 lanes, JAX single elements; neither imports the other's."""
    jax = pytest.importorskip("jax")
    if torch.__version__ < (2, 10):
        pytest.skip("torch exports float4 from 2.10 on")
    pairs = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert from_dlpack(pairs).dtype.triple == (17, 4, 2)
    refused("lanes", dlbridge.to_jax, pairs)
    single = jax.numpy.zeros(4, dtype=jax.numpy.float4_e2m1fn)
    assert from_dlpack(single).dtype.triple == (17, 4, 1)
    for source in (single, from_dlpack(single)):
        refused("dtype", convert, source, "torch")
    again = dlbridge.to_jax(from_dlpack(single))
    assert again.dtype == single.dtype
    assert again.tolist() == single.tolist()
    assert dlbridge.to_torch(from_dlpack(pairs)).dtype == torch.float4_e2m1fn_x2


@pytest.mark.fact(42)
def test_asarray_of_torch_reads_a_buffer_as_one_dimension() -> None:
    """It never asks for DLPack where there is a buffer; torch's other functions do.

    From 2.15 on it reads the dtype of the buffer, and before as float32 whatever there is.
    """
    x = dlbridge.arange(6, dtype="int32").reshape(2, 3)
    read = torch.float32 if torch.__version__ < (2, 15) else torch.int32
    assert torch.equal(torch.asarray(x), torch.frombuffer(x, dtype=read))
    for right in (dlbridge.to_torch, torch.from_dlpack, torch.as_tensor, torch.tensor):
        assert torch.equal(right(x), torch.arange(6, dtype=torch.int32).reshape(2, 3))


DATA = """
import gc
import io
import numpy as np

tensors = [dlbridge.from_dlpack(np.full(2, i)) for i in range(2)]
tensors[1] = tensors[1]._view((2,), (1,), set_flags=1)  # read-only: a batch is a copy
batch = torch.utils.data.default_collate([{"x": tensor, "y": 1} for tensor in tensors])
assert batch["x"].tolist() == [[0, 0], [1, 1]]
assert batch["x"].data_ptr() not in [tensor.data_ptr for tensor in tensors]
loader = torch.utils.data.DataLoader(tensors, batch_size=2, num_workers=1)
assert next(iter(loader)).tolist() == [[0, 0], [1, 1]]
if hasattr(torch.serialization, "add_safe_globals"):
    file = io.BytesIO()
    torch.save({"x": tensors[0]}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["x"].tolist() == [0, 0]
"""


@pytest.mark.fast(lambda order: order == "import dlbridge, torch")
@pytest.mark.subprocess
@pytest.mark.parametrize("order", ["import dlbridge, torch", "import torch, dlbridge"])
def test_torch_collates_tensors_and_loads_them_as_safe(run_python: Any, order: str) -> None:
    """Without a call of dlbridge that would need its adapter, whichever is imported first."""
    run_python(f"{order}\n{DATA}").check()


@pytest.mark.fact(45)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.skipif(
    not hasattr(torch.serialization, "add_safe_globals"), reason="torch has no safe reader"
)
def test_the_safe_reader_of_torch_reads_protocol_2() -> None:
    """It knows no opcode of protocol 3 for bytes, whatever they belong to."""

    def loaded(value: Any, protocol: int) -> Any:
        file = io.BytesIO()
        torch.save(value, file, pickle_protocol=protocol)
        file.seek(0)
        return torch.load(file, weights_only=True)

    x = dlbridge.arange(6, dtype="int32").reshape(2, 3)
    found = loaded({"x": x, "b": b"bytes"}, torch.serialization.DEFAULT_PROTOCOL)
    assert (found["x"].tolist(), found["b"]) == (x.tolist(), b"bytes")
    for value, protocol in ((x, 3), (b"bytes", 3), (x, 4), ([1], 4)):
        with pytest.raises(pickle.UnpicklingError, match="Unsupported operand"):
            loaded(value, protocol)


@pytest.mark.full
@pytest.mark.fact(46)
@pytest.mark.preloaded("torch")
@pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="before 2.13 exchanges break graphs, without our reason"
)
def test_torch_compile_makes_read_only_arrays_writable(run_python: Any) -> None:
    """Without dlbridge as well: the flag is gone once dynamo has looked at the array."""
    run_python(
        """
        import numpy as np, torch

        x = np.zeros(3, np.float32)
        x.flags.writeable = False
        torch.compile(lambda x: torch.from_numpy(x) + 1, backend="eager")(x)
        assert x.flags.writeable
        x.flags.writeable = False

        import dlbridge
        convert = torch.compile(dlbridge.to_torch, backend="eager", fullgraph=True)
        try:
            convert(x)
        except RuntimeError as error:
            assert "outside of the compiled function" in str(error)
        else:
            raise AssertionError("read-only memory was shared")
        """
    ).check()


CRASH = """
import numpy as np
import torch

raw = np.zeros(64, np.uint8)
start = -raw.ctypes.data % 16 + 8
torch.from_numpy(raw[start : start + 48].view(np.complex128)).clone()
"""


@pytest.mark.fact(43)
@pytest.mark.subprocess
def test_complex_memory_that_torch_crashes_on_is_copied() -> None:
    """Elements of 16 bytes at a multiple of 8, where NumPy may have them."""
    raw = np.zeros(64, np.uint8)
    start = -raw.ctypes.data % 16 + 8
    x = raw[start : start + 48].view(np.complex128)
    x[...] = [1, 2j, 3]
    with dlbridge.receipts() as receipts:
        found = dlbridge.to_torch(x)
    assert receipts[0].why == "alignment"
    assert found.clone().tolist() == [1, 2j, 3]
    assert (found.data_ptr() % 16, x.ctypes.data % 16) == (0, 8)
    refused("alignment", dlbridge.to_torch, x, copy=False)
    (leaf,) = dlbridge.convert_tree([x], "torch")
    assert leaf.data_ptr() % 16 == 0
    narrow = x.view(np.complex64)  # and no other dtype
    assert dlbridge.to_torch(narrow).data_ptr() == narrow.ctypes.data
    kernel = dlbridge.wrap(
        lambda x: x.clone(), "half_aligned::clone(x: c128[n]) -> c128[n]",
        abi="python:torch",
    )  # fmt: skip
    assert kernel(x).tolist() == [1, 2j, 3]


@pytest.mark.full
@pytest.mark.subprocess
def test_torch_itself_crashes_on_complex_memory_at_a_multiple_of_8() -> None:
    """When this fails, line 43 of docs/peers.md is out of date, and the copy may be."""
    if not torch.__version__.startswith(("2.11.", "2.13.")):
        pytest.skip(f"tried with torch 2.11 and 2.13 only, this is {torch.__version__}")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CRASH], capture_output=True)
    assert done.returncode == -signal.SIGSEGV
