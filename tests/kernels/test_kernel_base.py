"""`native.KernelBase` itself: its arguments, its life, the functions it can call."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ArgumentError, KernelError, UnsupportedTypeError
from dlbridge.kernels.schema import Schema

CPU = 1
SCHEMA = Schema.parse("test::f(x: f32[n], *, k: int = 0) -> f32[n]")


def tensors(*arrays: Any) -> list[dlbridge.Tensor]:
    return [dlbridge.from_dlpack(array) for array in arrays]


# ---- construction ------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "name": "test::f",
    "signature": SCHEMA.encode(),
    "arguments": SCHEMA.encode_arguments(),
    "targets": [(CPU, "dltensors", 4096, None)],
}


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "a\0b"},
        {"name": b"test::f"},
        {"name": "\ud800"},
        {"signature": None},
        {"arguments": None},
        {"arguments": []},
        {"arguments": ()},
        {"arguments": ((1, 2),) * 2},
        {"arguments": (SCHEMA.encode_arguments()[0][:2],) * 2},
        {"arguments": (("x", "tensor", 1, False, False, None),) * 2},
        {"arguments": (("x", "int", -1, False, False, None),) * 2},
        {"targets": []},
        {"targets": 5},
        {"targets": [5]},
        {"targets": [(CPU, "dltensors", 4096)]},
        {"targets": [(CPU, "dltensors", None, None)]},
        {"targets": [(CPU, "dltensors", 0, None)]},
        {"targets": [(CPU, "dltensors", 2**65, None)]},
        {"targets": [(CPU, "dltensors", "address", None)]},
        {"targets": [(CPU, "no such", 4096, None)]},
        {"targets": [(CPU, "pointers", 4096, None)]},
        {"targets": [("cpu", "dltensors", 4096, None)]},
        {"targets": [(CPU, "dltensors", 4096, None)] * 5},
        {"targets": [(CPU, "dltensors", 4096, 2**65)]},
        {"alignment": 0},
        {"alignment": 3},
        {"alignment": -1},
        {"mutates": [0]},
        {"mutates": 0},
        {"signature": None, "arguments": None, "mutates": [32]},
        {"signature": None, "arguments": None, "mutates": [-1]},
        {"signature": None, "arguments": None, "mutates": ["x"]},
        {"unknown": 1},
    ],
)
def test_invalid_arguments_make_no_kernel(change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.KernelBase(**{**GOOD, **change})
    assert native.KernelBase(**GOOD).name == "test::f"


def test_users_of_the_type_may_derive_from_it() -> None:
    class Kernel(native.KernelBase):
        def __call__(self) -> str:
            return self.name

    kernel = Kernel(**GOOD)
    assert kernel() == "test::f"
    kernel.note = 5
    assert weakref.ref(kernel)() is kernel


# ---- life --------------------------------------------------------------------------------------


class Kept:
    """Something that a kernel keeps, and that may know the kernel."""

    kernel: object = None


def test_objects_of_a_kernel_live_as_long_as_it() -> None:
    kept, user, schema = Kept(), Kept(), Kept()
    gone = [weakref.ref(one) for one in (kept, user, schema)]
    target = (CPU, "dltensors", 4096, user)
    kernel = native.KernelBase("test::kept", None, None, [target], keeps=[kept], schema=schema)
    del kept, user, schema, target
    assert all(one() is not None for one in gone)
    del kernel
    assert all(one() is None for one in gone)


def test_a_kernel_and_what_it_keeps_may_know_each_other() -> None:
    """As a Python function that calls its own kernel does; the collector finds the cycle."""
    kept = Kept()
    kept.kernel = native.KernelBase("test::cycle", None, None, GOOD["targets"], keeps=kept)
    gone = weakref.ref(kept)
    del kept
    gc.collect()
    assert gone() is None


def test_a_published_kernel_lives_until_another_has_its_name() -> None:
    """Compiled graphs know only the name; what the last kernel keeps goes with it."""
    kept = Kept()
    gone = weakref.ref(kept)
    kernel = native.KernelBase("test::published", None, None, GOOD["targets"], keeps=kept)
    kept.kernel = kernel
    kernel.publish(kernel.name)
    kernel.publish(kernel.name)
    del kernel, kept
    gc.collect()
    assert gone() is not None
    other = native.KernelBase("test::published", None, None, GOOD["targets"])
    other.publish(other.name)
    gc.collect()
    assert gone() is None


def test_publishing_while_others_publish_and_run(make: Any) -> None:
    kernels = [make("nothing", "test::busy(x: f32[n]) -> f32[n]") for _ in range(4)]
    x, y = tensors(np.zeros(3, "f4"), np.zeros(3, "f4"))
    errors: list[BaseException] = []

    def work(kernel: native.KernelBase) -> None:
        try:
            for _ in range(2000):
                kernel.publish(kernel.name)
                kernel.run([x, y])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(kernels[i % 4],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_many_names_may_be_published_at_once(make: Any) -> None:
    """The table of names grows with them."""
    kernels = [make("nothing", f"many::k{i}(x: f32[n])") for i in range(5000)]
    for kernel in kernels:
        kernel.publish(kernel.name)
    x = tensors(np.zeros(3, "f4"))
    for kernel in kernels[::100]:
        kernel.run(x)


# ---- the GIL -----------------------------------------------------------------------------------


@pytest.mark.parametrize("releases_gil", [True, False])
def test_the_gil_is_released_where_the_kernel_says_so(make: Any, releases_gil: bool) -> None:
    kernel = make("has_gil", "test::f(x!: f32[n])", releases_gil=releases_gil)
    x = np.zeros(3, "f4")
    kernel.run(tensors(x))
    assert x[0] == (1 if releases_gil else 2)


# ---- one pointer for each tensor ---------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 16])
def test_each_tensor_has_a_pointer_of_its_own(make: Any, count: int) -> None:
    items = ", ".join(f"x{i}: f32[{i + 1}]" for i in range(count))
    kernel = make(f"pointers_{count}", f"test::f({items})", convention="pointers")
    kernel.run(tensors(*[np.zeros(i + 1, "f4") for i in range(count)]))
    if count:
        plain = make(f"pointers_{count}", convention="pointers")
        plain.run(tensors(*[np.zeros(i + 1, "f4") for i in range(count)]))
        with pytest.raises(KernelError, match="status 4"):
            plain.run(tensors(*[np.zeros(i + 2, "f4") for i in range(count)]))


def test_pointers_have_their_limits(make: Any) -> None:
    items = ", ".join(f"x{i}: f32[n]" for i in range(17))
    with pytest.raises(ValueError, match="at most 16 tensors"):
        make("pointers_16", f"test::f({items})", convention="pointers")
    with pytest.raises(ValueError, match="no scalars"):
        make("pointers_1", "test::f(x: f32[n], *, k: int)", convention="pointers")
    plain = make("pointers_16", convention="pointers", mutates=())
    with pytest.raises(UnsupportedTypeError, match="at most 16 tensors and no scalars, got 17"):
        plain.run(tensors(np.zeros(3, "f4")) * 17)
    with pytest.raises(UnsupportedTypeError, match="1 tensors and 1 scalars"):
        plain.run(tensors(np.zeros(3, "f4")), [1])


# ---- functions of others -----------------------------------------------------------------------


def test_a_function_that_numba_compiled_is_a_kernel(framework: Any) -> None:
    numba = framework("numba")
    signature = numba.int32(numba.types.voidptr, numba.types.voidptr, numba.int32)

    @numba.cfunc(signature)
    def count_three(context: Any, arguments: Any, count: int) -> int:
        return 0 if count == 3 else 9

    targets = [(CPU, "dltensors", count_three.address, None)]
    kernel = native.KernelBase("test::numba", None, None, targets, keeps=count_three, mutates=())
    x = tensors(np.zeros(3, "f4"))
    kernel.run(x * 3)
    with pytest.raises(KernelError, match="test::numba: the kernel returned status 9"):
        kernel.run(x)


def packed(tvm_ffi: Any, function: Any, text: str | None, **options: Any) -> native.KernelBase:
    """Return a kernel of a tvm-ffi function."""
    handle = tvm_ffi.convert(function)
    schema = None if text is None else Schema.parse(text)
    return native.KernelBase(
        "test::tvm",
        None if schema is None else schema.encode(),
        None if schema is None else schema.encode_arguments(),
        [(CPU, "tvm_ffi", handle.__chandle__(), None)],
        keeps=handle,
        schema=schema,
        **options,
    )


def test_a_tvm_function_gets_tensors_and_scalars_in_the_order_of_the_schema(
    framework: Any,
) -> None:
    tvm_ffi = framework("tvm_ffi")
    seen: list[Any] = []

    def function(x: Any, a: float, w: Any, k: int, b: bool, s: str, out: Any) -> None:
        seen[:] = [tuple(x.shape), a, w, k, b, s, str(out.dtype)]

    text = "t::f(x: f32[n], a: float, w: f32[n]?, k: int, b: bool, s: str) -> f64[n]"
    kernel = packed(tvm_ffi, function, text)
    x, out = np.zeros(3, "f4"), np.zeros(3)
    kernel.run([*tensors(x), None, *tensors(out)], (2.5, 7, True, "text"))
    assert seen == [(3,), 2.5, None, 7, True, "text", "float64"]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (TypeError, UnsupportedTypeError),
        (ValueError, ArgumentError),
        (RuntimeError, KernelError),
        (ZeroDivisionError, KernelError),
    ],
)
def test_errors_of_tvm_functions_keep_kind_and_text(framework: Any, raised: Any, kind: Any) -> None:
    tvm_ffi = framework("tvm_ffi")

    def function(x: Any) -> None:
        raise raised("no such luck")

    with pytest.raises(kind, match=r"^test::tvm: (\w+: )?no such luck"):
        packed(tvm_ffi, function, None).run(tensors(np.zeros(3, "f4")))


def test_the_result_of_a_tvm_function_is_released(framework: Any) -> None:
    tvm_ffi = framework("tvm_ffi")
    kernel = packed(tvm_ffi, lambda x: tvm_ffi.convert(["a", "long enough list"] * 10), None)
    for _ in range(100):
        kernel.run(tensors(np.zeros(3, "f4")))


def test_tvm_functions_need_the_library_that_is_loaded(run_python: Any) -> None:
    """A second copy of libtvm_ffi.so would know nothing of the first one's objects."""
    run_python(
        """
        from dlbridge._core import native
        try:
            native.KernelBase("t::f", None, None, [(1, "tvm_ffi", 4096, None)])
        except ValueError as error:
            assert "import tvm_ffi" in str(error)
        else:
            raise AssertionError
        """
    ).check()


