"""TensorFlow: eager tensors through its capsule functions, kept from what makes it abort."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from dlbridge import device, dtype
from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import CPath, Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.signals import not_from_handler
from dlbridge.tensor.values import IMMUTABLE, READ_ONLY, as_array

_CPU = 1
_FLAGS = READ_ONLY | IMMUTABLE
_DTYPES = [
    *((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32, 64)),
    *((2, bits, 1) for bits in (16, 32, 64)),
    (4, 16, 1),
    (5, 64, 1),
    (5, 128, 1),
    (6, 8, 1),
]
EXPORTED = {
    *("bool", "bfloat16", "half", "float16", "float32", "float64", "complex64", "complex128"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
}
_LIMITS = native.Limits(
    "tensorflow",
    dtypes=_DTYPES,
    devices=[_CPU],
    alignment=64,
    layout="row_major",
    protects_readonly=True,
)
# The same as DataType numbers, which the C path asks for: other types make TensorFlow abort.
_EXPORTED_NUMBERS = frozenset(DType(name).tensorflow_number for name in EXPORTED - {"half"})


class TensorFlow(Framework):
    """Eager tf.Tensor, and tf.Variable by its current value."""

    name = "tensorflow"
    extra = "tensorflow"
    module = "tensorflow"
    roots = ("tensorflow", "keras")
    taken_by = "TensorFlow capsule"
    way_in = "capsule"
    way_out = "capsule"
    zero_copy = "both ways"
    notes = "row-major, 64-byte aligned memory, else copied by dlbridge"
    immutable = True
    not_before = ("triton",)  # which torch.compile imports
    to_dtype = 'tf.cast({x}, "{dtype}")'
    to_host = 'with tf.device("CPU"): x = tf.identity(x)'
    quirks = (
        Quirk(
            2,
            "2.21",
            "aborts on the first op over misaligned memory",
            "copied, aligned",
            "Allocate with dlbridge.zeros or aligned_numpy, whose memory is aligned",
            sign=Sign("crashed", traits=("misaligned",)),
        ),
        Quirk(
            3,
            "2.21",
            "aborts exporting a string tensor",
            "refused: dtype",
            "Export string tensors by numpy() instead",
        ),
        Quirk(
            3,
            "2.21",
            "aborts on negative dims, overflow, ndim 255",
            "refused before",
            "Do not hand TensorFlow capsules of unknown origin",
        ),
        Quirk(
            9,
            "2.21",
            "refuses byte_offset",
            "exports carry none",
            "Copy views before TensorFlow imports them",
            sign=Sign("refused", traits=("byte_offset",)),
        ),
        Quirk(
            12,
            "2.21",
            "ignores lanes",
            "refused: lanes",
            "Do not hand TensorFlow tensors with lanes",
        ),
        Quirk(
            16,
            "2.21",
            "exports immutable memory unmarked",
            "taken as read-only",
            "Never write to an exported tensor",
        ),
        Quirk(
            19,
            "2.21",
            "legacy capsules only",
            "the capsule's name is what counts",
            "Do not test for versioned capsules by max_version alone",
        ),
        Quirk(
            20,
            "2.21",
            "never asks for a versioned capsule",
            "gets a legacy one, protected",
            "Pass a copy of read-only arrays, or go through dlbridge",
            sign=Sign("refused", traits=("read-only",)),
        ),
        Quirk(
            26,
            "2.21",
            "refuses dl_device and copy",
            "not asked",
            "Ask without dl_device and copy",
            sign=Sign("refused", "producer", ("copy=True",)),
        ),
        Quirk(
            36,
            "2.21",
            "calls the deleter twice on devices it refuses",
            "refused before",
            "Copy to a device that TensorFlow has first",
        ),
        Quirk(
            48,
            "2.21",
            "aborts when triton is imported after it",
            "doctor warns",
            "Import triton before tensorflow, also where torch.compile imports it",
        ),
    )
    expressions = Expressions(
        {"tf": "tensorflow"},
        make="tf.constant(a)",
        from_dlpack="tf.experimental.dlpack.from_dlpack({}.__dlpack__())",
        values="x.numpy()",
        address="address(x)",
    )
    constructed: ClassVar[dict[tuple[int, int, int], str]] = {
        DType(name).triple: name
        for name in (
            *("int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float8_e4m3b11fnuz"),
            *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        )
    }
    device_names: ClassVar[dict[int, str]] = {1: "CPU", 2: "GPU"}

    def recognises(self, cls: type) -> bool:
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is None:
            return False
        kinds = (tensorflow.Tensor, tensorflow.Variable, tensorflow.SparseTensor)
        others = (tensorflow.RaggedTensor, tensorflow.IndexedSlices)
        return issubclass(cls, (*kinds, *others)) or is_keras_variable(cls)

    def array_type(self) -> type | None:
        self.import_module()
        from tensorflow.python.framework.ops import EagerTensor

        kind: type = EagerTensor
        return kind

    def classify(self, cls: type) -> CPath | None:
        export = _export_function()
        if export is None or cls is not self.array_type():
            return None
        return "capsule", (export, "_datatype_enum", _EXPORTED_NUMBERS, -1, _FLAGS, None), _values

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take an eager tensor; of a variable, its value now."""
        tensorflow: Any = sys.modules["tensorflow"]
        if isinstance(x, tensorflow.Variable):
            x = x.value()
        elif is_keras_variable(type(x)):
            x = tensorflow.convert_to_tensor(x)
        if not isinstance(x, tensorflow.Tensor):
            way = _DENSE.get(type(x).__name__, "")
            raise ExchangeError("sparse", f"from_dlpack: {protocol.describe(x)} is not dense{way}")
        kind: Any = type(x)
        if kind is not self.array_type():
            raise ExchangeError(
                "lazy",
                f"from_dlpack: {protocol.describe(x)} is symbolic: it has no memory outside of "
                "its graph; call dlbridge outside of tf.function",
            )
        if x.dtype.name in self.constructed.values():
            return _take_values(x, policy, context)
        if x.dtype.name not in EXPORTED:
            raise ExchangeError(
                "dtype", f"from_dlpack: TensorFlow cannot export {x.dtype.name} through DLPack"
            )
        context.route.append("TensorFlow capsule")
        try:
            tensor = native.take_capsule(tensorflow.experimental.dlpack.to_dlpack(x))
        except ExchangeError:
            raise
        except not_from_handler(Exception) as error:
            raise protocol.refused(x, error) from error
        self.require_order(tensor, x)
        return tensor

    def is_text(self, x: Any) -> bool:
        found = x.dtype  # of a variable of Keras, its name
        return bool(getattr(found, "name", found) == "string")

    def gives_new_memory(self, iterable: Any) -> bool:
        """Tell of a dataset, its iterator, and that of NumPy arrays over the same memory."""
        datasets = sys.modules.get("tensorflow.python.data.ops.dataset_ops")
        iterators = sys.modules.get("tensorflow.python.data.ops.iterator_ops")
        if datasets is None or iterators is None:
            return False
        kinds = (datasets.DatasetV2, datasets.NumpyIterator, iterators.IteratorBase)
        return isinstance(iterable, kinds)

    def orders_cuda(self) -> bool:
        """Return False: it computes on non-blocking streams, of which its capsules say nothing."""
        return False

    def limits(self) -> native.Limits:
        return _LIMITS

    def start(self, converter: native.Converter) -> None:
        functions = _import_function()
        if functions is not None:
            kind, into = "capsule", functions[0]
            if len(_cpus()) > 1:
                kind, into = "placed", _import_in_scope
            made = (self.constructed_limits(), _make)
            converter.activate(kind, _LIMITS, into, self.array_type(), functions[1], construct=made)

    def place(self, policy: Policy) -> Any:
        wanted = policy.device
        if policy.own_device is None or wanted is None or wanted.pair[0] != _CPU:
            return None
        name = f"/device:CPU:{wanted.id}"
        if name not in _cpus():
            raise ExchangeError(
                "device",
                f"to_tensorflow: TensorFlow has no device {name} here, of {', '.join(_cpus())}; "
                "tf.config.set_logical_device_configuration makes several",
            )
        return name

    def device_scope(self) -> Callable[[], AbstractContextManager[Any]]:
        tensorflow = sys.modules.get(self.module)
        name = "" if tensorflow is None else _device_in_scope()
        return partial(tensorflow.device, name) if tensorflow and name else nullcontext

    def place_of(self, x: Any) -> Any:
        if len(_cpus()) == 1 or _device_in_scope():
            return None
        kind, _, number = x.device.rpartition("device:")[2].partition(":")
        return f"cpu:{number}" if kind == "CPU" else None

    def constructs(self, name: str) -> bool:
        return _constructs(name)

    def entry(self, tensor: native.TensorBase | None) -> str:
        is_constructed = tensor is not None and self.is_constructed(tensor)
        return "tf.constant" if is_constructed else "TensorFlow capsule"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        name = self.place(policy) or _device_in_scope()
        if self.is_constructed(tensor):
            array = as_array(tensor, "to_tensorflow").view(tensor.dtype.numpy)
            return _placed(_constant(array), name)
        capsule = tensor._capsule(False, 0, True)
        return _placed(self.import_module().experimental.dlpack.from_dlpack(capsule), name)

    # ---- names of dtypes and devices ----

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        return dtype.read_tensorflow(x)

    def make_dtype(self, name: str) -> Any:
        return self.import_module("DType.to").as_dtype(name)

    def read_device(self, x: Any) -> tuple[int, int]:
        return device.read_name(x.to_string() if hasattr(x, "to_string") else x.name)

    def make_device(self, kind: str, number: int) -> Any:
        self.import_module("Device.to")
        return f"/device:{kind}:{number}"


