"""The kinds of functions that wrap takes: recognised by themselves, called right, or refused."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ArgumentError, CUDAError, UnsupportedTypeError
from dlbridge.kernels.kinds import recognition as kinds

POINTER, INT = ctypes.c_void_p, ctypes.c_int
ADD = "test::add(x: f32[n], y: f32[n]) -> f32[n]"
X = np.arange(3, dtype="f4")


def check(kernel: dlbridge.Kernel) -> None:
    """Call a kernel that adds."""
    assert kernel(X, X + 1).tolist() == [1, 3, 5]


# ---- ctypes --------------------------------------------------------------------------------------


def test_a_ctypes_function_without_argtypes_needs_an_abi(library: dlbridge.Library) -> None:
    """ctypes would call it with anything, so it tells nothing."""
    with pytest.raises(ArgumentError) as caught:
        dlbridge.wrap(library.add, ADD)
    assert "wrap: a ctypes function does not say how it is called" in str(caught.value)
    check(dlbridge.wrap(library.add, ADD, abi="dltensors"))
    check(dlbridge.wrap(library.add_pointers, ADD, abi="pointers"))


def test_a_declared_ctypes_function_says_its_abi(library: dlbridge.Library) -> None:
    """argtypes and restype are the prototype."""
    add, add_pointers = library["add"], library["add_pointers"]
    add.argtypes = [POINTER, POINTER, INT]
    add_pointers.argtypes = [POINTER] * 3
    assert kinds.recognise(add).abi == "dltensors"
    assert kinds.recognise(add_pointers).abi == "pointers"
    check(dlbridge.wrap(add, ADD))
    check(dlbridge.wrap(add_pointers, ADD))


def test_an_abi_that_contradicts_the_prototype_is_refused(library: dlbridge.Library) -> None:
    """Called wrongly, it would crash."""
    add = library["add"]
    add.argtypes = [POINTER, POINTER, INT]
    with pytest.raises(ArgumentError) as caught:
        dlbridge.wrap(add, ADD, abi="pointers")
    assert "abi='pointers' is int f(DLTensor *first, DLTensor *second, …), but the function" in str(
        caught.value
    )
    with pytest.raises(ArgumentError, match="cannot have abi='tvm_ffi'"):
        dlbridge.wrap(add, ADD, abi="tvm_ffi")


@pytest.mark.parametrize("restype", [None, ctypes.c_double, ctypes.c_int64])
def test_a_function_that_returns_no_int_is_no_kernel(
    library: dlbridge.Library, restype: Any
) -> None:
    """The status would be read from a register that holds anything."""
    add = library["add"]
    add.argtypes, add.restype = [POINTER, POINTER, INT], restype
    with pytest.raises(ArgumentError, match=r"a ctypes function is .*\(c_void_p, c_void_p, c_int"):
        dlbridge.wrap(add, ADD)


def test_a_function_that_needs_the_gil_is_refused(library: dlbridge.Library) -> None:
    """XLA and torch call kernels on threads without it."""
    nothing = ctypes.PYFUNCTYPE(INT, POINTER, POINTER, INT)(lambda *_: 0)
    with pytest.raises(ArgumentError, match="needs the GIL"):
        dlbridge.wrap(nothing, ADD)


def test_a_null_pointer_is_refused() -> None:
    """It would be called."""
    null = ctypes.cast(None, ctypes.CFUNCTYPE(INT, POINTER, POINTER, INT))
    with pytest.raises(ArgumentError, match="NULL"):
        dlbridge.wrap(null, ADD)


# ---- no functions --------------------------------------------------------------------------------


def test_an_integer_is_never_an_address() -> None:
    """A wrong integer crashes the process; the text says how an address is meant."""
    address = ctypes.cast(ctypes.CDLL(None).puts, POINTER).value
    with pytest.raises(UnsupportedTypeError) as caught:
        dlbridge.wrap(address, ADD, abi="dltensors")
    assert "a Python int is never taken for an address" in str(caught.value)
    assert "ctypes.CFUNCTYPE" in str(caught.value)


@pytest.mark.parametrize("fn", [None, "add", b"add", 1.5, [], object()])
def test_objects_that_cannot_be_called_are_refused(fn: object) -> None:
    """With a list of what can."""
    with pytest.raises(UnsupportedTypeError, match=r"wrap: .*(is a name|wrap takes a ctypes)"):
        dlbridge.wrap(fn, ADD)


def test_a_python_function_must_say_whose_tensors_it_takes() -> None:
    """Nothing in it does."""
    with pytest.raises(ArgumentError) as caught:
        dlbridge.wrap(lambda x, y: x + y, ADD)
    assert "the Python function '<lambda>' does not say whose tensors it takes" in str(caught.value)
    assert "'python:torch', 'python:numpy'" in str(caught.value)
    with pytest.raises(ArgumentError, match="cannot have abi='dltensors'"):
        dlbridge.wrap(lambda x, y: x + y, ADD, abi="dltensors")


# ---- cffi ----------------------------------------------------------------------------------------


def test_cffi_pointers_say_their_abi(library: dlbridge.Library) -> None:
    """`void *` and `DLTensor *` are plain pointers, whatever ffi object they come from."""
    cffi = pytest.importorskip("cffi")
    ffi = cffi.FFI()
    ffi.cdef(
        "typedef struct DLTensor DLTensor;"
        "int add(void *context, DLTensor *args, int count);"
        "int add_pointers(DLTensor *x, DLTensor *y, DLTensor *out);"
        "void raw_axpy(const float *x, const float *y, float *out, int64_t n, float alpha);"
    )
    lib = ffi.dlopen(library.path)
    assert kinds.recognise(lib.add).abi == "dltensors"
    check(dlbridge.wrap(lib.add, ADD))
    check(dlbridge.wrap(ffi.addressof(lib, "add_pointers"), ADD))
    with pytest.raises(ArgumentError, match=r"is void\(\*\)\(float \*, float \*, float"):
        dlbridge.wrap(lib.raw_axpy, ADD)


def test_a_library_outlives_the_lib_object_of_cffi(tmp_path: Path, library: Any) -> None:
    """cffi unloads with the object; the kernel would call into nothing."""
    cffi = pytest.importorskip("cffi")
    ffi = cffi.FFI()
    ffi.cdef("int add(void *context, void *args, int count);")
    path = tmp_path / "once.so"
    path.write_bytes(Path(library.path).read_bytes())
    lib = ffi.dlopen(str(path))
    kernel = dlbridge.wrap(lib.add, ADD)
    ffi.dlclose(lib)
    del lib, ffi
    gc.collect()
    check(kernel)


def test_a_pointer_to_data_is_no_function() -> None:
    """cffi calls both cdata."""
    cffi = pytest.importorskip("cffi")
    with pytest.raises(ArgumentError, match="a cffi function pointer"):
        dlbridge.wrap(cffi.FFI().new("int *"), ADD)


def test_functions_of_compiled_cffi_modules_are_found() -> None:
    """`lib.f` is a builtin there; its pointer is asked for."""
    with pytest.raises(ArgumentError, match=r"a cffi function is char \*\(\*\)\(DLTensor \*"):
        dlbridge.wrap(dlbridge.lib.dlb_layout_check)


# ---- numba ---------------------------------------------------------------------------------------


def test_a_numba_cfunc_says_its_abi(framework: Any) -> None:
    """Its signature is known to Numba."""
    numba = framework("numba")
    types = numba.types

    @numba.cfunc(types.intc(types.voidptr, types.voidptr, types.intc))
    def count(context: Any, tensors: Any, number: int) -> int:
        return 0 if number == 2 else number

    @numba.cfunc(types.intc(types.voidptr, types.voidptr))
    def pointers(x: Any, out: Any) -> int:
        return 0

    @numba.cfunc(types.float64(types.float64))
    def number(x: float) -> float:
        return x

    schema = "test::count(x: f32[n]) -> f32[n]"
    assert dlbridge.wrap(count, schema)(X).shape == (3,)
    assert dlbridge.wrap(pointers, schema)(X).shape == (3,)
    assert kinds.recognise(pointers).abi == "pointers"
    with pytest.raises(ArgumentError, match=r"a Numba cfunc is \(float64,?\) -> float64"):
        dlbridge.wrap(number, schema)


def test_a_numba_njit_function_takes_numpy_arrays(framework: Any) -> None:
    """So it is a Python function of NumPy's."""
    numba = framework("numba")
    found = kinds.recognise(numba.njit(lambda x, y: x + y))
    assert (found.kind, found.framework) == ("a Numba njit function", "numpy")


