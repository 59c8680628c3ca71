"""Types of the native module: the CPython half of the core (cold C calls are in `_cffi.lib`)."""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from inspect import Signature
from typing import Any, Generic, Literal, ParamSpec, Self, final, overload

import numpy as np
from typing_extensions import TypeVar

from dlbridge.device import Device
from dlbridge.dtype import DType

_Array = TypeVar("_Array", default=Any)
_P = ParamSpec("_P")
_T = TypeVar("_T")

class TensorBase:
    """One DLTensor and one reference to the buffer that keeps its memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def device(self) -> Device: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def data_ptr(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def is_contiguous(self) -> bool: ...
    @property
    def flags(self) -> int: ...
    @property
    def _is_immutable(self) -> bool:
        """Whether it is read-only as values of JAX and TensorFlow are, which immutable= decides."""
    @property
    def version(self) -> tuple[int, int]: ...
    @property
    def buffer(self) -> TensorBuffer: ...
    @property
    def __array_struct__(self) -> object: ...
    @property
    def _dtype_triple(self) -> tuple[int, int, int]: ...
    @property
    def _device_pair(self) -> tuple[int, int]: ...
    @property
    def _dltensor_address(self) -> int: ...
    def __getitem__(self, key: object, /) -> Self: ...
    @overload
    def reshape(self, *shape: int | Sequence[int]) -> Self: ...
    @overload
    def reshape(self, *, shape: Sequence[int]) -> Self: ...
    def _view(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        byte_offset: int = 0,
        dtype: tuple[int, int, int] | None = None,
        set_flags: int = 0,
        cls: type[TensorBase] | None = None,
        clear_flags: int = 0,
    ) -> Self:
        """A Tensor over the same buffer; shape and strides (elements) as given and not checked
        against the memory: the caller answers for them. `byte_offset` is added to data_ptr."""

    def _capsule(
        self,
        versioned: bool,
        flags: int = 0,
        force_readonly: bool = False,
        stream: int = -1,
        kept: object = None,
        worker: int = 0,
    ) -> object:
        """A new capsule; flags are added to the tensor's own. A read-only tensor needs
        `force_readonly` to go out as a legacy capsule, which cannot carry the mark. The contents
        are ready on `stream`; the consumer's kernels run on `worker`, if it is another one."""

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def to(self, device: object, *, copy: bool = False) -> Self: ...
    def copy(self, order: str = "C") -> Self: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

    __dlpack_c_exchange_api__: object

@final
class HeldBuffer:
    """The buffer of an object, for as long as a Tensor is over it."""

@final
class CollectableBuffer:
    """The buffer of an object that may refer back to a Tensor over it."""

@final
class TensorBuffer:
    """The memory behind one or more Tensors and exported capsules, counted by reference."""

    @property
    def data_ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def refcount(self) -> int: ...
    @property
    def kind(self) -> str: ...  # "allocator", "managed", "object", "loan"
    @property
    def owner(self) -> object: ...  # the Python object kept alive, or None

@final
class aligned_numpy:  # noqa: N801  (a function to its users)
    """NumPy's new arrays in the memory of dlbridge, for a `with` block."""

    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class limited_numpy:  # noqa: N801  (as the one above)
    """NumPy fails with MemoryError where a new array would be larger, in a `with` block."""

    def __new__(cls, max_bytes: int) -> Self: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

class Recording:
    """Records buffers and exports in a `with` block; `dlbridge.check.lifetimes` reads the rows."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def _alive(self) -> list[tuple[Any, ...]]: ...
    def _misuses(self) -> list[tuple[Any, ...]]: ...
    def _made(self) -> int: ...
    def _lost(self) -> int: ...

@final
class Limits:
    """The tensors that a consumer can represent; the one place where layouts are judged for it."""

    def __init__(
        self,
        name: str,
        *,
        dtypes: Iterable[tuple[int, int, int]] | None = None,
        devices: Iterable[int] | None = None,
        max_ndim: int = 254,
        alignment: int = 1,
        layout: str = "any",  # any, non_negative, permutation, compact, row_major
        protects_readonly: bool = False,
        padded: bool = False,
        needed_by: str = ...,  # alignment and layout hold once this module is imported
        wide_alignment: int = 1,  # of elements of 16 bytes
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def protects_readonly(self) -> bool: ...
    def refusal(self, tensor: TensorBase, /) -> str | None:
        """The reason code why `tensor` cannot go to this consumer as it is, or None."""

@final
class TreeMemo:
    """What a walk through a tree has made of its tensors and containers."""

    def find(self, node: object, /) -> Any: ...
    def keep(self, node: object, made: object, /) -> None: ...

@final
class Forms:
    """Dtypes and shapes of tensors of torch on the CPU, in threads without modes."""

    @staticmethod
    def of(tensors: tuple[Any, ...], held: tuple[int, ...], /) -> Forms | None:
        """The forms of these tensors; None where one is of another device or type. `held`: for
        each of the first tensors its place among those of a module, or -1."""

    def fit(self, tensors: tuple[Any, ...], /) -> bool:
        """Whether tensors are of these forms; also False where C cannot determine that."""

@final
class Loans:
    """Arrays of a framework over the memory of a module's tensors, each made once.

    An array keeps that memory, until a call finds its tensor in another place."""

    def __new__(cls, framework: str, count: int) -> Self: ...
    def call(
        self, function: object, forms: Forms, tensors: tuple[Any, ...], numpy: Sequence[bool], /
    ) -> list[Any] | None:
        """The results of a function of the framework as tensors of torch. The tensors are shared,
        detached; 64-bit numbers that the framework lacks are narrowed. `numpy`: for which tensors
        an array of NumPy serves. None, and nothing was called: they are not of these forms."""

@final
class Converter(Generic[_Array]):
    """`to_torch` and its family: one argument takes the C path, anything else the Python one."""

    def __new__(cls, name: str, doc: str) -> Self: ...
    __name__: str
    __qualname__: str
    @property
    def __signature__(self) -> Signature: ...
    def __call__(
        self,
        x: object,
        /,
        *,
        device: object = None,
        copy: bool | None = None,
        readonly: Literal["respect", "share", "copy"] = "respect",
        immutable: Literal["share", "respect", "copy"] = "share",
        grad: Literal["refuse", "detach"] = "refuse",
        layout: Literal["any", "contiguous"] | None = None,
        narrow: Literal["checked"] | None = None,
        dtype: object = None,
        stream: Any = None,
    ) -> _Array: ...
    def activate(
        self,
        kind: str,
        limits: Limits,
        consumer: object = None,
        own_type: type | None = None,
        /,
        *extra: object,
        streams: Callable[[int], tuple[Any, ...] | None] | None = None,
        wider: tuple[Limits, object, str] = ...,
        construct: tuple[Limits, Callable[[Any], object | None]] = ...,
    ) -> None:
        """Open the C path. kind "table": consumer is a `dlpack_exchange_api` capsule; "capsule":
        consumer(legacy_capsule, *extra); "placed": the same, where the consumer has several CPU
        devices, so that `device=` is for Python unless it is "cpu"; "object": consumer(Tensor,
        *extra), which asks it with a stream; "numpy": the NumPy C API; "tensor": a Tensor.
        Objects of exactly `own_type` are returned as they are. `streams(device)` is asked before
        CUDA memory goes to a consumer that Python calls: (stream, worker, *extra), the stream to
        make it ready for, the one that the consumer's kernels use, and what replaces `extra`; ()
        for "object"; None leaves this tensor to Python. `wider` is (limits, object, attribute):
        the limits that hold instead while the attribute of the object is true, which is asked at
        each tensor of a dtype that `limits` lack. `construct` is (limits, function): what these
        limits allow and the others do not is copied by function(array), which takes a NumPy array;
        None leaves it to Python."""
    def close(self) -> None: ...

@final
class BoundCall:
    """A kernel, called with the tensors of one framework or of any; see `bind_kernel`."""

    @property
    def kernel(self) -> KernelBase: ...

class KernelBase:
    """One wrapped kernel: what it takes, its functions, how they are called. Immutable."""

    def __new__(
        cls,
        name: str,
        signature: tuple[Any, ...] | None,
        arguments: tuple[Any, ...] | None,
        targets: Iterable[tuple[int, str, int | None, object]],
        *,
        schema: object = None,
        keeps: object = (),
        alignment: int = 1,
        contiguous: bool = True,
        may_overlap: bool = False,
        releases_gil: bool = True,
        mutates: Iterable[int] | None = None,
        on_default_stream: bool = False,
        holds_below: int = 0,
        cost: tuple[tuple[str, int], ...] | None = None,
        counts: list[int] | None = None,
        said_by: list[int] | None = None,
        casts: bool = False,
    ) -> Self:
        """`signature` is `Schema.encode()`, `arguments` is `Schema.encode_arguments()`, both None
        without a schema. A target is (device_type, convention, function, user): convention
        "dltensors", "pointers", "tvm_ffi" or "python"; function an address; user the
        `dlb_context.user` (an address or an object) or, for "python", the callable. `keeps` stays
        alive as long as the kernel. `alignment` in bytes: other data pointers are copied, as are
        other than row-major layouts where `contiguous`. `mutates`: indices of tensors written in
        place where there is no signature; None is the last one. `on_default_stream`: of a device
        with streams, instead of the caller's. `holds_below`: calls on the CPU that cost less hold
        the GIL although `releases_gil`; `cost` is what they cost, steps over the names of the
        signature as in `Schema.encode()`, None for the bytes of their tensors. `counts`: of how
        many tensors each argument and result is, with lists. `said_by`: for each result the
        place of the result, an int64 without dimensions, in which the kernel writes its first
        extent; -1 where that is known. `casts`: torch.autocast may cast arguments. Without
        targets, which only a kernel without a signature may lack, all calls are made by the hook
        `slow_call`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    @property
    def name(self) -> str: ...
    def run(
        self,
        tensors: Iterable[TensorBase | None],
        scalars: Iterable[bool | int | float | str | None] = (),
        source: str | None = None,
    ) -> Any:
        """Bind, check and run: inputs in order (None: left out), then the results to write.
        `source` names the caller's array type in the texts of errors. Returns None, but without a
        schema what a function of tvm-ffi returned."""

    def serve_lists(self, places: tuple[bool, ...], kernels: dict[Any, Any], /) -> None:
        """Make calls with lists of tensors in C, by the flat kernels of kernels/lists.py.

        `places`: for each positional argument, whether it is a list. `kernels`: by the lengths of
        the lists, the kernel and the lengths of its results, -1 for a single tensor.
        """

    def serve_numbers(self, kernel: KernelBase, are_numbers: tuple[bool, ...], /) -> None:
        """Make calls with numbers as results in C, by the kernel with tensors in their place.

        `are_numbers`: for each result, whether it is one.
        """

    def publish(self, key: str, /) -> None:
        """Make this kernel what its name means from now on, in the whole process."""

