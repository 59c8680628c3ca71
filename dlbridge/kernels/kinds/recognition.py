"""Recognise what `wrap` takes for a function, by its type, without importing its library.

A function becomes a `Function`: how it is called (its convention), where it is, and what must be
kept alive for it. The table `_READERS` is the list of kinds; `CONVENTIONS` lists the values of
`abi`. A prototype is known as far as conventions need it: which parameters are plain pointers
(`void *`, `DLTensor *`), which are C ints, and its text for messages.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, NoReturn

from dlbridge._core import ffi
from dlbridge.device import DeviceType
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange.protocol import describe, root_module
from dlbridge.kernels.kinds import c_call, cuda_launch, python_kernel, raw, triton
from dlbridge.kernels.kinds.cuda_launch import Compiled, Launch
from dlbridge.kernels.kinds.python_kernel import FRAMEWORKS
from dlbridge.kernels.schema import Flat, Schema
from dlbridge.registry import canonical_name
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

CONVENTIONS = {
    "dltensors": "int f(void *context, DLTensor *arguments, int count)",
    "pointers": "int f(DLTensor *first, DLTensor *second, …)",
    "tvm_ffi": "a packed function of tvm-ffi",
    **{f"python:{name}": f"a Python function of {name} tensors" for name in FRAMEWORKS},
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
        flat: the lengths of lists, for a function whose C signature has lists.
    """

    kind: str
    abi: str
    address: int = 0
    callable: Any = None
    keeps: tuple[Any, ...] = field(default=(), repr=False)
    name: str = ""
    load: Callable[[int], int] | None = field(default=None, repr=False)
    parameters: Callable[[Any, Any], tuple[Any, ...]] | None = field(default=None, repr=False)
    flat: Flat | None = field(default=None, repr=False)

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU kernel, which no CPU can call."""
        return self.load is not None or self.abi == "triton"

    @property
    def is_on_any_device(self) -> bool:
        """Whether it runs where its tensors are: tvm-ffi's are given devices, and check them."""
        return self.abi in ("tvm_ffi", "python:torch", "python:jax")

    @property
    def is_raw(self) -> bool:
        """Whether it takes bare pointers and sizes, as the C signature in `abi` says."""
        return "(" in self.abi

    @property
    def framework(self) -> str | None:
        """The framework whose tensors a Python function takes, or None for other functions."""
        return self.abi.removeprefix("python:") if self.abi.startswith("python:") else None


def recognise(fn: Any, abi: str | None = None) -> Function:
    """Return what `fn` is, called as `abi` says or, without one, as the object itself says.

    Raises:
        UnsupportedTypeError: `fn` is nothing that can be called as a kernel.
        ArgumentError: the abi is unknown, contradicts the object, or is needed and missing.
    """
    abi = _read_abi(abi)
    if isinstance(fn, (int, float, str, bytes)) or fn is None:
        _refuse_value(fn)
    reader = _find_reader(fn)
    if reader is not None:
        return reader(fn, abi)
    if not callable(fn):
        raise UnsupportedTypeError(f"wrap: {describe(fn)} is not a function; {_TAKES}")
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


def _read_abi(abi: object) -> str | None:
    """Return a key of `CONVENTIONS`, also for another name of a framework, or a C signature."""
    if isinstance(abi, str) and abi.startswith("python:"):
        abi = f"python:{canonical_name(abi.removeprefix('python:'))}"
    if abi is None or (isinstance(abi, str) and (abi in CONVENTIONS or "(" in abi)):
        return abi
    known = ", ".join(map(repr, CONVENTIONS))
    raise ArgumentError(
        f"wrap: abi must be one of {known}, or a C signature such as "
        f"'void(const float *x, float *out, int64_t n)', got {abi!r}"
        f"{_nearest_convention(abi)}"
    )


def _nearest_convention(abi: object) -> str:
    """Return the end of a text that refuses a convention; a framework means its functions."""
    python = f"python:{canonical_name(abi)}" if isinstance(abi, str) else ""
    if python in CONVENTIONS:
        return f"; did you mean {python!r}?"
    return did_you_mean(abi, CONVENTIONS)


def _refuse_value(fn: object) -> NoReturn:
    if isinstance(fn, int):
        raise UnsupportedTypeError(
            f"wrap: a Python int is never taken for an address, got {fn!r}; make it a function: "
            "ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)(address), or "
            "ffi.cast('int(*)(void *, DLTensor *, int)', address)"
        )
    if isinstance(fn, str) and "(" in fn:
        raise UnsupportedTypeError(
            f"wrap: the function comes first, and then the schema, got {fn!r} in its place; "
            "wrap(function, schema)"
        )
    if isinstance(fn, str):
        raise UnsupportedTypeError(
            f"wrap: {fn!r} is a name; take the function from load_library(path)[name], "
            "or compile C text with compile_c"
        )
    raise UnsupportedTypeError(f"wrap: {describe(fn)} is not a function; {_TAKES}")