# ---- tvm -----------------------------------------------------------------------------------------


def test_a_tvm_ffi_function_is_recognised(framework: Any) -> None:
    """It is called through tvm-ffi's own ABI."""
    tvm_ffi = framework("tvm_ffi")

    def fill(x: Any, out: Any) -> None:
        np.from_dlpack(out)[:] = np.from_dlpack(x) * 2

    function = tvm_ffi.convert(fill)
    kernel = dlbridge.wrap(function, "test::twice(x: f32[n]) -> f32[n]")
    assert (kernel.kind, kernel.functions["cpu"].abi) == ("a tvm-ffi function", "tvm_ffi")
    assert kernel(X).tolist() == [0, 2, 4]
    with pytest.raises(ArgumentError, match="cannot have abi='dltensors'; what fits is 'tvm_ffi'"):
        dlbridge.wrap(function, abi="dltensors")


def test_a_tvm_module_is_its_function_main(matmul: Any) -> None:
    """As TVM's to_pytorch_func takes it."""
    kernel = dlbridge.wrap(matmul, "test::mm(a: f32[4, 4], b: f32[4, 4]) -> f32[4, 4]")
    a, b = np.random.rand(2, 4, 4).astype("f4")
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-5)
    assert kernel.kind == "a TVM module"
    check_main(matmul)


