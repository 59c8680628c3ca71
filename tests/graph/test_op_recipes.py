"""Random graphs of all op types, as TensorFlow answers: nothing crashes, and values are the same.

In the fast ring 200 graphs and recorded answers; in the long ring TensorFlow is asked besides.
`make nightly` draws 6,000 others: DLBRIDGE_GRAPHS is how many, DLBRIDGE_GRAPHS_SEED from where.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from answers import Answers
from graph.graph_oracle import TOLERANCES
from graph.op_recipes import LEFT_OUT, TYPES, Drawing, draw

import dlbridge.graph as tf
from dlbridge.graph.core import opdef

RECORDED = 200
BATCH = 10  # graphs of an item
MORE, SEED = (int(os.environ.get(f"DLBRIDGE_GRAPHS{each}", 0)) for each in ("", "_SEED"))


def graph_of(number: int) -> Drawing:
    """Return the graph of a number: each op type is the first one in turn."""
    names = sorted(TYPES)
    return draw(number, names[number % len(names)])


# ---- TensorFlow's answers ------------------------------------------------------------------------


def ask(number: int) -> list[Any]:
    """Return what TensorFlow says of each operation: shapes and values, or the class of error."""
    v1 = _tensorflow()
    d = graph_of(number)
    graph = v1.Graph()
    with graph.as_default():
        try:
            v1.import_graph_def(v1.GraphDef.FromString(tf.dump_graph(d.graph)), name="")
        except ValueError:
            return []
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    config.inter_op_parallelism_threads = config.intra_op_parallelism_threads = 1
    found: list[Any] = []
    with v1.Session(graph=graph, config=config) as session:
        for op in d.ops:
            tensors = graph.get_operation_by_name(op.name).outputs
            shapes = [None if x.shape.rank is None else x.shape.as_list() for x in tensors]
            try:
                values = session.run(tensors, d.feeds)
            except v1.errors.OpError as error:
                lacks = "No OpKernel" in str(error) or isinstance(
                    error, v1.errors.UnimplementedError
                )
                found.append([shapes, "no kernel" if lacks else type(error).__name__])
            else:
                found.append([shapes, [_array(value) for value in values]])
    return found


def _array(value: Any) -> Any:
    """Return a result as an array, of objects where it is text."""
    if not isinstance(value, bytes):
        return np.asarray(value)
    found = np.empty((), object)
    found[()] = value
    return found


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow").compat.v1


# ---- the comparison ------------------------------------------------------------------------------


def compare(number: int, answer: list[Any], framework: str) -> list[str]:
    """Return what differs from TensorFlow's answer.

    Each operation gets TensorFlow's values as inputs, so that no difference hides or makes another;
    the whole graph runs as well, and has the same dtypes and shapes.
    """
    d = graph_of(number)
    found: list[str] = []
    known: dict[Any, Any] = {d.graph.get_tensor_by_name(name): x for name, x in d.feeds.items()}
    vague: set[Any] = set()  # whose static shape TensorFlow knows by assumption alone
    session = tf.Session(graph=d.graph, framework=framework)
    for op, (shapes, wanted) in zip(d.ops, answer, strict=False):
        if any(x not in known and x.op.type != "Const" for x in op.inputs):
            continue  # what it takes was refused
        where = f"graph {number}, {framework}, {describe(op, known)}"
        if op.type in ASSUMED or not vague.isdisjoint(op.inputs):
            vague.update(op.outputs)
        else:
            found += [f"{where}: shape {text}" for text in _static(op, shapes)]
        if isinstance(wanted, str):
            if wanted != "no kernel" and not _may_succeed(op, framework):
                found += _refused(session, op, known, where)
            continue
        feeds = {x: known[x] for x in op.inputs if x in known}
        try:
            ours = session.run(list(op.outputs), feeds)
        except tf.errors.OpError as error:
            found.append(f"{where}: {type(error).__name__}: {error.message[:200]}")
        else:
            if op.type in CONVOLUTIONS and any(0 in np.shape(each) for each in ours):
                continue
            inputs = [known.get(x, _constant(x)) for x in op.inputs]
            found += [
                f"{where}: {text}"
                for x, one, other in zip(op.outputs, ours, wanted, strict=True)
                for text in _differs(op, x, one, other, inputs, framework)
            ]
        known.update(zip(op.outputs, wanted, strict=True))
    return found + _whole(d, session, known, f"graph {number}, {framework}")


def describe(op: Any, known: dict[Any, Any]) -> str:
    """Return an operation as the text of a failure has it."""
    attrs = {k: v for k, v in op.attrs.items() if opdef.op_def(op.type).defaults.get(k) != v}
    inputs = [np.asarray(known.get(x, _constant(x))) for x in op.inputs]
    shown = ", ".join(f"{x.dtype}{list(x.shape)} {x.reshape(-1)[:8].tolist()}" for x in inputs)
    return f"{op.type}({shown}; {attrs})"


def _constant(x: Any) -> Any:
    return x.op.attrs["value"].array if x.op.type == "Const" else np.nan


def _static(op: Any, theirs: list[Any]) -> list[str]:
    """Return where TensorFlow knows more of a static shape."""
    found = []
    for x, wanted in zip(op.outputs, theirs, strict=True):
        ours = None if x.shape.rank is None else x.shape.as_list()
        if wanted is None or ours == wanted:
            continue
        pairs = zip(ours or (), wanted, strict=False)
        if ours is None or len(ours) != len(wanted) or any(b not in (None, a) for a, b in pairs):
            found.append(f"{ours}, in TensorFlow {wanted}")
    return found


def _refused(session: Any, op: Any, known: dict[Any, Any], where: str) -> list[str]:
    feeds = {x: known[x] for x in op.inputs if x in known}
    try:
        session.run(list(op.outputs), feeds)
    except tf.errors.OpError:
        return []
    return [f"{where}: TensorFlow refuses it"]


def _differs(op: Any, x: Any, one: Any, other: Any, inputs: list[Any], framework: str) -> list[str]:
    if x.value_index == 5 and op.type == "FusedBatchNormV3":
        return []  # what a kernel keeps for its own gradient
    one = _array(one)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return [f"{one.dtype}{one.shape}, in TensorFlow {other.dtype}{other.shape}"]
    if not x.shape.is_compatible_with(other.shape):
        return [f"static {x.shape}, is {other.shape}"]
    if _is_listed(op, x, inputs):
        return []
    if one.dtype == object or one.dtype.kind in "biu":
        same = bool((one == other).all())
    else:
        rtol, atol = TOLERANCES[one.dtype.name]
        scale = max([1.0, *[_largest(each) for each in inputs]])
        same = bool(np.allclose(one, other, 10 * rtol, 10 * atol * scale, equal_nan=True))
    shown = [each.reshape(-1)[:8].tolist() for each in (one, other)]
    return [] if same else [f"{shown[0]}, in TensorFlow {shown[1]}"]


def _largest(x: Any) -> float:
    x = np.asarray(x)
    if x.dtype.kind not in "fc" or not x.size:
        return 1.0
    found = np.abs(x[np.isfinite(x)].astype(np.complex128))
    return float(found.max(initial=1.0))


def _whole(d: Drawing, session: Any, known: dict[Any, Any], where: str) -> list[str]:
    """Run all operations at once that TensorFlow could compute."""
    tensors = [x for op in d.ops for x in op.outputs if x in known]
    try:
        values = session.run(tensors, {x: known[x] for x in known if x.op.type == "Placeholder"})
    except tf.errors.OpError as error:
        # A value before it may be another in the last digit, or one of the differences listed.
        return [] if isinstance(error, tf.errors.InvalidArgumentError) else [f"{where}: {error}"]
    return [
        f"{where}, whole: {x.name} is {_array(one).dtype}"
        for x, one in zip(tensors, values, strict=True)
        if _array(one).dtype != known[x].dtype
    ]


# ---- differences that docs/graph.md lists, and what is undefined ---------------------------------

# TensorFlow's oneDNN kernels give an empty result the shape of the images.
CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative"}
ASSUMED = {"Equal", "NotEqual", "SoftmaxCrossEntropyWithLogits"}
# Op type -> for which inputs TensorFlow is wrong, or ignores the sign of a zero.
TENSORFLOWS: dict[str, Callable[[Any], Any]] = {
    "Round": lambda x: x.dtype.kind == "i",  # 2 becomes 0, or not
    "Erf": lambda x: np.isinf(x).any(),  # NaN
    "Log1p": lambda x: x.dtype.kind == "c" and (x == -1).any(),  # the angle of 0 is NaN
    "Rsqrt": lambda x: x.dtype.kind == "c" and (x.imag == 0).any(),  # on the branch cut
}
ORDER = {  # the order of operations decides about NaN and infinities
    "MaxPool", "MaxPoolV2", "MaxPool3D", "MaxPoolWithArgmax", "AvgPool", "AvgPool3D", "SegmentMax",
    "SegmentMin", "UnsortedSegmentMax", "UnsortedSegmentMin", "Cholesky", "MatrixInverse",
    "MatrixDeterminant", "MatrixSolve", "ResizeBilinear", "CropAndResize", "Conv2D", "Conv3D",
    "DepthwiseConv2dNative", "Conv2DBackpropInput", "ClipByValue", "Maximum", "Minimum", "Max",
    "Min", "ArgMax", "ArgMin", "TopKV2", "Unique", "UniqueWithCounts", "LRN", "InTopK", "InTopKV2",
    "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "CumulativeLogsumexp", "Relu",
    "Relu6", "LeakyRelu", "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum",
    "SparseTensorDenseMatMul", "TensorScatterMax", "TensorScatterMin", "Softmax", "LogSoftmax",
    "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", "Cast", "FloorDiv",
    "FloorMod", "Mod", "TruncateMod", "TruncateDiv", "Selu", "Elu", "Softsign", "Softplus", "Sign",
    "Range", "AsString", "Bitcast", "LinSpace", "EuclideanNorm",
}  # fmt: skip


def _is_listed(op: Any, x: Any, inputs: list[Any]) -> bool:
    """Return whether a difference is one that is known, or has no right value."""
    if op.type.startswith("FusedBatchNorm") and x.value_index > 2:
        return not op.attrs["is_training"]  # memory that TensorFlow does not write to
    first = np.asarray(inputs[0])
    if op.type in TENSORFLOWS and TENSORFLOWS[op.type](first):
        return True
    floats = [np.asarray(x) for x in inputs if np.asarray(x).dtype.kind in "fc"]
    special = any(not np.isfinite(x).all() for x in floats)
    return special and (op.type in ORDER or any(x.dtype.kind == "c" for x in floats))


def _may_succeed(op: Any, framework: str) -> bool:
    """Return whether we compute what TensorFlow refuses: compiled programs refuse no values."""
    return framework == "jax" or op.type in LENIENT


# Where of a scalar, rows that a vector of indices alone chooses, and some empty inputs.
LENIENT = {
    "MaxPoolWithArgmax", "Reverse", "TensorScatterAdd", "TensorScatterMax", "TensorScatterMin",
    "TensorScatterSub", "TensorScatterUpdate", "UnravelIndex", "Where",
}  # fmt: skip


# ---- tests ---------------------------------------------------------------------------------------


def test_every_op_type_has_a_recipe_or_a_reason(run_python) -> None:
    """In a process of its own, where no other test has registered op types."""
    left_out = {name for names in LEFT_OUT.values() for name in names}
    code = """
        import dlbridge.graph
        from dlbridge.graph.core import opdef
        print(*opdef.names())
    """
    names = set(run_python(code).check().split())
    ours = {name for name in names if name.startswith(("DLBridge>", "Collective", "_"))}
    assert set(TYPES) | left_out | ours == names
    assert not left_out & set(TYPES)


def test_the_same_number_draws_the_same_graph() -> None:
    for number in range(0, 200, 20):
        one, other = graph_of(number), graph_of(number)
        assert tf.dump_graph(one.graph) == tf.dump_graph(other.graph)
        assert one.feeds.keys() == other.feeds.keys()


def _check(numbers: range, answer: Callable[[int], Any], frameworks: tuple[str, ...]) -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            for wanted in answer(number):
                for framework in frameworks:
                    found += compare(number, wanted, framework)
    assert not found, "\n".join([f"{len(found)} differences:", *found])


@pytest.mark.parametrize("batch", range(RECORDED // BATCH))
def test_graphs_of_recorded_answers(batch: int, answers: Answers) -> None:
    def answer(number: int) -> Any:
        return answers(
            f"graph {number}", partial(ask, number), tf.dump_graph(graph_of(number).graph)
        )

    frameworks = ("numpy", "torch", "jax") if batch % 10 == 0 else ("numpy", "torch")
    there = tuple(name for name in frameworks if importlib.util.find_spec(name) is not None)
    _check(range(batch * BATCH, (batch + 1) * BATCH), answer, there)


@pytest.mark.full
@pytest.mark.parametrize("batch", range(max(MORE // BATCH, 2)))
def test_graphs_that_tensorflow_is_asked_about(batch: int) -> None:
    _tensorflow()
    first = RECORDED + SEED * 1_000_000 + batch * BATCH
    _check(range(first, first + BATCH), lambda number: [ask(number)], ("numpy", "torch", "jax"))
