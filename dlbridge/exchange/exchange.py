"""from_dlpack, to_dlpack, as_tensor, convert and explain: the Python path of every exchange.

The C path (`_core/exchange/converter.c`) takes plain tensors under default policies. All else comes
here: policies, copies, refusals and receipts. Both go through the same three steps: take (an
adapter makes a Tensor of the object), fit (the consumer's limits are checked, a copy made where
allowed), give (the consumer's adapter makes its array of the Tensor).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, NoReturn, Unpack

import numpy as np

from dlbridge._core import native
from dlbridge.calls import advised, public
from dlbridge.cuda.driver import NONE
from dlbridge.cuda.memory import CHECKED, check_device
from dlbridge.device import CUDA_TYPES, Device
from dlbridge.dtype import CODES, DType
from dlbridge.errors import (
    REASONS,
    AllocationError,
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
    name_call,
)
from dlbridge.exchange import adapter, ordering, protocol
from dlbridge.exchange.adapter import Framework
from dlbridge.exchange.context import (
    POLICIES,
    DryRunEnd,
    ExchangeContext,
    Policies,
    Policy,
    Receipt,
    fields_of,
    is_recording,
    make_receipt,
    record,
)
from dlbridge.signals import not_from_handler
from dlbridge.tensor.memory import empty
from dlbridge.tensor.tensor import Tensor
from dlbridge.tensor.values import (
    IMMUTABLE,
    PADDED,
    READ_ONLY,
    as_array,
    assign,
    check_kept,
    is_masked,
    is_on_cuda,
    on_host,
)
from dlbridge.text import did_you_mean

# ---- in ----------------------------------------------------------------------------------------


@cache
def _plain(call: str) -> Policy:
    """Return the default policies, of a call."""
    return Policy(call)


_PLAIN = _plain("from_dlpack")


def from_dlpack(
    x: Any, /, *, device: object = None, copy: bool | None = None, stream: Any = None
) -> Tensor:
    """Take `x` as a Tensor: the Python path behind `dlbridge.from_dlpack`."""
    is_default = copy is None and device is None and stream is None
    return _import(
        x,
        _PLAIN if is_default else Policy("from_dlpack", device=device, copy=copy, stream=stream),
    )


def _import(x: Any, policy: Policy) -> Tensor:
    context = ExchangeContext(source_name(x), "dlbridge")
    tensor = fit(take(x, policy, context), None, policy, context)
    ordering.settle(tensor, policy, context, is_taken=True)
    if tensor is x:
        tensor = x._view(x.shape, x.strides, cls=Tensor)
    _record(context, tensor, tensor)
    assert isinstance(tensor, Tensor)
    return tensor


@advised
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
    policy = (
        _plain("as_tensor")
        if is_default
        else Policy("as_tensor", device=device, copy=copy, stream=stream)
    )
    return _as_tensor(x, policy)


def _as_tensor(x: Any, policy: Policy) -> Tensor:
    moves = policy.copy is True or policy.device is not None or policy.stream is not None
    if isinstance(x, Tensor) and not moves:
        return x
    if isinstance(x, (bool, int, float, complex, list, tuple)):
        if policy.copy is False:
            raise ExchangeError(
                "copy_required",
                f"{policy.call}: Python's numbers have no memory to share, got "
                f"{type(x).__name__}; copy=False forbids the copy that would help: pass copy=None",
            )
        if is_masked(x):
            raise ExchangeError("masked", f"{policy.call}: a mask in these numbers would be lost")
        import numpy

        try:
            x = numpy.asarray(x)
        except not_from_handler(ValueError) as error:
            raise UnsupportedTypeError(f"{policy.call}: {error}") from error
        if x.dtype == object:  # what NumPy before 1.24 makes of rows of different lengths
            raise UnsupportedTypeError(f"{policy.call}: these are not numbers in equal rows")
    return _import(x, policy)


@public
def asarray(
    x: Any, /, dtype: object = None, *, device: object = None, copy: bool | None = None
) -> Tensor:
    """Return `x` as a Tensor of a dtype: `as_tensor` under the array API's name.

    Args:
        x: whatever `as_tensor` takes.
        dtype: of the result, by a checked copy where it is another one, as of `convert`; None for
            that of `x`. Python's numbers are int64, float64, complex128 and bool.
        device: as of `as_tensor`.
        copy: as of `as_tensor`.

    Raises:
        ExchangeError: as of `as_tensor`; or with reason "dtype", a value does not fit the dtype.

    Example:
        >>> asarray([1, 2.5], "float32").dtype
        DType('float32')
    """
    if dtype is None:
        return _as_tensor(x, Policy("asarray", device=device, copy=copy))
    policy = Policy("asarray", copy=copy, dtype=dtype)
    source = _as_tensor(x, Policy("asarray", device=device, copy=None if copy else copy))
    context = ExchangeContext("dlbridge", "dlbridge")
    made = _cast(source, policy, context)
    if made is source:
        return _as_tensor(source, Policy("asarray", copy=copy))
    assert isinstance(made, Tensor)
    return made


@advised
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
    sharing = Policy("to_dlpack", copy=False) if policy.copy is False else _plain("to_dlpack")
    tensor = _as_tensor(x, sharing)
    wanted = policy.stream
    if isinstance(stream, str):
        wanted = ordering.stream_of_word(tensor, policy)
    try:
        return tensor.__dlpack__(
            stream=wanted, max_version=max_version, dl_device=dl_device, copy=policy.copy
        )
    except (ExchangeError, UnsupportedTypeError) as error:
        name_call(error, "to_dlpack")
        raise


# ---- through -----------------------------------------------------------------------------------


def convert(x: Any, /, to: object, **policies: Any) -> Any:
    """Convert `x` for the framework `to`: the Python path behind `dlbridge.convert`."""
    framework = adapter.target(to)
    policy = _policy(f"to_{framework.name}", policies)
    adapter.start(framework)
    context = ExchangeContext(source_name(x), framework.name, stream_of=framework.stream)
    if _is_already(x, framework, policy):
        if policy.stream is not None or is_recording():
            _record(context, _keep(x, framework, policy, context), x)
        return x
    if policy.device is None and type(x) is framework.array_type():
        policy = policy.staying_on(framework.place_of(x))
    tensor = fit(take(x, policy, context), framework, policy, context)
    ordering.settle(tensor, policy, context)
    result = _give(tensor, framework, policy, context)
    _record(context, tensor, result)
    return result


def check(call: str, to: object, policies: Mapping[str, Any]) -> Framework:
    """Return the target; raise what `convert` would raise of it and of the policies."""
    framework = adapter.target(to, call)
    _policy(call, policies)
    adapter.start(framework, call)
    return framework


# Keywords of calls besides the policies, which may have been meant.
_FURTHER = {"convert_tree": ("unknown",), "stream": ("prefetch", "fresh", "unknown")}


# What keywords of other libraries are called here.
_MEANT = {
    "detach": '; did you mean grad="detach"?',
    "requires_grad": "; call requires_grad_() of the result",
    "order": '; did you mean layout="contiguous"?',
    "writable": '; did you mean readonly="copy"?',
    "writeable": '; did you mean readonly="copy"?',
    "zero_copy": "; did you mean copy=False?",
}


def _policy(call: str, policies: Mapping[str, Any]) -> Policy:
    for name in policies:
        if name not in POLICIES:
            known = ", ".join(POLICIES)
            nearest = did_you_mean(name, (*POLICIES, *_FURTHER.get(call, ())))
            nearest = _MEANT.get(name, nearest)
            raise ArgumentError(f"{call}: unknown policy {name!r}; known are {known}{nearest}")
    try:
        return Policy(call, **policies) if policies else _plain(call)
    except DLBridgeError:
        raise
    except not_from_handler(TypeError) as error:
        raise ArgumentError(f"{call}: {error}") from None


def _is_already(x: object, framework: Framework, policy: Policy) -> bool:
    asked = policy.device, policy.layout, policy.dtype
    if policy.copy is True or any(each is not None for each in asked):
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


@public
def explain(x: Any, /, to: object, **policies: Unpack[Policies]) -> Receipt:
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
    framework = adapter.target(to, "explain")
    policy = _policy(f"explain(to {framework.name})", policies)
    adapter.start(framework, f"explain(to {framework.name})")
    context = ExchangeContext(
        source_name(x), framework.name, dry_run=True, stream_of=framework.stream
    )
    tensor: native.TensorBase | None = None
    if _is_already(x, framework, policy):
        tensor = _keep(x, framework, policy, context)
        return make_receipt(context, tensor)
    try:
        tensor = fit(take(x, policy, context), framework, policy, context)
        ordering.settle(tensor, policy, context)
    except DryRunEnd:
        pass
    _enter(framework, tensor, context)
    return make_receipt(context, tensor)


def source_name(x: object) -> str:
    """Return the name of the framework of `x`, or of its type where no adapter knows it."""
    return _source_of_type(type(x))


def _source_of_type(cls: type) -> str:
    if issubclass(cls, Tensor):
        return "dlbridge"
    found = adapter.adapter_of_type(cls) or adapter.holder_of_type(cls)
    return found.name if found is not None else protocol.describe_type(cls)


# ---- the steps ---------------------------------------------------------------------------------


def take(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    """Return a Tensor over `x`, whatever speaks a protocol, as the policy allows.

    Refusals name the call of the policy.
    """
    try:
        return _take(x, policy, context)
    except (ExchangeError, UnsupportedTypeError) as error:
        if policy.call != "kernel":  # which names the argument
            name_call(error, policy.call)
        raise


def _take(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    if isinstance(x, Tensor):
        context.route.append("Tensor")
        tensor: native.TensorBase = x
    else:
        found = adapter.adapter_of_type(type(x))
        holder = None if found is not None else adapter.holder_of_type(type(x))
        if holder is not None:
            return _take(holder.held(x, policy, context), policy, context)
        if found is None:
            tensor = protocol.take(x, policy, context)
        else:
            tensor = found.take(x, policy, context)
            if found.immutable and context.copied_by is None:
                tensor = _flagged(tensor, READ_ONLY | IMMUTABLE)
        if tensor._device_pair[0] in CHECKED:
            check_device(tensor, protocol.describe(x), policy.call)
    if context.copied_by is None:  # else the producer's own address is not known
        context.data_ptr_in = tensor.data_ptr
    return tensor


def _flagged(tensor: native.TensorBase, flags: int) -> native.TensorBase:
    """Return a view that is read-only as the flags say, or writable where they are 0."""
    cleared = 0 if flags else READ_ONLY
    return tensor._view(tensor.shape, tensor.strides, set_flags=flags, clear_flags=cleared)


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
    except not_from_handler(MemoryError) as error:
        raise AllocationError(
            f"{policy.call}: {framework.name} has no memory for {kind(tensor)}: {error}"
        ) from error
    except not_from_handler(Exception) as error:
        raise ExchangeError(
            "consumer", f"{policy.call}: {framework.name} refused {kind(tensor)}: {error}"
        ) from error


def _record(context: ExchangeContext, tensor: native.TensorBase | None, result: Any) -> None:
    """Write the receipt; the address is read from the result, not assumed."""
    if not is_recording():
        return
    record(make_receipt(context, tensor, _address(result)))


def _address(result: Any) -> int | None:
    """Return where the memory of a framework's own array is, or None where it has none to share."""
    seen = _look(result, adapter.adapter_of_type(type(result)))
    return None if seen is None else seen.data_ptr


