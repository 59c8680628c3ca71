"""`native.Program`: slots, references, failures; `native.Feed` and `native.Fetch`."""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbridge._core import native


class Value:
    """Something whose life can be watched."""


def pair(x: Any, y: Any) -> tuple[Any, Any]:
    return x, y


def fail(*_: Any) -> Any:
    raise ValueError("no")


def never(*_: Any) -> Any:
    raise AssertionError("must not be called")


# ---- what runs ---------------------------------------------------------------------------------


def test_steps_run_in_order_over_slots() -> None:
    steps = (
        (lambda x, y: x + y, (0, 1), 2, ()),
        (divmod, (2, 1), (3, 4), (2,)),
        (None, (4,), 2, ()),
    )
    assert native.Program(5, {1: 10}, steps, (0,), (3, 2, 1, 0))(35) == (4, 5, 10, 35)


def test_run_is_the_same_as_a_call() -> None:
    program = native.Program(2, {}, ((abs, (0,), 1, ()),), (0,), (1,), single=True)
    assert program(-3) == program.run(-3) == 3


def test_results_that_nobody_wants_are_dropped() -> None:
    seen: list[int] = []
    steps = (
        (seen.append, (0,), -1, ()),
        (seen.append, (0,), (), ()),
        (pair, (0, 0), (-1, 1), ()),
    )
    assert native.Program(2, {}, steps, (0,), (1,))(7) == (7,)
    assert seen == [7, 7]


def test_a_list_serves_as_several_results() -> None:
    program = native.Program(3, {}, ((sorted, (0,), (1, 2), ()),), (0,), (1, 2))
    assert program("ba") == ("a", "b")


def test_one_output_may_be_named_often() -> None:
    value = Value()
    program = native.Program(1, {}, ((lambda: value, (), 0, ()),), (), (0, 0, 0))
    before = sys.getrefcount(value)
    result = program()
    assert result == (value,) * 3
    assert sys.getrefcount(value) == before + 3
    del result
    assert sys.getrefcount(value) == before


def test_an_empty_program_returns_an_empty_tuple() -> None:
    assert native.Program(0, {}, (), (), ())() == ()


def test_methods_are_called_without_losing_arguments() -> None:
    """A method's self is put in front of the arguments, in memory that the program lends."""
    found: list[Any] = []

    class Thing:
        def method(self, *values: Any) -> None:
            found.append((self, values))

    thing = Thing()
    native.Program(3, {}, ((thing.method, (0, 1, 2), -1, ()),), (0, 1, 2), ())(1, 2, 3)
    assert found == [(thing, (1, 2, 3))]


@pytest.mark.parametrize("length", [1, 100, 1000, 20_000])
def test_long_programs_of_many_slots_run(length: int) -> None:
    """Few slots lie on the C stack, many on the heap."""
    steps = tuple((lambda x: x + 1, (i,), i + 1, (i,)) for i in range(length))
    program = native.Program(length + 1, {}, steps, (0,), (length,), single=True)
    assert program(5) == length + 5
    assert program.slot_count == length + 1
    assert program.step_count == length


@given(st.data())
def test_random_programs_agree_with_a_loop_in_python(data: st.DataObject) -> None:
    inputs = data.draw(st.integers(1, 4))
    count = data.draw(st.integers(0, 40))
    values: list[Any] = [[i] for i in range(inputs)]
    steps: list[Any] = []
    alive = list(range(inputs))
    for i in range(count):
        operands = tuple(data.draw(st.lists(st.sampled_from(alive), max_size=4)))
        freed = set(data.draw(st.lists(st.sampled_from(alive), max_size=2)))
        if len(freed) == len(alive):
            freed = set()
        steps.append((lambda *x: list(x), operands, inputs + i, tuple(sorted(freed))))
        values.append([values[each] for each in operands])
        alive = [each for each in alive if each not in freed or each < inputs] + [inputs + i]
    outputs = tuple(data.draw(st.lists(st.sampled_from(alive), max_size=6)))
    program = native.Program(inputs + count, {}, tuple(steps), tuple(range(inputs)), outputs)
    assert program(*values[:inputs]) == tuple(values[each] for each in outputs)


# ---- references --------------------------------------------------------------------------------


