"""TensorFlow as the oracle of TensorProtos: what it writes, and what it makes of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.proto.datatypes import DataType, as_dtype

REFUSED = object()


class Oracle:
    """TensorFlow's own functions, with our names of dtypes."""

    def __init__(self, tf: Any) -> None:
        from tensorflow.core.framework import tensor_pb2

        self.tf = tf
        self.TensorProto = tensor_pb2.TensorProto

    def write(self, array: Any, dtype: DataType | None = None) -> bytes | None:
        """Return what make_tensor_proto writes, or None for the types that it cannot."""
        try:
            message = self.tf.make_tensor_proto(array, dtype=dtype and dtype.number)
        except TypeError:
            return None
        written: bytes = message.SerializeToString()
        return written

    def read(self, data: bytes, dtype: DataType) -> Any:
        """Return what the kernel ParseTensor reads as an array, or REFUSED."""
        errors = self.tf.errors
        try:
            read = self.tf.io.parse_tensor(data, dtype.number).numpy()
            return np.array(read, object) if dtype.kind == "s" else read
        except (errors.InvalidArgumentError, errors.ResourceExhaustedError):
            return REFUSED

    def message(self, data: bytes) -> Any:
        """Return the parsed message, or None where the wire is malformed."""
        try:
            return self.TensorProto.FromString(data)
        except Exception:
            return None


def sample(dtype: DataType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return an array of `dtype` with values all over its range."""
    random = np.random.default_rng(seed)
    size = int(np.prod(shape))
    if dtype.kind == "s":
        strings = np.empty(size, object)
        strings[:] = [random.bytes(int(n)) for n in random.integers(0, 200, size)]
        return strings.reshape(shape)
    target = dtype.numpy
    assert target is not None
    if dtype.kind == "b":
        return (random.integers(0, 2, size) == 1).reshape(shape)
    if dtype.kind in "fc":
        parts = random.standard_normal((2, size)) * 3
        return (parts[0] + (1j * parts[1] if dtype.is_complex else 0)).astype(target).reshape(shape)
    base = target[0] if dtype.is_quantized else target
    if dtype.size == 1 and dtype.dlpack is not None and dtype.dlpack.bits < 8:
        return random.integers(dtype.min, dtype.max + 1, size).astype(target).reshape(shape)
    raw = np.frombuffer(random.bytes(size * base.itemsize), base)
    return raw.view(target).reshape(shape)


def same(a: np.ndarray, b: np.ndarray, dtype: DataType) -> bool:
    """Return whether two arrays are equal, NaN included, whatever the padding of narrow types."""
    if a.shape != b.shape:
        return False
    if dtype.kind == "s":
        return bool(a.tolist() == b.tolist())
    if dtype.is_quantized:  # TensorFlow gives the bare integers
        a, b = (x.view(as_dtype(dtype).numpy[0]) if x.dtype.names else x for x in (a, b))
    if a.dtype.kind == "V" or a.dtype.isbuiltin != 1:
        a, b = a.astype(np.float64), b.astype(np.float64)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
