"""Tickets of CUDA memory from this process and another one, changed, over the fake driver."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fuzz import drawing

TENSORS = """
made = dlbridge.full((4, 4), 3.0, "float32", device="cuda:0")
kept = [made, made[1:, ::2].T, dlbridge.full((7,), 1, "int16", device="cuda:1"),
        dlbridge.full((2,), 1, "uint8", device="cuda:0").broadcast_to((3, 2)),
        dlbridge.empty((0, 3), "int16", device="cuda:1")]
"""
SENDER = f"""
import os, sys
import dlbridge
from fake_driver import FakeDriver

FakeDriver(os.environ["DLBRIDGE_CUDA_DRIVER"]).fake_set_devices(2, 1)
{TENSORS}
print(repr([tensor.__reduce_ex__(5)[1][1:] for tensor in kept]), flush=True)
sys.stdin.read()
"""


class Fuzzer:
    """`rebuild_cuda` on what was sent, here and in another process."""

    def __init__(self, sent: list[tuple[Any, ...]], faults: Callable[[], list[str]]) -> None:
        from dlbridge.cuda import ipc
        from dlbridge.errors import DLBridgeError
        from dlbridge.tensor.pickling import rebuild_cuda
        from dlbridge.tensor.tensor import Tensor

        self.ipc, self.error, self.tensor = ipc, DLBridgeError, Tensor
        self.rebuild, self.sent, self.faults = rebuild_cuda, sent, faults

    def __call__(self, source: random.Random) -> str:
        good = source.choice(self.sent)
        given = good
        for _ in range(source.choice((0, 1, 1, 2, 3))):
            i = source.choice((0, 0, 0, 1, 2, 3, 4, 5))
            given = (*given[:i], drawing.changed(source, given[i]), *given[i + 1 :])
        given = (self.spare_driver(good[0], given[0]), *given[1:])
        try:
            tensor = self.rebuild(self.tensor, *given)
        except self.error as error:
            reason = getattr(error, "reason", "")
            return f"refused: {type(error).__name__} {reason}".strip()
        if tensor.size:
            self.check(tensor)
        faults = [each for each in self.faults() if not each.startswith("invalid handle: this is")]
        assert not faults, faults
        return "taken"

    def spare_driver(self, good: Any, given: Any) -> Any:
        """Take its mark from a handle that was changed: the real driver knows its own, ours not."""
        if not isinstance(given, tuple) or not good:
            return given
        known = {good[2], good[3]}
        return tuple(
            b"x" + each[1:] if isinstance(each, bytes) and len(each) == 64 and each not in known
            else each
            for each in given
        )  # fmt: skip

    def check(self, tensor: Any) -> None:
        """All elements are in the allocation, as the driver knows it."""
        start, nbytes = self.ipc._allocation(tensor.data_ptr, tensor._device_pair[1])
        steps = [
            (extent - 1) * stride
            for extent, stride in zip(tensor.shape, tensor.strides, strict=True)
        ]
        _, bits, lanes = tensor._dtype_triple
        bits = -(-bits // 8) * 8 if tensor.flags & 4 else bits
        low, high = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
        assert tensor.data_ptr + low * bits * lanes // 8 >= start
        assert tensor.data_ptr + -(-(high + 1) * bits * lanes // 8) <= start + nbytes


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda"))
    from fake_driver import FakeDriver, compile_fake

    path = str(compile_fake(folder))
    os.environ["DLBRIDGE_CUDA_DRIVER"] = path
    python_path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
    pipe = subprocess.PIPE
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER],
        stdin=pipe,
        stdout=pipe,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path},
    )
    assert sender.stdin is not None
    assert sender.stdout is not None
    try:
        import dlbridge

        driver = FakeDriver(path)
        driver.fake_set_devices(2, 1)
        names: dict[str, Any] = {"dlbridge": dlbridge}
        exec(TENSORS, names)
        here = [tensor.__reduce_ex__(5)[1][1:] for tensor in names["kept"]]
        there = ast.literal_eval(sender.stdout.readline())
        yield Fuzzer([*here, *there], lambda: driver.faults)
    finally:
        sender.stdin.close()
        sender.wait(60)
        sender.stdout.close()
