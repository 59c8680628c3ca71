"""A pytest plugin for .ci/gpu.py: a line for each test as soon as it is over, in a file.

The file is the one that DLBRIDGE_GPU_REPORT names. Tests that have a line there, having run in an
earlier process, are left out. After a test that failed with an error of CUDA that stays with the
context, the process ends: nothing that would run in it would say anything.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from pathlib import Path

import pytest

REPORT = Path(os.environ["DLBRIDGE_GPU_REPORT"])
FAULT = 86

# Errors after which each call to the context returns the same: an illegal address, a launch that
# failed, and those like them.
STICKY = (700, 702, 710, 714, 715, 716, 717, 718, 719, 721)
SAID = re.compile(
    r"CUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_TIMEOUT|ASSERT|HARDWARE_STACK_ERROR|ILLEGAL_INSTRUCTION"
    r"|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED)"
    r"|cudaErrorIllegalAddress|cudaErrorLaunchFailure"
    r"|an illegal memory access was encountered|unspecified launch failure"
)

_outcomes: dict[str, str] = {}
_texts: dict[str, str] = {}


def _write(test: str, outcome: str, text: str = "", seconds: float = 0) -> None:
    line = {"test": test, "outcome": outcome, "text": text[-4000:], "seconds": round(seconds, 3)}
    with REPORT.open("a") as report:
        report.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an earlier process has run, or began to run."""
    lines = REPORT.read_text().splitlines() if REPORT.exists() else []
    done = {json.loads(line)["test"] for line in lines}
    gone = [item for item in items if item.nodeid in done]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note which test began, in case that it takes the process with it."""
    _write(nodeid, "began")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst of set-up, call and tear-down; write it when the last is over."""
    test = report.nodeid
    if report.failed:
        _outcomes[test] = "failed"
        _texts[test] = _texts.get(test, "") + report.longreprtext
    elif report.skipped and test not in _outcomes:
        _outcomes[test] = "skipped"
        reason = report.longrepr
        _texts[test] = str(reason[2]) if isinstance(reason, tuple) else str(report.wasxfail)
    if report.when == "teardown":
        text = _texts.get(test, "")
        _write(test, _outcomes.get(test, "passed"), text, report.duration)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    """End the process after an error that stays."""
    if _outcomes.get(nodeid) == "failed" and (SAID.search(_texts[nodeid]) or is_broken()):
        pytest.exit(f"{nodeid}: an error of CUDA that stays with the context", FAULT)


def is_broken() -> bool:
    """Return whether a context is current here, and answers with an error that stays."""
    try:
        driver = ctypes.CDLL(os.environ.get("DLBRIDGE_CUDA_DRIVER", "libcuda.so.1"))
    except OSError:
        return False
    context = ctypes.c_void_p()
    if driver.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
        return False
    return driver.cuCtxSynchronize() in STICKY
