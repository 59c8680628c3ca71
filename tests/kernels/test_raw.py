"""C functions of bare pointers: what their parameters' names mean, and what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import dlbridge.kernels.wrap
from dlbridge._core import ffi
from dlbridge.errors import ArgumentError, ExchangeError, KernelError
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
    with pytest.raises(OverflowError):
        kernel(np.zeros(3, "float32"), k=1000)


def test_a_strided_tensor_is_refused_where_nothing_is_copied() -> None:
    kernel = wrap(axpy, AXPY, abi=AXPY_C, layout="strided")
    x = np.zeros(8, "float32")
    with pytest.raises(ExchangeError, match="raw::axpy: 'x' must be row-major"):
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
