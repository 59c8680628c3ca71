"""Kernels of strings, which only NumPy has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, text
from dlbridge.signals import not_from_handler


@kernel("StringJoin", only=("numpy",))
def string_join(node: Node, context: Context) -> Function:
    separator = node.attrs["separator"]

    def join(*values: Any) -> Any:
        dims = {np.shape(each) for each in values if np.ndim(each)}
        if len(dims) > 1:
            raise InvalidArgumentError(
                "Input shapes do not match: " + " vs. ".join(map(text, sorted(dims))), node
            )
        shape = next(iter(dims), ())
        rows = [np.broadcast_to(np.asarray(each, object), shape).reshape(-1) for each in values]
        result = np.empty(shape, object)
        result.reshape(-1)[:] = [separator.join(row) for row in zip(*rows, strict=True)]
        return result

    return join


@kernel("AsString", only=("numpy",))
def as_string(node: Node, context: Context) -> Function:
    attrs, kind = node.attrs, node.inputs[0].op.output_types[node.inputs[0].value_index]
    form = number_format(attrs, kind, node)

    def convert(x: Any) -> Any:
        array = np.asarray(x)
        result = np.empty(array.shape, object)
        result.reshape(-1)[:] = [form(each) for each in array.reshape(-1).tolist()]
        return result

    return convert


def number_format(attrs: Any, kind: Any, node: Node) -> Any:
    """Return the function from a Python number to its text, as the attributes ask for it."""
    precision, scientific, shortest = attrs["precision"], attrs["scientific"], attrs["shortest"]
    width, fill = max(attrs["width"], 0), attrs["fill"].decode(errors="replace")
    real = kind.is_floating or kind.is_complex
    if scientific and shortest:
        raise InvalidArgumentError("Cannot select both scientific and shortest notation", node)
    if (kind.is_integer or kind.is_bool) and (scientific or shortest or precision >= 0):
        raise InvalidArgumentError(
            f"precision, scientific and shortest format not supported for datatype {kind.name}",
            node,
        )
    if fill not in ("", " ", "+", "-", "0", "#"):
        raise InvalidArgumentError(f"Fill argument not supported: {fill!r}", node)
    if kind.is_bool:
        return lambda value: b"true" if value else b"false"
    if kind.kind == "s":
        return lambda value: value.ljust(width) if fill == "-" else value.rjust(width)
    if kind.is_unsigned and fill in ("+", " "):  # C has no sign for them
        fill = ""
    flags = f"%{fill}{width or ''}"
    if not real:
        return lambda value: (f"{flags}d" % value).encode()
    flags += f".{precision}" if precision >= 0 else ""
    pattern = flags + ("e" if scientific else "g" if shortest else "f")

    def number(value: float) -> str:
        return pattern % value if math.isfinite(value) else _infinite(value, fill, width)

    if kind.is_complex:
        return lambda value: f"({number(value.real)},{number(value.imag)})".encode()
    return lambda value: number(value).encode()


def _infinite(value: float, fill: str, width: int) -> str:
    """Return NaN or an infinity as C prints it: with its sign, and never filled with zeros."""
    sign = "-" if math.copysign(1, value) < 0 else fill if fill in ("+", " ") else ""
    text = sign + ("nan" if math.isnan(value) else "inf")
    return text.ljust(width) if fill == "-" else text.rjust(width)


@kernel("DecodeRaw", only=("numpy",))
def decode_raw(node: Node, context: Context) -> Function:
    dtype = np.dtype(node.attrs["out_type"].numpy)
    swap = not node.attrs["little_endian"] and dtype.itemsize > 1
    part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize

    def decode(x: Any) -> Any:
        array = np.asarray(x, object)
        flat = array.reshape(-1).tolist()
        size = len(flat[0]) if flat else 0
        for i, each in enumerate(flat):
            if len(each) != size:
                raise InvalidArgumentError(
                    f"DecodeRaw requires input strings to all be the same size, but element {i} "
                    f"has size {len(each)} != {size}",
                    node,
                )
        if size % dtype.itemsize:
            raise InvalidArgumentError(
                f"Input to DecodeRaw has length {size} that is not a multiple of "
                f"{dtype.itemsize}, the size of {node.attrs['out_type'].name}",
                node,
            )
        data = np.frombuffer(b"".join(flat), np.uint8)
        if swap:
            data = data.reshape(-1, part)[:, ::-1].copy().reshape(-1)
        return data.view(dtype).reshape((*array.shape, size // dtype.itemsize))

    return decode


@kernel("StringToNumber", only=("numpy",))
def string_to_number(node: Node, context: Context) -> Function:
    kind = node.output_types[0]
    read = _read_float if kind.is_floating else _read_int

    def convert(x: Any) -> Any:
        array = np.asarray(x, object)
        try:
            numbers = [read(each) for each in array.reshape(-1).tolist()]
            return np.array(numbers, kind.numpy).reshape(array.shape)
        except not_from_handler(ValueError, OverflowError):
            raise InvalidArgumentError(
                f"StringToNumberOp could not correctly convert string: {array.tolist()!r}", node
            ) from None

    return convert


def _read_float(text: bytes) -> float:
    """Return the number of a text, which may have hexadecimal digits, but no underscores."""
    if b"_" in text:
        raise ValueError
    return float.fromhex(text.decode()) if b"x" in text.lower() else float(text)


def _read_int(text: bytes) -> int:
    if b"_" in text:
        raise ValueError
    return int(text)
