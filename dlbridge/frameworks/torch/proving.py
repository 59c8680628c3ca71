"""The proof of the installed torch: `python -m dlbridge prove torch`.

A child process looks for the places of words in torch's objects, opens the direct path with them,
which tries all that it relies on, and calls kernels by it on tensors, layouts, modes and threads of
many kinds. If all of that holds, `proofs` keeps the places. A crash of the child is an answer too.
"""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.frameworks.conversions import to_numpy, to_torch
from dlbridge.frameworks.torch import internals, proofs
from dlbridge.frameworks.torch.proofs import Places, Proof
from dlbridge.kernels.wrap import wrap

SECONDS = 300  # after which the child has not proved anything
_LOOKED_AT = 256  # bytes of an object, from its beginning


# ---- the command ---------------------------------------------------------------------------------


def prove() -> str:
    """Prove the installed torch in a child process and keep the proof; return what is known now.

    Raises:
        DLBridgeError: torch is not as the direct path needs it, or no proof can be kept.
    """
    name, build = f"torch {proofs.release()}", proofs.build_id()
    if platform.machine() != proofs.PROCESSOR:
        raise DLBridgeError(f"prove: {platform.machine()} is not {proofs.PROCESSOR}")
    if build is None:
        raise DLBridgeError(f"prove: the libraries of {name} have no build ids to know them by")
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-m", __name__]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise DLBridgeError(f"prove: {name} is not proved: no end after {SECONDS} s") from error
    if done.returncode:
        why = _last_line(done.stderr) if done.returncode == 1 else f"status {done.returncode}"
        raise DLBridgeError(f"prove: {name} is not proved: {why}")
    path = proofs.keep(build, Places(*json.loads(_last_line(done.stdout))))
    return f"{name} is proved: its tensors take the direct path. Kept in {path}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def main() -> None:
    """Prove torch in this process, and print the places as JSON; an exit says what is not so."""
    import torch

    places = find_places(torch)
    proofs.PROVED[proofs.release()] = Proof(places, proofs.SYMBOLS)
    for holds in PROMISES:
        if not holds(torch):
            raise SystemExit(f"this is not so: {holds.__doc__}")
    sys.stdout.write(f"{json.dumps(places)}\n")


# ---- places --------------------------------------------------------------------------------------


def find_places(torch: Any) -> Places:
    """Return where words lie, by what torch says of them for tensors of several kinds.

    Raises:
        SystemExit: some word is nowhere, or in several places.
    """
    tensors = [torch.ones(5, dtype=torch.int8), torch.ones(1021), torch.ones(7).to(torch.complex64)]
    tensors += [torch.ones(300, dtype=torch.float64)[1:], tensors[2].conj()]
    found: dict[str, set[int]] = {}
    for x in tensors:
        _, keys, storage, data, nbytes = internals.describe_words(torch, x)
        impl = x._cdata
        words = {
            "tensor": _places_of(impl, id(x), type(x).__basicsize__),
            "keys": _places_of(keys, impl),
            "storage": _places_of(storage, impl),
            "data": _places_of(data, storage),  # twice: the allocator's own argument is the data
            "nbytes": _places_of(nbytes, storage),
        }
        found = {name: found.get(name, places) & places for name, places in words.items()}
    both = sorted(found.pop("data"))
    if len(both) != 2 or any(len(places) != 1 for places in found.values()):
        raise SystemExit(f"no places for words: data {both}, {found}")
    places = {name: next(iter(each)) for name, each in found.items()}
    return Places(
        **places, data=both[0], deleter=both[0] + 8, context=both[1],
        resizable=_find_flag(torch, places["nbytes"] + 8),
    )  # fmt: skip


def _places_of(value: int, base: int, limit: int = _LOOKED_AT) -> set[int]:
    word = ctypes.c_uint64.from_address
    return {at for at in range(8, limit - 7, 8) if word(base + at).value == value}


