"""The messages: GraphDef, NodeDef, AttrValue, TensorProto and their parts.

`messages.GraphDef` and the others are classes of the `protobuf` library, which is imported on first
use. They come from our own `.proto` files in a separate descriptor pool, so they never conflict
with TensorFlow's messages, which have the same fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlbridge import registry
from dlbridge.errors import FrameworkMissingError, UnsupportedTypeError, WireError
from dlbridge.signals import not_from_handler

PACKAGE = "dlbridge"
OLDEST = 5  # the first release whose message classes we can make without generated code

_lock = registry.lock()


def __getattr__(name: str) -> Any:
    """Load all message classes when the first one is asked for."""
    if name.startswith("_") or not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        if "GraphDef" not in globals():  # once: a second class would not be the first
            globals().update(registry.load(_load))
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no message {name!r}")
    return globals()[name]


def _load() -> dict[str, Any]:
    """Return the class of every message that is not part of another."""
    try:
        import google.protobuf
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except not_from_handler(ImportError) as error:
        raise FrameworkMissingError(f"graphs need protobuf ({error}); {_ADVICE}") from error
    version = google.protobuf.__version__
    if int(version.partition(".")[0]) < OLDEST:
        raise FrameworkMissingError(f"graphs need protobuf {OLDEST}, found {version}; {_ADVICE}")
    pool = descriptor_pool.DescriptorPool()
    data = Path(__file__).with_name("descriptors.bin").read_bytes()
    names = []
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
        names += [message.name for message in file.message_type]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in names
    }


_ADVICE = "pip install 'dlbridge[graph]'"


def parse(name: str, data: Any) -> Any:
    """Return a new message of the kind `name`, read from bytes.

    Raises:
        WireError: they are not such a message.
    """
    message = __getattr__(name)()
    try:
        message.ParseFromString(data)
    except not_from_handler(Exception) as error:
        # DecodeError, and what protobuf's versions raise besides
        raise WireError(f"these {len(data)} bytes are not a {name}: {error}") from error
    return message


def is_message(x: object, name: str) -> bool:
    """Return whether `x` is a message of this name, ours or TensorFlow's."""
    descriptor = getattr(x, "DESCRIPTOR", None)
    return getattr(descriptor, "name", None) == name and hasattr(x, "SerializeToString")


def require(call: str, x: object, name: str) -> None:
    """Refuse an object that is not a message of this name.

    Raises:
        UnsupportedTypeError: the text begins with `call`.
    """
    if not is_message(x, name):
        raise UnsupportedTypeError(
            f"{call}: the message {name} is required, got {type(x).__name__}"
        )
