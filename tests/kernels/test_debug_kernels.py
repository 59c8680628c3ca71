"""debug_kernels: what a kernel does that it must not is found, whichever framework calls it."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import KernelDefectError, KernelError, debug_kernels
from dlbridge.kernels.debugging import describe_finding
from dlbridge.tensor.values import numpy_dtype

SOURCE = r"""
#include "dlbridge_kernel.h"
#include <math.h>
#include <string.h>

#define KERNEL(name) int name(void *context, DLTensor *args, int count)
#define EACH(i) for (int64_t i = 0; i < args[0].shape[0]; i++)
#define X ((float *)args[0].data)
#define OUT ((float *)args[1].data)

KERNEL(twice) { EACH(i) OUT[i] = 2 * X[i]; return 0; }
KERNEL(behind) { EACH(i) OUT[i + 1] = X[i]; OUT[0] = 0; return 0; }
KERNEL(before) { EACH(i) OUT[i] = X[i]; X[-2] = 7; return 0; }
KERNEL(spoils) { EACH(i) OUT[i] = X[i]; X[2] += 1; return 0; }
KERNEL(halves) { EACH(i) if (i % 2 == 0) OUT[i] = X[i]; return 0; }
KERNEL(logs) { EACH(i) OUT[i] = logf(X[i]); return 0; }
KERNEL(adds) { EACH(i) OUT[i] += X[i]; return 0; }
KERNEL(reads_on) { EACH(i) OUT[i] = X[i] + X[i + 1]; return 0; }
KERNEL(copies_on) { EACH(i) OUT[i] = X[i + 1]; return 0; }
KERNEL(logs_of_less) { EACH(i) OUT[i] = logf(X[i] - 1.5f); return 0; }
KERNEL(fails) { OUT[0] = X[0]; return dlb_set_error(context, "no such luck"); }
KERNEL(nothing) { return 0; }
KERNEL(in_place) { EACH(i) X[i] *= 2; return 0; }
KERNEL(in_place_and_behind) { EACH(i) X[i] *= 2; X[args[0].shape[0]] = 1; return 0; }

/* Elements as they are, but the last one where they have more than 300 bytes. */
KERNEL(copies) {
    int64_t size = args[0].dtype.bits / 8, bytes = size * args[0].shape[0];
    memcpy(args[1].data, args[0].data, bytes > 300 ? bytes - size : bytes);
    return 0;
}

/* out[i] = x[i] with strides; then one float further than an element. */
KERNEL(strided) { EACH(i) OUT[i * args[1].strides[0]] = X[i * args[0].strides[0]]; return 0; }
KERNEL(between) { EACH(i) OUT[i * args[1].strides[0]] = 1; OUT[1] = 1; return 0; }
KERNEL(first) { OUT[0] = X[0]; return 0; }
KERNEL(first_of_optional) { ((float *)args[2].data)[0] = X[0]; return 0; }
"""

UNARY = "debug::{}(x: f32[n]) -> f32[n]"
# name -> reason, what the text must say of an array [1, 2, 3, 4]
DEFECTS = {
    "behind": ("out_of_bounds", "result 'out'", "4 bytes changed, the first directly behind"),
    "before": ("out_of_bounds", "argument 'x'", "4 bytes changed, the last 4 bytes before"),
    "spoils": ("changed_input", "argument 'x'", r"1 of 4 elements, the first at \[2\]"),
    "halves": ("unwritten", "result 'out'", r"2 of 4 elements unwritten, the first at \[1\]"),
    "adds": ("read_unwritten", "result 'out'", r"4 of 4 elements, .* had not written yet"),
    "reads_on": ("read_beside", "result 'out'", r"1 of 4 elements, the first at \[3\], .* beside"),
    "copies_on": ("read_beside", "result 'out'", r"1 of 4 elements, the first at \[3\], .* beside"),
    "logs_of_less": ("nan", "result 'out'", r"1 of 4 elements is NaN, the first at \[0\]"),
}


@pytest.fixture(scope="module")
def kernel() -> Callable[..., dlbridge.Kernel]:
    """Return `kernel(name, schema=UNARY, **options)`, a function of SOURCE."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("there is no C compiler")

    def build(name: str, schema: str | None = UNARY, **options: Any) -> dlbridge.Kernel:
        text = None if schema is None else schema.format(name)
        return dlbridge.compile_c(SOURCE, name, text, **options)

    return build


