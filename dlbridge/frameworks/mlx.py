"""MLX: arrays are evaluated on the way out and copied by MLX on the way in."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from dlbridge import device, dtype
from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.shape import positive_strides
from dlbridge.signals import not_from_handler

_DTYPES = [
    *((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32, 64)),
    (2, 16, 1),
    (2, 32, 1),
    (4, 16, 1),
    (5, 64, 1),
    (6, 8, 1),
]


class Mlx(Framework):
    """mlx.core.array."""

    name = "mlx"
    extra = "mlx"
    module = "mlx.core"
    to_dtype = "{x}.astype(mlx.core.{dtype})"
    roots = ("mlx",)
    way_in = "`__dlpack__`"
    way_out = "`__dlpack__`"
    zero_copy = "in"
    notes = "MLX copies whatever it imports; no float64 or complex128 in"
    quirks = (
        Quirk(
            6,
            "0.32",
            "segfaults on negative dims and NULL data",
            "refused before",
            "Do not hand MLX capsules of unknown origin",
        ),
        Quirk(
            9,
            "0.32",
            "exports slices with byte_offset",
            "folded into the data pointer",
            "Consumers must add byte_offset to data",
        ),
        Quirk(
            11,
            "0.32",
            "narrows float64 and complex128 on import",
            "refused: dtype",
            "Cast to float32 or complex64 knowingly",
            sign=Sign("wrong", traits=("float64", "complex128")),
        ),
        Quirk(
            17,
            "0.32",
            "dl_device=(1, 7) changes the label of the device",
            "not asked",
            "Do not ask MLX for another CPU index",
        ),
        Quirk(
            19,
            "0.32",
            "legacy capsules only",
            "the capsule's name is what counts",
            "Do not test for versioned capsules by max_version alone",
        ),
        Quirk(
            27,
            "0.32",
            "hides a producer's exception",
            "it never meets the producer",
            "Call __dlpack__ by hand to see the exception",
        ),
        Quirk(
            30,
            "0.32",
            "takes no negative strides",
            "copied, or refused: strides",
            "Copy reversed views first",
            sign=Sign("refused", traits=("negative",)),
        ),
        Quirk(
            30,
            "0.32",
            "not even of single elements",
            "their sign is dropped",
            "Copy arrays with negative strides of single elements first",
        ),
        Quirk(
            31,
            "0.32",
            "always copies on import",
            'copied_by "mlx", or refused: copy_required',
            "Expect a copy in each import, and no shared writes",
            sign=Sign("copied"),
        ),
        Quirk(
            37,
            "0.32",
            "leaves the name of a capsule it fetched",
            "fetches none by itself",
            "Pass the capsule to one consumer only",
        ),
    )
    expressions = Expressions(
        {"mx": "mlx.core"},
        make="mx.array(bits(a)).view(mx.bfloat16) if a.dtype.name == 'bfloat16' else mx.array(a)",
        from_dlpack="mx.from_dlpack({})",
        values="typed(np.array(x.view(mx.uint16)), 'bfloat16', x.shape) "
        "if x.dtype == mx.bfloat16 else np.array(x)",
        address="np.asarray(memoryview(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x))"
        ".ctypes.data",
    )
    writable = False
    device_names: ClassVar[dict[int, str]] = {1: "cpu", 2: "gpu", 8: "gpu"}

    def recognises(self, cls: type) -> bool:
        core = sys.modules.get("mlx.core")
        return core is not None and issubclass(cls, core.array)

    def array_type(self) -> type | None:
        kind: type = self.import_module().array
        return kind

    def classify(self, cls: type) -> tuple[str, object] | None:
        export = getattr(cls, "__dlpack__", None)
        return None if export is None else ("capsule", (export, None, None, -1, 0, None))

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Evaluate the array and take its memory; inside a transformation it has none."""
        try:
            sys.modules["mlx.core"].eval(x)
        except not_from_handler(Exception) as error:
            raise ExchangeError(
                "lazy", f"from_dlpack: the mlx.core.array cannot be evaluated here: {error}"
            ) from error
        return protocol.take_dlpack(x, policy, context)

    def limits(self) -> native.Limits:
        return _LIMITS

    def start(self, converter: native.Converter) -> None:
        core = self.import_module()
        converter.activate("copying", _LIMITS, core.from_dlpack, core.array)

    def import_copies(self, tensor: native.TensorBase) -> str | None:
        return "copy_required"

    def entry(self, tensor: native.TensorBase | None) -> str:
        return "mlx.core.from_dlpack"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        """Return a new mlx.core.array; MLX looks at strides also where there is but one element."""
        plain = tensor._view(tensor.shape, positive_strides(tensor.shape, tensor.strides))
        return self.import_module().from_dlpack(plain._capsule(False, 0, True))

    # ---- names of dtypes and devices ----

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        name = str(x).rpartition(".")[2]
        return dtype.read_named(x, "bool" if name == "bool_" else name)

    def how_to_cast(self, x: str, wanted: dtype.DType) -> str:
        return super().how_to_cast(x, wanted).replace(".bool)", ".bool_)")

    def make_dtype(self, name: str) -> Any:
        return getattr(self.import_module("DType.to"), "bool_" if name == "bool" else name)

    def read_device(self, x: Any) -> tuple[int, int]:
        kind: str = getattr(x, "type", x).name  # mx.Device(mx.gpu, 1) or mx.gpu
        number = str(x).rpartition(",")[2].strip(" )")  # "Device(gpu, 1)": stands nowhere else
        if kind == "gpu" and not sys.modules["mlx.core"].cuda.is_available():
            kind = "metal"
        return device.read_kind(x, kind, int(number) if number.isdecimal() else 0)

    def make_device(self, kind: str, number: int) -> Any:
        core = self.import_module("Device.to")
        return core.Device(getattr(core, kind), number)


_LIMITS = native.Limits(
    "mlx", dtypes=_DTYPES, devices=[1], layout="non_negative", protects_readonly=True
)
ADAPTER = Mlx()
