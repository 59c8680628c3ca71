"""Warp: arrays of numbers, vectors and matrices out, arrays of numbers in."""

from __future__ import annotations

from typing import Any

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy

_MOST_DIMENSIONS = 4
_DTYPES = [
    *((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32, 64)),
    *((2, bits, 1) for bits in (16, 32, 64)),
    (4, 16, 1),
    (6, 8, 1),
]


class Warp(Framework):
    """warp.array; the components of a vector or matrix are further dimensions."""

    name = "warp"
    extra = "warp"
    module = "warp"
    roots = ("warp",)
    way_in = "`__dlpack__`"
    way_out = "capsule"
    zero_copy = "both ways"
    notes = "1 to 4 dimensions in; vectors and matrices out are further dimensions; no complex"
    to_host = 'x.to("cpu")'
    to_dtype = 'dlbridge.to_warp({x}, dtype="{dtype}")'
    quirks = (
        Quirk(
            20,
            "1.19",
            "never asks for a versioned capsule",
            "gets a legacy one; read-only memory is refused",
            "Pass a copy of read-only arrays",
            sign=Sign("refused", traits=("read-only",)),
        ),
        Quirk(
            30,
            "1.19",
            "at most 4 dimensions, and an IndexError for none",
            "refused: ndim",
            "Reshape to 1 to 4 dimensions",
        ),
    )
    expressions = Expressions(
        {"wp": "warp"},
        make='wp.array(a, device="cpu")',
        from_dlpack="wp.from_dlpack({})",
        values="x.numpy()",
        address="x.ptr",
        is_view=True,
    )

    def array_type(self) -> type | None:
        kind: type = self.import_module().array
        return kind

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take an array; one that requires a gradient only where it may be detached."""
        if x.device is None:
            raise ExchangeError("lazy", f"from_dlpack: the {protocol.describe(x)} has no memory")
        if x.requires_grad and policy.grad != "detach":
            raise ExchangeError(
                "requires_grad",
                "from_dlpack: the warp.array requires a gradient, which no Tape would record; "
                'convert it with grad="detach", and its gradient, x.grad, by itself',
            )
        if hasattr(x.dtype, "vars"):  # a struct
            raise ExchangeError(
                "dtype",
                f"from_dlpack: the warp.array holds structs, {x.dtype.key}; exchange its fields, "
                "x.numpy()[name], one by one",
            )
        return protocol.take_dlpack(x, policy, context)

    def limits(self) -> native.Limits:
        return _LIMITS

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return the reason against `tensor`: Warp has no arrays without dimensions."""
        return "ndim" if tensor.ndim == 0 else _LIMITS.refusal(tensor)

    def start(self, converter: native.Converter) -> None:
        """Initialise Warp, whose own import of DLPack does not; there is no C path."""
        self.import_module().init()

    def stream(self, device: int) -> int:
        return int(self.import_module().get_cuda_device(device).stream.cuda_stream or 1)

    def entry(self, tensor: native.TensorBase | None) -> str:
        return "warp.from_dlpack"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        return self.import_module().from_dlpack(tensor._capsule(False, 0, True))


_LIMITS = native.Limits("warp", dtypes=_DTYPES, devices=[1, 2, 3], max_ndim=_MOST_DIMENSIONS)
ADAPTER = Warp()
