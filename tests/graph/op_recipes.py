"""Random graphs of op types: a recipe for each draws inputs and attributes, also extreme ones.

A graph has up to six operations in a chain: a recipe takes values that are there, if some fit, or
new ones, which are constants or are fed, and then static shapes may leave their extents open. The
shape of a result is what is inferred from full shapes: where that is not known, no other operation
takes the result. `TYPES` has all recipes, `LEFT_OUT` the op types that have none, with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dlbridge.graph as tf
from dlbridge.graph.core.default_graph import apply

MOST = 6  # operations
FLOATS = ("float32", "float64", "float16")
WIDE = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INDICES = ("int32", "int64")
NUMBERS = (*FLOATS, *SIGNED, *UNSIGNED, *COMPLEX)
ANY = (*NUMBERS, "bool", "string")

Shape = tuple[int, ...]


class Drawing:
    """A graph while it is drawn.

    Attributes:
        random: where everything is drawn from.
        graph: the graph itself.
        feeds: name of a placeholder -> its value.
        ops: the operations drawn, without constants and placeholders.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.graph = tf.Graph()
        self.feeds: dict[str, Any] = {}
        self.ops: list[Any] = []
        self._shapes: dict[Any, Shape] = {}

    # ---- values ----

    def shape(self, rank: int | None = None, least: int = 0) -> Shape:
        """Return small extents, sometimes 0 or 1."""
        rank = self.random.choice((0, 1, 1, 2, 2, 3, 4)) if rank is None else rank
        return tuple(max(least, self.random.choice((0, 1, 1, 2, 2, 3, 3, 4))) for _ in range(rank))

    def array(self, dtype: str, shape: Shape, low: int = -4, high: int = 4) -> Any:
        """Return numbers between two bounds; of an open range also extremes of the dtype."""
        size = int(np.prod(shape))
        r = self.random
        if dtype == "string":
            found = np.empty(size, object)
            found[:] = [bytes(r.choices(b"ab\xff 1", k=r.randint(0, 3))) for _ in range(size)]
            return found.reshape(shape)
        if dtype == "bool":
            return np.array([r.random() < 0.5 for _ in range(size)], bool).reshape(shape)
        kind = np.dtype(dtype)
        extreme = (low, high) == (-4, 4) and r.random() < 0.15
        if kind.kind in "iu":
            least, most = np.iinfo(kind).min, np.iinfo(kind).max
            bounds = (least, most) if extreme else (max(low, least), min(high, most))
            return np.array([r.randint(*bounds) for _ in range(size)], kind).reshape(shape)
        special = (np.inf, -np.inf, np.nan, -0.0, 65000.0, 1e-5) if extreme else ()
        count = 2 if kind.kind == "c" else 1
        numbers = [
            r.choice(special) if special and r.random() < 0.3 else r.randint(4 * low, 4 * high) / 4
            for _ in range(size * count)
        ]
        parts = np.array(numbers, np.float64)
        if count == 2:
            parts = parts.view(np.complex128)
        return parts.astype(kind).reshape(shape)

    def new(self, value: Any, dtype: str | None = None) -> Any:
        """Return a Tensor of a value: a constant, or one that is fed."""
        value = np.asarray(value, np.object_ if dtype == "string" else dtype)
        kind = tf.as_dtype("string" if value.dtype == object else value.dtype)
        if self.random.random() < 0.5:
            tensor = tf.constant(value, kind)
        else:
            dims: Any = [None if self.random.random() < 0.3 else n for n in value.shape]
            if self.random.random() < 0.1:
                dims = None
            tensor = tf.placeholder(kind, dims)
            self.feeds[tensor.name] = value
        self._shapes[tensor] = value.shape
        return tensor

    def known(self, value: Any, dtype: str = "int32") -> Any:
        """Return a constant: a shape, axes, what must fit."""
        tensor = tf.constant(np.asarray(value, dtype))
        self._shapes[tensor] = np.shape(value)
        return tensor

    def any(
        self, dtypes: Sequence[str] = NUMBERS, rank: int | None = None, least_rank: int = 0,
        least: int = 0, low: int = -4, high: int = 4,
    ) -> Any:  # fmt: skip
        """Return a Tensor of one of these dtypes: a result that fits, or a new one."""
        fit = [
            x
            for op in self.ops
            for x in op.outputs
            if x in self._shapes
            and x.dtype.name in dtypes
            and (rank is None or len(self._shapes[x]) == rank)
            and len(self._shapes[x]) >= least_rank
            and min(self._shapes[x], default=least) >= least
            and (low, high) == (-4, 4)
        ]
        if fit and self.random.random() < 0.8:
            return self.random.choice(fit)
        dims = self.shape(rank, least)
        dims += self.shape(max(least_rank - len(dims), 0), least)
        kind = self.random.choice(dtypes)
        return self.new(self.array(kind, dims, low, high), kind)

    def like(self, x: Any, shape: Shape | None = None, low: int = -4, high: int = 4) -> Any:
        """Return a new Tensor of the dtype of another one, and of its shape."""
        dims = self.of(x) if shape is None else shape
        return self.new(self.array(x.dtype.name, dims, low, high), x.dtype.name)

    def of(self, x: Any) -> Shape:
        """Return the shape that a Tensor will have."""
        return self._shapes[x]

    def fits(self, shape: Shape) -> Shape:
        """Return a shape that is broadcast to `shape`, or to which that is broadcast."""
        dims = tuple(1 if self.random.random() < 0.3 else n for n in shape)
        return dims[self.random.randint(0, len(dims)) :] if self.random.random() < 0.4 else dims

    def flag(self) -> bool:
        return self.random.random() < 0.5

    # ---- operations ----

    def add(self, op_type: str, inputs: Sequence[Any], **attrs: Any) -> None:
        """Add an operation; ValueError where the static shapes refuse it."""
        attrs = {key: v.encode() if isinstance(v, str) else v for key, v in attrs.items()}
        op = apply(op_type, inputs, attrs, None)
        self.ops.append(op)
        flat = list(op.inputs)
        with tf.Graph().as_default():
            full = [
                self._full(x) if x in self._shapes else tf.placeholder(x.dtype, None) for x in flat
            ]
            again = tf.get_default_graph().create_op(op_type, full, attrs=dict(op.attrs))
            shapes = [each.shape for each in again.outputs]
        for x, shape in zip(op.outputs, shapes, strict=True):
            dims = None if shape.rank is None else shape.as_list()
            if dims is not None and None not in dims and np.prod(dims, dtype=object) <= 200:
                self._shapes[x] = tuple(dims)

    def _full(self, x: Any) -> Any:
        """Return the Tensor of another graph that has the same value, or shape."""
        if x.op.type == "Const":
            return tf.constant(x.op.attrs["value"].array, x.dtype)
        return tf.placeholder(x.dtype, self._shapes[x])