def set_kernel_hooks(
    *,
    explain: Callable[
        [
            str,
            Any,
            tuple[tuple[Any, ...] | None, ...],
            tuple[int | None, ...],
            int,
            str,
            int,
            int,
            int,
        ],
        BaseException,
    ] = ...,
    slow_call: Callable[[Any, str | None, tuple[Any, ...], dict[str, Any]], Any] = ...,
    type_error: type[Exception] = ...,
    value_error: type[Exception] = ...,
    kernel_error: type[Exception] = ...,
    memory_error: type[Exception] = ...,
    dtype: type = ...,
    find: Callable[[str], None] = ...,
    dtypes: dict[tuple[type, object], Any] = ...,
) -> None:
    """Connect dlbridge.kernels. `explain(name, schema, tensors, scalars, index, reason,
    other, count, place)` returns the exception for tensor `index` (inputs, then results; each None
    or (shape, (code, bits, lanes), source, (device_type, device_id))); scalars are int or None;
    `reason` is "mismatch" (of dtype or shape) or a key of errors.REASONS or errors.FINDINGS;
    `other` is the tensor that `index` overlaps, or -1; `count` and `place` say how much debug mode
    found and where the first of it is."""

def debug_kernels(enabled: bool, nans: bool, /) -> None:
    """Switch debug mode of kernels on or off."""

@final
class PythonFunction:
    """A Python function and how it wants to be called as a kernel; a target's `user`."""

    function: Callable[..., Any]
    framework: str
    support: object
    tensor_names: tuple[str, ...]
    keyword_names: tuple[str, ...]
    takes_out: int
    takes_stream: int

    def __new__(
        cls,
        function: Callable[..., Any],
        converter: Converter,
        framework: str,
        support: object,
        tensor_names: tuple[str, ...],
        keyword_names: tuple[str, ...],
        *,
        takes_stream: bool,
        takes_out: bool,
        protects: bool,
        counts_versions: bool,
        only_reads: bool,
    ) -> Self:
        """`tensor_names`: inputs, then results. `keyword_names`: scalars, "stream", "out"."""

@final
class _TorchLibrary:
    """Operators that were defined or implemented together; `torch_op_remove` undoes it."""

def torch_op_open(
    libtorch_cpu: str, libtorch_cuda: str | None, is_rocm: bool, hidden: str | None, /
) -> str | None:
    """Find the functions of libtorch; return the name of one that is missing, None for none.
    `hidden` is a name not to find, for tests."""

def torch_op_has_lists() -> bool:
    """Whether operators can have lists of numbers, which libtorch must know."""

def torch_op_has_strings() -> bool:
    """Whether this libtorch hands str arguments over."""

def torch_op_define(namespace: str, schemas: tuple[str, ...], /) -> _TorchLibrary: ...
def torch_op_take(kernel: str, letters: str, out_at: int, /) -> int | None:
    """Take a function out of the pool for the kernel of this name; None: the pool is empty.
    `letters`: of each argument t (tensor), i, f, b or s; capitals where it is optional. `out_at`:
    which argument stands after the buffers for results in the `out` overload."""

def torch_op_implement(
    namespace: str, names: tuple[str, ...], key: str, number: int, /
) -> _TorchLibrary:
    """Implement operators, "name" or "name.overload", for a dispatch key."""

