"""Debug mode: every call of a kernel is checked for defects in its use of memory.

The checks are in `_core/kernel/debug.c`, below every framework; here are the switch and the texts
of the errors.
"""

from __future__ import annotations

import math
import os
from types import TracebackType
from typing import Self

from dlbridge import registry
from dlbridge._core import native
from dlbridge.calls import check_flag, public
from dlbridge.errors import ArgumentError

_LOCK = registry.lock()


class debug_kernels:  # noqa: N801  (a function that is also a context manager)
    """Check how kernels use memory, from now on and in all threads: debug mode.

    In debug mode a kernel on the CPU works on copies of its tensors, between guard bytes, whichever
    framework calls it, eagerly or from a compiled program. A call fails with KernelDefectError,
    which names operator and argument, where the kernel

    - wrote beside a tensor (`reason` "out_of_bounds"),
    - wrote into an argument that its schema does not mark with `!` ("changed_input"),
    - left elements of a result unwritten ("unwritten"): they begin as NaN, or as the byte 0xA5,
    - computed a floating result from memory beside an argument ("read_beside") or from elements
      of a result before it had written them ("read_unwritten"), which are NaN of another kind,
    - made NaN out of arguments that have none ("nan").

    Nothing that such a call computed reaches the caller's memory. Where an integer may by chance
    equal the filling, the kernel runs again with another filling; a kernel in Python does not, and
    its results of integers narrower than 32 bits are not searched for unwritten elements.

    Kernels on a GPU run as always: NVIDIA's compute-sanitizer checks those. So do Python
    functions that their own framework calls, whose own modes serve (`jax_debug_nans`,
    `torch.autograd.detect_anomaly`).

    As with `torch.set_grad_enabled`, the call itself switches, and a `with` block restores the mode
    before it at its end. So call it in the `with` statement: where the object is kept for a later
    block, the mode is on meanwhile, as by the call alone. The environment variable
    DLBRIDGE_DEBUG_KERNELS=1 switches it on from the start, "no-nans" without the search for NaN.
    Off, it costs nothing.

    Args:
        enabled: on, or off.
        nans: whether new NaN count as defects.

    Example:
        >>> with debug_kernels():
        ...     pass  # kernel(x) raises where it writes beside x
    """

    __slots__ = ("_enabled", "_is_entered", "_nans")

    @public
    def __init__(self, enabled: bool = True, *, nans: bool = True) -> None:
        check_flag("debug_kernels", "enabled", enabled)
        check_flag("debug_kernels", "nans", nans)
        self._enabled = enabled
        self._nans = nans
        self._is_entered = False
        with _LOCK:
            _forget_switches()
            _add(self)

    def __enter__(self) -> Self:
        with _LOCK:
            self._is_entered = True
            if self not in _SETTINGS:  # another thread switched meanwhile
                _add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _LOCK:
            if self in _SETTINGS:
                _SETTINGS.remove(self)
            _apply()


_SETTINGS: list[debug_kernels] = []  # the last one counts


def _forget_switches() -> None:
    """Drop settings that no `with` has entered, but the last, which comes back after a `with`."""
    switches = [each for each in _SETTINGS if not each._is_entered]
    for each in switches[:-1]:
        _SETTINGS.remove(each)


def _add(setting: debug_kernels) -> None:
    _SETTINGS.append(setting)
    _apply()


def _apply() -> None:
    last = _SETTINGS[-1] if _SETTINGS else None
    native.debug_kernels(last is not None and last._enabled, last is not None and last._nans)


_VALUES = {"": None, "0": None, "1": True, "no-nans": False}  # whether NaN count


def read_environment() -> None:
    """Switch debug mode on if the environment says so.

    Raises:
        ArgumentError: the variable has another value than it may.
    """
    given = os.environ.get("DLBRIDGE_DEBUG_KERNELS", "")
    if given not in _VALUES:
        raise ArgumentError(f"DLBRIDGE_DEBUG_KERNELS must be 0, 1 or no-nans, got {given!r}")
    nans = _VALUES[given]
    if nans is not None:
        debug_kernels(nans=nans)


# ---- words ---------------------------------------------------------------------------------------

_BETWEEN = -(2**63)


def describe_finding(reason: str, shape: tuple[int, ...], count: int, place: int) -> str:
    """Return the text about a defect of a kernel.

    Args:
        reason: a key of `errors.FINDINGS`.
        shape: of the tensor.
        count: how many bytes ("out_of_bounds") or elements it is about.
        place: of bytes, how far behind the end they begin, or, negative, before the start they end;
            of elements, the number of the first one in row-major order.

    Example:
        >>> describe_finding("unwritten", (2, 3), 2, 4)
        'the kernel left 2 of 6 elements unwritten, the first at [1, 1]'
        >>> describe_finding("out_of_bounds", (3,), 4, 0)
        'the kernel wrote out of bounds: 4 bytes changed, the first directly behind its end'
    """
    if reason == "out_of_bounds":
        where = "between its elements" if place == _BETWEEN else _beside(count, place)
        return f"the kernel wrote out of bounds: {_bytes(count)} changed, {where}"
    verb = "is" if count == 1 else "are"
    return _TEXTS[reason].format(
        elements=f"{count} of {math.prod(shape)} elements",
        are=verb,
        first=f"the first at [{', '.join(map(str, _unravel(place, shape)))}]",
    )


_TEXTS = {
    "changed_input": "the kernel changed {elements}, {first}, of an argument that it only reads; "
    "mark it with ! in the schema, or write into a copy",
    "nan": "{elements} {are} NaN, {first}, and no argument has any",
    "read_beside": "the kernel computed {elements}, {first}, from memory beside an argument",
    "read_unwritten": "the kernel computed {elements}, {first}, from elements of a result that it "
    "had not written yet",
    "unwritten": "the kernel left {elements} unwritten, {first}",
}


def _beside(count: int, place: int) -> str:
    which = "" if count == 1 else "the first " if place >= 0 else "the last "
    if place in (0, -1):
        return f"{which}directly {'behind its end' if place == 0 else 'before its start'}"
    away = _bytes(place if place > 0 else -1 - place)
    return f"{which}{away} {'behind its end' if place > 0 else 'before its start'}"


def _bytes(count: int) -> str:
    return f"{count} byte" if count == 1 else f"{count} bytes"


def _unravel(number: int, shape: tuple[int, ...]) -> list[int]:
    index: list[int] = []
    for extent in reversed(shape):
        number, at = divmod(number, extent)
        index.insert(0, at)
    return index
