"""C beside the fuzzers, compiled with the sanitizers where the core is."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sysconfig
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def compile_library(source: Path, folder: Path) -> ctypes.CDLL:
    """Compile one C file and load it."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    target = folder / f"{source.stem}.so"
    flags = SANITIZERS if os.environ.get("DLBRIDGE_SANITIZED") else ()
    command = [*compiler.split(), "-std=gnu11", "-O1", "-g", "-shared", "-fPIC", *flags]
    command += [f"-I{INCLUDE}", "-o", str(target), str(source)]
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    subprocess.run(command, check=True, env=environment)  # a compiler has leaks of its own
    return ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)
