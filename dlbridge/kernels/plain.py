"""Calls of kernels without a schema: positional, destination-passing, as TVM's bridges do it.

The last tensor is what the kernel writes, unless `mutates=` named others. What the kernel returns
is returned as it is: None for C, anything for tvm-ffi and Python functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge._core import native
from dlbridge.errors import UnsupportedTypeError
from dlbridge.exchange import exchange
from dlbridge.exchange.protocol import describe
from dlbridge.kernels import binding as bindings
from dlbridge.tensor import memory

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.kinds.kinds import Function

_SCALARS = (bool, int, float, str, type(None))
_TVM_ALIGNMENT = 64
_FUNCTIONAL = ("jax", "tensorflow")  # what would be written is a new value, or refused


def call(kernel: Kernel, framework: str | None, args: Any, kwargs: Any) -> Any:
    """Call a kernel that has no schema; see the module.

    Raises:
        UnsupportedTypeError: keywords, tensors of several frameworks, or no tensor at all.
        ExchangeError: a tensor whose memory the kernel cannot be given.
    """
    if kwargs:
        raise UnsupportedTypeError(
            f"{kernel.name}: a kernel without a schema has no names for its arguments, got "
            f"{', '.join(kwargs)}; pass them by position, or wrap it with a schema"
        )
    args = tuple(args)
    places = [index for index, value in enumerate(args) if _is_tensor(kernel, index, value)]
    named = [(str(index), args[index]) for index in places]
    name = bindings.framework_of(kernel, framework, named)
    binding = bindings.binding(name)
    if name in _FUNCTIONAL:
        return getattr(kernel, name)(*args)
    written = {places[index] for index in kernel.written(len(places))}
    function = kernel.functions.get("cpu")
    if function is not None and function.framework is not None:
        return _call_python(function, args, places, name, written)
    with binding.working(args[places[0]] if places else None):
        result = _run(kernel, binding, args, places, written)
    for index in written:
        binding.wrote(args[index])
    return result


def _run(
    kernel: Kernel,
    binding: bindings.Binding,
    args: tuple[Any, ...],
    places: list[int],
    written: set[int],
) -> Any:
    tensors = {
        index: binding.take_argument(kernel, str(index), args[index], index in written)
        for index in places
    }
    function = kernel.functions.get("cpu")
    others = [value for index, value in enumerate(args) if index not in tensors]
    if others and function is not None and function.abi == "tvm_ffi":
        return _call_tvm(function, args, tensors, written)
    source = next((describe(args[index]) for index in places), "")
    return kernel.run(list(tensors.values()), others, source)


def _is_tensor(kernel: Kernel, index: int, value: Any) -> bool:
    if isinstance(value, _SCALARS):
        return False
    if bindings.framework_name(value) is None:
        raise UnsupportedTypeError(
            f"{kernel.name}: argument {index}: expected a tensor or a number, got {describe(value)}"
        )
    return True


def _call_tvm(
    function: Function,
    args: tuple[Any, ...],
    tensors: dict[int, native.TensorBase],
    written: set[int],
) -> Any:
    """Call a tvm-ffi function with arguments of any kind; what TVM refuses is copied for it."""
    staged = {index: _staged(tensor) for index, tensor in tensors.items()}
    given = [
        exchange.convert(staged[index], "tvm") if index in staged else value
        for index, value in enumerate(args)
    ]
    result = function.callable(*given)
    for index in written:
        if staged[index] is not tensors[index]:
            native.copy_into(tensors[index], staged[index])
    return result


def _staged(tensor: native.TensorBase) -> native.TensorBase:
    """Return the tensor, or a copy as TVM's compiled code needs it: row-major and aligned."""
    if not tensor.device.is_host_accessible:
        return tensor
    if tensor.is_contiguous and not tensor.data_ptr % _TVM_ALIGNMENT and not tensor.readonly:
        return tensor
    copied = memory.empty(tensor.shape, tensor.dtype)
    native.copy_into(copied, tensor)
    return copied


def _call_python(
    function: Function,
    args: tuple[Any, ...],
    places: list[int],
    name: str,
    written: set[int],
) -> Any:
    """Call a Python function with tensors of its own framework; what it returns comes back here.

    Arguments that it does not write may be copies; where it writes, the memory must be shared.
    """
    own = function.framework
    if own == name:
        return function.callable(*args)
    given = list(args)
    for index in places:
        share = {"copy": False} if index in written else {"readonly": "copy"}
        given[index] = exchange.convert(args[index], own, **share)
    result = function.callable(*given)
    for index in written:
        bindings.binding(name).wrote(args[index])
    if isinstance(result, tuple):
        return tuple(_back(each, own, name) for each in result)
    return _back(result, own, name)


def _back(result: Any, own: str | None, name: str) -> Any:
    """Return a tensor of the function's framework as one of the caller's; all else as it is."""
    if bindings.framework_name(result) != own:
        return result
    return exchange.convert(result, name)
