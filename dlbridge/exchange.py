"""from_dlpack, to_dlpack, as_tensor, convert and explain: the Python path of every exchange.

The C path (`_core/converter.c`) takes plain tensors under default policies. All else comes here:
policies, copies, refusals and receipts. Both go through the same three steps: take (an adapter
makes a Tensor of the object), fit (the consumer's limits are checked, a copy made where allowed),
give (the consumer's adapter makes its array of the Tensor).
"""

from __future__ import annotations

from typing import Any, NoReturn

from dlbridge import adapter, protocol, receipts
from dlbridge._core import native
from dlbridge.adapter import Framework
from dlbridge.errors import (
    REASONS,
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
)
from dlbridge.memory import empty
from dlbridge.policy import DEFAULT, Policy
from dlbridge.receipts import Passage, Receipt, Stop
from dlbridge.tensor import Tensor

_READ_ONLY = 1
_PADDED = 4

_ADVICE: dict[str, str] = {
    "alignment": "allow a copy with copy=None",
    "device": "copy it to a device that the consumer serves first",
    "dtype": "cast it to a dtype that both have",
    "lanes": "view it with a scalar dtype and one more dimension",
    "ndim": "reshape it to fewer dimensions",
    "readonly": 'pass readonly="copy" for a copy, or readonly="share" to hand it out all the same',
    "strides": "allow a copy with copy=None",
}
_COPY_HELPS = ("alignment", "strides")


# ---- in ----------------------------------------------------------------------------------------


def from_dlpack(
    x: Any, /, *, device: object = None, copy: bool | None = None, stream: int | None = None
) -> Tensor:
    """Take `x` as a Tensor: the Python path behind `dlbridge.from_dlpack`."""
    policy = Policy("from_dlpack", device=device, copy=copy, stream=stream)
    passage = Passage(source_name(x), "dlbridge")
    tensor = _fit(_take(x, policy, passage), None, policy, passage)
    if tensor is x:
        tensor = x._view(x.shape, x.strides)
    _record(passage, tensor, tensor.data_ptr)
    assert isinstance(tensor, Tensor)
    return tensor


def as_tensor(x: Any, /, *, device: object = None, copy: bool | None = None) -> Tensor:
    """Return `x` as a Tensor, whatever it is.

    Takes, in this order: a Tensor (returned as it is unless copy=True), any object that
    `from_dlpack` takes, a raw DLPack capsule of either kind (consumed), an object with the CUDA
    array interface, the array interface or a buffer, and nested Python numbers (copied).

    Args:
        x: the object.
        device: the Device the result must be on; None for where the data is.
        copy: None shares where possible, False shares or refuses, True copies.

    Raises:
        UnsupportedTypeError: `x` is nothing of these.
        ExchangeError: the memory cannot be had; `reason` says why.

    Example:
        >>> as_tensor([[1, 2], [3, 4]]).shape
        (2, 2)
    """
    if isinstance(x, Tensor) and copy is not True and device is None:
        return x
    if isinstance(x, (bool, int, float, complex, list, tuple)):
        if copy is False:
            raise ExchangeError("copy_required", "as_tensor: Python numbers can only be copied")
        import numpy

        try:
            x = numpy.asarray(x)
        except ValueError as error:
            raise UnsupportedTypeError(f"as_tensor: {error}") from error
    return from_dlpack(x, device=device, copy=copy)


