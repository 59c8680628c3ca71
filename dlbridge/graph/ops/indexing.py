"""Elements chosen by indices, masks, partitions and equality: gather, scatter, unique."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dlbridge.graph.core.default_graph import apply, constant, graph_of
from dlbridge.graph.core.inference import Inference, constant_value, merge, require_rank
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array import expand_dims, requested_dims, reshape, shape, size, squeeze
from dlbridge.graph.ops.joining import concat, stack
from dlbridge.graph.ops.shared import INDEX, Shapes, as_tensor, define, result
from dlbridge.proto.datatypes import as_dtype, int32
from dlbridge.proto.datatypes import bool_ as bool_type
from dlbridge.shape import Dims

__all__ = [
    "Unique", "UniqueWithCounts", "batch_gather", "boolean_mask", "dynamic_partition",
    "dynamic_stitch", "gather", "gather_nd", "meshgrid", "scatter_nd", "sequence_mask", "setdiff1d",
    "tensor_scatter_add", "tensor_scatter_max", "tensor_scatter_min", "tensor_scatter_nd_add",
    "tensor_scatter_nd_max", "tensor_scatter_nd_min", "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update", "tensor_scatter_sub", "tensor_scatter_update", "unique",
    "unique_with_counts", "unravel_index",
]  # fmt: skip


# ==== op types: gather and scatter ================================================================


_POLICY = 'bad_indices_policy: string = ""'


# ---- gather ------------------------------------------------------------------------------------


def _gather(c: Inference) -> Shapes:
    params, indices = c.dims(0), c.dims(1)
    if params is not None and not params:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    return [None if params is None or indices is None else indices + params[1:]]


def _gather_v2(c: Inference) -> Shapes:
    params, indices, axis = c.dims(0), c.dims(1), c.constant(2)
    require_rank(c.dims(2), 0, c)
    batch = c.attrs["batch_dims"]
    if params is None or indices is None:
        return [None]
    if batch < 0:
        batch += len(indices)
    if not 0 <= batch <= len(indices):
        raise c.error(f"batch_dims {c.attrs['batch_dims']} not in the rank {len(indices)} of "
                      "indices")  # fmt: skip
    if axis is None:
        return [(None,) * (len(params) + len(indices) - 1 - batch)]
    place = int(axis)
    if not -len(params) <= place < len(params):
        least = place + 1 if place >= 0 else -place
        raise c.error(f"Shape must be at least rank {least} but is rank {len(params)}")
    place %= len(params)
    if batch > place:
        raise c.error(f"batch_dims ({batch}) must be less than or equal to axis ({place})")
    head = merge(params[:batch], indices[:batch], c)
    assert head is not None
    return [head + params[batch:place] + indices[batch:] + params[place + 1 :]]


define(
    "Gather(params: Tparams, indices: Tindices, *, validate_indices: bool = true, Tparams: type, "
    "Tindices: {int32, int64}) -> output: Tparams",
    shape=_gather,
)
define(
    "GatherV2(params: Tparams, indices: Tindices, axis: Taxis, *, batch_dims: int = 0, "
    "Tparams: type, Tindices: {int16, int32, int64}, Taxis: {int32, int64}) -> output: Tparams",
    shape=_gather_v2,
)


def _gather_nd(c: Inference) -> Shapes:
    params, indices = c.dims(0), c.dims(1)
    if indices is not None and not indices:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    if params is None or indices is None or indices[-1] is None:
        return [None]
    if indices[-1] > len(params):
        raise c.error(
            f"indices.shape[-1] must be <= params.rank, but saw indices shape: {list(indices)} "
            f"and params shape: {list(params)}"
        )
    return [indices[:-1] + params[indices[-1] :]]


define(
    "GatherNd(params: Tparams, indices: Tindices, *, Tparams: type, "
    f"Tindices: {{int16, int32, int64}}, {_POLICY}) -> output: Tparams",
    shape=_gather_nd,
)


# ---- scatter -----------------------------------------------------------------------------------


def check_scatter(
    dims: Dims | None, indices: Dims | None, updates: Dims | None, c: Inference
) -> None:
    """Raise where updates do not fit the slices that the indices choose."""
    if indices is not None and not indices:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    if indices is None or updates is None:
        return
    outer = len(indices) - 1
    merge(indices[:-1], updates[:outer], c)
    depth = indices[-1]
    if dims is None or depth is None:
        return
    if depth > len(dims):
        raise c.error(f"indices choose {depth} axes, but the tensor has {len(dims)}")
    merge(dims[depth:], updates[outer:], c)


def _scatter_nd(c: Inference) -> Shapes:
    dims = requested_dims(c, 2)
    require_rank(c.dims(2), 1, c)
    if _count(dims) == 0 and (_count(c.dims(0)) or _count(c.dims(1))):
        raise c.error("Indices and updates specified for empty input")
    check_scatter(dims, c.dims(0), c.dims(1), c)
    return [dims]


def _count(dims: Dims | None) -> int | None:
    """Return the number of elements, None where it is unknown."""
    if dims is None or (None in dims and 0 not in dims):
        return None
    return prod([dim for dim in dims if dim is not None])


def _tensor_scatter_shape(c: Inference) -> Shapes:
    dims = c.dims(0)
    if dims is not None and not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    check_scatter(dims, c.dims(1), c.dims(2), c)
    return [dims]


define(
    "ScatterNd(indices: Tindices, updates: T, shape: Tindices, *, T: type, "
    f"Tindices: {{int16, int32, int64}}, {_POLICY}) -> output: T",
    shape=_scatter_nd,
)
for _type, _indices in (
    ("Update", "int16, int32, int64, uint16"),
    ("Add", "int32, int64"),
    ("Sub", "int32, int64"),
    ("Max", "int32, int64"),
    ("Min", "int32, int64"),
):
    define(
        f"TensorScatter{_type}(tensor: T, indices: Tindices, updates: T, *, T: type, "
        f"Tindices: {{{_indices}}}, {_POLICY}) -> output: T",
        shape=_tensor_scatter_shape,
    )


define(
    "UnravelIndex(indices: Tidx, dims: Tidx, *, Tidx: {int32, int64} = int32) -> output: Tidx",
    shape=lambda c: [_unraveled(c)],
)


def _unraveled(c: Inference) -> Dims | None:
    indices, count = c.dims(0), require_rank(c.dims(1), 1, c)[0]
    return None if indices is None else (count, *indices[:1])


# ==== op types: partitions ========================================================================


def _dynamic_partition(c: Inference) -> Shapes:
    data, partitions = c.dims(0), c.dims(1)
    if partitions is None or data is None:
        return [None] * c.output_count
    rank = len(partitions)
    if rank > len(data):
        raise c.error(f"Shape must be at least rank {rank} but is rank {len(data)}")
    merge(data[:rank], partitions, c)
    return [(None, *data[rank:])] * c.output_count


define(
    "DynamicPartition(data: T, partitions: int32, *, num_partitions: int >= 1, T: type) "
    "-> outputs: num_partitions * T",
    shape=_dynamic_partition,
)


def _dynamic_stitch(c: Inference) -> Shapes:
    count = len(c.inputs) // 2
    rest: Dims | None = None
    most: int | None = -1
    for i in range(count):
        indices, data, value = c.dims(i), c.dims(count + i), c.constant(i)
        if value is None:
            most = None
        elif most is not None:
            most = max(most, int(value.max(initial=-1)))
        if indices is None or data is None:
            continue
        if len(data) < len(indices):
            raise c.error(f"data {i} has fewer axes than its indices")
        merge(data[: len(indices)], indices, c)
        rest = merge(rest, data[len(indices) :], c)
    return [None if rest is None else (None if most is None else most + 1, *rest)]


for _type in ("DynamicStitch", "ParallelDynamicStitch"):
    define(
        f"{_type}(indices: N * int32, data: N * T, *, N: int >= 1, T: type) -> merged: T",
        shape=_dynamic_stitch,
    )


# ==== op types: unique values =====================================================================


def _unique(c: Inference) -> Shapes:
    shapes: Shapes = [(None,), require_rank(c.dims(0), 1, c), (None,)]
    return shapes[: c.output_count]


def _difference(c: Inference) -> Shapes:
    for i in (0, 1):
        require_rank(c.dims(i), 1, c)
    return [(None,), (None,)]


define(
    f"UniqueWithCounts(x: T, *, T: type, out_idx: {INDEX} = int32) "
    "-> (y: T, idx: out_idx, count: out_idx)",
    shape=_unique,
)


define(
    f"ListDiff(x: T, y: T, *, T: type, out_idx: {INDEX} = int32) -> (out: T, idx: out_idx)",
    shape=_difference,
)


define(f"Unique(x: T, *, T: type, out_idx: {INDEX} = int32) -> (y: T, idx: out_idx)", shape=_unique)


# ==== functions: gather and scatter ===============================================================


def gather(
    params: Any,
    indices: Any,
    validate_indices: bool | None = None,  # noqa: ARG001
    name: str | None = None,
    axis: Any = None,
    batch_dims: int = 0,
) -> Tensor:
    """Return the slices of `params` along an axis that `indices` choose.

    Args:
        params: rank 1 or more.
        indices: integers from 0, of any shape.
        validate_indices: without effect: indices are checked where they can be.
        name: of the operation.
        axis: a scalar, `batch_dims` by default.
        batch_dims: how many leading axes of both belong together.

    Raises:
        InvalidArgumentError: when run, an index is out of range. JAX gives zeros instead.
    """
    place = batch_dims if axis is None else axis
    attrs = {"batch_dims": batch_dims}
    return apply("GatherV2", (params, indices, place), attrs, name).outputs[0]


def batch_gather(params: Any, indices: Any, name: str | None = None) -> Tensor:
    """Return `gather` along the last axis of the indices, the axes before it being batches.

    Raises:
        ValueError: the rank of the indices is not known.
    """
    graph = graph_of((params, indices))
    with graph.as_default(), graph.name_scope(name or "BatchGather"):
        chosen, table = as_tensor(indices, None, "indices"), as_tensor(params, None, "params")
        if chosen._dims is None:
            raise ValueError("batch_gather does not allow indices with unknown shape.")
        last = len(chosen._dims) - 1
        return gather(table, chosen, axis=last, batch_dims=last)


def gather_nd(
    params: Any,
    indices: Any,
    name: str | None = None,
    batch_dims: int = 0,
    bad_indices_policy: str = "",
) -> Tensor:
    """Return the slices of `params` that vectors of indices choose.

    Args:
        params: of any shape.
        indices: shape [..., depth]: each vector indexes the first `depth` axes.
        name: of the operation.
        batch_dims: how many leading axes of both belong together.
        bad_indices_policy: "ERROR" (also ""), or "IGNORE": a slice out of range is zero, an
            update left out.

    Raises:
        InvalidArgumentError: when run, an index is out of range. JAX gives zeros instead.
    """
    attrs = {"bad_indices_policy": bad_indices_policy.encode()}
    if not batch_dims:
        return apply("GatherNd", (params, indices), attrs, name).outputs[0]
    graph = graph_of((params, indices))
    with graph.as_default(), graph.name_scope(name or "GatherNd") as scope:
        chosen = _with_batches(as_tensor(indices, None, "indices"), batch_dims)
        return apply("GatherNd", (params, chosen), attrs, scope).outputs[0]


def _with_batches(indices: Tensor, batch_dims: int) -> Tensor:
    """Return vectors of indices with the numbers of their batches in front."""
    dims = indices._dims
    outer = None if dims is None else len(dims) - 1
    if batch_dims < 0 or (outer is not None and batch_dims > outer):
        raise ValueError(f"gather_nd: batch_dims must be at most {outer}, got {batch_dims}")
    extents: Any = shape(indices, out_type=indices.dtype)
    column = concat([extents[:-1], constant([1], indices.dtype)], 0)
    ones: Any = result("OnesLike", (column,)) if outer is None else [1] * (outer + 1)
    place: Any
    parts = []
    for axis in range(batch_dims):
        numbers = result("Range", (0, extents[axis], 1))
        if outer is None:
            place = concat([ones[:axis], [-1], ones[axis + 1 :]], 0)
        else:
            place = [*ones[:axis], -1, *ones[axis + 1 :]]
        parts.append(result("BroadcastTo", (reshape(numbers, place), column)))
    return concat([*parts, indices], -1 if outer is None else outer)


# ---- scatter -----------------------------------------------------------------------------------


def scatter_nd(
    indices: Any, updates: Any, shape: Any, bad_indices_policy: str = "", name: str | None = None
) -> Tensor:
    """Return zeros of a shape to which slices were added.

    Args:
        indices: shape [..., depth]: each vector indexes the first `depth` axes of the result.
        updates: a slice for each vector; those for the same place are added up.
        shape: a vector, of the indices' dtype.
        bad_indices_policy: "ERROR" (also ""), or "IGNORE": a slice out of range is zero, an
            update left out.
        name: of the operation.

    Raises:
        InvalidArgumentError: when run, an index is out of range. JAX leaves it out instead.
    """
    attrs = {"bad_indices_policy": bad_indices_policy.encode()}
    return apply("ScatterNd", (indices, updates, shape), attrs, name).outputs[0]


def _tensor_scatter(how: str, summary: str) -> Callable[..., Tensor]:
    def scatter(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        inputs = (tensor, indices, updates)
        return apply(f"TensorScatter{how}", inputs, None, name).outputs[0]

    scatter.__name__ = scatter.__qualname__ = f"tensor_scatter_nd_{how.lower()}"
    scatter.__doc__ = f"""Return a copy of a tensor {summary}.

    Args:
        tensor: of any shape.
        indices: shape [..., depth]: each vector indexes the first `depth` axes of the tensor.
        updates: a slice for each vector.
        name: of the operation, of type TensorScatter{how}.

    Raises:
        InvalidArgumentError: when run, an index is out of range. JAX leaves it out instead.
    """
    return scatter


tensor_scatter_nd_update = _tensor_scatter("Update", "whose slices at `indices` are `updates`")
tensor_scatter_nd_add = _tensor_scatter("Add", "with `updates` added to its slices at `indices`")
tensor_scatter_nd_sub = _tensor_scatter(
    "Sub", "with `updates` subtracted from its slices at `indices`"
)
tensor_scatter_nd_max = _tensor_scatter(
    "Max", "with the element-wise maximum of `updates` and its slices at `indices`"
)
tensor_scatter_nd_min = _tensor_scatter(
    "Min", "with the element-wise minimum of `updates` and its slices at `indices`"
)
tensor_scatter_update = tensor_scatter_nd_update
tensor_scatter_add = tensor_scatter_nd_add
tensor_scatter_sub = tensor_scatter_nd_sub
tensor_scatter_max = tensor_scatter_nd_max
tensor_scatter_min = tensor_scatter_nd_min


def unravel_index(indices: Any, dims: Any, name: str | None = None) -> Tensor:
    """Return row-major positions as vectors of indices, one column for each.

    Args:
        indices: a scalar or a vector of integers.
        dims: the shape that they are positions in.
        name: of the operation.
    """
    return apply("UnravelIndex", (indices, dims), None, name).outputs[0]


# ==== functions: masks and grids ==================================================================


def boolean_mask(
    tensor: Any, mask: Any, name: str | None = "boolean_mask", axis: Any = None
) -> Tensor:
    """Return the slices of a tensor where the mask is true.

    Args:
        tensor: of any shape.
        mask: of known rank, 1 or more; its shape is that of the axes of `tensor` from `axis` on,
            which become one.
        name: of the operations.
        axis: the first of them, 0 by default; known while the graph is built.
    """
    graph = graph_of((tensor, mask))
    with graph.as_default(), graph.name_scope(name or "boolean_mask"):
        values, chosen = as_tensor(tensor, None, "tensor"), as_tensor(mask, bool_type, "mask")
        first, count = _mask_axes(values, chosen, axis)
        after = first + count
        known = values.shape
        extents = shape(values)
        inside = apply("Prod", (extents[first:after], [0])).outputs[0]
        target = concat([extents[:first], [inside], shape(values)[after:]], 0)
        rows = reshape(values, target)
        if known.dims is not None:
            merged = known[first:after].num_elements()
            rows.set_shape(known[:first].concatenate([merged]).concatenate(known[after:]))
        places = apply("Where", (reshape(chosen, [-1]),)).outputs[0]
        return gather(rows, squeeze(places, axis=[1]), axis=first)


def _mask_axes(values: Tensor, mask: Tensor, axis: Any) -> tuple[int, int]:
    """Return the first axis that a mask is for, and how many there are."""
    if mask._dims is None:
        raise ValueError(
            "Number of mask dimensions must be specified, even if some dimensions are None.  "
            "E.g. shape=[None] is ok, but shape=None is not."
        )
    if not mask._dims:
        raise ValueError("mask cannot be scalar.")
    first = constant_value(axis) if isinstance(axis, Tensor) else axis
    if isinstance(axis, Tensor) and first is None:
        raise ValueError(f"boolean_mask: axis must be known when the graph is built, got {axis}")
    first = 0 if first is None else int(first)
    if first < 0 and values._dims is not None:
        first += len(values._dims)
    count = len(mask._dims)
    if values._dims is not None and not values.shape[first : first + count].is_compatible_with(
        mask.shape
    ):
        raise ValueError(
            f"Shapes {values.shape[first : first + count]} and {mask.shape} are incompatible"
        )
    return first, count


def sequence_mask(
    lengths: Any, maxlen: Any = None, dtype: object = bool_type, name: str | None = None
) -> Tensor:
    """Return for each length a row that is true in so many places, then false.

    Args:
        lengths: integers of any shape.
        maxlen: a scalar, the extent of the rows; the greatest length by default.
        dtype: of the result; true is 1.
        name: of the operations.
    """
    graph = graph_of((lengths, maxlen))
    with graph.as_default(), graph.name_scope(name or "SequenceMask"):
        counts = as_tensor(lengths, None, "lengths")
        if maxlen is None:
            axes = np.arange(len(counts._dims)) if counts._dims is not None else _all_axes(counts)
            longest = apply("Max", (counts, axes)).outputs[0]
            zero = constant(0, counts.dtype)
            longest = apply("Maximum", (zero, longest)).outputs[0]
        else:
            longest = as_tensor(maxlen, counts.dtype, "maxlen")
        if longest._dims:
            raise ValueError(
                "Argument `maxlen` must be scalar for sequence_mask, received `maxlen` = "
                f"{longest} with shape '{longest.shape}'."
            )
        if longest.dtype is not counts.dtype:
            longest = apply("Cast", (longest,), {"DstT": counts.dtype}).outputs[0]
        limits = (constant(0, counts.dtype), longest, constant(1, counts.dtype))
        row = apply("Range", limits).outputs[0]
        result = apply("Less", (row, expand_dims(counts, -1))).outputs[0]
        kind = as_dtype(dtype)
        if kind is bool_type:
            return result
        return apply("Cast", (result,), {"DstT": kind}).outputs[0]


def _all_axes(tensor: Tensor) -> Tensor:
    count = apply("Rank", (tensor,)).outputs[0]
    return apply("Range", (0, count, 1), None, "range").outputs[0]


def meshgrid(*args: Any, indexing: str = "xy", name: str | None = "meshgrid") -> list[Tensor]:
    """Return for each vector a grid in which it runs along an axis of its own.

    Args:
        args: vectors of one dtype.
        indexing: "xy", where the first two axes change places, or "ij".
        name: of the operations.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(
            f"Argument `indexing` parameter must be either 'xy' or 'ij', got '{indexing}'"
        )
    graph = graph_of(args)
    count = len(args)
    with graph.as_default(), graph.name_scope(name or "meshgrid"):
        rows = []
        for i, each in enumerate(args):
            dims = [1] * count
            dims[i] = -1
            rows.append(reshape(stack(each), dims))
        extents = [size(each) for each in args]
        if indexing == "xy" and count > 1:
            swapped = [1, 0, *range(2, count)]
            extents = [extents[i] for i in swapped]
            for i, order in ((0, (1, -1)), (1, (-1, 1))):
                rows[i] = reshape(rows[i], [*order, *([1] * (count - 2))])
        if not rows:
            return []
        ones = apply("Fill", (stack(extents), constant(1, rows[0].dtype)), None, "ones").outputs[0]
        return [apply("Mul", (each, ones), None, "mul").outputs[0] for each in rows]


