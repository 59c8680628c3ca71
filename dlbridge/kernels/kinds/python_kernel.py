"""Python functions as kernels: `fn(x, y, *, alpha=1.0)` over the tensors of one framework.

The function is called from any thread, by C (`_core/abi/python.c`), with tensors of its own
framework over the caller's memory:

- tensors by position, in the order of the schema; None for an optional one that is left out;
- scalars by keyword, a dtype as its framework has it; and the address of the device's stream as
  `stream=`, if it has that parameter;
- results are what it returns: a tensor, or a tuple of them, of any framework. If it has a parameter
  `out`, it gets the tensor, or a tuple of them, to write into.

The tensors are on loan. A function that keeps one, or a view of one, past its return fails with
KernelError. One that writes into an argument that is not declared to be written fails as well where
its framework notices: NumPy arrays and Tensors are read-only, torch counts versions, JAX arrays are
immutable; CuPy notices nothing. A tensor that was kept is given memory of its own if its owner can
be found: torch tensors with all their views, arrays and Tensors themselves (a kept *view* of an
array of NumPy or of a Tensor still points to the caller's memory); JAX arrays are deleted.

Gradients through the function are the caller's: `vjp=` gives them, and results are detached. Only
tensors of the function's own framework bypass all this, see `kernel.is_native_to`.
"""

from __future__ import annotations

import gc
import inspect
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, ClassVar

from dlbridge import cuda
from dlbridge._core import native
from dlbridge.device import CUDA_TYPES
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError
from dlbridge.exchange import adapter, exchange
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.schema import Schema, join_parts
from dlbridge.signals import not_from_handler

# The frameworks whose tensors a Python function may take, and which have a Support of their own.
FRAMEWORKS = {"torch": True, "numpy": False, "jax": True, "cupy": True, "dlbridge": False}

LEGACY = 1  # the legacy default stream, which frameworks call 0


def target(
    function: Callable[..., Any], framework: str, schema: Schema | None
) -> native.PythonFunction:
    """Return what the core calls for a Python function of `framework`.

    Args:
        function: called as the module says.
        framework: whose tensors it takes, one of `FRAMEWORKS`; imported here.
        schema: the kernel's, or None: all tensors by position, writable where the caller's are.

    Raises:
        UnsupportedTypeError: the function's parameters are not those of the schema.
        ArgumentError: the framework is unknown, or its tensors cannot be written as declared.
        FrameworkMissingError: the framework is not installed.
    """
    name = schema.qualified if schema is not None else name_of(function)
    if framework not in FRAMEWORKS:
        raise ArgumentError(
            f"{name}: Python functions take tensors of {', '.join(FRAMEWORKS)}, got {framework!r}"
        )
    adapter.start(adapter.adapter(framework), name)
    support = _support(framework)(name, framework)
    has_out, has_stream = find_special(function, schema, immutable=support.immutable)
    if schema is not None:
        _check_parameters(function, schema, has_out, has_stream, support)
    scalars = [] if schema is None else [parameter.name for parameter in schema.scalars]
    special = (["stream"] if has_stream else []) + (["out"] if has_out else [])
    return native.PythonFunction(
        support.prepare(function),
        _converter(framework),
        framework,
        support,
        ()
        if schema is None
        else tuple([part.name for part in join_parts(schema.tensors, schema.results)]),
        tuple(scalars + special),
        takes_stream=has_stream,
        takes_out=has_out,
        protects=support.protects,
        counts_versions=support.counts_versions,
        only_reads=getattr(function, "only_reads", False),  # set by `dlbridge.bridge`
    )


def name_of(function: object) -> str:
    """Return what a function is called in texts."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else describe(function)


_OWN: list[native.Converter] = []


def _converter(framework: str) -> native.Converter:
    """Return the native converter to `framework`; its own for Tensors, which nobody converts to."""
    if framework != "dlbridge":
        return adapter.converter(framework)
    if not _OWN:
        made = native.Converter("dlbridge", "Tensors for Python kernels.")
        made.activate("tensor", adapter.adapter("dlbridge").limits())
        _OWN.append(made)
    return _OWN[0]


def _support(framework: str) -> type[Support]:
    if not FRAMEWORKS[framework]:
        return Support
    support: type[Support] = adapter.load_module(framework, "binding").SUPPORT
    return support


# ---- parameters --------------------------------------------------------------------------------


def find_special(
    function: Callable[..., Any], schema: Schema | None, *, immutable: bool
) -> tuple[bool, bool]:
    """Return whether the function is to be given `out=` and `stream=`, by its parameters' names.

    A builtin whose parameters cannot be read returns its results.
    """
    signature = read_signature(function)
    if signature is None or schema is None:
        return False, False
    own = {parameter.name for parameter in schema.parameters}
    named = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    } - own
    has_out = "out" in named and bool(schema.results) and not immutable
    return has_out, "stream" in named


def read_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, or None for a builtin that has none."""
    try:  # `inspect` would make an exception of its own of what a handler raises meanwhile
        found: inspect.Signature = native.defer_signals(inspect.signature, function)
    except not_from_handler(TypeError, ValueError):
        return None
    return found


