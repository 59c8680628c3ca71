"""`tf.debugging`: checks while a graph runs, under their newer names."""

from dlbridge.graph.functions.array_assertions import *
from dlbridge.graph.functions.array_checks import Assert as Assert
from dlbridge.graph.functions.array_checks import check_numerics as check_numerics
