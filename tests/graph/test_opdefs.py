"""Every OpDef is the one of TensorFlow's own registry; the notation; attributes are checked."""

from __future__ import annotations

from typing import Any

import pytest

from dlbridge.graph.core import opdef
from dlbridge.proto import messages

OURS = "DLBridge>"  # op types that TensorFlow does not have


@pytest.fixture(scope="module")
def registry(framework) -> Any:
    framework("tensorflow")
    from tensorflow.python.framework import op_def_registry

    return op_def_registry


def described(message: Any) -> Any:
    """Return an OpDef message without what only readers of documentation need."""
    message.ClearField("summary")
    message.ClearField("description")
    message.ClearField("deprecation")
    for part in (*message.input_arg, *message.output_arg, *message.attr):
        part.ClearField("description")
    for part in (*message.input_arg, *message.output_arg):
        part.ClearField("handle_data")
        part.ClearField("experimental_full_type")
    for attribute in message.attr:
        if attribute.HasField("allowed_values"):  # a set, written in any order
            allowed = attribute.allowed_values.list
            types, words = sorted(allowed.type), sorted(allowed.s)
            del allowed.type[:]
            del allowed.s[:]
            allowed.type.extend(types)
            allowed.s.extend(words)
    return message


@pytest.mark.parametrize("name", opdef.names())
def test_an_op_def_is_tensorflows(name: str, registry: Any) -> None:
    """Graphs go both ways only if both sides mean the same by an op type."""
    if name.startswith(OURS):
        pytest.skip("an op type of ours")
    theirs = registry.get(name)
    assert theirs is not None, f"TensorFlow has no op type {name}"
    theirs = described(messages.OpDef.FromString(theirs.SerializeToString()))
    ours = messages.OpDef()
    ours.CopyFrom(opdef.op_def(name).to_proto())
    assert str(described(ours)) == str(theirs)
