"""The bars of ordinary calls in each environment: `python -m benchmarks versions [PYTHON ...]`.

An environment is a Python with its packages: those given, or those of the folders `.venv*` of the
checkout. Each has a process of its own, in which ours and the fastest code by hand take turns; with
`--unproved` one more, in which torch is treated as a version that was not proved. The figure is the
processor time of the thread; in a run of a graph and inside compiled programs, which have threads
of their own, it is that of all threads of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from threading import Event, Thread
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np

import dlbridge
from benchmarks import exchange, kernels, ordinary
from benchmarks.pages import put, table
from benchmarks.timing import Effort, calibrate, describe_machine, render

ROOT = Path(__file__).resolve().parents[1]
QUICK = Effort(rounds=3, round_ns=0.1e6)
THOROUGH = Effort(rounds=51, round_ns=0.5e6)
NODES = 1000
BY_HAND = 1.0  # the most of the time of code by hand
NOISE = 1.03  # by which two runs of the same code differ


class Row(NamedTuple):
    """One bar: our call, the calls by hand of which the fastest counts, the ratio to reach."""

    group: str
    ours: str
    by_hand: tuple[str, ...]
    bar: float = BY_HAND
    suite: str = "own"  # whose names the statements are written in
    during: str = ""  # what goes on while ours is measured, as `situations` names it
    during_by_hand: str = ""
    what: str = ""  # in place of the statement
    against: str = ""
    has_threads: bool = False


WIDE = {"d": "float64", "q": "int64"}
X64, RECEIPTS, ELSEWHERE = "64-bit types", "receipts", "receipts elsewhere"
ALONE, POLICY, PLAIN = "only `__dlpack__`", "a policy", "exchange"

# `a` is an aligned NumPy array and `o` an ordinary one, `t` a torch tensor, `j` a JAX array, `s` a
# Tensor, all of float32; `d…` of float64 and `q…` of int64; `r` requires a gradient, `e` is
# read-only, `p` has only __dlpack__.
OWN = [
    *(
        Row(X64, f"to_jax({kind}{source})",
            (f"jax_from_dlpack({kind}{source})", f"jnp_asarray({kind}{source})"),
            during=X64, during_by_hand=X64)
        for source in "ats" for kind in WIDE
    ),
    *(Row(X64, f"to_numpy({kind}j)", (f"np_asarray({kind}j)", f"np_from_dlpack({kind}j)"))
      for kind in WIDE),
    *(Row(X64, f"to_torch({kind}j)", (f"torch_from_dlpack({kind}j)",)) for kind in WIDE),
    *(Row(X64, f"from_dlpack({kind}j)", (f"tvm_ffi_from_dlpack({kind}j)",)) for kind in WIDE),
    Row(ALONE, "to_numpy(p)", ("np_from_dlpack(p)",)),
    Row(ALONE, "to_torch(p)", ("torch_from_dlpack(p)",)),
    Row(ALONE, "to_jax(p)", ("jax_from_dlpack(p)",)),
    Row(POLICY, "to_numpy(r, grad='detach')", ("r.detach().numpy()",)),
    Row(POLICY, "to_torch(a, copy=False)", ("torch_from_dlpack(a)", "torch_from_numpy(a)")),
    Row(POLICY, "to_torch(a, copy=True)", ("torch_tensor(a)", "torch_from_numpy(a.copy())")),
    Row(POLICY, "to_torch(a, device='cpu')", ("torch_from_dlpack(a)", "torch_from_numpy(a)")),
    Row(POLICY, "to_torch(e, readonly='copy')", ("torch_from_numpy(e.copy())",)),
    Row(POLICY, "to_torch(j, immutable='copy')", ("torch_from_dlpack(j).clone()",)),
    Row(POLICY, "to_numpy(t, copy=True)", ("t.numpy().copy()",)),
    Row(POLICY, "to_numpy(t.T, layout='contiguous')", ("np_contiguous(t.T.numpy())",)),
    Row(POLICY, "to_jax(a, copy=True)", ("jnp_array(a)",)),
    Row(POLICY, "to_jax(da, narrow='checked')", ("jnp_asarray(da)",)),
    Row(RECEIPTS, "to_torch(a)", ("to_torch(a)",), 2.0, during=RECEIPTS,
        what="to_torch(a) inside receipts()", against="the same outside"),
    Row(RECEIPTS, "to_torch(a)", ("to_torch(a)",), during=ELSEWHERE,
        what="to_torch(a), receipts() in another thread", against="the same alone"),
    Row("graphs", "run(feeds, timeout)", ("run(feeds)",), 1.3, has_threads=True,
        what=f"session.run of {NODES:,} nodes with a timeout", against="the same without"),
]  # fmt: skip

# Rows of other benchmarks, by what they are of and against.
FROM_KERNELS = [
    ("numpy", kernels.TVM_FFI),
    ("torch eager fast path", kernels.TVM_FFI),
    ("torch eager fast path", "torch.ops.aten.add.out"),
    ("torch, without a schema", kernels.TVM_FFI),
    ("torch operator, destination-passing", "torch.add(out=)"),
    ("to_pytorch_func(tvm_module)", "TVM's to_pytorch_func"),
]
FROM_ORDINARY = [
    ("torch, forward and backward", "custom_op"),
    ("torch, forward and backward", "autograd.Function"),
]
FROM_SLOPES = [("inside a jit graph", "jax-tvm-ffi")]


def run(*, quick: bool, pythons: Sequence[Path] = (), unproved: bool = False) -> dict[str, Any]:
    """Measure in each environment, one after the other; print and return the figures.

    `unproved`: and once more in each, as if its torch had no proof.
    """
    found = list(pythons) or sorted(ROOT.glob(".venv*/bin/python")) or [Path(sys.executable)]
    environments = []
    for python in found:
        print(f"{python} …", file=sys.stderr, flush=True)
        made = measure_environment(python, quick)
        environments.append(made)
        if unproved and "torch" in made.get("versions", {}):
            environments.append(measure_environment(python, quick, unproved=True))
    figures = {"machine": describe_machine(), "environments": environments}
    print_figures(figures)
    return figures


def measure_environment(python: Path, quick: bool, unproved: bool = False) -> dict[str, Any]:
    """Return the figures that the process of this Python prints, or why there are none."""
    if not python.exists():
        return {"python": str(python), "failure": "is not there"}
    command = [str(python), "-m", "benchmarks.versions"]
    command += [*(["--quick"] if quick else []), *(["--unproved"] if unproved else [])]
    env = {**os.environ, **exchange.QUIET, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return {"python": str(python), "failure": f"ended with status {done.returncode}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return {"python": str(python)} | answer


# ---- in the process of an environment ------------------------------------------------------------


def main() -> None:
    """Measure in this environment; write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--unproved", action="store_true")
    given = parser.parse_args()
    if given.unproved:
        forget_proofs()
    answer = os.fdopen(os.dup(1), "w")  # what frameworks and compilers print goes elsewhere
    os.dup2(2, 1)
    json.dump(measure_here(QUICK if given.quick else THOROUGH), answer)
    answer.close()


