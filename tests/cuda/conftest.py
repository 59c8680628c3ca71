"""The machines that the tests of CUDA run on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
collect_ignore = ["stand_in"]  # runs in processes of its own: there it is the CuPy
sys.path.insert(0, str(HERE))  # so that tests may import the modules beside them

from driver_calls import why_no_gpu  # noqa: E402
from fake_driver import compile_fake  # noqa: E402
from fake_machine import FakeMachine  # noqa: E402
from machine import Machine  # noqa: E402
from measuring import until  # noqa: E402

from dlbridge import cuda  # noqa: E402
from dlbridge._core import native  # noqa: E402

# Where the fake driver may be compiled already; for processes that tests start.
FAKE_DIRECTORY = "DLBRIDGE_TESTS_FAKE_CUDA"

NewMachine = Callable[[], AbstractContextManager[Machine]]


def open_real() -> Machine:
    """Return the machine's GPU, or skip."""
    why = why_no_gpu()
    if why is not None:
        pytest.skip(why)
    from real_machine import RealMachine

    return RealMachine()


@pytest.fixture(scope="session")
def new_fake(tmp_path_factory: pytest.TempPathFactory) -> NewMachine:
    """Return a function that lends the fake machine, with nothing on it, to a with block."""
    directory = os.environ.get(FAKE_DIRECTORY) or tmp_path_factory.mktemp("fake")
    path = compile_fake(Path(directory))
    return lambda: lend(FakeMachine(str(path)))


@pytest.fixture(scope="session", params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def new_machine(request: pytest.FixtureRequest) -> NewMachine:
    """Return a function that lends a machine, with nothing on it, to a with block."""
    if request.param == "fake":
        return request.getfixturevalue("new_fake")
    return lambda: lend(open_real())


@pytest.fixture
def machine(new_machine: NewMachine) -> Iterator[Machine]:
    """Yield a machine with nothing on it; see that the test left it in order and empty."""
    with new_machine() as lent:
        yield lent


@pytest.fixture
def fake_machine(new_fake: NewMachine) -> Iterator[Machine]:
    """Yield the fake machine, for what only it can tell."""
    with new_fake() as lent:
        yield lent


@contextmanager
def lend(machine: Machine) -> Iterator[Machine]:
    """Lend a machine, with dlbridge on the same driver."""
    why = native.cuda_open(machine.path)
    assert why is None, why
    machine.reset()
    try:
        with joined_threads():
            yield machine
        settle(machine)
        machine.check()
    finally:
        for device in machine.devices:
            native.cuda_set_current_stream(device, 1)
        machine.close()
        native.cuda_close()


@contextmanager
def joined_threads() -> Iterator[None]:
    """Wait at the end for the system to end the threads that were started and have returned.

    The core uses the driver then, and before Python 3.13 `Thread.join` does not wait for it.
    """
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", noted)
        try:
            yield
        finally:
            for thread in started:
                if not thread.is_alive():
                    until(partial(_is_gone, thread.native_id), "the end of a thread")


def _is_gone(number: int) -> bool:
    """Return whether the system has ended a thread, whose number another may have by now."""
    live = [each.native_id for each in threading.enumerate()]
    return number in live or not Path(f"/proc/self/task/{number}").exists()


def settle(machine: Machine) -> None:
    """Let the devices finish; dlbridge must then have nothing left to give back.

    It may have to record an event first, which is pending at once on any driver.
    """
    machine.finish()
    if cuda.collect():
        machine.finish()
    assert cuda.collect() == 0, "memory still waits for kernels that are over"


@pytest.fixture
def in_thread() -> Callable[[Callable[[], None]], None]:
    """Return a function that runs another one in a thread of its own, and raises what it raises."""
    from concurrent.futures import ThreadPoolExecutor

    def run(function: Callable[[], None]) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(function).result(timeout=60)

    return run
