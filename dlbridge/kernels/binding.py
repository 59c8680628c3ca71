"""Bindings: how kernels are called with the tensors of one framework.

A binding makes the function that `kernel.<framework>` is, and serves the calls that the C path
declines. The base class is the direct route, enough for every framework with plain memory:
arguments become Tensors, results are new memory, the kernel runs on them, the results are given to
the framework. Frameworks that trace or differentiate override `call`.

Kernels without a schema are called as TVM's bridges do it: arguments are positional, and the last
tensor is the destination, unless `mutates=` named others. The kernel's own return value is passed
on: None for C, anything for tvm-ffi and Python functions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge import cuda, registry
from dlbridge._core import native
from dlbridge.device import CUDA_TYPES, Device, make_device
from dlbridge.dtype import DType, make_dtype
from dlbridge.errors import (
    FINDINGS,
    DLBridgeError,
    ExchangeError,
    KernelDefectError,
    KernelError,
    UnsupportedTypeError,
    name_call,
)
from dlbridge.exchange import adapter, exchange, protocol
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.exchange.exchange import refuse
from dlbridge.exchange.protocol import describe, is_spoken_by
from dlbridge.kernels import debugging
from dlbridge.kernels.schema import (
    Arguments,
    Described,
    Result,
    Schema,
    is_plain,
    outside,
    refusal,
    type_name,
)
from dlbridge.signals import not_from_handler
from dlbridge.tensor import memory
from dlbridge.tensor.values import READ_ONLY

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.kinds import Function


_FOUND: dict[str, Binding] = {}

_READ = Policy("kernel")
_WRITE = Policy("kernel", copy=False)
_FIX_WRITTEN = "the kernel writes it: pass memory that is written as it is"


class Binding:
    """One framework's binding: the direct route, of which subclasses replace what differs.

    Attributes:
        name: the framework, as in `convert(x, name)`.
        is_immutable: whether its values must never be written.
    """

    name: str = ""
    is_immutable: bool = False

    def function(self, kernel: Kernel) -> Callable[..., Any]:
        """Return what `kernel.<name>` is: a builtin function, which serves plain calls in C."""
        text = _builtin_text(kernel)
        bound: Callable[..., Any] = native.bind_kernel(kernel, self.name, kernel.__name__, text)
        return bound

    def call(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call a kernel that has a schema; all tensors of `arguments` are this framework's."""
        results = self._compute(kernel, arguments)
        if arguments.out is None:
            like = _first(arguments)
            return _unpack([self.give(result, like) for result in results])
        for value in arguments.out:
            self.wrote(value)
        return _unpack(arguments.out)

    def _compute(
        self, kernel: Kernel, arguments: Arguments, kept: int = 0
    ) -> list[native.TensorBase]:
        """Run the kernel; return its results, in new memory or over `out`.

        The framework may have no dtype for the last `kept` results: it is not given them.
        """
        schema = kernel.schema
        assert schema is not None
        written = set(schema.mutated)
        names = [parameter.name for parameter in schema.tensors]
        tensors = [
            None if value is None else self.take_argument(kernel, name, value, index in written)
            for index, (name, value) in enumerate(zip(names, arguments.tensors, strict=True))
        ]
        source = _source(arguments.tensors)
        if arguments.out is not None:
            results = [
                self.take_argument(kernel, f"out[{index}]", value, True)
                for index, value in enumerate(arguments.out)
            ]
        else:
            like = _first(arguments)
            results = self._new_results(kernel, tensors, arguments.scalars, like, kept)
        kernel.run([*tensors, *results], arguments.scalars, source)
        for index in written:
            if arguments.tensors[index] is not None:
                self.wrote(arguments.tensors[index])
        return results

    def _new_results(
        self,
        kernel: Kernel,
        tensors: list[native.TensorBase | None],
        scalars: list[Any],
        like: Any,
        kept: int,
    ) -> list[native.TensorBase]:
        schema = kernel.schema
        assert schema is not None
        source = "" if like is None else type_name(like)
        described = [
            None if each is None else Described(each.shape, each.dtype, source, str(each.device))
            for each in tensors
        ]
        device = next((each.device for each in tensors if each is not None), None)
        results = schema.results_of(schema.bind(described, scalars))
        made = []
        for index, (shape, dtype) in enumerate(results):
            maker = self if index < len(results) - kept else _OWN
            try:
                made.append(maker.new(tuple(shape), dtype, device, like))
            except ExchangeError as error:
                name = schema.results[index].name
                raise ExchangeError(
                    error.reason, f"{kernel.name}: result {name!r}: {error}"
                ) from error.__cause__
        return made

    def serve(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call a kernel on the stream that the framework works on now."""
        with self.working(_first(arguments)):
            return self.call(kernel, arguments)

    def call_counted(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call a kernel that says extents of its results; see `kernels.counted`."""
        counted, like = kernel.counted, _first(arguments)
        assert counted is not None
        with self.working(like):
            made = self._compute(counted.bounded, arguments, len(counted.schema.counts))
            return _unpack([self.give(result, like) for result in counted.cut(made, _OWN)])

    def call_bounded(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Do the same by a call of the kernel that has the bounds, whose results are cut."""
        schema, counted = kernel.schema, kernel.counted
        assert schema is not None
        assert counted is not None
        args, kwargs = schema.spell(arguments.tensors, arguments.scalars)
        return _unpack(counted.cut(getattr(counted.bounded, self.name)(*args, **kwargs), self))

    def call_numbers(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call a kernel some of whose results are numbers; see `kernels.numbers`."""
        schema, numbers = kernel.schema, kernel.numbers
        assert schema is not None
        assert numbers is not None
        args, kwargs = schema.spell(arguments.tensors, arguments.scalars)
        return numbers.read(getattr(numbers.tensors, self.name)(*args, **kwargs))

    def read_number(self, kernel: Kernel, result: Result, value: Any) -> Any:
        """Return the number in a tensor without dimensions; the tensor where none is known yet."""
        return exchange.convert(value, "numpy", device="cpu").item()

    def number_maker(self, dtype: DType) -> Callable[[Any, Any], Any]:
        """Return what makes a tensor without dimensions of a number that a function returned.

        It takes the number, of Python or a traced one, and the function's first tensor or None.
        """
        own = dtype.to("numpy")
        return lambda number, _: np.asarray(number, own)

    def number_function(self, kernel: Kernel) -> Callable[..., Any]:
        """Return what `kernel.<name>` is where results are numbers."""
        return Binding.function(self, kernel)

    def is_tracing(self) -> bool:
        """Return whether numbers of Python may stand for ones that are not known yet."""
        return False

    def is_symbol(self, value: Any, kind: str) -> bool:
        """Return whether a value is an "int", "float" or "bool" that a trace does not know yet."""
        return False

    def write(self, room: Any, value: Any) -> None:
        """Write a number, or an array of the framework, into one of its arrays."""
        room[...] = value

    def read_extent(self, kernel: str, name: str, value: Any, room: int) -> Any:
        """Return what a kernel said; here of a Tensor, in others of an array of the framework.

        Args:
            kernel: its name.
            name: of the extent.
            value: what it said, an i64[].
            room: the bound.

        Raises:
            KernelError: it is negative or beyond the bound.
        """
        extent = int(exchange.convert(value, "numpy", device="cpu"))
        return check_extent(kernel, name, extent, room)

    def first_rows(self, value: Any, extent: Any) -> Any:
        """Return the first rows of a result, over the same memory; the same of Tensors here."""
        return value._view((extent, *value.shape[1:]), value.strides)

    def positional(self, kernel: Kernel) -> Callable[..., Any]:
        """Return what serves calls of a kernel without a schema, where values never change."""
        function: Callable[..., Any] = getattr(kernel, self.name)
        return function

    def traceable(self, kernel: Kernel) -> Callable[..., Any]:
        """Return a Python function that does what a call does, for a compiler that traces it."""
        raise NotImplementedError

    def published(self, kernel: Kernel) -> None:
        """Note that a name means `kernel` from now on."""

    # ---- the steps of the direct route ----

    def take_argument(
        self, kernel: Kernel, name: str, value: Any, written: bool
    ) -> native.TensorBase:
        """Return a Tensor over an argument; refusals name the kernel and the argument."""
        if written and self.is_immutable:
            raise ExchangeError(
                "readonly",
                refusal(
                    kernel.name, name, "memory that may be written", type_name(value),
                    f"values of {self.name} never change; use what the kernel returns",
                ),
            )  # fmt: skip
        try:
            tensor = self.take(value, written)
        except ExchangeError as error:
            place = f"{kernel.name}: argument {name!r}"
            if written:
                raise exchange.refused_as(place, error, _FIX_WRITTEN) from error.__cause__
            name_call(error, place)
            raise
        if self.is_immutable:  # a Python function must not write it either
            return tensor._view(tensor.shape, tensor.strides, set_flags=READ_ONLY)
        return tensor

    def take(self, value: Any, written: bool) -> native.TensorBase:
        """Return a Tensor over `value`: its own memory where it is `written`, else maybe a copy."""
        policy = _WRITE if written else _READ
        return exchange.take(
            value, policy, ExchangeContext(exchange.source_name(value), "dlbridge")
        )

    def new(
        self, shape: tuple[int, ...], dtype: DType, device: Device | None, like: Any
    ) -> native.TensorBase:
        """Return new memory for a result, which this framework can hold.

        Args:
            shape: extents.
            dtype: a DType.
            device: of the arguments; None without any.
            like: the first argument, or None.
        """
        on_gpu = device is not None and device.pair[0] in CUDA_TYPES
        if device is not None and not device.is_host_accessible and not on_gpu:
            raise ExchangeError(
                "device", f"{self.name} has no memory for results on {device} here; pass out="
            )
        made = memory.empty(shape, dtype, device=device if on_gpu else "cpu")
        reason = adapter.adapter(self.name).refusal(made) if self.name else None
        if reason is not None:
            refuse(reason, made, f"to_{self.name}")
        return made

    def give(self, tensor: native.TensorBase, like: Any) -> Any:
        """Return a result as this framework's array; `like` is the first argument, or None."""
        return exchange.convert(tensor, self.name)

    def working(self, like: Any) -> AbstractContextManager[Any]:
        """Return a block in which dlbridge works on the stream that `like` is used on."""
        return nullcontext()

    def wrote(self, value: Any) -> None:
        """Note that a kernel wrote into `value`."""


_OWN = Binding()  # for memory that no framework is given


def check_extent(kernel: str, name: str, extent: int, room: int) -> int:
    """Return an extent that a kernel said.

    Raises:
        KernelError: it is negative or beyond the bound.
    """
    if 0 <= extent <= room:
        return extent
    raise outside(kernel, name, extent, room)


def _builtin_text(kernel: Kernel) -> str:
    """Return the documentation of a builtin function, whose signature stands before it."""
    parameters = [
        each.replace(annotation=each.empty) for each in kernel.__signature__.parameters.values()
    ]
    signature = kernel.__signature__.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
    return f"{kernel.__name__}{signature}\n--\n\n{kernel.__doc__ or ''}"


def _first(arguments: Arguments) -> Any:
    """Return the first tensor argument; None without any."""
    return next((each for each in arguments.tensors if each is not None), None)


def _source(values: Iterable[Any]) -> str:
    return next((type_name(value) for value in values if value is not None), "")


def _unpack(results: list[Any]) -> Any:
    """Return no result as None, one bare, several as a tuple."""
    return tuple(results) if len(results) > 1 else (results[0] if results else None)


# ---- frameworks that need nothing but the direct route -------------------------------------------


class Sliced(Binding):
    """A framework whose arrays are sliced as in NumPy, also to the size that a kernel says."""

    def call_counted(self, kernel: Kernel, arguments: Arguments) -> Any:
        return self.call_bounded(kernel, arguments)

    def read_number(self, kernel: Kernel, result: Result, value: Any) -> Any:
        return value.item()

    def read_extent(self, kernel: str, name: str, value: Any, room: int) -> Any:
        return check_extent(kernel, name, int(value), room)

    def first_rows(self, value: Any, extent: Any) -> Any:
        return value[:extent]


class Direct(Binding):
    """A framework on the direct route: its adapter says what else there is to know."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.framework = adapter.adapter(name)
        self.is_immutable = not self.framework.writable

    def new(
        self, shape: tuple[int, ...], dtype: DType, device: Device | None, like: Any
    ) -> native.TensorBase:
        made = None
        if device is not None and not device.is_host_accessible:
            made = self.framework.allocate(shape, dtype, like)
        return super().new(shape, dtype, device, like) if made is None else self.take(made, True)

    def working(self, like: Any) -> AbstractContextManager[Any]:
        """Return a block on the framework's current stream of the device of `like`."""
        if like is None or not self.framework.has_streams:
            return nullcontext()
        kind, index = protocol.dlpack_device(like)
        return cuda.stream(self.framework.stream(index), index) if kind in CUDA_TYPES else _NOTHING


_NOTHING: AbstractContextManager[None] = nullcontext()


# ---- the bindings in use -------------------------------------------------------------------------


def binding(name: str) -> Binding:
    """Return the binding of a framework, made on first use: its own, or the direct route.

    Raises:
        FrameworkMissingError: the framework is not installed.
    """
    found = _FOUND.get(name)
    if found is None:
        found = _FOUND.setdefault(name, adapter.load_binding(name) or Direct(name))
    return found


@cache
def _loader(name: str) -> Callable[[], None]:
    """Return the one function that loads a binding, however often it is asked for."""
    return partial(_load_silently, name)


def published(kernel: Kernel) -> None:
    """Tell the bindings in use that a name means `kernel` from now on.

    Programs that were saved find kernels by name, so a framework that is loaded must know of them,
    and one that is imported later as soon as it is.
    """
    for name in _SAVING:
        if name in _FOUND:
            continue
        if registry.is_loaded(name):
            _load_silently(name)
        else:
            registry.after_import(name, _loader(name))
    for each in list(_FOUND.values()):
        each.published(kernel)


# Frameworks whose saved programs hold kernels.
_SAVING = ("jax", "tensorflow", "torch")


def _load_silently(name: str) -> None:
    try:
        binding(name)
    except not_from_handler(Exception):
        pass  # one that cannot serve kernels says so when it is asked


# ---- every call that C declines ------------------------------------------------------------------


_TVM_ALIGNMENT = 64
FUNCTIONAL = ("jax", "tensorflow")  # a written argument is a new value there, or refused


def slow_call(kernel: Kernel, framework: str | None, args: Any, kwargs: Any) -> Any:
    """Call a kernel: the Python path behind every call that C declines.

    Raises:
        UnsupportedTypeError: the tensors are of several frameworks, or not of `framework`, or
            something that must be a tensor is none.
    """
    if kernel.schema is None:
        return _call_positional(kernel, framework, args, kwargs)
    if kernel.numbers is not None:
        return kernel.numbers.call(framework, args, kwargs or {})
    if kernel.lists is not None:
        return kernel.lists.call(framework, args, kwargs)
    if kernel.counted is not None:
        return kernel.counted.call(framework, args, kwargs)
    shortcut = kernel.shortcut
    if shortcut is not None and framework in (None, shortcut.framework):
        result = shortcut.call(kernel, args, kwargs)
        if result is not NotImplemented:
            return result
    arguments = kernel.schema.arrange(tuple(args), dict(kwargs or {}), traced=True)
    name = framework_of(kernel, framework, named_tensors(kernel, arguments))
    if name not in _TRACING and not all(map(is_plain, arguments.scalars)):
        arguments = kernel.schema.arrange(tuple(args), dict(kwargs or {}))
    return binding(name).serve(kernel, arguments)


# Frameworks whose programs have scalars that are no numbers yet.
_TRACING = frozenset(("jax", "tensorflow", "torch"))
_SCALARS = (bool, int, float, str, type(None))


def named_tensors(kernel: Kernel, arguments: Arguments) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a call, each with what the caller calls it."""
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
            f"{kernel.name}: no tensor determines the framework of the results; call "
            f"{kernel.name.rpartition(':')[2]}.numpy(…), .torch(…), …"
        )
    return first[0]


def _hint(value: Any) -> str:
    numbers = (bool, int, float, complex, list, tuple)
    if not isinstance(value, numbers):
        return ""
    return "make it a tensor first, as with numpy.asarray(x)"


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
    if name in FUNCTIONAL:
        return found.positional(kernel)(*args)
    written = {places[index] for index in kernel.written(len(places))}
    function = kernel.functions.get("cpu")
    if function is not None and function.framework is not None:
        return _call_python(kernel.name, function, args, places, name, written)
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


def call_tvm(function: Function, args: Sequence[Any], are_written: Sequence[bool]) -> Any:
    """Call a tvm-ffi function with Tensors, None, scalars and dtypes; return what it returns."""
    dtype = sys.modules["tvm_ffi"].dtype
    given = tuple([dtype(each.name) if isinstance(each, DType) else each for each in args])
    tensors = {at: each for at, each in enumerate(given) if isinstance(each, native.TensorBase)}
    written = {at for at in tensors if are_written[at]}
    return _call_tvm(function, given, tensors, written)


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
    kernel: str,
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
        policies: dict[str, Any] = {"readonly": "copy", "immutable": "respect"}
        if index in written:
            policies = {"copy": False, "immutable": "respect"}
        try:
            given[index] = exchange.convert(args[index], own, **policies)
        except ExchangeError as error:
            raise exchange.refused_as(f"{kernel}: argument {index}", error) from None
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


# ---- texts for what the core refuses: it says which tensor and why, we say what to do ------------


# reason -> what was wanted of a tensor, what it is instead, what to do.
QUALITIES = {
    "alignment": ("aligned", "misaligned", "copy it on its device first"),
    "null_data": ("a tensor with memory:", "NULL for", "it was not computed yet, or freed"),
    "overflow": ("addressable", "a view beyond 64 bits:", "slice it, or expand it less"),
    "overlap": (
        "memory of its own for",
        "memory shared with {other} for",
        "pass a copy, or wrap the kernel with overlap='allow'",
    ),
    "readonly": ("writable", "read-only", "pass a writable copy"),
    "requires_grad": (
        "detached",
        "requires_grad",
        "a call that writes would lose gradients: pass x.detach(), or use no_grad",
    ),
    "strides": ("row-major", "strided", "copy it on its device first"),
}


def explain(
    name: str,
    schema: Schema | None,
    tensors: Any,
    scalars: Any,
    index: int,
    reason: str,
    other: int,
    count: int = 0,
    place: int = 0,
) -> DLBridgeError:
    """Return the exception for a call that the native core refuses, or in which it found a defect.

    Args:
        name: the kernel's.
        schema: its schema, or None.
        tensors: inputs, then results: None, or (shape, dtype triple, source, device pair).
        scalars: integers, None for other scalars.
        index: the tensor in question.
        reason: "mismatch" (dtype or shape), "returned" (the same of what a Python function
            returned), "extent", or a key of `errors.REASONS` or `errors.FINDINGS`.
        other: the index of a second tensor that has to do with it, or -1.
        count: of a finding, how many elements or bytes it is about; of an extent, what it is.
        place: and where the first of them is, see `debugging.describe_finding`; or the bound.
    """
    if reason in ("mismatch", "returned"):
        assert schema is not None
        return explain_mismatch(schema, tensors, scalars, returned=reason == "returned")
    got = _read_described(*tensors[index])
    if reason == "extent":
        assert schema is not None
        return outside(name, schema.part(index).name, count, place)
    if reason in FINDINGS:
        owner = f"{name}: argument {_place(schema, index)!r}"
        if schema is not None and index >= len(schema.tensors):
            owner = f"{name}: result {schema.part(index).name!r}"
        found = debugging.describe_finding(reason, got.shape or (), count, place)
        return KernelDefectError(reason, f"{owner}, {got.text()}: {found}")
    expected = "a tensor" if schema is None else schema.part(index).expected()
    argument = _place(schema, index)
    if reason == "device":
        text = _device_text(name, schema, tensors, argument, expected)
        return ExchangeError(reason, text)
    wanted, found, hint = QUALITIES[reason]
    second = "itself" if other == index else repr(_place(schema, other))
    if schema is not None:
        expected = f"{wanted} {expected}"
    else:
        expected = wanted.removesuffix(" for").rstrip(":") if " " in wanted else f"{wanted} tensor"
    text = refusal(name, argument, expected, f"{found.format(other=second)} {got.text()}", hint)
    return ExchangeError(reason, text)


def _device_text(name: str, schema: Schema | None, tensors: Any, place: str, expected: str) -> str:
    """Tell tensors on several devices from a device that the kernel has no function for."""
    present = [(each, number) for number, each in enumerate(tensors) if each is not None]
    first, number = present[0]
    got = next(_read_described(*each) for each, at in present if _place(schema, at) == place)
    device = _read_described(*first).device
    if got.device == device:
        expected = f"{expected} on a device that the kernel was wrapped for"
        hint = "wrap it with platforms= for this one as well, or move the tensors"
        return refusal(name, place, expected, got.text(), hint)
    expected = f"{expected} on {device} as {_place(schema, number)!r}"
    return refusal(name, place, expected, got.text(), "move the tensors to one device")


def _place(schema: Schema | None, index: int) -> str:
    return str(index) if schema is None else schema.place_name(index)


def explain_mismatch(
    schema: Schema,
    described: Iterable[Any],
    scalars: Sequence[Any] | None = None,
    *,
    returned: bool = False,
) -> DLBridgeError:
    """Return the exception for tensors whose dtypes or shapes the native core refuses.

    Args:
        schema: the kernel's.
        described: inputs, then results if they are at hand: None for one that is left out, else
            (shape, dtype, source, device), the dtype as DType or (code, bits, lanes), the device
            as text or as (type, id).
        scalars: as for `Schema.bind`.
        returned: a Python function returned the results.
    """
    tensors = [None if one is None else _read_described(*one) for one in described]
    count = len(schema.tensors)
    try:
        read = None if scalars is None else schema.read_scalars(scalars)
        bindings = schema.bind(tensors[:count], read)
        schema.results_of(bindings)
        if len(tensors) > count:
            schema.check_out(bindings, tensors[count:], returned=returned)
    except DLBridgeError as error:
        return error
    texts = ", ".join(["None" if one is None else one.text() for one in tensors])
    return KernelError(
        f"{schema.qualified}: the native check refused what {schema} takes: {texts}; "
        "this is a defect of dlbridge, please report it"
    )


def _read_described(shape: Any, dtype: Any, source: Any = "", device: Any = "") -> Described:
    return Described(
        shape if shape is None else tuple(shape),
        dtype if type(dtype) is DType else make_dtype(*dtype),
        source or "",
        device if isinstance(device, str) else str(make_device(*device)),
    )
