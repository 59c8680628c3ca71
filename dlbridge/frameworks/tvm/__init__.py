"""TVM and tvm-ffi: all that is special about it."""
