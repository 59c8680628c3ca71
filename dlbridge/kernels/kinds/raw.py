"""C functions of bare pointers and sizes: `void(const float *x, float *out, int64_t n)`.

The names of the parameters say what they are given, by the schema of the kernel:

    a tensor or result      the address of its data; NULL for an optional tensor that is left out
    a named dimension       its extent; the name of a pack: the product of its extents
    a list of tensors       the address of an array with the addresses of their data, as in
                            `const float *const *xs`; it is a copy
    a scalar                its value; a list: the address of its int64_t or double
    a list's name and       how many they are
    "_count", or its length
    stream                  the stream of the device, NULL on the CPU

The function returns nothing, or an integer of which 0 means success; or the one result without
dimensions that no parameter has the name of, as in `double(const float *x, int64_t n)`. Arguments
that it must not write have to be `const`. Memory is row-major. All this is checked when the kernel
is wrapped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from typing import Any, NamedTuple

from dlbridge._core import ffi
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, ExchangeError, KernelError
from dlbridge.kernels.schema import LIST_KINDS, Schema, join_parts
from dlbridge.kernels.schema.parts import EACH
from dlbridge.signals import not_from_handler

_FUNCTION = re.compile(
    r"\s*(?P<returned>[\w\s*]+?)\s*(\(\s*\*\s*\))?\s*\((?P<parameters>.*)\)\s*;?\s*"
)
_PARAMETER = re.compile(r"(?P<type>.*[\s*])(?P<name>[A-Za-z_]\w*)(\s*\[\s*\])?", re.DOTALL)
_CUDA_WORDS = re.compile(r'extern\s*"C"|\b__global__\b|\b__restrict(__)?\b|\bstd::')
# Types of CUDA's headers, as C has them: integers of their bits.
_CUDA_TYPES = {
    "__half": "uint16_t", "half": "uint16_t", "__nv_bfloat16": "uint16_t",
    "nv_bfloat16": "uint16_t", "__nv_fp8_e4m3": "uint8_t", "__nv_fp8_e5m2": "uint8_t",
}  # fmt: skip
_CUDA_TYPE = re.compile(rf"\b({'|'.join(_CUDA_TYPES)})\b(?=[^,()]*\*)")
# Complex numbers of C, in either order, and of C++ and CUDA, as cffi has them.
_COMPLEX_TYPE = re.compile(
    r"\b(?:(float|double)\s+(?:complex|_Complex)|(?:complex|_Complex)\s+(float|double)"
    r"|(?:\w+::\s*)*complex\s*<\s*(float|double)\s*>|cu(Double)?(?:Float)?Complex)(?!\w)"
)
_CONST = re.compile(r"\bconst\b")


class CParameter(NamedTuple):
    """One parameter of the C function: the text of its type, its name, its cffi type."""

    text: str
    name: str
    type: Any

    @property
    def is_pointer(self) -> bool:
        """Whether it is an address."""
        return bool(self.type.kind == "pointer")

    @property
    def is_const(self) -> bool:
        """Whether the kernel cannot write through it."""
        return bool(_CONST.search(self.text.rpartition("*")[0]))


class _Call(NamedTuple):
    """One call, from which the values of the parameters are read."""

    tensors: tuple[Any, ...]  # arguments, then results; a list of tensors is one
    scalars: dict[str, Any]
    stream: int
    kept: list[Any]  # what lives until the function returns


Reader = Callable[[_Call], Any]


def raw_caller(address: int, text: str, schema: Schema | None) -> Callable[..., None]:
    """Return a Python function of Tensors that calls the C function at `address`.

    Args:
        address: of the machine code; the caller keeps it alive.
        text: the C signature, as the module says.
        schema: the kernel's.

    Raises:
        ArgumentError: the text is no C signature, or does not fit the schema.
    """
    if schema is None:
        raise ArgumentError(
            f"wrap: the C signature {text!r} needs a schema, which says what its names mean"
        )
    returned, parameters = read_signature(schema, text)
    place = find_returned(schema, ffi.typeof(returned), parameters)
    readers = [_reader(schema, parameter) for parameter in parameters]
    types = ", ".join(parameter.text for parameter in parameters) or "void"
    function = ffi.cast(f"{returned}(*)({types})", address)
    return _make_caller(schema, function, readers, f"{returned} *", place)


def _make_caller(
    schema: Schema, function: Any, readers: list[Reader], kind: str, returned: int | None
) -> Callable[..., None]:
    inputs = len(schema.tensors)
    single = len(schema.results) == 1

    def caller(*tensors: Any, stream: int, out: Any = (), **scalars: Any) -> None:
        everything = (*tensors, out) if single else (*tensors, *out)
        for place, given in enumerate(everything):
            for tensor in given if isinstance(given, (list, tuple)) else [given]:
                if tensor is not None and not tensor.is_contiguous:
                    name = schema.place_name(place)
                    raise ExchangeError(
                        "strides", f"{schema.qualified}: {name!r} must be row-major"
                    )
        call = _Call(everything, scalars, stream, [])
        status = function(*[read(call) for read in readers])
        if returned is not None:
            if everything[returned] is not None:
                ffi.cast(kind, everything[returned].data_ptr)[0] = status
        elif status:
            raise KernelError(f"{schema.qualified}: the kernel returned status {status}")

    names = [f"tensor_{place}" for place in range(inputs)]
    by_name = [part.name for part in schema.scalars] + ["stream"]
    by_name += ["out"] if schema.results else []
    caller.__name__ = schema.name
    caller.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.POSITIONAL_ONLY) for name in names]
        + [Parameter(name, Parameter.KEYWORD_ONLY) for name in by_name]
    )
    return caller


# ---- the text ----------------------------------------------------------------------------------


def read_signature(schema: Schema, text: str) -> tuple[str, list[CParameter]]:
    """Return the C type of what is returned, and the parameters, checked against the schema.

    CUDA's `extern "C"`, `__global__` and `__restrict__` may stand in it, and pointers to `__half`
    and the like, and to complex numbers as C, C++ and CUDA spell them.

    Raises:
        ArgumentError: the text is no C signature, or does not fit the schema.
    """
    returned, parameters = parse_signature(schema, text)
    for parameter in parameters:
        _reader(schema, parameter)
    place = find_returned(schema, ffi.typeof(returned), parameters)
    if place is None and is_float(ffi.typeof(returned)):
        raise _refuse(
            schema, returned, "cannot be returned: void, an integer status, or the one result "
            "without dimensions that no parameter is for"
        )  # fmt: skip
    _check_written(schema, parameters, "" if place is None else schema.part(place).name)
    return returned, parameters


def find_returned(schema: Schema, returned: Any, parameters: list[CParameter]) -> int | None:
    """Return the place of the result that is what the function returns; None for a status.

    Args:
        schema: the kernel's.
        returned: the cffi type of what is returned.
        parameters: of the function.

    Raises:
        ArgumentError: it returns something else than the result.
    """
    given = {parameter.name for parameter in parameters}
    places = [
        place
        for place, part in enumerate(schema.results, len(schema.tensors))
        if part.name not in given and not part.dims and not part.is_list
    ]
    if returned.kind == "void" or len(places) != 1:
        return None
    part = schema.part(places[0])
    assert part.dtype is not None
    if part.dtype.only is None or not _holds(returned, part.dtype.only):
        raise _refuse(
            schema,
            returned.cname,
            f"cannot be returned for {part.name!r}, which is {part.type_text}",
        )
    return places[0]


def parse_signature(schema: Schema, text: str) -> tuple[str, list[CParameter]]:
    """Return the same, whatever the schema says; it is named in refusals."""
    text = _CUDA_TYPE.sub(lambda each: _CUDA_TYPES[each[1]], _CUDA_WORDS.sub(" ", text))
    text = _COMPLEX_TYPE.sub(_name_complex, text)
    found = _FUNCTION.fullmatch(text)
    if found is None:
        raise _refuse(schema, text, "is no C signature such as 'void(const float *x, int64_t n)'")
    returned = _find_type(schema, found["returned"])
    if returned.kind not in ("void", "primitive"):
        raise _refuse(schema, found["returned"], "cannot be returned: void or an integer status")
    body = found["parameters"].strip()
    texts = [] if body in ("", "void") else body.split(",")
    return returned.cname, [_parse_parameter(schema, one.strip()) for one in texts]


def _name_complex(found: re.Match[str]) -> str:
    real = found[1] or found[2] or found[3] or ("double" if found[4] else "float")
    return f"{real} _Complex"


def _parse_parameter(schema: Schema, text: str) -> CParameter:
    found = _PARAMETER.fullmatch(text)
    if found is None or "(" in text:
        raise _refuse(schema, text, "is not a parameter with a name, such as 'const float *x'")
    kind = found["type"].strip() + ("*" if found[3] else "")
    return CParameter(kind, found["name"], _find_type(schema, kind))


def _find_type(schema: Schema, text: str) -> Any:
    try:
        return ffi.typeof(text.strip())
    except not_from_handler(ffi.error, TypeError) as error:
        raise _refuse(schema, text, f"is no C type: {error}") from None


def _refuse(schema: Schema, text: str, why: str) -> ArgumentError:
    return ArgumentError(f"{schema.qualified}: C signature: {text.strip()!r} {why}")


# ---- what the names mean -----------------------------------------------------------------------


def _reader(schema: Schema, parameter: CParameter) -> Reader:
    """Return what reads the value of a parameter from a call."""
    name = parameter.name
    parts = join_parts(schema.tensors, schema.results)
    for place, part in enumerate(parts):
        if part.name == name:
            return _tensor_reader(schema, parameter, place)
    for scalar in schema.scalars:
        if scalar.name == name:
            return _scalar_reader(schema, parameter, scalar.kind, scalar.optional)
        if scalar.kind in LIST_KINDS and name == count_name(scalar.name):
            return _count_reader(schema, parameter, scalar.name, scalar.optional)
    for place, part in enumerate(parts):
        if part.many and part.is_list and name in (count_name(part.name), part.many.value):
            return _length_reader(schema, parameter, place)
    if name == "stream":
        if parameter.type is not ffi.typeof("void *"):
            raise _refuse(schema, parameter.text, "must be void * for the stream")
        return lambda call: ffi.cast("void *", call.stream)
    if name in schema.names or name in schema.packs:
        return _extent_reader(schema, parameter)
    known = [part.name for part in (*parts, *schema.scalars)]
    lists = [part for part in parts if part.is_list]
    known += [count_name(part.name) for part in lists]
    known += [str(part.many.value) for part in lists if part.many and part.many.kind == "name"]
    extents = [*schema.names, *(pack for pack in schema.packs if pack != "...")]
    known += [*(extent for extent in extents if not extent.startswith(EACH)), "stream"]
    names = ", ".join(dict.fromkeys(known))
    raise _refuse(schema, name, f"means nothing here; names are {names}")


def _tensor_reader(schema: Schema, parameter: CParameter, place: int) -> Reader:
    part = schema.part(place)
    assert part.dtype is not None
    written = part.name in schema.written
    item = parameter.type.item if parameter.is_pointer else None
    is_const = parameter.is_const
    if part.is_list:
        item = item.item if item is not None and item.kind == "pointer" else None
        is_const = bool(_CONST.search(parameter.text.partition("*")[0]))
    if item is None:
        what = "a pointer: it is a tensor" if not part.is_list else (
            "a pointer to pointers, as in 'const float *const *': it is a list of tensors"
        )  # fmt: skip
        raise _refuse(schema, f"{parameter.text} {part.name}", f"must be {what}")
    if written and is_const:
        raise _refuse(schema, f"{parameter.text} {part.name}", "is const, but the kernel writes it")
    if not (written or is_const):
        raise _refuse(
            schema,
            f"{parameter.text} {part.name}",
            "must be const: the schema does not say that the kernel writes it",
        )
    if not all(_holds(item, dtype) for dtype in part.dtype.dtypes or (None,)):
        raise _refuse(
            schema,
            f"{parameter.text} {part.name}",
            f"does not point to {part.type_text}; void * points to any dtype",
        )

    def read(call: _Call) -> Any:
        tensor = call.tensors[place]
        return ffi.cast(parameter.type, 0 if tensor is None else tensor.data_ptr)

    def read_list(call: _Call) -> Any:
        array = ffi.new(
            "void *[]", [ffi.cast("void *", each.data_ptr) for each in call.tensors[place]]
        )
        call.kept.append(array)
        return ffi.cast(parameter.type, array)

    return read_list if part.is_list else read


def _scalar_reader(schema: Schema, parameter: CParameter, kind: str, optional: bool) -> Reader:
    name = parameter.name
    fits = _SCALARS[kind](parameter)
    if optional or not fits:
        why = "has no value for None" if optional else f"is not how C takes {kind}"
        raise _refuse(schema, f"{parameter.text} {name}", why)
    if kind == "str":
        return lambda call: ffi.from_buffer(call.scalars[name].encode() + b"\0")
    if kind == "dtype":
        return lambda call: ffi.new("DLDataType *", call.scalars[name].triple)[0]
    if kind in LIST_KINDS:
        array = f"{parameter.type.item.cname}[]"
        return lambda call: ffi.new(array, call.scalars[name])
    return lambda call: call.scalars[name]


def count_name(name: str) -> str:
    """Return the name of the parameter that says how many numbers a list has."""
    return f"{name}_count"


def _length_reader(schema: Schema, parameter: CParameter, place: int) -> Reader:
    if not is_integer(parameter.type):
        raise _refuse(schema, f"{parameter.text} {parameter.name}", "must be an integer")
    return lambda call: len(call.tensors[place])


def _count_reader(schema: Schema, parameter: CParameter, name: str, optional: bool) -> Reader:
    if optional or not is_integer(parameter.type):
        why = "has no value for None" if optional else "must be an integer"
        raise _refuse(schema, f"{parameter.text} {parameter.name}", why)
    return lambda call: len(call.scalars[name])


def _extent_reader(schema: Schema, parameter: CParameter) -> Reader:
    name = parameter.name
    if not is_integer(parameter.type):
        raise _refuse(schema, f"{parameter.text} {name}", "must be an integer: it is an extent")
    places = list(find_extent(schema, name))
    if not places:
        raise _refuse(schema, name, OUT_OF_REACH)

    def read(call: _Call) -> int:
        for place, extents in places:
            tensor = call.tensors[place]
            if isinstance(tensor, (list, tuple)):
                tensor = tensor[0] if tensor else None
            if tensor is not None:
                return math.prod(tensor.shape[extents])
        raise ArgumentError(f"{schema.qualified}: no tensor is given that determines {name}")

    return read


OUT_OF_REACH = "stands in no tensor by itself, so its extent is not at hand"


def known_extents(schema: Schema) -> list[str]:
    """Return the dimensions and packs with names that stand in a tensor by themselves."""
    names = [*schema.names, *(pack for pack in schema.packs if pack != "...")]
    return [name for name in names if any(True for _ in find_extent(schema, name))]


def find_extent(schema: Schema, name: str) -> Iterator[tuple[int, slice]]:
    """Yield where the extent stands: tensor and dimensions, counted from the end after a pack."""
    for place, part in enumerate(join_parts(schema.tensors, schema.results)):
        packs = [at for at, dim in enumerate(part.dims) if dim.kind == "pack"]
        count = len(part.dims)
        for at, dim in enumerate(part.dims):
            if dim.value != name or dim.kind not in ("name", "pack"):
                continue
            after = count - at - 1
            if dim.kind == "pack":
                yield place, slice(at, -after if after else None)
            elif packs and packs[0] < at:
                yield place, slice(-after - 1, -after if after else None)
            else:
                yield place, slice(at, at + 1)


def _check_written(schema: Schema, parameters: list[CParameter], returned: str) -> None:
    given = {returned, *(parameter.name for parameter in parameters)}
    for name in schema.written:
        if name not in given:
            raise ArgumentError(
                f"{schema.qualified}: C signature: the kernel must write {name!r}, but no "
                "parameter has this name"
            )


# ---- types -------------------------------------------------------------------------------------


def _holds(item: Any, dtype: DType | None) -> bool:
    """Return whether an array of the C type `item` holds elements of `dtype`; None: of any."""
    if item.kind == "void":
        return True
    if dtype is None or item.kind != "primitive" or ffi.sizeof(item) != dtype.itemsize:
        return False
    if dtype.is_complex:
        return _is_complex(item)
    if dtype.name in ("float32", "float64"):
        return item.cname in ("float", "double")
    if not is_integer(item) or dtype.is_packed:
        return False
    return item.cname == "char" or not dtype.is_integer or is_signed(item) == (dtype.code == 0)


def is_integer(kind: Any) -> bool:
    """Return whether a cffi type is one of C's integers."""
    return kind.kind == "primitive" and not is_float(kind) and not _is_complex(kind)


def _is_complex(kind: Any) -> bool:
    return "complex" in kind.cname.lower()  # cffi renames float _Complex


def is_float(kind: Any) -> bool:
    """Return whether a cffi type is one of C's floating-point numbers."""
    return kind.kind == "primitive" and kind.cname in ("float", "double", "long double")


def is_signed(kind: Any) -> bool:
    """Return whether an integer of this cffi type may be negative."""
    return int(ffi.cast(kind, -1)) < 0


_SCALARS: dict[str, Callable[[CParameter], bool]] = {
    "int": lambda parameter: is_integer(parameter.type),
    "bool": lambda parameter: is_integer(parameter.type),
    "float": lambda parameter: is_float(parameter.type),
    "str": lambda parameter: (
        parameter.is_pointer and parameter.type.item.cname == "char" and parameter.is_const
    ),
    "dtype": lambda parameter: parameter.type is ffi.typeof("DLDataType"),
    "int[]": lambda parameter: parameter.is_const and _points_to(parameter, "int64_t"),
    "float[]": lambda parameter: parameter.is_const and _points_to(parameter, "double"),
}


def _points_to(parameter: CParameter, kind: str) -> bool:
    return parameter.is_pointer and parameter.type.item is ffi.typeof(kind)
