"""`native.Loops` and `make_loops` against the ufuncs called one after another."""

from __future__ import annotations

import gc
import re
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measuring import growth

from dlbridge._core import native
from dlbridge.execution.plan import UfuncCall, find_ufunc, make_loops, result_dtype

F4, F8, I4 = np.dtype("f4"), np.dtype("f8"), np.dtype("i4")
PLAIN = "?bBhHiIlLqQefdFD"


def one_by_one(instructions: Sequence[Any], outputs: Sequence[int], values: Sequence[Any]) -> Any:
    found = list(values)
    with np.errstate(all="ignore"):
        for ufunc, operands in instructions:
            found.append(ufunc(*(found[each] for each in operands)))
    return tuple(found[each] for each in outputs)


def assert_same(results: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert type(result) is type(wanted)
        assert result.dtype == wanted.dtype
        assert result.shape == wanted.shape
        assert result.tobytes() == wanted.tobytes()


def check(inputs: Sequence[Any], instructions: Sequence[Any], outputs: Sequence[int]) -> None:
    """Run both ways, in C for certain."""
    loops = native.Loops(tuple(each.dtype for each in inputs), tuple(instructions), tuple(outputs))
    results = loops(*inputs)
    assert results is not NotImplemented
    assert_same(results, one_by_one(instructions, outputs, inputs))


def test_loops_give_back_their_dtypes() -> None:
    """These are NumPy's own, which nothing ever collects: only their counts tell."""

    def make() -> None:
        native.Loops((F4, F4), ((np.add, (0, 1)), (np.sqrt, (2,))), (2, 3))

    assert growth(make, 500, lambda: sys.getrefcount(F4)) < 0.5


# ---- every inner loop --------------------------------------------------------------------------


def rows() -> list[tuple[str, str]]:
    """Return each ufunc of NumPy with each row of types that it has a loop for."""
    found: dict[tuple[str, str], None] = {}
    for name in sorted(dir(np)):
        ufunc = getattr(np, name)
        if isinstance(ufunc, np.ufunc) and ufunc.nout == 1 and ufunc.signature is None:
            for types in ufunc.types:
                if set(types) <= set(PLAIN + "->"):
                    found[ufunc.__name__, types.partition("->")[0]] = None
    return list(found)


def samples(dtype: np.dtype, count: int, seed: int) -> np.ndarray:
    """Return numbers of every size, special ones among them."""
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, count).astype(dtype)
    if dtype.kind in "iu":
        small = random.integers(0, 6, count)
        wide = random.integers(0, 256, (count, dtype.itemsize), "u1").view(dtype)[:, 0]
        return np.where(random.random(count) < 0.5, small.astype(dtype), wide)
    real = np.dtype(f"f{dtype.itemsize // (2 if dtype.kind == 'c' else 1)}")
    shape = (count, 2) if dtype.kind == "c" else (count, 1)
    with np.errstate(all="ignore"):
        values = (random.standard_normal(shape) * 10.0 ** random.integers(-9, 9, shape)).astype(
            real
        )
        special = np.array([0, -0.0, 1, -1, 2, np.inf, -np.inf, np.nan, 1e5, -1e5, 0.5], real)
    rare = random.random(shape) < 0.2
    values[rare] = random.choice(special, int(rare.sum()))
    return np.ascontiguousarray(values).view(dtype)[:, 0]


@pytest.mark.parametrize(("name", "types"), rows())
def test_every_loop_gives_the_bits_of_its_ufunc(name: str, types: str) -> None:
    """Blocks, buffers and single elements take the same path through NumPy's vector code."""
    ufunc = getattr(np, name, None) or getattr(np, {"bitwise_not": "invert"}[name])
    dtypes = tuple(np.dtype(each) for each in types)
    operands = tuple(range(len(types)))
    try:
        loops = native.Loops(dtypes, ((ufunc, operands),), (len(types),))
    except TypeError:
        pytest.skip(f"NumPy has no plain loop for {name} of {types}")
    for count in [0, 1, 5, 16, 67, 1021, 9001]:
        arrays = [samples(dtype, count, seed) for seed, dtype in enumerate(dtypes)]
        if name in ("power", "float_power") and dtypes[-1].kind == "i":
            arrays[-1] = np.abs(arrays[-1].astype("i8") % 5).astype(dtypes[-1])
        choices = [arrays]
        if count > 0:
            # Rank 0 as arrays: from 2.4 on NumPy itself gives other bits for its scalars.
            single = [array[:1].reshape(()) for array in arrays]
            choices += [[*arrays[:i], single[i], *arrays[i + 1 :]] for i in operands]
            choices += [single, [array[:1] for array in arrays]]
        for chosen in choices:
            expected = one_by_one([(ufunc, operands)], [len(types)], chosen)
            assert_same(loops(*chosen), expected)


