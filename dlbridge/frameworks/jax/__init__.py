"""JAX: out by memory that outlives the Array, in by jaxlib's own capsule function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from dlbridge import device as devices
from dlbridge import dtype, registry
from dlbridge._core import native
from dlbridge.cuda.driver import NONE, as_stream
from dlbridge.errors import ExchangeError
from dlbridge.exchange import ordering, protocol
from dlbridge.exchange.adapter import CPath, Expressions, Framework, Key, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.frameworks.jax.streams import compute_stream
from dlbridge.signals import not_from_handler
from dlbridge.tensor.values import as_array

_CPU = 1
_CUDA = 2
_WIDE = [(0, 64, 1), (1, 64, 1), (2, 64, 1), (5, 128, 1)]
_NARROW = [
    *((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32)),
    *((2, bits, 1) for bits in (16, 32)),
    (4, 16, 1),
    (5, 64, 1),
    (6, 8, 1),
    *((code, 8, 1) for code in range(7, 14)),
]


class Jax(Framework):
    """jax.Array on one device."""

    name = "jax"
    extra = "jax"
    module = "jax"
    roots = ("jax", "jaxlib")
    taken_by = "numpy.asarray"
    way_in = "jaxlib capsule"
    way_out = "buffer protocol"
    zero_copy = "both ways, compact layouts"
    notes = "64-bit types only with jax_enable_x64; 64-byte aligned, else copied by dlbridge"
    immutable = True
    wide_types = 'switch 64-bit types on with jax.config.update("jax_enable_x64", True)'
    quirks = (
        Quirk(
            4,
            "0.10",
            "aborts on a NULL deleter",
            "exports always carry one",
            "Let producers set a deleter",
        ),
        Quirk(
            6,
            "0.10",
            "segfaults on a NULL shape with dimensions",
            "refused before",
            "Do not hand JAX capsules of unknown origin",
        ),
        Quirk(
            10,
            "0.10, 0.11, 0.12",
            "copy=True shares aligned memory",
            "dlbridge copies by itself",
            "Copy the array before from_dlpack where a copy is needed",
            sign=Sign("wrong", traits=("copy=True",)),
        ),
        Quirk(
            11,
            "all",
            "narrows 64-bit types without x64",
            "refused: dtype",
            "Enable jax_enable_x64, or cast before the exchange",
            sign=Sign("wrong", traits=("int64", "uint64", "float64", "complex128")),
        ),
        Quirk(
            16,
            "0.10, 0.11",
            "exports immutable memory unmarked",
            "taken as read-only",
            "Never write to an exported array",
        ),
        Quirk(
            19,
            "0.10",
            "legacy capsules only",
            "the capsule's name is what counts",
            "Do not test for versioned capsules by max_version alone",
        ),
        Quirk(
            20,
            "0.10",
            "never asks for a versioned capsule",
            "gets a legacy one, protected",
            "Pass a copy of read-only arrays, or go through dlbridge",
            sign=Sign("refused", traits=("read-only",)),
        ),
        Quirk(
            23,
            "0.10",
            "cannot re-import its float4",
            "copied by jax.numpy.array",
            "View as uint8, or cast to float8 before the export",
        ),
        Quirk(
            25,
            "0.10",
            "cpu:1 differs between device and capsule",
            "CPU memory is one device",
            "Take the device from the capsule",
        ),
        Quirk(
            31,
            "0.10",
            "copies memory not 64-byte aligned",
            "dlbridge copies, visibly",
            "Allocate with dlbridge.zeros or aligned_numpy, whose memory is aligned",
            sign=Sign("copied", traits=("misaligned",)),
        ),
        Quirk(
            33,
            "0.10",
            "takes memory of a GPU as its own where only the capsule says so",
            "refused: device",
            "Let __dlpack_device__ and the capsule name one device",
        ),
        Quirk(
            44,
            "0.10",
            "refuses copy=False for misaligned arrays without elements",
            "shared",
            "Make empty arrays with jax.numpy.zeros",
        ),
    )
    expressions = Expressions(
        {"jax": "jax"},
        make="jax.numpy.array(a)",
        from_dlpack="jax.dlpack.from_dlpack({})",
        values="np.asarray(x)",
        address="x.unsafe_buffer_pointer()",
        copied="jax.dlpack.from_dlpack({}, copy=True)",
    )
    constructed: ClassVar[dict[tuple[int, int, int], str]] = {
        dtype.DType(name).triple: name
        for name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float8_e8m0fnu")
    }
    device_names: ClassVar[dict[int, str]] = {
        1: "cpu",
        2: "cuda",
        8: "metal",
        10: "rocm",
        19: "tpu",
    }

    def recognises(self, cls: type) -> bool:
        jax = sys.modules.get("jax")
        return jax is not None and (
            issubclass(cls, jax.Array) or "Tracer" in cls.__name__ or cls.__name__ == "ArrayImpl"
        )

    def untraced(self) -> Any:
        """Without the private function of JAX that tells, a function may always be traced."""
        self.import_module()
        return getattr(sys.modules.get("jax._src.core"), "trace_state_clean", lambda: False)

    def array_type(self) -> type | None:
        self.import_module()
        from jax._src.array import ArrayImpl

        kind: type = ArrayImpl
        return kind

    def classify(self, cls: type) -> CPath | None:
        if cls is not self.array_type() or not _has_buffers():
            return None
        native.jax_direct_open(cls)
        # Only a SingleDeviceSharding has a `_device`. The public property takes ten times as long.
        guard: tuple[str, str] = ("_sharding", "_device")
        accepted = frozenset(sys.modules["jax"].local_devices(backend="cpu"))
        if getattr(getattr(_sample(), "_sharding", None), "_device", None) not in accepted:
            guard, accepted = ("device", "platform"), frozenset(("cpu",))
        where = ("aval", "dtype") if hasattr(cls, "aval") else "dtype"  # a property in Python
        method, without_format = "_single_device_array_to_np_array_did_copy", _without_format()
        if not hasattr(cls, method):  # it tells whether dtypes without a buffer format are shared
            without_format = dict.fromkeys(without_format)
        return "jax", (guard, accepted, method, where, without_format, _lend), _values

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take an array on one device; 4-bit and narrower types are copied through NumPy."""
        kind = self.array_type()
        if kind is None or not isinstance(x, kind):
            what = (
                "is a tracer: it has no memory; wrap the function that needs it with "
                "dlbridge.wrap, or call dlbridge outside of jit, vmap and grad"
            )
            if self.take_key(x) is not None:
                what = "is a key, whose memory is private; pass jax.random.key_data(x)"
            raise ExchangeError("lazy", f"from_dlpack: {protocol.describe(x)} {what}")
        x = _one_piece(x)
        name = x.dtype.name
        if name in ("int1", "uint1"):
            raise ExchangeError("dtype", f"from_dlpack: jaxlib exports {name} as bool; cast it")
        if name in _BY_VALUES:
            return self._through_numpy(x, policy, context)
        device = protocol.dlpack_device(x)
        tensor = _host_view(x, context) if device[0] == _CPU else None
        if tensor is not None:
            return tensor
        x = _sharing(x)
        functions = _jaxlib_functions()
        context.route.append("jaxlib capsule" if functions else "__dlpack__")
        stream = ordering.asked_stream(policy, context, device)
        # jaxlib takes the number for the address of a stream: no order is to leave it out.
        wanted = () if stream is None or stream == NONE else (stream,)
        try:
            capsule = functions[0](x, *wanted) if functions else _export(x, wanted)
        except not_from_handler(Exception) as error:
            raise protocol.refused(x, error) from error
        tensor = native.take_capsule(capsule)
        ordering.note_asked(tensor, stream)
        return tensor

    def take_key(self, x: Any) -> Key | None:
        jax = sys.modules["jax"]
        is_array = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
        if not is_array or not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return None
        random = jax.random
        remake = partial(random.wrap_key_data, impl=random.key_impl(x))
        return Key(self, random.key_data(x), remake)

    @staticmethod
    def _through_numpy(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        if policy.copy is False:
            raise ExchangeError("dtype", f"from_dlpack: jaxlib exports no {x.dtype.name}")
        if policy.device is None and not _is_on_cpu(x):
            raise ExchangeError(
                "device",
                f"from_dlpack: jaxlib exports no {x.dtype.name}, and only values of the host can "
                'be copied; pass device="cpu" for a copy on the host',
            )
        import numpy

        from dlbridge.frameworks.numpy import ADAPTER as NUMPY

        return NUMPY.take(
            context.copying("jax", "dtype", lambda: numpy.asarray(x)), policy, context
        )

    def limits(self) -> native.Limits:
        return _limits(bool(self.import_module().config.jax_enable_x64))

    def start(self, converter: native.Converter) -> None:
        functions = _jaxlib_functions()
        if functions is not None:
            limits, kind = _limits(False), self.array_type()
            # Asked at each 64-bit tensor: it may change at any time, and for one thread alone.
            wider = (_limits(True), sys.modules["jax"].config, "jax_enable_x64")
            more: dict[str, Any] = {"wider": wider, "construct": (self.constructed_limits(), _make)}
            if _has_several_devices():
                converter.activate("placed", limits, _import_by_default, kind, **more)
            else:
                into, cpu = functions[1], _cpu()
                converter.activate(
                    "capsule", limits, into, kind, cpu, None, streams=_streams, **more
                )

    def place(self, policy: Policy) -> Any:
        wanted = policy.device
        if policy.own_device is None or wanted is None or wanted.pair[0] != _CPU:
            return None
        if isinstance(policy.own_device, self.import_module().Device):
            return policy.own_device
        cpus = self.import_module().local_devices(backend="cpu")
        for each in cpus:
            if each.id == wanted.id:
                return each
        raise ExchangeError(
            "device",
            f"to_jax: JAX has no device {wanted} here, of {cpus}; "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8 makes several",
        )

    def place_of(self, x: Any) -> Any:
        if not _has_several_devices():
            return None
        found = x.sharding.device_set  # also of one that is deleted
        device = next(iter(found)) if len(found) == 1 else None
        if device is None or device.platform != "cpu":
            return None
        return device if x.committed or device != _default_device() else None

    def device_scope(self) -> Callable[[], AbstractContextManager[Any]]:
        jax = sys.modules.get(self.module)
        device = None if jax is None else jax.config.jax_default_device
        return nullcontext if jax is None or device is None else partial(jax.default_device, device)

    def constructs(self, name: str) -> bool:
        return _constructs(name)

    def entry(self, tensor: native.TensorBase | None) -> str:
        if tensor is not None and self.is_constructed(tensor):
            return "jax.numpy.array"
        on_cpu = tensor is None or tensor._device_pair[0] == 1
        return "jaxlib capsule" if on_cpu and _jaxlib_functions() else "jax.dlpack.from_dlpack"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        functions = _jaxlib_functions()
        if self.is_constructed(tensor):
            return _constructed(tensor, self.place(policy))
        if functions is not None and tensor._device_pair[0] == 1:
            capsule, device = tensor._capsule(False, 0, True), self.place(policy)
            if device is not None:
                return functions[1](capsule, device, None)
            return _import_by_default(capsule)
        jax = self.import_module()
        worker = _worker(jax, tensor._device_pair)
        exporter = ordering.Exporter(
            tensor, policy, context, is_legacy=True, waits=True, worker=worker
        )
        made = jax.dlpack.from_dlpack(exporter)
        is_free = policy.device is None and _has_several_devices()
        is_free = is_free and made.devices() == {_default_device()}
        return _uncommitted(made) if is_free else made

    def stream(self, device: int) -> int:
        """Return a stream that JAX waits for; its own ones are not known."""
        return _stream_of_import(self.import_module(), device)

    # ---- names of dtypes and devices ----

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        if isinstance(x, type) and hasattr(x, "dtype"):  # jnp.float32
            return dtype.read_numpy(x.dtype)
        raise dtype.unsupported(x)

    def how_to_cast(self, x: str, wanted: dtype.DType) -> str:
        text = super().how_to_cast(x, wanted)
        is_on = registry.is_loaded("jax") and sys.modules["jax"].config.jax_enable_x64
        is_wide = wanted.bits == (128 if wanted.is_complex else 64)
        return f"{text}, for which first {self.wide_types}" if is_wide and not is_on else text

    def make_dtype(self, name: str) -> Any:
        jnp = self.import_module("DType.to").numpy
        return np.dtype(getattr(jnp, "bool_" if name == "bool" else name))

    def read_device(self, x: Any) -> tuple[int, int]:
        kind: str = x.platform.lower()
        if kind == "gpu" and "rocm" in x.client.platform_version.lower():
            kind = "rocm"
        local = x.id if kind == "cpu" else x.local_hardware_id
        return devices.read_kind(x, kind, x.id if local is None else local)

    def make_device(self, kind: str, number: int) -> Any:
        local = self.import_module("Device.to").local_devices(backend=kind)
        found = [each for each in local if self.read_device(each)[1] == number]
        if not found:
            raise ValueError(f"no local device with id {number}")
        return found[0]


def _sharing(x: Any) -> Any:
    """Return another Array with the buffer of `x`.

    Array.delete ends the process while a capsule of that very Array lives: no caller has this one.
    The public function that makes one, `make_array_from_single_device_arrays`, takes four times as
    long.
    """
    return type(x)(x.aval, x.sharding, [x], committed=True, _skip_checks=True)


def _lend(x: Any) -> tuple[object, int, int, None] | None:
    """Return what the C path takes of an array on one GPU, and the stream it is ready for."""
    device, functions = getattr(x.sharding, "_device", None), _jaxlib_functions()
    if device is None or device.platform != "gpu" or functions is None or x.is_deleted():
        return None
    if "cuda" not in device.client.platform_version.lower() or x.dtype not in _exported_dtypes():
        return None
    stream = native.cuda_current_stream(device.local_hardware_id)
    return functions[0](_sharing(x), stream), stream, NONE, None


@cache
def _exported_dtypes() -> frozenset[np.dtype[Any]]:
    """Return the dtypes whose elements jaxlib's capsules hold as they are."""
    others = {each for each, known in _without_format().items() if known is not None}
    return frozenset({np.dtype(char) for char in "?bBhHiIlLqQefdFD"} | others)


def _streams(index: int) -> tuple[Any, ...] | None:
    """Return the streams of an import on a CUDA device, and what jaxlib's import function takes."""
    jax = sys.modules["jax"]
    device = _gpu(jax, index)
    if device is None:
        return None
    try:
        stream = device.get_stream_for_external_ready_events()
    except not_from_handler(RuntimeError):  # `_stream_of_import` says which
        return None
    return as_stream(stream), compute_stream(device, index), device, stream


def _host_view(x: Any, context: ExchangeContext) -> native.TensorBase | None:
    """Take memory of the host with what keeps it also after Array.delete; None: of narrow types."""
    try:
        array = np.asarray(x)
    except not_from_handler(Exception) as error:
        raise protocol.refused(x, error) from error
    address = array.__array_interface__["data"][0]
    if array.size and address != x.unsafe_buffer_pointer():
        return None  # one byte for each element, where XLA packs them
    context.route.append("numpy.asarray")
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return native.take_object(
        array, address, array.shape, strides, dtype.read_numpy(array.dtype), (_CPU, 0)
    )


# Dtypes of which JAX gives out no memory: NumPy has a copy with one byte for each element.
_BY_VALUES = ("int2", "uint2", "int4", "uint4")


@cache
def _dtypes_by_values() -> frozenset[np.dtype[Any]]:
    jnp = sys.modules["jax"].numpy
    return frozenset(np.dtype(getattr(jnp, name)) for name in _BY_VALUES if hasattr(jnp, name))


def _values(x: Any) -> np.ndarray[Any, Any] | None:
    """Return the values of an array on one CPU device whose memory JAX does not give out."""
    if x.dtype not in _dtypes_by_values() or len(x.sharding.device_set) != 1:
        return None
    return np.asarray(x) if _is_on_cpu(x) else None


def _is_on_cpu(x: Any) -> bool:
    return all(device.platform == "cpu" for device in x.sharding.device_set)


@cache
def _without_format() -> dict[np.dtype[Any], tuple[int, int, int] | None]:
    """Return the dtypes of whole bytes that the buffer protocol has no format for.

    None stands for those of one bit, which it calls bool, and for those that are read by values.
    """
    jnp = sys.modules["jax"].numpy
    names = ("bfloat16", *(name for name in vars(jnp) if name.startswith("float8_")))
    bits = [np.dtype(getattr(jnp, name)) for name in ("int1", "uint1") if hasattr(jnp, name)]
    found = [np.dtype(getattr(jnp, name)) for name in names]
    others = dict.fromkeys((*bits, *_dtypes_by_values()))
    return {each: dtype.read_numpy(each) for each in found} | others


def _export(x: Any, stream: tuple[int, ...]) -> object:
    return x.__dlpack__(stream=stream[0]) if stream else x.__dlpack__()


def _gpu(jax: Any, index: int) -> Any:
    """Return JAX's device of this number among CUDA's, or None."""
    found = (each for each in jax.local_devices() if each.platform != "cpu")
    return next((each for each in found if each.local_hardware_id == index), None)


def _stream_of_import(jax: Any, index: int) -> int:
    device = _gpu(jax, index)
    if device is None:
        return native.cuda_current_stream(index)
    try:
        return as_stream(device.get_stream_for_external_ready_events())
    except not_from_handler(RuntimeError) as error:
        # A client may have no such stream. jax.dlpack then asks a producer with stream=None, and
        # lets nothing wait for that: the stream that computes has to.
        if "UNIMPLEMENTED" not in str(error):
            raise
        return compute_stream(device, index)


def _worker(jax: Any, pair: tuple[int, int]) -> int:
    """Return the stream on which XLA computes on the device of CUDA memory, else 0."""
    device = _gpu(jax, pair[1]) if pair[0] == _CUDA else None
    return 0 if device is None else compute_stream(device, pair[1])


def _one_piece(x: Any) -> Any:
    """Return the array on one device behind `x`, or refuse what has no such memory."""
    kind = protocol.describe(x)
    if x.is_deleted():
        raise ExchangeError(
            "lazy",
            f"from_dlpack: the {kind} was deleted or donated; exchange it before, or pass a copy",
        )
    if len(x.sharding.device_set) == 1:
        return x
    if not x.is_fully_replicated:
        raise ExchangeError(
            "sharded",
            f"from_dlpack: the {kind} is spread over {len(x.sharding.device_set)} devices; "
            "exchange its addressable_shards one by one, or gather it first",
        )
    return x.addressable_data(0)


@cache
def _constructs(name: str) -> bool:
    """Return whether this JAX makes arrays of the dtype `name` of NumPy's, and they are right."""
    jax, array = sys.modules["jax"], np.ones(2, dtype.DType(name).numpy)
    try:
        with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):  # as in `_sample`
            made = jax.numpy.array(array, copy=True)
            return bool(made.dtype.name == name and (np.asarray(made) == array).all())
    except not_from_handler(Exception):  # if anything fails, the dtype is not supported
        return False


