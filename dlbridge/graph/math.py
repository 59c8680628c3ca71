"""`tf.math`: element-wise functions, comparisons, logic and reductions under their common name."""

from dlbridge.graph.ops.arithmetic import *
from dlbridge.graph.ops.indexing import Unique as Unique
from dlbridge.graph.ops.indexing import UniqueWithCounts as UniqueWithCounts
from dlbridge.graph.ops.indexing import unique as unique
from dlbridge.graph.ops.indexing import unique_with_counts as unique_with_counts
from dlbridge.graph.ops.logic import *
from dlbridge.graph.ops.reduce import *
from dlbridge.graph.ops.unary import *
