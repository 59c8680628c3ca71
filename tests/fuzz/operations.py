"""Graphs of one operation of any type, whose inputs and attributes are drawn; imported and run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge.graph as tf
from dlbridge.graph.core import notation, opdef
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.values import TensorValue
from tests.fuzz import drawing
from tests.fuzz.graphs import MOST_BYTES, REFUSALS, in_time, limited, size_of

# Calls of Python, text on the standard output, other processes, and the nodes that are drawn below.
LEFT_OUT = frozenset(
    ("PyFunc", "PyFuncStateless", "DLBridge>Call", "DLBridge>StatefulCall", "DLBridge>Mpi", "Print",
     "_Recv", "_Send", "Const", "Placeholder", "VariableV2", "Variable", "VarHandleOp")
)  # fmt: skip
OPS = tuple(name for name in drawing.OP_TYPES if name not in LEFT_OUT)
COMMON = (tf.float32, tf.float32, tf.int32, tf.int32, tf.int64, tf.bool, tf.string, tf.float64)
TYPES = (*COMMON, tf.uint8, tf.int8, tf.int16, tf.float16, tf.bfloat16, tf.complex64, tf.resource)
# The extents of inputs that seldom agree by chance, a letter each.
FITTING = {
    "AvgPool": ("bhwc",),
    "AvgPool3D": ("bdhwc",),
    "BatchNormWithGlobalNormalization": ("bhwc", "c", "c", "c", "c"),
    "BatchToSpace": ("bhwc", "22"),
    "BatchToSpaceND": ("bhwc", "2", "22"),
    "ConcatOffset": ("", "r", "r", "r"),
    "Conv2D": ("bhwc", "xyco"),
    "Conv2DBackpropInput": ("4", "xyco", "bhwo"),
    "Conv3D": ("bdhwc", "zxyco"),
    "CropAndResize": ("bhwc", "n4", "n", "2"),
    "DepthwiseConv2dNative": ("bhwc", "xyco"),
    "FusedBatchNorm": ("bhwc", "c", "c", "c", "c"),
    "FusedBatchNormV2": ("bhwc", "c", "c", "c", "c"),
    "FusedBatchNormV3": ("bhwc", "c", "c", "c", "c"),
    "MaxPool": ("bhwc",),
    "MaxPool3D": ("bdhwc",),
    "MaxPoolV2": ("bhwc", "4", "4"),
    "MaxPoolWithArgmax": ("bhwc",),
    "ResourceScatterAdd": ("vw", "n", "nw"),
    "ResourceScatterNdAdd": ("vw", "n1", "nw"),
    "ResourceScatterNdMax": ("vw", "n2", "n"),
    "ResourceScatterNdSub": ("vw", "n1", "nw"),
    "ResourceScatterSub": ("vw", "n", "nw"),
    "ResourceScatterUpdate": ("vw", "n", "nw"),
    "ScatterAdd": ("vw", "n", "nw"),
    "ScatterNd": ("n1", "nw", "2"),
    "ScatterUpdate": ("vw", "n", "nw"),
    "SparseAdd": ("n2", "n", "2", "m2", "m", "2", ""),
    "SparseDenseCwiseDiv": ("n2", "n", "2", "vw"),
    "SparseDenseCwiseMul": ("n2", "n", "2", "vw"),
    "SparseReorder": ("n2", "n", "2"),
    "SparseReshape": ("n2", "2", "r"),
    "SparseTensorDenseAdd": ("n2", "n", "2", "vw"),
    "SparseTensorDenseMatMul": ("n2", "n", "2", "vw"),
    "SparseToDense": ("n2", "2", "n", ""),
}
# TensorFlow's static shapes differ from those of its results as well: the default value is not
# compared with the shape, and strides along channels are ignored.
AS_TENSORFLOW = frozenset(("PlaceholderWithDefault", "MaxPoolWithArgmax"))
WINDOWS = ("ksize", "strides", "dilations")
MOST_INPUTS = 8  # of a list whose length an attribute gives
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 2.5e9, -1e38, float("inf"), float("nan"))
STRINGS = (b"", b"a", b"ij,jk->ik", b"1.5", b"\xff", b"SAME", b"VALID", b"NHWC", b"NCHW")


class Fuzzer:
    """Every op type, of constants, of fed values and of variables, on NumPy."""

    def __call__(self, source: random.Random) -> str:
        op_type = source.choice(OPS)
        data, feeds = Drawn(source).graph(op_type)
        return in_time(lambda: load_and_run(data, feeds))


class Drawn:
    """A GraphDef that is being drawn."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.message = messages.GraphDef()
        self.feeds: dict[str, Any] = {}
        self.shape = self.small_shape()
        self.extents: dict[str, int] = {}
        self.fitting: list[str] = []

    def graph(self, op_type: str) -> tuple[bytes, dict[str, Any]]:
        """Return the graph of one operation "op" and its inputs, and what is fed."""
        definition = opdef.op_def(op_type)
        if self.source.random() < 0.8:
            self.fitting = list(FITTING.get(op_type, ()))
        attrs = {each.name: self.attribute(each) for each in definition.attributes.values()}
        names = []
        for argument in definition.inputs:
            if argument.type_list_attr is not None:
                dtypes = attrs[argument.type_list_attr]
            else:
                dtype = argument.type if argument.type is not None else attrs[argument.type_attr]
                count = attrs[argument.number_attr] if argument.number_attr else 1
                dtypes = [dtype] * min(count, MOST_INPUTS)
            names += [self.input(dtype, argument.is_ref) for dtype in dtypes]
        node = self.message.node.add(name="op", op=op_type, input=names)
        for name, value in attrs.items():
            write_attr(value, node.attr[name])
        return self.message.SerializeToString(deterministic=True), self.feeds

    def attribute(self, of: notation.Attribute) -> Any:
        """Return a value for an attribute: its default, an allowed one, or any."""
        if of.default is not notation.MISSING and self.source.random() < 0.7:
            return of.default
        if of.name in WINDOWS and of.kind == "list(int)" and self.source.random() < 0.8:
            inner = self.source.choice(([1, 1], [1, 2], [2, 2], [2, 3], [1, 1, 1], [2, 1, 2]))
            return [1, *inner, 1]
        if of.kind.startswith("list("):
            least = of.minimum or 0
            count = self.source.choice((least, least, least + 1, 2, 3, 4, 4, 5))
            element = notation.Attribute(of.name, of.kind[5:-1], allowed=of.allowed)
            return [self.attribute(element) for _ in range(count)]
        if of.allowed and self.source.random() < 0.98:
            return self.source.choice(of.allowed)
        if of.kind == "int":
            least = of.minimum if of.minimum is not None else -1
            return self.source.choice((least, 1, 1, 2, 2, 3, 4, self.integer()))
        return self.any_of(of.kind)

    def any_of(self, kind: str) -> Any:
        """Return a value of a kind of attributes that are no integers."""
        if kind == "type":
            return self.source.choice(TYPES)
        if kind == "bool":
            return self.source.random() < 0.5
        if kind == "float":
            return self.source.choice(FLOATS[:-3])
        if kind == "string":
            return self.source.choice(STRINGS)
        if kind == "shape":
            rank_is_known = self.source.random() < 0.8
            return tf.TensorShape(self.small_shape() if rank_is_known else None)
        if kind == "tensor":
            return self.value(tf.float32)
        return opdef.FunctionName("function", {})

    def input(self, dtype: Any, is_ref: bool) -> str:
        """Add the node of an input: a constant, a placeholder or a variable."""
        name = f"input{len(self.message.node)}"
        if dtype == tf.resource or is_ref:
            return self.variable(name, dtype if is_ref else self.source.choice(COMMON), is_ref)
        is_fed = self.source.random() < 0.4
        value = self.value(dtype)
        node = self.message.node.add(name=name, op="Placeholder" if is_fed else "Const")
        write_attr(dtype, node.attr["dtype"])
        if is_fed:
            self.feeds[f"{name}:0"] = value.array
            is_open = self.source.random() < 0.5
            shape = tf.TensorShape(None if is_open else value.array.shape)
            write_attr(shape, node.attr["shape"])
        else:
            write_attr(value, node.attr["value"])
        return name

    def variable(self, name: str, dtype: Any, is_ref: bool) -> str:
        """Add a variable, most of the time with a value, which node "start" assigns."""
        value = self.value(dtype)
        node = self.message.node.add(name=name, op="VariableV2" if is_ref else "VarHandleOp")
        write_attr(dtype, node.attr["dtype"])
        write_attr(tf.TensorShape(value.array.shape), node.attr["shape"])
        if self.source.random() < 0.9:
            content = self.message.node.add(name=f"{name}/value", op="Const")
            write_attr(dtype, content.attr["dtype"])
            write_attr(value, content.attr["value"])
            start = self.message.node.add(op="Assign" if is_ref else "AssignVariableOp")
            start.name = f"{name}/start"
            start.input[:] = [name, f"{name}/value"]
            write_attr(dtype, start.attr["T" if is_ref else "dtype"])
        return name

    def value(self, dtype: Any) -> TensorValue:
        """Return a few elements: small numbers most of the time, and such as are limits."""
        shape = self.next_shape()
        count = int(np.prod(shape, dtype=int))
        if dtype == tf.string:
            array = np.array([self.source.choice(STRINGS) for _ in range(count)] or [b""], object)
            return TensorValue(dtype, array[:count].reshape(shape))
        if not hasattr(dtype, "numpy") or dtype.numpy is None:
            return self.value(tf.float32)
        with np.errstate(all="ignore"):
            if dtype.numpy.kind in "iub":
                numbers = np.array([self.integer() % 2**64 for _ in range(count)], np.uint64)
                array = numbers.astype(np.int64).astype(dtype.numpy)
            else:
                floats = [self.source.choice(FLOATS) for _ in range(count)]
                array = np.array(floats, np.float64).astype(dtype.numpy)
        return TensorValue(dtype, array.reshape(shape))

    def next_shape(self) -> tuple[int, ...]:
        """Return the shape of the next input."""
        letters = self.fitting.pop(0) if self.fitting else None
        if letters is None or self.source.random() < 0.05:
            return self.shape if self.source.random() < 0.5 else self.small_shape()
        return tuple([int(each) if each.isdigit() else self.extent(each) for each in letters])

    def extent(self, letter: str) -> int:
        """Return the extent that a letter stands for in this graph; now and then another."""
        drawn = self.source.choice((0, 1, 2, 2, 3, 3, 4))
        return self.extents.setdefault(letter, drawn) if self.source.random() < 0.97 else drawn

    def integer(self) -> int:
        """Return an index, an axis or a count, most of the time a possible one."""
        if self.source.random() < 0.04:
            return max(-(2**63), min(drawing.number(self.source), 2**63 - 1))
        return self.source.choice((0, 0, 1, 1, 2, 3, 4, -1, -2, 5))

    def small_shape(self) -> tuple[int, ...]:
        """Return a shape of at most a few hundred elements."""
        rank = self.source.choice((0, 1, 1, 1, 2, 2, 3, 4, 4, 5))
        return tuple([self.source.choice((0, 1, 1, 2, 2, 3, 4)) for _ in range(rank)])


