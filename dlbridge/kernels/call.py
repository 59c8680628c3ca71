"""The Python path of calls: every call of a kernel that C declines.

Kernels without a schema are called as TVM's bridges do it: arguments are positional, and the last
tensor is the destination, unless `mutates=` named others. What the kernel returns is returned as it
is: None for C, anything for tvm-ffi and Python functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dlbridge._core import native
from dlbridge.errors import UnsupportedTypeError
from dlbridge.exchange import adapter, exchange
from dlbridge.exchange.protocol import describe, is_spoken_by
from dlbridge.kernels.binding import Binding, binding
from dlbridge.kernels.kinds import Function
from dlbridge.kernels.schema import Arguments, refusal, type_name
from dlbridge.tensor import memory

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel

_TVM_ALIGNMENT = 64
_FUNCTIONAL = ("jax", "tensorflow")  # a written argument is a new value there, or refused


def slow_call(kernel: Kernel, framework: str | None, args: Any, kwargs: Any) -> Any:
    """Call a kernel: the Python path behind every call that C declines.

    Raises:
        UnsupportedTypeError: the tensors are of several frameworks, or not of `framework`, or
            something that must be a tensor is none.
    """
    if kernel.schema is None:
        return _call_positional(kernel, framework, args, kwargs)
    arguments = kernel.schema.arrange(tuple(args), dict(kwargs or {}), traced=True)
    name = framework_of(kernel, framework, _named_tensors(kernel, arguments))
    if name not in _TRACING and not all(isinstance(each, _SCALARS) for each in arguments.scalars):
        arguments = kernel.schema.arrange(tuple(args), dict(kwargs or {}))
    return binding(name).serve(kernel, arguments)


# Frameworks whose programs have scalars that are no numbers yet.
_TRACING = frozenset(("jax", "tensorflow", "torch"))
_SCALARS = (bool, int, float, str, type(None))


def _named_tensors(kernel: Kernel, arguments: Arguments) -> Iterator[tuple[str, Any]]:
    assert kernel.schema is not None
    names = [parameter.name for parameter in kernel.schema.tensors]
    for name, value in zip(names, arguments.tensors, strict=True):
        if value is not None:
            yield name, value
    for index, value in enumerate(arguments.out or ()):
        yield "out" if len(arguments.out or ()) == 1 else f"out[{index}]", value


# ---- which framework -----------------------------------------------------------------------------


def _converter(name: str) -> str:
    return "dlbridge.as_tensor" if name == "dlbridge" else f"dlbridge.to_{name}"


def framework_of(kernel: Kernel, wanted: str | None, named: Iterable[tuple[str, Any]]) -> str:
    """Return the one framework of the tensors; `wanted`, where the caller named one."""
    first: tuple[str, str, Any] | None = None
    for name, value in named:
        found = framework_name(value)
        if found is None:
            raise UnsupportedTypeError(
                refusal(kernel.name, name, "a tensor", type_name(value), _hint(value))
            )
        if wanted is not None and found != wanted:
            hint = f"call the kernel itself, or convert it with {_converter(wanted)}"
            expected = f"a tensor of {wanted}"
            raise UnsupportedTypeError(refusal(kernel.name, name, expected, type_name(value), hint))
        if first is not None and found != first[0]:
            expected = f"a tensor of {first[0]} as {first[1]!r} ({type_name(first[2])})"
            hint = f"convert one of them with {_converter(first[0])} or {_converter(found)}"
            raise UnsupportedTypeError(refusal(kernel.name, name, expected, type_name(value), hint))
        first = first or (found, name, value)
    if wanted is not None:
        return wanted
    if first is None:
        raise UnsupportedTypeError(
            f"{kernel.name}: no tensor tells the framework of the results; call "
            f"{kernel.name.rpartition(':')[2]}.numpy(…), .torch(…), …"
        )
    return first[0]


def _hint(value: Any) -> str:
    numbers = (bool, int, float, complex, list, tuple)
    return "make it a tensor first" if isinstance(value, numbers) else ""


def framework_name(value: Any) -> str | None:
    """Return the framework of a tensor; "dlbridge" for one that only speaks a protocol."""
    found = adapter.adapter_of_type(type(value))
    if found is not None:
        return found.name
    return "dlbridge" if is_spoken_by(value) else None


# ---- without a schema ----------------------------------------------------------------------------


def _call_positional(kernel: Kernel, framework: str | None, args: Any, kwargs: Any) -> Any:
    """Call a kernel that has no schema.

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
    name = framework_of(kernel, framework, named)
    found = binding(name)
    if name in _FUNCTIONAL:
        return found.positional(kernel)(*args)
    written = {places[index] for index in kernel.written(len(places))}
    function = kernel.functions.get("cpu")
    if function is not None and function.framework is not None:
        return _call_python(function, args, places, name, written)
    with found.working(args[places[0]] if places else None):
        result = _run(kernel, found, args, places, written)
    for index in written:
        found.wrote(args[index])
    return result


def _run(
    kernel: Kernel,
    found: Binding,
    args: tuple[Any, ...],
    places: list[int],
    written: set[int],
) -> Any:
    tensors = {
        index: found.take_argument(kernel, str(index), args[index], index in written)
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
    if framework_name(value) is None:
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
        binding(name).wrote(args[index])
    if isinstance(result, tuple):
        return tuple(_back(each, own, name) for each in result)
    return _back(result, own, name)


def _back(result: Any, own: str | None, name: str) -> Any:
    """Return a tensor of the function's framework as one of the caller's; all else as it is."""
    if framework_name(result) != own:
        return result
    return exchange.convert(result, name)