def _constructed(tensor: native.TensorBase, device: Any) -> Any:
    """Return a copy made by JAX's own constructor, on a CPU device."""
    return _make_on(as_array(tensor, "to_jax").view(tensor.dtype.numpy), device)


def _make(array: np.ndarray[Any, Any]) -> Any | None:
    """Return a copy of an array on the default device, or None where JAX lacks its dtype."""
    return _make_on(array, None) if _makes(array.dtype) else None


@cache
def _makes(kind: np.dtype[Any]) -> bool:
    return _constructs(kind.name)


def _make_on(array: np.ndarray[Any, Any], device: Any) -> Any:
    if device is None and _default_device().platform != "cpu":
        device = _cpu()
    jax = sys.modules["jax"]
    if device is None:  # which may share memory that it finds aligned
        made = jax.numpy.asarray(array.copy())
    else:
        made = jax.numpy.array(array, copy=True, device=device)
    if isinstance(made, jax.core.Tracer):  # inside jit: the values are known all the same
        with jax.ensure_compile_time_eval():
            return _make_on(array, device)
    return made


@cache
def _takes_permuted() -> bool:
    """Return whether arrays of JAX can have memory whose dimensions are in another order.

    JAX 0.4 to 0.5.0 takes such memory, but operations on it raise, and compiled programs that have
    been called before read it in the wrong order; 0.6.1 to 0.7.1 forget the order, 0.7.2 refuses.
    """
    version: tuple[int, ...] = sys.modules["jax"].__version_info__
    return (0, 5, 1) <= version < (0, 6, 1) or version >= (0, 8)


