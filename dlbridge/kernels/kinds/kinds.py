"""What `wrap` takes for a function: recognised by its type, without importing the library it is of.

A function becomes a `Function`: how it is called (its convention), where it is, what must be kept
alive for it. The table `_READERS` is the list of kinds; `CONVENTIONS` says what `abi` may be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange.protocol import describe, root_module
from dlbridge.kernels.kinds import addresses

PYTHON_FRAMEWORKS = ("torch", "numpy", "jax", "cupy", "dlbridge")
CONVENTIONS = {
    "dltensors": "int f(void *context, DLTensor *arguments, int count)",
    "pointers": "int f(DLTensor *first, DLTensor *second, …)",
    "tvm_ffi": "a packed function of tvm-ffi",
    **{f"python:{name}": f"a Python function of {name} tensors" for name in PYTHON_FRAMEWORKS},
}
_C = ("dltensors", "pointers")


@dataclass(frozen=True, slots=True)
class Function:
    """A function that `wrap` was given, recognised.

    Attributes:
        kind: what it is, for texts: "a ctypes function".
        abi: a key of `CONVENTIONS`, the text of a C signature, or "numba", "triton",
            "triton:interpreted" for a kernel that its own library launches.
        address: of the machine code or, for tvm-ffi, of the function object; 0 for Python.
        callable: the object itself where it is called from Python, else None.
        keeps: what must live as long as the address is used.
        name: the name that it has by itself, or "".
        load: of a GPU kernel that dlbridge launches: takes a device index, returns the address of
            its CUfunction there; else None.
        parameters: of such a kernel: takes schema and `cuda_launch.Values`, returns its parameters.
    """

    kind: str
    abi: str
    address: int = 0
    callable: Any = None
    keeps: tuple[Any, ...] = field(default=(), repr=False)
    name: str = ""
    load: Callable[[int], int] | None = field(default=None, repr=False)
    parameters: Callable[[Any, Any], tuple[Any, ...]] | None = field(default=None, repr=False)

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU kernel, which no CPU can call."""
        return self.load is not None or self.abi == "triton"

    @property
    def is_raw(self) -> bool:
        """Whether it takes bare pointers and sizes, as the C signature in `abi` says."""
        return "(" in self.abi

    @property
    def framework(self) -> str | None:
        """The framework whose tensors a Python function takes, or None for other functions."""
        return self.abi.removeprefix("python:") if self.abi.startswith("python:") else None


def recognise(fn: Any, abi: str | None = None) -> Function:
    """Return what `fn` is, called as `abi` says or, without one, as the object itself tells.

    Raises:
        UnsupportedTypeError: `fn` is nothing that can be called as a kernel.
        ArgumentError: the abi is unknown, contradicts the object, or is needed and missing.
    """
    _check_abi(abi)
    if isinstance(fn, (int, float, str, bytes)) or fn is None:
        _refuse_value(fn)
    reader = _find_reader(fn)
    if reader is not None:
        return reader(fn, abi)
    if not callable(fn):
        raise UnsupportedTypeError(f"wrap: {describe(fn)} is no function; {_TAKES}")
    return _read_python(fn, abi)


def is_known(fn: Any) -> bool:
    """Return whether the type of `fn` is in the table of kinds, so not just any Python callable."""
    return _find_reader(fn) is not None


def _find_reader(fn: Any) -> Callable[[Any, str | None], Function] | None:
    for cls in type(fn).__mro__:
        reader = _READERS.get((root_module(cls), cls.__name__))
        if reader is not None:
            return reader
    is_cffi = root_module(type(getattr(fn, "__self__", None))) == "_cffi_backend"
    return _read_cffi_builtin if is_cffi else None


_TAKES = (
    "wrap takes a ctypes or cffi function, a Numba cfunc, a tvm-ffi function or module, a GPU "
    "kernel, a Kernel, or a Python function with abi='python:<framework>'"
)


def _check_abi(abi: object) -> None:
    if abi is None or (isinstance(abi, str) and (abi in CONVENTIONS or "(" in abi)):
        return
    known = ", ".join(map(repr, CONVENTIONS))
    raise ArgumentError(
        f"wrap: abi must be one of {known}, or a C signature such as "
        f"'void(const float *x, float *out, int64_t n)', got {abi!r}"
    )


def _refuse_value(fn: object) -> NoReturn:
    if isinstance(fn, int):
        raise UnsupportedTypeError(
            f"wrap: a Python int is never taken for an address, got {fn!r}; make it a function: "
            "ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)(address), or "
            "ffi.cast('int(*)(void *, DLTensor *, int)', address)"
        )
    if isinstance(fn, str):
        raise UnsupportedTypeError(
            f"wrap: {fn!r} is a name; take the function from load_library(path)[name], "
            "or compile C text with compile_c"
        )
    raise UnsupportedTypeError(f"wrap: {describe(fn)} is no function; {_TAKES}")