def _receipt_fields(description: tuple[Any, ...]) -> tuple[object, ...]:
    """Return the fields of a receipt that C wrote: see `_core/exchange/receipt.c`.

    The source is a name, or a type that an adapter or the buffer protocol knows; the memory is
    that of the CPU.
    """
    source, taken, target, is_identity, why, data_ptr_in, data_ptr_out, shape, dtype = description
    name = source if isinstance(source, str) else _source_of_type(source)
    context = ExchangeContext(name, target)
    context.data_ptr_in = data_ptr_in
    if why is not None:
        context.copied_by, context.why = "dlbridge", why
    if is_identity:
        context.route.append("identity")
    else:
        found = None if isinstance(source, str) else adapter.adapter_of_type(source)
        context.route.append(taken or (found.taken_by if found is not None else "buffer protocol"))
        _enter(adapter.adapter(target), None, context)
    nbytes = dtype.packed_bytes(prod(shape))
    return fields_of(context, (nbytes, shape, dtype, Device("cpu")), data_ptr_out)


_LOOK_POLICIES: dict[str, Any] = {"copy": False, "readonly": "share", "grad": "detach"}
_LOOK = Policy("receipts", **_LOOK_POLICIES)


def _look(
    x: Any, framework: Framework | None, stream: int | None = None
) -> native.TensorBase | None:
    """Return a Tensor over a framework's own array, or None where it has no memory to share.

    Raises:
        ExchangeError: a stream was named, and the memory cannot be had.
    """
    if framework is None:
        return None
    if stream is None and (seen := native.look(x)) is not None:
        return seen
    try:
        look = _LOOK if stream is None else Policy("receipts", stream=stream, **_LOOK_POLICIES)
        return framework.take(x, look, ExchangeContext("", ""))
    except DLBridgeError:
        if stream not in (None, NONE):
            raise
        return None