@pytest.fixture
def debugging() -> Iterator[None]:
    with debug_kernels():
        yield


def array(*values: float, dtype: str = "f4") -> Any:
    return np.array(values or (1, 2, 3, 4), dtype)


def refused(call: Callable[[], Any], name: str) -> None:
    """Assert that a call is refused as DEFECTS says."""
    reason, owner, words = DEFECTS[name]
    with pytest.raises(
        KernelDefectError, match=rf"^debug::{name}: {owner}, f32\[4\].*{words}"
    ) as at:
        call()
    assert at.value.reason == reason
    assert str(at.value).endswith(f"[{reason}]")


# ---- in every framework ------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.usefixtures("debugging")
def test_numpy_calls_are_checked(name: str, kernel: Any) -> None:
    refused(lambda: kernel(name)(array()), name)


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.usefixtures("debugging")
def test_tensors_of_our_own_are_checked(name: str, kernel: Any) -> None:
    refused(lambda: kernel(name)(dlbridge.as_tensor(array())), name)


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.usefixtures("debugging")
def test_torch_calls_are_checked(name: str, kernel: Any, framework: Any) -> None:
    torch = framework("torch")
    function, x = kernel(name), torch.from_numpy(array())
    refused(lambda: function(x), name)
    with pytest.raises(RuntimeError, match=rf"debug::{name}: .*\[{DEFECTS[name][0]}\]"):
        getattr(torch.ops.debug, name)(x)
    assert x.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.usefixtures("debugging")
def test_calls_of_jax_are_checked_eagerly_and_in_programs(
    name: str, kernel: Any, framework: Any
) -> None:
    jax = framework("jax")
    function, x = kernel(name).jax, jax.numpy.asarray(array())
    refused(lambda: function(x), name)
    with pytest.raises(Exception, match=rf"debug::{name}: .*\[{DEFECTS[name][0]}\]"):
        jax.jit(lambda x: function(x) + 1)(x).block_until_ready()


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.usefixtures("debugging")
def test_calls_of_tensorflow_are_checked_eagerly_and_in_graphs(
    name: str, kernel: Any, framework: Any
) -> None:
    tf = framework("tensorflow")
    function, x = kernel(name), tf.constant(array())
    refused(lambda: function(x), name)
    with pytest.raises(tf.errors.OpError, match=rf"debug::{name}: .*\[{DEFECTS[name][0]}\]"):
        tf.function(lambda x: function(x) + 1)(x)


@pytest.mark.usefixtures("debugging")
def test_graphs_that_torch_compiled_are_checked(kernel: Any, framework: Any) -> None:
    torch = framework("torch")
    twice, halves = kernel("twice"), kernel("halves")
    compiled = torch.compile(lambda x: halves(twice(x)), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"debug::halves: .*\[unwritten\]"):
        compiled(torch.ones(4))


def test_programs_that_were_compiled_before_are_checked(kernel: Any, framework: Any) -> None:
    jax = framework("jax")
    program = jax.jit(kernel("halves").jax)
    x = jax.numpy.asarray(array())
    for _ in range(3):
        program(x).block_until_ready()
    with debug_kernels(), pytest.raises(Exception, match=r"\[unwritten\]"):
        program(x).block_until_ready()
    program(x).block_until_ready()


def test_calls_that_c_has_seen_before_are_checked(kernel: Any) -> None:
    function, x = kernel("halves"), array()
    for _ in range(3):
        function(x)
        function(x, out=array())
    with debug_kernels():
        refused(lambda: function(x), "halves")
        refused(lambda: function(x, out=array()), "halves")
    function(x)


# ---- right kernels are as they were ------------------------------------------------------------


