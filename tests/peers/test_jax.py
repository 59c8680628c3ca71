"""JAX's own rules: one device, no 64-bit types by default, values that never change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import UnsupportedTypeError, explain, from_dlpack, to_jax, to_numpy, to_torch
from dlbridge._core import native
from dlbridge.frameworks import jax as adapter
from peers.checks import receipt_of, refused
from peers.readers import filled

jax = pytest.importorskip("jax")
jnp = jax.numpy


def test_tracers_are_refused() -> None:
    reasons: list[str] = []

    def inside(x: Any) -> Any:
        for call in (from_dlpack, to_numpy):
            reasons.append(refused("lazy", call, x))
        return x.sum()

    jax.jit(inside)(jnp.ones(3))
    jax.grad(inside)(jnp.ones(3))
    jax.vmap(inside)(jnp.ones((2, 3)))
    assert len(reasons) == 6


@pytest.mark.parametrize(
    "call",
    [
        jnp.sin,
        jax.jit(lambda x: x),
        jax.grad(lambda x: x.sum()),
        jax.vmap(lambda x: x),
        jax.device_put,
    ],
    ids=["sin", "jit", "grad", "vmap", "device_put"],
)
def test_jax_says_what_to_do_with_a_tensor(call: Any) -> None:
    """JAX takes no foreign objects where it compiles; its own text speaks of its insides."""
    tensor = from_dlpack(np.ones(3, "float32"))
    with pytest.raises(dlbridge.ArgumentError, match=r"pass dlbridge\.to_jax\(tensor\)"):
        call(tensor)
    assert call(to_jax(tensor)) is not None
    assert jnp.asarray(tensor).tolist() == [1, 1, 1]


def test_deleted_and_donated_arrays_are_refused(framework: Any) -> None:
    framework("torch")
    x = jnp.ones(3)
    assert to_numpy(x).tolist() == [1, 1, 1]  # its type is known from here on
    x.delete()
    for call in (from_dlpack, to_numpy, to_torch):
        assert "deleted" in refused("lazy", call, x)


def test_keys_and_abstract_shapes_are_refused() -> None:
    refused("lazy", from_dlpack, jax.random.key(0))
    with pytest.raises(UnsupportedTypeError):
        from_dlpack(jax.ShapeDtypeStruct((3,), "float32"))


_FIRST_USES = {
    "jit": "jax.jit(lambda x: (meet(), x)[1])(1.0)",
    "scan": "jax.lax.scan(lambda carry, x: (meet(), (carry, x))[1], 1.0, np.ones(3))",
    "eval_shape": "jax.eval_shape(lambda x: (meet(), x)[1], 1.0)",
    "guard": "jax.config.update('jax_transfer_guard', 'disallow_explicit'); dlbridge.to_numpy(x)",
}


@pytest.mark.preloaded("jax")
@pytest.mark.parametrize("place", _FIRST_USES)
def test_the_first_array_may_be_met_inside_of_a_trace(run_python: Any, place: str) -> None:
    """What JAX can do is found out at once there too, and holds from then on."""
    code = f"""
        import jax, ml_dtypes, numpy as np, dlbridge
        from dlbridge._core import native
        x = jax.numpy.arange(3.0)
        def meet():
            assert dlbridge.to_numpy(x).tolist() == [0, 1, 2]
            assert native.take(x) is not None
            for name in ("int4", "bfloat16", "float32"):
                array = np.ones(2, getattr(ml_dtypes, name, None) or name)
                made = dlbridge.to_jax(array)
                assert made.dtype == array.dtype and isinstance(made, jax.Array)
                assert not isinstance(made, jax.core.Tracer)
        {_FIRST_USES[place]}
        jax.config.update("jax_transfer_guard", "allow")
        meet()
        print("done")
    """
    assert run_python(code).check().strip() == "done"


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
def test_a_version_without_the_private_names_is_read_in_c(run_python: Callable[..., Any]) -> None:
    """Python's buffer protocol and public attributes serve; imports take jax.dlpack."""
    run_python(
        """
        import jax, jax.numpy as jnp, numpy as np
        import dlbridge
        from dlbridge._core import native
        from dlbridge.frameworks import jax as adapter

        adapter._jaxlib_functions = lambda: None
        adapter._sample = lambda: None  # as if a sharding had no `_device`
        adapter._has_buffers = lambda: True
        x = jnp.arange(6.0).reshape(2, 3)
        assert native.take(x) is not None
        array = dlbridge.to_numpy(x)
        assert array.ctypes.data == x.unsafe_buffer_pointer() and not array.flags.writeable
        assert dlbridge.to_numpy(jnp.arange(3, dtype=jnp.bfloat16)).tolist() == [0, 1, 2]
        assert dlbridge.to_jax(np.ones(3, "f")).tolist() == [1, 1, 1]
        kernel = dlbridge.wrap(lambda x: x + 1, "old::inc(x: f32[n]) -> f32[n]", abi="python:numpy")
        assert kernel(jnp.ones(2)).tolist() == [2, 2]
        """
    ).check()