# ---- machine code --------------------------------------------------------------------------------


def _read_ctypes(fn: Any, abi: str | None) -> Function:
    address, prototype, needs_gil = addresses.of_ctypes(fn)
    if needs_gil:
        raise ArgumentError(
            "wrap: a function of ctypes.PyDLL needs the GIL, and kernels run without it; load its "
            "library with ctypes.CDLL, or wrap it as a Python function with abi='python:numpy'"
        )
    name = getattr(fn, "__name__", "")
    abi = _settle("a ctypes function", prototype, abi, "declare its argtypes and restype, or pass")
    return _machine_code("a ctypes function", abi, address, (fn,), name)


def _read_cffi(fn: Any, abi: str | None) -> Function:
    if addresses.is_cuda_function(fn):
        return _read_cuda("a CUfunction", "of_address")(fn, abi)
    address, prototype = addresses.of_cffi(fn)
    abi = _settle("a cffi function pointer", prototype, abi, "pass")
    return _machine_code("a cffi function pointer", abi, address, (fn,), "")


def _read_cffi_builtin(fn: Any, abi: str | None) -> Function:
    """Read `lib.f` of a compiled cffi module, which is a builtin, not a pointer."""
    address, prototype = addresses.of_cffi(addresses.cffi_pointer(fn))
    abi = _settle("a cffi function", prototype, abi, "pass")
    return _machine_code("a cffi function", abi, address, (fn.__self__,), fn.__name__)


def _read_numba_cfunc(fn: Any, abi: str | None) -> Function:
    address, prototype = addresses.of_numba(fn)
    abi = _settle("a Numba cfunc", prototype, abi, "pass")
    return Function("a Numba cfunc", abi, address, None, (fn,), getattr(fn, "__name__", ""))


def _machine_code(kind: str, abi: str, address: int, keeps: tuple[Any, ...], name: str) -> Function:
    if not address:
        raise ArgumentError(f"wrap: {kind} with the address NULL cannot be called")
    addresses.pin(address)
    return Function(kind, abi, address, None, keeps, name)


def _settle(kind: str, prototype: addresses.Prototype | None, abi: str | None, advice: str) -> str:
    """Return the convention that prototype and abi agree on."""
    if abi is not None and "(" not in abi and abi not in _C:
        _contradict(kind, abi, ", ".join(map(repr, _C)) + " or a C signature")
    inferred = addresses.convention(prototype)
    if abi is None:
        if inferred is not None:
            return inferred
        said = "does not say how it is called" if prototype is None else f"is {prototype.text}"
        raise ArgumentError(
            f"wrap: {kind} {said}; {advice} abi='dltensors', abi='pointers', or its C signature "
            "with the names of the schema as abi='void(const float *x, float *out, int64_t n)'"
        )
    if prototype is not None and abi in _C and inferred != abi:
        raise ArgumentError(
            f"wrap: abi={abi!r} is {CONVENTIONS[abi]}, but the function is {prototype.text}"
        )
    return abi


def _contradict(kind: str, abi: str, fitting: str) -> NoReturn:
    raise ArgumentError(f"wrap: {kind} cannot have abi={abi!r}; what fits is {fitting}")


# ---- objects of libraries ------------------------------------------------------------------------


def _read_tvm_function(fn: Any, abi: str | None) -> Function:
    if abi not in (None, "tvm_ffi"):
        _contradict("a tvm-ffi function", abi, "'tvm_ffi'")
    handle = fn.__chandle__()
    return Function("a tvm-ffi function", "tvm_ffi", handle, fn, (fn,), "")


def _read_tvm_module(fn: Any, abi: str | None) -> Function:
    """Read a module with the one function "main", as TVM's own `to_pytorch_func` calls it."""
    try:
        main = fn["main"]
    except Exception as error:
        raise ArgumentError(
            f"wrap: the {describe(fn)} has no function 'main' ({error}); pass module['name']"
        ) from error
    found = _read_tvm_function(main, abi)
    return Function("a TVM module", found.abi, found.address, main, (main, fn), "main")


def _read_dispatcher(fn: Any, abi: str | None) -> Function:
    return _read_python(fn, abi or "python:numpy", "a Numba njit function")


