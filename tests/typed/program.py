"""What a user's program says of types; mypy --strict and pyright check it, nothing runs it."""

from typing import Any, assert_type

import jax
import numpy as np
import torch

import dlbridge
import dlbridge.graph as tf


def exchange(x: object, name: str) -> None:
    assert_type(dlbridge.to_torch(x), torch.Tensor)
    assert_type(dlbridge.to_torch(x, copy=True, grad="detach"), torch.Tensor)
    assert_type(dlbridge.to_numpy(x), np.ndarray[Any, Any])
    assert_type(dlbridge.to_jax(x, dtype="float32"), jax.Array)
    assert_type(dlbridge.convert(x, "jax"), jax.Array)
    assert_type(dlbridge.convert(x, "torch", copy=False), torch.Tensor)
    assert_type(dlbridge.convert(x, "numpy", readonly="copy"), np.ndarray[Any, Any])
    assert_type(dlbridge.convert(x, "dlbridge"), dlbridge.Tensor)
    assert_type(dlbridge.convert(x, name), Any)
    assert_type(dlbridge.convert(x, jax), Any)
    assert_type(dlbridge.explain(x, "torch").why, str | None)


def tensors(x: object) -> None:
    tensor = dlbridge.from_dlpack(x)
    assert_type(tensor, dlbridge.Tensor)
    assert_type(tensor[0], dlbridge.Tensor)
    assert_type(tensor.reshape(2, 3), dlbridge.Tensor)
    assert_type(tensor.shape, tuple[int, ...])
    assert_type(tensor.dtype, dlbridge.DType)
    assert_type(dlbridge.as_tensor(x), dlbridge.Tensor)
    assert_type(dlbridge.zeros((2, 3), dlbridge.float32), dlbridge.Tensor)
    assert_type(dlbridge.empty(3, "int8"), dlbridge.Tensor)


def kernels(x: torch.Tensor) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    kernel = dlbridge.wrap(double, "typed::double(x: f32[n]) -> f32[n]", abi="python:torch")
    assert_type(kernel, dlbridge.Kernel)
    assert_type(kernel(x), Any)
    assert_type(kernel(x, out=x), Any)
    assert_type(kernel.torch(x), Any)
    assert_type(dlbridge.to_jax_func(kernel)(x), Any)

    @dlbridge.wrap(schema="typed::half(x: f32[n]) -> f32[n]", abi="python:torch")
    def half(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    assert_type(half, dlbridge.Kernel)


def graphs(x: object) -> None:
    with tf.Graph().as_default() as graph:
        assert_type(graph, tf.Graph)
        image = tf.placeholder(tf.float32, [None, 4])
        assert_type(image, tf.Tensor)
        total = tf.constant(3.0) + image
        assert_type(total, tf.Tensor)
        assert_type(tf.matmul(total, image), tf.Tensor)
        assert_type(total.op, tf.Operation)
    with tf.Session(graph=graph) as session:
        assert_type(session, tf.Session)
        assert_type(session.run(total, {image: x}), Any)


def errors() -> None:
    try:
        pass
    except dlbridge.ExchangeError as error:
        assert_type(error.reason, str)
