"""PyTorch: the C exchange table, guarded where torch hands out what its memory does not say."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from dlbridge import device, dtype
from dlbridge._core import native
from dlbridge.cuda.driver import LEGACY, NONE, as_stream
from dlbridge.errors import DLBridgeError, ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import DryRunEnd, ExchangeContext, Policy
from dlbridge.frameworks.torch import internals, sharing
from dlbridge.frameworks.torch.internals import guard_is_open
from dlbridge.signals import not_from_handler
from dlbridge.tensor.allocator import Allocator, FrameworkAllocator

_TABLE = protocol.TABLE
_BCOMPLEX, _INT32 = (18, 32, 1), (0, 32, 1)  # torch 2.15 has the first, but not in DLPack


class Torch(Framework):
    """torch.Tensor and its subclasses that own plain memory."""

    name = "torch"
    to_dtype = "{x}.to(torch.{dtype})"
    extra = "torch"
    module = "torch"
    roots = ("torch",)
    taken_by = "torch storage"
    way_in = "C exchange table"
    way_out = "C exchange table"
    zero_copy = "both ways"
    notes = "no negative strides; cannot protect read-only memory; float4 as pairs"
    quirks = (
        Quirk(
            1,
            "2.11, 2.13",
            "aborts on negative strides",
            "copied, or refused: strides",
            "Copy reversed views first",
            sign=Sign("crashed", traits=("negative",)),
        ),
        Quirk(
            6,
            "2.13",
            "aborts on overflow, segfaults on ndim -1",
            "refused before",
            "Do not hand torch capsules of unknown origin",
        ),
        Quirk(
            7,
            "all",
            "ignores READ_ONLY",
            "refused: readonly, unless a policy says otherwise",
            "Write to such tensors only after a copy",
            sign=Sign("wrong", traits=("read-only",)),
        ),
        Quirk(
            13,
            "2.13",
            "exports negative bit, narrow integers, fake tensors",
            "guarded",
            "Call resolve_neg() and resolve_conj() before the export",
        ),
        Quirk(
            17,
            "2.13",
            "accepts dl_device=(1, 1)",
            "CPU memory is one device",
            "Take the device from the tensor, not from the request",
        ),
        Quirk(
            18,
            "2.13",
            "copy=True sets no IS_COPIED",
            "dlbridge copies by itself",
            "Do not rely on IS_COPIED",
        ),
        Quirk(
            36,
            "2.13",
            "calls the deleter twice on devices it refuses",
            "refused before",
            "Copy to a device that torch has first",
        ),
        Quirk(
            41,
            "2.13",
            "its table's allocator calls each failure a MemoryError",
            "its message is kept",
            "Read the message, not the kind",
        ),
        Quirk(
            42,
            "2.6, 2.11, 2.13, 2.15",
            "asarray reads any buffer as a vector, before 2.15 of float32",
            "documented: to_torch, as_tensor",
            "Call torch.from_dlpack, or dlbridge.to_torch, on Tensors",
        ),
        Quirk(
            43,
            "2.11, 2.13",
            "segfaults on complex128 that is not 16-byte aligned",
            "copied, or refused: alignment",
            "Copy such arrays with numpy.array first",
        ),
        Quirk(
            46,
            "2.13",
            "torch.compile makes read-only NumPy arrays writable",
            "not known between two graphs; refused under fullgraph=True",
            "Convert read-only arrays outside of the compiled function",
        ),
        Quirk(
            49,
            "2.13",
            "a backward pass that raises keeps tensors until the thread's next one",
            "documented",
            "Run torch.ones(1, requires_grad=True).sum().backward() to free them",
        ),
    )
    expressions = Expressions(
        {"torch": "torch"},
        make="torch.from_numpy(bits(a)).view(getattr(torch, a.dtype.name))",
        from_dlpack="torch.from_dlpack({})",
        values="typed(x.reshape(-1).view(torch.uint8).numpy(), str(x.dtype)[6:], x.shape)",
        address="x.data_ptr()",
        copied="torch.from_dlpack({}, copy=True)",
        is_view=True,
    )
    allocates = True
    device_names: ClassVar[dict[int, str]] = {
        1: "cpu",
        2: "cuda",
        7: "vulkan",
        8: "mps",
        10: "cuda",
        14: "xpu",
        17: "maia",
    }

    def recognises(self, cls: type) -> bool:
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        proxies = sys.modules.get("torch.fx.proxy")  # of symbolic_trace, which records kernels
        return issubclass(cls, torch.Tensor) or (
            proxies is not None and issubclass(cls, proxies.Proxy)
        )

    def array_type(self) -> type | None:
        tensor: type = self.import_module().Tensor
        return tensor

    def classify(self, cls: type) -> tuple[str, object] | None:
        torch: Any = sys.modules["torch"]
        plain = cls is torch.Tensor or cls is torch.nn.Parameter
        table = getattr(torch.Tensor, _TABLE, None)
        if not plain:
            return None
        if guard_is_open():
            return "torch", table
        if not (internals.guard_is_closed() and internals.queries_are_open()):
            return None
        export = torch.utils.dlpack.to_dlpack if table is None else table
        return "torch_public", (export, sharing.hold)

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take a tensor; conjugate, negative and zero tensors are resolved by a copy of torch's.

        A subclass with an export of its own is asked for that: torch's ReadOnlyTensorWrapper says
        by it that the memory must not be written, and allows nothing else.
        """
        try:
            if _exports_itself(x):
                return protocol.take_dlpack(x, policy, context)
            return self._take_memory(x, policy, context)
        except (DLBridgeError, DryRunEnd):
            raise
        except not_from_handler(Exception) as error:
            # of torch, or of the __torch_function__ of a subclass
            raise protocol.refused(x, error) from error

    @staticmethod
    def _take_memory(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        _refuse_without_memory(x)
        if sys.modules["torch"]._C._get_tracing_state() is not None:
            _warn_of_trace(policy)
        # Where nothing is recorded, no gradient can be lost.
        is_recorded = x.requires_grad and sys.modules["torch"].is_grad_enabled()
        if is_recorded and policy.grad != "detach":
            raise ExchangeError(
                "requires_grad",
                "from_dlpack: the torch.Tensor requires a gradient, which would be lost; pass "
                'x.detach() or grad="detach"',
            )
        for reason, is_lazy, resolve in (*LAZY, _ZERO):
            if is_lazy(x):
                x = _resolved(x, reason, resolve, policy, context)
        _check_storage(x)
        # x may get another storage (x.data = y, x.set_, module.double): what is lent is an alias,
        # and, where this torch is known, the memory itself.
        x = x.detach()
        if str(x.dtype) == "torch.bcomplex32":
            bits = _lend(x.view(sys.modules["torch"].int32), policy, context)
            return bits._view(bits.shape, bits.strides, dtype=_BCOMPLEX)
        return _lend(x, policy, context)

    def gives_new_memory(self, iterable: Any) -> bool:
        """Tell of a DataLoader, or its iterator, whether its collate function makes new tensors."""
        loaders = sys.modules.get("torch.utils.data.dataloader")
        if loaders is None:
            return False
        if type(iterable) is loaders.DataLoader:
            collate = iterable.collate_fn
        elif isinstance(iterable, loaders._BaseDataLoaderIter):
            collate = iterable._collate_fn
        else:
            return False
        return bool(iterable._auto_collation and collate is loaders._utils.collate.default_collate)

    def limits(self) -> native.Limits:
        return _limits(self.import_module())

    def start(self, converter: native.Converter) -> None:
        torch = self.import_module()
        table = getattr(torch.Tensor, _TABLE, None)
        if table is not None:
            converter.activate("table", self.limits(), table, torch.Tensor)
        else:  # before 2.10; the function is what torch.from_dlpack calls with a capsule
            converter.activate("capsule", self.limits(), torch._C._from_dlpack, torch.Tensor)

    def entry(self, tensor: native.TensorBase | None) -> str:
        has_table = hasattr(self.import_module().Tensor, _TABLE)
        return "torch C exchange table" if has_table else "torch.from_dlpack"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        torch = self.import_module()
        if tensor._dtype_triple == _BCOMPLEX:
            bits = tensor._view(tensor.shape, tensor.strides, dtype=_INT32)
            return self.give(bits, policy, context).view(torch.bcomplex32)
        table = getattr(torch.Tensor, _TABLE, None)
        if table is not None:
            return native.give_table(tensor, table, context.stream)
        stream = NONE if context.stream is None else context.stream
        return torch.from_dlpack(tensor._capsule(False, 0, True, stream))

    def path(self) -> str:
        return internals.path()

    def prove(self) -> str:
        from dlbridge.frameworks.torch import proving  # which wraps kernels

        self.import_module("prove")
        return proving.prove()

    def stream(self, device: int) -> int:
        """Return torch's current stream on a CUDA device.

        Raises:
            ExchangeError: reason "device", torch is built for CUDA and finds no such device.
        """
        torch = self.import_module()
        try:
            if hasattr(torch.Tensor, _TABLE):
                return super().stream(device)
            return as_stream(torch.cuda.current_stream(device))
        except not_from_handler(RuntimeError, AssertionError) as error:
            why = str(error).partition("\n")[0]
            raise ExchangeError("device", f"torch has no stream on cuda:{device}: {why}") from error

    def cuda_allocator(self) -> Allocator:
        return TorchAllocator()

    # ---- names of dtypes and devices ----

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        name = str(x).rpartition(".")[2]
        return dtype.read_named(x, "float4_e2m1fnx2" if name == "float4_e2m1fn_x2" else name)

    def make_dtype(self, name: str) -> Any:
        torch = self.import_module("DType.to")
        return getattr(torch, "float4_e2m1fn_x2" if name == "float4_e2m1fnx2" else name)

    def read_device(self, x: Any) -> tuple[int, int]:
        kind = x.type
        if not isinstance(kind, str):  # a tensor's type() is a method
            raise device.unsupported(x)
        if kind == "cuda" and sys.modules["torch"].version.hip is not None:
            kind = "rocm"
        return device.read_kind(x, kind, x.index)

    def make_device(self, kind: str, number: int) -> Any:
        torch = self.import_module("Device.to")
        return torch.device(kind) if kind == "cpu" else torch.device(kind, number)


class TorchAllocator(FrameworkAllocator):
    """PyTorch's caching allocator."""

    def __init__(self) -> None:
        super().__init__("torch")

    def request(self, nbytes: int, device: int, stream: int) -> int:
        """Return the address of memory that torch keeps for this stream."""
        handle = 0 if stream == LEGACY else stream
        return int(self._framework.cuda.caching_allocator_alloc(nbytes, device, handle))

    def deallocate(self, address: int, nbytes: int) -> None:
        """Give the memory back to the cache."""
        self._framework.cuda.caching_allocator_delete(address)


# Tensors whose memory holds other values than theirs, with the method that resolves them.
LAZY: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("conjugate", lambda x: x.is_conj(), "resolve_conj"),
    ("negative_bit", lambda x: x.is_neg(), "resolve_neg"),
)
_ZERO: tuple[str, Callable[[Any], bool], str] = ("lazy", lambda x: x._is_zerotensor(), "clone")


