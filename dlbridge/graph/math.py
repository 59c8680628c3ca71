"""`tf.math`: element-wise functions, comparisons, logic and reductions under their common name."""

from dlbridge.graph.functions.math import *
from dlbridge.graph.functions.math_clipping import *
from dlbridge.graph.functions.math_complex import *
from dlbridge.graph.functions.math_conversions import *
from dlbridge.graph.functions.math_division import *
from dlbridge.graph.functions.math_logic import *
from dlbridge.graph.functions.math_reduce import *
from dlbridge.graph.functions.math_running import *
from dlbridge.graph.functions.math_segments import *
from dlbridge.graph.functions.math_unary import *
