"""Receipts: a copy is never silent to one who asks."""

from __future__ import annotations

import array
import asyncio
import copy
import gc
import pickle
import sys
import threading
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
from dlpack_peers import ModernProducer, on_threads

import dlbridge
from dlbridge import Tensor, convert, explain, from_dlpack, receipts, to_numpy
from dlbridge._core import native
from dlbridge.exchange import exchange
from dlbridge.exchange.context import DryRunEnd, ExchangeContext


def matrix() -> np.ndarray[Any, Any]:
    return np.arange(24, dtype=np.float32).reshape(4, 6)


def test_a_receipt_says_everything() -> None:
    x = matrix()
    with receipts() as log:
        y = to_numpy(ModernProducer(x))
    (receipt,) = log
    assert receipt.source.endswith("ModernProducer")
    assert receipt.target == "numpy"
    assert receipt.route == "__dlpack__ -> NumPy C API"
    assert (receipt.shared, receipt.copied_by, receipt.why) == (True, None, None)
    assert receipt.data_ptr_in == receipt.data_ptr_out == x.ctypes.data == y.ctypes.data
    assert (receipt.nbytes, receipt.shape) == (96, (4, 6))
    assert (receipt.dtype, receipt.device) == ("float32", "cpu")
    assert "shared" in repr(receipt)


def test_a_copy_is_recorded() -> None:
    x = matrix()
    with receipts() as log:
        y = to_numpy(x, copy=True)
    (receipt,) = log
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "dlbridge", "requested")
    assert receipt.data_ptr_out == y.ctypes.data != x.ctypes.data
    assert "copied by dlbridge (requested)" in repr(receipt)


def test_a_narrowed_tensor_is_not_copied_first(framework: Any) -> None:
    framework("jax")
    for x in (np.arange(3), np.arange(3.0)):
        receipt = explain(x, "jax", copy=True, narrow="checked")
        assert (receipt.copied_by, receipt.why) == ("dlbridge", "dtype")
        made = convert(x, "jax", copy=True, narrow="checked")
        x[:] = 7
        assert made.tolist() == [0, 1, 2]


def test_every_entry_is_recorded() -> None:
    x = matrix()
    with receipts() as log:
        from_dlpack(x)
        dlbridge.as_tensor(x)
        to_numpy(from_dlpack(x))
        convert(x, "dlbridge")
        to_numpy(x)
    assert [receipt.target for receipt in log] == [
        "dlbridge",
        "dlbridge",
        "dlbridge",
        "numpy",
        "dlbridge",
        "numpy",
    ]
    assert log[-1].route == "identity"


def test_a_refusal_leaves_no_receipt() -> None:
    with receipts() as log, pytest.raises(dlbridge.ExchangeError):
        from_dlpack(matrix(), device="rocm:0")
    assert log == []


def test_logs_nest() -> None:
    with receipts() as outer:
        from_dlpack(matrix())
        with receipts() as inner:
            from_dlpack(matrix())
    from_dlpack(matrix())
    assert (len(outer), len(inner)) == (2, 1)


def test_a_log_belongs_to_its_thread() -> None:
    def work() -> None:
        from_dlpack(matrix())

    with receipts() as log:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert log == []


def test_a_log_belongs_to_its_task() -> None:
    async def quiet(ready: asyncio.Event) -> None:
        await ready.wait()
        from_dlpack(matrix())

    async def noisy(ready: asyncio.Event) -> int:
        with receipts() as log:
            from_dlpack(matrix())
            ready.set()
            await asyncio.sleep(0)
            return len(log)

    async def both() -> int:
        ready = asyncio.Event()
        task = asyncio.create_task(quiet(ready))
        count = await noisy(ready)
        await task
        return count

    assert asyncio.run(both()) == 1


def _fail_after(_: object) -> None:
    raise ZeroDivisionError


def test_a_log_that_ends_in_an_error_ends() -> None:
    with pytest.raises(ZeroDivisionError), receipts() as log:
        _fail_after(from_dlpack(matrix()))
    from_dlpack(matrix())
    assert len(log) == 1


