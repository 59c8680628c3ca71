"""The op behind all kernels in TensorFlow: run eagerly, put into graphs, transformed.

The gradient belongs to the op and finds the kernel by its name, so functions that were saved with
a model can be differentiated as well. Tapes call kernel.vjp, accumulators kernel.jvp or the
transposed vjp.

`batch=` tells what tf.vectorized_map does, and so jacobians:

    "sequential"   one op, which calls the kernel for one element of the batch after the other
    "broadcast"    one call, with the batch as one more dimension at the head of each pack; as
                   "sequential" where a batched argument has no such pack
    a function     is called with the stacked tensors

Where that does not apply (a scalar differs from call to call, say), TensorFlow loops.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
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
from tensorflow.python.eager import forwardprop
from tensorflow.python.framework import op_def_library, ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.parallel_for import pfor

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, DLBridgeError, ExchangeError, KernelError
from dlbridge.kernels import gradients
from dlbridge.kernels.kernel import Kernel, recorded, serving
from dlbridge.kernels.numbers import gives_constants
from dlbridge.kernels.schema import Described, Schema, dtype_key, write_list
from dlbridge.signals import not_from_handler

CALL = "DlbridgeCall"
TRANSPOSED = "DlbridgeCallTransposed"  # what a call is where its gradient is transposed
# For kernels without results or without tensors: never left out, never moved, never a constant.
EFFECT = "DlbridgeEffect"

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


_registered: set[str] = set()


def register() -> None:
    """Make the op known to TensorFlow, with its gradient, forward derivative and vectorised form.

    That is done once in a process, and is not interrupted: TensorFlow ends the process where an op
    is registered again.

    Raises:
        ImportError: this TensorFlow lacks a function of its C API; the text names it.
    """
    native.defer_signals(_register)


def _register() -> None:
    if CALL in _registered:
        return
    directory = Path(tensorflow.sysconfig.get_lib())
    libraries = sorted(directory.glob(f"{_LIBRARY}*"))
    if not libraries:
        raise ImportError(f"kernels: no {_LIBRARY} in {directory}")
    fields = {number: (each.code, each.bits, each.lanes) for number, each in DTYPES.items()}
    native.tensorflow_open(str(libraries[0]), fields)
    for name in (CALL, TRANSPOSED, EFFECT):
        tensorflow.RegisterGradient(name)(_differentiate)
    forwardprop._SPECIAL_CASES[CALL] = _push_forward
    pfor.RegisterPFor(CALL)(_vectorise)
    _registered.add(CALL)


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
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.texts: set[str] = set()


_PLANS: WeakKeyDictionary[Kernel, Plans] = WeakKeyDictionary()

# TensorFlow keeps an eager op for each value of its attributes, for good. A kernel that was called
# with this many different scalars gets further ones as tensors.
_MAX_TEXTS = 64


def _plans_of(kernel: Kernel) -> Plans:
    plans = _PLANS.get(kernel)
    if plans is None:
        plans = _PLANS.setdefault(kernel, Plans())
    return plans


def _describe(tensor: Any, is_batched: bool) -> Described:
    """Return what a schema looks at; extents that are not known yet are None."""
    shape = tensor.shape[1:] if is_batched else tensor.shape
    extents = None if shape.rank is None else tuple(shape.as_list())
    return Described(extents, DTYPES[tensor.dtype.as_datatype_enum], "tf.Tensor", "cpu")


def _make_plan(
    schema: Schema, tensors: Sequence[Any], scalars: Sequence[Any], batched: Sequence[bool] = ()
) -> tuple[Plan, list[Any]]:
    """Return the plan of a call and the shapes of its outputs, after checking what is known.

    Of a batch, the shapes are those of one element.
    """
    known = [each if isinstance(each, int | DType | tuple) else None for each in scalars]
    described = [
        None if tensor is None else _describe(tensor, place < len(batched) and batched[place])
        for place, tensor in enumerate(tensors)
    ]
    expected = schema.results_of(schema.bind(described, known))
    numbers = [None if tensor is None else tensor.dtype.as_datatype_enum for tensor in tensors]
    written = [tensors[index] for index in schema.mutated if tensors[index] is not None]
    outputs = [dtype.tensorflow_number for _, dtype in expected]
    outputs += [tensor.dtype.as_datatype_enum for tensor in written]
    present = "".join(["0" if number is None else "1" for number in numbers])
    is_function = bool(outputs) and "1" in present
    plan = Plan(CALL if is_function else EFFECT, present if "0" in present else "", outputs)
    shapes = [tensor.shape[1:] if batched else tensor.shape for tensor in written]
    return plan, [*[shape for shape, _ in expected], *shapes]


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
        elif isinstance(scalar, tuple):
            kind, text = "s", write_list(scalar)
        elif isinstance(scalar, DType):
            kind, text = "i", str(dtype_key(scalar))
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
    """Return the scalars of an attribute; those that are tensors as the tensors they are.

    Raises:
        ArgumentError: it is no such attribute, or has more tensors than there are.
    """
    data, scalars, waiting = text.encode(), [], list(tensors)
    while data:
        head, _, rest = data.partition(b":")
        kind, digits = head[:1], head[1:]
        length = int(digits) if digits.isdigit() and len(digits) < 20 else len(data)
        value, end, data = rest[:length], rest[length : length + 1], rest[length + 1 :]
        if end != b"," or kind not in _FORMS or not _FORMS[kind].fullmatch(value):
            raise ArgumentError(f"the node's attribute scalars is damaged: {text!r}")
        if kind == b"t" and not waiting:
            raise ArgumentError(f"the node has fewer inputs than scalars={text!r} names")
        scalars.append(waiting.pop(0) if kind == b"t" else _READERS[kind](value.decode()))
    return scalars


_FORMS = {
    b"n": re.compile(rb""),
    b"t": re.compile(rb""),
    b"s": re.compile(rb".*", re.DOTALL),
    b"i": re.compile(rb"-?[0-9]{1,20}"),
    b"f": re.compile(rb"[0-9a-f]{16}"),
}


_READERS: dict[bytes, Any] = {
    b"n": lambda _: None,
    b"s": str,
    b"i": int,
    b"f": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
}


_ONE_CALL = ("batched", "")
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
    key = (*numbers, *[scalars[place] for place, _ in schema.typed]) if schema.typed else numbers
    plan = plans.plans.get(key)
    if plan is None:
        plan, _ = _make_plan(schema, tensors, scalars)
        plans.plans[key] = plan
    inputs = list(tensors) if plan.present == "" else [x for x in tensors if x is not None]
    text = ""
    if scalars:
        text, extra = write_scalars(scalars, len(plans.texts) >= _MAX_TEXTS)
        plans.texts.add(text)
        inputs += extra
    attributes = ("kernel", recorded(kernel), "scalars", text, "present", plan.present, *_ONE_CALL)
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
    kernel: Kernel,
    schema: Schema,
    tensors: Sequence[Any],
    scalars: Sequence[Any],
    batched: Sequence[bool] = (),
) -> Sequence[Any]:
    """Put the op into the graph that is being made; what is known is checked now.

    Args:
        kernel: what is called.
        schema: its schema.
        tensors: the schema's tensors, None for one that is left out.
        scalars: the schema's scalars; tensors where their values are not known yet.
        batched: which tensors are batches of the same size, along their first dimension, so that
            the op calls the kernel for each element, and so are all outputs. All that are written
            must be, or none of the tensors.

    Raises:
        UnsupportedTypeError, ArgumentError: as in eager code.
        KernelError: the graph is compiled with XLA, which knows no op of ours.
    """
    if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        raise KernelError(
            f"{kernel.name}: jit_compile=True is not supported: XLA inside TensorFlow cannot call "
            "kernels; leave it away, or use jax.jit"
        )
    plan, shapes = _make_plan(schema, tensors, scalars, batched)
    text, extra = write_scalars(scalars)
    _, _, op, results = op_def_library._apply_op_helper(
        plan.op,
        name=_node_name(kernel.name),
        inputs=[x for x in tensors if x is not None] + extra,
        kernel=recorded(kernel),
        scalars=text,
        present=plan.present,
        batched="".join(["1" if each else "0" for each in batched]),
        Tout=plan.dtypes,
    )
    if not plan.dtypes:
        return ()
    leading = _extent(tensors, batched)
    for result, shape in zip(results, shapes, strict=True):
        if shape is not None:
            result.set_shape(leading.concatenate(shape))
    if eager_execute.must_record_gradient():  # a tape inside of the function
        names = (*NAMES, "Tin", "Tout")
        pairs = tuple([each for name in names for each in (name, op.get_attr(name))])
        eager_execute.record_gradient(plan.op, op.inputs, pairs, results)
    return list(results)


def _extent(tensors: Sequence[Any], batched: Sequence[bool]) -> Any:
    """Return the shape of the batch, of one dimension; of none where there is no batch."""
    sizes = [
        each.shape[:1] for each, is_batched in zip(tensors, batched, strict=False) if is_batched
    ]
    shape = tensorflow.TensorShape([None] if sizes else [])
    for size in sizes:
        shape = shape.merge_with(size)
    return shape


def _node_name(name: str) -> str:
    """Return a kernel's name as TensorFlow lets nodes be called."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name, flags=re.ASCII).lstrip("_-") or "kernel"