def torch_op_remove(library: _TorchLibrary, /) -> None: ...
def torch_call_plain(kernel: KernelBase, /, *args: Any, **kwargs: Any) -> Any:
    """Call a kernel with torch tensors; NotImplemented where they, or the thread's modes, are not
    plain: then nothing was done, and torch's dispatcher has to do it."""

def torch_call_batch(
    kernel: KernelBase, size: int, steps: tuple[int, ...], /, *args: Any, **kwargs: Any
) -> bool:
    """Call a kernel for each of `size` elements of a batch of torch tensors on the CPU.

    The arguments and `out` are those of the first element; of each tensor, results last, the next
    element lies `steps` bytes further on. False: it was not called, as with `torch_call_plain`."""

def torch_op_call(operator: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call an operator; what the kernel raised comes out as it is, not as a RuntimeError."""

def have_items(
    objects: tuple[object, ...],
    dicts: tuple[dict[str, Any], ...],
    contents: tuple[dict[str, Any], ...],
    /,
) -> bool: ...
def inside_xla() -> bool:
    """Whether this thread runs a Python kernel for XLA: JAX must not be entered from it."""

def from_dlpack(
    x: object,
    /,
    *,
    device: object = None,
    copy: bool | None = None,
    stream: Any = None,
) -> Any: ...
def defer_signals(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...
def signal_handlers() -> list[Callable[[int, Any], object]]: ...
def signals_after_fork() -> None: ...
def convert_tree(
    tree: Any,
    converter: Converter | None,
    slow: Callable[[Any, str, set[int], TreeMemo], Any],
    is_ordinary: Callable[[Any], bool],
    memo: TreeMemo | None = None,
    path: str = "",
    above: set[int] | None = None,
    /,
    **policies: Any,
) -> Any: ...
def convert(
    x: object,
    /,
    to: object,
    *,
    device: object = None,
    copy: bool | None = None,
    readonly: Literal["respect", "share", "copy"] = "respect",
    immutable: Literal["share", "respect", "copy"] = "share",
    grad: Literal["refuse", "detach"] = "refuse",
    layout: Literal["any", "contiguous"] | None = None,
    narrow: Literal["checked"] | None = None,
    dtype: object = None,
    stream: Any = None,
) -> Any: ...
def decide(
    tensor: TensorBase,
    policy: object,
    refusal: Callable[[TensorBase], str | None] | None,
    protects_readonly: bool,
    is_copied: bool,
    /,
) -> tuple[TensorBase, str | None, str | None]:
    """The tensor as it is shared, why it must be copied, and why it is refused as it is."""

POLICY_WORDS: dict[str, tuple[str | None, ...]]  # which strings each policy takes

def take(x: object, /) -> TensorBase | None:
    """The C path in: a Tensor of a known type's object, or None when a guard declines it."""

def look(x: object, /) -> TensorBase | None:
    """Like take, also while a receipt log is open."""

def take_capsule(capsule: object, /) -> TensorBase: ...
def take_table(x: object, table: object, /) -> TensorBase: ...
def take_buffer(x: object, /) -> TensorBase: ...
def take_object(
    owner: object,
    data_ptr: int,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: tuple[int, int, int],
    device: tuple[int, int],
    flags: int = 0,
    /,
) -> TensorBase:
    """A Tensor over memory at `data_ptr` that `owner` keeps alive (strides in elements)."""

def give_table(tensor: TensorBase, table: object, stream: int | None = None, /) -> object: ...
def table_stream(table: object, device: tuple[int, int], /) -> int: ...
def take_numpy(x: object, /) -> TensorBase | None:
    """A Tensor over the memory of a NumPy array; None for all but plain arrays of numbers that
    DLPack has."""

def give_numpy(tensor: TensorBase, descr: object = None, /) -> object: ...
def allocate(
    shape: Sequence[int], dtype: tuple[int, int, int], alignment: int = 64, zero: bool = False, /
) -> TensorBase:
    """A new C-contiguous CPU Tensor from the default allocator."""

def empty(
    shape: int | Sequence[int],
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Any = None,
    alignment: int = 64,
) -> Any: ...
def zeros(
    shape: int | Sequence[int],
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Any = None,
    alignment: int = 64,
) -> Any: ...
def ones(
    shape: int | Sequence[int],
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Any = None,
    alignment: int = 64,
) -> Any: ...
def full(
    shape: int | Sequence[int],
    fill_value: object,
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Any = None,
    alignment: int = 64,
) -> Any: ...
def equal(a: Any, b: Any) -> bool: ...
def set_aligned_numpy(enabled: bool, /) -> bool:
    """Use our memory for NumPy's arrays in this context, or NumPy's own; whether it was ours."""

def allocate_table(
    table: object, shape: Sequence[int], dtype: tuple[int, int, int], device: tuple[int, int], /
) -> TensorBase: ...
def copy_into(destination: TensorBase, source: TensorBase, /) -> None:
    """Copy element by element between CPU tensors of one shape and dtype; the GIL is released."""

def join(buffers: Sequence[object], /) -> bytes:
    """One bytes object of buffers, as `b"".join`; the GIL is released, huge pages are asked for."""

def torch_places(places: tuple[int, int, int, int, int, int, int, int] | None, /) -> None:
    """Where words lie in the loaded version of torch, in bytes: the at::Tensor in a torch.Tensor,
    the keys and the StorageImpl in a TensorImpl, the words of a StorageImpl. None:
    that version was not proved, and every function below stays closed."""

def torch_guard_open(
    libtorch_cpu: str | None, libc10: str | None, sample: object, int8: object, uint8: object, /
) -> bool:
    """Find libtorch's predicates; False when one is missing."""

def torch_guard_allows(tensor: object, /) -> bool: ...
def torch_is_observed(libtorch_cpu: str, /) -> bool:
    """Whether profilers or other observers see every operator of this thread; also False where
    torch cannot be asked."""

def bind_kernel(
    kernel: KernelBase, framework: str | None, name: str, doc: str, module: str = ..., /
) -> Any:
    """The kernel's call as a builtin function whose `__self__` is a BoundCall; with the tensors of
    one framework, whether C has a fast path for it or not, or with any (None)."""

def call_giving(kernel: KernelBase, give: Callable[[Any], Any], /, *arrays: Any) -> Any:
    """Call a kernel with arrays of JAX in this thread, without a program; NotImplemented where C
    cannot. Results are new memory, of which `give` makes an array; nobody else has it."""

def seal_kernel_type(kind: type[KernelBase], /) -> None:
    """Call kernels of this subclass in C although its `__call__` is written in Python."""

def jax_direct_open(kind: type, /) -> None: ...
def cupy_open(kind: type, current_stream: Callable[[int], object], /) -> None: ...
def torch_direct_open(
    libtorch_cpu: str,
    libc10: str,
    tensor_type: type,
    parameter_type: type,
    samples: tuple[tuple[object, int, int, int, int], ...],
    /,
) -> bool:
    """Find what the guard of direct calls reads; False when something is missing."""

def torch_tracing(function: Callable[[], object], /) -> None: ...
def torch_direct_learn(tensor: object, /) -> None: ...
def torch_direct_cuda(
    plain: int, inference: int, try_cuda: Callable[[Any], bool | None], /
) -> None:
    """The words of keys that tensors of CUDA should have; `try_cuda` gets the first that has one
    and says whether the guard is right about it, or None: ask again."""

def torch_direct_allows(tensor: object, written: bool = False, trying: bool = False, /) -> bool:
    """Whether a kernel may be called directly with this torch.Tensor, in this thread, now."""

def torch_call_allows(tensor: object, /) -> bool:
    """The same of a kernel without an autocast rule, to which torch.autocast is no mode."""

def torch_harmless(
    autocast: int, device_mode: type | None, count_modes: object, mode_at: object, /
) -> None:
    """Say which modes leave calls of kernels alone: the word of the keys of autocast; the type of
    function modes that choose the device of new tensors, and torch's functions that count
    function modes and return one."""

def torch_stream_open(libtorch_cuda: str | None, /) -> bool:
    """Find libtorch's function for current streams; False when it is missing."""

def torch_stream(device: int, /) -> int:
    """The number of torch's current stream on a CUDA device; 0: unknown."""

def torch_direct_close() -> None: ...
def torch_queries(
    types: tuple[type, type],
    table: object,
    functions: tuple[Callable[..., Any] | None, ...],
    forward_levels: dict[str, Any],
    dtypes: frozenset[Any],
    made: dict[tuple[int, int, int], Any],
    samples: tuple[Any, Any],
    words: tuple[int, int],
    /,
) -> bool:
    """Set the functions that query torch where its internals are not proved, and samples to learn
    from: a plain tensor, and one of inference mode; the words of keys that a thread includes and
    excludes there. In a thread without modes. False: plain tensors cannot be told apart."""

def torch_queries_close(calls: bool, /) -> None:
    """Where `calls` is true, kernels are not called by queries of torch."""

def torch_query_fits(tensor: Any, /) -> bool:
    """Whether the dtype and the storage of a torch.Tensor are as a kernel needs them."""

@final
class TorchMemory:
    """The memory of a storage of torch that was lent, of a fixed size."""

    before: Any
    """What keeps the memory that the storage has left, or None."""

    @property
    def views(self) -> int:
        """How many views there are."""

@final
class TorchHold:
    """What a view of a storage of torch keeps."""

def torch_hold(storage: Any, /) -> TorchHold | None:
    """What a view of a storage keeps; None: it was never lent."""

def torch_query_wrote(tensor: Any, /) -> None:
    """Count one more version of a torch.Tensor."""

def torch_functions_open(libtorch_cpu: str, libc10: str, sample: Any, /) -> bool:
    """Find the C++ functions that queries of torch call; False: not all are there."""

def torch_functions_learn() -> bool:
    """Learn how threads in inference mode look; called in one."""

def torch_functions_close() -> None:
    """Call no C++ functions in queries of torch."""

def torch_lending_open(own: Any, foreign: Any, part: Any, /) -> bool: ...
def torch_lending_close() -> None: ...
def torch_lend(tensor: Any, /) -> TensorBase | None: ...
def torch_alike(tensors: tuple[Any, ...], others: tuple[Any, ...], /) -> bool: ...
def torch_memory_open(libtorch_cpu: str, libtorch_python: str, table: object, /) -> bool: ...
def torch_memory_close(borrow: bool, allocate: bool, /) -> None:
    """Do without libtorch's functions that lend, or without those that allocate."""

def torch_borrow(
    tensor: object, /
) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, int, int], tuple[int, int]] | None:
    """The address, shape, strides, dtype and device that a kernel would see, or None."""

