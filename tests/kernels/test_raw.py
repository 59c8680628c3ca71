"""C functions of bare pointers: what their parameters' names mean, and what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import dlbridge.kernels.wrap
from dlbridge._core import ffi
from dlbridge.errors import ArgumentError, ExchangeError, KernelError
from dlbridge.kernels.kinds.recognition import make_targets
from dlbridge.kernels.library import compile_c

wrap = dlbridge.kernels.wrap.wrap

AXPY = "raw::axpy(x: f32[n], y: f32[n], *, alpha: float = 1.0) -> f32[n]"
AXPY_C = "void(const float *x, const float *y, float *out, int64_t n, float alpha)"


def c_function(restype: object, *argtypes: object):
    """Return a decorator that makes a C function of a Python one: enough to see what arrives."""
    return ctypes.CFUNCTYPE(restype, *argtypes)


@c_function(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_float)
def axpy(x, y, out, n, alpha):
    arrays = [np.ctypeslib.as_array(ctypes.cast(p, ctypes.POINTER(ctypes.c_float)), (n,))
              for p in (x, y, out)]  # fmt: skip
    np.add(alpha * arrays[0], arrays[1], out=arrays[2])


def test_names_say_what_is_passed() -> None:
    kernel = wrap(axpy, AXPY, abi=AXPY_C)
    x, y = np.arange(4, dtype="float32"), np.ones(4, "float32")
    assert kernel(x, y, alpha=3.0).tolist() == [1, 4, 7, 10]
    assert kernel(x[::-1], y).tolist() == [4, 3, 2, 1]  # strided: copied


def test_the_order_is_that_of_the_c_signature() -> None:
    seen = []

    @c_function(ctypes.c_int, ctypes.c_int32, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p,
                ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p)  # fmt: skip
    def function(columns, out, flag, x, rows, mode, stream):
        seen.append((columns, flag, rows, mode, stream, x != out))
        return 0

    text = (
        "int(int32_t n, double *out, bool flag, const int64_t *x, int64_t batch, "
        "const char *mode, void *stream)"
    )
    schema = 'raw::f(x: i64[*batch, n], *, flag: bool, mode: str = "é") -> f64[*batch, n]'
    kernel = wrap(function, schema, abi=text)
    kernel(np.zeros((2, 3, 5), "int64"), flag=True)
    kernel(np.zeros((2, 0), "int64"), flag=False, mode="b")
    assert seen[0] == (5, True, 6, "é".encode(), None, True)
    assert seen[1][:4] == (0, False, 2, b"b")


def test_an_optional_tensor_that_is_left_out_is_null() -> None:
    @c_function(None, ctypes.c_void_p, ctypes.c_void_p)
    def function(x, w):
        seen.append((x is None, w is None))

    seen = []
    kernel = wrap(function, "raw::g(x!: f32[n], w: f32[n]? = None)",
                  abi="void(float *x, const float *w)")  # fmt: skip
    x = np.zeros(3, "float32")
    kernel(x)
    kernel(x, x.copy())
    assert seen == [(False, True), (False, False)]


def test_a_status_is_a_failure() -> None:
    @c_function(ctypes.c_int, ctypes.c_void_p)
    def function(x):
        return 7

    kernel = wrap(function, "raw::h(x!: f32[n])", abi="int(float *x)")
    with pytest.raises(KernelError, match=r"^raw::h: the kernel returned status 7$"):
        kernel(np.zeros(3, "float32"))


def test_an_integer_that_c_cannot_hold_is_refused_before_the_call() -> None:
    @c_function(None, ctypes.c_void_p, ctypes.c_int8)
    def function(x, k):
        raise AssertionError

    kernel = wrap(function, "raw::narrow(x!: f32[n], *, k: int)", abi="void(float *x, int8_t k)")
    with pytest.raises(ArgumentError, match=r"k is 1000, which .* signed integer of 8 bits cannot"):
        kernel(np.zeros(3, "float32"), k=1000)


STATUSES = {
    "signed char": -128, "unsigned char": 200, "short": -30000, "uint16_t": 60000,
    "int": -(2**31), "uint32_t": 2**32 - 1, "int64_t": 2**40, "uint64_t": 5, "bool": 1,
}  # fmt: skip


def test_a_status_may_be_any_integer() -> None:
    """What is behind the bytes of a small one in its register is not looked at."""
    for number, (kind, status) in enumerate(STATUSES.items()):
        source = (
            "#include <stdint.h>\n#include <stdbool.h>\n"
            f"static {kind} table[] = {{0, ({kind}){status}LL}};\n"
            f"{kind} status(int64_t which) {{ return table[which]; }}\n"
        )
        schema = f"raw::status_{number}(x: f32[which], *, which: int)"
        kernel = compile_c(source, "status", schema, abi=f"{kind}(int64_t which)")
        kernel(np.zeros(0, "float32"), which=0)
        with pytest.raises(KernelError, match=f"returned status {status}$"):
            kernel(np.zeros(1, "float32"), which=1)


KINDS = {
    "int8_t": ("int", -100), "uint8_t": ("int", 200), "int16_t": ("int", -30000),
    "uint16_t": ("int", 60000), "int32_t": ("int", -(2**31)), "uint32_t": ("int", 2**32 - 1),
    "int64_t": ("int", -(2**53)), "bool": ("bool", True), "float": ("float", -0.5),
    "double": ("float", 1e300),
}  # fmt: skip


def passing(kinds: list[str], name: str):
    """Return a kernel that writes its scalars of these types into `out`, and what it is to write.

    The tensors stand in the middle, so that their addresses go through registers or the stack.
    """
    scalars = [f"s{i}" for i in range(len(kinds))]
    parameters = [f"{kind} {scalar}" for kind, scalar in zip(kinds, scalars, strict=True)]
    half = len(parameters) // 2
    parameters[half:half] = ["const double *x", "int64_t n", "double *out"]
    text = ", ".join(parameters)
    body = "".join(f"    out[{i}] = (double){each};\n" for i, each in enumerate(scalars))
    source = (
        "#include <stdint.h>\n#include <stdbool.h>\n"
        f"void pass({text}) {{\n{body}    out[n - 1] = x[0] + n;\n}}\n"
    )
    declared = [f"{scalar}: {KINDS[kind][0]}" for kind, scalar in zip(kinds, scalars, strict=True)]
    schema = f"raw::{name}(x: f64[n], *, {', '.join(declared)}) -> f64[n]"
    values = {scalar: KINDS[kind][1] for kind, scalar in zip(kinds, scalars, strict=True)}
    kernel = compile_c(source, "pass", schema, abi=f"void({text})")
    n = len(kinds) + 1
    x = np.full(n, 0.25)
    expected = [
        np.float32(v) if k == "float" else v for k, v in zip(kinds, values.values(), strict=True)
    ]
    return lambda: kernel(x, **values).tolist(), [*map(float, expected), n + 0.25]


def test_arguments_go_into_registers_and_onto_the_stack() -> None:
    """Of each type, in every order: a small number has its sign behind it, a float nothing."""
    rng = np.random.default_rng(5)
    for number, count in enumerate((1, 3, 5, 8, 12, 16)):
        kinds = [*rng.choice(list(KINDS), count)]
        call, expected = passing(kinds, f"mixed_{number}")
        assert call() == expected, kinds
    for kind in ("float", "double", "int8_t"):  # more than there are registers
        call, expected = passing([kind] * 16, f"many_{kind}")
        assert call() == expected


def target_of(kernel) -> str:
    functions, launch = kernel.functions, kernel.recipe.launch
    (target,) = make_targets(kernel.name, functions, kernel.schema, launch)
    return target[1]


def test_the_core_calls_functions_of_numbers_texts_dtypes_and_lists() -> None:
    kernel = wrap(axpy, AXPY.replace("axpy", "in_c"), abi=AXPY_C)
    assert target_of(kernel) == "c"
    for kind, passed in (
        ("str", "const char *s"),
        ("dtype", "DLDataType s"),
        ("int[]", "const int64_t *s, uint8_t s_count"),
        ("float[2]", "const double *s"),
    ):
        schema = f"raw::takes(x!: f32[n], *, s: {kind})"
        assert target_of(wrap(axpy, schema, abi=f"void(float *x, {passed})")) == "c"


LISTS = """
#include <string.h>
#include "dlbridge_kernel.h"