@pytest.mark.subprocess
def test_arrays_over_two_devices(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import dlbridge, jax, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices("cpu")), ("x",))
        spread = jax.device_put(jax.numpy.arange(8.0), NamedSharding(mesh, P("x")))
        for name in ("from_dlpack", "as_tensor", "to_dlpack", "to_numpy"):
            try:
                getattr(dlbridge, name)(spread)
            except dlbridge.ExchangeError as error:
                assert error.reason == "sharded", error
                assert str(error).startswith(f"{name}: "), error
                assert "spread over 2 devices" in str(error)
                assert "addressable_shards" in str(error)
            else:
                raise AssertionError("the other half is lost")
        whole = jax.device_put(jax.numpy.arange(8.0), NamedSharding(mesh, P()))
        for call in (dlbridge.from_dlpack, dlbridge.to_numpy):
            assert call(whole).tolist() == list(range(8))
        shard = spread.addressable_shards[1].data
        assert dlbridge.to_numpy(shard).tolist() == [4, 5, 6, 7]
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    ).check()


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_narrow_integers_are_copied_through_numpy(name: str) -> None:
    x = jnp.array([0, 1, 1, 0], getattr(jnp, name))
    tensor = from_dlpack(x)
    assert tensor.dtype == name
    assert to_numpy(x).tolist() == [0, 1, 1, 0]
    assert receipt_of(x, "numpy").copied_by == "jax"
    refused("dtype", from_dlpack, x, copy=False)