def test_a_value_goes_right_after_its_last_use() -> None:
    watched: list[weakref.ref[Value]] = []

    def make() -> Value:
        value = Value()
        watched.append(weakref.ref(value))
        return value

    def is_alive(*_: Any) -> bool:
        return watched[0]() is not None

    steps = (
        (make, (), 0, ()),
        (is_alive, (), 1, ()),
        (is_alive, (0,), 2, (0,)),
        (is_alive, (), 3, ()),
    )
    assert native.Program(4, {}, steps, (), (1, 2, 3))() == (True, True, False)


def test_functions_see_the_one_reference_of_the_slot() -> None:
    """That is how Fetch, and whoever else, knows that nobody else has the value."""
    steps = ((Value, (), 0, ()), (sys.getrefcount, (0,), 1, ()))
    assert native.Program(2, {}, steps, (), (1,), single=True)() == 1


def test_constants_and_inputs_are_never_released() -> None:
    constant, value = Value(), Value()
    steps = ((id, (0,), -1, (0, 1)), (id, (1,), -1, (1, 0)))
    program = native.Program(2, {0: constant}, steps, (1,), (0, 1))
    before = sys.getrefcount(constant), sys.getrefcount(value)
    for _ in range(100):
        assert program(value) == (constant, value)
    assert (sys.getrefcount(constant), sys.getrefcount(value)) == before


def test_nothing_stays_behind_in_a_slot() -> None:
    """Results that are neither released nor fetched are released at the end."""
    value = Value()
    program = native.Program(2, {}, ((lambda: (value, value), (), (0, 1), ()),), (), (1,))
    before = sys.getrefcount(value)
    program()
    assert sys.getrefcount(value) == before


def test_a_program_in_a_cycle_is_collected() -> None:
    holder = Value()

    def explain(step: int, error: Exception, holder: Value = holder) -> Exception:
        return error

    steps = ((holder.__repr__, (), 1, ()),)
    program = native.Program(2, {0: holder}, steps, (), (1,), explain)
    holder.program = program  # type: ignore[attr-defined]
    watched = weakref.ref(holder)
    del holder, program, steps, explain
    gc.collect()
    assert watched() is None


def test_a_step_may_drop_the_last_reference_to_its_program() -> None:
    holder: list[Any] = []
    steps = ((holder.clear, (), -1, ()), (abs, (0,), 1, ()))
    holder.append(native.Program(2, {0: -4}, steps, (), (1,), single=True))
    assert holder[0]() == 4


# ---- failures ----------------------------------------------------------------------------------


def test_a_failure_is_told_with_its_step() -> None:
    seen: list[Any] = []

    def explain(step: int, error: Exception) -> Exception:
        seen.append((step, error))
        return LookupError("told")

    steps = ((abs, (0,), 1, ()), (fail, (1,), 2, ()))
    with pytest.raises(LookupError, match="told") as caught:
        native.Program(3, {}, steps, (0,), (2,), explain)(1)
    [(step, error)] = seen
    assert step == 1
    assert isinstance(error, ValueError)
    assert caught.value.__cause__ is error


def test_everything_is_released_before_the_failure_is_told() -> None:
    value = Value()
    before = sys.getrefcount(value)
    counts: list[int] = []

    def explain(step: int, error: Exception) -> Exception:
        counts.append(sys.getrefcount(value))
        return error

    steps = ((lambda: (value, value), (), (0, 1), ()), (fail, (), -1, ()))
    with pytest.raises(ValueError, match="no") as caught:
        native.Program(2, {}, steps, (), (0,), explain)()
    assert counts == [before]
    assert caught.value.__cause__ is None, "the exception itself has no cause"


def test_a_cause_that_is_there_stays() -> None:
    def explain(step: int, error: Exception) -> Exception:
        made = LookupError()
        made.__cause__ = KeyError("mine")
        return made

    with pytest.raises(LookupError) as caught:
        native.Program(0, {}, ((fail, (), -1, ()),), (), (), explain)()
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exceptions_outside_exception_pass(kind: type[BaseException]) -> None:
    def stop() -> None:
        raise kind

    with pytest.raises(kind):
        native.Program(0, {}, ((stop, (), -1, ()),), (), (), never)()


def test_a_failure_of_on_error_is_raised() -> None:
    def explain(step: int, error: Exception) -> Exception:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        native.Program(0, {}, ((fail, (), -1, ()),), (), (), explain)()
    with pytest.raises(TypeError, match="on_error must return"):
        native.Program(0, {}, ((fail, (), -1, ()),), (), (), lambda *_: 3)()  # type: ignore[arg-type]


def test_without_on_error_the_exception_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="no"):
        native.Program(0, {}, ((fail, (), -1, ()),), (), ())()