def check_main(module: Any) -> None:
    """Its function by name is the same thing."""
    assert kinds.recognise(module["main"]).abi == "tvm_ffi"


def test_a_tensor_that_a_tvm_function_keeps_stays_valid(framework: Any) -> None:
    """It keeps the caller's own tensor, or holds the copy that was made for the call."""
    tvm_ffi = framework("tvm_ffi")
    kept: list[Any] = []
    kernel = dlbridge.wrap(tvm_ffi.convert(lambda x, out: kept.append(out)))
    x, out = dlbridge.zeros(1000, "float32"), dlbridge.full(1000, 7, "float32")
    misaligned = dlbridge.full(1001, 8, "float32")[1:]
    kernel(x, out)
    kernel(x, misaligned)
    address = out.data_ptr
    del x, out, misaligned
    gc.collect()
    same, copied = map(dlbridge.from_dlpack, kept)
    assert same.data_ptr == address
    assert (same[999].item(), copied[999].item()) == (7, 8)
    del same, copied
    kept.clear()


def test_a_tvm_function_may_return_anything_without_a_schema(framework: Any) -> None:
    """As it would if TVM itself called it."""
    tvm_ffi = framework("tvm_ffi")
    x = dlbridge.zeros(3, "float32")
    for value in (None, True, 42, 1.5, "some text that is long", [1, 2]):
        kernel = dlbridge.wrap(tvm_ffi.convert(lambda x, value=value: value))
        returned = kernel(x)
        assert (list(returned) if isinstance(value, list) else returned) == value
    identity = dlbridge.wrap(tvm_ffi.convert(lambda x: x))
    assert dlbridge.from_dlpack(identity(x)).data_ptr == x.data_ptr
    mixed = dlbridge.wrap(tvm_ffi.convert(lambda x, n, name: f"{x.shape[0] + n} {name}"))
    assert mixed(x, 4, "dogs") == "7 dogs"


def test_an_exception_in_a_tvm_function_keeps_its_class(framework: Any) -> None:
    """TVM's own texts are the best ones."""
    tvm_ffi = framework("tvm_ffi")

    def refuse(x: Any) -> None:
        raise ValueError(f"no {x.shape[0]}")

    with pytest.raises(ValueError, match=r"no 3"):
        dlbridge.wrap(tvm_ffi.convert(refuse))(dlbridge.zeros(3, "float32"))


def test_a_module_without_main_is_refused(framework: Any) -> None:
    """The text says how to name a function."""
    tvm_ffi = framework("tvm_ffi")
    module = getattr(tvm_ffi, "system_lib", lambda: None)()
    if module is None:
        pytest.skip("this tvm_ffi has no system library")
    with pytest.raises(ArgumentError, match=r"has no function 'main'"):
        dlbridge.wrap(module)


# ---- GPU kernels ---------------------------------------------------------------------------------

GPU = "test::gpu(x: f32[n]) -> f32[n]"


def gpu_kernel(framework: Any, name: str) -> Any:
    """Return a kernel of a library that launches it on a GPU."""
    module = framework(name)
    if name == "cupy":
        return module.RawKernel('extern "C" __global__ void f(float *x) {}', "f")
    if name == "triton":
        return module.jit(_triton_kernel)
    return module.Kernel.__new__(module.Kernel)


