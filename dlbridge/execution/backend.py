"""The frameworks as plans see them: their backends, their devices, and how values move to them.

The backend of a framework is in its folder. Values share memory on their way between frameworks
where they can. On devices nothing waits: copies and kernels are put on the frameworks' current
streams, and ordered by events there. The host waits only where it needs a value itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from dlbridge import registry
from dlbridge._core import native
from dlbridge.device import HOST_TYPES, Device
from dlbridge.errors import ExchangeError, FrameworkMissingError
from dlbridge.exchange.adapter import adapter, converter
from dlbridge.exchange.context import is_recording
from dlbridge.proto.datatypes import DataType
from dlbridge.signals import not_from_handler

FRAMEWORKS = ("numpy", "torch", "jax", "cupy")
"""The frameworks that run nodes; the folder of each has a module `graph` with its `BACKEND`."""


class Backend:
    """How nodes run in one framework; subclasses override what differs.

    Attributes:
        name: of the framework.
        namespace: the module of its array API namespace.
        has_host: whether it computes in host memory.
        immutable: whether nothing can be written into its arrays: `put` returns others then, and
            leaves out rows whose number is out of range.
        reads_values: whether kernels on the host may read values: there is no trace.
        converts_small: whether a compiled function takes small NumPy arrays faster as they are.
        lacking: names of dtypes that it does not exchange; nodes with one run in NumPy.
        small: elements up to which NumPy's inner loops, where they are exact, are faster than its
            own functions; 0: none are.
        twin: the framework that runs nodes whose device this one does not have, or None.
        guard: returns a call of a function in the state in which steps must run; None: in any.
    """

    name: str = ""
    namespace: str = ""
    has_host: bool = True
    immutable: bool = False
    reads_values: bool = True
    converts_small: bool = False
    lacking: frozenset[str] = frozenset()
    small: int = 0
    twin: str | None = None
    guard: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def devices(self) -> list[tuple[str, Any]]:
        """Return the names ("CPU:0", "GPU:1") and objects of its devices, the host first.

        Raises:
            FrameworkMissingError: it runs on devices only that are not here.
        """
        return [("CPU:0", None)]

    def default_device(self) -> Any:
        """Return the device object of nodes that ask for none; None is the first device."""
        return None

    def entered(self, device: Any) -> AbstractContextManager[Any]:
        """Return a block in which a device is the framework's current one."""
        return nullcontext()

    def dtype(self, data_type: DataType) -> Any:
        """Return the framework's dtype object."""
        return data_type.numpy if data_type.dlpack is None else data_type.dlpack.to(self.name)

    def mover(self, device: Any, looks: bool) -> Callable[[Any], Any]:
        """Return the function that makes any framework's array one of this framework.

        Args:
            device: its own device object; None is the host.
            looks: whether values may be on a device though the host is meant.
        """
        raise NotImplementedError

    def asarray(self, host: Any, device: Any) -> Any:
        """Return a host NumPy array as one of the framework on a device."""
        move = self.mover(device, True)
        if device is None:
            return move(host)
        with self.entered(device):
            return move(host)

    def wide(self, function: Callable[..., Any], enabled: bool = True) -> Callable[..., Any]:
        """Return a function called with 64-bit types enabled, or not, where they are optional."""
        return function

    def compile(self, body: Any, count: int, device: Any) -> Callable[..., Any]:
        """Return the function of a `compiled.Body`: `count` arrays, then its host arguments."""
        raise NotImplementedError

    def is_exact(self, ufunc: str, dtype: DataType) -> bool:
        """Return whether NumPy's inner loop for a dtype gives its own results, to the bit."""
        return False

    def wait(self, result: Any, device: str) -> None:
        """Wait until a step's result on a device is computed."""

    # ---- what kernels for all frameworks leave to each; the default is NumPy's way, and CuPy's

    def caster(self, dtype: Any) -> Callable[[Any], Any]:
        """Return a function that casts arrays to one of its dtypes, as the framework does."""
        return lambda x: x.astype(dtype)

    def own(self, x: Any) -> Any:
        """Return an array with the values of `x` that `put` may write."""
        return x.copy()

    def put(self, how: str) -> Callable[[Any, Any, Any], Any]:
        """Return a function of an array, the numbers of some of its rows and new rows.

        It changes the array, which its caller owns, and returns it. Where numbers repeat, "Add",
        "Sub", "Max" and "Min" use each of the rows, "Update" keeps one of them.
        """
        ufunc = _PUTS.get(how)

        def put(table: Any, numbers: Any, rows: Any) -> Any:
            if ufunc is None:
                table[numbers] = rows
            else:
                ufunc.at(table, numbers, rows)
            return table

        return put

    def scatter(self, how: str) -> Callable[[Any, Any, Any], Any]:
        """Return the same, for "Add" and "Update", on a copy; the numbers may have any shape."""
        put = self.put(how)
        return lambda old, numbers, rows: put(self.own(old), numbers, rows)

    def take_filled(self, xp: Any, x: Any, numbers: Any, axis: int) -> Any:
        """Return slices along an axis; those whose number is out of range are zero."""
        extent, is_text = x.shape[axis], x.dtype == object
        if not extent:
            dims = (*x.shape[:axis], numbers.shape[0], *x.shape[axis + 1 :])
            return xp.zeros(dims, dtype=x.dtype, device=x.device)
        inside = (numbers >= 0) & (numbers < extent)
        found = xp.take(x, xp.where(inside, numbers, xp.zeros_like(numbers)), axis=axis)
        mask = xp.reshape(inside, (-1, *(1,) * (len(x.shape) - axis - 1)))
        return xp.where(mask, found, np.array(b"", object) if is_text else xp.zeros_like(found))