# ---- machine code --------------------------------------------------------------------------------


def _read_ctypes(fn: Any, abi: str | None) -> Function:
    address, prototype, needs_gil = _locate_ctypes(fn)
    if needs_gil:
        raise ArgumentError(
            "wrap: a function of ctypes.PyDLL needs the GIL, and kernels run without it; load its "
            "library with ctypes.CDLL, or wrap it as a Python function with abi='python:numpy'"
        )
    name = getattr(fn, "__name__", "")
    abi = _settle("a ctypes function", prototype, abi, "declare its argtypes and restype, or pass")
    return _machine_code("a ctypes function", abi, address, (fn,), name)


def _read_cffi(fn: Any, abi: str | None) -> Function:
    if _is_cuda_function(fn):
        return _read_cuda("a CUfunction", cuda_launch.of_address)(fn, abi)
    address, prototype = _locate_cffi(fn)
    abi = _settle("a cffi function pointer", prototype, abi, "pass")
    return _machine_code("a cffi function pointer", abi, address, (fn,), "")


def _read_cffi_builtin(fn: Any, abi: str | None) -> Function:
    """Read `lib.f` of a compiled cffi module, which is a builtin, not a pointer."""
    address, prototype = _locate_cffi(_cffi_pointer(fn))
    abi = _settle("a cffi function", prototype, abi, "pass")
    return _machine_code("a cffi function", abi, address, (fn.__self__,), fn.__name__)


def _read_numba_cfunc(fn: Any, abi: str | None) -> Function:
    address, prototype = _locate_numba(fn)
    abi = _settle("a Numba cfunc", prototype, abi, "pass")
    return Function("a Numba cfunc", abi, address, None, (fn,), getattr(fn, "__name__", ""))


def _machine_code(kind: str, abi: str, address: int, keeps: tuple[Any, ...], name: str) -> Function:
    if not address:
        raise ArgumentError(f"wrap: {kind} with the address NULL cannot be called")
    _pin(address)
    return Function(kind, abi, address, None, keeps, name)


def _settle(kind: str, prototype: _Prototype | None, abi: str | None, advice: str) -> str:
    """Return the convention that prototype and abi agree on."""
    if abi is not None and "(" not in abi and abi not in _C:
        _contradict(kind, abi, ", ".join(map(repr, _C)) + " or a C signature")
    inferred = _convention(prototype)
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


# ---- addresses and prototypes --------------------------------------------------------------------

_GIL_FLAG = 4  # FUNCFLAG_PYTHONAPI of ctypes: PyDLL and PYFUNCTYPE
_POINTER, _INT, _OTHER = "pointer", "int", "other"


class _Prototype(NamedTuple):
    """A prototype: the class of each type, and the C text of the whole."""

    result: str
    parameters: tuple[str, ...]
    text: str


def _convention(prototype: _Prototype | None) -> str | None:
    """Return the convention of dlbridge that a prototype is, or None for another one."""
    if prototype is None or prototype.result != _INT:
        return None
    if prototype.parameters == (_POINTER, _POINTER, _INT):
        return "dltensors"
    is_pointers = prototype.parameters and set(prototype.parameters) == {_POINTER}
    return "pointers" if is_pointers else None


def _locate_ctypes(fn: Any) -> tuple[int, _Prototype | None, bool]:
    """Return address, prototype if it was declared, and whether the function needs the GIL."""
    address = ctypes.cast(fn, ctypes.c_void_p).value or 0
    needs_gil = bool(type(fn)._flags_ & _GIL_FLAG)
    if fn.argtypes is None:
        return address, None, needs_gil
    result = _ctypes_class(fn.restype)
    parameters = tuple(_ctypes_class(kind) for kind in fn.argtypes)
    names = ", ".join(getattr(kind, "__name__", str(kind)) for kind in fn.argtypes)
    text = f"{getattr(fn.restype, '__name__', fn.restype)}({names})"
    return address, _Prototype(result, parameters, text), needs_gil


def _ctypes_class(kind: Any) -> str:
    if kind is ctypes.c_int:
        return _INT
    target = getattr(kind, "_type_", None)
    is_struct = isinstance(target, type) and issubclass(target, ctypes.Structure)
    return _POINTER if kind is ctypes.c_void_p or is_struct else _OTHER


