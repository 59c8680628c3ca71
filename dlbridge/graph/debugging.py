"""`tf.debugging`: checks while a graph runs, under their newer names."""

from dlbridge.graph.ops.assertions import *
from dlbridge.graph.ops.checks import Assert as Assert
from dlbridge.graph.ops.checks import check_numerics as check_numerics