_PUTS = {"Add": np.add, "Sub": np.subtract, "Max": np.maximum, "Min": np.minimum}


def framework_of_nodes(name: object, call: str = "framework") -> str:
    """Return the own name of a framework that runs nodes, by any of its names.

    Raises:
        ArgumentError: it runs none; the text begins with `call`.
    """
    return registry.one_of(name, FRAMEWORKS, call, "runs no nodes")


@lru_cache
def backend(name: str) -> Backend:
    """Return the backend of a framework, which is imported if need be.

    Raises:
        ArgumentError: it runs no nodes.
        FrameworkMissingError: it is not installed.
    """
    name = framework_of_nodes(name)
    found = adapter(name)
    try:
        made: Backend = import_module(f"{registry.row(name).package}.graph").BACKEND
    except ModuleNotFoundError:
        found.import_module()  # raises FrameworkMissingError if that is what is missing
        raise
    return made


def namespace(framework: str) -> Any:
    """Return the array API namespace of a framework, imported if need be."""
    found = backend(framework)
    adapter(framework).import_module()
    try:
        return import_module(found.namespace)
    except not_from_handler(ImportError) as error:
        raise FrameworkMissingError(
            f"running a graph needs {error.name}: pip install 'dlbridge[graph]'"
        ) from error


def wide(framework: str, function: Callable[..., Any], enabled: bool = True) -> Callable[..., Any]:
    """Return a function with 64-bit types enabled, which JAX leaves out by default."""
    if framework not in FRAMEWORKS:
        return function
    return backend(framework).wide(function, enabled)


# ---- devices -----------------------------------------------------------------------------------

# Parts of a canonical device string; this process is task 0 of the job "localhost".
_DEVICE = re.compile(
    r"(?:/job:(?P<job>[^/]+))?(?:/replica:(?P<replica>\d+))?(?:/task:(?P<task>\d+))?"
    r"(?:/device:(?P<type>\w+):(?P<index>\d+|\*))?"
)
_HERE = {"job": "localhost", "replica": "0", "task": "0"}
HOST_NAME = "CPU:0"


@lru_cache
def devices(framework: str) -> dict[str, Any]:
    """Return the framework's own device objects by name ("CPU:0", "GPU:1"), its host first.

    Raises:
        FrameworkMissingError: it is not installed, or runs on devices only that are not here.
    """
    return dict(backend(framework).devices())


@lru_cache
def default_name(framework: str) -> str:
    """Return the name of the device on which a framework runs nodes that ask for none.

    Raises:
        FrameworkMissingError: it runs on devices only that are not here.
    """
    names = devices(framework)
    default = backend(framework).default_device()
    if default is None:
        return next(iter(names))
    return next(name for name, device in names.items() if device is default)


def place_name(framework: str, chosen: str) -> str:
    """Return how a place calls a device that was chosen: "" for the framework's host."""
    name = chosen or default_name(framework)
    return "" if name == HOST_NAME else name


def device_object(framework: str, name: str) -> Any:
    """Return the framework's object for the device of a place; None for the host of its own."""
    full = name or HOST_NAME
    is_host = backend(framework).has_host and full == HOST_NAME == default_name(framework)
    return None if is_host else devices(framework)[full]


def has_devices(framework: str) -> bool:
    """Return whether a framework is installed and has a device to run on."""
    try:
        return bool(devices(framework))
    except not_from_handler(ImportError):
        return False


def entered(framework: str, device: Any) -> AbstractContextManager[Any]:
    """Return a block in which a device is the framework's current one; None is any."""
    return nullcontext() if device is None else backend(framework).entered(device)


