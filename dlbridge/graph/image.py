"""`tf.image`: functions for images."""

from dlbridge.graph.ops.images import ResizeMethod as ResizeMethod
from dlbridge.graph.ops.images import crop_and_resize as crop_and_resize
from dlbridge.graph.ops.images import resize as resize
from dlbridge.graph.ops.images import resize_bilinear as resize_bilinear
from dlbridge.graph.ops.images import resize_images as resize_images
from dlbridge.graph.ops.images import resize_nearest_neighbor as resize_nearest_neighbor