@pytest.mark.parametrize(
    ("result", "error"), [(3, TypeError), ((1,), ValueError), ([1, 2, 3], ValueError)]
)
def test_results_that_do_not_fit_their_slots_are_refused(result: Any, error: Any) -> None:
    program = native.Program(2, {}, ((lambda: result, (), (0, 1), ()),), (), ())
    with pytest.raises(error, match="a step of 2 outputs returned"):
        program()


def test_the_number_of_values_must_be_right() -> None:
    program = native.Program(1, {}, (), (0,), (0,))
    for values in [(), (1, 2)]:
        with pytest.raises(TypeError, match="expected 1 values"):
            program(*values)
    with pytest.raises(TypeError, match="keyword"):
        program(x=1)  # type: ignore[call-arg]


STEP_FAULTS: dict[str, Any] = {
    "reads an empty slot": ((abs, (1,), 2, ()),),
    "reads a released slot": ((abs, (0,), 1, ()), (abs, (1,), 2, (1,)), (abs, (1,), -1, ())),
    "fills a full slot": ((abs, (0,), 1, ()), (abs, (0,), 1, ())),
    "fills an input": ((abs, (0,), 0, ()),),
    "fills a slot twice": ((pair, (0, 0), (1, 1), ()),),
    "releases an empty slot": ((abs, (0,), 1, (2,)),),
    "releases twice": ((abs, (0,), 1, (1, 1)),),
    "no such slot": ((abs, (3,), 1, ()),),
    "negative slot": ((abs, (-1,), 1, ()),),
    "negative output": ((abs, (0,), -2, ()),),
    "huge slot": ((abs, (0,), 2**80, ()),),
    "copies two": ((None, (0, 0), 1, ()),),
    "copies to nowhere": ((None, (0,), -1, ()),),
}  # fmt: skip


@pytest.mark.parametrize("steps", STEP_FAULTS.values(), ids=STEP_FAULTS.keys())
def test_steps_that_cannot_run_are_refused(steps: Any) -> None:
    """A program checks when it is made, so that runs need not."""
    with pytest.raises(ValueError, match=r"Program: step \d"):
        native.Program(3, {}, steps, (0,), ())


@pytest.mark.parametrize(
    "step", [None, (), (abs,), (3, (), -1, ()), (abs, [0], -1, ()), (abs, (), None, ()),
             (abs, (0.5,), -1, ()), (abs, (), -1, ("x",))],
)  # fmt: skip
def test_invalid_steps_are_refused(step: Any) -> None:
    with pytest.raises(TypeError, match="Program"):
        native.Program(3, {}, (step,), (0,), ())


def test_slots_are_lent_once() -> None:
    cases: list[Any] = [({0: 1}, (0,)), ({}, (0, 0)), ({5: 1}, ()), ({-1: 1}, ()), ({}, (9,))]
    for constants, inputs in cases:
        with pytest.raises(ValueError, match="Program"):
            native.Program(3, constants, (), inputs, ())
    with pytest.raises(ValueError, match="outputs: slot 2 is empty"):
        native.Program(3, {}, (), (), (2,))
    with pytest.raises(ValueError, match="one output"):
        native.Program(3, {0: 1}, (), (), (0, 0), single=True)
    with pytest.raises(ValueError, match="slots"):
        native.Program(-1, {}, (), (), ())


# ---- threads, recursion, signals ---------------------------------------------------------------


def test_a_program_runs_in_many_threads_and_within_itself() -> None:
    barrier = threading.Barrier(8)

    def meet(x: int) -> int:
        barrier.wait(timeout=20)
        return x

    inner = native.Program(2, {}, ((meet, (0,), 1, ()),), (0,), (1,), single=True)
    program = native.Program(
        3, {}, ((inner, (0,), 1, ()), (inner, (1,), 2, ())), (0,), (2,), single=True
    )
    results: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: program(i)})) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: i for i in range(8)}


