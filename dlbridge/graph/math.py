"""`tf.math`: element-wise functions, comparisons, logic and reductions under their common name."""

from dlbridge.graph.ops.arithmetic.clipping import *
from dlbridge.graph.ops.arithmetic.functions import *
from dlbridge.graph.ops.logic.functions import *
from dlbridge.graph.ops.reduce.functions import *
from dlbridge.graph.ops.scan.functions import *
from dlbridge.graph.ops.segments.functions import *
from dlbridge.graph.ops.sets.functions import Unique as Unique
from dlbridge.graph.ops.sets.functions import UniqueWithCounts as UniqueWithCounts
from dlbridge.graph.ops.sets.functions import unique as unique
from dlbridge.graph.ops.sets.functions import unique_with_counts as unique_with_counts
from dlbridge.graph.ops.unary.functions import *
