"""Names of TensorFlow 1.x that graphs of dlbridge do not have, and how each is refused.

Code for TensorFlow meets them first: the refusal says that the name is TensorFlow's, rather than
misspelt, and where the limits of graphs are listed. A name in no table here gets the nearest one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dlbridge.text import did_you_mean

# By what they are for, whatever module of TensorFlow they are in.
PURPOSES = {
    "gradients": """
        AggregationMethod GradientTape NoGradient NotDifferentiable RegisterGradient
        UnconnectedGradients custom_gradient grad_pass_through gradients hessians
        no_gradient nondifferentiable_batch_function recompute_grad
    """,
    "control flow": """
        CriticalSection TensorArray TensorArraySpec case cond control_flow_v2_enabled
        disable_control_flow_v2 enable_control_flow_v2 foldl foldr map_fn scan switch_case
        vectorized_map while_loop
    """,
    "queues but FIFOQueue": """
        ConditionalAccumulator ConditionalAccumulatorBase PaddingFIFOQueue PriorityQueue
        QueueBase RandomShuffleQueue SparseConditionalAccumulator queue
    """,
    "readers of files": """
        FixedLenFeature FixedLenSequenceFeature FixedLengthRecordReader IdentityReader
        LMDBReader ReaderBase SparseFeature TFRecordReader TextLineReader VarLenFeature
        WholeFileReader data decode_csv gfile matching_files parse_example
        parse_sequence_example parse_single_example parse_single_sequence_example python_io
        read_file saved_model write_file
    """,
    "layers, losses, metrics or optimisers": """
        contrib estimator feature_column keras layers losses metrics mixed_precision
    """,
    "eager execution or functions": """
        Module autograph enable_eager_execution enable_v2_behavior
        executing_eagerly_outside_functions function init_scope py_function wrap_function
    """,
    "ragged tensors": """
        RaggedFeature RaggedTensor RaggedTensorSpec ragged ragged_fill_empty_rows
        ragged_fill_empty_rows_grad
    """,
    "lookup tables": """
        initialize_all_tables lookup tables_initializer
    """,
    "Fourier transforms": """
        fft fft2d fft3d fftnd ifft ifft2d ifft3d ifftnd irfftnd rfftnd signal spectral
    """,
    "command line, logging or test modules": """
        app flags get_logger logging resource_loader sysconfig test
    """,
    "recurrent networks": """
        bidirectional_dynamic_rnn dynamic_rnn raw_rnn rnn_cell static_bidirectional_rnn
        static_rnn static_state_saving_rnn
    """,
    "summaries but FileWriter": """
        Event HistogramProto LogMessage SessionLog Summary SummaryMetadata
    """,
}
# Modules of which nearly everything is for one thing.
MODULES = {
    "train": "optimisers, checkpoints or hooks",
    "summary": "summaries but FileWriter",
}
# All others, by module; "" is `tf` itself.
OTHERS = {
    "": """
        COMPILER_VERSION CXX11_ABI_FLAG CXX_VERSION Dimension GIT_VERSION GRAPH_DEF_VERSION
        GRAPH_DEF_VERSION_MIN_CONSUMER GRAPH_DEF_VERSION_MIN_PRODUCER GraphOptions
        IndexedSlicesSpec MONOLITHIC_BUILD MetaGraphDef NameAttrList NoneTensorSpec
        OptimizerOptions OptionalSpec QUANTIZED_DTYPES SparseTensorSpec TensorInfo
        TensorSpec TypeSpec VERSION VariableAggregation VariableSynchronization
        add_check_numerics_ops approx_top_k arg_max arg_min argsort assert_integer
        assert_near assert_proper_iterable assert_rank_in assert_same_float_dtype
        assert_scalar assert_variables_initialized audio batch_scatter_update betainc
        check_pinned cholesky_solve compat config confusion_matrix container conv
        conv2d_backprop_filter_v2 conv2d_backprop_input_v2
        convert_to_tensor_or_indexed_slices convert_to_tensor_or_sparse_tensor count_up_to
        create_partitioned_variables decode_base64 decode_compressed decode_json_example
        delete_session_tensor dequantize deserialize_many_sparse diag diag_part
        dimension_at_index dimension_value disable_resource_variables
        disable_tensor_equality disable_v2_tensorshape distribute distributions dtypes
        edit_distance enable_resource_variables enable_tensor_equality enable_v2_tensorshape
        encode_base64 experimental extract_image_patches extract_volume_patches
        fake_quant_with_min_max_args fake_quant_with_min_max_args_gradient
        fake_quant_with_min_max_vars fake_quant_with_min_max_vars_gradient
        fake_quant_with_min_max_vars_per_channel
        fake_quant_with_min_max_vars_per_channel_gradient fingerprint get_session_handle
        get_session_tensor histogram_fixed_width histogram_fixed_width_bins igamma igammac
        initialize_local_variables initialize_variables is_non_decreasing is_numeric_tensor
        is_strictly_increasing is_symbolic_tensor lbeta lite load_file_system_library
        load_library load_op_library make_ndarray make_template make_tensor_proto manip
        matrix_solve_ls matrix_square_root matrix_triangular_solve mlir
        moving_average_variables nest no_regularizer op_scope orthogonal_initializer
        parse_tensor polygamma print profiler qr quantization quantize quantize_v2
        quantized_concat random_crop random_gamma random_index_shuffle random_poisson
        raw_ops reduce_join regex_replace register_tensor_conversion_function repeat
        required_space_to_batch_paddings resource_variables_enabled scatter_div scatter_max
        scatter_min scatter_mul scatter_nd_add scatter_nd_sub searchsorted self_adjoint_eig
        self_adjoint_eigvals serialize_many_sparse serialize_sparse serialize_tensor sets
        sort sparse_concat sparse_fill_empty_rows sparse_mask sparse_matmul sparse_maximum
        sparse_merge sparse_minimum sparse_reduce_max sparse_reduce_max_sparse
        sparse_reduce_sum sparse_reduce_sum_sparse sparse_reset_shape sparse_retain
        sparse_segment_mean sparse_segment_sqrt_n sparse_segment_sum sparse_slice
        sparse_softmax sparse_split sparse_to_indicator sparse_transpose string_split
        string_strip string_to_hash_bucket string_to_hash_bucket_fast
        string_to_hash_bucket_strong substr svd timestamp tpu type_spec_from_value types
        uniform_unit_scaling_initializer unsorted_segment_mean unsorted_segment_sqrt_n
        user_ops variable_creator_scope variable_op_scope verify_tensor_all_finite version
        xla zeta
    """,
    "debugging": """
        assert_all_finite assert_integer assert_near assert_proper_iterable assert_rank_in
        assert_same_float_dtype assert_scalar assert_shapes disable_check_numerics
        disable_traceback_filtering enable_check_numerics enable_traceback_filtering
        experimental get_log_device_placement is_non_decreasing is_numeric_tensor
        is_strictly_increasing is_traceback_filtering_enabled set_log_device_placement
    """,
    "errors": """
        error_code_from_exception_type exception_type_from_error_code
        raise_exception_on_not_ok_status
    """,
    "graph_util": """
        must_run_on_cpu
    """,
    "image": """
        adjust_brightness adjust_contrast adjust_gamma adjust_hue adjust_jpeg_quality
        adjust_saturation central_crop combined_non_max_suppression convert_image_dtype
        crop_to_bounding_box decode_and_crop_jpeg decode_bmp decode_gif decode_image
        decode_jpeg decode_jxl decode_png decode_webp draw_bounding_boxes encode_jpeg
        encode_png extract_glimpse extract_image_patches extract_jpeg_shape extract_patches
        flip_left_right flip_up_down generate_bounding_box_proposals grayscale_to_rgb
        hsv_to_rgb image_gradients is_jpeg non_max_suppression non_max_suppression_overlaps
        non_max_suppression_padded non_max_suppression_with_scores pad_to_bounding_box
        per_image_standardization psnr random_brightness random_contrast random_crop
        random_flip_left_right random_flip_up_down random_hue random_jpeg_quality
        random_saturation resize_area resize_bicubic resize_image_with_crop_or_pad
        resize_image_with_pad resize_with_crop_or_pad rgb_to_grayscale rgb_to_hsv rgb_to_yiq
        rgb_to_yuv rot90 sample_distorted_bounding_box sobel_edges ssim ssim_multiscale
        total_variation transpose transpose_image yiq_to_rgb yuv_to_rgb
    """,
    "initializers": """
        orthogonal uniform_unit_scaling
    """,
    "io": """
        TFRecordCompressionType TFRecordOptions TFRecordWriter decode_and_crop_jpeg
        decode_base64 decode_bmp decode_compressed decode_gif decode_image decode_jpeg
        decode_json_example decode_jxl decode_png decode_proto decode_webp
        deserialize_many_sparse encode_base64 encode_jpeg encode_png encode_proto
        extract_jpeg_shape is_jpeg match_filenames_once parse_tensor serialize_many_sparse
        serialize_sparse serialize_tensor tf_record_iterator
    """,
    "linalg": """
        LinearOperator LinearOperatorAdjoint LinearOperatorBlockDiag
        LinearOperatorBlockLowerTriangular LinearOperatorCirculant LinearOperatorCirculant2D
        LinearOperatorCirculant3D LinearOperatorComposition LinearOperatorDiag
        LinearOperatorFullMatrix LinearOperatorHouseholder LinearOperatorIdentity
        LinearOperatorInversion LinearOperatorKronecker LinearOperatorLowRankUpdate
        LinearOperatorLowerTriangular LinearOperatorPermutation LinearOperatorScaledIdentity
        LinearOperatorToeplitz LinearOperatorTridiag LinearOperatorZeros adjoint
        cholesky_solve eigh eigh_tridiagonal eigvalsh experimental expm logdet logm lstsq lu
        lu_matrix_inverse lu_reconstruct lu_solve matrix_rank normalize pinv qr slogdet
        sqrtm svd tensor_diag tensor_diag_part triangular_solve tridiagonal_matmul
        tridiagonal_solve
    """,
    "math": """
        approx_max_k approx_min_k bessel_i0 bessel_i0e bessel_i1 bessel_i1e betainc
        confusion_matrix erfcinv igamma igammac is_non_decreasing is_strictly_increasing
        lbeta nextafter polygamma reciprocal_no_nan sobol_sample special
        unsorted_segment_mean unsorted_segment_sqrt_n zeta
    """,
    "nn": """
        all_candidate_sampler approx_max_k approx_min_k atrous_conv2d_transpose avg_pool1d
        avg_pool_v2 collapse_repeated compute_accidental_hits compute_average_loss
        conv1d_transpose conv2d_backprop_filter conv3d_backprop_filter
        conv3d_backprop_filter_v2 conv3d_transpose conv_transpose ctc_beam_search_decoder
        ctc_beam_search_decoder_v2 ctc_greedy_decoder ctc_loss ctc_loss_v2 ctc_unique_labels
        depthwise_conv2d_backprop_filter depthwise_conv2d_backprop_input
        depthwise_conv2d_native_backprop_filter depthwise_conv2d_native_backprop_input
        dilation2d embedding_lookup_sparse erosion2d experimental
        fixed_unigram_candidate_sampler fractional_avg_pool fractional_max_pool
        learned_unigram_candidate_sampler log_poisson_loss log_uniform_candidate_sampler
        max_pool1d max_pool_v2 nce_loss normalize_moments pool quantized_avg_pool
        quantized_conv2d quantized_max_pool quantized_relu_x safe_embedding_lookup_sparse
        sampled_softmax_loss scale_regularization_loss sufficient_statistics
        uniform_candidate_sampler weighted_moments with_space_to_batch
    """,
    "random": """
        Algorithm Generator all_candidate_sampler create_rng_state experimental
        fixed_unigram_candidate_sampler fold_in gamma get_global_generator
        learned_unigram_candidate_sampler log_uniform_candidate_sampler poisson
        set_global_generator split stateless_binomial stateless_categorical stateless_gamma
        stateless_multinomial stateless_normal stateless_parameterized_truncated_normal
        stateless_poisson stateless_truncated_normal stateless_uniform
        uniform_candidate_sampler
    """,
    "sparse": """
        bincount concat cross cross_hashed expand_dims eye fill_empty_rows from_dense mask
        maximum merge minimum reduce_max reduce_max_sparse reduce_sum reduce_sum_sparse
        reset_shape retain segment_mean segment_sqrt_n segment_sum slice softmax split
        to_indicator transpose
    """,
    "strings": """
        bytes_split format length lower ngrams reduce_join regex_full_match regex_replace
        split strip substr to_hash_bucket to_hash_bucket_fast to_hash_bucket_strong
        unicode_decode unicode_decode_with_offsets unicode_encode unicode_script
        unicode_split unicode_split_with_offsets unicode_transcode unsorted_segment_join
        upper
    """,
    "train": """
        AdadeltaOptimizer AdagradDAOptimizer AdagradOptimizer AdamOptimizer BytesList
        Checkpoint CheckpointManager CheckpointOptions CheckpointSaverHook
        CheckpointSaverListener ChiefSessionCreator ClusterDef Coordinator Example
        ExponentialMovingAverage Feature FeatureList FeatureLists Features FeedFnHook
        FinalOpsHook FloatList FtrlOptimizer GlobalStepWaiterHook GradientDescentOptimizer
        Int64List JobDef LoggingTensorHook LooperThread MomentumOptimizer MonitoredSession
        MonitoredTrainingSession NanLossDuringTrainingError NanTensorHook
        NewCheckpointReader Optimizer ProfilerHook ProximalAdagradOptimizer
        ProximalGradientDescentOptimizer QueueRunner RMSPropOptimizer Saver SaverDef
        Scaffold SecondOrStepTimer SequenceExample ServerDef SessionCreator SessionManager
        SessionRunArgs SessionRunContext SessionRunHook SessionRunValues
        SingularMonitoredSession StepCounterHook StopAtStepHook SummarySaverHook Supervisor
        SyncReplicasOptimizer VocabInfo WorkerSessionCreator add_queue_runner
        assert_global_step basic_train_loop batch batch_join checkpoint_exists
        checkpoints_iterator cosine_decay cosine_decay_restarts create_global_step
        do_quantize_training_on_graphdef experimental exponential_decay export_meta_graph
        generate_checkpoint_state_proto get_checkpoint_mtimes get_checkpoint_state
        get_global_step get_or_create_global_step global_step import_meta_graph
        init_from_checkpoint input_producer inverse_time_decay latest_checkpoint
        limit_epochs linear_cosine_decay list_variables load_checkpoint load_variable
        match_filenames_once maybe_batch maybe_batch_join maybe_shuffle_batch
        maybe_shuffle_batch_join natural_exp_decay noisy_linear_cosine_decay
        piecewise_constant piecewise_constant_decay polynomial_decay queue_runner
        range_input_producer remove_checkpoint sdca_fprint sdca_optimizer sdca_shrink_l1
        shuffle_batch shuffle_batch_join slice_input_producer start_queue_runners
        string_input_producer summary_iterator update_checkpoint_state warm_start
    """,
    "summary": """
        Event FileWriterCache SessionLog Summary SummaryDescription TaggedRunMetadata
        all_v2_summary_ops audio get_summary_description histogram image initialize merge
        merge_all scalar tensor_summary text
    """,
}

_PURPOSE_OF = {name: purpose for purpose, names in PURPOSES.items() for name in names.split()}
_OTHERS = {module: frozenset(names.split()) for module, names in OTHERS.items()}


def missing(module: str, name: str, there: list[str]) -> AttributeError:
    """Return the error for a name that a module of graphs does not have.

    Args:
        module: its name without `dlbridge.graph`: "" or "nn".
        name: what was asked for.
        there: the names that the module has.
    """
    package = __name__.rpartition(".")[0]
    text = f"module {f'{package}.{module}'.rstrip('.')!r} has no attribute {name!r}"
    if name == "compat" and not module:
        text += ": dlbridge.graph itself stands for tf.compat.v1, as in import dlbridge.graph as tf"
    elif name.startswith("_"):
        pass
    elif name in _PURPOSE_OF or name in _OTHERS.get(module, ()):
        purpose = _PURPOSE_OF.get(name) or MODULES.get(module)
        text += (
            f": graphs of dlbridge have {f'no {purpose}' if purpose else 'none'}, unlike "
            'TensorFlow\'s; see "What it does not do" on the page "Graphs" of the documentation'
        )
    else:
        text += did_you_mean(name, there)
    return AttributeError(text)


def watch(module: ModuleType, name: str) -> None:
    """Let a module refuse names in this way."""

    def __getattr__(asked: str) -> Any:  # noqa: N807
        raise missing(name, asked, [each for each in vars(module) if not each.startswith("_")])

    module.__getattr__ = __getattr__  # type: ignore[method-assign]