# ---- shapes ------------------------------------------------------------------------------------

FITTING: list[tuple[Any, ...]] = [
    ((), ()), ((3,), ()), ((3,), (1,)), ((1,), ()), ((4, 3), (3,)), ((4, 3), (1, 3)),
    ((4, 3), (1, 1)), ((3,), (4, 3)), ((1, 16), (16,)), ((0,), ()), ((0,), (1,)), ((0, 3), (3,)),
    ((3, 0), (0,)),
    ((2, 3, 4), (3, 4)), ((5000, 4), (4,)), ((50, 3000), (3000,)), ((3, 20_000), (20_000,)),
    ((2, 3, 9000), (9000,)), ((1, 1), ()), ((2, 1, 5), (1, 5)), ((7, 8192), (8192,)),
    ((2, 3), (2, 3)), ((2, 3, 9000), (3, 9000)), ((4, 1), (1,)), ((100_000,), (100_000,)),
    ((100_000,), ()),
]  # fmt: skip


@pytest.mark.parametrize("shapes", FITTING, ids=str)
def test_shapes_that_fit_run_in_c(shapes: tuple[Any, ...]) -> None:
    first, second = (
        np.arange(1, 1 + int(np.prod(shape)), dtype="f4").reshape(shape) for shape in shapes
    )
    instructions = [(np.add, (0, 1)), (np.multiply, (2, 1)), (np.subtract, (0, 3))]
    check([first, second], instructions, [4, 2, 4])


def test_several_suffixes_of_several_lengths_run_together() -> None:
    random = np.random.default_rng(3)
    shapes = [(), (4,), (300, 4), (1, 4), (1, 1, 1), (7, 300, 4)]
    for widest in [(7, 300, 4), (5, 7, 300, 4), (1, 1, 7, 300, 4)]:
        arrays = [random.random(shape).astype("f4") for shape in [*shapes, widest]]
        instructions = [(np.add, (i, 6 + i if i else 1)) for i in range(7)]
        check(arrays, instructions, [13, 6, 13])