def _resolved(x: Any, reason: str, resolve: str, policy: Policy, context: ExchangeContext) -> Any:
    if policy.copy is False:
        raise ExchangeError(
            reason,
            f"from_dlpack: the torch.Tensor is lazy ({reason}): its memory holds other values; "
            f"copy=False forbids the copy that would help: pass copy=None, or x.{resolve}()",
        )
    return context.copying("torch", reason, lambda: getattr(x, resolve)())


def _warn_of_trace(policy: Policy) -> None:
    """Warn as `x.numpy()` does: torch.jit.trace records nothing of what is done with the memory."""
    torch = sys.modules["torch"]
    warnings.warn(
        f"{policy.call}: torch.jit.trace cannot record what happens to the memory of a tensor, so "
        "that the values are constants in the trace; wrap the function with dlbridge.wrap",
        category=torch.jit.TracerWarning,
        stacklevel=2,
    )


def _refuse_without_memory(x: Any) -> None:
    """Refuse every kind of torch.Tensor whose memory is not its strided values."""
    torch: Any = sys.modules["torch"]
    if not isinstance(x, torch.Tensor):
        raise ExchangeError(
            "lazy", f"from_dlpack: {protocol.describe(x)} stands for a tensor that is traced"
        )
    functorch = torch._C._functorch
    refusals = (
        (
            functorch.is_functorch_wrapped_tensor(x),
            "lazy",
            "is wrapped by torch.func, without memory; wrap the function with dlbridge.wrap",
        ),
        (type(x).__name__ == "FakeTensor", "lazy", "is fake: it has no memory"),
        (
            _dispatches(x, torch),
            "subclass",
            "is a subclass that computes by __torch_dispatch__; pass the tensor that it wraps",
        ),
        (torch.nn.parameter.is_lazy(x), "lazy", "is not initialised; run its module once"),
        (
            x.is_nested,
            "sparse",
            "is nested; pass the tensors of x.unbind(), or x.to_padded_tensor(0.0)",
        ),
        (
            x.layout is not torch.strided,
            "sparse",
            f"has layout {x.layout}; pass x.to_dense(), or its indices and values",
        ),
        (x.is_quantized, "quantized", "is quantised; pass x.dequantize() or x.int_repr()"),
        (
            x.device.type == "meta",
            "lazy",
            "is on the meta device, without memory; pass torch.empty_like(x, device='cpu')",
        ),
    )
    for refused, reason, what in refusals:
        if refused:
            raise ExchangeError(reason, f"from_dlpack: the {protocol.describe(x)} {what}")
    if str(x.dtype).startswith("torch.bits"):
        raise ExchangeError("dtype", f"from_dlpack: {x.dtype} has no meaning of its own")
    if str(x.dtype).removeprefix("torch.") in _NARROW_INTEGERS:
        raise ExchangeError(
            "dtype", f"from_dlpack: torch exports {x.dtype} as if it had 8 bits; view it as uint8"
        )


