"""Python functions and `dlbridge.wrap` kernels as nodes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from dlbridge import registry
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.execution.errors import NotFoundError
from dlbridge.graph.core.default_graph import apply, convert_to_tensor, get_default_graph, graph_of
from dlbridge.graph.core.inference import Inference
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.ops.shared import Shapes, define
from dlbridge.proto.datatypes import as_dtype
from dlbridge.proto.values import FunctionName
from dlbridge.shape import TensorShape, as_shape

__all__ = ["call", "py_func", "register_function"]


# ==== functions by token ==========================================================================
# Python functions that nodes call, known by a token, which a GraphDef can hold. A function that a
# graph was given is known as long as that graph lives; one that was registered under a token of
# its own choice, as long as the process.


class Held:
    """A function that is known by `token` while this object lives."""

    __slots__ = ("__weakref__", "function", "token")

    def __init__(self, function: Callable[..., Any], token: str) -> None:
        self.function = function
        self.token = token


_HELD: WeakValueDictionary[str, Held] = WeakValueDictionary()
_REGISTERED: dict[str, Held] = {}
_lock = registry.lock()
_numbers = itertools.count()


def hold_function(function: Callable[..., Any]) -> Held:
    """Make a function known by a new token; a registered one keeps its own."""
    with _lock:
        for held in _REGISTERED.values():
            if held.function is function:
                return held
        held = Held(function, f"pyfunc_{next(_numbers)}")
        _HELD[held.token] = held
        return held


def hold_as(function: Callable[..., Any], token: str) -> None:
    """Make a function known by `token` from now on.

    Raises:
        ArgumentError: another one has this token.
    """
    with _lock:
        known = _REGISTERED.get(token) or _HELD.get(token)
        if known is not None and known.function is not function:
            raise ArgumentError(f"register_function: {known.function!r} has the token {token!r}")
        _REGISTERED[token] = Held(function, token)


def find_function(token: str, node: Any = None) -> Held:
    """Return the function known by `token`.

    Raises:
        NotFoundError: nothing is.
    """
    held = _REGISTERED.get(token) or _HELD.get(token)
    if held is None:
        raise NotFoundError(
            f"callback {token!r} is not found: the graph that it was made for is gone, or it was "
            "made in another process; register_function makes one known for good",
            node,
        )
    return held


# ==== op types ====================================================================================


def _promised(c: Inference) -> Shapes:
    """The shapes that the caller promised, if any."""
    shapes = c.attrs.get("shapes", ())
    if not shapes:
        return [None] * c.output_count
    if len(shapes) != c.output_count:
        raise c.error(f"There must be a shape for each of {c.output_count} results")
    return [shape.dims for shape in shapes]


_PYTHON = (
    "(input: list(Tin), *, token: string, Tin: list(type) >= 0, Tout: list(type) >= 0) "
    "-> output: list(Tout)"
)
_ANY = (
    "(input: list(Tin), *, f: func, is_kernel: bool = false, Tin: list(type) >= 0, "
    "Tout: list(type) >= 0, shapes: list(shape) = []) -> output: list(Tout)"
)

define(f"PyFunc{_PYTHON}", shape=_promised, stateful=True)
define(f"PyFuncStateless{_PYTHON}", shape=_promised)
define(f"DLBridge>Call{_ANY}", shape=_promised)
define(f"DLBridge>StatefulCall{_ANY}", shape=_promised, stateful=True)


_TOKENS = frozenset(("PyFunc", "PyFuncStateless"))
_CALLS = frozenset(("DLBridge>Call", "DLBridge>StatefulCall"))


def called_name(op_type: str, attrs: Mapping[str, Any]) -> str | None:
    """Return the name of the kernel or the token of the function that a node calls, or None.

    A call of `dlbridge.mpi`, which other processes wait for, has a name such as "mpi.allreduce".

    Attributes of the wrong kind name nothing: such a node is refused for them.
    """
    if op_type in _TOKENS:
        token = attrs.get("token")
        return token.decode("utf-8", "replace") if isinstance(token, bytes) else None
    if op_type == "DLBridge>Mpi":
        name = attrs.get("call")
        return f"mpi.{name.decode('utf-8', 'replace')}" if isinstance(name, bytes) else "mpi"
    found = attrs.get("f") if op_type in _CALLS else None
    return found.name if isinstance(found, FunctionName) else None


# ==== functions ===================================================================================


def py_func(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: Any,  # noqa: N803
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Create an operation that calls a Python function with NumPy arrays.

    Args:
        func: is called in each run with one array for each input, or with a scalar of NumPy or
            bytes for one of rank 0; it returns arrays or numbers, one for each of `Tout`.
        inp: Tensors, or what `constant` takes.
        Tout: the dtype of its result, or a list of them.
        stateful: whether calls differ from each other: they are never merged or left out.
        name: of the operation, "PyFunc" by default.

    Returns:
        A Tensor, of unknown shape; a list of them where `Tout` is one; the Operation where that
        is empty.

    Raises:
        InvalidArgumentError: in a run: `func` raised ValueError or TypeError, or returned other
            dtypes or another number of results. StopIteration becomes OutOfRangeError, MemoryError
            ResourceExhaustedError, NotImplementedError UnimplementedError, all else UnknownError.
            An error of `tf.errors` that `func` raises itself, as in `tf.errors.OutOfRangeError(
            None, None, "end")`, arrives as that class.

    All functions of a run are called in the thread that called `run`, one after another, stateful
    ones in the order of their creation where inputs and control dependencies leave it open.
    TensorFlow may call them side by side: a function must not wait for one that is called later.
    With `ConfigProto(inter_op_parallelism_threads=n)`, n above 1, up to n functions are called side
    by side, each in a thread of its own, as soon as their inputs and control dependencies are
    there: these alone order them then. Such a thread knows no default graph or session. Variables
    and other stateful operations keep their order among themselves. Where a function raises, the
    run ends at once, and functions that were begun go on unheard. Runs that are traced, or have a
    timeout, call functions one after another.

    The function is known by a token while the graph lives; see `register_function`.
    """
    op_type = "PyFunc" if stateful else "PyFuncStateless"
    held = hold_function(func)
    attrs = {"token": held.token.encode(), "Tout": _types(Tout)}
    op = apply(op_type, (list(inp),), attrs, name)
    op.graph._functions.append(held)
    return _results(op, Tout)


