"""Kernels of libraries that others built: tvm-ffi's, and those that text beside them describes.

A library built for tvm-ffi exports `__tvm_ffi_<name>` for each function. It knows their parameters
at most, not how shapes go together, so schemas come with the call of `load_library` or in a file of
TOML beside the library, `libmylib.so.toml`:

    add_one = "mylib::add_one(x: f32[n]) -> f32[n]"

    [rope]
    schema = "mylib::rope(x: f32[t, 2*d]) -> f32[t, 2*d]"
    vjp = "rope_vjp"
"""

from __future__ import annotations

import ctypes
import json
import mmap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlbridge.errors import ArgumentError, DLBridgeError
from dlbridge.exchange.adapter import adapter
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.elf import Image
from dlbridge.kernels.exports import DERIVATIVES, INTEGERS, OPTIONS, Export, refusal
from dlbridge.kernels.schema import Schema
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

Described = Mapping[str, str | Mapping[str, Any]]

PREFIX = "__tvm_ffi_"  # metadata and documentation have one more underscore
_FIELDS = ("schema", "abi", "platform", "doc", *DERIVATIVES, *OPTIONS)


def functions_of_tvm(path: str) -> list[str]:
    """Return the names of the functions that a library has for tvm-ffi, from its file."""
    file = Path(path)
    if not file.is_file() or not file.stat().st_size:
        return []
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
        if text.find(b"\0" + PREFIX.encode()) < 0:
            return []
    found = [name.removeprefix(PREFIX) for name in Image(file).names() if name.startswith(PREFIX)]
    return sorted(name for name in found if not name.startswith("_"))


def open_tvm(path: str) -> Any:
    """Load a library as a module of tvm-ffi.

    Raises:
        ArgumentError: tvm-ffi cannot load it, and says why.
        FrameworkMissingError: tvm-ffi is not installed.
    """
    tvm_ffi = adapter("tvm").import_module("load_library")
    try:
        return tvm_ffi.load_module(path)
    except not_from_handler(RuntimeError, OSError) as error:
        raise ArgumentError(f"load_library: {path} cannot be loaded: {error}") from error


# ---- the descriptions ----------------------------------------------------------------------------


def read_described(path: str, schemas: Described | None) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return where a library's functions are described, and the fields of each.

    Args:
        path: of the library.
        schemas: as `load_library` was given it; None is the file beside the library, if any.

    Raises:
        ArgumentError: the file is no TOML, or a description is none.
    """
    if schemas is not None:
        return "schemas=", _check("schemas=", schemas)
    beside = Path(f"{path}.toml")
    if not beside.is_file():
        return "", {}
    try:
        found = tomllib.loads(beside.read_text("utf-8"))
    except not_from_handler(tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"load_library: {beside} is no TOML: {error}") from None
    return str(beside), _check(str(beside), found)


def _check(where: str, given: object) -> dict[str, dict[str, Any]]:
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"load_library: {where} must be a dict of schemas by the names of functions, got "
            f"{describe(given)}"
        )
    found = {}
    for name, each in given.items():
        fields = {"schema": each} if isinstance(each, str) else each
        if not isinstance(name, str) or not isinstance(fields, Mapping) or "schema" not in fields:
            raise ArgumentError(
                f"load_library: {where}: {name}: a schema is needed, or a dict with 'schema' and "
                f"further fields, got {each!r}"
            )
        for field, value in fields.items():
            if field not in _FIELDS:
                raise ArgumentError(
                    f"load_library: {where}: {name}: there is no field {field!r}"
                    f"{did_you_mean(field, _FIELDS)}"
                )
            if not isinstance(value, int if field in INTEGERS else str):
                kind = "an integer" if field in INTEGERS else "text"
                raise ArgumentError(
                    f"load_library: {where}: {name}: {field} must be {kind}, got {value!r}"
                )
        found[name] = dict(fields)
    return found


def key_of(described: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a text that is the same for the same descriptions."""
    return json.dumps(described, sort_keys=True)


def described_exports(
    where: str,
    described: Mapping[str, Mapping[str, Any]],
    module: Any,
    names: Sequence[str],
    find: Callable[[str], Any],
) -> list[Export]:
    """Return what is described, as if the library had a table of it.

    Args:
        where: it is described, for messages.
        described: fields by function.
        module: the library as a module of tvm-ffi, or None.
        names: of its functions.
        find: gives another function of the library by its symbol.

    Raises:
        ArgumentError: there is no such function, or its description is wrong.
    """
    exports = []
    for name, fields in described.items():
        options = {key: value for key, value in fields.items() if key in (*DERIVATIVES, *OPTIONS)}
        try:
            schema = Schema.parse(fields["schema"])
            if name in names:
                function, abi = module.get_function(name), "tvm_ffi"
                _check_parameters(module, name, schema)
            else:
                function, abi = _find(find, name, names), "dltensors"
        except DLBridgeError as error:
            raise refusal(where, name, error) from None
        address = 0 if abi == "tvm_ffi" else ctypes.cast(function, ctypes.c_void_p).value or 0
        platform, doc = fields.get("platform", ""), fields.get("doc", "")
        abi = fields.get("abi", abi)
        exports.append(Export(name, address, schema, abi, platform, doc, options, function))
    return exports


def _find(find: Callable[[str], Any], name: str, names: Sequence[str]) -> Any:
    try:
        return find(name)
    except ArgumentError:
        raise ArgumentError(
            f"the library has no function of this name{did_you_mean(name, names)}"
        ) from None


def _check_parameters(module: Any, name: str, schema: Schema) -> None:
    """Refuse a schema with another number of values than the function says that it takes."""
    metadata = module.get_function_metadata(name) or {}
    signature = json.loads(metadata.get("type_schema", "{}"))
    parameters = signature.get("named_args", {}).get("params")
    # It returns a number; how many rows there are of a result it writes into a tensor behind them.
    results = len(schema.results) - len(schema.numbers) + len(schema.counts)
    expected = len(schema.parameters) + results
    if parameters is None or len(parameters) == expected:
        return
    types = ", ".join(str(each.get("type")) for each in parameters)
    raise ArgumentError(
        f"the function takes {len(parameters)} values ({types}), and {schema} passes {expected}: "
        f"{len(schema.parameters)} arguments, then {results} results"
    )
