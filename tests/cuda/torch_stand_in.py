"""torch without a GPU: tensors that call themselves CUDA's, over any memory, and a current stream.

A tensor of the CPU is relabelled: the words of its TensorImpl that hold the dispatch keys and the
device are overwritten. Code that only looks at those and at sizes, strides and addresses, as direct
calls and the bodies of operators do, cannot tell it from one of CUDA; whatever computes with
it fails, since no CUDA library is there.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dlbridge._core import native
from dlbridge.frameworks.torch import internals

_CUDA = 1  # torch's number of the device type
_IMPL_WORDS = 24

_STREAMS = """
#include <stdint.h>
#include <stddef.h>
static void *current[8];
int32_t aoti_torch_get_current_cuda_stream(int32_t device, void **stream) {
    if (device < 0 || device >= 8)
        return 1;
    *stream = current[device];
    return 0;
}
void set_stream(int32_t device, void *stream) { current[device] = stream; }
"""


def _words_of(x: Any) -> Any:
    return (ctypes.c_uint64 * _IMPL_WORDS).from_address(x._cdata)


def _place_of_keys() -> int:
    x = torch.empty(3)
    return list(_words_of(x)).index(torch._C._dispatch_keys(x).raw_repr())


def relabel(x: Any, device: int) -> Any:
    """Make a plain tensor of the CPU call itself one of a CUDA device; return it."""
    keys = torch._C._dispatch_keys(x).raw_repr()
    plain, inference = internals.words(torch, "CPU")
    at = _place_of_keys()
    words = _words_of(x)
    # The word before has the dtype (16 bits), then type and index of the device.
    place = (ctypes.c_int8 * 2).from_address(x._cdata + 8 * (at - 1) + 2)
    assert list(place) == [0, -1]
    place[0], place[1] = _CUDA, device
    words[at] = internals.words(torch, "CUDA")[{plain: 0, inference: 1}[keys]]
    assert str(x.device) == f"cuda:{device}"
    return x


def over(address: int, shape: Sequence[int], device: int) -> Any:
    """Return a float32 tensor over memory of a CUDA device, which the caller keeps."""
    count = 1
    for extent in shape:
        count *= extent
    memory = (ctypes.c_float * count).from_address(address)
    return relabel(torch.frombuffer(memory, dtype=torch.float32).view(*shape), device)


class Streams:
    """torch's current streams, as libtorch_cuda tells them."""

    def __init__(self, directory: Path) -> None:
        source = directory / "streams.c"
        self.path = str(directory / "libstreams.so")
        source.write_text(_STREAMS)
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        command = [*compiler.split(), "-shared", "-fPIC", "-o", self.path, str(source)]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(self.path)

    def set(self, stream: int, device: int = 0) -> None:
        """Make a stream the current one; 0 is the default one."""
        self.library.set_stream(device, ctypes.c_void_p(stream))

    def open(self, trial: Any = lambda _: True) -> None:
        """Let dlbridge take tensors of CUDA directly, if `trial` says so."""
        assert internals.guard_is_open()
        assert internals.shim_lacks() is None  # or the first operator would open torch's own
        assert native.torch_stream_open(self.path)
        native.torch_direct_cuda(*internals.words(torch, "CUDA"), trial)
        self._open_operators(self.path)

    def close(self) -> None:
        """Let everything be as without CUDA."""
        for device in range(8):
            self.set(0, device)
        native.torch_stream_open(None)
        self._open_operators(None)
        internals.forget_guard()
        assert internals.guard_is_open()

    def _open_operators(self, path: str | None) -> None:
        cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        assert native.torch_op_open(str(cpu), path, False, None) is None