def _check_parameters(
    function: Callable[..., Any], schema: Schema, has_out: bool, has_stream: bool, support: Support
) -> None:
    if support.immutable and schema.mutated:
        names = ", ".join(schema.tensors[index].name for index in schema.mutated)
        raise ArgumentError(
            f"{schema.qualified}: a function of JAX arrays cannot write into {names}; return the "
            "new value as a result instead"
        )
    signature = read_signature(function)
    if signature is None:
        return
    keywords = [parameter.name for parameter in schema.scalars]
    keywords += (["stream"] if has_stream else []) + (["out"] if has_out else [])
    try:
        signature.bind(*[None for _ in schema.tensors], **dict.fromkeys(keywords))
    except not_from_handler(TypeError) as error:
        call = [parameter.name for parameter in schema.tensors] + [f"{name}=…" for name in keywords]
        raise UnsupportedTypeError(
            f"{schema.qualified}: its schema calls the function as {name_of(function)}"
            f"({', '.join(call)}), but it takes {signature}: {error}"
        ) from None


# ---- what calls need of Python now and then ------------------------------------------------------


class Support:
    """The rare steps of calls of one kernel; the core calls the methods by their names.

    This class serves frameworks without rules of their own. Others have a subclass, called
    `SUPPORT` in the module `binding` of their package.

    Attributes:
        protects: the framework keeps read-only memory from being written.
        counts_versions: it counts how often a tensor was written.
        immutable: its values are never written.
    """

    protects: ClassVar[bool] = True
    counts_versions: ClassVar[bool] = False
    immutable: ClassVar[bool] = False

    def __init__(self, name: str, framework: str) -> None:
        self.name = name
        self.framework = framework

    def prepare(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as it is called."""
        return function

    # ---- arguments ----

    def own_dtype(self, dtype: DType) -> Any:
        """Return a dtype as the function's framework has it."""
        return dtype if self.framework == "dlbridge" else dtype.to(self.framework)

    def refused(self, argument: str, error: ExchangeError) -> ExchangeError:
        """Return the exception for a tensor that the function's framework cannot represent."""
        shown = argument if " " in argument else f"argument {argument!r}"
        return exchange.refused_as(f"{self.name}: {shown}", error)

    # ---- results ----

    def take(self, value: Any) -> native.TensorBase:
        """Return a Tensor over what the function returned, of whatever framework."""
        if value is None:
            raise UnsupportedTypeError(
                f"{self.name}: the function returned None instead of its result; one that writes "
                "into its result has a parameter `out`"
            )
        try:
            tensor: native.TensorBase = exchange.convert(value, "dlbridge", grad="detach")
        except UnsupportedTypeError:
            raise UnsupportedTypeError(
                f"{self.name}: the function returned {describe(value)}, which is not a tensor"
            ) from None
        return tensor

    def wrong_count(self, expected: int, got: int) -> Exception:
        """Return the exception for a tuple of the wrong length."""
        plural = "" if expected == 1 else "s"
        return UnsupportedTypeError(
            f"{self.name}: the schema has {expected} result{plural}, the function returned {got}"
        )

    def source(self, value: Any) -> str:
        """Return what error texts call a value: "torch.Tensor"."""
        return describe(value)

    def copy(self, destination: native.TensorBase, value: Any, stream: int) -> None:
        """Copy a result on a device into the caller's memory, on the caller's stream."""
        if destination._device_pair[0] not in CUDA_TYPES:
            raise ExchangeError(
                "device", f"{self.name}: the result is on a device where only `out=` can be written"
            )
        with cuda.stream(stream or LEGACY, destination._device_pair[1]):
            native.copy_into(destination, self.take(value))

    # ---- devices ----

    def enter(self, kind: int, index: int, stream: int) -> ExitStack:
        """Make the caller's device and stream the framework's current ones, until `close()`."""
        with ExitStack() as entered:
            for context in self.contexts(kind, index, stream):
                entered.enter_context(context)
            return entered.pop_all()

    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        """Yield contexts in which the framework works on that device and stream."""
        if kind in CUDA_TYPES:
            yield cuda.stream(stream or LEGACY, index)

    # ---- loans ----

    def settle(self, _: object) -> None:
        """Have the framework release what it only puts off releasing."""

    def collect(self, _: object) -> None:
        """Free what only cycles hold."""
        gc.collect()

    def clear_frames(self, exception: BaseException) -> None:
        """Let go of the variables of the frames in a traceback; its lines stay."""
        seen: set[int] = set()
        waiting: list[BaseException | None] = [exception]
        while waiting:
            error = waiting.pop()
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            waiting += [error.__cause__, error.__context__]

    def save(self, tensor: Any, address: int) -> None:
        """Give what was kept memory of its own, or make it unusable; `tensor` may be None."""