def torch_allocate(
    shape: Sequence[int], dtype: tuple[int, int, int], device: tuple[int, int] = (1, 0), /
) -> Any:
    """A tensor as torch.empty makes it, or None."""

def forget_types() -> None: ...
def allocator_statistics() -> dict[str, int]: ...  # the fields of Statistics
def cached_bytes() -> int:
    """Bytes of freed CPU memory that are kept for reuse."""

def trim() -> int:
    """Free the CPU memory that is kept for reuse; returns its bytes."""

def live() -> dict[str, int]:
    """How many there are of each kind of allocation that the core makes."""

def set_hooks(
    *,
    tensor_type: type[TensorBase] | None = None,
    make_dtype: Callable[[int, int, int], DType] | None = None,
    make_device: Callable[[int, int], Device] | None = None,
    classify: Callable[[type], tuple[str, object] | tuple[str, object, Callable[[Any], Any]] | None]
    | None = None,
    slow_from_dlpack: Callable[..., Any] | None = None,
    slow_convert: Callable[..., Any] | None = None,
    refusal: type[Exception] | None = None,
    numpy_descr: Callable[[int, int, int], object] | None = None,
    converters: dict[str, Converter] | None = None,
    cuda_failure: Callable[[str, int, int, str, str], Exception] | None = None,
    slow_empty: Callable[..., object] | None = None,
    slow_zeros: Callable[..., object] | None = None,
    slow_ones: Callable[..., object] | None = None,
    slow_full: Callable[..., object] | None = None,
    slow_equal: Callable[[object, object], bool] | None = None,
    slow_copied: Callable[[TensorBase, tuple[int, int], str], TensorBase | None] | None = None,
    slow_stream: Callable[[TensorBase, object], bool] | None = None,
    is_from_handler: Callable[[BaseException], bool] | None = None,
    receipt_logs: ContextVar[tuple[Any, ...]] | None = None,
    exported: Callable[[Any, Exception, str], object] | None = None,
    numpy_fields: Callable[[Any], tuple[int, int, int] | None] | None = None,
) -> None: ...

# ---- CUDA: streams are numbers as in __dlpack__, and -1 is none ----

def cuda_open(path: str | None = None, /) -> str | None:
    """Open the driver, once; None, or why there is none."""

def cuda_close() -> None:
    """Forget the driver; for tests, while no CUDA memory is alive."""

def cuda_current_stream(device: int, /) -> int: ...
def cuda_set_current_stream(device: int, stream: int, /) -> int: ...
def cuda_ready_stream(tensor: TensorBase, /) -> int:
    """The stream on which the tensor's contents are there."""

def cuda_set_streams(tensor: TensorBase, ready: int, owner: int, /) -> None:
    """Note the producer's streams: ready on one, and used again by its owner on another."""

def cuda_begin(tensor: TensorBase, stream: int, writes: bool, /) -> None:
    """Order `stream` before the tensor's memory is read, or written, on it."""

def cuda_keep(tensor: TensorBase, kept: object, /) -> None:
    """Keep an object, such as the producer's stream, as long as the memory; once per import."""

def cuda_publish(tensor: TensorBase, /) -> int:
    """The stream to wait for before the memory is used by who will not say when he is through."""

def cuda_open_scope(device: int, stream: int, /) -> tuple[int, int]:
    """Make `stream` the current one; returns the one before and the scope to close."""

def cuda_close_scope(device: int, before: int, scope: int, /) -> None: ...
def cuda_collect() -> int: ...
def cuda_allocate(
    shape: Sequence[int], dtype: tuple[int, int, int], device: tuple[int, int], flags: int = 0, /
) -> TensorBase:
    """A new C-contiguous Tensor in CUDA, pinned or managed memory, on the current stream."""

