"""Make a Tensor what its consumer can represent, by a copy where that is allowed, or refuse."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import REASONS, ArgumentError, ExchangeError
from dlbridge.exchange.adapter import Framework
from dlbridge.exchange.policy import Policy
from dlbridge.exchange.receipts import ExchangeContext
from dlbridge.tensor.memory import empty
from dlbridge.tensor.values import PADDED, READ_ONLY, as_array, is_on_cuda

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
# Where dlbridge itself copies from and to: kDLCPU, kDLCUDA, kDLCUDAHost, kDLROCMHost, managed.
_REACHED = frozenset((1, 2, 3, 11, 13))
_NEED_DRIVER = frozenset((2, 3, 13))
_OWN_KINDS = frozenset((3, 13))  # host memory that is more than the CPU's: pinned, managed


def _call(name: str) -> str:
    """Return what was called to get a tensor of a framework, for texts."""
    return "from_dlpack" if name == "dlbridge" else f"to_{name}"


def fit(
    tensor: native.TensorBase, framework: Framework | None, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Return `tensor`, or a copy of it, as the consumer and the policy need it, or refuse."""
    name = framework.name if framework is not None else "dlbridge"
    import_copies = framework.import_copies(tensor) if framework is not None else None
    if policy.copy is True and framework is not None and policy.device is None:
        _refuse_device(tensor, framework)
    if policy.device is not None and import_copies != "device":
        tensor = _to_device(tensor, policy, context, name)
    if policy.copy is True and context.copied_by is None and import_copies is None:
        tensor = _copy(tensor, "requested", policy, context, name)
    if policy.layout == "contiguous" and not tensor.is_contiguous:
        tensor = _copy(tensor, "strides", policy, context, name)
    if framework is None:
        return tensor
    tensor = _fit_limits(tensor, framework, policy, context)
    if import_copies is not None:
        if policy.copy is False:
            refuse(import_copies, tensor, name, copy_forbidden=True)
        context.copying(name, import_copies, lambda: None, lambda: None)
    return tensor


def _refuse_device(tensor: native.TensorBase, framework: Framework) -> None:
    """Refuse memory out of the consumer's reach before any copy is made."""
    if framework.refusal(tensor) == "device":
        refuse("device", tensor, framework.name)


def _require_driver(name: str, *devices: int) -> None:
    """Refuse a copy that needs the CUDA driver where there is no driver."""
    why = native.cuda_open() if _NEED_DRIVER.intersection(devices) else None
    if why is not None:
        raise ExchangeError(
            "device",
            f"{_call(name)}: a copy on or to a GPU needs the CUDA driver; there is none ({why})",
        )


def _fit_limits(
    tensor: native.TensorBase, framework: Framework, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    name = framework.name
    reason = framework.refusal(tensor)
    if reason == "dtype" and _is_sub_byte(tensor):
        tensor = _repack(tensor, policy, context, name)
        reason = framework.refusal(tensor)
    if reason == "dtype" and policy.narrow == "checked" and _narrower(tensor) is not None:
        tensor = _narrow(tensor, policy, context, name)
        reason = framework.refusal(tensor)
    if reason == "readonly":
        tensor = _open_readonly(tensor, policy, context, name)
        reason = framework.refusal(tensor)
    if reason in _COPY_HELPS:
        if tensor.size:
            tensor = _copy(tensor, reason, policy, context, name)
        else:  # without elements there is nothing to copy: fresh memory fits any consumer
            tensor = _fresh(tensor, tensor.flags & PADDED)
        reason = framework.refusal(tensor)
    if reason is not None:
        refuse(reason, tensor, name, advice=_advise(reason, tensor, framework))
    return tensor


def _advise(reason: str, tensor: native.TensorBase, framework: Framework) -> str | None:
    """Return what to do, where that is more than what the reason alone says."""
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
    tensor: native.TensorBase, policy: Policy, context: ExchangeContext, name: str
) -> native.TensorBase:
    """Copy 64-bit numbers to 32 bits, or refuse where a value would be another one."""
    if policy.copy is False:
        refuse("dtype", tensor, name, copy_forbidden=True)
    dtype = DType(_narrower(tensor))

    def copy() -> native.TensorBase:
        wide = as_array(tensor, _call(name))
        fresh = empty(tensor.shape, dtype)
        narrow = as_array(fresh)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.copyto(narrow, wide, casting="unsafe")
        fits = narrow == wide if dtype.is_integer else np.isfinite(narrow) == np.isfinite(wide)
        if not np.all(fits):
            raise ExchangeError(
                "dtype", f"{_call(name)}: a value of {kind(tensor)} does not fit {dtype}"
            )
        return fresh

    return context.copying("dlbridge", "dtype", copy, lambda: empty(tensor.shape, dtype))