# How each of these is made dense.
_DENSE = {
    "IndexedSlices": "; pass tf.convert_to_tensor(x)",
    "RaggedTensor": "; pass x.to_tensor(), which fills the rows up, or x.flat_values",
    "SparseTensor": "; pass tf.sparse.to_dense(x), or its indices and values",
}


def _take_values(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    """Take a tensor of a dtype that TensorFlow exports as a NumPy array alone, a copy."""
    if policy.copy is False:
        raise ExchangeError(
            "dtype",
            f"from_dlpack: TensorFlow exports {x.dtype.name} only by a copy, and copy=False "
            "forbids it",
        )
    if policy.device is None and not _is_on_cpu(x):
        raise ExchangeError(
            "device",
            f"from_dlpack: TensorFlow exports {x.dtype.name} only by a copy on the host, and the "
            f'{protocol.describe(x)} is on {x.device}; pass device="cpu" for that',
        )
    array = context.copying("tensorflow", "dtype", lambda: _copied_values(x))
    return protocol.take_array(array, policy, context)


def _values(x: Any) -> np.ndarray[Any, Any] | None:
    """Return the values of a tensor that TensorFlow exports as a NumPy array alone."""
    is_read = x._datatype_enum() in _BY_VALUES and _is_on_cpu(x)
    return _copied_values(x) if is_read else None


def _is_on_cpu(x: Any) -> bool:
    return "/device:CPU:" in x.device


def _copied_values(x: Any) -> np.ndarray[Any, Any]:
    values = x.numpy()
    is_own = isinstance(values, np.ndarray) and values.flags.owndata
    return values if is_own else np.array(values)


def _constant(array: Any) -> Any:
    """Return an eager tensor on the CPU with a copy of the values of an array."""
    constructor = _constructor()
    if constructor is not None:
        return constructor(array.copy(), "/device:CPU:0", None)
    tensorflow: Any = sys.modules["tensorflow"]
    with tensorflow.init_scope(), tensorflow.device("/CPU:0"):
        return tensorflow.constant(array)


@cache
def _constructor() -> Any:
    """Return the class behind `tensorflow.constant`, which needs a third of the time, or None."""
    try:
        from tensorflow.python.eager import context
        from tensorflow.python.framework.ops import EagerTensor

        context.context().ensure_initialized()
        made = EagerTensor(np.ones(3, np.float32), "/device:CPU:0", None)
        is_right = made.dtype.name == "float32" and made.numpy().tolist() == [1, 1, 1]
        return EagerTensor if is_right and "CPU:0" in made.device else None
    except not_from_handler(Exception):  # if anything fails, the public function serves
        return None


def _make(array: np.ndarray[Any, Any]) -> Any | None:
    """Return a copy on the device in scope, or None where TensorFlow lacks the dtype."""
    return _placed(_constant(array), _device_in_scope()) if _makes(array.dtype) else None


@cache
def _makes(kind: np.dtype[Any]) -> bool:
    return _constructs(kind.name)


@cache
def _constructs(name: str) -> bool:
    """Return whether this TensorFlow makes tensors of the dtype `name` of NumPy's."""
    array = np.ones(2, DType(name).numpy)
    try:
        made = _constant(array)
        return bool(made.dtype.name == name and (made.numpy() == array).all())
    except not_from_handler(Exception):  # if anything fails, the dtype is not supported
        return False


def is_keras_variable(cls: type) -> bool:
    """Return whether `cls` is Keras's own variable, over a tf.Variable."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "Variable") or not issubclass(cls, keras.Variable):
        return False
    return str(keras.backend.backend()) == "tensorflow"


def _export_function() -> Any:
    """Return the C function behind `tf.experimental.dlpack.to_dlpack` after a try, or None."""
    try:
        from tensorflow.python import pywrap_tfe

        sample = sys.modules["tensorflow"].constant([1.0])
        known = sample._datatype_enum() == 1
        export = pywrap_tfe.TFE_ToDlpackCapsule
        return export if known and native.take_capsule(export(sample)).shape == (1,) else None
    except not_from_handler(Exception):  # if anything fails, the public functions serve
        return None


def _import_function() -> tuple[Any, Any] | None:
    """Return the C function behind `tf.experimental.dlpack.from_dlpack` and its context."""
    sample = native.allocate((3,), (0, 32, 1))
    try:
        from tensorflow.python import pywrap_tfe
        from tensorflow.python.eager import context

        context.context().ensure_initialized()
        handle = context.context()._handle
        back = pywrap_tfe.TFE_FromDlpackCapsule(sample._capsule(False), handle)
        return (pywrap_tfe.TFE_FromDlpackCapsule, handle) if back.shape == (3,) else None
    except not_from_handler(Exception):  # if anything fails, the public functions serve
        return None


# ---- which of TensorFlow's CPU devices ---------------------------------------------------------


def _cpus() -> list[str]:
    return [each.name for each in sys.modules["tensorflow"].config.list_logical_devices("CPU")]


def _device_in_scope() -> str:
    """Return the device of the `tf.device` around the call, or ""."""
    from tensorflow.python.eager import context

    return str(context.context().device_name or "")


def _import_in_scope(capsule: object, handle: object) -> Any:
    """Import memory on the CPU device that `tf.device` names."""
    from tensorflow.python import pywrap_tfe

    return _placed(pywrap_tfe.TFE_FromDlpackCapsule(capsule, handle), _device_in_scope())


def _placed(made: Any, name: str) -> Any:
    """Return a tensor on the named CPU device, over the same memory; others are no place for it."""
    if not name:
        return made
    tensorflow: Any = sys.modules["tensorflow"]
    if f"/device:{name.rpartition('/device:')[2]}" not in _cpus() or made.device.endswith(name):
        return made
    with tensorflow.init_scope(), tensorflow.device(name):
        return tensorflow.identity(made)


ADAPTER = TensorFlow()
_BY_VALUES = frozenset(DType(name).tensorflow_number for name in TensorFlow.constructed.values())