def cuda_trim() -> None: ...
def cuda_statistics(device: tuple[int, int], /) -> tuple[int, int, int, int]: ...
def cuda_drain() -> int:
    """Wait for kernels and give back what waits for them; how many buffers still wait."""

def cuda_synchronised(device: int, /) -> None:
    """Somebody has waited for all work on a device."""

def set_cuda_allocator(
    allocator: Callable[[int, tuple[int, int]], TensorBase | None] | None, /
) -> None:
    """Set the function that allocates results on CUDA: a uint8 Tensor of so many bytes, or None."""

def set_cuda_memory_hooks(
    no_memory: Callable[[str, int, int, int], Exception],
    read_pair: Callable[[object, str], tuple[int, int]],
    device_type: type,
    /,
) -> None: ...
def copied(
    tensor: TensorBase, device: tuple[int, int], order: str, flags: int, /
) -> TensorBase: ...
def fill(tensor: TensorBase, byte: int, /) -> None: ...
def cuda_wait(tensor: TensorBase, writes: bool, may_be_captured: bool = False, /) -> None:
    """Wait until the host may read pinned or managed memory, or write it.

    Work that is being captured is an error, or with `may_be_captured` is left to its graph.
    """

def check_interpreter() -> None:
    """Raise ImportError in a subinterpreter: the core's state is one for the process."""

def share(made: object, /) -> None:
    """Tell that many threads will hold an object that was just made, until the process ends."""

def watch(active: int, /) -> None:
    """Add to the number of active receipt logs."""

class Record:
    """The fields of a receipt, given as they are, or made of what C wrote once they are read."""

    def __init__(self, fields: tuple[object, ...]) -> None: ...
    def fields(self) -> tuple[object, ...]: ...
    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def shared(self) -> bool: ...
    @property
    def copied_by(self) -> str | None: ...
    @property
    def why(self) -> str | None: ...
    @property
    def data_ptr_in(self) -> int | None: ...
    @property
    def data_ptr_out(self) -> int | None: ...
    @property
    def nbytes(self) -> int | None: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def dtype(self) -> DType | None: ...
    @property
    def device(self) -> Device | None: ...
    @property
    def stream(self) -> int | None: ...
    @property
    def ordered(self) -> bool | None: ...

def start_receipts(
    record: type[Record],
    fields: Callable[[tuple[Any, ...]], tuple[object, ...]],
    source: Callable[[type], str],
    address: Callable[[Any], int | None],
    /,
) -> None:
    """Say what makes receipts of what C writes down: see `exchange/receipt.c`."""

@final
class JaxCaller:
    """Eager calls with JAX arrays: which jitted function serves a call, by the call's form."""

    def __new__(
        cls,
        slow: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        array_type: type,
        name: str,
        doc: str,
    ) -> Self: ...
    def remember(
        self,
        values: tuple[Any, ...],
        names: tuple[str, ...],
        operands: tuple[int, ...],
        function: Callable[..., Any],
        numbers: tuple[int, ...],
        defaults: int,
        is_shadowed: bool,
        /,
    ) -> None:
        """Say what serves calls with these values; arrays stand at `operands`, in its order.

        Of those at `numbers` only the type counts: the function takes them in one block behind the
        arrays and, where it is shadowed, once more as they are. The last `defaults` values are not
        among the arguments of such a call.
        """

    def serve(self, kernel: KernelBase, /) -> None:
        """Be called by the kernel's own calls with JAX arrays."""

    def function(self) -> Callable[..., Any]:
        """The builtin function that users call."""

def xla_handler(platform: str, /) -> object:
    """The handler of XLA's typed FFI for "cpu", "CUDA" or "ROCM", in a capsule; "stream": the one
    that notes the stream on which XLA runs programs of a CUDA device."""

def xla_stream(device: int, /) -> int:
    """The stream that the handler "stream" has noted for a CUDA device, or 0."""

def xla_call(function: Callable[..., Any], /, *args: object) -> Any:
    """The result of the call; an eager failure within XLA is raised as what failed there."""

# ---- TensorFlow's op ----

def tensorflow_open(library: str, dtypes: dict[int, tuple[int, int, int]], /) -> None:
    """Register the op with the TensorFlow whose framework library is loaded from that path."""

def tensorflow_execute(function: Callable[..., Any], /, *args: object) -> Any:
    """Call `function`; where it raises because our op failed, raise what failed instead."""

# ---- ONNX Runtime's operators ----

def onnxruntime_plan(
    element_types: dict[int, tuple[int, int, int]],
    domains: tuple[tuple[str, tuple[Any, ...], int], ...],
    /,
) -> object:
    """Kernels as custom operators, to be registered any number of times; kept for good.

    A domain is (name, kernels, count of all overloads); a kernel is (key, name, version, scalars,
    optional, mutated, overloads), with bits for inputs; a scalar (name, kind, length, default,
    is_required); an overload the element types of inputs and outputs.
    """

def onnxruntime_register(plan: object, function: Callable[[str], Any], library: str, /) -> Any:
    """Call `function(library)`, which has the runtime ask this module for operators."""

# ---- plans of a graph ----

@final
class Program:
    """A plan that runs in one call, without a Python frame of its own.

    The values of a run stand in numbered slots, made for each call: a program may run in many
    threads and within itself. `constants` fills slots for good; they are never released. `inputs`:
    the slots that the arguments of a call fill, lent by the caller. `outputs`: the slots whose
    values are returned, as a tuple, or bare with `single=True`.

    A step is `(function, inputs, outputs, releases)`, run in order: `function(*inputs)`;
    `outputs` is the slot of its result (-1: unwanted), or a tuple of slots for the items of the
    tuple or list that it returns (-1 for an unwanted one; `()`: the result is not looked at).
    `function` None copies one slot to one slot. `releases`: slots that are emptied right after
    the step, since it uses them last; constants and inputs among them are passed over. An emptied
    slot may be filled again. Functions see the slot's one reference: an argument that only its
    slot holds has a reference count of 1.

    When step i raises an Exception, all values are released, and `on_error(i, exception)` returns
    what is raised from it; without `on_error`, and for KeyboardInterrupt or SystemExit, it is
    raised as it is. Signals are looked at every 64 steps.

    Raises:
        ValueError: a slot does not exist, is read while empty or filled while full.
        TypeError: something is not of the form above.
    """

    slot_count: int
    step_count: int

    def __new__(
        cls,
        slots: int,
        constants: dict[int, Any],
        steps: tuple[
            tuple[
                Callable[..., Any] | None, tuple[int, ...], int | tuple[int, ...], tuple[int, ...]
            ],
            ...,
        ],
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        on_error: Callable[[int, Exception], BaseException] | None = None,
        *,
        single: bool = False,
    ) -> Self: ...
    def __call__(self, *values: Any) -> Any: ...
    def run(self, *values: Any) -> Any:
        """The same as calling the program."""
    def run_until(self, end: float, late: Callable[[], Exception], /, *values: Any) -> Any:
        """The same; raises `late()` after the first step that ends after `end`.

        `end` is in seconds of `time.monotonic`.
        """

