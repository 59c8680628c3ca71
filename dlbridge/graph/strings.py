"""`tf.strings`: operations on strings, under their newer names."""

from dlbridge.graph.ops.strings import as_string as as_string
from dlbridge.graph.ops.strings import string_join as join
from dlbridge.graph.ops.strings import string_to_number as to_number

__all__ = ["as_string", "join", "to_number"]
