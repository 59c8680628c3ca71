"""Unusual and wrong values in the fields of a DLTensor, for each consumer."""

from __future__ import annotations

import numpy as np
import pytest
from dlpack_peers import (
    BareProducer,
    Consumer,
    Description,
    ModernProducer,
    Producer,
    VersionedProducer,
    describe,
)

from dlbridge import convert, explain, from_dlpack
from peers.checks import refused
from peers.consumers import CONSUMERS, each_consumer, require_all, settles
from peers.readers import filled, has, memory, read

require_all()

MALFORMED = {
    "shape": Description(shape=(-2,)),
    "overflow": Description(shape=(2**33, 2**33), strides=None),
    "ndim": Description(shape=(1,), ndim=-1),
    "null_shape": Description(shape=None, strides=None, ndim=1),
    "null_data": Description(shape=(3,), data=None),
}


@each_consumer
@pytest.mark.parametrize("reason", MALFORMED)
@pytest.mark.fact(6)
def test_malformed_tensors_reach_no_library(consumer: str, reason: str) -> None:
    """Most libraries trust a producer and read out of bounds, or abort."""
    x = memory((4,), "float32")
    data = None if reason == "null_data" else x.ctypes.data
    producer = ModernProducer(MALFORMED[reason].but(data=data, keeps=x))
    refused(reason, convert, producer, consumer)
    assert producer.deleted == len(producer.loans)


@each_consumer
@pytest.mark.fact(9)
def test_the_byte_offset_is_folded_into_the_pointer(consumer: str) -> None:
    """Paddle, dpnp and MXNet ignore it and read other memory; TensorFlow refuses it."""
    x = filled((64,), "float32")
    producer = ModernProducer(describe(x, byte_offset=64, shape=(16,)))
    values, address = read(consumer, convert(producer, consumer))
    assert values == x[16:32].tobytes()
    assert consumer == "mlx" or address == x[16:].ctypes.data
    out = Consumer(from_dlpack(producer).__dlpack__(max_version=(1, 3)))
    assert (out.byte_offset, out.data) == (0, x[16:].ctypes.data)
    out.release()


@pytest.mark.skipif(not has("mlx"), reason="mlx is not installed")
@each_consumer
@pytest.mark.fact(9)
def test_views_of_mlx_arrive_without_their_byte_offset(consumer: str) -> None:
    """MLX exports each view as its base array with an offset."""
    import mlx.core as mx

    x = mx.array(np.arange(24, dtype="float32").reshape(4, 6))
    lent = Consumer(x[1:].__dlpack__())
    assert lent.byte_offset == 24, "MLX has changed: this test shows nothing any more"
    lent.release()
    for view in (x[1:], x[:, ::-1], x[1:, ::-2]):
        if consumer != "mlx":
            assert read(consumer, convert(view, consumer))[0] == np.array(view).tobytes()


@each_consumer
@pytest.mark.parametrize("kind", [ModernProducer, BareProducer])
@pytest.mark.fact(29)
def test_null_pointers_that_the_standard_allows_are_understood(
    consumer: str, kind: type[Producer]
) -> None:
    """Producers use them for strides, for a scalar's shape and for tensors without elements."""
    x = filled((2, 3), "float32")
    compact = convert(kind(describe(x, strides=None)), consumer)
    assert read(consumer, compact)[0] == x.tobytes()
    scalar = convert(kind(describe(x, shape=None, strides=None, ndim=0)), consumer)
    assert tuple(scalar.shape) == ()
    empty = convert(kind(describe(x, shape=(0, 3), strides=None, data=None)), consumer)
    assert tuple(empty.shape) == (0, 3)


@pytest.mark.parametrize(("consumer", "most"), [("numpy", 64), ("torch", 64), ("jax", 64)])
@pytest.mark.fact(30)
def test_each_library_takes_as_many_dimensions_as_it_can(consumer: str, most: int) -> None:
    """A tensor that the consumer cannot represent is refused before the consumer is entered."""
    x = memory((1,) * most, "float32")
    assert convert(x, consumer).ndim == most
    beyond = Description(shape=(1,) * 65, strides=None, data=x.ctypes.data, keeps=x)
    if consumer == "numpy":
        refused("ndim", convert, ModernProducer(beyond), consumer)


@pytest.mark.fact(30)
def test_strides_of_single_elements_do_not_matter() -> None:
    """A dimension of size 1 is never stepped through, but some libraries check its stride."""
    x = filled((6,), "float32")
    odd = ModernProducer(describe(x, shape=(1, 6, 1), strides=(-5, 1, 77)))
    for consumer in CONSUMERS:
        receipt = explain(odd, consumer)
        assert receipt.shared or consumer == "mlx"
        assert read(consumer, convert(odd, consumer))[0] == x.tobytes()


@each_consumer
@pytest.mark.fact(32)
def test_another_major_version_and_unknown_flags_are_refused(consumer: str) -> None:
    """Three libraries read a struct whose layout they cannot know, and all ignore unknown flags."""
    x = filled((3,), "float32")
    for reason, changes in (("version", {"version": (2, 0)}), ("flags", {"flags": 1 << 5})):
        producer = VersionedProducer(describe(x, **changes))
        refused(reason, convert, producer, consumer)
        assert settles(lambda producer=producer: producer.deleted == len(producer.loans))
