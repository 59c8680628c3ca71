"""Fuzz the readers of bytes: `python -m tests.fuzz NAME… --seconds 60`.

Execution number i of a seed is always the same one. Each fuzzer runs in a process of its own, which
says what it executes: when a signal ends it, that execution can be repeated with `--first i --count
1`. Any error that is not one for wrong data ends it as well.
"""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOST_ALLOCATED = 256  # MiB at once, with sanitizers: more takes a fuzzer half a minute to fill
NAMES = sorted([path.stem for path in HERE.glob("*.py") if "\ndef prepare(" in path.read_text()])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all")
    parser.add_argument("--seconds", type=float, help="how long each fuzzer runs (default: 10)")
    parser.add_argument("--count", type=int, help="how many executions instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first execution")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no such fuzzer: {', '.join(sorted(unknown))}")
    if given.seconds is None and given.count is None:
        given.seconds = 10.0
    if given.child is not None:
        return execute(given.names[0], given)
    return max([watch(name, given) for name in given.names or NAMES])


def watch(name: str, given: argparse.Namespace) -> int:
    """Run one fuzzer in a process of its own; tell which execution ended it."""
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-m", "tests.fuzz", name]
    for option in ("seconds", "count", "seed", "first"):
        value = getattr(given, option)
        command += [] if value is None else [f"--{option}", str(value)]
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}
    if os.environ.get("DLBRIDGE_SANITIZED"):  # the sanitizer's shadow is above any limit of rlimit
        options = (os.environ.get("ASAN_OPTIONS", ""), f"max_allocation_size_mb={MOST_ALLOCATED}")
        environment["ASAN_OPTIONS"] = ":".join(filter(None, options))
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(8))
        progress.flush()
        code = subprocess.call([*command, "--child", progress.name], env=environment)
        at = int.from_bytes(Path(progress.name).read_bytes(), "little")
    if code != 0:
        again = f"python -m tests.fuzz {name} --seed {given.seed} --first {at} --count 1"
        print(f"{name}: execution {at} failed (exit code {code}); again: {again}", flush=True)
    return min(abs(code), 1)


def execute(name: str, given: argparse.Namespace) -> int:
    """Run one fuzzer in this process."""
    sys.path.insert(0, str(HERE.parent))  # the modules that tests share
    start = time.monotonic()
    said: Counter[str] = Counter()
    with (
        open(given.child, "r+b") as file,
        mmap.mmap(file.fileno(), 8) as progress,
        tempfile.TemporaryDirectory() as folder,
        importlib.import_module(f"tests.fuzz.{name}").prepare(Path(folder)) as run,
    ):
        ready, i = time.monotonic(), given.first
        while True:
            progress[:] = i.to_bytes(8, "little")
            said[run(random.Random((given.seed << 64) + i))] += 1
            i += 1
            if given.count is not None and i - given.first >= given.count:
                break
            if given.seconds is not None and time.monotonic() - ready >= given.seconds:
                break
        seconds = time.monotonic() - ready
    row = {"fuzzer": name, "seed": given.seed, "first": given.first, "executions": i - given.first}
    row |= {"seconds": round(seconds, 1), "to_start": round(ready - start, 1)}
    print(json.dumps({**row, "said": dict(said.most_common(12))}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