@final
class Feed:
    """`feed(value)`: what a user feeds, as an ndarray of one dtype and shape.

    An ndarray (no subclass) of that dtype in native byte order and of a fitting shape (None in
    `shape` fits any length; `shape=None` any rank) is returned itself, whatever its strides. Where
    rank 0 fits, a Python float, int or bool becomes a new 0-d array if the dtype is of its kind
    and holds it: ints exactly, floats in float32 and float64 rounded but not to infinity, ints in
    those only if exact. For everything else the result is that of `slow(value)`.
    """

    def __new__(
        cls,
        dtype: Any,
        shape: tuple[int | None, ...] | None,
        slow: Callable[[Any], Any],
    ) -> Self: ...
    def __call__(self, value: Any, /) -> Any: ...

@final
class Fetch:
    """`fetch(value)`: a NumPy value of a run as TensorFlow's session gives it.

    A 0-d array becomes a NumPy scalar (of an object array: the object), a NumPy scalar is returned
    itself. An array that only the slot of a Program knows, and whose memory only it uses
    (C-contiguous, writable, its own or of a base that only it knows), is returned itself; of any
    other a C-contiguous copy. Other values go to `slow(value)`. Only of use in the last steps of a
    Program, since a later step could keep the array.
    """

    def __new__(cls, slow: Callable[[Any], Any]) -> Self: ...
    def __call__(self, value: Any, /) -> Any: ...

@final
class Quiet:
    """`function`, called while NumPy warns of no floating-point errors.

    Where the context variable in which NumPy has what it does then holds `usual`, it holds `quiet`
    during the call. Where it holds something else, `slow` is called instead.
    """

    def __new__(
        cls,
        function: Callable[..., Any],
        slow: Callable[..., Any],
        variable: ContextVar[Any],
        usual: object,
        quiet: object,
    ) -> Self: ...
    def __call__(self, *values: Any) -> Any: ...

@final
class Lookup:
    """`getattr(x, name)[key]`, a dict; `slow(x)` where that has no such key."""

    def __new__(cls, name: str, key: object, slow: Callable[[Any], Any]) -> Self: ...
    def __call__(self, x: Any, /) -> Any: ...

sigmoid: np.ufunc
"""`1 / (1 + exp(-x))` in one pass, for float32 and float64; the bits are those of NumPy's steps."""

@final
class Loops:
    """A run of element-wise NumPy ufuncs in one call, block by block, on NumPy's own inner loops.

    Values are numbered: the inputs, then the result of each instruction `(ufunc, values)`, whose
    values come before it. `outputs`: the values that a call returns, as a tuple, or bare with
    `single=True`; an input among them is returned itself, a value named twice is one array.

    `loops(*arrays)` gives what calling the ufuncs one after another would give, to the bit, and no
    warnings. Each array is an ndarray (C-contiguous, aligned) or a NumPy scalar, of exactly its
    dtype. Shapes: the common one; its last dims, with or without ones before; one element. A
    result that depends on rank 0 alone is a NumPy scalar, as in NumPy; any other is a new
    C-contiguous array of the common shape. For everything else nothing is done, and the call
    returns `slow(*arrays)`, or NotImplemented without `slow`. Memory between instructions is a few
    blocks per call, so calls may run in many threads. The GIL is released while there is much to
    do.

    With `small_torch` arguments and results are torch.Tensors instead, also those of rank 0: plain
    ones of the host of at most so many elements, of which no derivative is wanted, where torch
    would call nothing but its own kernels. Results are in memory that torch has allocated.

    Raises:
        TypeError: a dtype is not a plain number (bool, integers, floats and complex of up to 64
            bits a part), or a ufunc has not one result or no inner loop in C for exactly the
            dtypes of its operands.
        ValueError: a value does not exist, or not yet.
    """

    dtypes: tuple[Any, ...]  # of the outputs

    def __new__(
        cls,
        inputs: tuple[Any, ...],
        instructions: tuple[tuple[Any, tuple[int, ...]], ...],
        outputs: tuple[int, ...],
        slow: Callable[..., Any] | None = None,
        *,
        single: bool = False,
        small_torch: int = 0,
    ) -> Self: ...
    def __call__(self, *arrays: Any) -> Any: ...
    def takes(self, *arrays: Any) -> bool:
        """Whether a call with them runs in the loops."""

@final
class CCall:
    """How a C function of bare pointers and sizes is called by the core; see `kinds.c_call`."""

    def __new__(
        cls,
        values: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...],
        parameters: tuple[tuple[str, str, int, int, bool, int], ...],
        size: int,
        is_signed: bool,
        result: int = -1,
        is_float: bool = False,
    ) -> Self:
        """`values` and `parameters` are those of `CudaLaunch`, and kind "p" the stream; `size` is
        that of what is returned, in bytes, 0 without it: the tensor `result`; a status, -1; or what
        nobody asked for, -2. Raises NotImplementedError where there are too many parameters, or
        where calls of this processor are not known."""

@final
class CudaLaunch:
    """How a GPU kernel is launched by the core; see `kernels.cuda_launch`."""

    def __new__(
        cls,
        load: Callable[[int], int],
        values: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...],
        parameters: tuple[tuple[str, str, int, int, bool, int], ...],
        programs: tuple[tuple[Any, ...], ...],
    ) -> Self:
        """`load` returns the address of the CUfunction on a device. `values` are (name, sources),
        a source (tensor, first dimension, end), or (-1 - scalar, 0, 0); `parameters` (name, kind,
        index, bytes, whether it is signed, dimension) with kind "t" (the address of a tensor), "v"
        (a value), "i" or "f" (a scalar), "c" (the index itself), "s" (a stride in bytes).
        `programs`: seven postfix expressions over values: grid, block, shared memory."""

    @property
    def load(self) -> Callable[[int], int]: ...

@final
class Peers:
    """The processes of a communicator, for messages that C sends: `library` is the path of mpi4py's
    module, `collective`, `messages`, `payloads` and `byte` are handles of private copies and of
    MPI_BYTE. `direct`: collectives that copy send from rank to rank, instead of by MPI's."""

    def __new__(
        cls,
        library: str,
        collective: int,
        messages: int,
        payloads: int,
        byte: int,
        rank: int,
        size: int,
        highest_tag: int,
        any_tag: int,
        direct: bool = True,
        near: bool = True,
    ) -> Self: ...
    def next_payload(self) -> int: ...
    turns: int
    @property
    def calls(self) -> int: ...
    def has_begun(self, tag: int, calls: int, /) -> bool: ...
    @property
    def is_direct(self) -> bool: ...
    def moves_values(self, nbytes: int, /) -> bool: ...