@pytest.mark.usefixtures("debugging")
def test_a_right_kernel_gives_what_it_gave(kernel: Any) -> None:
    twice, x = kernel("twice"), array()
    assert twice(x).tolist() == [2, 4, 6, 8]
    out = np.zeros(8, np.float32)
    assert twice(x, out=out[::2]) is not None
    assert out.tolist() == [2, 0, 4, 0, 6, 0, 8, 0]
    assert twice(np.arange(8, dtype="f4")[::-2]).tolist() == [14, 10, 6, 2]
    assert twice(array(*[])[:0]).shape == (0,)
    in_place = kernel("in_place", "debug::{}(x!: f32[n])")
    in_place(x)
    assert x.tolist() == [2, 4, 6, 8]
    in_place(out[1::2])
    assert out.tolist() == [2, 0, 4, 0, 6, 0, 8, 0]


@pytest.mark.parametrize("dtype", ["u1", "i1", "?", "i2", "u4", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.usefixtures("debugging")
def test_every_value_of_a_dtype_may_be_written(dtype: str, kernel: Any) -> None:
    """The values that memory is filled with are among them."""
    copies = kernel("copies", "debug::{}(x: any[n]) -> any[n]")
    values = np.array([0xA5A5A5A5, 0x5A5A5A5A, 0x3C3C3C3C, 0, 1], "u4").view("u1")
    x = values % 2 == 1 if dtype == "?" else np.tile(values, 4).view(dtype)
    assert copies(x).tobytes() == x.tobytes()
    longer = np.tile(x, 300 // x.nbytes + 1)
    with pytest.raises(KernelDefectError, match=rf"left 1 of .* \[{len(longer) - 1}\]") as at:
        copies(longer)
    assert at.value.reason == "unwritten"


@pytest.mark.usefixtures("debugging")
def test_packed_elements_are_checked_one_by_one(kernel: Any) -> None:
    half = kernel("copies", "debug::{}(x: i4[n]) -> i4[n]")  # bits / 8 is 0: it writes nothing
    with pytest.raises(KernelDefectError, match=r"left 5 of 5 elements unwritten, the first at"):
        half(dlbridge.full(5, 3, "int4"))


@pytest.mark.usefixtures("debugging")
def test_nan_and_infinity_that_go_in_may_come_out(kernel: Any) -> None:
    twice, logs = kernel("twice"), kernel("logs")
    assert np.isnan(twice(array(1, np.nan))).tolist() == [False, True]
    assert twice(array(np.inf, -np.inf)).tolist() == [np.inf, -np.inf]
    assert np.isnan(logs(array(-1, np.nan))).all()
    with pytest.raises(KernelDefectError, match=r"1 of 2 elements is NaN, the first at \[1\]"):
        logs(array(1, -1))


@pytest.mark.parametrize(
    "dtype",
    [
        *("float16", "bfloat16", "float32", "float64", "complex64"),
        *("complex32", "bcomplex32"),  # of ml_dtypes 0.6
    ],
)
@pytest.mark.usefixtures("debugging")
def test_nan_is_found_in_every_floating_dtype(dtype: str) -> None:
    if numpy_dtype(*dlbridge.DType(dtype).triple) is None:
        pytest.skip(f"ml_dtypes has no {dtype} here")

    @dlbridge.wrap(schema="debug::born(x: any[n]) -> any[n]", abi="python:dlbridge")
    def born(x: Any) -> Any:
        return made

    made = dlbridge.full((2, 3), 1, dtype).reshape(6)
    x = dlbridge.zeros(6, dtype)
    assert dlbridge.equal(born(x), made)
    made = dlbridge.full(6, float("nan"), dtype)
    with pytest.raises(KernelDefectError, match="6 of 6 elements are NaN"):
        born(x)
    assert born(made).shape == (6,)
    made = None  # the kernel, which is kept by its name, keeps it


def test_nan_is_no_defect_where_the_caller_says_so(kernel: Any) -> None:
    with debug_kernels(nans=False):
        assert np.isnan(kernel("logs")(array(-1))).all()
        refused(lambda: kernel("halves")(array()), "halves")


# ---- memory ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("debugging")
def test_nothing_of_a_refused_call_is_seen(kernel: Any) -> None:
    x, out = array(), np.full(6, 9, np.float32)
    for name in DEFECTS:
        with pytest.raises(KernelDefectError):
            kernel(name)(x, out=out[1:5])
    with pytest.raises(KernelDefectError, match=r"argument 'x'.*directly behind its end"):
        kernel("in_place_and_behind", "debug::{}(x!: f32[n])")(x[:3])
    assert x.tolist() == [1, 2, 3, 4]
    assert out.tolist() == [9] * 6


@pytest.mark.usefixtures("debugging")
def test_strided_memory_keeps_its_strides_and_its_gaps(kernel: Any) -> None:
    strided, between = kernel("strided", layout="strided"), kernel("between", layout="strided")
    x, out = np.arange(8, dtype="f4"), np.full(12, 9, np.float32)
    strided(x[::2], out=out[::3])
    assert out[::3].tolist() == [0, 2, 4, 6]
    assert strided(x[::-2]).tolist() == [7, 5, 3, 1]
    with pytest.raises(KernelDefectError, match="4 bytes changed, between its elements"):
        between(x[::2], out=out[::3])
    assert out[1] == 9


@pytest.mark.usefixtures("debugging")
def test_a_view_of_more_elements_than_there_is_memory_is_one_element(kernel: Any) -> None:
    first = kernel("first", "debug::{}(x: f32[n]) -> f32[]", layout="strided")
    assert first(np.broadcast_to(np.float32(3), (2**40,))) == 3


@pytest.mark.usefixtures("debugging")
def test_empty_tensors_are_guarded(kernel: Any) -> None:
    first = kernel("first")
    with pytest.raises(KernelDefectError, match=r"result 'out', f32\[0\].*directly behind its end"):
        first(np.zeros(0, np.float32))


@pytest.mark.usefixtures("debugging")
def test_tensors_that_are_left_out_stay_so(kernel: Any) -> None:
    first = kernel("first_of_optional", "debug::{}(x: f32[n], y: f32[n]? = None) -> f32[]")
    assert first(array()) == 1
    assert first(array(5), array(6)) == 5


@pytest.mark.usefixtures("debugging")
def test_a_kernel_without_a_schema_writes_its_last_tensor(kernel: Any) -> None:
    x, out = array(), array(0, 0, 0, 0)
    kernel("twice", None)(x, out)
    assert out.tolist() == [2, 4, 6, 8]
    with pytest.raises(KernelDefectError, match=r"argument '0', f32\[4\].*changed 1 of 4"):
        kernel("spoils", None)(x, out)
    kernel("halves", None)(x, out)  # what it leaves may be what the caller had there
    assert out.tolist() == [1, 4, 3, 8]


@pytest.mark.usefixtures("debugging")
def test_a_failure_of_the_kernel_is_told_first(kernel: Any) -> None:
    with pytest.raises(KernelError, match="no such luck") as at:
        kernel("fails")(array())
    assert type(at.value) is KernelError


@pytest.mark.usefixtures("debugging")
def test_python_functions_are_checked() -> None:
    @dlbridge.wrap(schema="debug::partly(x: f32[n]) -> f32[n]", abi="python:numpy")
    def partly(x: Any, *, out: Any) -> None:
        out[1:] = x[1:]

    @dlbridge.wrap(schema="debug::counts(x: u8[n]) -> u8[n]", abi="python:numpy")
    def counts(x: Any) -> Any:
        calls.append(1)
        return x.copy()

    calls: list[int] = []
    with pytest.raises(KernelDefectError, match=r"debug::partly: result 'out'.*first at \[0\]"):
        partly(array())
    assert counts(np.full(3, 0xA5, "u1")).tolist() == [0xA5] * 3
    assert len(calls) == 1  # it may do more than compute


# ---- the switch --------------------------------------------------------------------------------


def is_on(kernel: Any) -> bool:
    try:
        kernel("nothing")(array())
    except KernelDefectError:
        return True
    return False


def test_a_call_switches_and_a_context_switches_back(kernel: Any) -> None:
    assert not is_on(kernel)
    try:
        debug_kernels()
        assert is_on(kernel)
        with debug_kernels(False):
            assert not is_on(kernel)
            with debug_kernels():
                assert is_on(kernel)
            assert not is_on(kernel)
        assert is_on(kernel)
        debug_kernels(False)
        assert not is_on(kernel)
    finally:
        debug_kernels(False)


def test_contexts_may_end_in_any_order(kernel: Any) -> None:
    one, two = debug_kernels(), debug_kernels()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert is_on(kernel)
    two.__exit__(None, None, None)
    assert not is_on(kernel)


PROGRAM = """
import numpy, dlbridge
try:
    @dlbridge.wrap(schema="debug::partly(x: f32[n]) -> f32[n]", abi="python:numpy")
    def partly(x, *, out):
        out[1:] = x[1:]
    @dlbridge.wrap(schema="debug::root(x: f32[n]) -> f32[n]", abi="python:numpy")
    def root(x):
        with numpy.errstate(all="ignore"):
            return numpy.sqrt(x)
    for kernel in (partly, root):
        try:
            kernel(-numpy.ones(3, "f4"))
            print("well")
        except dlbridge.KernelDefectError as error:
            print(error.reason)
except dlbridge.errors.ArgumentError as error:
    print(error)
"""


@pytest.mark.fast(lambda value: value in ("1", "yes"))
@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (None, ["well", "well"]),
        ("0", ["well", "well"]),
        ("1", ["unwritten", "nan"]),
        ("no-nans", ["unwritten", "well"]),
        ("yes", ["DLBRIDGE_DEBUG_KERNELS must be 0, 1 or no-nans, got 'yes'"]),
    ],
)
def test_the_environment_switches_it_on(value: str | None, printed: list[str]) -> None:
    given = {} if value is None else {"DLBRIDGE_DEBUG_KERNELS": value}
    root = Path(dlbridge.__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), **given}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines() == printed