def forget_proofs() -> None:
    """Treat torch as a version that was not proved."""
    from dlbridge.frameworks.torch import proofs

    vars(proofs)["proof"] = lambda: None
    vars(proofs)["why_unproved"] = lambda: "its proof was set aside"


def measure_here(effort: Effort) -> dict[str, Any]:
    """Measure every row that is possible with what is installed."""
    names = make_names()
    held = situations(names["own"])
    path = torch_path()
    rows = [
        figures
        for row in find_rows(path == "direct")
        if row.during in held and (figures := measure(row, names[row.suite], held, effort))
    ]
    chains = kernels.make_chains()
    for slope in kernels.SLOPES:
        is_wanted = (slope.what, slope.against) in FROM_SLOPES
        if is_wanted and slope.ours in chains and slope.peer in chains:
            taken = kernels.measure_slope(slope, chains, effort)
            rows.append({"group": "kernels", "bar": taken.pop("target"), **taken})
    return {"versions": exchange.find_versions(), "torch_path": path, "rows": rows}


def find_rows(is_direct: bool) -> list[Row]:
    """Return all rows; the bars of exchanges by torch's direct path hold where it is open."""
    small = [pair for pair in exchange.PAIRS if "(l)" not in pair.ours and "2**24" not in pair.ours]
    rows = [
        Row(PLAIN, pair.ours, (pair.peer,), (pair.target if is_direct else None) or BY_HAND,
            suite="exchange")
        for pair in small
    ]  # fmt: skip
    rows += OWN
    for wanted, theirs in ((FROM_KERNELS, kernels.ROWS), (FROM_ORDINARY, ordinary.ROWS)):
        found: Any = [row for row in theirs if (row.what, row.against) in wanted]
        rows += [
            Row("kernels", row.ours, (row.peer,), row.target or BY_HAND, suite="ordinary",
                what=row.what, against=row.against)
            for row in found
        ]  # fmt: skip
    return rows