# ---- fit: what the consumer can represent, by a copy where that is allowed ----------------------

_ADVICE: dict[str, str] = {
    "alignment": "allow a copy with copy=None",
    "device": "copy it to a device that the consumer serves first",
    "dtype": "cast it to a dtype that both have",
    "lanes": "view it with a scalar dtype and one more dimension",
    "ndim": "reshape it to fewer dimensions",
    "readonly": 'pass readonly="copy" for a copy, or readonly="share" to share it anyway',
    "strides": "allow a copy with copy=None",
}
_COPY_HELPS = ("alignment", "strides")
# Where dlbridge itself copies from and to: kDLCPU, kDLCUDA, managed, and the host memory of
# kDLCUDAHost, kDLROCMHost and kDLTPUHost.
_REACHED = frozenset((1, 2, 3, 11, 13, 20))
_NEED_DRIVER = frozenset((2, 3, 13))
_PINNED, _MANAGED = 3, 13
_OWN_KINDS = frozenset((_PINNED, _MANAGED))  # host memory that is more than the CPU's


def fit(
    tensor: native.TensorBase, framework: Framework | None, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Return `tensor`, or a copy of it, as the consumer and the policy need it, or refuse."""
    name = framework.name if framework is not None else "dlbridge"
    import_copies = framework.import_copies(tensor) if framework is not None else None
    if framework is not None and policy.own_device is not None:
        framework.place(policy)  # refuses a device that is not there, before any copy is made
    copies_here = policy.copy is True and policy.device is None
    if copies_here and framework is not None and framework.refusal(tensor) == "device":
        refuse("device", tensor, policy.call, advice=_advise("device", tensor, framework))
    if framework is not None and policy.device is not None:
        _require_order(policy.device, framework, policy.call)
    if not is_on_cuda(tensor):
        tensor = _cast(tensor, policy, context)
    if policy.device is not None and import_copies != "device":
        tensor = _to_device(tensor, policy, context)
    tensor = _cast(tensor, policy, context)
    import_copies = None
    if framework is not None:
        import_copies = framework.import_copies(tensor)
        tensor = _adapt(tensor, framework, policy, context)
    tensor = _share_or_copy(tensor, framework, policy, context, import_copies is not None)
    if import_copies is not None:
        if policy.copy is False:
            refuse(import_copies, tensor, policy.call, copy_forbidden=True)
        context.copying(name, import_copies, lambda: None, lambda: None)
    return tensor


def _require_order(wanted: Device, framework: Framework, call: str) -> None:
    """Refuse a copy to a GPU for a framework that cannot take it there."""
    if wanted.pair[0] in CUDA_TYPES and not framework.orders_cuda():
        raise ExchangeError(
            "device",
            f"{call}: device {wanted} asked for: {framework.why_unordered()}; convert "
            "it on the host, and have the framework copy it to the GPU",
        )


def _require_driver(call: str, *devices: int) -> None:
    """Refuse a copy that needs the CUDA driver where there is no driver."""
    why = native.cuda_open() if _NEED_DRIVER.intersection(devices) else None
    if why is not None:
        raise ExchangeError(
            "device",
            f"{call}: a copy on or to a GPU needs the CUDA driver, and there is none ({why}); "
            "install NVIDIA's driver, or say where it is in DLBRIDGE_CUDA_DRIVER",
        )


def _adapt(
    tensor: native.TensorBase, framework: Framework, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Return `tensor`, or a copy, with a device and dtype that the framework has, if possible.

    Pinned memory becomes CPU memory, sub-byte elements are packed or padded, and 64-bit numbers are
    narrowed.
    """
    reason = framework.refusal(tensor)
    if reason == "device" and tensor._device_pair[0] == _PINNED:
        tensor = native.take_capsule(
            tensor.__dlpack__(max_version=protocol.VERSION, dl_device=(1, 0))
        )
        reason = framework.refusal(tensor)
    if reason == "dtype" and _is_sub_byte(tensor):
        tensor = _repack(tensor, policy, context)
        reason = framework.refusal(tensor)
    if reason == "dtype" and policy.narrow == "checked" and _narrower(tensor) is not None:
        tensor = _narrow(tensor, policy, context)
    return tensor


def _share_or_copy(
    tensor: native.TensorBase,
    framework: Framework | None,
    policy: Policy,
    context: ExchangeContext,
    import_copies: bool,
) -> native.TensorBase:
    """Share, copy or refuse `tensor`, as `dlb_decide` in C decides."""
    refusal = None if framework is None else framework.refusal
    protects = framework is None or framework.limits().protects_readonly
    is_copied = import_copies or context.copied_by is not None
    tensor, why, refused = native.decide(tensor, policy, refusal, protects, is_copied)
    if why is not None and refused in (None, "device"):  # a copy cures nothing else
        if tensor.size or why not in _COPY_HELPS:
            tensor = _copy(tensor, why, policy, context)
        else:  # without elements there is nothing to copy: fresh memory fits any consumer
            tensor = _fresh(tensor, tensor.flags & PADDED)
        refused = None if refusal is None else refusal(tensor)
    if refused is not None:
        assert framework is not None
        refuse(refused, tensor, policy.call, advice=_advise(refused, tensor, framework))
    return tensor


def _advise(reason: str, tensor: native.TensorBase, framework: Framework) -> str | None:
    """Return what to do, where that is more than what the reason alone says."""
    if reason == "ndim" and tensor.ndim == 0:
        return "reshape it to one dimension"
    if reason == "device" and is_on_cuda(tensor) and not framework.orders_cuda():
        is_managed = tensor._device_pair[0] == _MANAGED  # no copy is made for the host there
        how = "copy it: x.to('cpu')" if is_managed else 'pass device="cpu" for a copy on the host'
        return f"{framework.why_unordered()}: {how}"
    if reason == "device" and tensor._device_pair[0] == _MANAGED:
        return f"copy it: x.to('cuda:{tensor._device_pair[1]}') or x.to('cpu')"
    if reason == "device" and is_on_cuda(tensor):
        return 'copy it: pass device="cpu" for a copy on the host'
    if reason == "dtype" and tensor._dtype_triple[0] not in CODES:
        return "nobody here knows what its code means; view the bits as another dtype: x.view(...)"
    narrower = _narrower(tensor) if reason == "dtype" else None
    if narrower is None:
        return None
    one = tensor._view((min(tensor.size, 1),), (1,), 0, narrower)  # size 0 may be refused as such
    if framework.refusal(one) == "dtype":
        return None
    ways = (framework.wide_types, f'pass narrow="checked" for a checked copy as {DType(narrower)}')
    return ", or ".join(way for way in ways if way)


# Code and bits of a dtype, and those of the one that `narrow` takes instead.
_NARROWER = {(0, 64): (0, 32), (1, 64): (1, 32), (2, 64): (2, 32), (5, 128): (5, 64)}


def _narrower(tensor: native.TensorBase) -> tuple[int, int, int] | None:
    code, bits, lanes = tensor._dtype_triple
    found = _NARROWER.get((code, bits))
    return None if found is None or lanes != 1 else (*found, 1)


def _narrow(
    tensor: native.TensorBase, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Copy 64-bit numbers to 32 bits, or refuse where a value would be another one."""
    if policy.copy is False:
        refuse("dtype", tensor, policy.call, copy_forbidden=True)
    dtype = DType(_narrower(tensor))
    return _checked_copy(tensor, dtype, policy, context)


def _cast(tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    """Return the tensor, or a copy of it with the dtype that the policy names."""
    dtype = policy.dtype
    if dtype is None or tensor.dtype is dtype:
        return tensor
    if policy.copy is False:
        refuse("dtype", tensor, policy.call, copy_forbidden=True)
    return _checked_copy(tensor, dtype, policy, context)


def _checked_copy(
    tensor: native.TensorBase, dtype: DType, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Return a copy of another dtype, for `dtype=` and `narrow=`, or refuse what would be lost."""

    def copy() -> native.TensorBase:
        host, fresh = on_host(tensor, policy.call), empty(tensor.shape, dtype)
        if _copied_integers(host, fresh):
            return fresh
        try:
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                if _FLOATS.issuperset((host._dtype_triple, fresh._dtype_triple)):
                    np.copyto(as_array(fresh), as_array(host), casting="same_kind")
                else:
                    assign(fresh, host)
                check_kept(host, fresh)
        except ExchangeError as error:
            text = str(error).removesuffix(f" [{error.reason}]")
            raise ExchangeError(
                error.reason, f"{policy.call}: {text}; got {kind(tensor)}"
            ) from error
        return fresh

    return context.copying("dlbridge", "dtype", copy, lambda: empty(tensor.shape, dtype))


_FLOATS = frozenset((2, bits, 1) for bits in (16, 32, 64))  # NumPy's own
_INTEGERS = frozenset((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32, 64))


def _copied_integers(host: native.TensorBase, fresh: native.TensorBase) -> bool:
    """Copy integers to integers; return whether each is what it was, else others say which."""
    if not _INTEGERS.issuperset((host._dtype_triple, fresh._dtype_triple)):
        return False
    given, made = as_array(host), as_array(fresh)
    np.copyto(made, given, casting="unsafe")
    # A negative number and the large one of its bits are equal in no mixed comparison of NumPy 1.
    is_same = (given == made) & ((given < 0) == (made < 0))
    return bool(is_same.all())


def _to_device(
    tensor: native.TensorBase, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Return the tensor, or a copy of it on the device that the policy names."""
    wanted = policy.device
    assert wanted is not None
    is_host = wanted.is_host_accessible and wanted.pair[0] not in _OWN_KINDS
    if wanted == tensor.device or (is_host and tensor.device.is_host_accessible):
        return tensor
    by = _copier(wanted.pair[0], tensor._device_pair[0])
    if by is None:
        raise ExchangeError(
            "device",
            f"{policy.call}: device {wanted} asked for, got {kind(tensor)}, out of which neither "
            "dlbridge nor a framework copies; copy it with its own framework first",
        )
    if policy.copy is False:
        refuse("device", tensor, policy.call, copy_forbidden=True)
    _require_driver(policy.call, wanted.pair[0], tensor._device_pair[0])
    pair, padded = wanted.pair, tensor.flags & PADDED
    return context.copying(
        by,
        "device",
        lambda: native.copied(tensor, pair, "K", padded),
        (lambda: empty(tensor.shape, tensor.dtype, device=wanted)) if pair[0] in _REACHED else None,
    )


def _copier(*devices: int) -> str | None:
    """Return who copies between memory of these device types: dlbridge, a framework or nobody."""
    if _REACHED.issuperset(devices):
        return "dlbridge"
    framework = adapter.mover(*devices)
    return None if framework is None else framework.name


def _copy(
    tensor: native.TensorBase, why: str, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    if policy.copy is False:
        refuse(why, tensor, policy.call, copy_forbidden=True)
    device = tensor._device_pair
    by = _copier(device[0])
    if by is None:
        refuse("device", tensor, policy.call)
    if by != "dlbridge":
        return context.copying(
            by, why, lambda: native.copied(tensor, device, "C", 0), lambda: tensor
        )
    _require_driver(policy.call, device[0] if is_on_cuda(tensor) else 1)
    return _copied(tensor, why, tensor.flags & PADDED, context)


def _repack(
    tensor: native.TensorBase, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Copy sub-byte elements from packed to padded, or the other way round."""
    if policy.copy is False:
        refuse("dtype", tensor, policy.call, copy_forbidden=True)
    return _copied(tensor, "dtype", ~tensor.flags & PADDED, context)


def _copied(
    tensor: native.TensorBase, why: str, padded: int, context: ExchangeContext
) -> native.TensorBase:
    def copy() -> native.TensorBase:
        fresh = _fresh(tensor, padded)
        native.copy_into(fresh, tensor)
        return fresh

    return context.copying("dlbridge", why, copy, lambda: _fresh(tensor, padded))


def _fresh(tensor: native.TensorBase, padded: int) -> native.TensorBase:
    """Return new memory for the elements of `tensor`, not filled: on its device, or of the CPU."""
    device = tensor.device if is_on_cuda(tensor) else "cpu"
    if not padded:
        return empty(tensor.shape, tensor.dtype, device=device)
    raw = empty(tensor.shape, "uint8", device=device)
    return raw._view(raw.shape, raw.strides, dtype=tensor._dtype_triple, set_flags=PADDED)


def _is_sub_byte(tensor: native.TensorBase) -> bool:
    code, bits, _ = tensor._dtype_triple
    return bits < 8 and code != 6


def kind(tensor: native.TensorBase) -> str:
    """Return dtype, shape and device of `tensor` in one phrase for error texts."""
    count = tensor.ndim
    shown = [*map(str, tensor.shape[:8])] + ([f"… {count} dimensions"] if count > 8 else [])
    shape = ", ".join(shown)
    mark = "read-only " if tensor.readonly else ""
    return f"{mark}{tensor.dtype}[{shape}] on {tensor.device}"


def refuse(
    reason: str,
    tensor: native.TensorBase,
    call: str,
    *,
    copy_forbidden: bool = False,
    advice: str | None = None,
) -> NoReturn:
    """Raise the ExchangeError that says why a call cannot have `tensor` and what to do."""
    if reason == "requested":
        raise ArgumentError(f"{call}: copy=False forbids the copy that copy=True asks for")
    text = f"{call}: {REASONS[reason]}: got {kind(tensor)}"
    if reason == "strides":
        text += f", strides {tensor.strides}"
    if copy_forbidden:
        text += "; copy=False forbids the copy that would help: pass copy=None"
        if reason == "alignment":
            text += ", or make arrays of NumPy under dlbridge.aligned_numpy()"
    elif advice or reason in _ADVICE:
        text += f"; {advice or _ADVICE[reason]}"
    raise ExchangeError(reason, text)


def refused_as(where: str, error: ExchangeError, advice: str | None = None) -> ExchangeError:
    """Return the refusal of a conversion as that of an argument, whose caller gave no copy=."""
    text = str(error).removesuffix(f" [{error.reason}]").removeprefix("from_dlpack: ")
    text, forbidden, _ = text.partition("; copy=False")
    if forbidden and advice is not None:
        text += f"; {advice}"
    elif error.reason == "dtype":
        text += "; cast it before the call, as dlbridge.convert(x, ..., dtype='int8') does"
    return ExchangeError(error.reason, f"{where}: {text}")


# ---- memory that the core does not reach --------------------------------------------------------


def _copied_by_framework(
    tensor: native.TensorBase, device: tuple[int, int], order: str
) -> native.TensorBase | None:
    """Return the copy that the framework makes which alone reaches the memory, or None."""
    framework = adapter.mover(tensor._device_pair[0], device[0])
    if framework is None:
        return None
    made = framework.copied(tensor, device, order)
    return made._view(made.shape, made.strides, clear_flags=READ_ONLY, cls=type(tensor))


def _order_by_framework(tensor: native.TensorBase, stream: object) -> bool:
    """Have a stream that is not a number wait for the memory, where a framework can do that."""
    framework = adapter.mover(tensor._device_pair[0])
    if framework is not None:
        framework.order(tensor, stream)
    return framework is not None


def connect() -> None:
    """Register the Python path with the core."""
    native.set_hooks(
        slow_from_dlpack=public(from_dlpack),
        slow_convert=convert,
        classify=adapter.classify,
        slow_copied=_copied_by_framework,
        slow_stream=_order_by_framework,
        exported=protocol.exported,
    )
    native.start_receipts(Receipt, _receipt_fields, _source_of_type, _address)