@final
class Ballot:
    """What a rank says of its call: a digest, shape and dtype (None: any), a payload of at most
    16 KiB and a description. `advance` sends and receives, in the order in which ballots are first
    advanced on all ranks. `combine(own, other, own_is_first)` reduces a payload into one's own, of
    the same size. `takes`: that of one rank is taken; with neither, none has one. `agreed`: whether
    all said the same so far. `values`: a source and a result that lies elsewhere, which are reduced
    by a loop once all agree. `follows`: it is begun after others agreed, in the order of turns.
    `scatters`: each rank gets but its row of the payload. `gathers`: the payload has a row of each
    rank, which writes its own, and all ranks receive them."""

    def __new__(
        cls,
        peers: Peers | None,
        call: bytes,
        kind: tuple[tuple[int, ...], tuple[int, int, int]] | None,
        payload: Any,
        combine: Callable[[memoryview, memoryview, bool], None] | None = None,
        agreed: bool = True,
        values: tuple[TensorBase, TensorBase, Reduction] | None = None,
        takes: bool = False,
        follows: bool = False,
        scatters: bool = False,
        gathers: bool = False,
    ) -> Self: ...
    @property
    def agreed(self) -> bool: ...
    @property
    def tag(self) -> int: ...
    @property
    def result(self) -> TensorBase | None: ...
    @property
    def payload(self) -> bytes: ...
    def advance(self) -> bool: ...
    def sealed(self) -> bytes: ...
    def merge(self, block: Any, /) -> None: ...
    def is_of(self, kind: tuple[tuple[int, ...], tuple[int, int, int]], /) -> bool: ...

@final
class Reduction:
    """A reduction by the loops of a ufunc, for NumPy's type numbers `types`; `learn` adds those of
    ml_dtypes. `quotients`: of a mean, whose sum is divided: see reductions.py."""

    def __new__(
        cls,
        call: bytes,
        ufunc: Any,
        types: tuple[int, ...],
        quotients: Callable[[tuple[int, int, int], int], bytes] | None = None,
    ) -> Self: ...
    def learn(self, dtype: tuple[int, int, int], number: int, /) -> None: ...

@final
class TreePlan:
    """A call with trees that are made as `tree` is: of plain containers, with tensors of the same
    shapes and dtypes in the same places. `leaves`: its tensors, each once, `tensors`: as they are
    sent; `call`: the digest of the call with its `arguments`; `how`: a Reduction, "bcast" or
    "gather", which have a root.
    """

    def __new__(
        cls,
        tree: Any,
        leaves: list[Any],
        tensors: list[TensorBase],
        call: bytes,
        arguments: str,
        how: Reduction | str,
        root: int = 0,
    ) -> Self: ...
    @property
    def is_plain(self) -> bool: ...
    def fits(self, peers: Peers, /) -> bool: ...

