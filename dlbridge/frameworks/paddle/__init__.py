"""Paddle: the C exchange table; the guards are here, since the table exports what it should not."""

from __future__ import annotations

import sys
from typing import Any, ClassVar
from weakref import ref

from dlbridge import device, dtype
from dlbridge._core import native
from dlbridge.cuda.driver import LEGACY
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError, FrameworkMissingError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.signals import not_from_handler

_TABLE = protocol.TABLE
# uint16 is missing: Paddle shows it as bfloat16 and computes with it as such.
_DTYPES = [
    *((0, bits, 1) for bits in (8, 16, 32, 64)),
    *((1, bits, 1) for bits in (8, 32, 64)),
    *((2, bits, 1) for bits in (16, 32, 64)),
    (4, 16, 1),
    (5, 64, 1),
    (5, 128, 1),
    (6, 8, 1),
]
_FLOAT8 = {"float8_e4m3fn": (10, 8, 1), "float8_e5m2": (12, 8, 1)}


class Paddle(Framework):
    """paddle.Tensor and parameters."""

    name = "paddle"
    extra = "paddle"
    module = "paddle"
    not_after = ("tensorflow",)
    roots = ("paddle",)
    way_in = "C exchange table"
    way_out = "C exchange table"
    zero_copy = "both ways, no negative strides"
    notes = "at most 9 dimensions; no uint16; cannot protect read-only memory; import before TF"
    quirks = (
        Quirk(
            5,
            "3.3",
            "a CPU build segfaults on CUDA memory",
            "refused: device",
            "Copy to the host before a CPU build imports it",
        ),
        Quirk(
            8,
            "3.3",
            "cannot be imported after TensorFlow",
            "refused: missing",
            "Import paddle before tensorflow",
        ),
        Quirk(
            9,
            "3.3",
            "ignores byte_offset",
            "exports carry none",
            "Copy views before Paddle imports them",
            sign=Sign("wrong", traits=("byte_offset",)),
        ),
        Quirk(
            12, "3.3", "accepts lanes 0", "refused: lanes", "Do not hand Paddle tensors with lanes"
        ),
        Quirk(
            16,
            "3.3",
            "ignores READ_ONLY",
            "refused: readonly, unless a policy says otherwise",
            "Write to such tensors only after a copy",
            sign=Sign("wrong", traits=("read-only",)),
        ),
        Quirk(
            24,
            "3.3",
            "__dlpack_device__() is (1, None)",
            "None counts as 0",
            "Consumers must read the index None as 0",
            sign=Sign("refused", "producer"),
        ),
        Quirk(
            30, "3.3", "at most 9 dimensions", "refused: ndim", "Reshape to 9 dimensions or fewer"
        ),
        Quirk(
            30,
            "3.3",
            "numpy() of negative strides reads other memory",
            "copied, or refused",
            "Copy reversed views before numpy()",
        ),
        Quirk(
            33,
            "3.3",
            "shows imported uint16 as bfloat16",
            "refused: dtype",
            "Cast uint16 to int32 first",
            sign=Sign("wrong", traits=("uint16",)),
        ),
        Quirk(
            34,
            "3.3",
            "calls the deleter without the GIL",
            "deleters take it themselves",
            "Deleters must take the GIL themselves",
        ),
        Quirk(
            36,
            "3.3",
            "loses the owner of an address imported twice",
            "given an alias instead",
            "Import each array once, and keep the first result",
        ),
        Quirk(
            39,
            "3.3",
            "its table exports tensors that require a gradient",
            "guarded",
            "Call detach() before the export",
        ),
    )
    expressions = Expressions(
        {"paddle": "paddle"},
        make="paddle.to_tensor(a)",
        from_dlpack="paddle.from_dlpack({})",
        values="typed(x.numpy(), str(x.dtype)[7:], x.shape)",
        address="x.data_ptr()",
    )
    device_names: ClassVar[dict[int, str]] = {
        1: "CPUPlace",
        2: "CUDAPlace",
        3: "CUDAPinnedPlace",
        14: "XPUPlace",
    }

    def recognises(self, cls: type) -> bool:
        paddle = sys.modules.get("paddle")
        return paddle is not None and issubclass(cls, (paddle.Tensor, *_symbolic(paddle)))

    def import_module(self, call: str = "convert") -> Any:
        """Import Paddle, unless that would crash the process: TensorFlow must come after it."""
        for first in self.not_after:
            if first in sys.modules and "paddle" not in sys.modules:
                raise FrameworkMissingError(
                    f"{call}: importing paddle after {first} crashes the process; import it first"
                )
        return super().import_module(call)

    def array_type(self) -> type | None:
        kind: type = self.import_module().Tensor
        return kind

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take a dense tensor; of one that needs a gradient only a detached one."""
        _refuse_without_memory(x)
        if not x.stop_gradient:
            if policy.grad != "detach":
                raise ExchangeError(
                    "requires_grad",
                    "from_dlpack: the paddle.Tensor requires a gradient (stop_gradient=False), "
                    'which would be lost; pass x.detach() or grad="detach"',
                )
            x = x.detach()
        table = getattr(type(x), _TABLE, None)
        if table is None:
            tensor = protocol.take_dlpack(x, policy, context)
            self.require_order(tensor, x)
            return tensor
        context.route.append("Paddle C exchange table")
        try:
            return native.take_table(x, table)
        except not_from_handler(Exception) as error:
            raise protocol.refused(x, error) from error

    def orders_cuda(self) -> bool:
        """Return whether there is an exchange table: its functions for capsules have no stream."""
        return getattr(self.import_module().Tensor, _TABLE, None) is not None

    def limits(self) -> native.Limits:
        paddle = self.import_module()
        cuda = ([2, 3] if self.orders_cuda() else [3]) if paddle.is_compiled_with_cuda() else []
        float8 = [triple for name, triple in _FLOAT8.items() if hasattr(paddle, name)]
        return native.Limits(
            "paddle",
            dtypes=_DTYPES + float8,
            devices=[1, *cuda],
            max_ndim=9,
            layout="non_negative",
        )

    def stream(self, device: int) -> int:
        """Return Paddle's current stream; a CPU build has none, and crashes when it is asked."""
        has_streams = self.import_module().is_compiled_with_cuda()
        return super().stream(device) if has_streams else LEGACY

    def entry(self, tensor: native.TensorBase | None) -> str:
        if tensor is not None and tensor.size and _known(tensor) is not None:
            return "alias of an earlier import"
        has_table = self.orders_cuda()
        return "Paddle C exchange table" if has_table else "paddle.utils.dlpack.from_dlpack"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        """Return a paddle.Tensor, a further one of the same memory as an alias of an earlier.

        Paddle finds deleters by address: of two imports of one address alive at the same time it
        calls one deleter only and never releases the other owner. For this reason there is no C
        path either. This remains: an import of more memory, or of another dtype, than an earlier
        one at the same address that is still alive.
        """
        if not tensor.size:  # nothing to share, and the address may be anybody's
            tensor = native.allocate(tensor.shape, tensor._dtype_triple)
        alias = _alias(self.import_module(), tensor)
        made = alias if alias is not None else _import(self.import_module(), tensor)
        _remember(tensor, made)
        return made

    def allocate(self, shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
        return self.import_module().empty(list(shape), dtype.name, device=like.place)

    # ---- names of dtypes and devices ----

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        """Read the enumerator's name: the text of its uint16 says bfloat16."""
        return dtype.read_named(x, str(getattr(x, "name", "")).lower())

    def make_dtype(self, name: str) -> Any:
        return getattr(self.import_module("DType.to"), name)

    def read_device(self, x: Any) -> tuple[int, int]:
        if not type(x).__name__.endswith("Place"):
            raise device.unsupported(x)
        kind, _, number = str(x).removeprefix("Place(").removesuffix(")").partition(":")
        return device.read_kind(x, kind, int(number or 0))

    def make_device(self, kind: str, number: int) -> Any:
        place = getattr(self.import_module("Device.to"), kind)
        return place() if kind in ("CPUPlace", "CUDAPinnedPlace") else place(number)


# Live imports by (address, dtype): weak references, each with the size in bytes when imported.
_ALIVE: dict[Any, dict[int, tuple[ref[Any], int]]] = {}


def _remember(tensor: native.TensorBase, made: Any) -> None:
    place, number = (tensor.data_ptr, tensor._dtype_triple), id(made)
    bucket = _ALIVE.setdefault(place, {})

    def forget(_: object) -> None:
        bucket.pop(number, None)
        if not bucket and _ALIVE.get(place) is bucket:
            del _ALIVE[place]

    bucket[number] = ref(made, forget), tensor.nbytes


def _known(tensor: native.TensorBase) -> Any:
    """Return a live import of the memory of `tensor`, or None."""
    for reference, nbytes in list(_ALIVE.get((tensor.data_ptr, tensor._dtype_triple), {}).values()):
        known = reference()
        fits = known is not None and known.data_ptr() == tensor.data_ptr
        if fits and nbytes >= tensor.nbytes:
            return known
    return None


def _alias(paddle: Any, tensor: native.TensorBase) -> Any:
    """Return a new paddle.Tensor of `tensor` made of a live import of its memory, or None."""
    known = _known(tensor)
    if known is None:
        return None
    if tuple(known.shape) == tensor.shape and tuple(known.strides) == tensor.strides:
        return known.detach()
    return paddle.as_strided(known.detach(), list(tensor.shape), list(tensor.strides))


def _import(paddle: Any, tensor: native.TensorBase) -> Any:
    table = getattr(paddle.Tensor, _TABLE, None)
    if table is not None:
        return native.give_table(tensor, table)
    return paddle.utils.dlpack.from_dlpack(tensor._capsule(False, 0, True))


def _symbolic(paddle: Any) -> tuple[type, ...]:
    """Return the types of values in a static graph."""
    owners = ((getattr(paddle, "pir", None), "Value"), (paddle.static, "Variable"))
    return tuple(getattr(owner, name) for owner, name in owners if hasattr(owner, name))


def _refuse_without_memory(x: Any) -> None:
    paddle = sys.modules["paddle"]
    if not isinstance(x, paddle.Tensor):
        raise ExchangeError("lazy", f"from_dlpack: {protocol.describe(x)} is a value of a graph")
    if x.is_dist():
        raise ExchangeError("sharded", "from_dlpack: the paddle.Tensor is distributed")
    if not x.is_dense():
        raise ExchangeError("sparse", "from_dlpack: the paddle.Tensor is not dense")


ADAPTER = Paddle()
