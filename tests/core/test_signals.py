"""`native.defer_signals`: handlers of signals run when a function is over, not in the middle."""

from __future__ import annotations

import ctypes
import operator
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from measuring import pause

from dlbridge._core import native

NUMBERS = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _usual_handlers() -> Iterator[None]:
    usual = {number: signal.getsignal(number) for number in (*NUMBERS, signal.SIGINT)}
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


def noted(number: int = signal.SIGUSR1, error: BaseException | None = None) -> list[int]:
    """Install a handler; return the list in which it notes each signal, before it raises."""
    came: list[int] = []

    def handler(number: int, _frame: Any) -> None:
        came.append(number)
        if error is not None:
            raise error

    signal.signal(number, handler)
    return came


def raise_signal(number: int = signal.SIGUSR1) -> None:
    """Send this thread a signal; a handler that runs now has run when it returns."""
    signal.raise_signal(number)
    pause(0)


def test_it_calls_the_function_and_returns_its_result():
    assert native.defer_signals(dict, [("a", 1)], b=2) == {"a": 1, "b": 2}


def test_a_function_is_required():
    with pytest.raises(TypeError, match="defer_signals: a function is required"):
        native.defer_signals()  # type: ignore[call-arg]


def test_a_handler_runs_when_the_function_is_over():
    came = noted()

    def function() -> list[int]:
        raise_signal()
        return list(came)

    assert native.defer_signals(function) == []
    assert came == [signal.SIGUSR1]


def test_errors_of_a_handler_are_raised_when_the_function_is_over():
    noted(error=TimeoutError("late"))
    steps = []

    def function() -> None:
        raise_signal()
        steps.append("all of it")

    with pytest.raises(TimeoutError, match="late"):
        native.defer_signals(function)
    assert steps == ["all of it"]


def test_an_interrupt_is_deferred_like_any_signal():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which background jobs ignore

    def function() -> None:
        raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        native.defer_signals(function)


@pytest.mark.parametrize("error", [TimeoutError("of a handler"), ValueError("of a handler")])
def test_errors_of_a_handler_of_any_class_are_kept(error: Exception):
    """Also what Python raises where no handler can be set."""
    noted(error=error)
    called = []
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signal.raise_signal(signal.SIGUSR1)

    def function() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        called.append(True)

    with pytest.raises(type(error), match="of a handler"):
        native.defer_signals(function)
    assert called == [True]


def test_a_function_is_called_although_a_signal_has_come_before():
    """Part of what it does may have happened in C, and other processes wait for the rest."""
    noted(error=TimeoutError("before"))
    called: list[bool] = []
    calls = (
        partial(ctypes.PyDLL(None)["raise"], signal.SIGUSR1),
        partial(native.defer_signals, called.append, True),
    )
    with pytest.raises(TimeoutError, match="before"):
        list(map(operator.call, calls))  # no instruction of Python lies between
    assert called == [True]


def test_an_error_of_the_function_is_the_context_of_what_a_handler_raises():
    noted(error=TimeoutError("of the handler"))

    def function() -> None:
        raise_signal()
        raise KeyError("of the function")

    with pytest.raises(TimeoutError) as caught:
        native.defer_signals(function)
    assert isinstance(caught.value.__context__, KeyError)


def test_an_exception_that_is_handled_meanwhile_stays_the_context_of_both():
    """As where it is handled by who calls the test, which pytest did in older versions."""

    def raise_both() -> None:
        noted(error=TimeoutError("of the handler"))

        def function() -> None:
            raise_signal()
            raise KeyError("of the function")

        native.defer_signals(function)

    try:
        raise StopIteration
    except StopIteration:
        with pytest.raises(TimeoutError) as caught:
            raise_both()
    chain = [caught.value, caught.value.__context__]
    chain.append(chain[1].__context__)
    assert [type(each) for each in chain] == [TimeoutError, KeyError, StopIteration]


def test_a_handler_that_raises_what_the_function_raised_makes_no_circle():
    error: BaseException | None = TimeoutError("of both")
    noted(error=error)

    def function() -> None:
        raise_signal()
        raise error

    with pytest.raises(TimeoutError) as caught:
        native.defer_signals(function)
    assert caught.value is error
    chain = []
    while (error := error.__context__) is not None:  # what who calls the test handles, perhaps
        assert error not in chain
        assert error is not caught.value
        chain.append(error)


