"""`tf.debugging`: checks while a graph runs, under their newer names."""

from dlbridge.graph.ops.assertions import *
from dlbridge.graph.ops.checks import Assert as Assert
from dlbridge.graph.ops.checks import check_numerics as check_numerics
from dlbridge.graph.ops.unary import is_finite as is_finite
from dlbridge.graph.ops.unary import is_inf as is_inf
from dlbridge.graph.ops.unary import is_nan as is_nan