def torch_path() -> str:
    """Return the path that torch's tensors take here; "" without torch."""
    if "torch" not in sys.modules:
        return ""
    from dlbridge.frameworks.torch.internals import path

    return path()


def make_names() -> dict[str, dict[str, Any]]:
    """Return what the statements of each suite mean; what is not installed is absent."""
    own = exchange.make_names()
    own |= {"np_contiguous": np.ascontiguousarray, "e": np.ones((4, 4), np.float32)}
    own["e"].flags.writeable = False
    own |= {"s": dlbridge.from_dlpack(own["a"]), "p": OnlyStandard(own["a"])}
    own |= make_graph_names()
    if "torch_from_dlpack" in own:
        import torch

        own |= {"torch_tensor": torch.tensor, "r": torch.ones(4, 4, requires_grad=True)}
    if "jax_from_dlpack" in own:
        own["jnp_array"] = sys.modules["jax"].numpy.array
    for kind, dtype in WIDE.items():
        own |= {f"{kind}{name}": x for name, x in make_wide(dtype, own).items()}
    for name in ("torch", "jax", "tensorflow"):
        if find_spec(name) is None:
            own.pop(f"to_{name}", None)
    return {"own": own, "exchange": own, "ordinary": ordinary.make_names()}


def make_wide(dtype: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of a 64-bit dtype, by the letters of their frameworks."""
    tensor = dlbridge.zeros((4, 4), dtype)
    made = {"s": tensor, "a": dlbridge.to_numpy(tensor)}
    if "torch_from_dlpack" in names:
        made["t"] = dlbridge.to_torch(tensor)
    if "jax_from_dlpack" in names:
        with enable_x64():
            made["j"] = sys.modules["jax"].numpy.zeros((4, 4), dtype)
    return made


class OnlyStandard:
    """An array of no known framework: it has the two methods of DLPack."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        """Return the capsule that NumPy makes."""
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the CPU."""
        return 1, 0


def make_graph_names() -> dict[str, Any]:
    """Return a run of a graph of small nodes, its feeds and a timeout that never ends it."""
    import dlbridge.graph as tf

    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [16])
        y = x
        for _ in range(NODES):
            y = y + x
    session = tf.Session(graph=graph)
    return {
        "run": partial(run_graph, session, y),
        "feeds": {x: np.ones(16, np.float32)},
        "timeout": tf.RunOptions(timeout_in_ms=60_000),
    }


def run_graph(session: Any, fetches: Any, feeds: Any, options: Any = None) -> None:
    session.run(fetches, feeds, options=options)


# ---- what goes on meanwhile ----------------------------------------------------------------------