def load_and_run(data: bytes, feeds: dict[str, Any], framework: str = "numpy") -> str:
    """Import the graph and run it; what it gives agrees with what is known without a run."""
    try:
        graph = tf.load_graph(data)
        with tf.Session(graph=graph, framework=framework, max_bytes=MOST_BYTES) as session:
            operations = graph.get_operations()
            session.run([op for op in operations if op.name.endswith("/start")])
            outputs = graph.get_operation_by_name("op").outputs
            if not outputs:
                session.run(graph.get_operation_by_name("op"), feeds)
                return "ran: no results"
            found = session.run(outputs, feeds)
    except (
        tf.errors.UnknownError,
        UnicodeError,
    ):  # of a kernel that was not prepared for its inputs
        raise
    except REFUSALS as error:
        return f"refused: {type(error).__name__}"
    check(outputs, found)
    return "ran"


def check(outputs: Sequence[Any], found: Sequence[Any]) -> None:
    """Assert that values have the dtypes and shapes that were found without a run."""
    for tensor, value in zip(outputs, found, strict=True):
        if tensor.dtype == tf.resource or tensor.op.type in AS_TENSORFLOW:
            continue
        assert tensor.shape.is_compatible_with(np.shape(value)), (tensor, np.shape(value))
        assert size_of(value) <= MOST_BYTES, tensor
        if tensor.dtype.base_dtype != tf.string:
            assert np.asarray(value).dtype == tensor.dtype.base_dtype.numpy, (tensor, value.dtype)


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    with limited(), np.errstate(all="ignore"):
        yield Fuzzer()