# ---- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "count", "place", "words"),
    [
        ("out_of_bounds", 1, 0, "1 byte changed, directly behind its end"),
        ("out_of_bounds", 8, 4, "8 bytes changed, the first 4 bytes behind its end"),
        ("out_of_bounds", 8, -1, "8 bytes changed, the last directly before its start"),
        ("out_of_bounds", 8, -5, "8 bytes changed, the last 4 bytes before its start"),
        ("out_of_bounds", 3, -(2**63), "3 bytes changed, between its elements"),
        ("changed_input", 2, 5, r"changed 2 of 6 elements, the first at [1, 2], of an argument"),
        ("unwritten", 6, 0, "left 6 of 6 elements unwritten, the first at [0, 0]"),
        ("nan", 1, 3, "1 of 6 elements is NaN, the first at [1, 0], and no argument has any"),
        ("read_beside", 2, 3, "2 of 6 elements, the first at [1, 0], from memory beside"),
        ("read_unwritten", 2, 3, "from elements of a result that it had not written yet"),
    ],
)
def test_a_finding_in_words(reason: str, count: int, place: int, words: str) -> None:
    assert words in describe_finding(reason, (2, 3), count, place)


def test_the_error_can_be_pickled() -> None:
    error = KernelDefectError("nan", "a::f: result 'out': 2 of 3 elements are NaN")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.reason, str(copy)) == (KernelDefectError, "nan", str(error))


@pytest.mark.parametrize(
    ("results", "name"),
    [("(f32[n], f32[n])", "out_1"), ("(low: f32[n], high: f32[n])", "high")],
)
def test_one_of_several_results_is_reported_by_its_name(results, name):
    def half(x, out):
        out[0][:] = x

    kernel = dlbridge.wrap(half, f"debugged::half(x: f32[n]) -> {results}", abi="python:numpy")
    with dlbridge.debug_kernels(), pytest.raises(KernelDefectError, match=f"result '{name}', f32"):
        kernel(np.ones(64, np.float32))