# ---- errors on the way -------------------------------------------------------------------------


def test_without_the_package_errors_are_pythons_own(run_python: Any) -> None:
    """Before `dlbridge.kernels` is imported there are no hooks; the core must not need them."""
    run_python(
        """
        import dlbridge
        from dlbridge._core import native
        f32 = 2 | 32 << 8 | 1 << 16
        signature = (((f32,),), 1, 0, ((0, (("n", 0),), False, False),), (), (), ())
        arguments = (("x", "tensor", 0, False, False, None),)
        kernel = native.KernelBase("t::f", signature, arguments, [(1, "dltensors", 4096, None)])
        for tensors, kind in (([], TypeError), ([dlbridge.zeros((2, 2), "float32")], ValueError)):
            try:
                kernel.run(tensors)
            except kind as error:
                assert str(error).startswith("t::f: "), error
            else:
                raise AssertionError
        """
    ).check()


@pytest.mark.parametrize("answer", ["raise", "text"])
def test_an_explanation_that_fails_is_told(run_python: Any, answer: str) -> None:
    run_python(
        """
        import sys, dlbridge
        from dlbridge._core import native
        def explain(*_):
            if sys.argv[1] == "raise":
                raise LookupError("no words")
            return "no exception"
        native.set_kernel_hooks(explain=explain)
        signature = (((),), 1, 0, ((0, (), False, False),), (), (), ())
        arguments = (("x", "tensor", 0, False, False, None),)
        kernel = native.KernelBase("t::f", signature, arguments, [(1, "dltensors", 4096, None)])
        try:
            kernel.run([dlbridge.zeros((2, 2), "float32")])
        except (LookupError, TypeError) as error:
            assert "no words" in str(error) or "no exception" in str(error)
        else:
            raise AssertionError
        """,
        answer,
    ).check()


def test_the_header_is_what_the_core_uses() -> None:
    """Kernels are compiled apart from the core: the context must not change under them."""

    class Context(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t)] + [(f"p{i}", ctypes.c_void_p) for i in range(7)]

    assert ctypes.sizeof(Context) == 64