NOT_FITTING: list[tuple[Any, ...]] = [
    ((4, 3), (4, 1)), ((4, 1), (1, 3)), ((1, 3), (4, 1)), ((2, 3, 4), (2, 1, 4)),
    ((1, 16), (0, 16)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", NOT_FITTING, ids=str)
def test_other_broadcasts_are_left_to_numpy(shapes: tuple[Any, ...]) -> None:
    arrays = [np.ones(shape, "f4") for shape in shapes]
    assert native.Loops((F4, F4), ((np.add, (0, 1)),), (2,))(*arrays) is NotImplemented
    result = make_loops([F4, F4], [UfuncCall("add", (0, 1))], [2], single=True)(*arrays)
    assert_same([result], [np.add(*arrays)])


def test_results_of_another_shape_are_left_to_numpy() -> None:
    """Each value has the shape that NumPy gives it: not all have the common one."""
    full, row, one = np.ones((4, 3), "f4"), np.ones(3, "f4"), np.ones((1, 1), "f4")
    run = make_loops(
        [F4] * 3,
        [UfuncCall("add", (1, 1)), UfuncCall("add", (2, 2)), UfuncCall("add", (0, 3))],
        [3, 4, 5],
    )
    assert [each.shape for each in run(full, row, one)] == [(3,), (1, 1), (4, 3)]
    assert [each.shape for each in run(row, row[None], row[None])] == [(1, 3), (1, 3), (1, 3)]
    check([full, row], [(np.add, (1, 1)), (np.add, (0, 2))], [3])


def test_layouts_and_classes_that_loops_do_not_take_are_left_to_numpy() -> None:
    class Sub(np.ndarray):
        pass

    loops = native.Loops((F4,), ((np.negative, (0,)),), (1,))
    memory = np.zeros(65, "u1")
    base = np.arange(16, dtype="f4").reshape(4, 4)
    swapped = base.astype(F4.newbyteorder())
    odd: Any = [
        base.T,
        base[:, ::2],
        memory[1:].view("f4"),
        base.view(Sub),
        swapped,
        base.astype("f8"),
    ]
    for array in [*odd, 1.0, [1.0], None, np.float64(1)]:
        assert loops(array) is NotImplemented
    run = make_loops([F4], [UfuncCall("negative", (0,))], [1], single=True)
    for array in odd:
        assert np.array_equal(run(array), -array)
    assert run(base.T).flags.f_contiguous, "NumPy keeps the order of axes"


# ---- dataflow ----------------------------------------------------------------------------------

CLOSED = ["add", "subtract", "multiply", "maximum", "minimum", "negative", "absolute", "divide",
          "sqrt", "tanh", "exp", "arctan2", "copysign"]  # fmt: skip


@given(st.data())
def test_random_runs_agree_with_numpy(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(["f4", "f8"]), min_size=1, max_size=5))
    suffix = data.draw(st.sampled_from([(), (1,), (3,), (16,), (700,), (9000,)]))
    shape = data.draw(st.sampled_from([(), (1,), (2,), (5,)])) + suffix
    shapes = st.sampled_from([shape, shape, suffix, (), (1,) * len(shape)])
    inputs = []
    for seed, kind in enumerate(kinds):
        dims = data.draw(shapes)
        inputs.append(samples(np.dtype(kind), int(np.prod(dims)), seed).reshape(dims))
    dtypes = [each.dtype for each in inputs]
    instructions: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(data.draw(st.integers(0, 20))):
        name = data.draw(st.sampled_from([*CLOSED, "less", "isfinite", "logical_and", "equal"]))
        first = data.draw(st.integers(0, len(dtypes) - 1))
        same = [i for i, dtype in enumerate(dtypes) if dtype == dtypes[first]]
        operands = (first, data.draw(st.sampled_from(same)))[: getattr(np, name).nin]
        found = result_dtype(name, *(dtypes[each] for each in operands))
        if found is not None:
            instructions.append((name, operands))
            dtypes.append(found)
    outputs = data.draw(st.lists(st.integers(0, len(dtypes) - 1), max_size=4))
    calls = [UfuncCall(name, operands) for name, operands in instructions]
    run = make_loops(dtypes[: len(inputs)], calls, outputs)
    assert type(run) is native.Loops
    named = [(getattr(np, name), operands) for name, operands in instructions]
    expected = one_by_one(named, outputs, inputs)
    for _ in range(2):
        assert_same(run(*inputs), expected)


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_sigmoid_gives_the_bits_of_numpys_four_steps(kind: str) -> None:
    sigmoid = find_ufunc("sigmoid")
    edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        88.7,
        -88.7,
        104.0,
        -104.0,
        800.0,
        -800.0,
        np.inf,
        -np.inf,
        np.nan,
    ]
    x = np.concatenate([edges, np.random.default_rng(0).normal(0, 20, 2000)]).astype(kind)
    one = x.dtype.type(1)
    with np.errstate(all="ignore"):
        steps = one / (one + np.exp(-x))
        assert steps.tobytes() == sigmoid(x).tobytes()
        np.testing.assert_array_equal(sigmoid(x[::-3]), steps[::-3])
        np.testing.assert_array_equal(
            sigmoid(x[:1500].reshape(3, 500).T), steps[:1500].reshape(3, 500).T
        )
        into = np.zeros((len(x), 2), kind)
        assert sigmoid(x, out=into[:, 1]).base is into
        np.testing.assert_array_equal(into[:, 1], steps)
        assert not into[:, 0].any()
        np.testing.assert_array_equal(sigmoid(x, out=x), steps)
    assert sigmoid(np.empty((0, 3), kind)).shape == (0, 3)


