"""from_dlpack, to_dlpack, as_tensor, convert and explain: the Python path of every exchange.

The C path (`_core/converter.c`) takes plain tensors under default policies. All else comes here:
policies, copies, refusals and receipts. Both go through the same three steps: take (an adapter
makes a Tensor of the object), fit (the consumer's limits are checked, a copy made where allowed),
give (the consumer's adapter makes its array of the Tensor).
"""

from __future__ import annotations

from typing import Any

from dlbridge._core import native
from dlbridge.cuda import pointers
from dlbridge.cuda.streams import NONE
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
)
from dlbridge.exchange import adapter, ordering, protocol, receipts
from dlbridge.exchange.adapter import Framework
from dlbridge.exchange.fitting import fit, kind
from dlbridge.exchange.policy import DEFAULT, Policy
from dlbridge.exchange.receipts import DryRunEnd, ExchangeContext, Receipt
from dlbridge.tensor.tensor import Tensor
from dlbridge.tensor.values import READ_ONLY, is_masked

# ---- in ----------------------------------------------------------------------------------------


def from_dlpack(
    x: Any, /, *, device: object = None, copy: bool | None = None, stream: Any = None
) -> Tensor:
    """Take `x` as a Tensor: the Python path behind `dlbridge.from_dlpack`."""
    policy = Policy("from_dlpack", device=device, copy=copy, stream=stream)
    context = ExchangeContext(source_name(x), "dlbridge")
    tensor = fit(take(x, policy, context), None, policy, context)
    ordering.settle(tensor, policy, context, is_taken=True)
    if tensor is x:
        tensor = x._view(x.shape, x.strides, cls=Tensor)
    _record(context, tensor, tensor)
    assert isinstance(tensor, Tensor)
    return tensor


def as_tensor(
    x: Any, /, *, device: object = None, copy: bool | None = None, stream: Any = None
) -> Tensor:
    """Return `x` as a Tensor, whatever it is.

    Takes, in this order: a Tensor (returned as it is unless copy=True), any object that
    `from_dlpack` takes, a raw DLPack capsule of either kind (consumed), an object with the CUDA
    array interface, the array interface or a buffer, and nested Python numbers (copied).

    Args:
        x: the object.
        device: the Device the result must be on; None for where the data is.
        copy: None shares where possible, False shares or refuses, True copies.
        stream: for CUDA memory, the stream to be made ready for, as in `from_dlpack`.

    Raises:
        UnsupportedTypeError: `x` is nothing of these.
        ExchangeError: the memory cannot be had; `reason` says why.

    Example:
        >>> as_tensor([[1, 2], [3, 4]]).shape
        (2, 2)
    """
    is_default = copy is None and device is None and stream is None
    policy = DEFAULT if is_default else Policy("as_tensor", device=device, copy=copy, stream=stream)
    if isinstance(x, Tensor) and policy.copy is not True and device is policy.stream is None:
        return x
    if isinstance(x, (bool, int, float, complex, list, tuple)):
        if policy.copy is False:
            raise ExchangeError("copy_required", "as_tensor: Python numbers can only be copied")
        if is_masked(x):
            raise ExchangeError("masked", "as_tensor: a mask in these numbers would be lost")
        import numpy

        try:
            x = numpy.asarray(x)
        except ValueError as error:
            raise UnsupportedTypeError(f"as_tensor: {error}") from error
        if x.dtype == object:  # what NumPy before 1.24 makes of rows of different lengths
            raise UnsupportedTypeError("as_tensor: these are not numbers in equal rows")
    return from_dlpack(x, device=policy.device, copy=policy.copy, stream=stream)


