"""TensorFlow: all that is special about it."""