def draw(seed: int, first: str | None = None) -> Drawing:
    """Return a random graph; its first operation is of type `first`."""
    d = Drawing(seed)
    with d.graph.as_default():
        names = sorted(TYPES)
        wanted = d.random.randint(1, MOST)
        for i in range(3 * wanted):
            name = first if first and i == 0 else d.random.choice(names)
            try:
                TYPES[name](d)
            except (ValueError, TypeError):  # refused while it is built, which other tests compare
                continue
            if len(d.ops) >= wanted:
                break
    return d


Recipe = Callable[[Drawing], object]
TYPES: dict[str, Recipe] = {}


def recipe(*names: str) -> Callable[[Callable[[Drawing, str], object]], Any]:
    """Make a function of a Drawing and an op type the recipe of these op types."""

    def register(function: Callable[[Drawing, str], object]) -> Any:
        for name in names:
            TYPES[name] = lambda d, name=name: function(d, name)
        return function

    return register


def _table(dtypes: Sequence[str], names: str) -> dict[str, Sequence[str]]:
    return dict.fromkeys(names.split(), dtypes)


# ---- element by element --------------------------------------------------------------------------

UNARY: dict[str, Sequence[str]] = {
    **_table((*FLOATS, *COMPLEX), "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Exp Expm1 Log Log1p "
             "Rsqrt Sigmoid Sin Sinh Sqrt Tan Tanh Reciprocal Inv"),
    **_table(WIDE, "Digamma Erf Erfc Erfinv Lgamma Ndtri"),
    **_table(FLOATS, "Ceil Floor Rint IsFinite IsInf IsNan Elu Selu Softplus Softsign LeakyRelu "
             "L2Loss CheckNumerics"),
    **_table((*FLOATS, *SIGNED, *COMPLEX), "Neg Sign Square Abs"),
    **_table((*FLOATS, *SIGNED), "Round"),
    **_table((*FLOATS, *SIGNED, *UNSIGNED), "Relu Relu6"),
    **_table(COMPLEX, "Conj"),
    **_table((*SIGNED, *UNSIGNED), "Invert PopulationCount"),
    **_table(("bool",), "LogicalNot"),
    **_table(ANY, "Identity Snapshot StopGradient PreventGradient GuaranteeConst ZerosLike Shape "
             "Size Rank"),
    **_table((*NUMBERS, "bool"), "OnesLike Where"),
}  # fmt: skip


@recipe(*UNARY)
def unary(d: Drawing, op: str) -> None:
    dtypes = [each for each in UNARY[op] if op != "Abs" or each not in COMPLEX]
    attrs = {"message": "not finite"} if op == "CheckNumerics" else {}
    d.add(op, [d.any(dtypes)], **attrs)


@recipe("ComplexAbs", "Angle", "Real", "Imag")
def parts(d: Drawing, op: str) -> None:
    x = d.any(COMPLEX)
    d.add(op, [x], Tout=x.dtype.real_dtype)


BINARY: dict[str, Sequence[str]] = {
    **_table(NUMBERS, "AddV2 Add Sub Mul"),
    **_table((*FLOATS, *SIGNED, *UNSIGNED), "Maximum Minimum FloorDiv FloorMod Less LessEqual "
             "Greater GreaterEqual"),
    **_table((*FLOATS, *COMPLEX), "RealDiv DivNoNan MulNoNan Xdivy Xlogy Xlog1py"),
    **_table((*FLOATS, *SIGNED), "Div TruncateDiv Pow"),
    **_table((*WIDE, *INDICES), "TruncateMod Mod SquaredDifference"),
    **_table(WIDE, "Atan2 NextAfter"),
    **_table((*SIGNED, *UNSIGNED), "BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift"),
    **_table(("bool",), "LogicalAnd LogicalOr"),
}  # fmt: skip


