"""Autocast rules: the dtype that a kernel wants within `torch.autocast`.

A rule says which dtype the floating arguments of a call are cast to: "float16", "bfloat16" or
"float32"; that of the region, "lower_precision_fp"; or "promote", the widest that they have. The
names are those of torch's own lists. As there, float64 is left alone, and so is all that is not
float16, bfloat16 or float32. An argument whose schema takes just one of these is cast to that one.
"""

from __future__ import annotations

from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import ArgumentError, DLBridgeError
from dlbridge.kernels.schema import Parameter, Schema, short_name
from dlbridge.text import did_you_mean

CAST = ("float16", "bfloat16", "float32")  # what autocast casts, and casts to
LOWER, PROMOTE = "lower_precision_fp", "promote"
CHOICES = (*CAST, LOWER, PROMOTE)

# Which dtypes a rule may cast to.
_TARGETS = {LOWER: ("float16", "bfloat16"), PROMOTE: CAST, **{name: (name,) for name in CAST}}


def read_rule(rule: object) -> str | None:
    """Return a rule as `wrap` was given it: one of `CHOICES`; a dtype may be any framework's.

    Raises:
        ArgumentError: it is not one of these.
    """
    if rule is None or (isinstance(rule, str) and rule in (LOWER, PROMOTE)):
        return rule
    nearest = ""
    try:
        name = DType(rule).name
    except DLBridgeError:
        name = ""
        nearest = did_you_mean(rule, CHOICES) if isinstance(rule, str) else ""
    if name not in CAST:
        allowed = ", ".join(map(repr, CHOICES[:-1]))
        raise ArgumentError(
            f"wrap: autocast must be {allowed} or {CHOICES[-1]!r}, got {rule!r}{nearest}"
        )
    return name


def accepted(schema: Schema, part: Parameter) -> tuple[str, ...]:
    """Return those of the dtypes that autocast casts to which an argument may be cast."""
    if part.dtype is None or any(name == part.dtype.variable for _, name in schema.typed):
        return ()  # no tensor, or one whose dtype another argument says
    return tuple([name for name in CAST if part.dtype.accepts(as_dtype(name))])


def check_rule(schema: Schema, rule: str) -> None:
    """Refuse a rule that would cast to what the kernel does not take.

    Raises:
        ArgumentError: an argument of several dtypes lacks one of the rule, or none has it.
    """
    targets = _TARGETS[rule]
    wanted = " and ".join(short_name(as_dtype(name)) for name in targets)
    served = False
    for part in schema.tensors:
        taken = accepted(schema, part)
        missing = [name for name in targets if name not in taken]
        served = served or not missing
        if len(taken) > 1 and missing:
            lacks = " and ".join(short_name(as_dtype(name)) for name in missing)
            raise ArgumentError(
                f"wrap: {schema.qualified}: autocast={rule!r} casts arguments to {wanted}, and "
                f"{part.name!r} of {part.dtype} does not take {lacks}; add it to the schema, or "
                f"choose another rule{_advice(rule, taken)}"
            )
    if not served:
        raise ArgumentError(
            f"wrap: {schema.qualified}: autocast={rule!r} casts arguments to {wanted}, which no "
            "argument takes"
        )


def _advice(rule: str, taken: tuple[str, ...]) -> str:
    found = [name for name in taken if name in _TARGETS[rule]]
    return f": {found[0]!r} always casts to that" if found and rule == LOWER else ""
