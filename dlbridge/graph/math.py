"""`tf.math`: element-wise functions, comparisons, logic and reductions under their common name."""

from dlbridge.graph.ops.arithmetic.clipping import *
from dlbridge.graph.ops.arithmetic.complex import *
from dlbridge.graph.ops.arithmetic.division import *
from dlbridge.graph.ops.arithmetic.functions import *
from dlbridge.graph.ops.logic.functions import *
from dlbridge.graph.ops.reduce.functions import *
from dlbridge.graph.ops.reduce.running import *
from dlbridge.graph.ops.segments.functions import *
from dlbridge.graph.ops.unary.conversions import *
from dlbridge.graph.ops.unary.functions import *