@cache
def _limits(wide: bool) -> native.Limits:
    return native.Limits(
        "jax",
        dtypes=_NARROW + (_WIDE if wide else []),
        devices=_devices(),
        alignment=64,
        layout="permutation" if _takes_permuted() else "row_major",
        protects_readonly=True,
    )


def _devices() -> list[int]:
    jax = sys.modules["jax"]
    kinds = {"cpu": [1], "gpu": [2, 3], "cuda": [2, 3], "rocm": [10]}
    return [1, *kinds.get(jax.default_backend(), [])]


def _sample() -> Any:
    """Return a small array on the CPU; also inside of a trace, and under a transfer guard."""
    jax = sys.modules["jax"]
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        return jax.device_put(np.zeros(3, np.float32), _cpu())


@cache
def _has_buffers() -> bool:
    """Return whether arrays on the CPU support Python's buffer protocol without a copy."""
    sample = _sample()
    try:
        with memoryview(sample) as view:
            return bool(np.asarray(view).ctypes.data == sample.unsafe_buffer_pointer())
    except not_from_handler(Exception):  # then the public functions are used
        return False


_FUNCTIONS: list[tuple[Any, Any] | None] = []


def _jaxlib_functions() -> tuple[Any, Any] | None:
    """Return jaxlib's export and import functions after a round trip with them, or None."""
    if not _FUNCTIONS:
        _FUNCTIONS.append(_find_functions())
    return _FUNCTIONS[0]


