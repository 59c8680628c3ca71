"""`tf.strings`: operations on strings, under their newer names."""

from dlbridge.graph.functions.array_checks import as_string as as_string
from dlbridge.graph.functions.array_checks import string_join as join
from dlbridge.graph.functions.array_partition import string_to_number as to_number

__all__ = ["as_string", "join", "to_number"]
