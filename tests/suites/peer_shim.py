"""A pytest plugin that puts dlbridge into the DLPack tests of another project.

It rewrites the expressions of a test module in which tensors are exchanged, and nothing else:

    expression          as the producer                      as the consumer
    x.__dlpack__        ours(x).__dlpack__                   unchanged
    x.__dlpack_device__ ours(x).__dlpack_device__            unchanged
    np.from_dlpack(x)   np.from_dlpack(ours(x))              dlbridge.convert(as_tensor(x), "numpy")
    to_dlpack(x)        dlbridge.to_dlpack(x)                unchanged
    tested(x)           tested(ours(x))                      unchanged

where `ours(x)` is `dlbridge.from_dlpack(x)` and `tested` is a function that the suite's row names.
A test in which none of these was evaluated says nothing about dlbridge; its report says so.

The process of a suite imports this module by itself: it needs nothing but dlbridge and pytest.
"""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.assertion.rewrite import rewrite_asserts

VARIABLE = "DLBRIDGE_PEER_SHIM"
PRODUCER, CONSUMER = "producer", "consumer"

# Where a from_dlpack comes from -> the framework whose arrays it makes.
FRAMEWORKS = {
    "numpy": "numpy",
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "tensorflow": "tensorflow",
    "tvm": "tvm",
    "tvm_ffi": "tvm",
    "dpnp": "dpnp",
    "cupy": "cupy",
    "pyarrow": "pyarrow",
}

_settings: dict[str, Any] = {}
_touched = [0]


# ---- what stands in the place of the rewritten expressions ----


def ours(value: Any) -> Any:
    """Return a Tensor over the memory of `value`, or `value` if it is not a producer of DLPack."""
    import dlbridge

    if isinstance(value, (list, tuple)):
        return type(value)(map(ours, value)) if type(value) in (list, tuple) else value
    if isinstance(value, (type, super, dlbridge.Tensor)) or not hasattr(value, "__dlpack__"):
        return value
    _touched[0] += 1
    return dlbridge.from_dlpack(value)


def imported(function: Any) -> Any:
    """Return `function`, a from_dlpack, with dlbridge as its producer or in its place."""
    import dlbridge

    if _settings["direction"] == PRODUCER:
        return passing_ours(function)
    framework = framework_of(function)
    if framework is None:
        return function

    @wraps(function)
    def consume(value: Any, /, device: Any = None, copy: bool | None = None) -> Any:
        _touched[0] += 1
        tensor = dlbridge.as_tensor(value)  # an array of the framework would stay as it is
        place = None if device is None else dlbridge.Device(device)
        made = dlbridge.convert(tensor, framework, device=place, copy=copy)
        return made.get_array() if function.__module__.startswith("dpnp.tensor") else made

    return consume


def framework_of(function: Any) -> str | None:
    """Return the framework of whose tensors `function` makes one, if `convert` does so as well."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    if owner not in ("", "Tensor"):  # pyarrow has one for each of its classes
        return None
    return FRAMEWORKS.get((function.__module__ or "").partition(".")[0])


def passing_ours(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, which gets our Tensors in the place of its arrays.

    Where it returns one of them, the test gets the array that it had passed.
    """

    @wraps(function)
    def call(*values: Any, **keywords: Any) -> Any:
        given = [*values, *keywords.values()]
        passed = [ours(value) for value in given]
        end = len(values)
        result = function(*passed[:end], **dict(zip(keywords, passed[end:], strict=True)))
        return next((g for g, p in zip(given, passed, strict=True) if result is p), result)

    return call


