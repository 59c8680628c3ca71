"""Compile the `.proto` files of dlbridge.proto into its `descriptors.bin`, which `messages` loads.

Run `python tests/descriptors.py` after a change to them; it needs grpcio-tools. The result is
a FileDescriptorSet without source positions.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "dlbridge" / "proto"
TARGET = FOLDER / "descriptors.bin"


def compile_descriptors() -> bytes:
    """Return the serialised FileDescriptorSet of all `.proto` files, dependencies first.

    Raises:
        RuntimeError: the files are wrong, or grpcio-tools is not installed.
    """
    sources = sorted(path.name for path in FOLDER.glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "descriptors.bin")
        options = [f"-I{FOLDER}", f"--descriptor_set_out={target}"]
        # In a process of its own: protoc and TensorFlow crash each other.
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"protoc ended with status {done.returncode}: {done.stderr}")
        return target.read_bytes()


if __name__ == "__main__":
    TARGET.write_bytes(compile_descriptors())
