"""The frameworks that meet on a GPU, each with its own way of saying the same few things."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

import dlbridge
from dlbridge import cuda
from dlbridge.cuda.driver import entered

_NON_BLOCKING = 1


def is_fake() -> bool:
    """Return whether the driver is the fake one of the tests, which runs no machine code."""
    name = dlbridge.ffi.new("char[]", 100)
    cuda.driver().cuDeviceGetName(name, 100, 0)
    return dlbridge.ffi.string(name).startswith(b"Fake")


class Framework:
    """One framework on device 0.

    Attributes:
        name: as `dlbridge.convert` knows it, or a name of ours where it is no target of that.
        is_target: whether `convert` gives its tensors.
        has_streams: whether its users choose streams.
        writes: whether its tensors may be written.
    """

    name: str
    module: str
    is_target = True
    has_streams = False
    writes = True

    def __init__(self) -> None:
        self.root = importlib.import_module(self.module)

    def missing(self) -> str | None:
        """Return why it cannot use the GPU, or None."""
        return None

    def put(self, array: np.ndarray) -> Any:
        """Return a tensor on the GPU with a copy of a host array, on the current stream."""
        raise NotImplementedError

    def get(self, x: Any) -> np.ndarray:
        """Return a copy on the host, after all work that the framework knows of."""
        raise NotImplementedError

    def pointer(self, x: Any) -> int:
        """Return the address of the first element."""
        raise NotImplementedError

    def add(self, x: Any, number: int) -> Any:
        """Enqueue an addition on the current stream, in place where it can; return the sum."""
        raise NotImplementedError

    def take(self, tensor: Any) -> Any:
        """Return a tensor of the framework over what speaks DLPack, by its own function."""
        raise NotImplementedError

    def stream(self) -> Any:
        """Return a new stream that does not wait for the default one."""
        return None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one inside a block."""
        return nullcontext()

    def handle(self, stream: Any) -> int:
        """Return the number of a stream as DLPack has it."""
        return 1

    def settle(self) -> None:
        """Wait for the device."""
        cuda.synchronize()


class Torch(Framework):
    name = module = "torch"
    has_streams = True

    def missing(self):
        return None if self.root.cuda.is_available() else "torch finds no GPU"

    def put(self, array):
        return self.root.from_numpy(array).to("cuda:0")

    def get(self, x):
        return x.detach().cpu().numpy()

    def pointer(self, x):
        return x.data_ptr()

    def add(self, x, number):
        return x.add_(number)

    def take(self, tensor):
        return self.root.from_dlpack(tensor)

    def stream(self):
        return self.root.cuda.Stream()

    def on(self, stream):
        return self.root.cuda.stream(stream)

    def handle(self, stream):
        return stream.cuda_stream or 1


class CuPy(Framework):
    name = module = "cupy"
    has_streams = True

    def __init__(self):
        super().__init__()
        self._streams = []

    def missing(self):
        return None if self.root.cuda.is_available() else "cupy finds no GPU"

    def put(self, array):
        return self.root.asarray(array)

    def get(self, x):
        return self.root.asnumpy(x)

    def pointer(self, x):
        return x.data.ptr

    def add(self, x, number):
        x += number
        return x

    def take(self, tensor):
        return self.root.from_dlpack(tensor)

    def stream(self):
        made = self.root.cuda.Stream(non_blocking=True)
        self._streams.append(made)  # it is destroyed with its object, and arrays may live longer
        return made

    def on(self, stream):
        return stream

    def handle(self, stream):
        return stream.ptr or 1


class Jax(Framework):
    name = module = "jax"
    has_streams = True  # the one of XLA, which kernels of a test can make slow
    writes = False

    def missing(self):
        try:
            return None if self.root.devices("cuda") else "jax finds no GPU"
        except RuntimeError as error:
            return f"jax finds no GPU: {str(error).splitlines()[0]}"

    def put(self, array):
        return self.root.device_put(array, self.root.devices("cuda")[0])

    def get(self, x):
        return np.asarray(x)

    def pointer(self, x):
        return x.unsafe_buffer_pointer()

    def add(self, x, number):
        return x + np.asarray(number, x.dtype)

    def take(self, tensor):
        return self.root.dlpack.from_dlpack(tensor)

    def handle(self, stream):
        from dlbridge.frameworks.jax.streams import compute_stream

        return compute_stream(self.root.devices("cuda")[0], 0)


class Numba(Framework):
    name, module = "numba", "numba.cuda"
    is_target = False

    def missing(self):
        return None if self.root.is_available() else "numba finds no GPU"

    def put(self, array):
        return self.root.to_device(array)

    def get(self, x):
        return x.copy_to_host()

    def pointer(self, x):
        return x.__cuda_array_interface__["data"][0]

    def add(self, x, number):
        raise NotImplementedError("kernels of numba are in test_kernels.py")

    def take(self, tensor):
        return self.root.as_cuda_array(tensor)


class Dlbridge(Framework):
    name = module = "dlbridge"
    has_streams = True

    def put(self, array):
        return dlbridge.from_dlpack(array).to("cuda:0")

    def get(self, x):
        return dlbridge.to_numpy(x.to("cpu"))

    def pointer(self, x):
        return x.data_ptr

    def take(self, tensor):
        return dlbridge.from_dlpack(tensor)

    def stream(self):
        out = dlbridge.ffi.new("CUstream *")
        with entered(0) as driver:
            assert driver.cuStreamCreate(out, _NON_BLOCKING) == 0
        return int(dlbridge.ffi.cast("uintptr_t", out[0]))

    def on(self, stream):
        return cuda.stream(stream)

    def handle(self, stream):
        return stream


class TvmFfi(Framework):
    name, module = "tvm", "tvm_ffi"

    def put(self, array):
        return dlbridge.to_tvm(dlbridge.from_dlpack(array).to("cuda:0"))

    def get(self, x):
        return dlbridge.to_numpy(dlbridge.from_dlpack(x).to("cpu"))

    def pointer(self, x):
        return dlbridge.from_dlpack(x).data_ptr

    def take(self, tensor):
        return self.root.from_dlpack(tensor)


CLASSES = {cls.name: cls for cls in (Torch, CuPy, Jax, Numba, Dlbridge, TvmFfi)}
NAMES = tuple(CLASSES)
TARGETS = tuple(name for name, cls in CLASSES.items() if cls.is_target and name != "dlbridge")
WITH_STREAMS = tuple(name for name, cls in CLASSES.items() if cls.has_streams)


@cache
def find(name: str) -> Framework | str:
    """Return a framework that sees the GPU, or why there is none of this name."""
    try:
        found = CLASSES[name]()
    except ImportError as error:
        return f"{name} is not installed: {error}"
    return found.missing() or found
