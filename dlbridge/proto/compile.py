"""Compile the `.proto` files beside this one into `descriptors.bin`, which `messages` loads.

Run `python -m dlbridge.proto.compile` after a change to them; it needs grpcio-tools. The result is
the same with any release of it: a FileDescriptorSet without source positions.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TARGET = FOLDER / "descriptors.bin"


def compile_descriptors() -> bytes:
    """Return the serialised FileDescriptorSet of all `.proto` files, dependencies first.

    Raises:
        RuntimeError: the files are wrong; protoc has said on stderr where.
    """
    from grpc_tools import protoc

    sources = sorted(path.name for path in FOLDER.glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "descriptors.bin")
        options = [f"-I{FOLDER}", f"--descriptor_set_out={target}"]
        status = protoc.main(["protoc", *options, *sources])
        if status:
            raise RuntimeError(f"protoc ended with status {status}")
        return target.read_bytes()


if __name__ == "__main__":
    TARGET.write_bytes(compile_descriptors())
