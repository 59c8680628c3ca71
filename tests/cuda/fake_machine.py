"""The fake driver as a Machine: it keeps logical time and tells what was not ordered."""

from __future__ import annotations

from fake_driver import Call, FakeDriver
from machine import Machine

# Calls that do not order, wait or enqueue anything.
_QUESTIONS = (
    "cuCtx",
    "cuDevice",
    "cuStreamGetCaptureInfo",
    "cuStreamIsCapturing",
    "cuThreadExchange",
    "cuPointerGetAttribute",
)


class FakeMachine(Machine):
    """Two devices over host memory, with nothing on them."""

    is_fake = True

    def __init__(self, path: str) -> None:
        self.fake = FakeDriver(path)
        self.fake.reset()
        self.fake.fake_set_deferred(1)  # work happens as late as it may
        super().__init__(path)
        self._first_call = self._first_wait = 0

    def slow_down(self, stream: int) -> int:
        """Hold the stream until somebody waits for it, or `finish`."""
        self.fake.do("fake_hold", stream)
        return 0

    def reuse_handles(self) -> None:
        self.fake.fake_set_reusing(1)

    @property
    def host_synchronisations(self) -> int:
        return self.fake.fake_host_waits() - self._first_wait

    @property
    def calls(self) -> list[Call]:
        """The calls since the last `reset`, of whoever called."""
        return self.fake.calls[self._first_call :]

    def actions(self) -> list[str]:
        """The names of the calls that order, wait or enqueue something."""
        return [call.name for call in self.calls if not call.name.startswith(_QUESTIONS)]

    def reset(self) -> None:
        self._first_call = self.fake.fake_call_count()
        self._first_wait = self.fake.fake_host_waits()

    def finish(self) -> None:
        self.fake.fake_finish()

    def fail(self, function: str, code: int) -> None:
        """Let the next call of a function fail with this CUresult."""
        self.fake.fake_fail(function.encode(), code, 0, 1)

    def check(self) -> None:
        faults = self.fake.faults
        assert not faults, "\n".join(["the driver saw what was out of order:", *faults])

    def expect_fault(self, kind: str) -> None:
        """Raise unless there was a fault of this kind and no other one; forget it."""
        faults = self.fake.faults
        assert faults, f"no {kind} was seen"
        assert all(fault.startswith(f"{kind}:") for fault in faults), faults
        self.fake.fake_forget_faults()

    def close(self) -> None:
        super().close()
        self.fake.fake_set_reusing(0)
        self.fake.fake_forget_faults()