# ---- the op under tapes, accumulators and tf.vectorized_map --------------------------------------


# ---- one call of the op --------------------------------------------------------------------------

NAMES = ("kernel", "scalars", "present", "batched")  # the attributes that say what was called
_KINDS: dict[str, Any] = {"float": float, "int": int, "bool": bool}


class Node:
    """One call of the op.

    Attributes:
        kernel, schema: what was called.
        places: the op's tensors -> their places among the schema's tensors.
        primals: the schema's tensors, None for one that was left out.
        scalars: the schema's scalars; a symbolic one is a tensor.
        results: the results.
        batched: which of the schema's tensors are batches; none at all: it is one call.
    """

    __slots__ = ("batched", "kernel", "places", "primals", "results", "scalars", "schema")

    def __init__(
        self, attributes: Mapping[str, str], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        kernel = serving(attributes["kernel"])
        assert kernel.schema is not None
        self.kernel: Kernel = kernel
        self.schema: Schema = kernel.schema
        count = len(self.schema.tensors)
        present = attributes["present"] or "1" * count
        batched = attributes["batched"]
        if len(present) != count or len(inputs) < present.count("1"):
            raise _stale(kernel)
        if present.strip("01"):
            raise ArgumentError(f"the node's attribute present is damaged: {present!r}")
        if batched.strip("01") or len(batched) not in (0, count):
            raise ArgumentError(f"the node's attribute batched is damaged: {batched!r}")
        self.batched = [flag == "1" for flag in batched] if "1" in batched else []
        self.places = [index for index, flag in enumerate(present) if flag == "1"]
        self.primals: list[Any] = [None] * len(self.schema.tensors)
        for index, tensor in zip(self.places, inputs, strict=False):
            self.primals[index] = tensor
        self.scalars = self._read_scalars(attributes["scalars"], inputs[len(self.places) :])
        self.results = list(outputs[: len(self.schema.results)])

    def _read_scalars(self, text: str, tensors: Sequence[Any]) -> list[Any]:
        scalars = read_scalars(text, tensors)
        if len(scalars) != len(self.schema.scalars):
            raise _stale(self.kernel)
        numbers = [
            _KINDS[part.kind](scalar.numpy()) if isinstance(scalar, ops.EagerTensor) else scalar
            for part, scalar in zip(self.schema.scalars, scalars, strict=True)
        ]
        return self.schema.read_scalars(numbers)


def _stale(kernel: Kernel) -> ArgumentError:
    return ArgumentError(
        f"{kernel.name}: this graph was made for another schema of the kernel; trace it again"
    )


def read_node(op: Any) -> Node:
    """Return the call that an operation of TensorFlow, or a record of a tape, stands for.

    Raises:
        ArgumentError: its attributes are damaged, or do not agree with the kernel's schema.
    """
    return Node({name: _read_text(op, name) for name in NAMES}, op.inputs, op.outputs)


def _read_text(op: Any, name: str) -> str:
    value: bytes = op.get_attr(name)
    try:
        return value.decode()
    except not_from_handler(UnicodeDecodeError):
        raise ArgumentError(f"the node's attribute {name} is no UTF-8: {value!r}") from None


# ---- backward ----------------------------------------------------------------------------------


def _differentiate(op: Any, *cotangents: Any) -> list[Any]:
    """Return the gradient of each input of the op, None where there is none."""
    node = read_node(op)
    vjp = gradients.make_vjp(node.kernel)
    if vjp is None and gives_constants(node.kernel):
        return [None] * len(op.inputs)
    if vjp is None:
        raise gradients.no_gradient(node.kernel)
    given = [
        _dense(cotangent, result)
        for cotangent, result in zip(cotangents, node.results, strict=False)
    ]
    scalars = [_scalar_like(node, scalar, given) for scalar in node.scalars]

    def differentiate(primals: Sequence[Any], results: Any, given: Any) -> list[Any]:
        found = vjp(primals, scalars, list(results), list(given))
        return [found[index] for index in node.places]

    if node.batched:
        every = [True] * len(given)
        found = _for_each(
            differentiate, (node.primals, node.batched), (node.results, every), (given, every)
        )
        wanted = [
            tensorflow.reduce_sum(each, 0) if each is not None and not node.batched[place] else each
            for place, each in zip(node.places, found, strict=True)
        ]
    else:
        wanted = differentiate(node.primals, node.results, given)
    return [*wanted, *[None] * (len(op.inputs) - len(wanted))]


def _dense(cotangent: Any, result: Any) -> Any:
    """Return a cotangent as a tensor; a result that nothing depends on has zeros."""
    if cotangent is None:
        return tensorflow.zeros_like(result)
    return tensorflow.convert_to_tensor(cotangent)


def _scalar_like(node: Node, scalar: Any, cotangents: list[Any]) -> Any:
    """Return a scalar for use in the gradient; a symbolic one has the dtype of what it scales.

    Raises:
        ExchangeError: the scalar is symbolic and may depend on what is differentiated.
    """
    if not isinstance(scalar, tensorflow.Tensor) or not scalar.dtype.is_floating:
        return scalar
    if scalar.op.type != "StopGradient":
        raise ExchangeError(
            "requires_grad",
            f"{node.kernel.name}: a scalar is a symbolic tensor, whose gradient would be lost: "
            "pass a Python number, or tf.stop_gradient of the scalar",
        )
    floating = [each.dtype for each in cotangents if each.dtype.is_floating]
    return tensorflow.cast(scalar, floating[0]) if floating else scalar


# ---- forward -----------------------------------------------------------------------------------


def _push_forward(
    pairs: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """Return the tangent of each output of the op."""
    given = dict(zip(pairs[::2], pairs[1::2], strict=True))
    node = Node({name: _text(given[name]) for name in NAMES}, inputs, outputs)
    jvp = gradients.make_jvp(node.kernel)
    if jvp is None and gradients.make_vjp(node.kernel) is None and gives_constants(node.kernel):
        return [None] * len(outputs)
    if jvp is None:
        own: list[Any] = forwardprop._jvp_helper(TRANSPOSED, pairs, inputs, outputs, tangents)
        return own
    spread: list[Any] = [None] * len(node.primals)
    for index, tangent in zip(node.places, tangents, strict=False):
        spread[index] = tangent
    if not node.batched:
        return list(jvp(node.primals, node.scalars, spread))
    return _for_each(
        lambda primals, tangents: list(jvp(primals, node.scalars, tangents)),
        (node.primals, node.batched),
        (spread, node.batched),
    )


def _for_each(
    function: Callable[..., list[Any]], *groups: tuple[Sequence[Any], Sequence[bool]]
) -> list[Any]:
    """Return what a function returns for each element of a batch, stacked; None stays None.

    Args:
        function: what is called with a list for each group, of tensors and Nones.
        groups: tensors or Nones, and which of them are batches.
    """
    marked = [pair for group in groups for pair in zip(*group, strict=True)]
    is_missing: list[bool] = []

    def call(elements: list[Any]) -> list[Any]:
        left = iter(elements)
        lists = [
            [
                next(left) if flag and each is not None else each
                for each, flag in zip(*group, strict=True)
            ]
            for group in groups
        ]
        found = function(*lists)
        is_missing[:] = [each is None for each in found]
        return [tensorflow.convert_to_tensor(each) for each in found if each is not None]

    stacked = [each for each, flag in marked if flag and each is not None]
    made = iter(tensorflow.vectorized_map(call, stacked))
    return [None if missing else next(made) for missing in is_missing]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# ---- batches -------------------------------------------------------------------------------------


def _vectorise(given: Any) -> list[Any]:
    """Return the stacked outputs of the op for all turns of a loop."""
    node = read_node(given.op)
    count = len(node.places)
    flags = [bool(given.input(index).is_stacked) for index in range(given.num_inputs)]
    if any(flags[count:]):
        raise _loop(node, "a scalar differs from call to call")
    if node.batched:
        made = _flatten(node, given, flags[:count])
    elif node.kernel.batch == "sequential":
        made = _call_each(node, given)
    elif node.kernel.batch == "broadcast":
        made = _broadcast(node, given, flags[:count])
    else:
        made = _call_rule(node, given, flags[:count])
    return [pfor.wrap(each, True) for each in made]


def _loop(node: Node, why: str) -> Exception:
    """Return what makes TensorFlow loop, or raise where that is forbidden."""
    error: Exception = pfor.ConversionNotImplementedError(f"{node.kernel.name}: {why}")
    return error


def _tensors(node: Node, given: Any) -> list[Any]:
    """Return the converted tensors in the schema's order, None for one that is left out."""
    tensors: list[Any] = [None] * len(node.primals)
    for index, place in enumerate(node.places):
        tensors[place] = given.input(index).t
    return tensors


def _scalars(node: Node, given: Any) -> list[Any]:
    """Return the scalars; those that are tensors as they are outside of the loop."""
    traced = iter([given.input(index).t for index in range(len(node.places), given.num_inputs)])
    return [next(traced) if isinstance(each, tensorflow.Tensor) else each for each in node.scalars]


def _call_each(node: Node, given: Any) -> Sequence[Any]:
    """Have the op call the kernel for each element; what it writes is a batch in any case."""
    wanted = [at for at, place in enumerate(node.places) if place in node.schema.mutated]
    is_batch = wanted or any(given.input(at).is_stacked for at in range(len(node.places)))
    given.stack_inputs(wanted if is_batch else [0])
    flags = [False] * len(node.primals)
    for index, place in enumerate(node.places):
        flags[place] = bool(given.input(index).is_stacked)
    return trace(node.kernel, node.schema, _tensors(node, given), _scalars(node, given), flags)


def _flatten(node: Node, given: Any, flags: Sequence[bool]) -> Sequence[Any]:
    """Make one batch of a batch of batches, and two of its outputs."""
    tensors = _tensors(node, given)
    stacked = dict(zip(node.places, flags, strict=True))
    outer = _size(given)
    inner = next(
        tensorflow.shape(tensors[place])[int(stacked[place])]
        for place in node.places
        if node.batched[place]
    )
    marks = [each or stacked.get(place, False) for place, each in enumerate(node.batched)]
    for place in node.places:
        if marks[place]:
            each = tensors[place]
            each = each if stacked[place] else tensorflow.expand_dims(each, 0)
            each = each if node.batched[place] else tensorflow.expand_dims(each, 1)
            sizes = tensorflow.concat([[outer, inner], tensorflow.shape(each)[2:]], 0)
            tensors[place] = _merge(tensorflow.broadcast_to(each, sizes), each.shape[2:])
    made = trace(node.kernel, node.schema, tensors, _scalars(node, given), marks)
    return [
        tensorflow.reshape(each, tensorflow.concat([[outer, inner], tensorflow.shape(each)[1:]], 0))
        for each in made
    ]


def _merge(tensor: Any, element: Any) -> Any:
    """Return a tensor with its first two dimensions as one; `element` is the static rest."""
    sizes = tensorflow.shape(tensor)
    merged = tensorflow.reshape(tensor, tensorflow.concat([[sizes[0] * sizes[1]], sizes[2:]], 0))
    merged.set_shape(tensorflow.TensorShape([None]).concatenate(element))
    return merged


def _broadcast(node: Node, given: Any, flags: Sequence[bool]) -> Sequence[Any]:
    leading = [_starts_with_pack(node.schema, place) for place in node.places]
    if any(flag and not lead for flag, lead in zip(flags, leading, strict=True)):
        return _call_each(node, given)
    given.stack_inputs([index for index, lead in enumerate(leading) if lead])
    try:
        return trace(node.kernel, node.schema, _tensors(node, given), _scalars(node, given))
    except DLBridgeError as error:
        raise _loop(node, str(error)) from error


def _starts_with_pack(schema: Schema, place: int) -> bool:
    dims = schema.tensors[place].dims
    return bool(dims) and dims[0].kind == "pack"


def _call_rule(node: Node, given: Any, flags: Sequence[bool]) -> Sequence[Any]:
    marks = [False] * len(node.primals)
    for place, flag in zip(node.places, flags, strict=True):
        marks[place] = flag
    rule: Any = node.kernel.batch
    size = _size(given)
    names = [part.name for part in node.schema.scalars]
    scalars = dict(zip(names, _scalars(node, given), strict=True))
    made = rule(size, tuple(marks), *_tensors(node, given), **scalars)
    stacked = list(made) if isinstance(made, tuple | list) else [made]
    _check_batch(node, stacked, given.op.outputs, size if isinstance(size, int) else None)
    return stacked


def _size(given: Any) -> Any:
    """Return the length of the batch, a symbolic tensor where it is not known yet."""
    stacked = [each.t.shape for each in given.inputs if each.is_stacked]
    known = [shape[0] for shape in stacked if shape.rank and shape[0] is not None]
    return known[0] if known else given.pfor.loop_len_vector[0]


def _check_batch(node: Node, made: list[Any], single: Sequence[Any], size: int | None) -> None:
    name = node.kernel.name
    if len(made) != len(single):
        raise KernelError(f"{name}: batch= returned {len(made)} results instead of {len(single)}")
    for index, (each, like) in enumerate(zip(made, single, strict=True)):
        shape = tensorflow.TensorShape([size]).concatenate(like.shape)
        if each.dtype != like.dtype or not shape.is_compatible_with(each.shape):
            raise ArgumentError(
                f"{name}: batch= returned {each.dtype.name}{each.shape} as result {index}, "
                f"expected {like.dtype.name}{shape}"
            )