def test_operands_of_several_sizes_do_not_share_memory() -> None:
    """A bool may not lie where a float was: their elements do not coincide."""
    x = samples(F8, 3000, 1)
    instructions: list[Any] = [(np.negative, (0,)), (np.less, (1, 0)), (np.logical_not, (2,))]
    instructions += [(np.negative, (1,)), (np.greater, (4, 0)), (np.logical_and, (3, 5))]
    check([x], instructions, [6])


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 300), (20_000,)], ids=str)
@pytest.mark.parametrize("count", [2, 3, 40])
def test_operands_are_folded_from_the_left(shape: tuple[int, ...], count: int) -> None:
    """Sums of floats depend on their order.

    None is NaN: which of two a sum keeps depends in NumPy 1 on where the result is written.
    """
    random = np.random.default_rng(count)
    arrays = [
        np.asarray(random.normal(size=shape) * 10.0 ** random.integers(-6, 6, shape), F4)
        for _ in range(count)
    ]
    operands = (*range(count), 0)
    calls = [UfuncCall("add", operands, None, True), UfuncCall("multiply", (count, 1))]
    run = make_loops([F4] * count, calls, [count + 1, count])
    steps: list[Any] = [(np.add, (0, 1))]
    steps += [(np.add, (count + i, each)) for i, each in enumerate(operands[2:])]
    steps.append((np.multiply, (2 * count - 1, 1)))
    results = [2 * count, 2 * count - 1]
    assert run.takes(*arrays)  # type: ignore[attr-defined]
    assert_same(run(*arrays), one_by_one(steps, results, arrays))


@pytest.mark.parametrize(
    "shapes",
    [((2,), ()), ((), (2,)), ((2, 3), (3,)), ((1,), ()), ((4,), (1,)), ((1, 1), (1,))],
    ids=str,
)
def test_operands_to_be_folded_have_one_shape_or_the_function_decides(shapes: Any) -> None:
    def refuse(*arrays: Any) -> Any:
        raise ValueError([each.shape for each in arrays])

    calls = [UfuncCall("negative", (0,)), UfuncCall("add", (2, 1), refuse, True)]
    run = make_loops([F4, F4], calls, [3], single=True)
    arrays = [np.ones(shape, F4) for shape in shapes]
    with pytest.raises(ValueError, match=re.escape(str(list(shapes)))):
        run(*arrays)
    for shape in shapes:
        assert np.array_equal(run(np.ones(shape, F4), np.ones(shape, F4)), np.zeros(shape))


def test_three_operands_run() -> None:
    clip = getattr(np, "_core", None) or np.core
    x = samples(F4, 500, 0)
    check([x, np.float32(-1), np.float32(1)], [(clip.umath.clip, (0, 1, 2))], [3])


def test_inputs_are_returned_themselves_and_double_outputs_are_one() -> None:
    x = np.ones(3, "f4")
    first, second, third = native.Loops((F4,), ((np.negative, (0,)),), (0, 1, 1))(x)
    assert first is x
    assert second is third


def test_results_belong_to_the_caller() -> None:
    x = np.ones(3, "f4")
    loops = native.Loops((F4,), ((np.negative, (0,)),), (1,), single=True)
    result = loops(x)
    assert result.flags.owndata
    assert result.flags.writeable
    assert result.base is None
    assert loops(x) is not result


def test_long_chains_run() -> None:
    x = samples(F4, 16, 0)
    instructions = [(np.add, (0 if i == 0 else i + 1, 1)) for i in range(5000)]
    check([x, np.float32(0.5)], instructions, [5001])
    check([x, x], instructions, [5001])


def test_wide_runs_need_many_registers() -> None:
    x = samples(F4, 3000, 0)
    wide: list[Any] = [(np.multiply, (0, 0)) for _ in range(600)]
    total = [(np.add, (i + 1, 601 + i - 1 if i else 600)) for i in range(599)]
    check([x], [*wide, *total], [1199])


def test_many_inputs_are_taken() -> None:
    inputs: list[Any] = [np.full((2, 50), i, "f4") for i in range(100)]
    inputs[7] = np.full(50, 7, "f4")
    check(inputs, [(np.add, (i, i - 1 if i == 1 else 98 + i)) for i in range(1, 100)], [198])


# ---- errors and warnings -----------------------------------------------------------------------