def test_copies_are_listed_in_their_order() -> None:
    context = ExchangeContext("a", "b")
    assert context.copying("numpy", "byte_order", lambda: 1) == 1
    assert context.copying("dlbridge", "strides", lambda: 2) == 2
    assert (context.copied_by, context.why) == ("numpy, dlbridge", "byte_order, strides")


def test_a_dry_run_continues_or_ends_in_place_of_a_copy() -> None:
    context = ExchangeContext("a", "b", dry_run=True)
    assert context.copying("dlbridge", "strides", lambda: 1 // 0, lambda: 7) == 7
    with pytest.raises(DryRunEnd):
        context.copying("numpy", "byte_order", lambda: 1 // 0)


@pytest.mark.parametrize(
    ("make", "policies"),
    [
        (matrix, {}),
        (matrix, {"copy": True}),
        (lambda: matrix().T, {"layout": "contiguous"}),
        (lambda: matrix().astype(">f4"), {}),
        (lambda: np.float32(1), {}),
        (lambda: ModernProducer(matrix()), {}),
        (lambda: from_dlpack(matrix()), {"copy": True}),
    ],
)
def test_explain_and_receipt_agree(make: Any, policies: dict[str, Any]) -> None:
    x = make()
    for to in ("numpy", "dlbridge"):
        foreseen = explain(x, to, **policies)
        with receipts() as log:
            convert(x, to, **policies)
        (receipt,) = log
        for name in ("source", "target", "shared", "copied_by", "why"):
            assert getattr(foreseen, name) == getattr(receipt, name)
        if to == "numpy":
            assert foreseen.route.split(" -> ")[-1] == receipt.route.split(" -> ")[-1]


def test_a_consumer_that_copies_behind_our_back_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dlbridge.frameworks.numpy import NumPy

    def give(self: object, tensor: Any, policy: object, context: object) -> Any:
        return np.array(tensor.tolist(), np.float32)

    monkeypatch.setattr(NumPy, "give", give)
    with receipts() as log:
        to_numpy(matrix(), dtype="float32")  # which the general path takes
    assert (log[0].shared, log[0].copied_by, log[0].why) == (False, "numpy", "consumer")


def test_the_same_is_found_out_where_c_gives() -> None:
    def give(capsule: object) -> Any:
        return np.array(native.take_capsule(capsule).tolist(), np.float32)

    converter = native.Converter("numpy", "")
    converter.activate("capsule", native.Limits("numpy", protects_readonly=True), give)
    with receipts() as log:
        made = converter(matrix())
    assert (log[0].shared, log[0].copied_by, log[0].why) == (False, "numpy", "consumer")
    assert log[0].data_ptr_out == made.ctypes.data


class Own(Tensor):
    """A subclass, such as users have."""


def test_a_subclass_becomes_a_tensor_with_and_without_a_log() -> None:
    """Watching an exchange must not change what comes of it."""
    x = from_dlpack(matrix())
    own = x._view(x.shape, x.strides, cls=Own)
    assert type(own) is Own
    for call in (from_dlpack, lambda x: convert(x, "dlbridge"), lambda x: convert(x, Tensor)):
        assert type(call(own)) is Tensor
        with receipts():
            assert type(call(own)) is Tensor


def test_an_array_of_the_target_is_described_like_any_other() -> None:
    """That nothing was done is no reason to say nothing of what it was done to."""
    x = matrix()
    own = from_dlpack(x)
    for thing, to in ((x, "numpy"), (own, "dlbridge")):
        foreseen = explain(thing, to)
        with receipts() as log:
            assert convert(thing, to, layout="any") is thing
        for receipt in (foreseen, log[0]):
            assert receipt.route == "identity"
            assert (receipt.nbytes, receipt.shape) == (96, (4, 6))
            assert (receipt.dtype, receipt.device) == ("float32", "cpu")
            assert receipt.data_ptr_in == x.ctypes.data
        assert log[0].data_ptr_out == x.ctypes.data


def readonly() -> np.ndarray[Any, Any]:
    made = matrix()
    made.flags.writeable = False
    return made


def unaligned() -> np.ndarray[Any, Any]:
    return np.zeros(97, np.uint8)[1:].view(np.float32).reshape(4, 6)


ARRAYS: dict[str, Any] = {
    "compact": matrix,
    "transposed": lambda: matrix().T,
    "reversed": lambda: matrix()[::-1, ::-2],
    "broadcast": lambda: np.broadcast_to(matrix()[0], (3, 6)),
    "without dimensions": lambda: np.array(1.5),
    "empty": lambda: np.empty((0, 3)),
    "read-only": readonly,
    "unaligned": unaligned,
    "byte-swapped": lambda: matrix().astype(">f4"),
    "a field of records": lambda: np.zeros(4, [("a", "i1"), ("b", "<f4")])["b"],
    "truth values": lambda: matrix() > 3,
    "complex numbers": lambda: matrix() * 1j,
    "masked": lambda: np.ma.MaskedArray(matrix(), mask=np.ma.nomask),
    "a matrix": lambda: np.ones((2, 2)).view(np.matrix),
    "text": lambda: np.array(["a"]),
    "a number": lambda: np.float32(2),
}


class Bare:
    """Has the protocol, and is asked again by each receipt of the general path."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> object:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


OTHERS: dict[str, Any] = {
    "a Tensor": lambda: from_dlpack(matrix()),
    "a read-only Tensor": lambda: from_dlpack(readonly()),
    "a subclass of Tensor": lambda: from_dlpack(matrix())._view((4, 6), (6, 1), cls=Own),
    "the standard alone": lambda: Bare(matrix()),
    "the standard alone, read-only": lambda: Bare(readonly()),
    "bytes": lambda: b"12345678",
    "an array of Python": lambda: array.array("f", [1, 2, 3]),
    "a memoryview": lambda: memoryview(matrix()),
    "torch": lambda: sys.modules["torch"].arange(24.0).reshape(4, 6),
    "torch, transposed": lambda: sys.modules["torch"].arange(24.0).reshape(4, 6).T,
    "torch, conjugate": lambda: (
        sys.modules["torch"].ones(3, dtype=sys.modules["torch"].cfloat).conj()
    ),
    "torch, a parameter": lambda: sys.modules["torch"].ones(3, requires_grad=True),
    "torch, sparse": lambda: sys.modules["torch"].ones(3, 2).to_sparse(),
    "torch, bytes": lambda: sys.modules["torch"].ones(3, dtype=sys.modules["torch"].uint8),
    "torch, float8": lambda: sys.modules["torch"].ones(3).to(sys.modules["torch"].float8_e5m2),
    "jax": lambda: sys.modules["jax"].numpy.arange(24.0).reshape(4, 6),
    "jax, bfloat16": lambda: sys.modules["jax"].numpy.ones(3, "bfloat16"),
    "jax, int4": lambda: sys.modules["jax"].numpy.ones(3, "int4"),
}
CALLS = from_dlpack, convert
GENERAL = exchange.from_dlpack, exchange.convert


def written(x: Any, to: str, policies: dict[str, Any], calls: tuple[Any, Any] = CALLS) -> list[Any]:
    """Return what receipts, and the Tensor that is taken, say of an exchange, or the error."""
    take, give = calls
    try:
        # Otherwise it is chance whether a copy that NumPy makes has to be copied for JAX again.
        with dlbridge.aligned_numpy(), receipts() as log:
            tensor = take(x)
            made = give(x, to, **policies)
    except dlbridge.DLBridgeError as error:
        return [type(error), str(error)]
    seen = tensor.shape, tensor.strides, tensor.dtype, tensor.readonly, made is x
    fields = [{name: getattr(each, name) for name in FIELDS} for each in log]
    places = [each.data_ptr_in == each.data_ptr_out for each in log if each.shared]
    return [seen, fields, places]


FIELDS = ["source", "target", "route", "shared", "copied_by", "why", "nbytes", "shape", "dtype"]
FIELDS += ["device", "stream", "ordered"]
POLICIES: list[dict[str, Any]] = [
    {},
    {"copy": True},
    {"copy": False},
    {"readonly": "share"},
    {"readonly": "copy"},
    {"immutable": "copy"},
    {"immutable": "respect"},
    {"layout": "contiguous"},
    {"layout": "contiguous", "copy": True},
    {"grad": "detach"},
    {"device": "cpu"},
    {"narrow": "checked"},
]


@pytest.mark.parametrize("to", ["numpy", "torch", "jax", "dlbridge"])
@pytest.mark.parametrize("name", [*ARRAYS, *OTHERS])
def test_receipts_that_c_writes_are_those_of_the_general_path(
    name: str, to: str, framework: Any
) -> None:
    for needed in {to, name.partition(",")[0]}.intersection(("torch", "jax")):
        framework(needed)
    x = {**ARRAYS, **OTHERS}[name]()
    for policies in POLICIES:
        assert written(x, to, policies) == written(x, to, policies, GENERAL), policies


@pytest.mark.parametrize("to", ["tensorflow", "tvm", "mlx"])
def test_receipts_of_further_frameworks_are_those_of_the_general_path(
    to: str, framework: Any
) -> None:
    framework("tvm_ffi" if to == "tvm" else to)  # TVM's own runtime changes what tvm takes
    for x in (matrix(), convert(matrix(), to), matrix().T):
        for target in (to, "numpy"):
            for policies in POLICIES[:6]:
                expected = written(x, target, policies, GENERAL)
                assert written(x, target, policies) == expected, policies


def test_no_python_code_runs_before_a_receipt_is_read() -> None:
    x, called = matrix(), []
    to_numpy(from_dlpack(x))
    with receipts() as log:
        sys.setprofile(lambda frame, event, _: called.append(event))
        try:
            from_dlpack(x)
            to_numpy(from_dlpack(x))
            to_numpy(x, copy=True)
            to_numpy(x)
        finally:
            sys.setprofile(None)
    assert "call" not in called
    assert [each.route for each in log] == [
        "NumPy C API",
        "NumPy C API",
        "Tensor -> NumPy C API",
        "NumPy C API -> NumPy C API",
        "identity",
    ]


def test_a_receipt_that_nobody_has_read_keeps_no_memory() -> None:
    """Only what is said of it."""
    x = matrix()
    alive = weakref.ref(x)
    with receipts() as log:
        to_numpy(from_dlpack(x))
    del x
    gc.collect()
    assert alive() is None
    assert log[0].shape == log[1].shape == (4, 6)


def test_receipts_are_copied_and_pickled_with_their_fields() -> None:
    with receipts() as log:
        from_dlpack(matrix())
        from_dlpack(ModernProducer(matrix()))
    for each in log:
        for made in (copy.copy(each), copy.deepcopy(each), pickle.loads(pickle.dumps(each))):
            assert type(made) is dlbridge.Receipt
            assert made.fields() == each.fields()
            assert repr(made) == repr(each)


def test_many_threads_read_a_receipt_at_once() -> None:
    with receipts() as log:
        for _ in range(50):
            from_dlpack(matrix())
    for receipt in log:
        routes: list[str] = []
        on_threads(4, partial(_read_route, receipt, routes))
        assert routes == ["NumPy C API"] * 4


def _read_route(receipt: dlbridge.Receipt, routes: list[str], _: int) -> None:
    routes.append(receipt.route)


def test_an_array_of_the_target_without_numbers_is_returned_as_it_is() -> None:
    x = np.array(["text"])
    with receipts() as log:
        assert to_numpy(x) is x
    assert (log[0].route, log[0].nbytes, log[0].data_ptr_out) == ("identity", None, None)
    assert explain(x, "numpy").shape is None


def test_a_capsule_is_known_by_its_type_and_not_by_a_name() -> None:
    kind = type("PyCapsule", (ModernProducer,), {})
    assert explain(kind(matrix()), "numpy").shared