CONSTRUCTED = ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e8m0fnu"]


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_dtypes_that_jax_does_not_import_are_copied_by_its_constructor(name: str) -> None:
    """Its own arrays have them, and neither of its imports of DLPack takes them."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = [[1, 2, 4], [2, 1, 2]] if name == "float8_e8m0fnu" else [[1, 0, 1], [0, 1, 1]]
    x = np.array(values, getattr(ml_dtypes, name))
    packed = from_dlpack(jnp.array(x))
    for source in (x, x.T, x[::-1], x[:, ::2], from_dlpack(x), packed, packed[:1], x[:0]):
        wanted = to_numpy(source, copy=True)
        for policies in ({}, {"copy": True}, {"layout": "contiguous"}, {"device": "cpu"}):
            result = to_jax(source, **policies)
            assert isinstance(result, jax.Array)
            assert result.dtype.name == name
            assert np.asarray(result).tobytes() == wanted.tobytes()
        refused("dtype", to_jax, source, copy=False)
    receipt = receipt_of(x, "jax")
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "jax", "dtype")
    result = to_jax(x)
    x[...] = x[0, 1]
    assert np.asarray(result).tolist() == values  # of its own memory
    assert from_dlpack(result).dtype == name


def test_the_dtype_policy_reaches_dtypes_that_jax_does_not_import() -> None:
    pytest.importorskip("ml_dtypes")
    result = to_jax(np.array([1, 0, 3], "int8"), dtype="int4")
    assert (result.dtype.name, result.tolist()) == ("int4", [1, 0, 3])


@pytest.mark.parametrize("name", ["int1", "uint1"])
def test_one_bit_integers_are_not_taken_for_bool(name: str) -> None:
    if not hasattr(jnp, name):
        pytest.skip(f"this JAX has no {name}")
    assert to_numpy(jnp.array([True])).tolist() == [True]  # the type is known from here on
    x = jnp.zeros(2, getattr(jnp, name))
    for call in (from_dlpack, to_numpy):
        refused("dtype", call, x)


DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32"]
DTYPES += ["bfloat16", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float8_e4m3"]
DTYPES += ["float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_round(name: str) -> None:
    x = jnp.array([[0, 1, 0], [1, 1, 0]]).astype(name)
    tensor = from_dlpack(x)
    assert tensor.dtype == name
    back = to_jax(tensor)
    assert back.dtype == x.dtype
    assert back.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
    assert to_numpy(back).tobytes() == np.asarray(x).tobytes()


@pytest.mark.parametrize("triple", [(5, 32, 1), (3, 64, 1), (15, 6, 1), (16, 6, 1)])
def test_dtypes_that_jax_lacks_are_refused(triple: tuple[int, int, int]) -> None:
    refused("dtype", to_jax, native.allocate((4,), triple))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_wide_types_need_x64(dtype: str) -> None:
    x = filled((4,), dtype)
    refused("dtype", to_jax, x)
    with jax.enable_x64(True):
        y = to_jax(x)
        assert y.dtype == dtype
        assert y.unsafe_buffer_pointer() == x.ctypes.data
        assert from_dlpack(y).dtype == dtype
    assert to_numpy(y).dtype == dtype  # an array of its time stays what it is


def test_x64_counts_as_it_is_at_the_call() -> None:
    """In a block, in a block inside of it, and by the setting of the process."""
    x = filled((4,), "float64")
    before = jax.config.jax_enable_x64
    try:
        for is_on in (True, False, True):
            jax.config.update("jax_enable_x64", is_on)
            with jax.enable_x64(not is_on):
                assert takes_wide(x) is not is_on
                with jax.enable_x64(is_on):
                    assert takes_wide(x) is is_on
                assert takes_wide(x) is not is_on
            assert takes_wide(x) is is_on
    finally:
        jax.config.update("jax_enable_x64", before)


def test_x64_of_one_thread_is_not_that_of_another() -> None:
    x = filled((4,), "int64")
    with ThreadPoolExecutor(1) as other:
        with jax.enable_x64(True):
            assert takes_wide(x)
            assert not other.submit(takes_wide, x).result()
        assert not takes_wide(x)

        def within() -> bool:
            with jax.enable_x64(True):
                return takes_wide(x)

        assert other.submit(within).result()
        assert not takes_wide(x)


def takes_wide(x: Any) -> bool:
    """Return whether JAX is given memory of a 64-bit dtype now; it is shared, or refused."""
    try:
        made = to_jax(x)
    except dlbridge.ExchangeError as error:
        if error.reason != "dtype":
            raise
        return False
    assert made.dtype == x.dtype
    assert made.unsafe_buffer_pointer() == x.ctypes.data
    return True


def test_a_weakly_typed_wide_array_goes_out_and_back() -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(1.5) * 2
        assert x.weak_type
        assert x.dtype == "float64"
        tensor = from_dlpack(x)
        assert (tensor.dtype, tensor.item()) == ("float64", 3.0)
        assert to_jax(tensor).unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
        assert to_jax(x) is x
    assert to_numpy(x) == 3.0
    refused("dtype", to_jax, tensor)


def test_layout_and_alignment() -> None:
    x = filled((4, 6), "float32")
    is_shared = to_jax(x.T).unsafe_buffer_pointer() == x.ctypes.data
    assert is_shared is adapter._takes_permuted()
    assert receipt_of(x[::2], "jax").why == "strides"
    assert receipt_of(filled((4,), "float32", 16), "jax").why == "alignment"
    refused("alignment", to_jax, filled((4,), "float32", 16), copy=False)
    refused("strides", to_jax, x[::2], copy=False)
    refused("strides", to_jax, x[::-1], copy=False)


def test_programs_compiled_for_rows_read_columns_in_their_order() -> None:
    """Some versions of JAX do not, so that such memory is copied for them."""
    x = filled((4, 6), "float32")
    x[:] = np.arange(24).reshape(4, 6)
    program = jax.jit(lambda array: array + 1)
    for _ in range(3):
        program(jnp.zeros((6, 4)))
    columns = to_jax(x.T)
    for found in (columns, program(columns) - 1, jnp.sin(columns).at[:].set(columns)):
        assert np.array_equal(found, x.T)


@pytest.mark.fact(44)
def test_an_array_without_elements_needs_no_copy() -> None:
    """Wherever it lies; JAX itself refuses it."""
    for x in (filled((4,), "float32", 16)[:0], filled((3, 5), "float32", 16)[:, 1:1]):
        assert to_jax(x, copy=False).shape == x.shape
        assert receipt_of(x, "jax", copy=False).shared
    with pytest.raises(ValueError, match="copy=False"):
        jnp.from_dlpack(filled((4,), "float32", 16)[:0], copy=False)


def test_read_only_memory_is_protected() -> None:
    x = filled((16,), "float32")
    x.flags.writeable = False
    assert to_jax(x).unsafe_buffer_pointer() == x.ctypes.data


def test_immutable(framework: Any) -> None:
    x = jnp.ones(4)
    for policy in ("share", "respect"):
        assert not to_numpy(x, immutable=policy).flags.writeable
    assert to_numpy(x, immutable="copy").flags.writeable
    framework("torch")
    refused("readonly", to_torch, x, immutable="respect")
    assert to_torch(x, immutable="respect", readonly="copy").tolist() == [1, 1, 1, 1]
    assert to_torch(x).data_ptr() == x.unsafe_buffer_pointer()


def test_copy() -> None:
    x = filled((16,), "float32")
    assert to_jax(x, copy=True).unsafe_buffer_pointer() != x.ctypes.data
    own = jnp.ones(16)
    assert to_jax(own) is own
    assert to_jax(own, copy=True).unsafe_buffer_pointer() != own.unsafe_buffer_pointer()


def test_pending_work_is_waited_for() -> None:
    x = jnp.ones((400, 400))
    for _ in range(5):
        x = x @ x * 0.0025
    assert np.allclose(to_numpy(x), 1.0, rtol=1e-3)


@pytest.fixture
def without_functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide jaxlib's own functions, on the C paths too."""
    monkeypatch.setattr(adapter, "_FUNCTIONS", [None])
    native.forget_types()
    to_jax.close()
    yield
    monkeypatch.undo()
    native.forget_types()
    adapter.ADAPTER.start(to_jax)