def test_nothing_warns_neither_here_nor_later() -> None:
    x = np.array([0, 1, -1, 3e38], "f4")
    run = make_loops(
        [F4],
        [UfuncCall("divide", (0, 0)), UfuncCall("log", (0,)), UfuncCall("multiply", (0, 0))],
        [1, 2, 3],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(x)
        np.add(x, x[:1])
        run(x[::-1].astype("f4")[:, None].T[:, ::2][0])
        ones = np.ones((3, 3))
        for later in (  # each begins with the flags that the run has left
            lambda: ones + ones,
            lambda: ones[0, 0] + ones[0, 0],
            lambda: ones.sum(),
            lambda: np.cumsum(ones),
            lambda: np.add.at(ones, 0, 1.0),
            lambda: ones.astype("f4").astype("i4"),
            lambda: np.copyto(ones, np.ones(3, "f4")),
            lambda: np.float16(ones[0, 0]),
            lambda: np.linalg.inv(np.eye(3)),
            lambda: ones @ ones,
            lambda: np.add.reduceat(ones, [0]),
            lambda: np.int64(1) + np.int64(2),
        ):
            run(x)
            later()


def test_division_of_integers_by_zero_is_zero_as_in_numpy() -> None:
    x = np.array([7, 0], "i4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = make_loops([I4, I4], [UfuncCall("floor_divide", (0, 1))], [2], single=True)
        assert run(x, np.int32(0)).tolist() == [0, 0]


def test_errors_of_a_loop_are_raised() -> None:
    run = make_loops([I4, I4], [UfuncCall("power", (0, 1)), UfuncCall("add", (0, 1))], [2, 3])
    for base in [np.array([2, 3], "i4"), np.full(200_000, 2, "i4"), np.int32(2)]:
        before = sys.getrefcount(base)
        with pytest.raises(ValueError, match="negative integer powers"):
            run(base, np.int32(-1))
        assert sys.getrefcount(base) == before


REFUSED: list[tuple[Any, ...]] = [
    ((np.dtype("O"),), ((np.negative, (0,)),), (1,)),
    ((np.dtype("M8[s]"),), (), ()),
    ((np.dtype("g"),), (), ()),
    ((F4.newbyteorder(),), (), ()),
    (("f4",), (), ()),
    ((F4, F8), ((np.add, (0, 1)),), (2,)),
    ((np.dtype("?"),), ((np.negative, (0,)),), (1,)),
    ((F4,), ((np.modf, (0,)),), (1,)),
    ((F4, F4), ((np.matmul, (0, 1)),), (2,)),
    ((F4,), ((np.add, (0,)),), (1,)),
    ((F4,), ((np.frompyfunc(abs, 1, 1), (0,)),), (1,)),
    ((F4,), ((abs, (0,)),), (1,)),
    ((F4,), (np.negative,), (1,)),
    ((F4,), ((np.negative, [0]),), (1,)),
]


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda x: str(x[:2])[:60])
def test_operations_without_a_loop_in_c_are_refused(arguments: Any) -> None:
    with pytest.raises(TypeError, match=r"Loops|ufunc|numpy"):
        native.Loops(*arguments)


@pytest.mark.parametrize("number", [-1, 1, 2, 2**40, 2**80, 0.0, None])
def test_values_that_do_not_exist_yet_are_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="none of the 1 values"):
        native.Loops((F4,), ((np.negative, (number,)), (np.negative, (0,))), ())
    if number != 1:
        with pytest.raises(ValueError, match="none of the 2 values"):
            native.Loops((F4,), ((np.negative, (0,)),), (number,))


def test_refused_loops_run_one_by_one() -> None:
    run = make_loops([F4, F8], [UfuncCall("add", (0, 1)), UfuncCall("negative", (2,))], [3, 2])
    assert type(run) is not native.Loops
    x = np.ones(3, "f4")
    assert_same(run(x, np.ones(3)), (-(x + np.ones(3)), x + np.ones(3)))


def test_the_number_of_arrays_must_be_right() -> None:
    loops = native.Loops((F4,), (), (0,))
    for values in [(), (np.ones(1, "f4"),) * 2]:
        with pytest.raises(TypeError, match="expected 1 arrays"):
            loops(*values)
    with pytest.raises(ValueError, match="one output"):
        native.Loops((F4,), (), (0, 0), single=True)


