"""The op behind all kernels in TensorFlow: registered once, run eagerly, put into graphs."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import core as eager_core
from tensorflow.python.eager import execute as eager_execute
from tensorflow.python.framework import op_def_library, ops
from tensorflow.python.ops import control_flow_util

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import DLBridgeError, KernelError
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.schema import Described, Schema

CALL = "DlbridgeCall"
TRANSPOSED = "DlbridgeCallTransposed"  # what a call is where its gradient is transposed
EFFECT = "DlbridgeEffect"  # for kernels without results: never left out, never moved

_LIBRARY = "libtensorflow_framework"
_NUMBERS = range(1, 64)


def _read_dtypes() -> dict[int, DType]:
    """Return number of TensorFlow -> DType, of the dtypes whose elements are whole bytes."""
    found = {}
    for number in _NUMBERS:
        with suppress(DLBridgeError):  # a string, a resource, a number that has no dtype
            dtype = DType.from_tensorflow_number(number)
            if dtype.bits % 8 == 0:
                found[number] = dtype
    return found


DTYPES: dict[int, DType] = _read_dtypes()


def register() -> None:
    """Make the op known to TensorFlow.

    Raises:
        ImportError: this TensorFlow lacks a function of its C API; the text names it.
    """
    directory = Path(tensorflow.sysconfig.get_lib())
    libraries = sorted(directory.glob(f"{_LIBRARY}*"))
    if not libraries:
        raise ImportError(f"kernels: no {_LIBRARY} in {directory}")
    fields = {number: (each.code, each.bits, each.lanes) for number, each in DTYPES.items()}
    native.tensorflow_open(str(libraries[0]), fields)


# ---- attributes --------------------------------------------------------------------------------


class Plan(NamedTuple):
    """The part of a call that depends on the dtypes of its tensors alone.

    Attributes:
        op: the op's name.
        present: the attribute of that name: "" or a '0' or '1' for each tensor of the schema.
        dtypes: TensorFlow's numbers of the outputs' dtypes: results, then written arguments.
    """

    op: str
    present: str
    dtypes: list[int]


class Plans:
    """The plans of one kernel, and the scalars that it was called with eagerly."""

    __slots__ = ("plans", "texts")

    def __init__(self) -> None:
        self.plans: dict[tuple[int | None, ...], Plan] = {}
        self.texts: set[str] = set()


_PLANS: WeakKeyDictionary[Kernel, Plans] = WeakKeyDictionary()

# TensorFlow keeps an eager op for each value of its attributes, for good. A kernel that was called
# with this many different scalars gets further ones as tensors.
_MAX_TEXTS = 64


def _plans_of(kernel: Kernel) -> Plans:
    plans = _PLANS.get(kernel)
    if plans is None:
        plans = _PLANS[kernel] = Plans()
    return plans


def describe_all(tensors: Sequence[Any]) -> list[Described | None]:
    """Return what a schema looks at; extents that are not known yet are None."""
    return [None if tensor is None else _describe(tensor) for tensor in tensors]


def _describe(tensor: Any) -> Described:
    shape = tensor.shape
    extents = None if shape.rank is None else tuple(shape.as_list())
    return Described(extents, DTYPES[tensor.dtype.as_datatype_enum], "tf.Tensor", "cpu")


def _make_plan(
    schema: Schema, tensors: Sequence[Any], scalars: Sequence[Any]
) -> tuple[Plan, list[tuple[int | None, ...] | None]]:
    """Return the plan of a call and the shapes of its results, after checking what is known."""
    known = [each if isinstance(each, int) else None for each in scalars]
    expected = schema.results_of(schema.bind(describe_all(tensors), known))
    numbers = [None if tensor is None else tensor.dtype.as_datatype_enum for tensor in tensors]
    written = [tensors[index] for index in schema.mutated if tensors[index] is not None]
    outputs = [dtype.tensorflow_number for _, dtype in expected]
    outputs += [tensor.dtype.as_datatype_enum for tensor in written]
    present = "".join(["0" if number is None else "1" for number in numbers])
    plan = Plan(CALL if outputs else EFFECT, present if "0" in present else "", outputs)
    return plan, [*[shape for shape, _ in expected], *[tensor.shape for tensor in written]]


def write_scalars(scalars: Sequence[Any], as_tensors: bool = False) -> tuple[str, list[Any]]:
    """Return the attribute for the scalars, and those that go as tensors instead."""
    parts, tensors = [], []
    for scalar in scalars:
        if isinstance(scalar, tensorflow.Tensor) or (as_tensors and isinstance(scalar, _NUMBER)):
            tensors.append(_scalar_tensor(scalar))
            kind, text = "t", ""
        elif scalar is None:
            kind, text = "n", ""
        elif isinstance(scalar, str):
            kind, text = "s", scalar
        elif isinstance(scalar, float):
            kind, text = "f", struct.pack(">d", scalar).hex()
        else:
            kind, text = "i", str(int(scalar))
        parts.append(f"{kind}{len(text.encode())}:{text},")
    return "".join(parts), tensors


_NUMBER = (bool, int, float)


def _scalar_tensor(scalar: Any) -> Any:
    if isinstance(scalar, tensorflow.Tensor):
        wide = tensorflow.float64 if scalar.dtype.is_floating else tensorflow.int64
        stopped = scalar.op.type == "StopGradient"  # the mark must survive the cast
        made = tensorflow.cast(scalar, wide)
        return tensorflow.stop_gradient(made) if stopped else made
    dtype = "float64" if isinstance(scalar, float) else "int64"
    return tensorflow.constant(np.array(scalar, dtype))  # of Python's it keeps every one, for good


def read_scalars(text: str, tensors: Sequence[Any]) -> list[Any]:
    """Return the scalars of an attribute; those that are tensors as the tensors they are."""
    data, scalars, waiting = text.encode(), [], list(tensors)
    while data:
        head, _, rest = data.partition(b":")
        kind, length = head[:1], int(head[1:])
        value, data = rest[:length].decode(), rest[length + 1 :]
        scalars.append(waiting.pop(0) if kind == b"t" else _READERS[kind](value))
    return scalars


_READERS: dict[bytes, Any] = {
    b"n": lambda _: None,
    b"s": str,
    b"i": int,
    b"f": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
}


_FAST_PATH = pywrap_tfe.TFE_Py_FastPathExecute


# ---- eager -------------------------------------------------------------------------------------


def execute(
    kernel: Kernel, schema: Schema, tensors: Sequence[Any], scalars: Sequence[Any]
) -> Sequence[Any]:
    """Run the op now; shapes are checked by the op itself.

    Returns:
        the results, then the new values of written arguments: tf.Tensors in memory of TensorFlow.

    Raises:
        UnsupportedTypeError, ArgumentError, KernelError, or what a kernel in Python raised.
    """
    plans = _plans_of(kernel)
    numbers = tuple([None if tensor is None else tensor._datatype_enum() for tensor in tensors])
    plan = plans.plans.get(numbers)
    if plan is None:
        plan, _ = _make_plan(schema, tensors, scalars)
        plans.plans[numbers] = plan
    inputs = list(tensors) if plan.present == "" else [x for x in tensors if x is not None]
    text = ""
    if scalars:
        text, extra = write_scalars(scalars, len(plans.texts) >= _MAX_TEXTS)
        plans.texts.add(text)
        inputs += extra
    attributes = ("kernel", kernel.name, "scalars", text, "present", plan.present)
    given = (*attributes, "Tout", plan.dtypes)
    context = eager_context.context()
    try:
        results = native.tensorflow_execute(_FAST_PATH, context, plan.op, None, inputs, *given)
    except eager_core._FallbackException:
        results = _execute_slowly(plan, inputs, attributes)
    except eager_core._NotOkStatusException as error:
        ops.raise_from_not_ok_status(error, None)
    return results or ()


def _execute_slowly(plan: Plan, inputs: list[Any], attributes: tuple[str, ...]) -> Sequence[Any]:
    """Run the op where TensorFlow's fast path does not apply: with callbacks on ops, say."""
    types = [tensor._datatype_enum() for tensor in inputs]
    pairs = (*attributes, "Tin", types, "Tout", plan.dtypes)
    name = plan.op.encode()
    results = native.tensorflow_execute(
        _execute_op, name, len(plan.dtypes), inputs, pairs, eager_context.context()
    )
    if plan.dtypes and eager_execute.must_record_gradient():
        eager_execute.record_gradient(plan.op, inputs, pairs, results)
    return results  # type: ignore[no-any-return]


