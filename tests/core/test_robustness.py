"""Calls of the core that nobody should make."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from dlpack_peers import Consumer

import dlbridge
from dlbridge import Tensor
from dlbridge._core import native
from dlbridge.errors import ExchangeError

METAL, CUDA_HOST = 8, 3


# ---- exports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["text", [1], np.ones(3), None])
def test_a_subclass_may_override_copy_without_a_say_in_exports(answer: Any) -> None:
    """`copy=True` is the core's own copy: what an overridden method returns is not memory."""

    class Odd(Tensor):
        def copy(self, order: str = "C") -> Any:
            return answer

    tensor = dlbridge.full((3,), 7, "int8")._view((3,), (1,), cls=Odd)
    consumer = Consumer(tensor.__dlpack__(copy=True, max_version=(1, 3)))
    assert consumer.flags == 2
    assert consumer.data != tensor.data_ptr
    assert consumer.values().tolist() == [7, 7, 7]
    consumer.release()


def test_pinned_memory_is_delivered_as_cpu_memory_where_that_is_asked_for() -> None:
    owner = np.arange(3, dtype="i4")
    pinned = native.take_object(owner, owner.ctypes.data, (3,), None, (0, 32, 1), (CUDA_HOST, 0))
    consumer = Consumer(pinned.__dlpack__(dl_device=(1, 0), max_version=(1, 3)))
    assert consumer.device == (1, 0)
    assert consumer.data == pinned.data_ptr
    assert consumer.values().tolist() == [0, 1, 2]
    consumer.release()
    assert pinned.__dlpack_device__() == (CUDA_HOST, 0)


def test_a_handle_is_no_address_so_its_offset_stays_an_offset() -> None:
    """Of OpenCL, Vulkan, Metal and WebGPU memory, `data` names an object of the driver."""
    tensor = native.take_object(b"", 0x1000, (4,), None, (2, 32, 1), (METAL, 0))
    part = tensor._view((3,), (1,), 4)
    consumer = Consumer(part.__dlpack__(max_version=(1, 3)))
    assert (consumer.data, consumer.byte_offset) == (0x1000, 4)
    consumer.release()
    again = native.take_capsule(part.__dlpack__(max_version=(1, 3)))
    assert again.data_ptr == 0x1000


def test_a_consumer_that_fails_leaves_no_export_behind(framework: Callable[[str], Any]) -> None:
    table = framework("torch").Tensor.__dlpack_c_exchange_api__
    owner = np.zeros(4)
    handles = native.take_object(owner, owner.ctypes.data, (4,), None, (3, 64, 1), (1, 0))
    before = native.live()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            native.give_table(handles, table)
    assert native.live() == before


# ---- types -------------------------------------------------------------------------------------


def test_classes_of_users_are_not_kept_alive(run_python: Callable[..., Any]) -> None:
    """The cache of types holds what has a C path; a closure's class must be able to die.

    In a process without a second thread: with the first one, a free-threaded Python 3.13 makes
    every class immortal.
    """
    code = """
        import gc, weakref
        import numpy as np
        import dlbridge

        def use():
            class Mine:
                __array_interface__ = np.zeros(2).__array_interface__

            class Exporter:
                array = np.zeros(2)

                def __dlpack__(self, **keywords):
                    return self.array.__dlpack__(**keywords)

                def __dlpack_device__(self):
                    return 1, 0

            class MyTensor(dlbridge.Tensor):
                pass

            assert dlbridge.to_numpy(Exporter()).shape == (2,)
            dlbridge.from_dlpack(Mine())
            dlbridge.from_dlpack(dlbridge.zeros((2,), "int8")._view((2,), (1,), cls=MyTensor))
            return weakref.ref(Mine), weakref.ref(Exporter), weakref.ref(MyTensor)

        references = [reference for _ in range(20) for reference in use()]
        gc.collect()
        print(sum(reference() is not None for reference in references))
    """
    assert run_python(code).check() == "0\n"


@pytest.mark.parametrize(
    "call",
    [
        lambda t: native.give_numpy(t, 5),
        lambda t: native.Converter.__new__(native.Converter),
        lambda t: native.take_capsule(5),
        lambda t: native.take_table(t, 5),
        lambda t: native.copy_into(t, 5),
        lambda t: native.take_object(t, 5, 5, None, (0, 8, 1), (1, 0)),
        lambda t: t._view((2,), (1, 1)),
    ],
)
def test_a_wrong_type_is_an_error_and_no_crash(call: Callable[[Any], object]) -> None:
    with pytest.raises((TypeError, ValueError, ExchangeError)):
        call(dlbridge.zeros((2,), "int8"))


def test_a_numpy_dtype_of_another_size_is_refused() -> None:
    with pytest.raises(ExchangeError) as caught:
        native.give_numpy(dlbridge.zeros((3,), "int8"), np.dtype("f8"))
    assert caught.value.reason == "dtype"


def test_a_shape_may_not_change_while_it_is_read() -> None:
    class Emptying:
        def __index__(self) -> int:
            shape.clear()
            return 1

    shape: list[Any] = [Emptying(), 1, 1]
    tensor = dlbridge.zeros((1,), "int8")
    assert tensor._view(shape, [0, 0, 0]).shape == (1, 1, 1)


# ---- converters --------------------------------------------------------------------------------


def test_converters_are_pickled_and_copied_as_functions_are() -> None:
    """A data loader's workers get `collate_fn=dlbridge.to_torch` by name."""
    assert pickle.loads(pickle.dumps(dlbridge.to_torch)) is dlbridge.to_torch
    assert copy.deepcopy(dlbridge.to_numpy) is dlbridge.to_numpy


def test_converters_show_their_signature() -> None:
    parameters = inspect.signature(dlbridge.to_jax).parameters
    assert list(parameters)[:3] == ["x", "device", "copy"]
    assert dlbridge.to_jax.__name__ == "to_jax"
    assert "JAX" in (dlbridge.to_jax.__doc__ or "")


class RaisesMidway:
    """An iterable that gives one item, and fails at the second."""

    def __init__(self, item: object) -> None:
        self.item = item

    def __iter__(self) -> Iterator[object]:
        yield self.item
        raise KeyError("midway")


def test_limits_pass_on_what_an_iterable_raises() -> None:
    float32 = (2, 32, 1)
    with pytest.raises(KeyError, match="midway"):
        native.Limits("any", dtypes=RaisesMidway(float32), devices=[1])
    with pytest.raises(KeyError, match="midway"):
        native.Limits("any", dtypes=[float32], devices=RaisesMidway(1))