def test_recursion_without_end_is_an_error() -> None:
    holder: list[Any] = []
    holder.append(native.Program(0, {}, ((lambda: holder[0](), (), -1, ()),), (), ()))
    with pytest.raises(RecursionError):
        holder[0]()
    holder.clear()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_long_programs_can_be_interrupted() -> None:
    """No Python frame looks at signals while only functions in C run."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError("signal")

    text = "a" * 20_000
    steps = tuple((text.count, (0,), -1, ()) for _ in range(100_000))
    program = native.Program(1, {0: "b"}, steps, (), (), never)

    def run_often() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        for _ in range(1000):
            program()

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(TimeoutError, match="signal"):
            run_often()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_a_few_long_steps_can_be_interrupted() -> None:
    """A handler of signals runs between steps in C, not only after the last one."""
    handled: list[float] = []
    text = "a" * 20_000_000
    steps = tuple((text.count, (0,), -1, ()) for _ in range(16))
    program = native.Program(1, {0: "b"}, steps, (), (), never)
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(0))
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        program()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(handled) > 4


def test_an_interrupt_ends_a_run_before_the_next_step() -> None:
    """However long the steps are: TensorFlow runs all of them first."""
    done: list[int] = []
    step = (lambda value: done.append(value), (0,), -1, ())
    native_step = (done.append, (0,), -1, ())
    interrupt = (_thread.interrupt_main, (), -1, ())  # C code, which does not look at signals
    for after in (native_step, step):
        done.clear()
        steps = (native_step, step, interrupt, *[after] * 100)
        program = native.Program(1, {0: 1}, steps, (), (), never)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                program()
        finally:
            signal.signal(signal.SIGINT, before)
        assert len(done) == 2


# ---- Feed --------------------------------------------------------------------------------------


def slow(value: Any) -> Any:
    return "slow", value


def test_arrays_of_the_dtype_and_shape_are_fed_as_they_are() -> None:
    feed = native.Feed(np.dtype("f4"), (None, 3), slow)
    base = np.zeros((8, 6), "f4")
    for array in [np.zeros((2, 3), "f4"), base[::2, ::2], base[:0, :3], base.T[:3].T]:
        assert feed(array) is array
    swapped = np.zeros((2, 3), np.dtype("f4").newbyteorder())
    matrix: Any = np.zeros((2, 3), "f4").view(type("Sub", (np.ndarray,), {}))
    for other in [np.zeros((2, 3)), np.zeros(3, "f4"), base[:, :2], swapped, matrix, 1.0, [[1.0]]]:
        result = feed(other)
        assert result[0] == "slow"
        assert result[1] is other


def test_any_rank_fits_where_the_shape_is_unknown() -> None:
    feed = native.Feed(np.dtype("i8"), None, slow)
    for array in [np.zeros((), "i8"), np.zeros((1, 2, 3), "i8")]:
        assert feed(array) is array
    assert feed(3) == np.array(3)


def test_equal_dtypes_are_one_dtype() -> None:
    """`long` and `long long` are two types of NumPy with one meaning here."""
    feed = native.Feed(np.dtype("i8"), (1,), slow)
    array = np.zeros(1, "q") if np.dtype("i8").char == "l" else np.zeros(1, "l")
    assert feed(array) is array


LIMITS = [(name, np.iinfo(name)) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4")]


@pytest.mark.parametrize(("name", "info"), LIMITS)
def test_integers_are_fed_where_the_dtype_holds_them(name: str, info: Any) -> None:
    feed = native.Feed(np.dtype(name), (), slow)
    for value in [0, 1, int(info.min), int(info.max)]:
        result = feed(value)
        assert type(result) is np.ndarray
        assert (result.dtype, result.shape) == (np.dtype(name), ())
        assert int(result) == value
    others = [int(info.min) - 1, int(info.max) + 1, 2**70, -(2**70), 1.0, True, 1j, "1", None]
    for other in others:
        assert feed(other) == ("slow", other)


def test_unsigned_64_bits_are_fed_up_to_the_largest_int64() -> None:
    feed = native.Feed(np.dtype("u8"), (), slow)
    assert int(feed(2**63 - 1)) == 2**63 - 1
    for value in [2**63, -1]:
        assert feed(value) == ("slow", value)


@pytest.mark.parametrize(("name", "exact"), [("f4", 2**24), ("f8", 2**53)])
def test_numbers_are_fed_as_floats(name: str, exact: int) -> None:
    feed = native.Feed(np.dtype(name), (), slow)
    for value in [0.0, -0.0, 0.1, 1e-50, float("inf"), float("-inf"), exact, -exact]:
        result = feed(value)
        assert result.dtype == name
        assert result.tobytes() == np.array(value, name).tobytes()
    assert np.isnan(feed(float("nan")))
    for other in [exact + 1, -exact - 1, 2**70, True, 1j, "1"]:
        assert feed(other) == ("slow", other)


def test_a_float_that_would_become_infinite_is_not_fed_fast() -> None:
    feed = native.Feed(np.dtype("f4"), (), slow)
    assert feed(3.4028234663852886e38) == np.finfo("f4").max
    assert feed(3.5e38) == ("slow", 3.5e38)


def test_bools_are_bools() -> None:
    feed = native.Feed(np.dtype("?"), (), slow)
    assert feed(True).dtype == bool
    assert bool(feed(True))
    assert not feed(False)
    assert feed(1) == ("slow", 1)


@pytest.mark.parametrize("name", ["f2", "c8", "c16", "O", "U3", "M8[s]"])
def test_other_dtypes_take_arrays_only(name: str) -> None:
    feed = native.Feed(np.dtype(name), (), slow)
    array = np.zeros((), name)
    assert feed(array) is array
    for value in [1, 1.0, True]:
        assert feed(value) == ("slow", value)


def test_a_shape_that_fits_no_scalar_takes_none() -> None:
    assert native.Feed(np.dtype("f4"), (1,), slow)(1.0) == ("slow", 1.0)


def test_invalid_feeds_are_refused() -> None:
    make: Callable[..., Any] = native.Feed
    for arguments in [
        ("f4", (), slow),
        (np.dtype("f4"), [1], slow),
        (np.dtype("f4"), ("x",), slow),
    ]:
        with pytest.raises(TypeError):
            make(*arguments)
    for shape in [(-1,), (1,) * 300]:
        with pytest.raises(ValueError, match="Feed"):
            make(np.dtype("f4"), shape, slow)
    feed = make(np.dtype("f4"), (), slow)
    for values in [(), (1, 2)]:
        with pytest.raises(TypeError, match="one value"):
            feed(*values)


# ---- Fetch -------------------------------------------------------------------------------------


def fetched(make: Callable[[], Any]) -> Any:
    """Return what a program fetches that makes a value."""
    steps = ((make, (), 0, ()), (native.Fetch(slow), (0,), 1, (0,)))
    return native.Program(2, {}, steps, (), (1,), single=True)()


def test_arrays_that_only_the_run_knows_are_not_copied() -> None:
    addresses: list[int] = []

    def noted(array: np.ndarray) -> np.ndarray:
        addresses.append(array.ctypes.data)
        return array

    for make in [lambda: noted(np.ones(9)), lambda: noted(np.ones(12).reshape(3, 4)[:2])]:
        result = fetched(make)
        assert result.ctypes.data == addresses.pop()
        assert result.flags.writeable


def test_arrays_that_others_know_are_copied() -> None:
    mine = np.arange(6.0).reshape(2, 3)
    protected = np.ones(3)
    protected.setflags(write=False)
    makers: list[Callable[[], Any]] = [
        lambda: mine, lambda: mine[:], lambda: mine.T, lambda: protected[:],
    ]  # fmt: skip
    for make in makers:
        expected = make()
        result = fetched(make)
        assert not np.shares_memory(result, expected)
        assert result.flags.c_contiguous
        assert result.flags.writeable
        assert np.array_equal(result, expected)


def test_constants_are_copied() -> None:
    """Only the program refers to it, but the next run also needs it."""
    program = native.Program(
        2, {0: np.ones(3)}, ((native.Fetch(slow), (0,), 1, (0,)),), (), (1,), single=True
    )
    program()[:] = 7
    assert program().tolist() == [1, 1, 1]


def test_a_value_that_is_fetched_twice_is_copied_once() -> None:
    fetch = native.Fetch(slow)
    steps = ((lambda: np.ones(3), (), 0, ()), (fetch, (0,), 1, ()), (fetch, (0,), 2, (0,)))
    first, second = native.Program(3, {}, steps, (), (1, 2))()
    assert not np.shares_memory(first, second)


def test_a_small_view_does_not_keep_a_large_array() -> None:
    result = fetched(lambda: np.ones(100_000)[:4])
    assert result.base is None
    assert result.tolist() == [1] * 4


def test_a_result_of_a_step_that_kept_it_is_copied() -> None:
    kept: list[np.ndarray] = []

    def make() -> np.ndarray:
        kept.append(np.ones(3))
        return kept[0]

    assert not np.shares_memory(fetched(make), kept[0])


def test_zero_dimensions_become_numpy_scalars() -> None:
    result = fetched(lambda: np.array(7, "f4"))
    assert type(result) is np.float32
    assert type(fetched(lambda: np.float16(3))) is np.float16
    assert fetched(lambda: np.array(b"text", object)) == b"text"
    assert fetched(lambda: "else") == ("slow", "else")