def call(
    fn: Any,
    inputs: Sequence[Any],
    Tout: Any = None,  # noqa: N803
    framework: str | None = None,
    shapes: Any = None,
    stateful: bool = False,
    name: str | None = None,
    **scalars: Any,
) -> Any:
    """Create an operation that calls a function with arrays of the framework that it runs in.

    Args:
        fn: a Python function of such arrays, or a kernel of `dlbridge.wrap`.
        inputs: Tensors, or what `constant` takes: one for each argument.
        Tout: the dtype of its result, or a list of them. A kernel with a schema needs none: the
            schema knows dtypes and, as far as those of the inputs are known, shapes.
        framework: where it runs; None is the one of the scope or the session.
        shapes: the static shape of the result, a list of shapes where `Tout` is a list.
        stateful: whether calls differ from each other: they are never merged, left out or traced.
        name: of the operation, the name of the function by default.
        **scalars: arguments of a kernel that are no tensors.

    Returns:
        A Tensor, or a list of them where `Tout` is a list or the kernel has several results; the
        Operation where there are none.

    Raises:
        TypeError: dtypes that the kernel does not take; `Tout` is missing.
        ValueError: shapes that it does not take; a kernel that writes to its arguments.

    In JAX a function may be traced, and must not depend on values then; `stateful=True` prevents
    that. A kernel is known by its name when the graph is exported, a function by its token.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default() as graph:
        ...     y = tf.call(lambda x: x.flip(0), [tf.constant([1.0, 2.0])], tf.float32, "torch")
        >>> y.op.type, y.op.framework
        ('DLBridge>Call', 'torch')
    """
    graph = graph_of(inputs)
    with graph.as_default():
        schema = getattr(fn, "schema", None)
        if schema is not None:
            return _call_kernel(fn, inputs, Tout, framework, shapes, stateful, name, scalars)
        if scalars:
            raise UnsupportedTypeError(
                f"call: only kernels take scalars by name, got {', '.join(scalars)}"
            )
        if Tout is None:
            raise UnsupportedTypeError(
                "call: Tout is missing: the dtypes of the results follow from the schema of a "
                f"kernel only, got {fn!r}"
            )
        held = hold_function(fn)
        attrs = {
            "f": FunctionName(held.token),
            "Tout": _types(Tout),
            "shapes": _shapes(shapes, Tout),
        }
        op = _apply(list(inputs), attrs, framework, stateful, name or _default_name(fn))
        graph._functions.append(held)
        return _results(op, Tout)