def _check_storage(x: Any) -> None:
    """Refuse a tensor that reaches beyond its storage: `resize_` may have shrunk that since."""
    if not x.numel():
        return
    steps = zip(x.shape, x.stride(), strict=True)
    last = x.storage_offset() + sum((extent - 1) * step for extent, step in steps)
    held, needed = x.untyped_storage().nbytes(), (last + 1) * x.element_size()
    if needed > held:
        raise ExchangeError(
            "null_data",
            f"from_dlpack: the torch.Tensor needs {needed} bytes of its storage, which was "
            f"resized to {held}",
        )


def _exports_itself(x: Any) -> bool:
    """Return whether the class of a tensor has a `__dlpack__` other than torch's."""
    torch: Any = sys.modules["torch"]
    return isinstance(x, torch.Tensor) and type(x).__dlpack__ is not torch.Tensor.__dlpack__


def _lend(alias: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    """Return a Tensor over the memory of a plain tensor to which nothing else refers."""
    tensor = native.torch_lend(alias) if guard_is_open() else None
    if tensor is not None:
        context.route.append("torch storage")
        return tensor
    _fix_size(alias)
    table = getattr(type(alias), _TABLE, None)
    if table is None:
        tensor = protocol.take_dlpack(alias, policy, context)
    else:
        context.route.append("torch C exchange table")
        tensor = native.take_table(alias, table)
    return sharing.lent(alias, tensor) if alias.device.type == "cpu" and alias.numel() else tensor


def _fix_size(alias: Any) -> None:
    """Let torch refuse to resize the storage, as it does after `numpy()`; it knows that of the CPU.

    NumPy gets none of the elements, and bytes for any dtype.
    """
    torch: Any = sys.modules["torch"]
    if alias.device.type == "cpu" and alias.numel() and alias.untyped_storage().resizable():
        with torch._C.DisableTorchFunctionSubclass():
            alias.as_strided((0,), (1,)).view(torch.uint8).numpy()


def _dispatches(x: Any, torch: Any) -> bool:
    disabled = torch._C._disabled_torch_dispatch_impl
    return getattr(type(x), "__torch_dispatch__", disabled) is not disabled


_NARROW_INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)}


