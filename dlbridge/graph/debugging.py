"""`tf.debugging`: checks while a graph runs, under their newer names."""

from dlbridge.graph.ops.checks.assertions import *
from dlbridge.graph.ops.checks.functions import Assert as Assert
from dlbridge.graph.ops.checks.functions import check_numerics as check_numerics