def _locate_cffi(pointer: Any) -> tuple[int, _Prototype | None]:
    """Return address and prototype of a cffi function pointer; None for a pointer to data."""
    kind = ffi.typeof(pointer)
    address = int(ffi.cast("intptr_t", pointer)) if kind.kind in ("function", "pointer") else 0
    if kind.kind != "function":
        return address, _Prototype(_OTHER, (), kind.cname)
    parameters = tuple(_cffi_class(each.cname) for each in kind.args)
    return address, _Prototype(_cffi_class(kind.result.cname), parameters, kind.cname)


def _is_cuda_function(pointer: Any) -> bool:
    """Return whether a cffi pointer is a handle of the CUDA driver, `CUfunction`."""
    return bool(ffi.typeof(pointer).cname == "struct CUfunc_st *")


def _cffi_class(name: str) -> str:
    classes = {"int": _INT, "int32_t": _INT, "void *": _POINTER}
    is_tensor = name.replace("struct ", "").replace(" ", "") == "DLTensor*"
    return _POINTER if is_tensor else classes.get(name, _OTHER)


def _cffi_pointer(builtin: Any) -> Any:
    """Return the pointer of a function of a compiled cffi library, `lib.f`."""
    return ffi.addressof(builtin.__self__, builtin.__name__)


def _locate_numba(fn: Any) -> tuple[int, _Prototype]:
    """Return address and prototype of a Numba CFunc."""
    signature = fn._sig
    classes = {"void*": _POINTER, "none*": _POINTER, "int32": _INT}
    parameters = tuple(classes.get(str(kind), _OTHER) for kind in signature.args)
    result = classes.get(str(signature.return_type), _OTHER)
    return fn.address, _Prototype(result, parameters, str(signature))


