"""Which rules the frameworks break; `test_conformance.py` runs `check` against it."""

from __future__ import annotations

# What frameworks break, by versions: peer -> rules. "!" is a crash; the numbers are the lines of
# docs/peers.md, where what is new here has its line as well.
BROKEN: dict[tuple[str, str, str, str], str] = {
    ("numpy", "2.4", "producer", "numpy:array"): "",
    ("numpy", "2.4", "consumer", "numpy:from_dlpack"): "null_data_refused null_shape_refused!",
    ("torch", "2.13", "producer", "torch:tensor"): (
        "copy_true_is_marked device_number_is_not_ignored refusals_are_buffer_errors"  # 18, 17
    ),
    ("torch", "2.13", "consumer", "torch:from_dlpack"): (
        "deleter_after_refusal honours_negative_strides! negative_ndim_refused! null_data_refused "
        "null_shape_refused! overflowing_shape_refused! read_only_is_honoured"  # 36, 1, 6, 7
    ),
    ("jax", "0.10", "producer", "jax.numpy:array"): (
        "flag_read_only refusals_are_buffer_errors versioned_on_request"
    ),
    ("jax", "0.10", "consumer", "jax.numpy:from_dlpack"): (
        "asks_for_versions capsule_tells_the_device copy_true_copies dtype_is_kept "
        "null_data_refused null_deleter! null_shape_refused!"  # 10, 11, 4
    ),
    ("tensorflow-cpu", "2.21", "producer", "tensorflow:constant"): (
        "flag_read_only own_device_accepted refusals_are_buffer_errors text_refused! "
        "versioned_on_request"
    ),
    (
        "tensorflow-cpu",
        "2.21",
        "consumer",
        "tensorflow:(lambda x: experimental.dlpack.from_dlpack(x.__dlpack__()))",
    ): (
        "asks_for_versions deleter_after_refusal honours_lanes negative_extent_refused! "
        "null_data_refused null_shape_refused! overflowing_shape_refused! takes_any_alignment! "
        "zero_lanes_refused"  # 20, 36, 12, 3, 2
    ),
    ("mlx", "0.32", "consumer", "mlx.core:from_dlpack"): (
        "asks_for_versions capsule_is_renamed dtype_is_kept errors_pass memory_is_shared "
        "negative_extent_refused! null_data_refused! null_shape_refused! refusals_are_final"
        # 20, 37, 11, 27, 31, 6
    ),
    ("mlx", "0.32", "producer", "mlx.core:array"): (
        "byte_offset_is_zero stream_on_cpu_refused versioned_on_request"
    ),
    ("pyarrow", "26.", "producer", 'pyarrow:(lambda: array([0, 1, 2], "float32"))'): "",
    ("pyarrow", "26.", "consumer", "pyarrow:Tensor.from_dlpack"): (
        "null_data_refused takes_legacy takes_old_producers"  # 14, 19
    ),
    ("apache-tvm", "0.27", "producer", "tvm.runtime:tensor"): (
        "copy_true device_number_is_not_ignored legacy_for_old_versions "
        "other_device_is_not_ignored stream_on_cpu_refused"
    ),
    ("apache-tvm", "0.27", "consumer", "tvm.runtime:from_dlpack"): (
        "asks_for_versions negative_extent_refused null_data_refused null_shape_refused! "
        "odd_bits_refused overflowing_shape_refused zero_lanes_refused"  # 6, 12, 33
    ),
    ("apache-tvm-ffi", "0.1.", "producer", "tvm_ffi:from_dlpack"): (
        "copy_true device_number_is_not_ignored dtype_agrees legacy_for_old_versions "
        "other_device_is_not_ignored stream_on_cpu_refused"  # 17, 28
    ),
    ("apache-tvm-ffi", "0.1.", "consumer", "tvm_ffi:from_dlpack"): (
        "asks_for_versions negative_extent_refused negative_ndim_refused null_data_refused "
        "null_shape_refused! odd_bits_refused overflowing_shape_refused zero_lanes_refused"
    ),
}