def _find_flag(torch: Any, begin: int) -> int:
    """Return the byte of a storage that says whether its memory may be resized."""
    byte = ctypes.c_uint8.from_address
    places = set(range(begin, begin + 16))
    for x in (torch.ones(3), torch.from_numpy(np.ones(3)), torch.ones(2**12), torch.ones(1)):
        storage = x.untyped_storage()
        wanted, base = int(storage.resizable()), storage._cdata
        places = {at for at in places if byte(base + at).value == wanted}
    if len(places) != 1:
        raise SystemExit(f"no place for the flag of what may be resized: {sorted(places)}")
    return next(iter(places))


# ---- promises ------------------------------------------------------------------------------------


def opens(_: Any) -> bool:
    """The guard, direct calls and operators open, and answer for every kind of tensor and mode."""
    lacking = internals.shim_lacks()
    # torch 2.6 has no C functions that define operators: torch.library serves there
    has_operators = lacking is None or lacking.startswith("aoti_torch_library_")
    return internals.guard_is_open() and internals.direct_is_open() and has_operators


def computes(torch: Any) -> bool:
    """Kernels get the memory of every layout, by direct calls and as operators."""
    kernel = _adding("layouts")
    base = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    layouts = [base, base[1:, ::2], base.T, base[0].expand(3, 6), base[:0], base[2:3, 5:]]
    return all(torch.equal(call(x, x), x + x) for x in layouts for call in (kernel, kernel.torch))


def differentiates(torch: Any) -> bool:
    """A tensor that wants a gradient, or is in a transform, is not taken for a plain one."""
    kernel = _adding("gradients")
    x = torch.arange(6.0, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(kernel(x, x * x).sum(), x)
    with torch.no_grad():
        plain = kernel(x, x)
    mapped = torch.func.vmap(kernel)(torch.ones(3, 6).double(), torch.ones(3, 6).double())
    transformed = torch.func.grad(lambda y: kernel(y, y).sum())(x.detach())
    return bool(
        torch.equal(first, 1 + 2 * x.detach())
        and not plain.requires_grad
        and torch.equal(mapped, torch.full((3, 6), 2.0).double())
        and torch.equal(transformed, torch.full((6,), 2.0).double())
    )


def counts_writes(torch: Any) -> bool:
    """A tensor that a kernel writes counts one more version."""
    kernel, x = _adding("writes"), torch.ones(4, dtype=torch.float64)
    out = torch.zeros(4, dtype=torch.float64)
    for calls in (1, 2):
        if kernel(x, x, out=out) is not out or out._version != calls:
            return False
    return bool(torch.equal(out, x + x))


def sees_modes(torch: Any) -> bool:
    """A mode that records the calls of torch sees kernels too."""
    kernel, x, seen = _adding("modes"), torch.ones(4, dtype=torch.float64), []

    class Recording(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Recording():
        kernel(x, x)
    before = len(seen)
    kernel(x, x)
    return before > 0 and len(seen) == before


def lends(torch: Any) -> bool:
    """Views hold the memory of a tensor through what its owner does with it, and count right."""
    alive = native.live()
    for _ in range(100):
        x = torch.arange(512.0)
        view = to_numpy(x)
        x.data = torch.zeros(3)
        if view.tolist() != list(range(512)):
            return False
        back = to_torch(view)
        if back.data_ptr() != view.ctypes.data:
            return False
        del x, view, back
    return native.live() == alive


def threads(torch: Any) -> bool:
    """Threads call kernels at the same time, each with modes of its own."""
    kernel = _adding("threads")
    wrong: list[float] = []

    def work(number: int) -> None:
        x = torch.full((16,), float(number), dtype=torch.float64)
        with torch.inference_mode(number % 2 == 0):
            sums = {float(kernel(x, x)[3]) for _ in range(200)}
            wrong.extend(sums - {2.0 * number})

    running = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return not wrong


PROMISES: tuple[Callable[[Any], bool], ...] = (
    opens, computes, differentiates, counts_writes, sees_modes, lends, threads,
)  # fmt: skip


def _adding(name: str) -> Any:
    """Return a kernel that adds float64 tensors of one shape; the gradient is of both."""
    schema = f"proof::{name}(x: f64[*s], y: f64[*s]) -> f64[*s]"
    return wrap(
        np.add, schema, abi="python:numpy", vjp=lambda grad: (grad, grad), batch="broadcast"
    )


if __name__ == "__main__":
    main()