def _to_device(
    tensor: native.TensorBase, policy: Policy, context: ExchangeContext, name: str
) -> native.TensorBase:
    """Return the tensor, or a copy of it on the device that the policy names."""
    wanted = policy.device
    assert wanted is not None
    is_host = wanted.is_host_accessible and wanted.pair[0] not in _OWN_KINDS
    if wanted == tensor.device or (is_host and tensor.device.is_host_accessible):
        return tensor
    if not {wanted.pair[0], tensor._device_pair[0]} <= _REACHED:
        raise ExchangeError(
            "device", f"{_call(name)}: device {wanted} asked for, the memory is on {tensor.device}"
        )
    if policy.copy is False:
        refuse("device", tensor, name, copy_forbidden=True)
    _require_driver(name, wanted.pair[0], tensor._device_pair[0])
    pair, padded = wanted.pair, tensor.flags & PADDED
    return context.copying(
        "dlbridge",
        "device",
        lambda: native.copied(tensor, pair, "K", padded),
        lambda: empty(tensor.shape, tensor.dtype, device=wanted),
    )


def _copy(
    tensor: native.TensorBase, why: str, policy: Policy, context: ExchangeContext, name: str
) -> native.TensorBase:
    if policy.copy is False:
        refuse(why, tensor, name, copy_forbidden=True)
    if tensor._device_pair[0] not in _REACHED:
        refuse("device", tensor, name)
    _require_driver(name, tensor._device_pair[0] if is_on_cuda(tensor) else 1)
    return _copied(tensor, why, tensor.flags & PADDED, context)


def _repack(
    tensor: native.TensorBase, policy: Policy, context: ExchangeContext, name: str
) -> native.TensorBase:
    """Copy sub-byte elements from packed to padded, or the other way round."""
    if policy.copy is False:
        refuse("dtype", tensor, name, copy_forbidden=True)
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


def _open_readonly(
    tensor: native.TensorBase, policy: Policy, context: ExchangeContext, name: str
) -> native.TensorBase:
    if policy.readonly == "respect":
        refuse("readonly", tensor, name)
    if policy.readonly == "copy":
        return _copy(tensor, "readonly", policy, context, name)
    return tensor._view(tensor.shape, tensor.strides, clear_flags=READ_ONLY)


def _is_sub_byte(tensor: native.TensorBase) -> bool:
    code, bits, _ = tensor._dtype_triple
    return bits < 8 and code != 6


def kind(tensor: native.TensorBase) -> str:
    """Return dtype, shape and device of `tensor` in one phrase for error texts."""
    shape = ", ".join(map(str, tensor.shape))
    mark = "read-only " if tensor.readonly else ""
    return f"{mark}{tensor.dtype}[{shape}] on {tensor.device}"


def refuse(
    reason: str,
    tensor: native.TensorBase,
    name: str,
    *,
    copy_forbidden: bool = False,
    advice: str | None = None,
) -> NoReturn:
    """Raise the ExchangeError that says why `tensor` cannot go to `name` and what to do."""
    if reason == "requested":
        raise ArgumentError(f"{_call(name)}: copy=False forbids the copy that copy=True asks for")
    text = f"{_call(name)}: {REASONS[reason]}: got {kind(tensor)}, strides {tensor.strides}"
    if copy_forbidden:
        text += "; copy=False forbids the copy that would help: pass copy=None"
    elif advice or reason in _ADVICE:
        text += f"; {advice or _ADVICE[reason]}"
    raise ExchangeError(reason, text)