def exported(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return dlbridge's to_dlpack in the place of `function`, for what is a tensor."""
    import dlbridge

    @wraps(function)
    def produce(value: Any, *values: Any, **keywords: Any) -> Any:
        if not hasattr(value, "__dlpack__"):
            return function(value, *values, **keywords)
        _touched[0] += 1
        return dlbridge.to_dlpack(value)

    return produce


# ---- the rewriting ----


class Rewriter(ast.NodeTransformer):
    """Puts the functions above around the expressions of a module."""

    def __init__(self, direction: str, tested: list[str]) -> None:
        self.producing = direction == PRODUCER
        self.tested = tested

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Rewrite a call of a function that is tested."""
        text = ast.unparse(node.func)
        self.generic_visit(node)
        if self.producing and any(fnmatchcase(text, pattern) for pattern in self.tested):
            node.func = _call("passing_ours", node.func)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Rewrite `x.__dlpack__` and `module.from_dlpack`."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        if node.attr in ("__dlpack__", "__dlpack_device__") and self.producing:
            node.value = _call("ours", node.value)
            return node
        return self.replaced(node, node.attr)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Rewrite a name that was imported."""
        if not isinstance(node.ctx, ast.Load):
            return node
        return self.replaced(node, node.id)

    def replaced(self, node: ast.expr, name: str) -> ast.expr:
        """Return the expression `node`, which ends in `name`, or what stands in its place."""
        if name in ("from_dlpack", "_from_dlpack"):
            return _call("imported", node)
        if self.producing and name == "to_dlpack":
            return _call("exported", node)
        return node


def _call(function: str, argument: ast.expr) -> ast.expr:
    shim = ast.Name("_dlbridge_shim", ast.Load())
    call = ast.Call(ast.Attribute(shim, function, ast.Load()), [argument], [])
    return ast.copy_location(call, argument)


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles what the Rewriter made of a test module."""

    def source_to_code(self, data: Any, path: Any, **_: Any) -> Any:  # type: ignore[override]
        """Return the code of the rewritten module."""
        tree = Rewriter(_settings["direction"], _settings["tested"]).visit(ast.parse(data, path))
        rewrite_asserts(ast.fix_missing_locations(tree), data, path)
        return compile(tree, path, "exec", dont_inherit=True)

    def path_stats(self, path: Any) -> Any:
        """Raise, so that nothing is written beside the suite nor read from there."""
        raise OSError("rewritten modules are not cached")

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which finds this one under a name of its own."""
        module._dlbridge_shim = sys.modules[__name__]  # type: ignore[attr-defined]
        super().exec_module(module)


class Finder:
    """Finds the test modules that are to be rewritten."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Return a spec with our loader for a file of the suite."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return None
        origin = str(Path(spec.origin).resolve())
        if origin not in _settings["files"]:
            return None
        spec.loader = Loader(name, origin)
        return spec


# ---- the plugin ----


def record(**event: Any) -> None:
    """Append an event to the results, so that it is there if the process dies after it."""
    with Path(_settings["results"]).open("a") as file:
        file.write(json.dumps(event) + "\n")


def pytest_configure() -> None:
    """Read what is asked for, and be asked for modules before pytest's own importer is."""
    _settings.update(json.loads(os.environ[VARIABLE]))
    sys.modules.update(dict.fromkeys(_settings["without"]))  # type: ignore[arg-type]
    if _settings["direction"] in (PRODUCER, CONSUMER):
        import dlbridge  # noqa: F401  (its import is no test's time)

        sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a module that cannot be collected."""
    if report.failed:
        record(broken=report.nodeid, text=_last_line(report))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what an earlier process has done."""
    done = set(_settings["done"])
    items[:] = [item for item in items if item.nodeid not in done]
    record(collected=len(items))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Record which test runs, for the case that it ends the process."""
    _touched[0] = 0
    record(started=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record each outcome that is not an ordinary set-up or tear-down."""
    if report.when == "call" or not report.passed:
        text = "" if report.passed else _last_line(report)
        record(test=report.nodeid, outcome=report.outcome, text=text, touched=_touched[0])


def pytest_sessionfinish() -> None:
    """Record that nothing is left."""
    record(finished=True)


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if crash is not None else lines[-1])[:300] if lines else ""