void mix(const double *const *xs, int64_t n, const char *how, const int64_t *powers,
         int16_t powers_count, DLDataType to, const double *offset, double *const *out, int64_t k,
         double *total) {
    double sum = 0;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++) {
            double value = xs[i][j] + (offset ? *offset : 0);
            for (int16_t p = 0; p < powers_count; p++)
                value *= strcmp(how, "times") == 0 ? powers[p] : 1;
            out[i][j] = value + to.bits;
            sum += out[i][j];
        }
    if (total)
        *total = sum;
}
"""
MIX = (
    "void(const double *const *xs, int64_t n, const char *how, const int64_t *powers, "
    "int16_t powers_count, DLDataType to, const double *offset, double *const *out, int64_t k, "
    "double *total)"
)


@pytest.fixture(scope="module")
def mix():
    return compile_c(
        LISTS,
        "mix",
        "raw::mix(xs: f64[n][k], offset: f64[]? = None, *, how: str = 'times', powers: int[] = [2],"
        " to: dtype = f32, total: bool = False) -> (out: f64[n][k], sum: f64[]? if total)",
        abi=MIX.replace("double *total", "double *sum"),
    )


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_lists_texts_dtypes_and_optional_results_in_one_call(mix, framework, name) -> None:
    if name == "jax":
        framework("jax").config.update("jax_enable_x64", True)
    framework(name)
    try:
        for count in (1, 2, 70):  # of few and of many tensors
            xs = [dlbridge.convert(np.arange(3.0) + i, name) for i in range(count)]
            out, total = mix(xs)
            assert total is None
            for i, each in enumerate(out):
                assert np.asarray(each).tolist() == [2 * (j + i) + 32 for j in range(3)]
            half = dlbridge.convert(np.array(0.5), name)
            out, total = mix(xs, half, how="plain", powers=[], to="f64", total=True)
            for i, each in enumerate(out):
                assert np.asarray(each).tolist() == [j + i + 64.5 for j in range(3)]
            assert float(total) == sum(float(np.asarray(each).sum()) for each in out)
        empty = dlbridge.convert(np.zeros(0), name)
        assert np.asarray(mix([empty])[0][0]).shape == (0,)
    finally:
        if name == "jax":
            framework("jax").config.update("jax_enable_x64", False)


def test_the_core_calls_functions_with_lists(mix) -> None:
    kernel = mix.lists.serving(
        [[np.zeros(3)] * 2, None], ["times", (2,), dlbridge.DType("f4"), True]
    )
    assert target_of(kernel) == "c"


def test_a_length_that_its_parameter_cannot_hold_is_named() -> None:
    schema = "raw::few(xs: f32[n][], y!: f32[n])"
    kernel = wrap(axpy, schema, abi="void(const float *const *xs, int8_t xs_count, float *y)")
    x = np.zeros(2, "f")
    with pytest.raises(ArgumentError, match=r"xs_count is 200, which the kernel's signed integer"):
        kernel([x] * 200, np.zeros(2, "f"))


def test_jit_of_jax_calls_it(framework) -> None:
    jax = framework("jax")
    kernel = wrap(axpy, AXPY.replace("axpy", "jitted"), abi=AXPY_C)
    x = jax.numpy.arange(4.0, dtype="float32")
    assert jax.jit(lambda x: kernel.jax(x, x, alpha=3.0))(x).tolist() == [0, 4, 8, 12]


def test_a_strided_tensor_is_refused_where_nothing_is_copied() -> None:
    kernel = wrap(axpy, AXPY, abi=AXPY_C, layout="strided")
    x = np.zeros(8, "float32")
    with pytest.raises(ExchangeError, match="raw::axpy: argument 'x': expected row-major"):
        kernel(x[::2], x[:4])


def test_numba_takes_the_same_text(framework) -> None:
    numba = framework("numba")
    pointer = numba.types.CPointer(numba.types.float32)
    signature = numba.types.void(pointer, pointer, pointer, numba.types.int64, numba.types.float32)

    @numba.cfunc(signature)
    def function(x, y, out, n, alpha):
        for i in range(n):
            out[i] = alpha * x[i] + y[i]

    kernel = wrap(function, AXPY.replace("axpy", "numba_axpy"), abi=AXPY_C)
    x = np.arange(5, dtype="float32")
    assert kernel(x, x, alpha=-1.0).tolist() == [0] * 5


REFUSED = {
    "float *(const float *x, const float *y, float *out)": "cannot be returned",
    "float(const float *x, const float *y, float *out)": "cannot be returned",
    "void(float *x, const float *y, float *out)": "must be const",
    "void(const float *x, const float *y, const float *out)": "is const, but the kernel writes it",
    "void(const double *x, const float *y, float *out)": "does not point to f32",
    "void(const int32_t *x, const float *y, float *out)": "does not point to f32",
    "void(float x, const float *y, float *out)": "must be a pointer",
    "void(const float *x, const float *y)": "must write 'out'",
    "void(const float *x, const float *y, float *out, int64_t m)": "'m' means nothing here",
    "void(const float *x, const float *y, float *out, float n)": "must be an integer",
    "void(const float *x, const float *y, float *out, int alpha)": "is not how C takes float",
    "void(const float *x, const float *y, float *out, long stream)": "must be void \\*",
    "void(const float *, const float *y, float *out)": "is not a parameter with a name",
    "void(const quux *x, const float *y, float *out)": "is no C type",
    "void(const float *x, void (*y)(int), float *out)": "is not a parameter with a name",
    "(x": "is no C signature",
}


@pytest.mark.parametrize("text", REFUSED)
def test_an_abi_that_does_not_fit_is_refused_by_wrap(text: str) -> None:
    with pytest.raises(ArgumentError, match=REFUSED[text]):
        wrap(ffi.cast("void *", 16), AXPY, abi=text)


def test_a_set_of_dtypes_needs_a_pointer_to_anything() -> None:
    schema = "raw::any(x: f32|f64[n]) -> f32|f64[n]"
    with pytest.raises(ArgumentError, match="void \\* points to any dtype"):
        wrap(ffi.cast("void *", 16), schema, abi="void(const float *x, float *out)")
    wrap(ffi.cast("void *", 16), schema, abi="void(const void *x, void *out)")


def test_the_number_of_an_optional_list_has_no_value_for_none() -> None:
    schema = "raw::f(*, n: int, axes: int[]? = None) -> f32[n]"
    with pytest.raises(ArgumentError, match="axes_count' has no value for None"):
        wrap(ffi.cast("void *", 16), schema, abi="void(float *out, int64_t n, int64_t axes_count)")


def test_a_raw_function_needs_a_schema() -> None:
    with pytest.raises(ArgumentError, match="needs a schema"):
        wrap(axpy, abi=AXPY_C)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("f16", "uint16_t"), ("bf16", "uint16_t"), ("u8", "unsigned char"), ("bool", "bool"),
     ("i8", "char"), ("c64", "float _Complex"), ("f8e4m3fn", "uint8_t")],
)  # fmt: skip
def test_c_types_that_hold_a_dtype(dtype: str, kind: str) -> None:
    wrap(ffi.cast("void *", 16), f"raw::t(x!: {dtype}[n])", abi=f"void({kind} *x)")


@pytest.mark.parametrize(
    "kind",
    [
        *("double _Complex", "_Complex double", "double complex", "complex double"),
        *("std::complex<double>", "thrust::complex< double >", "cuda::std::complex<double>"),
        "cuDoubleComplex",
    ],
)
def test_complex_numbers_are_spelled_as_elsewhere(kind: str) -> None:
    abi = f"void(const {kind} *x, {kind}* out, int64_t n)"
    assert wrap(axpy, "raw::f(x: c128[n]) -> c128[n]", abi=abi).schema is not None
    with pytest.raises(ArgumentError, match=r"does not point to c64\[n\]"):
        wrap(axpy, "raw::f(x: c64[n]) -> c64[n]", abi=abi)
    narrow = abi.replace("double", "float").replace("Double", "")
    assert wrap(axpy, "raw::f(x: c64[n]) -> c64[n]", abi=narrow).schema is not None


def test_compiled_c(tmp_path) -> None:
    kernel = compile_c(
        "#include <stdint.h>\n"
        "void scale(const float *x, float *out, int64_t n, double factor) {\n"
        "    for (int64_t i = 0; i < n; i++) out[i] = (float)(factor * x[i]);\n}\n",
        "scale",
        "raw::scale(x: f32[n], *, factor: float) -> f32[n]",
        abi="void(const float *x, float *out, int64_t n, double factor)",
    )
    assert kernel(np.arange(3, dtype="float32"), factor=2.0).tolist() == [0, 2, 4]