def to_dlpack(
    x: Any,
    /,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """Return a DLPack capsule of `x`, any object that `as_tensor` takes.

    The keywords are those of `__dlpack__` in the standard; without `max_version` the capsule is a
    legacy one ("dltensor"). The memory is shared unless copy=True and lives until the consumer
    calls the deleter. `stream`, for CUDA memory, is the one that the consumer works on, by number
    or as an object; None is the legacy default stream, "current" dlbridge's current one, "none"
    none at all.

    Raises:
        ExchangeError: refused, with `reason`.
    """
    policy = Policy("to_dlpack", copy=copy, stream=stream)
    tensor = as_tensor(x)
    wanted = policy.stream
    if isinstance(stream, str):
        wanted = ordering.stream_of_word(tensor, policy)
    return tensor.__dlpack__(
        stream=wanted, max_version=max_version, dl_device=dl_device, copy=policy.copy
    )


# ---- through -----------------------------------------------------------------------------------


def convert(x: Any, to: object, /, **policies: Any) -> Any:
    """Convert `x` for the framework `to`: the Python path behind `dlbridge.convert`."""
    framework = adapter.target(to)
    policy = _policy(f"to_{framework.name}", policies)
    adapter.start(framework)
    context = ExchangeContext(source_name(x), framework.name, stream_of=framework.stream)
    if _is_already(x, framework, policy):
        if policy.stream is not None or receipts.is_recording():
            _record(context, _keep(x, framework, policy, context), x)
        return x
    tensor = fit(take(x, policy, context), framework, policy, context)
    ordering.settle(tensor, policy, context)
    result = _give(tensor, framework, policy, context)
    _record(context, tensor, result)
    return result


def check(call: str, to: object, policies: dict[str, Any]) -> None:
    """Raise what `convert` would raise of its target and its policies, before there is a tensor."""
    framework = adapter.target(to)
    _policy(call, policies)
    adapter.start(framework)


def _policy(call: str, policies: dict[str, Any]) -> Policy:
    try:
        return Policy(call, **policies) if policies else DEFAULT
    except TypeError as error:
        raise ArgumentError(f"{call}: {error}") from None


def _is_already(x: object, framework: Framework, policy: Policy) -> bool:
    if policy.copy is True or policy.device is not None or policy.layout is not None:
        return False
    return type(x) is framework.array_type()


def _keep(
    x: Any, framework: Framework, policy: Policy, context: ExchangeContext
) -> native.TensorBase | None:
    """Note that `x` is returned as it is; return a Tensor over it where one can be had.

    A stream that was named waits for the work on `x` even so.

    Raises:
        ExchangeError: a stream was named, and the memory of `x` cannot be had.
    """
    context.route.append("identity")
    tensor = _look(x, framework, policy.stream)
    if tensor is not None:
        context.data_ptr_in = tensor.data_ptr
        ordering.settle(tensor, policy, context, is_taken=True)
    return tensor


def explain(x: Any, to: object, /, **policies: Any) -> Receipt:
    """Return the receipt that `convert(x, to, **policies)` would give; no data is copied.

    Returns:
        A Receipt: route, shared or copied, by whom and why. Where the producer itself must copy
        first, it ends there: what comes out of that copy is not known beforehand.

    Raises:
        ExchangeError: as `convert` would before it enters the consumer.
        ArgumentError: `x` is a capsule, which can be read only once.

    Example:
        >>> import numpy
        >>> explain(numpy.arange(6.0)[::-1], "torch").why  # torch takes no negative strides
        'strides'
    """
    if protocol.is_capsule(x):
        raise ArgumentError("explain: a capsule is read only once; take it with from_dlpack first")
    framework = adapter.target(to)
    policy = _policy(f"explain(to {framework.name})", policies)
    adapter.start(framework)
    context = ExchangeContext(
        source_name(x), framework.name, dry_run=True, stream_of=framework.stream
    )
    tensor: native.TensorBase | None = None
    if _is_already(x, framework, policy):
        tensor = _keep(x, framework, policy, context)
        return Receipt(context, tensor)
    try:
        tensor = fit(take(x, policy, context), framework, policy, context)
        ordering.settle(tensor, policy, context)
    except DryRunEnd:
        pass
    _enter(framework, tensor, context)
    return Receipt(context, tensor)


def source_name(x: object) -> str:
    """Return the name of the framework of `x`, or of its type where no adapter knows it."""
    if isinstance(x, Tensor):
        return "dlbridge"
    found = adapter.adapter_of_type(type(x))
    return found.name if found is not None else protocol.describe(x)


# ---- the steps ---------------------------------------------------------------------------------


def take(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    """Return a Tensor over `x`, whatever speaks a protocol, as the policy allows."""
    if isinstance(x, Tensor):
        context.route.append("Tensor")
        tensor: native.TensorBase = x
    else:
        found = adapter.adapter_of_type(type(x))
        if found is None:
            tensor = protocol.take(x, policy, context)
        else:
            tensor = found.take(x, policy, context)
            if found.immutable and policy.immutable == "respect":
                tensor = tensor._view(tensor.shape, tensor.strides, set_flags=READ_ONLY)
        if tensor._device_pair[0] in pointers.CHECKED:
            pointers.check_device(tensor, protocol.describe(x), policy.call)
    if context.copied_by is None:  # else the producer's own address is not known
        context.data_ptr_in = tensor.data_ptr
    return tensor


def _enter(
    framework: Framework, tensor: native.TensorBase | None, context: ExchangeContext
) -> None:
    entry = framework.entry(tensor)
    if entry:
        context.route.append(entry)


def _give(
    tensor: native.TensorBase, framework: Framework, policy: Policy, context: ExchangeContext
) -> Any:
    """Enter the consumer; its own exceptions become refusals, with the original as the cause."""
    _enter(framework, tensor, context)
    try:
        return framework.give(tensor, policy, context)
    except DLBridgeError:
        raise
    except Exception as error:
        raise ExchangeError(
            "consumer", f"to_{framework.name}: {framework.name} refused {kind(tensor)}: {error}"
        ) from error


def _record(context: ExchangeContext, tensor: native.TensorBase | None, result: Any) -> None:
    """Write the receipt; the address is read from the result, not assumed."""
    if not receipts.is_recording():
        return
    receipt = Receipt(context, tensor)
    seen = _look(result, adapter.adapter_of_type(type(result)))
    if seen is not None:
        receipt.data_ptr_out = seen.data_ptr
        if receipt.shared and receipt.data_ptr_out != context.data_ptr_in and receipt.nbytes:
            receipt.shared, receipt.copied_by, receipt.why = False, context.target, "consumer"
    receipts.record(receipt)


_LOOK: dict[str, Any] = {"copy": False, "readonly": "share", "grad": "detach"}


def _look(
    x: Any, framework: Framework | None, stream: int | None = None
) -> native.TensorBase | None:
    """Return a Tensor over a framework's own array, or None where it has no memory to share.

    Raises:
        ExchangeError: a stream was named, and the memory cannot be had.
    """
    try:
        look = Policy("receipts", stream=stream, **_LOOK)
        return framework.take(x, look, ExchangeContext("", "")) if framework is not None else None
    except DLBridgeError:
        if stream not in (None, NONE):
            raise
        return None


def connect() -> None:
    """Register the Python path with the core."""
    native.set_hooks(
        slow_from_dlpack=from_dlpack,
        slow_convert=convert,
        classify=adapter.classify,
    )
