"""Bindings: how kernels are called with the tensors of one framework.

A binding makes the function that `kernel.<framework>` is, and serves the calls that the C path
declines. The base class is the direct route, enough for every framework with plain memory:
arguments become Tensors, results are new memory, the kernel runs on them, the results are given to
the framework. Frameworks that trace or differentiate override `call`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from dlbridge import cuda
from dlbridge._core import native
from dlbridge.device import CUDA_TYPES, Device
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.exchange import adapter, exchange, protocol
from dlbridge.exchange.fitting import refuse
from dlbridge.exchange.policy import Policy
from dlbridge.exchange.receipts import ExchangeContext
from dlbridge.kernels.schema import Arguments, Described, refusal, type_name
from dlbridge.tensor import memory

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel

_FOUND: dict[str, Binding] = {}

_READ = Policy("kernel")
_WRITE = Policy("kernel", copy=False)


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
            like = next((each for each in arguments.tensors if each is not None), None)
            results = self._new_results(kernel, tensors, arguments.scalars, like)
        kernel.run([*tensors, *results], arguments.scalars, source)
        for index in written:
            self.wrote(arguments.tensors[index])
        if arguments.out is None:
            return _unpack([self.give(result, like) for result in results])
        for value in arguments.out:
            self.wrote(value)
        return _unpack(arguments.out)

    def _new_results(
        self,
        kernel: Kernel,
        tensors: list[native.TensorBase | None],
        scalars: list[Any],
        like: Any,
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
        return [self.new(tuple(shape), dtype, device, like) for shape, dtype in results]

    def serve(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call a kernel on the stream that the framework works on now."""
        with self.working(next((each for each in arguments.tensors if each is not None), None)):
            return self.call(kernel, arguments)

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
            return self.take(value, written)
        except ExchangeError as error:
            text = str(error).removeprefix("from_dlpack: ")
            raise ExchangeError(
                error.reason, f"{kernel.name}: argument {name!r}: {text}"
            ) from error.__cause__

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
        reason = adapter.adapter(self.name).refusal(made)
        if reason is not None:
            refuse(reason, made, self.name)
        return made

    def give(self, tensor: native.TensorBase, like: Any) -> Any:
        """Return a result as this framework's array; `like` is the first argument, or None."""
        return exchange.convert(tensor, self.name)

    def working(self, like: Any) -> AbstractContextManager[Any]:
        """Return a block in which dlbridge works on the stream that `like` is used on."""
        return nullcontext()

    def wrote(self, value: Any) -> None:
        """Note that a kernel wrote into `value`."""


def _builtin_text(kernel: Kernel) -> str:
    """Return the documentation of a builtin function, whose signature stands before it."""
    parameters = [
        each.replace(annotation=each.empty) for each in kernel.__signature__.parameters.values()
    ]
    signature = kernel.__signature__.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
    return f"{kernel.__name__}{signature}\n--\n\n{kernel.__doc__ or ''}"


def _source(values: Iterable[Any]) -> str:
    return next((type_name(value) for value in values if value is not None), "")


def _unpack(results: list[Any]) -> Any:
    """Return no result as None, one bare, several as a tuple."""
    return tuple(results) if len(results) > 1 else (results[0] if results else None)


# ---- frameworks that need nothing but the direct route -------------------------------------------

Allocate = Callable[[tuple[int, ...], DType, Any], Any]


class Direct(Binding):
    """A framework on the direct route; results on a device are allocated by `allocate`."""

    def __init__(
        self, name: str, allocate: Allocate | None = None, *, is_immutable: bool = False
    ) -> None:
        self.name = name
        self.is_immutable = is_immutable
        self._allocate = allocate

    def new(
        self, shape: tuple[int, ...], dtype: DType, device: Device | None, like: Any
    ) -> native.TensorBase:
        if device is None or device.is_host_accessible or self._allocate is None:
            return super().new(shape, dtype, device, like)
        return self.take(self._allocate(shape, dtype, like), True)


class Streaming(Direct):
    """cupy.ndarray and tvm_ffi.Tensor: kernels run on their current stream, as their own work."""

    def working(self, like: Any) -> AbstractContextManager[Any]:
        """Return a block on the framework's current stream of the device of `like`."""
        kind, index = (0, 0) if like is None else protocol.dlpack_device(like)
        if kind not in CUDA_TYPES:
            return nullcontext()
        return cuda.stream(adapter.adapter(self.name).stream(index), index)


# ---- the bindings in use -------------------------------------------------------------------------


def binding(name: str) -> Binding:
    """Return the binding of a framework; its module is imported on first use.

    Raises:
        FrameworkMissingError: the framework is not installed.
    """
    found = _FOUND.get(name)
    if found is None:
        found = adapter.load_binding(name)
        _FOUND[name] = found
    return found


def published(kernel: Kernel) -> None:
    """Tell the bindings in use that a name means `kernel` from now on.

    Programs that were saved find kernels by name, so a framework that is loaded must know of them.
    """
    for name in _SAVING:
        if name not in _FOUND and _is_loaded(name):
            with suppress(Exception):  # one that cannot serve kernels says so when it is asked
                binding(name)
    for each in list(_FOUND.values()):
        each.published(kernel)


# Frameworks whose saved programs hold kernels.
_SAVING = ("jax", "tensorflow", "torch")


def _is_loaded(framework: str) -> bool:
    """Return whether it is imported, all of it."""
    spec = getattr(sys.modules.get(framework), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)
