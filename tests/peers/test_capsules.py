"""Capsules between libraries: which are requested, which are given, how often one serves."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from dlpack_peers import (
    BareProducer,
    Consumer,
    LegacyProducer,
    ModernProducer,
    Producer,
    RaisingProducer,
    StreamOnlyProducer,
    VersionedProducer,
)

import dlbridge
from dlbridge import as_tensor, convert, from_dlpack
from peers.checks import refused
from peers.consumers import each_consumer, require_all
from peers.readers import filled, has, read

require_all()


@each_consumer
@pytest.mark.fact(18)
def test_a_copy_is_made_by_dlbridge_and_not_left_to_the_producer(consumer: str) -> None:
    """Consumers trust a producer that is asked for a copy, and some producers share anyway."""
    x = filled((16,), "float32")
    liar = ModernProducer(x)  # gives the same memory, whatever copy says
    result = convert(liar, consumer, copy=True)
    assert read(consumer, result)[1] != x.ctypes.data
    assert all(call.get("copy") is None for call in liar.calls)
    out = Consumer(from_dlpack(x).__dlpack__(max_version=(1, 3), copy=True))
    assert out.flags & 2
    assert out.data != x.ctypes.data
    out.release()


@pytest.mark.fact(19)
def test_the_name_of_a_capsule_counts_and_not_the_version_asked_for() -> None:
    """TensorFlow, MLX and JAX before 0.12 answer a request for 1.3 with a legacy capsule."""
    import jax
    import tensorflow as tf

    producers = [jax.numpy.ones(3), tf.ones(3)]
    if has("mlx"):
        import mlx.core as mx

        producers.append(mx.ones(3))
    for x in producers:
        lent = Consumer(x.__dlpack__(max_version=(1, 3)))
        is_newer = isinstance(x, jax.Array) and jax.__version_info__ >= (0, 12)
        assert lent.versioned == is_newer, f"{type(x)} has changed"
        lent.release()
        assert dlbridge.to_numpy(x).tolist() == [1, 1, 1]
        if has("pyarrow"):  # takes versioned capsules only
            assert dlbridge.to_pyarrow(x).to_numpy().tolist() == [1, 1, 1]
    assert from_dlpack(LegacyProducer(filled((3,), "float32"))).shape == (3,)
    assert from_dlpack(VersionedProducer(filled((3,), "float32"))).version == (1, 3)


@pytest.mark.fact(26)
def test_no_keyword_is_passed_that_is_not_needed() -> None:
    """Producers refuse keywords with five kinds of exceptions, even for default values."""
    for kind, calls in (
        (ModernProducer, [{"max_version": (1, 3)}]),
        (StreamOnlyProducer, [{}]),
        (BareProducer, [{}]),
    ):
        producer = kind(filled((3,), "float32"))
        with dlbridge.receipts():
            from_dlpack(producer)
        seen = [{k: v for k, v in call.items() if v is not None} for call in producer.calls]
        assert seen == calls


@pytest.mark.parametrize("error", [TypeError, BufferError, ValueError, AttributeError])
@pytest.mark.fact(27)
def test_a_producer_that_refuses_is_asked_once(error: type[Exception]) -> None:
    """Other consumers take any TypeError for an unknown keyword and call again, up to 4 times."""

    class Refusing(RaisingProducer):
        def __dlpack__(self, **keywords: object) -> object:
            self.calls.append(keywords)
            raise error("not today")

    producer = Refusing(filled((3,), "float32"))
    text = refused("producer", from_dlpack, producer)
    assert "not today" in text
    assert len(producer.calls) == 1


class Older:
    """A producer of the protocol before version 1."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.calls: list[dict[str, object]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, stream: object = None) -> object:
        self.calls.append({"stream": stream})
        return self.x.__dlpack__()


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return function(*args, **keywords)

    return call


class Decorated(Older):
    __dlpack__ = logged(Older.__dlpack__)


class Forwarding(Older):
    """Calls the method of another object, which takes fewer keywords."""

    def __dlpack__(self, **keywords: Any) -> Any:
        return Older.__dlpack__(self, **keywords)


class Checking(Older):
    """Looks at its keywords itself, as bindings do that are generated."""

    def __dlpack__(self, **keywords: Any) -> Any:
        if wrong := keywords.keys() - {"stream"}:
            raise TypeError(f"__dlpack__() got unexpected keyword arguments: {wrong}")
        return super().__dlpack__(**keywords)


class WithoutKeywords(Older):
    """As a function of C that takes none, called by a method of Python."""

    def __dlpack__(self, *args: Any, **keywords: Any) -> Any:
        if keywords:
            raise TypeError("Array.__dlpack__() takes no keyword arguments")
        return super().__dlpack__(*args)


@pytest.mark.parametrize("kind", [Older, Decorated, Forwarding, Checking, WithoutKeywords])
def test_producers_of_the_older_protocol_are_taken_however_they_are_called(kind: Any) -> None:
    x = filled((3,), "float32")
    producer = kind(x)
    assert from_dlpack(producer).data_ptr == x.ctypes.data
    assert dlbridge.to_torch(kind(x)).data_ptr() == x.ctypes.data
    assert producer.calls == [{"stream": None}]
    assert dlbridge.inspect(producer).keywords == (() if kind is WithoutKeywords else ("stream",))


def test_only_the_keyword_that_an_error_names_is_left_out() -> None:
    """A producer may take `dl_device` and not `max_version`."""
    calls = []

    class Half(Older):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 8, 0  # kDLMetal, which is asked for a copy on the host

        def __dlpack__(self, *, stream: object = None, dl_device: object = None) -> object:
            calls.append(dl_device)
            return self.x.__dlpack__()

    half = Half(filled((3,), "float32"))
    assert from_dlpack(half, device="cpu").tolist() == half.x.tolist()
    assert calls == [(1, 0)]


def test_a_type_error_that_names_a_keyword_forever_ends_in_a_refusal() -> None:
    class Refusing(Older):
        def __dlpack__(self, **keywords: object) -> object:
            self.calls.append(keywords)
            raise TypeError("unexpected keyword argument 'max_version'")

    producer = Refusing(filled((3,), "float32"))
    refused("producer", from_dlpack, producer)
    assert producer.calls == [{"max_version": (1, 3)}, {}]


@pytest.mark.fact(27)
def test_our_own_refusals_are_not_type_errors() -> None:
    """A consumer would retry after a TypeError."""
    x = filled((3,), "float32")
    x.flags.writeable = False
    with pytest.raises(BufferError) as caught:
        from_dlpack(x).__dlpack__()
    assert not isinstance(caught.value, TypeError)


@pytest.mark.fact(37)
def test_every_export_is_a_new_capsule() -> None:
    """MLX and nanobind do not rename a capsule that they have consumed."""
    tensor = from_dlpack(filled((3,), "float32"))
    first, second = tensor.__dlpack__(), tensor.__dlpack__()
    assert first is not second
    assert as_tensor(first).data_ptr == as_tensor(second).data_ptr
    refused("consumed", as_tensor, first)


@each_consumer
@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.fact(38)
def test_raw_capsules_of_both_kinds_reach_every_library(consumer: str, versioned: bool) -> None:
    """Half of the libraries take objects with `__dlpack__` only."""
    x = filled((16,), "float32")
    capsule = Producer(x).capsule(versioned)
    assert read(consumer, convert(capsule, consumer))[0] == x.tobytes()
    refused("consumed", convert, capsule, consumer)