def _observe() -> list[Any]:
    x = filled((4, 6), "float32")
    seen: list[Any] = []
    for source in (
        x,
        x.T,
        filled((3,), "bool"),
        filled((0, 3), "float32"),
        filled((1,), "int8")[0],
    ):
        y = to_jax(source)
        tensor = from_dlpack(y)
        seen += [y.dtype, y.shape, np.asarray(y).tolist(), tensor.strides, tensor.dtype]
        seen.append(tensor.data_ptr == y.unsafe_buffer_pointer())
    seen.append(to_jax(x).unsafe_buffer_pointer() == x.ctypes.data)
    x.flags.writeable = False
    seen.append(to_jax(x).unsafe_buffer_pointer() == x.ctypes.data)
    return seen


FAST: list[Any] = []


def test_the_fast_path() -> None:
    FAST.append(_observe())
    assert receipt_of(filled((4,), "float32"), "jax").route.endswith("jaxlib capsule")


def test_the_public_path_gives_the_same(without_functions: None) -> None:
    assert _observe() == (FAST[0] if FAST else _observe())
    assert receipt_of(jnp.ones(3), "numpy").route.startswith("numpy.asarray")
    receipt = receipt_of(filled((4,), "float32"), "jax")
    assert receipt.route.endswith("jax.dlpack.from_dlpack")
    refused("dtype", to_jax, filled((4,), "int64"))
    refused("dtype", from_dlpack, jnp.zeros(2, jnp.int4), copy=False)