def to_dlpack(
    x: Any,
    /,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """Return a DLPack capsule of `x`, any object that `as_tensor` takes.

    The keywords are those of `__dlpack__` in the standard; without `max_version` the capsule is a
    legacy one ("dltensor"). The memory is shared unless copy=True and lives until the consumer
    calls the deleter.

    Raises:
        ExchangeError: refused, with `reason`.
    """
    return as_tensor(x).__dlpack__(
        stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
    )


# ---- through -----------------------------------------------------------------------------------


def convert(x: Any, to: object, /, **policies: Any) -> Any:
    """Convert `x` for the framework `to`: the Python path behind `dlbridge.convert`."""
    framework = adapter.target(to)
    call = f"to_{framework.name}"
    try:
        policy = Policy(call, **policies) if policies else DEFAULT
    except TypeError as error:
        raise ArgumentError(f"{call}: {error}") from None
    adapter.start(framework)
    passage = Passage(source_name(x), framework.name)
    if policy.copy is not True and _is_at_home(x, framework, policy):
        passage.route.append("identity")
        _record(passage, x, None)
        return x
    tensor = _fit(_take(x, policy, passage), framework, policy, passage)
    result = _give(tensor, framework, policy, passage)
    _record(passage, tensor, result)
    return result


def _is_at_home(x: object, framework: Framework, policy: Policy) -> bool:
    own = framework.array_type()
    return own is not None and type(x) is own and policy.device is None and policy.layout is None


def explain(x: Any, to: object, /, **policies: Any) -> Receipt:
    """Say beforehand what `convert(x, to, **policies)` would do; no data is copied.

    Returns:
        A Receipt: route, shared or copied, by whom and why. Where the producer itself must copy
        first, it ends there: what comes out of that copy is not known beforehand.

    Raises:
        What `convert` would raise before it enters the consumer. A capsule is refused, since it
        can be read only once.

    Example:
        >>> import numpy
        >>> explain(numpy.arange(6.0)[::-1], "torch").why  # torch takes no negative strides
        'strides'
    """
    if type(x).__name__ == "PyCapsule":
        raise ArgumentError("explain: a capsule is read only once; take it with from_dlpack first")
    framework = adapter.target(to)
    policy = Policy(f"explain(to {framework.name})", **policies) if policies else DEFAULT
    adapter.start(framework)
    passage = Passage(source_name(x), framework.name, rehearsal=True)
    tensor: native.TensorBase | None = None
    if policy.copy is not True and _is_at_home(x, framework, policy):
        passage.route.append("identity")
        return Receipt(passage, None)
    try:
        tensor = _take(x, policy, passage)
        tensor = _fit(tensor, framework, policy, passage)
    except Stop:
        pass
    passage.route.append(framework.name)
    return Receipt(passage, tensor)


def source_name(x: object) -> str:
    """Return the name of the framework of `x`, or of its type where no adapter knows it."""
    if isinstance(x, Tensor):
        return "dlbridge"
    found = adapter.adapter_of_type(type(x))
    return found.name if found is not None else protocol.describe(x)


# ---- the steps ---------------------------------------------------------------------------------


def _take(x: Any, policy: Policy, passage: Passage) -> native.TensorBase:
    if isinstance(x, Tensor):
        passage.route.append("Tensor")
        tensor: native.TensorBase = x
    else:
        found = adapter.adapter_of_type(type(x))
        if found is None:
            tensor = protocol.take(x, policy, passage)
        else:
            tensor = found.take(x, policy, passage)
            if found.immutable and policy.immutable == "respect":
                tensor = tensor._view(tensor.shape, tensor.strides, set_flags=_READ_ONLY)
    if passage.data_ptr_in is None:
        passage.data_ptr_in = tensor.data_ptr
    return tensor


def _fit(
    tensor: native.TensorBase, framework: Framework | None, policy: Policy, passage: Passage
) -> native.TensorBase:
    """Return `tensor`, or a copy of it, as the consumer and the policy need it, or refuse."""
    name = framework.name if framework is not None else "dlbridge"
    import_copies = framework.import_copies(tensor) if framework is not None else None
    if policy.device is not None and import_copies != "device":
        _check_device(tensor, policy, name)
    if policy.copy is True and passage.copied_by is None and import_copies is None:
        tensor = _copy(tensor, "requested", policy, passage, name)
    if policy.layout == "contiguous" and not tensor.is_contiguous:
        tensor = _copy(tensor, "strides", policy, passage, name)
    if framework is None:
        return tensor
    tensor = _fit_limits(tensor, framework, policy, passage)
    if import_copies is not None:
        if policy.copy is False:
            refuse(import_copies, tensor, name, copy_forbidden=True)
        passage.copying(name, import_copies, lambda: None, lambda: None)
    return tensor


def _fit_limits(
    tensor: native.TensorBase, framework: Framework, policy: Policy, passage: Passage
) -> native.TensorBase:
    name = framework.name
    reason = framework.refusal(tensor)
    if reason == "dtype" and _is_sub_byte(tensor):
        tensor = _repack(tensor, policy, passage, name)
        reason = framework.refusal(tensor)
    if reason == "readonly":
        tensor = _open_readonly(tensor, policy, passage, name)
        reason = framework.refusal(tensor)
    if reason in _COPY_HELPS:
        if tensor.size:
            tensor = _copy(tensor, reason, policy, passage, name)
        else:  # without elements there is nothing to copy: fresh memory fits any consumer
            tensor = _fresh(tensor, tensor.flags & _PADDED)
        reason = framework.refusal(tensor)
    if reason is not None:
        refuse(reason, tensor, name)
    return tensor


def _give(tensor: native.TensorBase, framework: Framework, policy: Policy, passage: Passage) -> Any:
    """Enter the consumer; its own exceptions become refusals, with the original as the cause."""
    try:
        return framework.give(tensor, policy, passage)
    except DLBridgeError:
        raise
    except Exception as error:
        raise ExchangeError(
            "consumer", f"to_{framework.name}: {framework.name} refused {_kind(tensor)}: {error}"
        ) from error


def _check_device(tensor: native.TensorBase, policy: Policy, name: str) -> None:
    wanted = policy.device
    assert wanted is not None
    if wanted == tensor.device or (wanted.is_host_accessible and tensor.device.is_host_accessible):
        return
    raise ExchangeError(
        "device", f"to_{name}: device {wanted} asked for, the memory is on {tensor.device}"
    )


def _copy(
    tensor: native.TensorBase, why: str, policy: Policy, passage: Passage, name: str
) -> native.TensorBase:
    if policy.copy is False:
        refuse(why, tensor, name, copy_forbidden=True)
    if not tensor.device.is_host_accessible:
        refuse("device", tensor, name)
    return _copied(tensor, why, tensor.flags & _PADDED, passage)


def _repack(
    tensor: native.TensorBase, policy: Policy, passage: Passage, name: str
) -> native.TensorBase:
    """Copy sub-byte elements from packed to padded, or the other way round."""
    if policy.copy is False:
        refuse("dtype", tensor, name, copy_forbidden=True)
    return _copied(tensor, "dtype", ~tensor.flags & _PADDED, passage)


def _copied(
    tensor: native.TensorBase, why: str, padded: int, passage: Passage
) -> native.TensorBase:
    def copy() -> native.TensorBase:
        fresh = _fresh(tensor, padded)
        native.copy_into(fresh, tensor)
        return fresh

    return passage.copying("dlbridge", why, copy, lambda: _fresh(tensor, padded))


def _fresh(tensor: native.TensorBase, padded: int) -> native.TensorBase:
    """Return new memory for the elements of `tensor`, not filled."""
    if not padded:
        return empty(tensor.shape, tensor.dtype)
    raw = empty(tensor.shape, "uint8")
    return raw._view(raw.shape, raw.strides, dtype=tensor._dtype_triple, set_flags=_PADDED)


def _open_readonly(
    tensor: native.TensorBase, policy: Policy, passage: Passage, name: str
) -> native.TensorBase:
    if policy.readonly == "respect":
        refuse("readonly", tensor, name)
    if policy.readonly == "copy":
        return _copy(tensor, "readonly", policy, passage, name)
    return tensor._view(tensor.shape, tensor.strides, clear_flags=_READ_ONLY)


def _is_sub_byte(tensor: native.TensorBase) -> bool:
    code, bits, _ = tensor._dtype_triple
    return bits < 8 and code != 6


def _kind(tensor: native.TensorBase) -> str:
    shape = ", ".join(map(str, tensor.shape))
    mark = "read-only " if tensor.readonly else ""
    return f"{mark}{tensor.dtype}[{shape}] on {tensor.device}"


def refuse(
    reason: str, tensor: native.TensorBase, name: str, *, copy_forbidden: bool = False
) -> NoReturn:
    """Raise the ExchangeError that says why `tensor` cannot go to `name` and what to do."""
    if reason == "requested":
        raise ArgumentError(f"to_{name}: copy=False forbids the copy that copy=True asks for")
    text = f"to_{name}: {REASONS[reason]}: got {_kind(tensor)}, strides {tensor.strides}"
    if copy_forbidden:
        text += "; copy=False forbids the copy that would help: pass copy=None"
    elif reason in _ADVICE:
        text += f"; {_ADVICE[reason]}"
    raise ExchangeError(reason, text)


def _record(passage: Passage, tensor: Any, result: Any) -> None:
    """Write the receipt; the address is read from the result, not assumed."""
    if not receipts.is_recording():
        return
    framework = adapter.adapter_of_type(type(result)) if result is not None else None
    seen: native.TensorBase | None = tensor if isinstance(tensor, Tensor) else None
    receipt = Receipt(passage, seen)
    receipt.data_ptr_out = seen.data_ptr if seen is not None else None
    if framework is not None:
        policy = Policy("receipts", readonly="share", grad="detach")
        receipt.data_ptr_out = framework.take(result, policy, Passage("", "")).data_ptr
        if receipt.shared and receipt.data_ptr_out != passage.data_ptr_in and receipt.nbytes:
            receipt.shared, receipt.copied_by, receipt.why = False, framework.name, "consumer"
    receipts.record(receipt)


def connect() -> None:
    """Tell the core where the Python path is."""
    native.set_hooks(
        slow_from_dlpack=from_dlpack,
        slow_convert=convert,
        classify=adapter.classify,
    )