def _read_numba_kernel(fn: Any, abi: str | None) -> Function:
    from dlbridge.kernels.kinds.numba_cuda import Compiled

    if abi is not None:
        _contradict("a Numba CUDA kernel", abi, "none: the names of its parameters say it")
    made = Compiled(fn)
    return Function(
        "a Numba CUDA kernel", "numba", 0, None, (fn,), fn.__name__, made.load, made.parameters
    )


def _read_triton(kind: str, own: str) -> Callable[[Any, str | None], Function]:
    """Return a reader of Triton kernels: compiled ones, or interpreted ones, for the CPU."""

    def read(fn: Any, abi: str | None) -> Function:
        from dlbridge.kernels.kinds import triton

        if abi is not None and not abi.strip().startswith("("):
            _contradict(kind, abi, "what its parameters are given, as in '(x, out, n)', or none")
        return Function(kind, own, 0, partial(triton.launcher, fn, abi), (fn,), triton.name_of(fn))

    return read


def _read_cuda(kind: str, loader: str) -> Callable[[Any, str | None], Function]:
    """Return a reader of GPU kernels in C that dlbridge launches; `loader` is in cuda_loaders."""

    def read(fn: Any, abi: str | None) -> Function:
        from dlbridge.kernels.kinds import cuda_launch, cuda_loaders

        if abi is None or "(" not in abi:
            raise ArgumentError(
                f"wrap: {kind} needs its C signature with the names of the schema, as in "
                f"abi='void(const float *x, float *out, int64_t n)', got abi={abi!r}"
            )
        load = getattr(cuda_loaders, loader)(fn)
        parameters = partial(cuda_launch.read_parameters, abi)
        name = getattr(fn, "__name__", "") or getattr(fn, "name", "")
        return Function(kind, abi, 0, None, (fn,), name, load, parameters)

    return read


def _read_python(fn: Any, abi: str | None, kind: str = "a Python function") -> Function:
    if abi is None:
        frameworks = {root_module(cls): None for cls in type(fn).__mro__}
        abi = next((_ROOTS[root] for root in frameworks if root in _ROOTS), None)
    if abi is None:
        fitting = ", ".join(repr(f"python:{name}") for name in PYTHON_FRAMEWORKS)
        raise ArgumentError(
            f"wrap: {_named(fn)} does not say whose tensors it takes; pass abi= one of {fitting}"
        )
    if not abi.startswith("python:") or "(" in abi:
        _contradict(kind, abi, "'python:<framework>'")
    return Function(kind, abi, 0, fn, (fn,), getattr(fn, "__name__", type(fn).__name__))


def _named(fn: Any) -> str:
    name = getattr(fn, "__name__", None)
    return f"the Python function {name!r}" if name else f"the callable {describe(fn)}"


# Callables whose own type tells whose tensors they take: modules of torch, NumPy's ufuncs, …
_ROOTS = {
    "torch": "python:torch",
    "numpy": "python:numpy",
    "jax": "python:jax",
    "jaxlib": "python:jax",
    "cupy": "python:cupy",
}

# (top-level module, class name), looked up along the type's bases.
_READERS: dict[tuple[str, str], Callable[[Any, str | None], Function]] = {
    ("_ctypes", "CFuncPtr"): _read_ctypes,
    ("_cffi_backend", "_CDataBase"): _read_cffi,
    ("_cffi_backend", "CData"): _read_cffi,
    ("numba", "CFunc"): _read_numba_cfunc,
    ("numba", "CUDADispatcher"): _read_numba_kernel,
    ("numba", "Dispatcher"): _read_dispatcher,
    ("tvm_ffi", "Function"): _read_tvm_function,
    ("tvm_ffi", "Module"): _read_tvm_module,
    ("tvm", "Executable"): _read_tvm_module,
    ("tvm", "Module"): _read_tvm_module,
    ("triton", "JITFunction"): _read_triton("a Triton kernel", "triton"),
    ("triton", "Autotuner"): _read_triton("a Triton kernel", "triton"),
    ("triton", "Heuristics"): _read_triton("a Triton kernel", "triton"),
    ("triton", "InterpretedFunction"): _read_triton(
        "an interpreted Triton kernel", "triton:interpreted"
    ),
    ("cupy", "RawKernel"): _read_cuda("a CuPy RawKernel", "of_cupy"),
    ("cuda", "Kernel"): _read_cuda("a cuda.core Kernel", "of_cuda_core"),
    ("cuda", "CUkernel"): _read_cuda("a CUkernel of cuda.bindings", "of_library_kernel"),
    ("cuda", "CUfunction"): _read_cuda("a CUfunction of cuda.bindings", "of_address"),
    ("dlbridge", "Function"): _read_cuda("a function of a CUDA module", "of_module"),
}