def test_functions_that_jaxlib_lacks_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src.lib import _jax

    monkeypatch.delattr(_jax, "buffer_to_dlpack_managed_tensor")
    assert adapter._find_functions() is None


def test_recognition_needs_no_import(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import sys, numpy, dlbridge
        dlbridge.to_numpy(numpy.ones(3))
        assert "jax" not in sys.modules and "torch" not in sys.modules
        """
    ).check()
    assert dlbridge.convert(jnp.ones(2), jax).tolist() == [1, 1]


# ---- known defects -----------------------------------------------------------------------------


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
@pytest.mark.fact(4)
def test_a_producer_may_have_no_deleter(run_python: Callable[..., Any]) -> None:
    """JAX ends the process when such an array dies; our exports always have a deleter."""
    run_python(
        """
        import gc, dlbridge
        from dlpack_peers import BareProducer, ModernProducer, describe
        from peers.readers import filled
        x = filled((4,), "float32")
        for kind in (ModernProducer, BareProducer):
            producer = kind(describe(x, has_deleter=False))
            y = dlbridge.to_jax(producer)
            assert y.unsafe_buffer_pointer() == x.ctypes.data and y.tolist() == [0, 1, 2, 3]
            del y
            gc.collect()
        """
    ).check()


@pytest.mark.fact(10)
def test_copy_true_makes_a_copy_of_aligned_memory() -> None:
    """JAX's own `from_dlpack(copy=True)` shares it."""
    x = filled((16,), "float32")
    theirs = jax.dlpack.from_dlpack(x, copy=True)
    ours = dlbridge.to_jax(x, copy=True)
    assert theirs.unsafe_buffer_pointer() == x.ctypes.data, "JAX has changed"
    x[0] = 99
    assert ours[0] == 0
    assert ours.unsafe_buffer_pointer() != x.ctypes.data


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
@pytest.mark.fact(11)
def test_wide_elements_are_refused_until_x64_is_enabled(dtype: str) -> None:
    """JAX would narrow them: 2**40 + 1 arrives as 1."""
    x = filled((4,), dtype)
    refused("dtype", dlbridge.to_jax, x)
    with jax.enable_x64(True):
        y = dlbridge.to_jax(x)
        assert y.dtype == dtype
        assert y.unsafe_buffer_pointer() == x.ctypes.data
    refused("dtype", dlbridge.to_jax, x)


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
@pytest.mark.fact(25)
def test_an_array_of_the_second_cpu_is_cpu_memory(run_python: Callable[..., Any]) -> None:
    """`__dlpack_device__` says cpu:0, and the capsule says cpu:1."""
    run_python(
        """
        import dlbridge, jax
        x = jax.device_put(jax.numpy.arange(3.0), jax.devices("cpu")[1])
        for tensor in (dlbridge.from_dlpack(x), dlbridge.as_tensor(x, device="cpu")):
            assert tensor.__dlpack_device__() == (1, 0) and tensor.tolist() == [0, 1, 2]
        assert dlbridge.to_numpy(x).tolist() == [0, 1, 2]
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    ).check()


@pytest.mark.fact(31)
def test_misaligned_memory_is_copied_by_dlbridge() -> None:
    """JAX copies memory that is not 64-byte aligned; the receipt must say so."""
    x = filled((16,), "float32", offset=4)
    assert explain(x, "jax").copied_by == "dlbridge"
    refused("alignment", dlbridge.to_jax, x, copy=False)