@recipe(*BINARY)
def binary(d: Drawing, op: str) -> None:
    x = d.any(BINARY[op])
    small = op in ("Pow", "LeftShift", "RightShift")
    y = d.like(x, d.fits(d.of(x)), *((0, 3) if small else ()))
    d.add(op, [x, y] if small or d.flag() else [y, x])


@recipe("Equal", "NotEqual")
def equal(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    y = d.like(x, d.shape() if d.random.random() < 0.2 else d.fits(d.of(x)))
    d.add(op, [x, y], incompatible_shape_error=d.flag())


@recipe("ApproximateEqual")
def near(d: Drawing, op: str) -> None:
    x = d.any(WIDE)
    d.add(op, [x, d.like(x)], tolerance=0.5)


@recipe("AddN", "AccumulateNV2")
def add_n(d: Drawing, op: str) -> None:
    x = d.any(NUMBERS)
    attrs = {"shape": tf.TensorShape(d.of(x))} if op == "AccumulateNV2" else {}
    d.add(op, [[x, *[d.like(x) for _ in range(d.random.randint(0, 2))]]], **attrs)


@recipe("ClipByValue")
def clip(d: Drawing, op: str) -> None:
    x = d.any((*FLOATS, *SIGNED, *UNSIGNED))
    d.add(op, [x, d.like(x, (), 0, 1), d.like(x, (), 1, 3)])


@recipe("Cast")
def cast(d: Drawing, op: str) -> None:
    x = d.any((*FLOATS, "int32", "int64", "bool"), low=0, high=3)
    d.add(op, [x], DstT=tf.as_dtype(d.random.choice((*NUMBERS, "bool"))))


@recipe("Complex")
def complex_(d: Drawing, op: str) -> None:
    x = d.any(WIDE)
    kind = "complex64" if x.dtype.name == "float32" else "complex128"
    d.add(op, [x, d.like(x, d.fits(d.of(x)))], Tout=tf.as_dtype(kind))


@recipe("Bitcast")
def bitcast(d: Drawing, op: str) -> None:
    x = d.any(("float32", "int32", "uint32", "int64", "float64", "uint8"))
    d.add(op, [x], type=tf.as_dtype(d.random.choice(("int32", "uint8", "float64", "int16"))))


@recipe("Select", "SelectV2")
def select(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    dims = d.of(x)
    wanted = dims if d.flag() else dims[:1] if op == "Select" else d.fits(dims)
    d.add(op, [d.new(d.array("bool", wanted)), x, d.like(x)])


# ---- reductions ----------------------------------------------------------------------------------

REDUCTIONS: dict[str, Sequence[str]] = {
    **_table(NUMBERS, "Sum Prod Mean"),
    **_table((*FLOATS, *SIGNED, *UNSIGNED), "Max Min"),
    **_table(("bool",), "All Any"),
    **_table((*WIDE, *COMPLEX), "EuclideanNorm"),
}


@recipe(*REDUCTIONS)
def reduction(d: Drawing, op: str) -> None:
    x = d.any(REDUCTIONS[op])
    rank = len(d.of(x))
    axes = d.random.sample(range(rank), d.random.randint(0, rank))
    given = [axis - rank if d.flag() else axis for axis in axes]
    d.add(op, [x, d.new(given, d.random.choice(INDICES))], keep_dims=d.flag())


@recipe("ArgMax", "ArgMin")
def position(d: Drawing, op: str) -> None:
    x = d.any((*FLOATS, *SIGNED, *UNSIGNED), least_rank=1)
    axis = d.known(d.random.randrange(-len(d.of(x)), len(d.of(x))))
    d.add(op, [x, axis], output_type=tf.as_dtype(d.random.choice(INDICES)))


@recipe("Cumsum", "Cumprod", "CumulativeLogsumexp")
def cumulative(d: Drawing, op: str) -> None:
    x = d.any(WIDE if op == "CumulativeLogsumexp" else NUMBERS, least_rank=1)
    axis = d.known(d.random.randrange(-len(d.of(x)), len(d.of(x))))
    d.add(op, [x, axis], exclusive=d.flag(), reverse=d.flag())


@recipe("TopKV2")
def largest(d: Drawing, op: str) -> None:
    x = d.any((*FLOATS, *SIGNED, *UNSIGNED), least_rank=1)
    d.add(op, [x, d.new(d.random.randint(0, d.of(x)[-1]), "int32")])


@recipe("SegmentSum", "SegmentProd", "SegmentMax", "SegmentMin", "SegmentMean")
def segments(d: Drawing, op: str) -> None:
    x = d.any((*FLOATS, *SIGNED), least_rank=1)
    rows = sorted(d.random.randint(0, 3) for _ in range(d.of(x)[0]))
    d.add(op, [x, d.new(rows, d.random.choice(INDICES))])


@recipe("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin")
def unsorted_segments(d: Drawing, op: str) -> None:
    x = d.any((*FLOATS, *SIGNED, *UNSIGNED), least_rank=1)
    lead = d.of(x)[: d.random.randint(1, len(d.of(x)))]
    rows = d.array("int32", lead, -1, 3)
    d.add(op, [x, d.new(rows, d.random.choice(INDICES)), d.known(4)])


@recipe("Bincount")
def bincount(d: Drawing, op: str) -> None:
    x = d.any(("int32",), low=0, high=5)
    weights = d.new(np.zeros(0), "float32") if d.flag() else d.new(d.array("float32", d.of(x)))
    d.add(op, [x, d.known(d.random.randint(0, 6)), weights])


# ---- linear algebra ------------------------------------------------------------------------------


@recipe("MatMul")
def matmul(d: Drawing, op: str) -> None:
    x = d.any((*WIDE, *INDICES, *COMPLEX), rank=2)
    a, b = d.flag(), d.flag()
    inner, free = d.of(x)[not a], d.random.randint(0, 3)
    dims = (free, inner) if b else (inner, free)
    d.add(op, [x, d.like(x, dims)], transpose_a=a, transpose_b=b)


@recipe("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(d: Drawing, op: str) -> None:
    x = d.any((*WIDE, *INDICES, *COMPLEX), least_rank=2)
    a, b = d.flag(), d.flag()
    inner, free = d.of(x)[-2 if a else -1], d.random.randint(0, 3)
    lead = d.of(x)[:-2]
    if op != "BatchMatMul":
        lead = d.fits(lead)
    dims = (*lead, *((free, inner) if b else (inner, free)))
    attrs = {"Tout": x.dtype} if op == "BatchMatMulV3" else {}
    d.add(op, [x, d.like(x, dims)], adj_x=a, adj_y=b, **attrs)


@recipe("Einsum")
def einsum(d: Drawing, op: str) -> None:
    x = d.any((*WIDE, "int32"), rank=2)
    rows, columns = d.of(x)
    equation, dims = d.random.choice(
        [("ij,jk->ik", (columns, 2)), ("ij,ij->i", (rows, columns)), ("ij,kj->ki", (3, columns)),
         ("...j,j->...", (columns,)), ("ij,j->", (columns,))]
    )  # fmt: skip
    d.add(op, [[x, d.like(x, dims)]], equation=equation)


@recipe("Cross")
def cross(d: Drawing, op: str) -> None:
    x = d.new(d.array(d.random.choice((*WIDE, *SIGNED)), (*d.shape(1), 3)))
    d.add(op, [x, d.like(x)])


@recipe("MatrixDiag")
def diagonal_matrix(d: Drawing, op: str) -> None:
    d.add(op, [d.any((*NUMBERS, "bool"), least_rank=1)])


@recipe("MatrixDiagPart", "MatrixBandPart", "MatrixSetDiag")
def diagonal(d: Drawing, op: str) -> None:
    x = d.any((*NUMBERS, "bool"), least_rank=2)
    rows, columns = d.of(x)[-2:]
    more: list[Any] = []
    if op == "MatrixBandPart":
        more = [d.known(d.random.randint(-1, n), "int64") for n in (rows, columns)]
    if op == "MatrixSetDiag":
        more = [d.like(x, (*d.of(x)[:-2], min(rows, columns)))]
    d.add(op, [x, *more])


@recipe("MatrixInverse", "MatrixDeterminant", "MatrixSolve", "Cholesky")
def decomposition(d: Drawing, op: str) -> None:
    side, lead = d.random.randint(0, 3), d.shape(d.random.choice((0, 1)))
    kind = d.random.choice((*WIDE, *COMPLEX))
    matrix = d.array(kind, (*lead, side, side), -1, 1) + np.eye(side, dtype=kind) * 8
    if op == "Cholesky":
        matrix = matrix + np.conj(np.swapaxes(matrix, -1, -2))
    attrs = {"adjoint": d.flag()} if op in ("MatrixInverse", "MatrixSolve") else {}
    x = d.new(matrix, kind)
    more = [d.like(x, (*lead, side, d.random.randint(0, 2)))] if op == "MatrixSolve" else []
    d.add(op, [x, *more], **attrs)


# ---- images and networks -------------------------------------------------------------------------


def _windows(d: Drawing, rank: int) -> dict[str, Any]:
    inner = [d.random.randint(1, 2) for _ in range(rank - 2)]
    return {"strides": [1, *inner, 1], "padding": d.random.choice(("SAME", "VALID"))}


@recipe("Conv2D", "Conv3D", "DepthwiseConv2dNative")
def convolution(d: Drawing, op: str) -> None:
    rank = 5 if op == "Conv3D" else 4
    kind = d.random.choice(WIDE)
    depth = d.random.randint(1, 2)
    x = d.new(d.array(kind, (*d.shape(1), *d.shape(rank - 2, 1), depth)))
    taps = tuple(d.random.randint(1, 2) for _ in range(rank - 2))
    attrs = _windows(d, rank)
    if op == "DepthwiseConv2dNative":
        attrs["strides"] = [1] * 4
    d.add(op, [x, d.like(x, (*taps, depth, d.random.randint(1, 3)))], **attrs)


@recipe("Conv2DBackpropInput")
def backprop(d: Drawing, op: str) -> None:
    batch, rows, columns, depth, count = (d.random.randint(1, 3) for _ in range(5))
    taps = (d.random.randint(1, rows), d.random.randint(1, columns))
    gradient = d.array("float32", (batch, rows - taps[0] + 1, columns - taps[1] + 1, count))
    filters = d.array("float32", (*taps, depth, count))
    sizes = d.known([batch, rows, columns, depth])
    d.add(op, [sizes, d.new(filters), d.new(gradient)], strides=[1] * 4, padding="VALID")


@recipe("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolWithArgmax")
def pool(d: Drawing, op: str) -> None:
    rank = 5 if op.endswith("3D") else 4
    x = d.new(d.array("float32", (*d.shape(1), *d.shape(rank - 2, 2), *d.shape(1, 1))))
    size = [1, *[d.random.randint(1, 2) for _ in range(rank - 2)], 1]
    d.add(op, [x], ksize=size, **_windows(d, rank))


@recipe("MaxPoolV2")
def pool_of_inputs(d: Drawing, op: str) -> None:
    x = d.new(d.array("float32", (*d.shape(1), *d.shape(2, 2), 2)))
    d.add(op, [x, d.known([1, 2, 1, 1]), d.known([1, 1, 2, 1])], padding="SAME")


@recipe("Softmax", "LogSoftmax")
def softmax(d: Drawing, op: str) -> None:
    d.add(op, [d.any(FLOATS, least_rank=1)])


@recipe("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def cross_entropy(d: Drawing, op: str) -> None:
    x = d.any(WIDE, rank=2, least=1)
    rows, classes = d.of(x)
    if op[0:2] == "So":
        labels = d.like(x, None, 0, 1)
    else:
        labels = d.new(d.array("int32", (rows,), 0, classes - 1), d.random.choice(INDICES))
    d.add(op, [x, labels])


@recipe("BiasAdd", "BiasAddV1")
def bias(d: Drawing, op: str) -> None:
    x = d.any(NUMBERS, least_rank=2)
    d.add(op, [x, d.like(x, d.of(x)[-1:])])


@recipe("InTopKV2", "InTopK")
def in_top_k(d: Drawing, op: str) -> None:
    x = d.any(("float32",), rank=2)
    targets = d.new(d.array("int32", d.of(x)[:1], -1, 4))
    if op == "InTopK":
        d.add(op, [x, targets], k=2)
    else:
        d.add(op, [x, targets, d.known(2)])


@recipe("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(d: Drawing, op: str) -> None:
    x = d.new(d.array("float32", (*d.shape(3), d.random.randint(1, 3))))
    is_training, channels = d.flag(), d.of(x)[-1:]
    four = [d.new(d.array("float32", channels, 1, 3)) for _ in range(4)]
    if is_training:
        four[2:] = [d.new(np.zeros(0, np.float32)) for _ in range(2)]
    d.add(op, [x, *four], is_training=is_training, epsilon=0.01)


@recipe("LRN")
def lrn(d: Drawing, op: str) -> None:
    d.add(op, [d.any(("float32",), rank=4)], depth_radius=d.random.randint(0, 3))


@recipe("ResizeBilinear", "ResizeNearestNeighbor")
def resize(d: Drawing, op: str) -> None:
    x = d.any(("float32", "uint8", "int32"), rank=4, least=1)
    attrs = {d.random.choice(("align_corners", "half_pixel_centers")): d.flag()}
    d.add(op, [x, d.known([d.random.randint(1, 5), d.random.randint(1, 5)])], **attrs)


@recipe("CropAndResize")
def crop(d: Drawing, op: str) -> None:
    x = d.any(("float32",), rank=4, least=1)
    boxes = d.new(d.array("float32", (2, 4), 0, 1))
    index = d.new(d.array("int32", (2,), 0, d.of(x)[0] - 1))
    d.add(op, [x, boxes, index, d.known([2, 3])], extrapolation_value=0.5)


@recipe("SpaceToDepth", "DepthToSpace")
def blocks(d: Drawing, op: str) -> None:
    dims = (*d.shape(1), 2, 4, 1) if op == "SpaceToDepth" else (*d.shape(3), 4)
    d.add(op, [d.new(d.array(d.random.choice(NUMBERS), dims))], block_size=2)


@recipe("SpaceToBatchND", "BatchToSpaceND")
def batches(d: Drawing, op: str) -> None:
    dims = (d.random.randint(0, 2), 2, 4, 1) if op[0] == "S" else (4, 1, 2, *d.shape(1))
    pairs = [[0, 0], [1, 1]] if d.flag() else [[0, 0], [0, 0]]
    x = d.new(d.array(d.random.choice(NUMBERS), dims))
    d.add(op, [x, d.known([2, 2]), d.known(pairs)])


@recipe("SpaceToBatch", "BatchToSpace")
def square_batches(d: Drawing, op: str) -> None:
    dims = (d.random.randint(0, 2), 2, 4, 1) if op[0] == "S" else (4, 1, 2, *d.shape(1))
    x = d.new(d.array("float32", dims))
    d.add(op, [x, d.known([[0, 0], [0, 0]])], block_size=2)


# ---- shapes --------------------------------------------------------------------------------------


@recipe("ShapeN", "IdentityN")
def several(d: Drawing, op: str) -> None:
    x = d.any(NUMBERS)
    d.add(op, [[x, d.like(x, d.shape())]])


@recipe("Reshape")
def reshape(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    size = int(np.prod(d.of(x)))
    wanted = d.random.choice([[-1], [size], [1, size], [size, 1, 1], [*d.of(x), 1]])
    d.add(op, [x, d.new(wanted, d.random.choice(INDICES))])


@recipe("ExpandDims")
def expand(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    rank = len(d.of(x))
    d.add(op, [x, d.new(d.random.randint(-rank - 1, rank), "int32")])


@recipe("Squeeze")
def squeeze(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    ones = [i for i, n in enumerate(d.of(x)) if n == 1]
    d.add(op, [x], squeeze_dims=d.random.sample(ones, d.random.randint(0, len(ones))))


@recipe("Transpose", "ConjugateTranspose")
def transpose(d: Drawing, op: str) -> None:
    # TensorFlow's oneDNN kernel ends the process for a scalar's conjugate.
    x = d.any(ANY) if op == "Transpose" else d.any(NUMBERS, least_rank=1)
    order = list(range(len(d.of(x))))
    d.random.shuffle(order)
    d.add(op, [x, d.new(order, d.random.choice(INDICES))])


@recipe("EnsureShape")
def ensure(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    dims = [None if d.flag() else n for n in d.of(x)]
    d.add(op, [x], shape=tf.TensorShape(dims))


@recipe("BroadcastTo")
def broadcast_to(d: Drawing, op: str) -> None:
    x = d.any((*NUMBERS, "bool"))
    dims = tuple(3 if n == 1 and d.flag() else n for n in d.of(x))
    d.add(op, [x, d.new([*d.shape(1), *dims], "int32")])


@recipe("BroadcastArgs")
def broadcast_args(d: Drawing, op: str) -> None:
    dims = d.shape()
    d.add(op, [d.new(dims, "int32"), d.new(d.fits(dims), "int32")])


@recipe("Fill")
def fill(d: Drawing, op: str) -> None:
    d.add(op, [d.new(d.shape(), d.random.choice(INDICES)), d.any(ANY, rank=0)])


@recipe("Range")
def range_(d: Drawing, op: str) -> None:
    kind = d.random.choice((*WIDE, *INDICES))
    start, count, step = (
        d.random.randint(-3, 3),
        d.random.randint(0, 5),
        d.random.choice((1, 2, -2)),
    )
    d.add(op, [d.new(each, kind) for each in (start, start + count * step, step)])


@recipe("LinSpace")
def linspace(d: Drawing, op: str) -> None:
    x = d.any(WIDE, rank=0)
    d.add(op, [x, d.like(x), d.known(d.random.randint(1, 5))])


@recipe("Tile")
def tile(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    d.add(op, [x, d.new([d.random.randint(0, 2) for _ in d.of(x)], d.random.choice(INDICES))])


@recipe("Pad", "PadV2", "MirrorPad")
def pad(d: Drawing, op: str) -> None:
    x = d.any((*NUMBERS, "bool"))
    most = [min(2, n - 1) if op == "MirrorPad" else 2 for n in d.of(x)]
    pairs = [[d.random.randint(0, max(n, 0)) for _ in range(2)] for n in most]
    more = [d.like(x, ())] if op == "PadV2" else []
    attrs = {"mode": d.random.choice(("REFLECT", "SYMMETRIC"))} if op == "MirrorPad" else {}
    d.add(op, [x, d.new(np.reshape(pairs, (-1, 2)), "int32"), *more], **attrs)


@recipe("OneHot")
def one_hot(d: Drawing, op: str) -> None:
    x = d.any((*INDICES, "uint8"), low=-1, high=4)
    on = d.new(d.array(d.random.choice(ANY), ()))
    d.add(op, [x, d.known(d.random.randint(0, 4)), on, d.like(on)],
          axis=d.random.randint(-1, len(d.of(x))))  # fmt: skip


# ---- joining, slicing ----------------------------------------------------------------------------


@recipe("Concat", "ConcatV2")
def concat(d: Drawing, op: str) -> None:
    x = d.any(ANY, least_rank=1)
    axis = d.random.randrange(len(d.of(x)))
    parts = [x, *[d.like(x) for _ in range(d.random.randint(1, 2))]]
    d.add(op, [d.new(axis, "int32"), parts] if op == "Concat" else [parts, d.new(axis, "int32")])


@recipe("ConcatOffset")
def concat_offset(d: Drawing, op: str) -> None:
    dims = d.shape(2)
    d.add(op, [d.known(1), [d.new(dims, "int32"), d.new(dims, "int32")]])


@recipe("Pack")
def pack(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    d.add(op, [[x, d.like(x)]], axis=d.random.randint(-1, len(d.of(x))))


@recipe("Unpack")
def unpack(d: Drawing, op: str) -> None:
    x = d.any(ANY, least_rank=1)
    axis = d.random.randrange(len(d.of(x)))
    d.add(op, [x], num=d.of(x)[axis], axis=axis)


@recipe("Split", "SplitV")
def split(d: Drawing, op: str) -> None:
    x = d.any(ANY, least_rank=1)
    axis = d.random.randrange(len(d.of(x)))
    extent = d.of(x)[axis]
    if op == "Split":
        count = d.random.choice([n for n in (1, 2, 3) if extent % n == 0])
        d.add(op, [d.known(axis), x], num_split=count)
    else:
        first = d.random.randint(0, extent)
        sizes = d.new([first, -1 if d.flag() else extent - first], "int32")
        d.add(op, [x, sizes, d.known(axis)], num_split=2)


@recipe("Slice")
def slice_(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    begin = [d.random.randint(0, n) for n in d.of(x)]
    size = [d.random.choice((-1, d.random.randint(0, n - b)))
            for n, b in zip(d.of(x), begin, strict=True)]  # fmt: skip
    kind = d.random.choice(INDICES)
    d.add(op, [x, d.new(begin, kind), d.new(size, kind)])


@recipe("StridedSlice")
def strided_slice(d: Drawing, op: str) -> None:
    x = d.any(ANY)
    count = d.random.randint(0, len(d.of(x)))
    begin, end = ([d.random.randint(-4, 4) for _ in range(count)] for _ in range(2))
    step = [d.random.choice((-2, -1, 1, 2)) for _ in range(count)]
    masks = {f"{name}_mask": d.random.getrandbits(3) for name in ("begin", "end", "new_axis")}
    d.add(op, [x, *[d.new(each, "int32") for each in (begin, end, step)]], **masks)


@recipe("Reverse", "ReverseV2")
def reverse(d: Drawing, op: str) -> None:
    x = d.any((*NUMBERS, "bool"))
    rank = len(d.of(x))
    if op == "Reverse":
        d.add(op, [x, d.new([d.flag() for _ in range(rank)], "bool")])
    else:
        axes = d.random.sample(range(rank), d.random.randint(0, rank))
        d.add(op, [x, d.new(axes, "int32")])


@recipe("ReverseSequence")
def reverse_sequence(d: Drawing, op: str) -> None:
    x = d.any(NUMBERS, least_rank=2)
    rows, extent = d.of(x)[:2]
    d.add(op, [x, d.new(d.array("int32", (rows,), 0, extent))], seq_dim=1, batch_dim=0)


@recipe("Roll")
def roll(d: Drawing, op: str) -> None:
    x = d.any(NUMBERS, least_rank=1)
    d.add(op, [x, d.new(d.random.randint(-5, 5), "int32"), d.known(0)])


# ---- indices -------------------------------------------------------------------------------------


@recipe("Gather", "GatherV2")
def gather(d: Drawing, op: str) -> None:
    x = d.any(ANY, least_rank=1, least=1)
    axis = 0 if op == "Gather" else d.random.randrange(len(d.of(x)))
    indices = d.new(d.array("int32", d.shape(), 0, d.of(x)[axis] - 1), d.random.choice(INDICES))
    d.add(op, [x, indices] if op == "Gather" else [x, indices, d.known(axis)])


def _rows(d: Drawing, dims: Shape, lead: Shape, most: int = 1) -> Any:
    depth = d.random.randint(most if not dims else 1, max(len(dims), 1))
    extents = dims[:depth]
    rows = [[d.random.randrange(n) for n in extents] for _ in range(int(np.prod(lead)))]
    return d.new(np.reshape(rows, (*lead, len(extents))), d.random.choice(INDICES)), extents


@recipe("GatherNd")
def gather_nd(d: Drawing, op: str) -> None:
    x = d.any(ANY, least_rank=1, least=1)
    indices, _ = _rows(d, d.of(x), d.shape(d.random.choice((0, 1, 2))))
    d.add(op, [x, indices])


@recipe("ScatterNd", "TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub",
        "TensorScatterMax", "TensorScatterMin")  # fmt: skip
def scatter(d: Drawing, op: str) -> None:
    kinds = WIDE + INDICES + (UNSIGNED if op in ("ScatterNd", "TensorScatterAdd") else ())
    x = d.any(kinds, least_rank=1, least=1)
    dims = d.of(x)
    lead = () if op == "TensorScatterUpdate" else d.shape(1)  # of equal rows one wins
    indices, extents = _rows(d, dims, lead)
    updates = d.like(x, (*lead, *dims[len(extents) :]))
    if op == "ScatterNd":
        d.add(op, [indices, updates, d.known(dims, indices.dtype.name)])
    else:
        d.add(op, [x, indices, updates])


@recipe("UnravelIndex")
def unravel(d: Drawing, op: str) -> None:
    dims = d.shape(2, 1)
    size = int(np.prod(dims))
    d.add(op, [d.new(d.array("int32", d.shape(1), 0, size - 1)), d.new(dims, "int32")])


@recipe("InvertPermutation")
def invert(d: Drawing, op: str) -> None:
    order = list(range(d.random.randint(0, 5)))
    d.random.shuffle(order)
    d.add(op, [d.new(order, "int32")])


@recipe("DynamicPartition")
def dynamic_partition(d: Drawing, op: str) -> None:
    x = d.any(ANY, least_rank=1)
    d.add(op, [x, d.new(d.array("int32", d.of(x)[:1], 0, 2))], num_partitions=3)


@recipe("DynamicStitch", "ParallelDynamicStitch")
def dynamic_stitch(d: Drawing, op: str) -> None:
    x = d.any(NUMBERS, rank=2, least=1)
    rows = d.of(x)[0]
    order = list(range(2 * rows))
    d.random.shuffle(order)
    d.add(op, [[d.new(order[:rows], "int32"), d.new(order[rows:], "int32")], [x, d.like(x)]])


@recipe("Unique", "UniqueWithCounts", "ListDiff")
def unique(d: Drawing, op: str) -> None:
    x = d.any((*WIDE, *SIGNED, *UNSIGNED), rank=1)
    d.add(op, [x, d.like(x)] if op == "ListDiff" else [x])


# ---- strings, sparse tensors ---------------------------------------------------------------------


@recipe("StringJoin")
def string_join(d: Drawing, op: str) -> None:
    x = d.any(("string",))
    d.add(op, [[x, d.like(x) if d.flag() else d.like(x, ())]], separator=d.random.choice(("", "+")))


@recipe("AsString")
def as_string(d: Drawing, op: str) -> None:
    x = d.any((*WIDE, *SIGNED, *UNSIGNED, "bool", "complex64"))
    d.add(op, [x], width=d.random.choice((-1, 4)), fill=d.random.choice(("", " ", "+", "-", "0")))


@recipe("DecodeRaw")
def decode_raw(d: Drawing, op: str) -> None:
    dims = d.shape()
    value = np.empty(dims, object)
    value.reshape(-1)[:] = [bytes(d.random.choices(range(128), k=8)) for _ in range(value.size)]
    kind = d.random.choice(("uint8", "int16", "int32", "int64"))
    d.add(op, [d.new(value, "string")], out_type=tf.as_dtype(kind), little_endian=d.flag())


@recipe("StringToNumber")
def string_to_number(d: Drawing, op: str) -> None:
    dims = d.shape()
    value = np.empty(dims, object)
    value.reshape(-1)[:] = [str(d.random.randint(-99, 99)).encode() for _ in range(value.size)]
    kind = d.random.choice((*WIDE, *INDICES))
    d.add(op, [d.new(value, "string")], out_type=tf.as_dtype(kind))


def _sparse(d: Drawing, dims: Shape, kind: str) -> tuple[Any, Any, Any]:
    places = sorted(d.random.sample(range(int(np.prod(dims))), min(2, int(np.prod(dims)))))
    indices = np.stack(np.unravel_index(np.array(places, np.int64), dims), 1)
    values = d.new(d.array(kind, (len(places),)), kind)
    return d.new(indices, "int64"), values, d.new(dims, "int64")


@recipe("SparseToDense")
def sparse_to_dense(d: Drawing, op: str) -> None:
    indices, values, shape = _sparse(d, d.shape(2, 1), d.random.choice((*NUMBERS, "string")))
    d.add(op, [indices, shape, values, d.like(values, ())])


@recipe("SparseReorder")
def sparse_reorder(d: Drawing, op: str) -> None:
    indices, values, shape = _sparse(d, d.shape(2, 1), "float32")
    d.add(op, [indices, values, shape])


@recipe("SparseReshape")
def sparse_reshape(d: Drawing, op: str) -> None:
    indices, _, shape = _sparse(d, d.shape(2, 1), "float32")
    d.add(op, [indices, shape, d.new([-1], "int64")])


@recipe("SparseAdd")
def sparse_add(d: Drawing, op: str) -> None:
    dims, kind = d.shape(2, 1), d.random.choice(WIDE)
    one, two = _sparse(d, dims, kind), _sparse(d, dims, kind)
    d.add(op, [*one, *two, d.known(0, kind)])


@recipe("SparseDenseCwiseMul", "SparseDenseCwiseDiv", "SparseTensorDenseAdd")
def sparse_dense(d: Drawing, op: str) -> None:
    dims, kind = d.shape(2, 1), d.random.choice((*WIDE, *INDICES))
    low = 1 if op.endswith("Div") else -4
    d.add(op, [*_sparse(d, dims, kind), d.new(d.array(kind, dims, low, 4), kind)])


@recipe("SparseTensorDenseMatMul")
def sparse_matmul(d: Drawing, op: str) -> None:
    dims, kind = d.shape(2, 1), d.random.choice(WIDE)
    d.add(op, [*_sparse(d, dims, kind), d.new(d.array(kind, (dims[1], 2)), kind)])


LEFT_OUT: dict[str, tuple[str, ...]] = {
    "values are random": (
        "Multinomial", "RandomShuffle", "RandomStandardNormal", "RandomUniform",
        "RandomUniformInt", "TruncatedNormal",
    ),
    "state, which the tests of variables compare": (
        "ApplyGradientDescent", "Assign", "AssignAdd", "AssignAddVariableOp", "AssignSub",
        "AssignSubVariableOp", "AssignVariableOp", "DestroyResourceOp", "IsVariableInitialized",
        "ReadVariableOp", "ResourceApplyGradientDescent", "ResourceGather", "ResourceGatherNd",
        "ResourceScatterAdd", "ResourceScatterNdAdd", "ResourceScatterNdMax",
        "ResourceScatterNdMin", "ResourceScatterNdSub", "ResourceScatterNdUpdate",
        "ResourceScatterSub", "ResourceScatterUpdate", "ScatterAdd", "ScatterNdAdd", "ScatterNdSub",
        "ScatterNdUpdate", "ScatterSub", "ScatterUpdate", "VarHandleOp", "VarIsInitializedOp",
        "Variable", "VariableShape", "VariableV2",
    ),
    "state, which the tests of queues compare": (
        "FIFOQueueV2", "QueueCloseV2", "QueueDequeueManyV2", "QueueDequeueUpToV2",
        "QueueDequeueV2", "QueueEnqueueManyV2", "QueueEnqueueV2", "QueueIsClosedV2",
        "QueueSizeV2",
    ),
    "every graph has them": ("Const", "Placeholder", "PlaceholderWithDefault", "NoOp"),
    "they call functions, check or print": ("Assert", "Print", "PyFunc", "PyFuncStateless"),
    "TensorFlow 2 has them no more": ("BatchNormWithGlobalNormalization", "TopK"),
}  # fmt: skip
"""Reason -> op types without a recipe; those of several tasks and of dlbridge alone count too."""