def _find_functions() -> tuple[Any, Any] | None:
    sample = native.allocate((3,), (0, 32, 1))
    try:
        lib: Any = importlib.import_module("jax._src.lib")
        _jax: Any = getattr(lib, "_jax", None) or lib.xla_extension  # before 0.6
        out, into = _jax.buffer_to_dlpack_managed_tensor, _jax.dlpack_managed_tensor_to_buffer
        back = _uncommitted(into(sample._capsule(False), _cpu(), None))
        return (out, into) if native.take_capsule(out(back)).shape == (3,) else None
    except not_from_handler(Exception):  # if anything fails, the public functions serve
        return None


# ---- which of JAX's devices --------------------------------------------------------------------


def _cpu() -> Any:
    return sys.modules["jax"].local_devices(backend="cpu")[0]


def _default_device() -> Any:
    """Return the device on which JAX makes new arrays now."""
    jax = sys.modules["jax"]
    chosen = jax.config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        chosen = jax.local_devices(backend=chosen)[0]
    return chosen


def _has_several_devices() -> bool:
    """Return whether it matters where an array is: several devices, in all processes together."""
    jax = ADAPTER.import_module()
    return jax.device_count() > 1 or len(jax.local_devices(backend="cpu")) > 1


@cache
def is_alone_on_cpu() -> bool:
    """Return whether a CPU is the one device that JAX has, so that all its arrays are there."""
    jax = ADAPTER.import_module()
    return jax.default_backend() == "cpu" and not _has_several_devices()


def _import_by_default(capsule: object) -> Any:
    """Import memory of the host on JAX's default device, where that is one of the CPU.

    As after `jnp.asarray`, the array is not committed to that device: it may meet arrays that are
    sharded over others. Where the default device is a GPU, it is committed to the CPU, since it
    would be copied otherwise.
    """
    functions, device = _jaxlib_functions(), _default_device()
    assert functions is not None
    if device.platform != "cpu":
        return functions[1](capsule, _cpu(), None)
    made = functions[1](capsule, device, None)
    return _uncommitted(made) if _has_several_devices() else made


def _uncommitted(made: Any) -> Any:
    """Return an array over the memory of another that JAX may move to other devices."""
    return type(made)(made.aval, made.sharding, [made], committed=False, _skip_checks=True)


ADAPTER = Jax()
