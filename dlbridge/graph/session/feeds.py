"""Feeds: values that a session uses in place of those that operations would compute.

`register` adds types of keys that stand for several tensors, such as sparse tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dlbridge import dtype as dlpack_dtypes
from dlbridge._core import native
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
    name_call,
)
from dlbridge.execution.backend import to_numpy
from dlbridge.execution.errors import ResourceExhaustedError
from dlbridge.graph.core import values
from dlbridge.graph.core.graph import Graph, element
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.proto.datatypes import DataType, resource, variant
from dlbridge.shape import as_shape
from dlbridge.signals import not_from_handler

_BEYOND = {"i": 2.0**63, "u": 2.0**64}  # the least floating-point numbers that do not fit


class Composite(NamedTuple):
    """A key that stands for several tensors.

    Attributes:
        tensors: the tensors, which are keys themselves.
        split: a function from the value of the key to theirs.
    """

    tensors: Sequence[Any]
    split: Callable[[Any], Sequence[Any]]


_COMPOSITES: dict[type, Callable[[Any], Composite]] = {}


def register(kind: type, read: Callable[[Any], Composite]) -> None:
    """Let objects of a type be keys of feed dicts, fed by their components."""
    _COMPOSITES[kind] = read


class Feeds(NamedTuple):
    """The keys of a feed dict, resolved in a graph.

    Attributes:
        tensors: in the order in which their values are passed.
        spread: a function from the values of the keys to those of the tensors; None where each key
            is one tensor.
    """

    tensors: tuple[Tensor, ...]
    spread: Callable[[Iterable[Any]], list[Any]] | None


def resolve(graph: Graph, keys: Iterable[Any]) -> Feeds:
    """Return the tensors of the keys of a feed dict.

    Raises:
        TypeError: a key is not a tensor of the graph.
        ValueError: two keys are one tensor, or it must not be fed.
    """
    readers = [_read(graph, key) for key in keys]
    tensors = [each for found, _ in readers for each in found]
    _check_unique(tensors)
    if all(split is None for _, split in readers):
        return Feeds(tuple(tensors), None)

    def spread(given: Iterable[Any]) -> list[Any]:
        row: list[Any] = []
        for (_, split), value in zip(readers, given, strict=True):
            row += [value] if split is None else split(value)
        return row

    return Feeds(tuple(tensors), spread)


def _read(graph: Graph, key: Any) -> tuple[list[Tensor], Callable[[Any], list[Any]] | None]:
    """Return the tensors of one key, and a function that splits its value if there are several."""
    composite = _composite(key)
    if composite is None:
        tensor = _tensor(graph, key)
        if tensor.dtype is not resource:
            return [tensor], None
        composite = _reads(tensor)
    readers = [_read(graph, each) for each in composite.tensors]
    count = len(readers)

    def split(value: Any) -> list[Any]:
        parts = list(composite.split(value))
        if len(parts) != count:
            raise ArgumentError(
                f"feed_dict: {key!r} takes {count} values, got {len(parts)}: {value!r}"
            )
        row: list[Any] = []
        for (_, inner), part in zip(readers, parts, strict=True):
            row += [part] if inner is None else inner(part)
        return row

    return [each for found, _ in readers for each in found], split


def _composite(key: Any) -> Composite | None:
    for kind in type(key).__mro__:
        if kind in _COMPOSITES:
            return _COMPOSITES[kind](key)
    return Composite(key, _split_tuple) if isinstance(key, tuple) else None


def _reads(handle: Tensor) -> Composite:
    """Return the reads of a variable, which a value fed for it replaces."""
    found = [each.outputs[0] for each in handle.consumers() if each.type == "ReadVariableOp"]
    if not found:
        raise UnsupportedTypeError(
            f"Cannot interpret feed_dict key as Tensor: {handle!r} is a handle, and no operation "
            "reads its variable"
        )
    return Composite(found, lambda value: [value] * len(found))


def _split_tuple(value: Any) -> Sequence[Any]:
    if not isinstance(value, tuple | list):
        raise UnsupportedTypeError(
            f"feed_dict: a key that is a tuple takes a tuple of values, got {value!r}"
        )
    return value


def _tensor(graph: Graph, key: Any) -> Tensor:
    try:
        found = element(graph, key, allow_operation=False)
    except not_from_handler(TypeError, ValueError, KeyError) as error:
        text = error.args[0] if error.args else error
        raise TypeError(f"Cannot interpret feed_dict key as Tensor: {text}") from None
    assert isinstance(found, Tensor)
    if not graph.is_feedable(found):
        raise ValueError(f"Tensor {found.name} may not be fed.")
    return found


def _check_unique(tensors: Sequence[Tensor]) -> None:
    if len(set(tensors)) < len(tensors):
        twice = next(each for each in tensors if tensors.count(each) > 1)
        raise ValueError(
            f"feed_dict: several keys stand for {twice.name!r}; pass one value for each tensor"
        )


# ---- values ------------------------------------------------------------------------------------


def feeder(tensor: Tensor, framework: str | None) -> Callable[[Any], Any]:
    """Return a function that converts a fed value to an array of the dtype and shape of `tensor`.

    Arrays of this dtype are shared, whatever their layout; one of another framework stays there
    unless `framework` is "numpy".

    Raises:
        TypeError, ValueError: from the function: the value has another shape, or cannot be
            converted without losing more than precision.
        ResourceExhaustedError: from the function: there is no memory to convert it.
    """
    dtype = tensor.dtype.base_dtype
    if dtype is variant:
        raise UnsupportedTypeError(
            f"Session.run: {tensor.name!r} is a variant, which cannot be fed"
        )
    if dtype.numpy is None:
        return lambda value: value

    numpy, dims = dtype.numpy, tensor._dims

    def read(value: Any) -> Any:
        if isinstance(value, np.generic) and value.dtype is numpy and not dims:
            return np.asarray(value)
        try:
            array = _array(value, tensor, dtype, framework)
        except not_from_handler(MemoryError) as error:
            # also where max_bytes of the session allows no such array
            raise ResourceExhaustedError(
                f"Session.run: value for {tensor.name!r} cannot be converted to "
                f"{dtype.name}: {error}; feed an array of that dtype, which is shared, or allow "
                "more max_bytes",
                tensor.op,
            ) from error
        _check_shape(array, tensor)
        return array

    if dtype.kind in "sq":
        return read
    return native.Feed(numpy, dims, read)


def _array(value: Any, tensor: Tensor, dtype: DataType, framework: str | None) -> Any:
    """Return a value as an array of a dtype."""
    if isinstance(value, Tensor | Operation) or hasattr(value, "_as_graph_element"):
        raise UnsupportedTypeError(
            f"The value of a feed cannot be a symbolic tensor, got {value!r} for {tensor.name!r}: "
            "run it first, or feed numbers, text, lists, NumPy arrays or a framework's tensors"
        )
    where = f"Session.run: value for {tensor.name!r} of dtype {dtype.name}"
    is_foreign = _has_dtype(value, dtype)
    if is_foreign and framework is None:
        return value
    try:
        array = to_numpy(value) if is_foreign else values.read(value, where)
    except ExchangeError as error:
        name_call(error, where)
        raise
    if array.dtype == dtype.numpy and array.dtype.isnative and dtype.kind != "s":
        return array
    try:
        return values.cast(_exact(array, dtype), dtype, where)
    except ArgumentError as error:
        if type(value) is int:  # the class of TensorFlow
            raise UnsupportedTypeError(str(error)) from None
        raise


def _exact(array: np.ndarray[Any, Any], dtype: DataType) -> np.ndarray[Any, Any]:
    """Return whole numbers as integers, and zeros and ones as bools, where `dtype` has only these.

    Arrays with any other number stay as they are.
    """
    if dtype.kind == "b" and array.dtype.kind in "iuf":
        whole = array.astype(np.bool_)
    elif dtype.kind in "iu" and array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            whole = array.astype(np.uint64 if array.size and array.min() >= 0 else np.int64)
        if whole.size and float(np.abs(array).max()) >= _BEYOND[whole.dtype.kind]:
            return array  # the cast has wrapped around, and might come back equal
    else:
        return array
    return whole if np.array_equal(whole, array) else array


def _has_dtype(value: Any, dtype: DataType) -> bool:
    """Return whether a value is a tensor of another framework that has the dtype."""
    if isinstance(value, np.ndarray | np.generic) or not hasattr(type(value), "__dlpack__"):
        return False
    try:
        return dlpack_dtypes.as_dtype(value.dtype) is dtype.dlpack
    except not_from_handler(DLBridgeError, AttributeError):
        return False


def _check_shape(array: Any, tensor: Tensor) -> None:
    shape = tuple(array.shape)
    if not as_shape(tensor._dims).is_compatible_with(shape):
        raise ValueError(
            f"Cannot feed value of shape {shape} for Tensor {tensor.name!r}, which has shape "
            f"{str(tensor.shape)!r}"
        )
