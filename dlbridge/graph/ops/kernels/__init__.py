"""Shared by kernels of several families: tables of functions, dtypes, casts, axes, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import SAME_UFUNC, Context, Factory, Node, kernel
from dlbridge.proto.datatypes import (
    DataType,
    bfloat16,
    float16,
    float32,
)
from dlbridge.shape import MAX_RANK

Function = Callable[..., Any]
Array = Any


def element(node: Node, attribute: str = "T") -> DataType:
    """Return the dtype that an attribute names."""
    found: DataType = node.attrs[attribute]
    return found


def number(context: Context, value: Any, dtype: DataType) -> Any:
    """Return a scalar as a 0-d array of exactly this dtype, which promotes nothing."""
    return context.asarray(np.asarray(value, dtype.numpy))


def caster(context: Context, dtype: DataType) -> Function:
    """Return a function that casts arrays of the framework as the framework does."""
    return context.backend.caster(context.dtype(dtype))


def is_half(dtype: DataType) -> bool:
    """Whether sums in this dtype would lose most of their digits."""
    return dtype is bfloat16 or dtype is float16


def wider(dtype: DataType) -> DataType:
    """Return the dtype in which values of `dtype` are computed: float32 for halves."""
    return float32 if is_half(dtype) else dtype


def in_wider(context: Context, dtype: DataType, function: Function) -> Function:
    """Return `function`, computed in float32 where the dtype is a half; else itself."""
    if not is_half(dtype):
        return function
    widen, narrow = caster(context, float32), caster(context, dtype)
    return lambda *arrays: narrow(function(*[widen(array) for array in arrays]))


def require_rank(x: Any, rank: int, node: Node, what: str) -> None:
    """Require that an array has `rank` dimensions; an unknown static shape may have any.

    Raises:
        InvalidArgumentError: it has another number.
    """
    if x.ndim != rank:
        raise InvalidArgumentError(
            f"{what} must have {rank} {'dimension' if rank == 1 else 'dimensions'}, got shape "
            f"{list(x.shape)}",
            node,
        )


def require_shape(x: Any, shape: tuple[int, ...], node: Node, what: str) -> None:
    """Require that an array has a shape.

    Raises:
        InvalidArgumentError: it has another one.
    """
    if tuple(x.shape) != shape:
        raise InvalidArgumentError(
            f"{what} must have shape {list(shape)}, got shape {list(x.shape)}", node
        )


def require_part_dtype(node: Node) -> None:
    """Require that one of `T` and `Tout` is the dtype of the parts of the other.

    Raises:
        InvalidArgumentError: TensorFlow has no kernel for another pair either.
    """
    source, target = element(node), element(node, "Tout")
    if source.real_dtype is not target.real_dtype:
        raise InvalidArgumentError(
            f"no kernel is registered for {node.type} of {source.name} with Tout = {target.name}; "
            "both must have the same precision",
            node,
        )


def axes_of(host: Any, rank: int, node: Node) -> tuple[int, ...]:
    """Return axes as a sorted tuple from 0.

    Raises:
        InvalidArgumentError: one is out of range, or named twice.
    """
    found = np.asarray(host).reshape(-1)
    given: list[int] = found[: rank + 1].tolist()  # of more than these, some are duplicates
    for axis in given:
        if not -rank <= axis < rank:
            raise InvalidArgumentError(
                f"Invalid reduction dimension ({axis} for input with {rank} dimension(s))", node
            )
    axes = sorted({axis % rank for axis in given})
    if len(axes) < found.size:
        raise InvalidArgumentError(
            f"Invalid reduction arguments: Axes contains duplicate dimension: {given}", node
        )
    return tuple(axes)


def axis_of(host: Any, rank: int, node: Node, what: str) -> int:
    """Return one axis from 0; InvalidArgumentError where there is no such axis."""
    axis = int(host)
    if not -rank <= axis < rank:
        raise InvalidArgumentError(
            f"{what}: Expected dimension in the range [{-rank}, {rank}), but got {axis}", node
        )
    return axis % rank


def refuse_zero(node: Node, context: Context) -> Callable[[Any], None] | None:
    """Return a function that raises where an integer divisor has a zero.

    None where values are not checked: on a device or in XLA the quotient is undefined.
    """
    if not context.checks:
        return None

    def check(divisor: Any) -> None:
        if not bool(divisor.all()):
            raise InvalidArgumentError("Integer division by zero", node)

    return check


NARROW = frozenset({float16, bfloat16})


def widened(function: Callable[..., Any], node: Node, context: Context) -> Callable[..., Any]:
    """Return `function`, or for 16-bit inputs one that casts to float32 and its results back."""
    if not any(each.op.output_types[each.value_index].base_dtype in NARROW for each in node.inputs):
        return function
    narrow = {context.dtype(each) for each in NARROW}
    wide = context.dtype(float32)
    results = [context.dtype(each) if each in NARROW else None for each in node.output_types]
    astype = context.xp.astype

    def run(*values: Any) -> Any:
        out = function(*[astype(each, wide) if each.dtype in narrow else each for each in values])
        if len(results) == 1:
            return out if results[0] is None else astype(out, results[0])
        return tuple(
            [
                each if kind is None else astype(each, kind)
                for each, kind in zip(out, results, strict=True)
            ]
        )

    return run


# ---- op types that are one function ------------------------------------------------------------


def register_ufuncs(names: Mapping[str, str]) -> None:
    """Register op types that are one function of the array API and of NumPy, to the bit.

    Args:
        names: op type -> the name of the function.
    """
    for op_type, name in names.items():
        kernel(op_type, ufunc=name)(_in_namespace(name))


def _in_namespace(name: str) -> Factory:
    def factory(_: Node, context: Context) -> Function:
        function: Function = getattr(context.xp, name)
        return function

    return factory


def register_functions(framework: str, functions: Mapping[str, Function]) -> None:
    """Register op types that are one function of a framework, on all dtypes that it takes.

    Those that are also one ufunc of NumPy keep it: the framework's backend says for which dtypes
    the two are the same.

    Args:
        framework: its name.
        functions: op type -> the function.
    """
    for op_type, function in functions.items():
        kernel(op_type, framework=framework, ufunc=SAME_UFUNC)(_always(function))


def _always(function: Function) -> Factory:
    def factory(*_: Any) -> Function:
        return function

    return factory


def cached(node: Node, host: tuple[int, ...], compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return compute(dims, *values), cached while nothing that it depends on changes.

    Only values that are constants of the graph are relied upon, known by their identity: an array
    that was fed in their place may be another one, or have changed in place.

    Args:
        node: whose kernel calls it.
        host: which inputs the values are, NumPy arrays all.
        compute: a function of the shape of the other input and these values.
    """
    known = []
    for i in host:
        op = node.inputs[i].op
        if op.type != "Const":
            return compute
        known.append(id(op.attrs["value"].array))  # the node keeps it alive
    last: tuple[Any, Any] | None = None

    def lookup(dims: Any, *values: Any) -> Any:
        nonlocal last
        found = last  # another thread may replace it at any time, but never change it
        constant = [id(each) for each in values] == known
        if found is not None and constant and found[0] == dims:
            return found[1]
        value = compute(dims, *values)
        if constant:
            last = dims, value
        return value

    return lookup


def text(dims: Sequence[int]) -> str:
    """Return a shape as TensorFlow's messages have it: `[2,3]`."""
    return f"[{','.join(map(str, dims))}]"


def vector(value: Any, name: str, node: Node, most: int = MAX_RANK) -> list[Any]:
    """Return an input that must be a vector of at most so many numbers as a list.

    Raises:
        InvalidArgumentError: it has another rank, or more numbers; those are not looked at.
    """
    if len(value.shape) != 1:
        raise InvalidArgumentError(
            f"{node.type}: {name} must be a vector, got shape {text(value.shape)}", node
        )
    if value.shape[0] > most:
        raise InvalidArgumentError(
            f"{node.type}: {name} has {value.shape[0]} values; at most are {most}", node
        )
    found: list[Any] = value.tolist()
    return found


def normalize_axis(axis: int, rank: int, node: Node) -> int:
    """Return an axis counted from the front.

    Raises:
        InvalidArgumentError: there is none of that number.
    """
    if not -rank <= axis < rank:
        raise InvalidArgumentError(
            f"{node.type}: axis must be in the range [{-rank}, {rank}) of a tensor of rank {rank}, "
            f"got {axis}",
            node,
        )
    return axis % rank
