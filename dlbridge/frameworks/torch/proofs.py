"""The versions of torch whose insides were proved: where words lie, and which symbols there are.

`PROVED` has those with which the tests of the direct path passed, and this machine may have proofs
of its own. On any other version the public exchange table, torch.library and the dispatcher serve.
"""

from __future__ import annotations

import functools
import json
import platform
import struct
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dlbridge.kernels import cache
from dlbridge.signals import not_from_handler


class Places(NamedTuple):
    """Where words lie, in bytes from the beginning of their object.

    Attributes:
        tensor: in a torch.Tensor, its at::Tensor, a pointer to a TensorImpl.
        keys, storage: in a TensorImpl, its word of dispatch keys and the pointer to a StorageImpl.
        data, deleter, context, nbytes, resizable: in a StorageImpl, the address of its memory, the
            function that frees it and its argument, the size, and a byte: whether it may change.
    """

    tensor: int
    keys: int
    storage: int
    data: int
    deleter: int
    context: int
    nbytes: int
    resizable: int


class Proof(NamedTuple):
    """The facts proved for one version of torch: where words lie, and which symbols there are."""

    places: Places
    symbols: dict[str, tuple[str, ...]]  # library -> mangled names


SYMBOLS = {
    "torch_cpu": (
        "_ZN2at12hasCallbacksEv",
        "_ZN2at27getStepCallbacksUnlessEmptyENS_11RecordScopeE",
        "_ZN2at4impl27torch_function_mode_enabledEv",
        "_ZN2at6native12is_inferenceERKNS_6TensorE",
        "_ZN2at6native14_is_zerotensorERKNS_6TensorE",
        "_ZN2at6native6is_negERKNS_6TensorE",
        "_ZN2at6native7is_conjERKNS_6TensorE",
        "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    ),
    "c10": (
        "_ZN3c104impl26raw_local_dispatch_key_setE",
        "_ZN3c108GradMode10is_enabledEv",
        "_ZN3c1013InferenceMode10is_enabledEv",
        "_ZN3c1019UndefinedTensorImpl10_singletonE",
        "_ZNK3c1010TensorImpl13requires_gradEv",
        "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE",
    ),
    "torch_python": ("_Z16THPVariable_WrapRKN2at10TensorBaseE",),
}

PROCESSOR = "x86_64"
_PLACES = Places(16, 168, 16, 16, 24, 32, 48, 57)
_EARLIER = _PLACES._replace(keys=176)
_EARLIEST = _EARLIER._replace(tensor=24)
PROVED = {
    "2.6.0": Proof(_EARLIEST, SYMBOLS),
    "2.7.0": Proof(_EARLIEST, SYMBOLS),
    "2.7.1": Proof(_EARLIEST, SYMBOLS),
    "2.8.0": Proof(_EARLIEST, SYMBOLS),
    "2.9.0": Proof(_EARLIEST, SYMBOLS),
    "2.9.1": Proof(_EARLIEST, SYMBOLS),
    "2.10.0": Proof(_EARLIER, SYMBOLS),
    "2.11.0": Proof(_EARLIER, SYMBOLS),
    "2.12.0": Proof(_EARLIER, SYMBOLS),
    "2.12.1": Proof(_EARLIER, SYMBOLS),
    "2.13.0": Proof(_PLACES, SYMBOLS),
    "2.14.0": Proof(_PLACES, SYMBOLS),
    "2.14.1": Proof(_PLACES, SYMBOLS),
    "2.15.0": Proof(_PLACES, SYMBOLS),
}


def proof() -> Proof | None:
    """Return what was proved for the torch that is installed; None: only its public functions.

    A build for another accelerator, "2.13.0+cu130", has the same insides as "2.13.0". What holds on
    one processor need not hold on another one.
    """
    if platform.machine() != PROCESSOR:
        return None
    return PROVED.get(release()) or kept()


def release() -> str:
    """Return the version of torch without the accelerator it is built for."""
    torch = sys.modules.get("torch")
    found = str(torch.__version__) if torch is not None else version("torch")
    return found.partition("+")[0]


def why_unproved() -> str:
    """Return why `proof` returns None, and what to do, for texts."""
    if platform.machine() != PROCESSOR:
        return f"{platform.machine()} is not {PROCESSOR}"
    known = ", ".join(PROVED)
    return f"{release()} is not one of {known}; `python -m dlbridge prove torch` tries this build"


# ---- proofs of this machine ----------------------------------------------------------------------
#
# `python -m dlbridge prove torch` keeps what it proved in the cache folder, under the build ids of
# torch's libraries: another build, of the same version too, is not what was proved.

_SUFFIX = ".proof"


def keep(build: str, places: Places) -> Path:
    """Keep what was proved for a build; return the path of the file.

    Raises:
        KernelError: there is no folder for it.
    """
    contents = json.dumps({"release": release(), "places": places}).encode()
    made = cache.entry(_key(build), _SUFFIX, lambda _folder: contents)
    kept.cache_clear()
    return made


@functools.cache
def kept() -> Proof | None:
    """Return the proof of the installed build that is kept on this machine, or None.

    torch is not imported for it, and no folder is made.
    """
    build = build_id()
    contents = None if build is None else cache.read_kept(_key(build), _SUFFIX)
    if contents is None:
        return None
    try:
        return Proof(Places(*map(int, json.loads(contents)["places"])), SYMBOLS)
    except not_from_handler(ValueError, KeyError, TypeError):
        return None


def _key(build: str) -> str:
    """Return the name of a proof: a release of dlbridge that asks for other places has others."""
    return f"torch-{cache.digest(' '.join([build, *Places._fields]).encode())}"


def build_id() -> str | None:
    """Return what names the build of the installed torch: the build ids of its libraries.

    None: there is no torch, or one of them has no build id.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "lib"
    try:
        found = [_read_build_id(folder / f"lib{name}.so") for name in SYMBOLS]
    except not_from_handler(OSError, struct.error):
        return None
    return None if None in found else " ".join(map(str, found))


def _read_build_id(path: Path) -> str | None:
    """Return the GNU build id in the notes of a 64-bit ELF file, in hexadecimal, or None."""
    with path.open("rb") as file:
        head = file.read(64)
        if head[:6] != b"\177ELF\2\1":
            return None
        (start,), (size, count) = (
            struct.unpack_from("<Q", head, 32),
            struct.unpack_from("<HH", head, 54),
        )
        file.seek(start)
        table = file.read(size * count)
        for i in range(count):
            kind, offset, nbytes = struct.unpack_from("<I4xQ16xQ", table, i * size)
            if kind == _NOTES:
                file.seek(offset)
                build = _find_build_id(file.read(nbytes))
                if build is not None:
                    return build
    return None


_NOTES, _BUILD_ID = 4, 3  # PT_NOTE and NT_GNU_BUILD_ID of <elf.h>


def _find_build_id(notes: bytes) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name, contents, kind = struct.unpack_from("<III", notes, at)
        begin = at + 12 + (name + 3 & ~3)
        if kind == _BUILD_ID and notes[at + 12 : at + 12 + name] == b"GNU\0":
            return notes[begin : begin + contents].hex()
        at = begin + (contents + 3 & ~3)
    return None