@final
class TreeBallot:
    """A Ballot of a call with a tree, whose tensors move once all agree. `gives`: whether this rank
    gets results, which the root of a bcast may ask for."""

    def __new__(
        cls, peers: Peers, plan: TreePlan, tensors: list[TensorBase], gives: bool = True
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def agreed(self) -> bool: ...
    @property
    def tag(self) -> int: ...
    @property
    def arguments(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def advance(self) -> bool: ...
    def result(self) -> Any: ...
    def results(self) -> list[TensorBase]: ...

@final
class Posted:
    """A message under way, with large contents in a message of their own.

    `data`: what has come without those. `nbytes`: of those that are sent or received, 0 where there
    are none, or not yet. `result`: the Tensor that they are received into, unless it is another's.
    """

    @property
    def data(self) -> bytes: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def result(self) -> TensorBase | None: ...
    def advance(self) -> bool: ...
    def cancel(self) -> bool: ...

@final
class Collective:
    """A collective that copies between compact Tensors, or None where this rank sends or receives
    nothing: "allgather", "alltoall", "bcast", "gather" or "scatter"; or a "reduce_scatter", by the
    loop of a Reduction. `begin`, after a Ballot or TreeBallot that is over, posts its messages."""

    def __new__(
        cls,
        peers: Peers,
        name: str,
        source: TensorBase | None,
        result: TensorBase | None,
        root: int = 0,
        reduction: Reduction | None = None,
    ) -> Self: ...
    def begin(self, ballot: Ballot | TreeBallot, /) -> None: ...
    @property
    def result(self) -> TensorBase | None: ...
    def advance(self) -> bool: ...

class Begun:
    """A call that may be under way: of C, which has begun it, or with its Operation of Python.

    C goes on with a message or a collective until it is over, or somebody waits long for it, or it
    is out of the ordinary. Those under way are held until they are over.
    """

    def __new__(cls, operation: Any) -> Self: ...
    @property
    def operation(self) -> Any: ...
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def _call(self) -> str: ...
    @property
    def _is_begun(self) -> bool: ...
    @property
    def _is_over(self) -> bool: ...
    @property
    def _has_failed(self) -> bool: ...
    def _finish(self, waits: bool, /) -> bool: ...
    def _look(self) -> bool | None: ...
    def _take_back(self) -> bool | None: ...
    def _outcome(self) -> Any: ...

# Bytes that are sent, or reduced, in one way: see `_core/mpi/mpi.h`.
BALLOT_MOST: int
REDUCED_MOST: int
COPIED_MOST: int
ROWS_MOST: int
GATHERED_MOST: int
MESSAGE_MOST: int

def advance_begun(count: int, /) -> bool: ...
def is_begun_over(peers: Peers, /) -> bool: ...
def pass_on_begun() -> None: ...
def awake(near: bool, nbytes: int, /) -> float: ...
def outcomes(requests: list[Any], /) -> list[Any]: ...
def finish_begun(requests: list[Any], start: int, /) -> int: ...

@final
class Quick:
    """Calls of dlbridge.mpi that C makes, with tensors of the CPU, over one communicator.

    With `like`, it knows the types and calls that another one learns, and the other way round.
    Each call returns its result, or False where it is out of the ordinary: then nothing was sent.
    Calls that do not wait return a `request`, a subclass of Begun. `timeout`: seconds, not less
    than 10 ms: what is not over then waits by `wait_since(begun, timeout)` of its Request.
    `types`: array types to (Converter of results, what must return True before, or None, whether
    such arrays are ever written). `calls`: arguments to a Reduction or a digest. `active`: what is
    under way in Python; `go_on()`, called at most once in a millisecond, advances some of it.
    `resume(name, under_way, *args)` goes on with a call that takes long or is not agreed on, and
    returns its Request.
    """

    peers: Peers | None
    active: dict[Any, None]
    go_on: Any
    resume: Any
    request: type[Begun] | None
    types: dict[type, tuple[Any, Any, bool]]
    calls: dict[Any, Any]

    def __new__(cls, like: Quick | None = None) -> Self: ...
    def send(self, x: Any, dest: Any, tag: Any, timeout: Any = None, /) -> Any: ...
    def isend(self, x: Any, dest: Any, tag: Any, /) -> Any: ...
    def recv(self, source: Any, tag: Any, to: Any, out: Any, timeout: Any = None, /) -> Any: ...
    def irecv(self, source: Any, tag: Any, to: Any, out: Any, /) -> Any: ...
    def sendrecv(
        self,
        x: Any,
        dest: Any,
        source: Any,
        sendtag: Any,
        recvtag: Any,
        to: Any,
        out: Any,
        timeout: Any = None,
        /,
    ) -> Any: ...
    def barrier(self, key: str, timeout: Any = None, /) -> Any: ...
    def bcast(self, x: Any, root: Any, to: Any, out: Any, timeout: Any = None, /) -> Any: ...
    def gather(self, x: Any, root: Any, out: Any, key: str, timeout: Any = None, /) -> Any: ...
    def scatter(
        self, x: Any, root: Any, to: Any, out: Any, key: str, timeout: Any = None, /
    ) -> Any: ...
    def allreduce(self, x: Any, op: Any, out: Any, timeout: Any = None, /) -> Any: ...
    def reduce(self, x: Any, op: Any, root: Any, out: Any, timeout: Any = None, /) -> Any: ...
    def reduce_scatter(
        self, x: Any, op: Any, out: Any, key: str, timeout: Any = None, /
    ) -> Any: ...
    def allgather(self, x: Any, out: Any, key: str, timeout: Any = None, /) -> Any: ...
    def alltoall(self, x: Any, out: Any, key: str, timeout: Any = None, /) -> Any: ...
    def ibarrier(self, key: str, /) -> Any: ...
    def ibcast(self, x: Any, root: Any, to: Any, out: Any, /) -> Any: ...
    def igather(self, x: Any, root: Any, out: Any, key: str, /) -> Any: ...
    def iscatter(self, x: Any, root: Any, to: Any, out: Any, key: str, /) -> Any: ...
    def iallreduce(self, x: Any, op: Any, out: Any, /) -> Any: ...
    def ireduce(self, x: Any, op: Any, root: Any, out: Any, /) -> Any: ...
    def ireduce_scatter(self, x: Any, op: Any, out: Any, key: str, /) -> Any: ...
    def iallgather(self, x: Any, out: Any, key: str, /) -> Any: ...
    def ialltoall(self, x: Any, out: Any, key: str, /) -> Any: ...

@final
class Transport:
    """Messages between the tasks of a cluster, over the MPI library that mpi4py has loaded.

    `library`: the path of mpi4py's module. `messages`, `payloads`: handles of two communicators;
    `byte`: that of MPI_BYTE. `any_source`, `rank`, `size`, `highest_tag`: numbers of MPI.
    `on_news(sender, step, edge, data)` gets what `tell` sends, and must not wait. `look(peers,
    step, plan)` is called every 10 ms of a wait with the peers, step and plan of its Rendezvous, or
    with None and zeros, and may raise. `failed(step)` returns the exception that the waits of a
    failed step raise.

    A send never waits. A wait releases the GIL, yields for 250 microseconds, then naps up to 200,
    and looks at signals.

    Raises:
        MPIError: a function of MPI is missing or failed.
    """

    largest_inside: int  # bytes of a value that travel in its message at most

    def __new__(
        cls,
        library: str,
        messages: int,
        payloads: int,
        byte: int,
        any_source: int,
        rank: int,
        size: int,
        highest_tag: int,
        on_news: Callable[[int, int, int, bytes], None],
        look: Callable[[frozenset[int] | None, int, int], None],
        failed: Callable[[int], Exception],
    ) -> Self: ...
    def tell(self, peer: int, step: int, edge: int, data: bytes, /) -> None: ...
    def post(self, peer: int, step: int, edge: int, data: bytes, /) -> None: ...
    def runs(self, step: int, /) -> bool: ...
    def progress(self) -> bool: ...
    def wait(self, seconds: float, /) -> bool: ...
    def fail(self, step: int, /) -> None: ...
    def give_up(self, step: int, /) -> None: ...
    def counts(self) -> tuple[int, int, int, int]: ...
    def offer(self, size: int, /) -> bytes | None:
        """Make a region of about `size` bytes that other processes of the host may map; return
        where they find it, or None where the system allows none."""

    def attach(self, rank: int, address: bytes, /) -> bool:
        """Map what a rank offers; return whether that worked."""

    def share(self, agreed: bool, /) -> None:
        """Use the regions from now on, since all tasks of the host have mapped those of all; or
        drop them. Values of more than 8 KiB are then lent to these tasks."""

    def arena(self) -> tuple[int, int, int, int]:
        """Return the bytes of the own region, how many are allocated, in how many blocks, and how
        many values were lent so far."""

@final
class InArena:
    """A step of a plan whose arrays of more than 8 KiB NumPy allocates in the transport's arena."""

    def __new__(cls, transport: Transport, function: Callable[..., Any]) -> Self: ...
    def __call__(self, *values: Any) -> Any: ...

@final
class Loan:
    """What an array over memory of another process keeps: it gives the memory back when it goes."""

@final
class Rendezvous:
    """Where the edges of one plan find each other, in one run at a time.

    `step`: the number of the run; setting it begins the run, and ends the one before. `peers`: the
    ranks without which the run cannot end. `plan`: a number that messages of its runs carry, so
    that they never meet those of another plan; 0 is none. `max_bytes`: of a message; no memory is
    made for a larger one, which its receive refuses. -1: any.
    """

    step: int
    plan: int
    peers: frozenset[int] | None

    def __new__(cls, transport: Transport, max_bytes: int = -1) -> Self: ...
    def limit(self, deadline: float, late: BaseException, /) -> None:
        """Let the waits of the run that has begun raise `late` from `deadline` on, in seconds of
        `time.monotonic`."""

    def flush(self) -> None: ...
    def end(self) -> None: ...

@final
class StepNumbers:
    """The numbers of steps: `base | 1`, `base | 2` ...; `ended` of them are over. `skip`: the next
    one is that of no step."""

    base: int
    ended: int

    def __new__(cls, base: int) -> Self: ...
    def skip(self) -> None: ...

@final
class ClusterCall:
    """A plan as steps of a session, without a Python frame: each call is a step.

    A call takes `given` values, of which `program` gets those of `selected`. It sends `request` to
    `on_news` of the ranks `told`, with the edge `news`, runs the program, and waits for an empty
    message at each edge of `answers`. With `rounds`, the number of an edge, `size` tasks end one
    step of `every` together; 0: they do not. Calls hold `lock`. `check()` raises where the process
    cannot use MPI. `on_error(step, error)` returns the exception to raise for one that ended the
    step.
    """

    def __new__(
        cls,
        rendezvous: Rendezvous,
        numbers: StepNumbers,
        program: Callable[..., Any],
        given: int,
        selected: tuple[int, ...],
        lock: Any,
        check: Callable[[], None],
        on_error: Callable[[int, BaseException], BaseException],
        told: tuple[int, ...],
        news: int,
        request: bytes,
        answers: tuple[int, ...],
        rounds: int,
        every: int,
        size: int,
    ) -> Self: ...
    def __call__(self, *values: Any) -> Any: ...

@final
class Edge:
    """Called with a value it sends that to the rank `peer`; with `peer=-1`, called with nothing, it
    waits for the value and returns it as an ndarray of its own memory.

    `number`: of the edge, the same at both ends. `dtype`: the number of its DataType, `descr`: that
    of NumPy. For a value of more than `max_bytes` `refuse(shape, nbytes)` is called, which raises;
    without it a MemoryError is raised. -1: any. With `more`, a
    small value waits for the next one that is sent to the rank, for the next wait, or for
    `Rendezvous.flush`.
    """

    more: bool

    def __new__(
        cls,
        rendezvous: Rendezvous,
        number: int,
        dtype: int,
        descr: Any,
        peer: int = -1,
        max_bytes: int = -1,
        refuse: Callable[[tuple[int, ...], int], None] | None = None,
    ) -> Self: ...
    def __call__(self, value: Any = ..., /) -> Any: ...
