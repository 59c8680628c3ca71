"""Runs are quiet: NumPy warns of no floating-point errors, and treats them as before afterwards."""

from __future__ import annotations

import contextvars
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge._core import native
from dlbridge.execution.quiet import without_warnings


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph, warnings.catch_warnings():
        warnings.simplefilter("error")
        yield graph


def divide() -> Any:
    return np.ones(2) / np.zeros(2)


def raises_again() -> bool:
    """Return whether NumPy raises for a division by zero, as outside of a run."""
    try:
        divide()
    except (RuntimeWarning, FloatingPointError):
        return True
    return False


def in_user_code(function: Callable[[], Any]) -> Any:
    """Return what a function returns that a run of a graph calls."""
    seen = []

    def call(x: Any) -> Any:
        seen.append(function())
        return x

    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.py_func(call, [tf.constant(1.0)], tf.float32))
    return seen[0]


SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {},
    "raise": {"all": "raise"},
    "ignore": {"all": "ignore"},
    "warn": {"divide": "warn", "over": "raise"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_is_quiet_whatever_numpy_does_outside(name: str) -> None:
    with np.errstate(**SETTINGS[name]):
        before = np.geterr()
        assert in_user_code(np.geterr) == dict.fromkeys(before, "ignore")
        assert np.geterr() == before
        with pytest.raises(tf.errors.OpError):
            in_user_code(lambda: [].pop())
        assert np.geterr() == before
        assert raises_again() == (name != "ignore")


def test_numpys_error_callback_is_known_in_a_run() -> None:
    """A function of the user may use it in a block of its own."""
    told: list[Any] = []

    def count() -> int:
        with np.errstate(divide="call"):
            divide()
        return len(told)

    with np.errstate(call=lambda kind, flag: told.append(kind)):
        assert in_user_code(count) == 1


def test_a_run_within_a_run_is_quiet_and_the_outer_one_stays_so() -> None:
    def nested() -> Any:
        inner = in_user_code(np.geterr)
        return inner, np.geterr()

    inner, outer = in_user_code(nested)
    assert inner == outer == dict.fromkeys(np.geterr(), "ignore")
    assert raises_again()


def test_changes_by_a_user_function_end_with_the_run() -> None:
    in_user_code(lambda: np.seterr(all="raise"))
    assert raises_again()
    assert np.geterr() == contextvars.Context().run(np.geterr)


def test_an_interrupt_leaves_numpy_as_it_was() -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    before = np.geterr()
    with pytest.raises(KeyboardInterrupt):
        in_user_code(interrupt)
    assert np.geterr() == before


def test_threads_run_with_settings_of_their_own() -> None:
    wrong: list[Any] = []
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        setting = list(SETTINGS.values())[number % len(SETTINGS)]
        barrier.wait()
        with np.errstate(**setting):
            before = np.geterr()
            for _ in range(20):
                found = in_user_code(np.geterr)
                if set(found.values()) != {"ignore"} or np.geterr() != before:
                    wrong.append((number, found, np.geterr()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_errors_and_results_pass_through() -> None:
    quiet = without_warnings(lambda *values: values[::-1])
    assert quiet(1, 2) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        without_warnings(lambda: 1 // 0)()
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        assert isinstance(quiet, native.Quiet)


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0",
    reason="NumPy 1 has no context variable for what it does with floating-point errors",
)
def test_a_repeated_run_has_one_python_frame() -> None:
    """That of `Session.run`: with variables, NumPy's warnings and results in between."""
    v = tf.get_variable("v", initializer=np.ones(2), use_resource=True)
    x = tf.placeholder(tf.float64, [2])
    y = tf.sqrt(v - 2.0) / x
    plain = tf.sqrt(v - 2.0) / 0.0
    with tf.Session() as session:
        session.run(v.initializer)
        session.run(y, {x: np.zeros(2)})
        session.run(plain)
        frames: list[str] = []

        def note(frame: Any, event: str, _: Any) -> None:
            if event == "call":
                frames.append(frame.f_code.co_name)

        sys.setprofile(note)
        try:
            value = session.run(plain)
        finally:
            sys.setprofile(None)
        assert np.isnan(value).all()
        assert frames == ["run"]