def situations(names: dict[str, Any]) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Return what may go on while a statement is measured, by its name."""
    found: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "": nullcontext,
        RECEIPTS: dlbridge.receipts,
        ELSEWHERE: receipts_elsewhere,
    }
    return found | ({X64: enable_x64} if "jax_from_dlpack" in names else {})


def enable_x64() -> AbstractContextManager[Any]:
    """Let JAX have 64-bit types in this thread."""
    jax: Any = sys.modules["jax"]
    switch = jax if hasattr(jax, "enable_x64") else import_module("jax.experimental")
    switched: AbstractContextManager[Any] = switch.enable_x64(True)
    return switched


@contextmanager
def receipts_elsewhere() -> Iterator[None]:
    """Let another thread wait with its log of receipts open."""
    is_open, is_over = Event(), Event()

    def wait() -> None:
        with dlbridge.receipts():
            is_open.set()
            is_over.wait()

    thread = Thread(target=wait)
    thread.start()
    is_open.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# ---- measuring -----------------------------------------------------------------------------------


def measure(
    row: Row, names: dict[str, Any], held: dict[str, Any], effort: Effort
) -> dict[str, Any] | None:
    """Measure a row; None where what it needs is not installed."""
    peers = [peer for peer in row.by_hand if kernels.is_possible(Pair(row.ours, peer), names)]
    if not peers:
        return None
    sides = [(row.ours, held[row.during]), *((each, held[row.during_by_hand]) for each in peers)]
    clock = time.process_time if row.has_threads else time.thread_time
    ours, *theirs = compare(sides, names, effort, clock)
    fastest = min(theirs)
    return {
        "group": row.group,
        "what": row.what or legible(row.ours),
        "against": row.against or legible(peers[theirs.index(fastest)]),
        "ours_ns": round(ours, 1),
        "peer_ns": round(fastest, 1),
        "ratio": round(ours / fastest, 4),
        "bar": row.bar,
        "reached": ours <= row.bar * fastest * NOISE,
    }


class Pair(NamedTuple):
    """Two statements, as `kernels.is_possible` looks at them."""

    ours: str
    peer: str


def compare(
    sides: list[tuple[str, Callable[[], AbstractContextManager[Any]]]],
    names: dict[str, Any],
    effort: Effort,
    clock: Callable[[], float],
) -> list[float]:
    """Return the median nanoseconds of each statement in its situation; they take turns."""
    timers = [Timer(statement, globals=dict(names), timer=clock) for statement, _ in sides]
    loops = []
    for timer, (_, situation) in zip(timers, sides, strict=True):
        with situation():
            loops.append(calibrate(timer, effort.round_ns))
    samples: list[list[float]] = [[] for _ in sides]
    for number in range(effort.rounds):
        order = range(len(sides)) if number % 2 else reversed(range(len(sides)))
        for index in order:
            with sides[index][1]():
                seconds = timers[index].timeit(loops[index])
            samples[index].append(seconds * 1e9 / loops[index])
    return [median(sample) for sample in samples]


def legible(statement: str) -> str:
    """Return the statement as it stands in the tables, with the letters of this module told."""
    for kind, dtype in WIDE.items():
        for letter, name in (*exchange.LEGEND.items(), ("s", "Tensor")):
            statement = statement.replace(f"({kind}{letter}", f"({dtype}_{name}")
    for letter, name in (("s", "Tensor"), ("p", "producer"), ("e", "readonly_numpy")):
        statement = statement.replace(f"({letter})", f"({name})")
        statement = statement.replace(f"({letter},", f"({name},")
        statement = statement.replace(f"({letter}.", f"({name}.")
    statement = statement.replace("r.detach", "torch_tensor.detach").replace("(r,", "(torch,")
    return exchange.legible(statement.replace("np_contiguous", "np.ascontiguousarray"))


# ---- the table -----------------------------------------------------------------------------------


def print_figures(figures: dict[str, Any]) -> None:
    """Print one table of all environments, and how many rows reach their bars."""
    header, rows = tabulate(figures["environments"])
    print(render(header, rows))
    for environment in figures["environments"]:
        print(tell(environment))


def tabulate(environments: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the table: a row for each call, and a column of ratios for each environment."""
    measured = [each for each in environments if "rows" in each]
    columns = [{(row["what"], row["against"]): row for row in each["rows"]} for each in measured]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = []
    for key in keys:
        found = [column.get(key) for column in columns]
        bars = {f"{row['bar']:.3g}" for row in found if row is not None}
        rows.append([*key, " / ".join(sorted(bars)), *map(show_ratio, found)])
    return ["call", "by hand", "at most", *map(label, measured)], rows


def show_ratio(row: dict[str, Any] | None) -> str:
    """Return the ratio, marked where it misses its bar; nothing where it was not possible."""
    if row is None:
        return ""
    return f"{row['ratio']:.2f}" if row["reached"] else f"**{row['ratio']:.2f}**"


def label(environment: dict[str, Any]) -> str:
    """Return the versions of an environment in few words."""
    names = {"torch": "torch", "jax": "JAX", "tensorflow": "TF", "tvm_ffi": "tvm-ffi"}
    found = environment["versions"]
    known = [(names.get(key, key), found[key].partition("+")[0]) for key in found if key in names]
    path = " without a proof" if environment["torch_path"].startswith("general") else ""
    paths = {"torch": path}
    named = [f"{name} {version}{paths.get(name, '')}" for name, version in known]
    return ", ".join(named) or "NumPy"


def tell(environment: dict[str, Any]) -> str:
    """Return one sentence on an environment."""
    if "rows" not in environment:
        return f"{environment['python']}: {environment['failure']}"
    rows = environment["rows"]
    reached = sum(row["reached"] for row in rows)
    path = environment["torch_path"]
    through = f"; torch's tensors: {path}" if path else ""
    return f"{label(environment)}: {reached} of {len(rows)} calls reach their bar{through}"


def write_pages(figures: dict[str, Any], root: Path) -> None:
    """Put the table into docs/performance.md."""
    header, rows = tabulate(figures["environments"])
    words = [[f"`{row[0]}`", f"`{row[1]}`", *row[2:]] for row in rows]
    told = [f"- {tell(environment)}" for environment in figures["environments"]]
    text = "\n".join([table(header, words, words=2), "", *told])
    put(root / "docs/performance.md", "benchmark versions", text)


if __name__ == "__main__":
    main()