class _Location(ctypes.Structure):
    """`Dl_info` of <dlfcn.h>."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def locate(address: int) -> bytes | None:
    """Return the path of the library at an address, as the loader has it, or None."""
    location = _Location()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(location)):
        return None
    path: bytes | None = location.path
    return path or None


def _pin(address: int) -> None:
    """Keep the library at `address` loaded for good: compiled graphs may call it until the end.

    cffi unloads a library together with its `lib` object, whatever pointers are left of it.
    """
    if not sys.platform.startswith("linux"):
        return
    path = locate(address)
    if path is None:
        return
    flags = os.RTLD_NOLOAD | os.RTLD_NODELETE | os.RTLD_LAZY
    process = ctypes.CDLL(None)
    process.dlopen.restype = ctypes.c_void_p
    process.dlopen(path, flags)  # NULL for the program itself, which stays anyway


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
    except not_from_handler(Exception) as error:
        raise ArgumentError(
            f"wrap: the {describe(fn)} has no function 'main' ({error}); pass module['name']"
        ) from error
    found = _read_tvm_function(main, abi)
    return Function("a TVM module", found.abi, found.address, main, (main, fn), "main")


def _read_numba_kernel(fn: Any, abi: str | None) -> Function:
    if abi is not None:
        _contradict("a Numba CUDA kernel", abi, "none: the names of its parameters say it")
    made = Compiled(fn)
    return Function(
        "a Numba CUDA kernel", "numba", 0, None, (fn,), fn.__name__, made.load, made.parameters
    )


def _read_triton(kind: str, own: str) -> Callable[[Any, str | None], Function]:
    """Return a reader of Triton kernels: compiled ones, or interpreted ones, for the CPU."""

    def read(fn: Any, abi: str | None) -> Function:
        if abi is not None and not abi.strip().startswith("("):
            _contradict(kind, abi, "what its parameters are given, as in '(x, out, n)', or none")
        return Function(kind, own, 0, partial(triton.launcher, fn, abi), (fn,), triton.name_of(fn))

    return read


def _read_cuda(
    kind: str, loader: Callable[[Any], cuda_launch.Loader]
) -> Callable[[Any, str | None], Function]:
    """Return a reader of GPU kernels in C that dlbridge launches."""

    def read(fn: Any, abi: str | None) -> Function:
        compiled = cuda_launch.NOT_KNOWN
        if loader is cuda_launch.of_module:
            compiled = cuda_launch.KnownParameters(fn.signature, fn.parameters)
        abi = abi or compiled.signature
        if abi is None or "(" not in abi:
            raise ArgumentError(
                f"wrap: {kind} needs its C signature with the names of the schema, as in "
                f"abi='void(const float *x, float *out, int64_t n)', got abi={abi!r}"
            )
        load = loader(fn)
        parameters = partial(cuda_launch.read_parameters, abi, compiled)
        name = getattr(fn, "__name__", "") or getattr(fn, "name", "")
        return Function(kind, abi, 0, None, (fn,), name, load, parameters)

    return read


def _read_python(fn: Any, abi: str | None, kind: str = "a Python function") -> Function:
    if abi is None:
        frameworks = {root_module(cls): None for cls in type(fn).__mro__}
        abi = next((_ROOTS[root] for root in frameworks if root in _ROOTS), None)
    if abi is None:
        fitting = ", ".join(repr(f"python:{name}") for name in FRAMEWORKS)
        raise ArgumentError(
            f"wrap: {_named(fn)} does not say whose tensors it takes; pass abi= one of {fitting}"
        )
    if not abi.startswith("python:") or "(" in abi:
        _contradict(kind, abi, "'python:<framework>'")
    return Function(kind, abi, 0, fn, (fn,), getattr(fn, "__name__", type(fn).__name__))


def _named(fn: Any) -> str:
    name = getattr(fn, "__name__", None)
    return f"the Python function {name!r}" if name else f"the callable {describe(fn)}"


# Callables whose own type says whose tensors they take: modules of torch, NumPy's ufuncs, …
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
    ("numba", "Dispatcher"): lambda fn, abi: _read_python(
        fn, abi or "python:numpy", "a Numba njit function"
    ),
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
    ("cupy", "RawKernel"): _read_cuda("a CuPy RawKernel", cuda_launch.of_cupy),
    ("cuda", "Kernel"): _read_cuda("a cuda.core Kernel", cuda_launch.of_cuda_core),
    ("cuda", "CUkernel"): _read_cuda("a CUkernel of cuda.bindings", cuda_launch.of_library_kernel),
    ("cuda", "CUfunction"): _read_cuda("a CUfunction of cuda.bindings", cuda_launch.of_address),
    ("dlbridge", "Function"): _read_cuda("a function of a CUDA module", cuda_launch.of_module),
}


# ---- targets: what the core calls ----------------------------------------------------------------


Target = tuple[int, str, int | None, Any]

# The least alignment: TVM compiles for it, and JAX shares no other memory.
_ALIGNMENTS = {"tvm_ffi": 64, "python:jax": 64}


def device_type(platform: object) -> DeviceType:
    """Return the device type of a platform, "cpu", "cuda", "rocm", "oneapi" and so on."""
    known = {kind.name.lower(): kind for kind in DeviceType}
    if not isinstance(platform, str) or platform not in known:
        raise ArgumentError(
            f"wrap: platforms must be named among {', '.join(known)}, got {platform!r}"
        )
    return known[platform]


def alignment(functions: Mapping[str, Function]) -> int:
    """Return the bytes that the data of these functions must be aligned to."""
    return max(_ALIGNMENTS.get(function.abi, 1) for function in functions.values())


def make_targets(
    name: str, functions: Mapping[str, Function], schema: Schema | None, launch: Launch
) -> list[Target]:
    """Return the targets of a kernel, in the form that `native.KernelBase` takes."""
    return [
        (int(device_type(platform)), *_target(name, function, schema, launch))
        for platform, function in functions.items()
    ]


def _target(
    name: str, function: Function, schema: Schema | None, launch: Launch
) -> tuple[str, int | None, Any]:
    if function.load is not None:
        return "cuda", None, cuda_launch.target(name, function, schema, launch)
    if function.abi == "tvm_ffi":
        return function.abi, function.address, _Receiver() if schema is None else None
    if function.address and not function.is_raw:
        return function.abi, function.address, None
    if function.abi.startswith("triton"):
        target = python_kernel.target(function.callable(schema, launch), "torch", schema)
        return "python", None, target
    if function.framework is not None:
        target = python_kernel.target(function.callable, function.framework, schema)
        return "python", None, target
    flat = function.flat
    called = c_call.target(function.abi, schema if flat is None else flat.whole, flat)
    if called is not None:
        return "c", function.address, called
    caller = raw.raw_caller(function.address, function.abi, schema)
    return "python", None, python_kernel.target(caller, "dlbridge", schema)


class _Receiver:
    """Where the core leaves what a tvm-ffi function returned: it knows not every type of value."""

    def __init__(self) -> None:
        convert = sys.modules["tvm_ffi"].convert
        self._kept = threading.local()
        self._function = convert(self._keep)
        self.handle = self._function.__chandle__()

    def _keep(self, value: Any) -> None:
        self._kept.value = value

    def take(self) -> Any:
        """Return the value that this thread was given last."""
        return self._kept.__dict__.pop("value")
