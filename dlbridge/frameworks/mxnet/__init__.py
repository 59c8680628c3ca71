"""mxnet."""