# ---- references, threads -----------------------------------------------------------------------


def test_references_are_balanced() -> None:
    x, y = np.ones((3, 4), "f4"), np.ones(4, "f4")
    ufunc = np.frompyfunc(abs, 1, 1)
    loops = native.Loops((F4, F4), ((np.add, (0, 1)),), (2, 0, 2), None)

    def counts() -> list[int]:
        return [sys.getrefcount(each) for each in (x, y, ufunc, loops)]

    loops(x, y)
    before = counts()
    for _ in range(50):
        loops(x, y)
        loops(y, y)
        loops(x.T, y)
        loops(y[0], y[1])
        with pytest.raises(TypeError):
            native.Loops((F4,), ((ufunc, (0,)),), (1,))
    gc.collect()
    # One may be held by a frame of the loop above.
    assert all(abs(now - then) <= 2 for now, then in zip(counts(), before, strict=True))
    assert abs(growth(lambda: loops(x.T, y), 500, lambda: sys.getrefcount(NotImplemented))) < 0.5


def test_memory_does_not_grow(run_python: Any) -> None:
    """Plans and scratch memory are freed with their calls."""
    run_python(
        """
        import numpy as np
        from dlbridge._core import native
        from measuring import blocks, growth

        dtype, x = np.dtype("f4"), np.ones((30, 1000), "f4")
        values = [x, x[0], np.float32(1), x[:0], x[:1, 0]]

        def make():
            loops = native.Loops((dtype, dtype), ((np.add, (0, 1)), (np.add, (2, 2))), (3,))
            for other in values:
                loops(x, other)

        assert growth(make, 300, blocks) < 0.5
        """
    ).check()


def test_loops_in_a_cycle_are_collected() -> None:
    class Holder:
        run: Any

        def slow(self, *values: Any) -> Any:
            return values

    holder = Holder()
    holder.run = native.Loops((F4,), (), (0,), holder.slow)
    watched = weakref.ref(holder)
    del holder
    gc.collect()
    assert watched() is None


def test_one_loops_object_serves_many_threads_with_many_shapes() -> None:
    """The plan of another thread's shapes may replace ours while we run without the GIL."""
    instructions = tuple((np.add, (0 if i == 0 else i + 1, 1)) for i in range(20))
    loops = native.Loops((F4, F4), instructions, (21,), single=True)
    cases: list[Callable[[], tuple[Any, Any]]] = [
        lambda: (np.ones(100_000, "f4"), np.float32(1)),
        lambda: (np.ones((200, 500), "f4"), np.ones(500, "f4")),
        lambda: (np.ones(7, "f4"), np.ones(7, "f4")),
        lambda: (np.float32(1), np.ones(30_000, "f4")),
    ]
    wrong: list[Any] = []

    def work(make: Callable[[], tuple[Any, Any]]) -> None:
        arguments = make()
        for _ in range(100):
            if not np.all(loops(*arguments) == 21):
                wrong.append(arguments)

    threads = [threading.Thread(target=work, args=(make,)) for make in cases * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_loops_are_steps_of_programs() -> None:
    run = make_loops(
        [F4, F4], [UfuncCall("add", (0, 1)), UfuncCall("multiply", (2, 1))], [3], single=True
    )
    program = native.Program(
        3, {1: np.float32(2)}, ((run, (0, 1), 2, ()),), (0,), (2,), single=True
    )
    assert program(np.ones(2, "f4")).tolist() == [6, 6]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_a_long_run_can_be_interrupted() -> None:
    """A handler of signals runs between blocks; what it raises ends the run."""
    sines = make_loops([F8], [UfuncCall("sin", (i,)) for i in range(20)], [20], single=True)
    x = np.ones(4_000_000)
    handled: list[float] = []

    def interrupt(*_: Any) -> None:
        handled.append(0)
        if len(handled) >= 3:  # another signal may come between any two lines
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            raise TimeoutError("signal")

    def run() -> None:
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        sines(x)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(TimeoutError, match="signal"):
            run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sines(x[:2]).tolist() == sines(x[-2:]).tolist()
