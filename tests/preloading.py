"""Processes that begin with a framework imported: forks of one that has done nothing else.

Importing a framework takes 1 to 4 s of a processor, and many tests need a process in which it may
crash, or be changed. `run_python` uses this for tests with the marker `preloaded`. This file is
also the program of the process from which they are forked.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any


class Preloaded:
    """A process that has imported a framework, of which others are forked.

    Args:
        framework: the name of a module.

    Attributes:
        seconds: of the processor, used by all processes forked so far of parents that still run;
            what else was used, the system counts when the parent ends.
    """

    seconds = 0.0

    def __init__(self, framework: str) -> None:
        self._command = [sys.executable, "-X", "faulthandler", __file__, framework]
        self._server: subprocess.Popen[str] | None = None
        self._seconds = 0.0

    def run(
        self, code: str, argv: Sequence[str], env: Mapping[str, str], folder: Path, timeout: float
    ) -> tuple[int, str, str]:
        """Run `code` as `python -c` does; return the exit code, stdout and stderr.

        Args:
            code: the text of the program.
            argv: its arguments.
            env: its environment, except for what the interpreter and the framework read at their
                start.
            folder: the working directory; what the program writes goes to two files in it.
            timeout: in seconds.
        """
        files = [folder / "stdout", folder / "stderr"]
        order = [code, ["-c", *argv], dict(env), str(folder), [*map(str, files)]]
        server = self._server = self._server or subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stdin is not None
        assert server.stdout is not None
        child = None
        try:
            print(json.dumps(order), file=server.stdin, flush=True)
            child = int(server.stdout.readline())
            if not select.select([server.stdout], [], [], timeout)[0]:
                raise TimeoutError(f"after {timeout} s: {files[1].read_text()}")
            status, seconds = server.stdout.readline().split()
            self._seconds += float(seconds)
            Preloaded.seconds += float(seconds)
        except BaseException:
            if child is not None:
                os.kill(child, signal.SIGKILL)
            self.close()
            raise
        return int(status), files[0].read_text(), files[1].read_text()

    def close(self) -> None:
        """End the process from which others are forked, and wait for it."""
        if self._server is not None:
            self._server.communicate()
            self._server = None
            Preloaded.seconds -= self._seconds
            self._seconds = 0.0


def _serve(orders: IO[str], answers: IO[str]) -> Any:
    """Fork for each order; return the order in the child, None at the end of the input."""
    for line in orders:
        with warnings.catch_warnings(action="ignore"):  # JAX's, of threads: there are none yet
            child = os.fork()
        if child == 0:
            return json.loads(line)
        print(child, file=answers, flush=True)
        _, status, used = os.wait4(child, 0)
        seconds = used.ru_utime + used.ru_stime
        print(os.waitstatus_to_exitcode(status), seconds, file=answers, flush=True)
    return None


def _begin(argv: list[str], env: dict[str, str], folder: str, files: list[str]) -> dict[str, Any]:
    """Make this process what `python -c` would be; return the globals of its program."""
    for number, path in enumerate([os.devnull, *files]):
        opened = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = argv
    sys.path[:0] = [path for path in env["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    main = sys.modules["__main__"] = ModuleType("__main__")
    return vars(main)


if __name__ == "__main__":
    importlib.import_module(sys.argv[1])
    order = _serve(sys.stdin, sys.stdout)
    if order is not None:
        exec(compile(order[0], "<string>", "exec"), _begin(*order[1:]))