def on_device(framework: str, device: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` called with a device as the framework's current one; None is any.

    CuPy needs that: it computes on the current device only, on that device's current stream.
    """
    if device is None:
        return function
    enter = backend(framework).entered

    def call(*values: Any) -> Any:
        with enter(device):
            return function(*values)

    return call


def device_of(value: Any) -> AbstractContextManager[Any]:
    """Return a block in which the device of an array is its framework's current one."""
    is_cupy = type(value).__module__.partition(".")[0] == "cupy"
    return value.device if is_cupy else nullcontext()


def choose(text: str, framework: str) -> str | None:
    """Return the name of the device that a device string asks for.

    Args:
        text: canonical, "" for any device.
        framework: where the node runs.

    Returns:
        A key of `devices(framework)`; "" where the string leaves the device open; None where there
        is no such device.
    """
    match = _DEVICE.fullmatch(text)
    if match is None:
        return None
    if any(match[part] not in (None, here) for part, here in _HERE.items()):
        return None
    kind, index = match["type"], match["index"]
    if kind is None:
        return ""
    wanted = f"{kind}:{0 if index == '*' else index}"
    return wanted if wanted in devices(framework) else None


# ---- values on their way -----------------------------------------------------------------------

Move = Callable[[Any], Any]


def mover(framework: str, device: Any = None, *, looks: bool = True) -> Move:
    """Return the function that makes any framework's array one of this framework.

    Args:
        framework: its name.
        device: its own device object, on which the result is; None is the host.
        looks: whether values may be on a device though the host is meant.
    """
    return on_device(framework, device, backend(framework).mover(device, looks))


def is_on_device(value: Any) -> bool:
    """Return whether an array of any framework is in memory that the host cannot read."""
    if isinstance(value, np.ndarray | np.generic):
        return False
    is_cuda = getattr(value, "is_cuda", None)  # torch's, which is fast
    if is_cuda is False or is_cuda is True:
        return is_cuda
    if hasattr(value, "block_until_ready"):  # JAX's, whose `__dlpack_device__` is slow
        return len(devices("jax")) > 1 and value.device.platform != "cpu"
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and int(where()[0]) not in HOST_TYPES


_convert_to_numpy = converter("numpy")


def to_numpy(value: Any) -> Any:
    """Return an array of any framework in NumPy; NumPy's own arrays and scalars as they are.

    Values on a device are copied, and waited for.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value
    try:
        return _convert_to_numpy(value)
    except ExchangeError:  # read-only, or on a device
        return _convert_to_numpy(value, readonly="share", device="cpu")


def settled(value: Any) -> Any:
    """Return a value of JAX when it is computed: until then JAX may read memory that was fed.

    A value that outlives a run must not depend on later changes of that memory.
    """
    wait = getattr(value, "block_until_ready", None)
    return value if wait is None else wait()


def converting_mover(framework: str, device: Any, looks: bool) -> Move:
    """Return a `mover` that converts, as of most frameworks."""
    convert = converter(framework)
    pair = None if device is None else Device(device).pair

    def move(value: Any) -> Any:
        """Take the fast path where nothing needs to be allowed."""
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if isinstance(value, np.ndarray):
            is_there = pair is None and value.flags.writeable
        elif pair is not None:
            is_there = _is_on(value, pair)
        else:
            is_there = not looks or not is_on_device(value)
        if is_there:
            return convert(value)
        return convert(value, readonly="share", device="cpu" if device is None else device)

    return move


def _is_on(value: Any, pair: tuple[int, int]) -> bool:
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and tuple(where()) == pair


# ---- to the user -------------------------------------------------------------------------------


@lru_cache
def giver(framework: str, copy: bool) -> Move:
    """Return the function that makes the value of a run the user's, which nobody else writes to.

    Args:
        framework: as in `convert(x, framework)`.
        copy: whether the result must be the user's alone: not the memory of a constant, a
            variable, or of what was fed. Otherwise NumPy arrays are read-only views.
    """
    if framework == "numpy":
        return native.Fetch(_copy_to_numpy) if copy else _share_in_numpy
    adapter(framework)
    return wide(framework, _giver(framework, copy))


def _copy_to_numpy(value: Any) -> Any:
    """Copy; an array of JAX that is still computed is waited for and copied by itself fastest."""
    if type(value).__module__.startswith("jaxlib") and not is_recording():
        array = np.array(value)
    else:
        array = np.array(to_numpy(value))
    return array[()] if array.ndim == 0 else array


def _share_in_numpy(value: Any) -> Any:
    array = to_numpy(value)
    if array.ndim == 0:
        return array[()]
    array = array.view()
    array.flags.writeable = False
    return array


def _giver(framework: str, copy: bool) -> Move:
    # dlbridge's own Tensor has no converter of a name of its own.
    convert = native.convert if framework == "dlbridge" else None
    private = native.Fetch(lambda value: value)
    own = converter(framework) if convert is None else None

    def give(value: Any) -> Any:
        is_numpy = isinstance(value, np.ndarray | np.generic)
        if is_numpy:
            value = np.asarray(private(value) if copy else value)
        keywords: dict[str, Any] = {"readonly": "share"}
        if copy and not is_numpy:
            keywords["copy"] = True
        value = settled(value)
        if own is None:
            return native.convert(value, "dlbridge", **keywords)
        return settled(own(value, **keywords))

    return give