def _execute_op(name: bytes, count: int, inputs: list[Any], pairs: Any, context: Any) -> Any:
    return eager_execute.execute(name, count, inputs=inputs, attrs=pairs, ctx=context)


# ---- graphs ------------------------------------------------------------------------------------


def trace(
    kernel: Kernel, schema: Schema, tensors: Sequence[Any], scalars: Sequence[Any]
) -> Sequence[Any]:
    """Put the op into the graph that is being made; what is known is checked now.

    Raises:
        UnsupportedTypeError, ArgumentError: as in eager code.
        KernelError: the graph is compiled with XLA, which knows no op of ours.
    """
    if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        raise KernelError(
            f"{kernel.name}: jit_compile=True is not supported: XLA inside TensorFlow cannot call "
            "kernels; leave it away, or use jax.jit"
        )
    plan, shapes = _make_plan(schema, tensors, scalars)
    text, extra = write_scalars(scalars)
    _, _, op, results = op_def_library._apply_op_helper(
        plan.op,
        name=_node_name(kernel.name),
        inputs=[x for x in tensors if x is not None] + extra,
        kernel=kernel.name,
        scalars=text,
        present=plan.present,
        Tout=plan.dtypes,
    )
    if not plan.dtypes:
        return ()
    for result, shape in zip(results, shapes, strict=True):
        if shape is not None:
            result.set_shape(shape)
    if eager_execute.must_record_gradient():  # a tape inside of the function
        names = ("kernel", "scalars", "present", "Tin", "Tout")
        pairs = tuple([each for name in names for each in (name, op.get_attr(name))])
        eager_execute.record_gradient(plan.op, op.inputs, pairs, results)
    return list(results)


def _node_name(name: str) -> str:
    """Return a kernel's name as TensorFlow lets nodes be called."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name, flags=re.ASCII).lstrip("_-") or "kernel"
