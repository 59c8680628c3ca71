"""Which exceptions are those of a signal handler, and so of whoever installed it.

Python runs handlers in the main thread between any two instructions: also inside of a producer's
`__dlpack__`, of a parser, of a function that is only tried. What a handler raises, the Timeout of
somebody's alarm for example, is neither their answer nor a failure of theirs, of whatever class it
is. Whoever catches exceptions of Python lets it pass:

    except not_from_handler(TypeError, ValueError) as error:
        raise refused(x, error) from error

KeyboardInterrupt is no Exception, and the refusals of dlbridge are no handler's: neither needs it.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, TypeVar

from dlbridge._core import native
from dlbridge.errors import DLBridgeError

E = TypeVar("E", bound=Exception)

_TAKES_MORE = 0x04  # CO_VARARGS


def not_from_handler(*kinds: type[E]) -> tuple[type[E], ...]:
    """Return what an `except` clause catches: `kinds`, or nothing of what a handler raised.

    Python evaluates the clause while it handles the exception, which is how that is known here.

    Example:
        >>> try:
        ...     int("x")
        ... except not_from_handler(ValueError) as error:
        ...     print(error)
        invalid literal for int() with base 10: 'x'
    """
    error = sys.exception()
    is_caught = isinstance(error, kinds) and not _is_from_handler(error, sys._getframe(1))
    return kinds if is_caught else ()


def is_from_handler(error: BaseException) -> bool:
    """Return whether a function that runs as a handler of a signal raised `error`, or let it pass.

    Its frame is in the traceback. It is called with the number of a signal and the frame that was
    interrupted, as no other function is; or it is the function of a handler that is installed, and
    has deleted these arguments.
    """
    return _is_from_handler(error, sys._getframe(1))


def _is_from_handler(error: BaseException, caught_by: FrameType) -> bool:
    if isinstance(error, DLBridgeError):
        return False
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    called = [frame for frame in frames if frame is not caught_by]
    if any(map(_is_interruption, called)):
        return True
    codes = {_code(handler) for handler in native.signal_handlers()} if called else set()
    return any(frame.f_code in codes for frame in called)


def _is_interruption(frame: FrameType) -> bool:
    """Return whether a call has the number of a signal and its own caller among its arguments."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount]
    arguments: list[object] = [values.get(name) for name in names]
    if code.co_flags & _TAKES_MORE:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        arguments += rest if isinstance(rest, tuple) else ()
    interrupted = frame.f_back
    return interrupted is not None and any(
        isinstance(number, int) and other is interrupted for number, other in pairwise(arguments)
    )


def _code(handler: Any) -> CodeType | None:
    """Return the code of a function, method, partial or object with `__call__`; None in C."""
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = type(handler).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


native.set_hooks(is_from_handler=is_from_handler)