def _triton_kernel(x: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize("name", ["cupy", "cuda.core"])
def test_gpu_kernels_in_c_are_for_cuda_and_need_their_c_signature(
    framework: Any, name: str
) -> None:
    """They are recognised without a GPU, and refused where there is none to launch them."""
    function = gpu_kernel(framework, name)
    text = "void(const float *x, float *out)"
    with pytest.raises(ArgumentError, match="runs on a GPU only; pass platforms="):
        dlbridge.wrap(platforms={"cpu": function}, schema=GPU, abi=text)
    for abi in ("dltensors", None):
        with pytest.raises(ArgumentError, match="needs its C signature"):
            dlbridge.wrap(function, GPU, abi=abi)
    with pytest.raises(ArgumentError, match="needs grid= and block="):
        dlbridge.wrap(function, GPU, abi=text)
    kernel = dlbridge.wrap(function, GPU, abi=text, grid="n", block=1)
    assert kernel.platforms == ("cuda",)
    with pytest.raises(dlbridge.ExchangeError, match="wrapped for, got f32"):
        kernel(X)


def test_a_kernel_of_triton_is_for_cuda_only(framework: Any) -> None:
    function = gpu_kernel(framework, "triton")
    with pytest.raises(ArgumentError, match="runs on a GPU only; pass platforms="):
        dlbridge.wrap(platforms={"cpu": function}, schema=GPU)
    with pytest.raises(ArgumentError, match="cannot have abi='dltensors'"):
        dlbridge.wrap(function, GPU, abi="dltensors")


def test_a_gpu_kernel_without_a_driver_says_what_is_missing(framework: Any) -> None:
    """On memory that calls itself CUDA's, in a process that has no driver."""
    if native.cuda_open() is None:
        pytest.skip("this machine has a CUDA driver")
    function = gpu_kernel(framework, "cupy")
    kernel = dlbridge.wrap(
        function, "test::gpu(x!: f32[n])", abi="void(float *x)", grid=1, block="n"
    )
    host = np.zeros(2, "f4")
    tensor = native.take_object(host, host.ctypes.data, (2,), None, (2, 32, 1), (2, 0))
    with pytest.raises(CUDAError, match="needs the CUDA driver, and there is none"):
        kernel(tensor)


# ---- libraries -----------------------------------------------------------------------------------


def test_a_library_gives_functions_by_name(library: dlbridge.Library) -> None:
    """As items, as attributes, and as kernels."""
    check(library.wrap("add", ADD))
    check(library.wrap("add_pointers", ADD, abi="pointers"))
    assert "add" in library
    assert "subtract" not in library
    assert "_handle" not in library, "an attribute of ctypes.CDLL"
    assert 3 not in library
    assert repr(library) == f"Library({library.path!r})"
    with pytest.raises(ArgumentError, match="has no symbol 'subtract'"):
        library["subtract"]
    with pytest.raises(AttributeError):
        library.subtract


def test_a_library_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """With what the loader says."""
    with pytest.raises(ArgumentError, match=r"load_library: .*missing\.so cannot be loaded"):
        dlbridge.load_library(tmp_path / "missing.so")
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    with pytest.raises(ArgumentError, match="cannot be loaded"):
        dlbridge.load_library(broken)


def test_a_library_may_be_loaded_by_a_relative_path(
    tmp_path: Path, library: Any, monkeypatch: Any
) -> None:
    """With a slash, or as a Path; what is kept is the absolute path."""
    (tmp_path / "mine.so").write_bytes(Path(library.path).read_bytes())
    monkeypatch.chdir(tmp_path)
    for path in ("./mine.so", Path("mine.so")):
        loaded = dlbridge.load_library(path)
        check(loaded.wrap("add", ADD))
        assert loaded.path == str(tmp_path.resolve() / "mine.so")


def test_a_name_without_a_slash_is_no_file_of_the_current_folder(
    tmp_path: Path, library: Any, monkeypatch: Any
) -> None:
    """Else whoever can write there replaces a library of the system."""
    monkeypatch.chdir(tmp_path)
    for name in ("libm.so.6", "mine.so"):
        (tmp_path / name).write_bytes(Path(library.path).read_bytes())
    libm = dlbridge.load_library("libm.so.6")
    assert "cos" in libm
    assert "add" not in libm
    assert libm.path == "libm.so.6"
    with pytest.raises(ArgumentError, match=r"load_library: mine\.so cannot be loaded"):
        dlbridge.load_library("mine.so")