def register_function(function: Callable[..., Any], token: str) -> Callable[..., Any]:
    """Make a Python function known by a token in this process, and return it.

    Nodes of `py_func` and `call` refer to functions by tokens. A graph that was written in another
    process finds functions that were registered under the same tokens there.

    Args:
        function: the function to call.
        token: any text that no other function has.

    Raises:
        ArgumentError: another function has this token.
    """
    hold_as(function, token)
    return function


def _apply(
    inputs: list[Any], attrs: dict[str, Any], framework: str | None, stateful: bool, name: str
) -> Operation:
    op_type = "DLBridge>StatefulCall" if stateful else "DLBridge>Call"
    if framework is None:
        return apply(op_type, (inputs,), attrs, name)
    with get_default_graph().framework(framework):
        return apply(op_type, (inputs,), attrs, name)


def _default_name(function: Any) -> str:
    name = getattr(function, "__name__", "")
    return name if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) else "call"


def _types(types: Any) -> list[Any]:
    return [as_dtype(each) for each in (types if isinstance(types, list | tuple) else (types,))]


def _shapes(shapes: Any, types: Any) -> list[TensorShape]:
    if shapes is None:
        return []
    several = isinstance(types, list | tuple)
    return [as_shape(each) for each in (shapes if several else (shapes,))]


def _results(op: Operation, types: Any) -> Any:
    if not op.outputs:
        return op
    return list(op.outputs) if isinstance(types, list | tuple) else op.outputs[0]


# ---- kernels -----------------------------------------------------------------------------------


def _call_kernel(
    kernel: Any,
    inputs: Sequence[Any],
    types: Any,
    framework: str | None,
    shapes: Any,
    stateful: bool,
    name: str | None,
    scalars: dict[str, Any],
) -> Any:
    """Create an operation for a kernel, whose schema checks the inputs and knows the results."""
    from dlbridge.kernels.kernel import recorded

    kernel = kernel.tensors  # a graph has tensors in place of numbers
    schema = kernel.schema
    if schema.has_lists:
        raise ArgumentError(
            f"call: {schema.qualified} has a list of tensors or an optional result, which "
            "operations of a graph cannot pass; wrap a kernel whose arguments and results are one "
            "tensor each"
        )
    if schema.counts:
        raise ArgumentError(
            f"call: {schema.qualified} says {schema.counts[0].value} when it has run, and shapes "
            "of a graph are known before; pass kernel.bounded, whose results have the bound"
        )
    if schema.mutated:
        names = ", ".join(schema.tensors[place].name for place in schema.mutated)
        raise ArgumentError(
            f"call: {schema.qualified} writes to {names}, but values of a graph do not change; "
            "wrap a kernel that returns its results"
        )
    tensors: list[Tensor] = _convert_inputs(schema, inputs)
    arguments = schema.arrange(tuple(tensors), scalars)
    found = schema.results_of(schema.bind(_describe(tensors), arguments.scalars))
    known = [as_shape(shape) for shape, _ in found]
    if shapes is not None:
        known = [a.merge_with(b) for a, b in zip(known, _shapes(shapes, types), strict=True)]
    kinds = [as_dtype(dtype) for _, dtype in found]
    if types is not None and _types(types) != kinds:
        raise UnsupportedTypeError(
            f"call: {schema.qualified} gives {[each.name for each in kinds]}, Tout is {types!r}"
        )
    given = {key: each.encode() if isinstance(each, str) else each for key, each in scalars.items()}
    attrs = {
        "f": FunctionName(recorded(kernel), given),
        "is_kernel": True,
        "Tout": kinds,
        "shapes": known,
    }
    op = _apply(tensors, attrs, framework, stateful, name or _default_name(kernel))
    op.graph._functions.append(kernel)
    return _results(op, kinds if len(kinds) > 1 or isinstance(types, list | tuple) else None)


def _convert_inputs(schema: Any, inputs: Sequence[Any]) -> list[Tensor]:
    if len(inputs) != len(schema.tensors):
        names = ", ".join(each.name for each in schema.tensors)
        raise UnsupportedTypeError(
            f"call: {schema.qualified} takes {len(schema.tensors)} tensors ({names}), got "
            f"{len(inputs)}"
        )
    return [convert_to_tensor(each) for each in inputs]


def _describe(tensors: Sequence[Tensor]) -> list[Any]:
    """Return tensors as schemas look at them."""
    from dlbridge.kernels.schema import Described

    described = []
    for tensor in tensors:
        dtype = tensor.dtype.base_dtype.dlpack
        if dtype is None:
            raise UnsupportedTypeError(f"call: kernels take no {tensor.dtype.name}: {tensor!r}")
        described.append(Described(tensor._dims, dtype, "symbolic Tensor"))
    return described
