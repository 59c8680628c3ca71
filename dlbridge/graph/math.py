"""`tf.math`: element-wise functions, comparisons, logic and reductions under their common name."""

from dlbridge.graph.ops.arithmetic import *
from dlbridge.graph.ops.array import invert_permutation as invert_permutation
from dlbridge.graph.ops.indexing import Unique as Unique
from dlbridge.graph.ops.indexing import UniqueWithCounts as UniqueWithCounts
from dlbridge.graph.ops.indexing import unique as unique
from dlbridge.graph.ops.indexing import unique_with_counts as unique_with_counts
from dlbridge.graph.ops.logic import *
from dlbridge.graph.ops.nn import in_top_k as in_top_k
from dlbridge.graph.ops.nn import log_sigmoid as log_sigmoid
from dlbridge.graph.ops.nn import log_softmax as log_softmax
from dlbridge.graph.ops.nn import softmax as softmax
from dlbridge.graph.ops.nn import softplus as softplus
from dlbridge.graph.ops.nn import softsign as softsign
from dlbridge.graph.ops.nn import zero_fraction as zero_fraction
from dlbridge.graph.ops.normalization import l2_normalize as l2_normalize
from dlbridge.graph.ops.reduce import *
from dlbridge.graph.ops.reduce import top_k as top_k
from dlbridge.graph.ops.unary import *
