"""Kernels of nodes that call functions: of Python, and those wrapped by `dlbridge.wrap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlbridge.errors import KernelError
from dlbridge.exchange import adapter
from dlbridge.execution.errors import NotFoundError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.call import find_function
from dlbridge.graph.ops.kernels import Function
from dlbridge.proto.datatypes import DataType

_PYTHON = (bool, int, float, complex, list, tuple)


@kernel("PyFunc", "PyFuncStateless", only=("numpy",), traceable=False, calls_user=True)
def py_func(node: Node, context: Context) -> Function:
    held = find_function(node.attrs["token"].decode(), node)
    function = held.function

    def of_scalars(*values: Any) -> Any:
        """Call the function as TensorFlow does: with scalars of NumPy, and bytes, for rank 0."""
        return function(*[x[()] if isinstance(x, np.ndarray) and not x.ndim else x for x in values])

    return _checked(of_scalars, held.token, node, context)


@kernel("DLBridge>Call", calls_user=True)
def call(node: Node, context: Context) -> Function:
    return _call(node, context)


@kernel("DLBridge>StatefulCall", traceable=False, calls_user=True)
def stateful_call(node: Node, context: Context) -> Function:
    return _call(node, context)


def _call(node: Node, context: Context) -> Function:
    name, scalars = node.attrs["f"]
    if not node.attrs["is_kernel"]:
        return _checked(find_function(name, node).function, name, node, context)
    from dlbridge.kernels.kernel import serving

    try:
        function = getattr(serving(name), context.framework)
    except KernelError as error:
        raise NotFoundError(str(error), node) from error
    if scalars:
        given = {key: _plain(value) for key, value in scalars.items()}
        inner = function

        def function(*values: Any) -> Any:
            return inner(*values, **given)

    return _checked(function, name, node, context)


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _checked(function: Function, name: str, node: Node, context: Context) -> Function:
    """Return a function whose results have the number and the dtypes that the node promised."""
    types = node.output_types
    convert = _numpy_result if context.framework == "numpy" else _framework_result

    def run(*values: Any) -> Any:
        results = _as_sequence(function(*values))
        if len(results) != len(types):
            raise ValueError(
                f"{name} returns {len(results)} values, but expects to see {len(types)} values"
            )
        out = [
            convert(value, kind, f"{i}-th value returned by {name}", context)
            for i, (value, kind) in enumerate(zip(results, types, strict=True))
        ]
        return out[0] if len(out) == 1 else tuple(out)

    return run


def _as_sequence(results: Any) -> Sequence[Any]:
    """Return the value of a function as a sequence with one entry for each result."""
    if results is None:
        return ()
    return results if isinstance(results, tuple | list) else (results,)


def _numpy_result(value: Any, kind: DataType, which: str, context: Context) -> Any:
    """Return a result as an array; Python's numbers take the dtype that was promised."""
    if kind.kind == "s":
        return _text(value, which)
    if isinstance(value, str | bytes):
        raise TypeError(f"{which} is {type(value).__name__}, but expects {kind.wire_name}")
    if isinstance(value, _PYTHON) and not isinstance(value, np.generic):
        array = np.asarray(value)
        wanted = np.dtype(kind.numpy)
        if not np.can_cast(array.dtype, wanted, "same_kind"):
            raise _wrong_type(which, array.dtype, kind)
        return array.astype(wanted)
    if not isinstance(value, np.ndarray | np.generic):
        value = adapter.converter("numpy")(value, readonly="share")
    array = np.asarray(value)
    if array.dtype != kind.numpy:
        raise _wrong_type(which, array.dtype, kind)
    return array


def _text(value: Any, which: str) -> Any:
    array = np.array(value, np.object_)
    flat = array.reshape(-1)
    for i, each in enumerate(flat):
        if not isinstance(each, str | bytes):
            raise TypeError(f"{which} is {type(each).__name__}, but expects string")
        flat[i] = each.encode() if isinstance(each, str) else bytes(each)
    return array


def _framework_result(value: Any, kind: DataType, which: str, context: Context) -> Any:
    """Return a result as an array of the framework, shared where it came from another one."""
    if isinstance(value, _PYTHON):
        return context.asarray(_numpy_result(value, kind, which, context))
    framework = adapter.adapter_of_type(type(value))
    if framework is not None and framework.name != context.framework:
        value = adapter.converter(context.framework)(value, readonly="share")
    if value.dtype != context.dtype(kind):
        raise _wrong_type(which, value.dtype, kind)
    return value


def _wrong_type(which: str, found: object, wanted: DataType) -> TypeError:
    return TypeError(f"{which} is {found}, but expects {wanted.wire_name}")
