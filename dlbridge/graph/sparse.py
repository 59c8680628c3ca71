"""`tf.sparse`: functions on sparse tensors, under their names without the prefix."""

from dlbridge.graph.ops.sparse import sparse_add as add
from dlbridge.graph.ops.sparse import sparse_placeholder as placeholder
from dlbridge.graph.ops.sparse import sparse_reorder as reorder
from dlbridge.graph.ops.sparse import sparse_reshape as reshape
from dlbridge.graph.ops.sparse import sparse_tensor_dense_matmul as matmul
from dlbridge.graph.ops.sparse import sparse_tensor_dense_matmul as sparse_dense_matmul
from dlbridge.graph.ops.sparse import sparse_tensor_to_dense as to_dense
from dlbridge.graph.ops.sparse_tensor import SparseTensor as SparseTensor

__all__ = [
    "SparseTensor",
    "add",
    "matmul",
    "placeholder",
    "reorder",
    "reshape",
    "sparse_dense_matmul",
    "to_dense",
]
