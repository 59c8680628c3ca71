"""Models that TensorFlow built and froze, run on every framework; the op types that models have."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.execution import registry
from dlbridge.graph.core import opdef

FRAMEWORKS = ("numpy", "torch", "jax")

_spec = importlib.util.spec_from_file_location("models", Path(__file__).with_name("models.py"))
assert _spec is not None
assert _spec.loader is not None
models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(models)


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow")


class Frozen:
    """A frozen graph: its bytes, the names of what goes in and out, values of both."""

    def __init__(self, graph_def: Any, names: list[str], fed: Any, values: list[Any]) -> None:
        self.content: bytes = graph_def.SerializeToString()
        self.types = {node.op for node in graph_def.node}
        self.input, *self.outputs = names
        self.fed = fed
        self.values = values

    def run(self, framework: str) -> list[Any]:
        """Import it into a new graph and run it."""
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(self.content, name="")
        with tf.Session(graph=graph, framework=framework) as session:
            values: list[Any] = session.run(self.outputs, {self.input: self.fed})
        return values


@pytest.fixture(scope="module")
def convolutional(tensorflow: Any) -> Frozen:
    """The model with its variables in the style of 1.x (VariableV2), frozen by its own tool."""
    tf1 = tensorflow.compat.v1
    fed = np.random.default_rng(1).uniform(0, 255, (2, 32, 32, 3)).astype("float32")
    with tf1.Graph().as_default(), tf1.Session() as session:
        with tf1.variable_scope("model", use_resource=False):
            tensors = models.convolutional(tf1, np.random.default_rng(0))
        session.run(tf1.global_variables_initializer())
        values = session.run(tensors[1:], {tensors[0]: fed})
        graph_def = tf1.graph_util.convert_variables_to_constants(
            session, session.graph.as_graph_def(), [each.op.name for each in tensors[1:]]
        )
    return Frozen(graph_def, [each.name for each in tensors], fed, values)


@pytest.fixture(scope="module")
def transformer(tensorflow: Any) -> Frozen:
    """The function of TensorFlow 2, traced for any batch and length, its variables frozen."""
    from tensorflow.python.framework import convert_to_constants

    model = models.Transformer(tensorflow, np.random.default_rng(0))
    fed = np.random.default_rng(1).integers(0, models.VOCABULARY, (3, 9)).astype("int32")
    signature = tensorflow.TensorSpec([None, None], tensorflow.int32, name="ids")
    function = tensorflow.function(model.__call__).get_concrete_function(signature)
    frozen = convert_to_constants.convert_variables_to_constants_v2(function)
    (values,) = frozen(tensorflow.constant(fed))
    names = [frozen.inputs[0].name, frozen.outputs[0].name]
    return Frozen(frozen.graph.as_graph_def(), names, fed, [values.numpy()])


def assert_equal(values: list[Any], wanted: list[Any]) -> None:
    """Compare what softmax has not yet made all alike: relative to how much the values differ."""
    for value, want in zip(values, wanted, strict=True):
        assert value.dtype == want.dtype
        spread = float(want.max() - want.min())
        assert spread > 0.01
        np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-5 * spread)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_convolutional_model_gives_what_tensorflow_gives(
    name: str, framework: Any, convolutional: Frozen
) -> None:
    framework(name)
    assert {"Conv2D", "DepthwiseConv2dNative", "Relu6", "Rsqrt"} <= convolutional.types
    assert {"FusedBatchNormV3", "MaxPool", "AvgPool", "Softmax"} <= convolutional.types
    assert_equal(convolutional.run(name), convolutional.values)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_transformer_gives_what_tensorflow_gives(
    name: str, framework: Any, transformer: Frozen
) -> None:
    framework(name)
    assert {"GatherV2", "BatchMatMulV2", "Einsum", "SquaredDifference"} <= transformer.types
    assert_equal(transformer.run(name), transformer.values)


def test_the_code_of_the_convolutional_model_runs_with_our_own_functions(
    convolutional: Frozen,
) -> None:
    graph = tf.Graph()
    with graph.as_default(), tf.Session() as session:
        with tf.variable_scope("model"):
            images, *outputs = models.convolutional(tf, np.random.default_rng(0))
        session.run(tf.global_variables_initializer())
        assert_equal(session.run(outputs, {images: convolutional.fed}), convolutional.values)


# ---- the op types of ordinary models -----------------------------------------------------------

# Those of frozen graphs of models as published, counted in graphs that TensorFlow wrote: those of
# its `keras.applications`, of TF-Slim, of BERT and GPT, and of detectors up to the boxes.
COMMON = "Const Identity NoOp Placeholder PlaceholderWithDefault"
NETWORKS = {
    "MobileNet": (
        "AddV2 BiasAdd Conv2D DepthwiseConv2dNative FusedBatchNormV3 Mean Mul Pack Pad Relu6 "
        "Reshape Rsqrt Shape Softmax Squeeze StridedSlice Sub"
    ),
    "MobileNet V1 of 1.x": (
        "Add AvgPool BiasAdd Conv2D DepthwiseConv2dNative FusedBatchNorm Mul Relu6 Reshape Rsqrt "
        "Shape Softmax Squeeze Sub"
    ),
    "MobileNet V2": "AddV2 Conv2D DepthwiseConv2dNative FusedBatchNormV3 MatMul Mean Pad Relu6",
    "MobileNet V3": "AddV2 BiasAdd Conv2D DepthwiseConv2dNative Mean Mul RealDiv Relu Relu6",
    "ResNet": "Add AddV2 BiasAdd Conv2D FusedBatchNormV2 MatMul MaxPool Mean Pad Relu Squeeze",
    "Inception": "AvgPool BiasAdd ConcatV2 Conv2D FusedBatchNorm MatMul MaxPool Mean Relu Rsqrt",
    "Inception of 1.x": (
        "BatchNormWithGlobalNormalization CheckNumerics Concat ConcatV2 DecodeJpeg LRN "
        "ResizeBilinear ExpandDims Cast Softmax"
    ),
    "VGG, AlexNet": "BiasAdd Conv2D LRN MatMul MaxPool Relu Reshape Prod Pack",
    "EfficientNet": "IdentityN Maximum Mean RealDiv Sigmoid Sqrt Squeeze StridedSlice",
    "DenseNet, NASNet, Xception": "AvgPool ConcatV2 DepthwiseConv2dNative MaxPool Pad StridedSlice",
    "ConvNeXt": (
        "Erfc GatherV2 Neg Prod RealDiv SquaredDifference StopGradient StatefulPartitionedCall "
        "Transpose"
    ),
    "segmentation": (
        "ArgMax BatchToSpaceND Conv2DBackpropInput DepthToSpace ResizeBilinear "
        "ResizeNearestNeighbor SpaceToBatchND SpaceToDepth MirrorPad"
    ),
    "BERT": (
        "Add AddV2 BatchMatMul BatchMatMulV2 BiasAdd Cast ConcatV2 Einsum Erf ExpandDims Fill "
        "GatherV2 Gather LogSoftmax MatMul Mean Mul OneHot Pack Pow Range RealDiv Reshape Rsqrt "
        "Shape Slice Softmax Split SquaredDifference Squeeze StopGradient StridedSlice Sub Sum "
        "Tanh Tile Transpose Unpack ZerosLike"
    ),
    "GPT": (
        "BatchMatMulV2 BroadcastTo Cast ConcatV2 Einsum GatherV2 GreaterEqual MatrixBandPart Mean "
        "Pow Range Rsqrt Select SelectV2 Softmax Split SplitV SquaredDifference Tanh Unpack Where"
    ),
    "recurrent": "ConcatV2 Elu MatMul Mul Sigmoid Softsign Split Tanh Unpack Pack ReverseV2",
    "detectors": (
        "ConcatV2 Exp Greater Less LogicalAnd Maximum Minimum NonMaxSuppressionV3 Relu6 "
        "ResizeBilinear Sigmoid Size TopKV2 Unpack GatherNd CropAndResize Floor"
    ),
    "left over from training": (
        "Assert Equal L2Loss LeakyRelu Log Rank RandomUniform Selu Softplus "
        "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits Sqrt Square Sum "
        "PreventGradient Rsqrt AddN All Any Max Min Cumsum LogicalNot NotEqual Round"
    ),
}
# Refused when imported: files of images, boxes made fewer, calls of functions that
# TensorFlow did not inline when it froze the graph.
OUTSIDE = {"DecodeJpeg", "NonMaxSuppressionV3", "StatefulPartitionedCall"}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_op_types_of_ordinary_models_are_known_and_run(network: str) -> None:
    wanted = set(f"{COMMON} {NETWORKS[network]}".split()) - OUTSIDE
    assert wanted - set(opdef.names()) == set(), "not declared"
    for op_type in wanted:
        registry.find(SimpleNamespace(type=op_type), "numpy")