# ==== functions: partitions =======================================================================


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Return the slices of a tensor split into several tensors by partition numbers.

    Args:
        data: its shape starts with that of `partitions`.
        partitions: int32, for each slice the number of the result that it goes to.
        num_partitions: how many results.
        name: of the operation.

    Raises:
        InvalidArgumentError: when run, there is no result of that number.
    """
    attrs = {"num_partitions": num_partitions}
    return list(apply("DynamicPartition", (data, partitions), attrs, name).outputs)


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Tensor:
    """Return one tensor put together of slices: what `dynamic_partition` undoes.

    Args:
        indices: a list of int32 tensors: where each slice goes. The last one to name a place wins.
        data: a list of tensors whose shapes start with those of `indices`.
        name: of the operation.
    """
    return apply("DynamicStitch", (indices, data), None, name).outputs[0]


# ==== functions: unique values ====================================================================


class Unique(NamedTuple):
    """The result of `unique`: the elements, and the index of each input element in them."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """The result of `unique_with_counts`: elements, the index of each input element, counts."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple's own method has TensorFlow's name


def unique(x: Any, out_idx: object = int32, name: str | None = None) -> Unique:
    """Return the elements of a vector in order of first occurrence.

    Args:
        x: a Tensor of one dimension, or what becomes one, of any dtype that can be compared.
        out_idx: int32 or int64, the dtype of `idx`.
        name: of the operation, "Unique" by default.

    Returns:
        Unique: `y`, the elements, as many as there are; `idx`, of the length of x, which of them
        each one is: x is y[idx]. No NaN equals another.

    Raises:
        ValueError: x is no vector.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.unique([4, 4, 2, 4]))
        Unique(y=array([4, 2], dtype=int32), idx=array([0, 0, 1, 0], dtype=int32))
    """
    return Unique(*apply("Unique", (x,), {"out_idx": as_dtype(out_idx)}, name).outputs)


def unique_with_counts(
    x: Any, out_idx: object = int32, name: str | None = None
) -> UniqueWithCounts:
    """Return the elements of a vector in order of first occurrence, and how often they occur.

    As `unique`; `count` has the length of `y` and the dtype `out_idx`.
    """
    attrs = {"out_idx": as_dtype(out_idx)}
    return UniqueWithCounts(*apply("UniqueWithCounts", (x,), attrs, name).outputs)


class ListDiff(NamedTuple):
    """The result of `setdiff1d`: the elements, and their positions."""

    out: Tensor
    idx: Tensor


def setdiff1d(x: Any, y: Any, index_dtype: object = int32, name: str | None = None) -> ListDiff:
    """Return the elements of vector x that are not in vector y, in order, and their positions."""
    op = apply("ListDiff", (x, y), {"out_idx": as_dtype(index_dtype)}, name)
    return ListDiff(*op.outputs)
