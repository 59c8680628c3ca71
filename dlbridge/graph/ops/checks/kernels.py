"""Checks of values while a graph runs, what it prints, and strings.

Strings are NumPy arrays of bytes objects; what makes or reads them runs on NumPy.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from dlbridge.exchange import adapter
from dlbridge.execution.context import Context
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.array.kernels import Kernel, text

# ---- checks ------------------------------------------------------------------------------------


@kernel("Assert", only=("numpy",), traceable=False)
def assert_(node: Node, context: Context) -> Kernel:
    summarize = node.attrs["summarize"]

    def check(condition: Any, *data: Any) -> Any:
        if np.ndim(condition):
            raise InvalidArgumentError(f"In[0] should be a scalar: {text(condition.shape)}", node)
        if not condition:
            shown = " ".join([summary(each, summarize) for each in data])
            raise InvalidArgumentError(f"assertion failed: {shown}", node)
        return ()

    return check


@kernel("CheckNumerics", traceable=False)
def check_numerics(node: Node, context: Context) -> Kernel:
    xp, message = context.xp, node.attrs["message"].decode(errors="replace")

    def check(x: Any) -> Any:
        if not bool(xp.all(xp.isfinite(x))):
            found = {
                "Inf": bool(xp.any(xp.isinf(x))),
                "NaN": bool(xp.any(xp.isnan(x))),
            }
            names = " and ".join([name for name, there in found.items() if there])
            raise InvalidArgumentError(f"{message} : Tensor had {names} values", node)
        return x

    return check


@kernel("Print", traceable=False)
def print_(node: Node, context: Context) -> Kernel:
    """Write message and data to standard error, the first `first_n` times of this plan."""
    message = node.attrs["message"].decode(errors="replace")
    most, summarize = node.attrs["first_n"], node.attrs["summarize"]
    lock, written = threading.Lock(), [0]

    def show(x: Any, *data: Any) -> Any:
        with lock:
            due = most < 0 or written[0] < most
            written[0] += due
        if due:
            sys.stderr.write(message + "".join([_host(each, summarize) for each in data]) + "\n")
        return x

    return show


def _host(value: Any, summarize: int) -> str:
    if not isinstance(value, np.ndarray | np.generic):
        value = adapter.converter("numpy")(value, readonly="share")
    return f"[{summary(value, summarize)}]".replace("[[", "[").replace("]]", "]")


def summary(value: Any, most: int) -> str:
    """Return the first elements of each axis as text: `[1 2 3...]`; -1 is all."""
    if np.ndim(value) == 0:
        return _element(np.asarray(value).item())
    most = most if most >= 0 else sys.maxsize
    shown = [summary(each, most) for each in value[:most]]
    between = " " if value.ndim == 1 else "\n" * (value.ndim - 1)
    return f"[{between.join(shown)}{'...' if len(value) > most else ''}]"


def _element(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# ---- strings -----------------------------------------------------------------------------------


@kernel("StringJoin", only=("numpy",))
def string_join(node: Node, context: Context) -> Kernel:
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
def as_string(node: Node, context: Context) -> Kernel:
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
    width, fill = attrs["width"], attrs["fill"].decode()
    real = kind.is_floating or kind.is_complex
    if scientific and shortest:
        raise InvalidArgumentError("Cannot select both scientific and shortest notation", node)
    if not real and (scientific or shortest or (precision >= 0 and not kind.is_integer)):
        raise InvalidArgumentError(
            f"scientific and shortest format not supported for datatype {kind.name}", node
        )
    if fill not in ("", " ", "+", "-", "0", "#"):
        raise InvalidArgumentError(f"Fill argument not supported: {fill!r}", node)
    letter = ("e" if scientific else "g" if shortest else "f") if real else "d"
    flags = "%" + fill + (str(width) if width >= 0 else "")
    flags += f".{precision}" if precision >= 0 and (real or kind.is_integer) else ""
    pattern = flags + letter
    if kind.is_complex:
        return lambda value: f"({pattern % value.real},{pattern % value.imag})".encode()
    if kind.is_bool:
        return lambda value: (b"true" if value else b"false").rjust(max(width, 0))
    if not real and not kind.is_integer:
        return lambda value: value.rjust(max(width, 0))
    return lambda value: (pattern % value).encode()


@kernel("DecodeRaw", only=("numpy",))
def decode_raw(node: Node, context: Context) -> Kernel:
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