@cache
def _limits(torch: Any) -> native.Limits:
    devices = [1]
    if torch.cuda.is_available():
        devices.append(10 if torch.version.hip else 2)  # it refuses pinned and managed memory
    return native.Limits(
        "torch",
        dtypes=_dtypes(torch),
        devices=devices,
        layout="non_negative",
        wide_alignment=16,  # it is compiled to rely on that, and a signal ends the process
    )


def _dtypes(torch: Any) -> list[tuple[int, int, int]]:
    by_name = {
        "complex32": (5, 32, 1),
        "bcomplex32": (18, 32, 1),
        "bfloat16": (4, 16, 1),
        "float8_e4m3fn": (10, 8, 1),
        "float8_e4m3fnuz": (11, 8, 1),
        "float8_e5m2": (12, 8, 1),
        "float8_e5m2fnuz": (13, 8, 1),
        "float8_e8m0fnu": (14, 8, 1),
        "float4_e2m1fn_x2": (17, 4, 2),
        "uint16": (1, 16, 1),
        "uint32": (1, 32, 1),
        "uint64": (1, 64, 1),
    }
    plain = [*((0, bits, 1) for bits in (8, 16, 32, 64)), (1, 8, 1), (6, 8, 1)]
    plain += [*((2, bits, 1) for bits in (16, 32, 64)), (5, 64, 1), (5, 128, 1)]
    return plain + [triple for name, triple in by_name.items() if hasattr(torch, name)]


ADAPTER = Torch()