def test_an_error_of_the_function_alone_is_raised():
    with pytest.raises(ZeroDivisionError):
        native.defer_signals(divmod, 1, 0)


def test_several_signals_have_their_own_handlers():
    came = [noted(number) for number in NUMBERS]

    def function() -> None:
        for number in (*NUMBERS, *NUMBERS):
            raise_signal(number)

    native.defer_signals(function)
    assert came == [[signal.SIGUSR1], [signal.SIGUSR2]]  # once each, as without


def test_the_second_of_two_that_raise_has_the_first_as_its_context():
    for number in NUMBERS:
        noted(number, TimeoutError(str(number)))

    def function() -> None:
        for number in NUMBERS:
            raise_signal(number)

    with pytest.raises(TimeoutError) as caught:
        native.defer_signals(function)
    assert str(caught.value) == str(NUMBERS[1])
    assert str(caught.value.__context__) == str(NUMBERS[0])


def test_handlers_are_the_same_before_and_after():
    noted()
    before = [signal.getsignal(number) for number in range(1, signal.NSIG)]
    native.defer_signals(int)
    assert [signal.getsignal(number) for number in range(1, signal.NSIG)] == before


def test_a_handler_that_the_function_sets_stays():
    noted()
    native.defer_signals(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_calls_that_signals_do_not_interrupt_stay_so():
    """`signal.siginterrupt`, which setting a handler would undo; asyncio relies on it."""
    came = noted()
    signal.siginterrupt(signal.SIGUSR1, False)
    flags = action_flags(signal.SIGUSR1)
    native.defer_signals(raise_signal)
    assert came == [signal.SIGUSR1]
    assert action_flags(signal.SIGUSR1) == flags


def action_flags(number: int) -> int:
    """Return the sa_flags of a signal's action."""
    action = (ctypes.c_char * 152)()  # struct sigaction of Linux: handler, mask, flags
    assert ctypes.CDLL(None).sigaction(number, None, action) == 0
    return int.from_bytes(bytes(action[136:140]), "little")


def test_a_call_within_a_call_waits_for_the_outer_one():
    came = noted()

    def outer() -> list[int]:
        native.defer_signals(raise_signal)
        return list(came)

    assert native.defer_signals(outer) == []
    assert came == [signal.SIGUSR1]


def test_in_another_thread_it_is_the_plain_call():
    """No handler runs there; the main thread's run on."""
    came = noted()
    is_inside, may_end = threading.Event(), threading.Event()

    def function() -> None:
        is_inside.set()
        assert may_end.wait(10)

    thread = threading.Thread(target=native.defer_signals, args=(function,))
    thread.start()
    assert is_inside.wait(10)
    raise_signal()
    assert came == [signal.SIGUSR1]
    may_end.set()
    thread.join()


FORKED = """
import os, signal, threading, time
from dlbridge._core import native

came = []
signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
signal.signal(signal.SIGINT, signal.default_int_handler)
result = []

def fork():
    child = os.fork()
    if child == 0:
        ok = signal.getsignal(signal.SIGINT) is signal.default_int_handler and not came
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0)
        os._exit(0 if ok and came == [signal.SIGUSR1] else 1)
    result.append(os.waitpid(child, 0)[1])

def function():
    signal.raise_signal(signal.SIGUSR1)
    {how}

native.defer_signals(function)
assert came == [signal.SIGUSR1], came
assert result == [0], result
"""


def test_a_child_that_another_thread_forks_has_the_usual_handlers():
    how = "thread = threading.Thread(target=fork); thread.start(); thread.join()"
    subprocess.run([sys.executable, "-c", FORKED.format(how=how)], check=True, timeout=60)


def test_a_forked_child_goes_on_with_the_call():
    """In the child handlers run when the call is over there."""
    program = """
import os, signal, time
from dlbridge._core import native

came = []
signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))

def function():
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0)
        return child, not came
    return child, os.waitpid(child, 0)[1] == 0

child, ok = native.defer_signals(function)
if child == 0:
    os._exit(0 if ok and came else 1)
assert ok and not came
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
