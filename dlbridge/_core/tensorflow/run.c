/* One run of the op: TensorFlow's tensors as DLTensors, the kernel, its results.
 *
 * Inputs are used where they lie. An argument that the kernel changes is an output: its
 * input is copied there first, unless nobody else needs the input. Outputs are in
 * memory that TensorFlow allocates.
 */
#include <string.h>

#include "tensorflow/tensorflow.h"
#include "layout/layout.h"

enum { DIMS_ROOM = 1024 }; /* shapes and strides of all tensors of a call */

typedef struct {
    dlb_tf_handle context, status;
    const dlb_tf_node *node;
    const dlb_kernel *kernel;
    int8_t inputs[DLB_MAX_TENSORS];    /* the op's input of each of the kernel's */
    int32_t input_count, output_count; /* those that were dealt with */
    dlb_tf_handle held[DLB_MAX_TENSORS];
    int32_t held_count, dim_count;
    int64_t dims[DIMS_ROOM];
    dlb_frame frame;
} tf_call;

static _Thread_local dlb_error *listener;

dlb_error *dlb_tf_listen(dlb_error *error) {
    dlb_error *before = listener;
    listener = error;
    return before;
}

/* ---- failure ---- */

/* The status of TensorFlow speaks for itself. */
static int fail_by_status(tf_call *call) {
    return dlb_frame_fail(&call->frame, DLB_ERROR_KERNEL, "%s: %s", call->node->name,
                          dlb_tf.Message(call->status));
}

static int status_ok(const tf_call *call) {
    return dlb_tf.GetCode(call->status) == DLB_TF_OK;
}

static void report_failure(tf_call *call, int missing) {
    static const int codes[] = {
        [DLB_ERROR_TYPE] = DLB_TF_INVALID_ARGUMENT,
        [DLB_ERROR_VALUE] = DLB_TF_INVALID_ARGUMENT,
        [DLB_ERROR_BUFFER] = DLB_TF_INVALID_ARGUMENT,
        [DLB_ERROR_KERNEL] = DLB_TF_INTERNAL,
        [DLB_ERROR_PYTHON] = DLB_TF_UNKNOWN,
        [DLB_ERROR_MEMORY] = DLB_TF_RESOURCE_EXHAUSTED,
    };
    dlb_error *error = &call->frame.error;
    int code = missing ? DLB_TF_NOT_FOUND : codes[error->kind];
    dlb_tf.SetStatus(call->status, code, error->text);
    dlb_tf.OpKernelContext_Failure(call->context, call->status);
    if (listener != NULL && listener->kind == DLB_ERROR_NONE)
        *listener = *error; /* with the exception's reference */
    else
        dlb_error_clear(error);
}

static int fail_stale(tf_call *call) {
    return dlb_frame_fail(&call->frame, DLB_ERROR_VALUE,
                          "%s: this graph was made for another schema of the kernel; "
                          "trace it anew",
                          call->node->name);
}

/* ---- tensors ---- */

static int describe_tensor(tf_call *call, dlb_tf_handle handle, DLTensor *tensor) {
    int number = dlb_tf.TensorType(handle);
    int32_t ndim = dlb_tf.NumDims(handle);
    if (call->dim_count + 2 * ndim > DIMS_ROOM)
        return dlb_frame_fail(&call->frame, DLB_ERROR_VALUE,
                              "%s: the arguments have too many dimensions",
                              call->node->name);
    int64_t *shape = call->dims + call->dim_count;
    call->dim_count += 2 * ndim;
    for (int32_t i = 0; i < ndim; i++)
        shape[i] = dlb_tf.Dim(handle, i);
    dlb_row_major_strides(ndim, shape, shape + ndim);
    *tensor = (DLTensor){
        .data = dlb_tf.TensorData(handle),
        .device = {kDLCPU, 0},
        .ndim = ndim,
        .dtype = number < DLB_TF_DTYPES ? dlb_tf_dtypes[number] : (DLDataType){0, 0, 0},
        .shape = shape,
        .strides = shape + ndim,
    };
    if (tensor->dtype.bits == 0)
        return dlb_frame_fail(&call->frame, DLB_ERROR_TYPE,
                              "%s: kernels cannot take TensorFlow's dtype number %d",
                              call->node->name, number);
    return 0;
}

static bool is_mutated(const dlb_kernel *kernel, int32_t index, int32_t count) {
    return (kernel->written >> index & 1) ||
           (kernel->writes_last && index == count - 1);
}

static int take_input(tf_call *call, int32_t index, int input, bool mutated) {
    dlb_tf_handle handle = NULL;
    dlb_tf.GetInput(call->context, input, &handle, call->status);
    if (!status_ok(call))
        return fail_by_status(call);
    call->inputs[index] = (int8_t)input;
    int failed = describe_tensor(call, handle, &call->frame.tensors[index]);
    if (mutated) /* else it would count as needed by somebody; the context keeps it */
        dlb_tf.DeleteTensor(handle);
    else
        call->held[call->held_count++] = handle;
    return failed;
}

static int take_inputs(tf_call *call) {
    const dlb_signature *signature = call->kernel->signature;
    int32_t count = call->node->input_count;
    int next = 0;
    if (signature != NULL && signature->input_count != count)
        return fail_stale(call);
    for (int32_t i = 0; i < count; i++) {
        bool mutated = is_mutated(call->kernel, i, count);
        call->frame.flags[i] = mutated ? 0 : DLPACK_FLAG_BITMASK_READ_ONLY;
        if (call->node->absent >> i & 1)
            call->frame.tensors[i] = (DLTensor){.ndim = -1, .device = {kDLCPU, 0}};
        else if (take_input(call, i, next++, mutated) < 0)
            return -1;
    }
    call->frame.input_count = call->frame.tensor_count = count;
    call->input_count = next;
    return 0;
}

static int take_scalar(tf_call *call, int input, dlb_scalar *scalar) {
    dlb_tf_handle handle = NULL;
    DLTensor tensor;
    dlb_tf.GetInput(call->context, input, &handle, call->status);
    if (!status_ok(call))
        return fail_by_status(call);
    int failed = describe_tensor(call, handle, &tensor);
    if (failed == 0 && tensor.ndim != 0)
        failed = fail_stale(call);
    if (failed == 0 && tensor.dtype.code == kDLFloat) {
        scalar->kind = DLB_FLOAT;
        memcpy(&scalar->value.f, tensor.data, sizeof scalar->value.f);
    } else if (failed == 0) {
        scalar->kind = DLB_INT;
        memcpy(&scalar->value.i, tensor.data, sizeof scalar->value.i);
    }
    dlb_tf.DeleteTensor(handle);
    return failed;
}

static int take_scalars(tf_call *call) {
    const dlb_tf_node *node = call->node;
    const dlb_signature *signature = call->kernel->signature;
    if (signature != NULL && signature->scalar_count != node->scalar_count)
        return fail_stale(call);
    for (int32_t i = 0; i < node->scalar_count; i++) {
        call->frame.scalars[i] = node->scalars[i];
        if ((node->traced >> i & 1) &&
            take_scalar(call, call->input_count++, &call->frame.scalars[i]) < 0)
            return -1;
    }
    call->frame.scalar_count = node->scalar_count;
    return 0;
}

/* ---- results ---- */

/* Let the kernel change an output that starts as the input's value. */
static int prepare_mutated(tf_call *call, int32_t index) {
    DLTensor *tensor = &call->frame.tensors[index];
    const void *value = tensor->data;
    int input = call->inputs[index], forwarded = -1;
    size_t bytes =
        (size_t)dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor));
    if (call->output_count >= call->node->output_count)
        return fail_stale(call);
    dlb_tf_handle handle = dlb_tf.ForwardInputOrAllocateOutput(
        call->context, &input, 1, call->output_count++, tensor->shape, tensor->ndim,
        &forwarded, call->status);
    if (!status_ok(call))
        return fail_by_status(call);
    call->held[call->held_count++] = handle;
    tensor->data = dlb_tf.TensorData(handle);
    if (bytes > 0 && tensor->data != value)
        memcpy(tensor->data, value, bytes);
    return 0;
}

static int allocate_result(tf_call *call, int result) {
    DLTensor *tensor = &call->frame.tensors[call->frame.tensor_count++];
    int output = call->output_count++;
    int64_t shape[DLB_MAX_NDIM];
    DLDataType dtype;
    int32_t ndim = dlb_signature_result(call->kernel->signature, result,
                                        &call->frame.bindings, &dtype, shape);
    if (output >= call->node->output_count)
        return fail_stale(call);
    int number = call->node->outputs[output];
    if (ndim < 0 && call->frame.input_count > 0) /* Python finds out why */
        return dlb_frame_refuse(call->kernel, &call->frame, 0, "mismatch", -1);
    if (ndim < 0 || dlb_dtype_key(dlb_tf_dtypes[number]) != dlb_dtype_key(dtype))
        return fail_stale(call);
    int64_t count = 1;
    for (int32_t i = 0; i < ndim; i++)
        count *= shape[i];
    dlb_tf_handle handle =
        dlb_tf.AllocateOutput(call->context, output, number, shape, ndim,
                              (size_t)dlb_packed_bytes(dtype, 0, count), call->status);
    if (!status_ok(call))
        return fail_by_status(call);
    call->held[call->held_count++] = handle;
    call->frame.flags[call->frame.tensor_count - 1] = 0;
    return describe_tensor(call, handle, tensor);
}

/* Outputs are the results, then what the kernel changes. */
static int prepare_outputs(tf_call *call) {
    const dlb_signature *signature = call->kernel->signature;
    int32_t inputs = call->frame.input_count;
    int32_t results = signature != NULL ? signature->result_count : 0;
    if (inputs + results > DLB_MAX_TENSORS)
        return fail_stale(call);
    for (int32_t i = 0; i < results; i++)
        if (allocate_result(call, i) < 0)
            return -1;
    for (int32_t i = 0; i < inputs; i++)
        if (is_mutated(call->kernel, i, inputs) && call->frame.tensors[i].ndim >= 0 &&
            prepare_mutated(call, i) < 0)
            return -1;
    return call->output_count == call->node->output_count ? 0 : fail_stale(call);
}

/* ---- the run ---- */

/* What a Python kernel does inside is not for the listener of this op. */
static int run_unheard(tf_call *call) {
    dlb_error *before = dlb_tf_listen(NULL);
    int failed = dlb_frame_run(call->kernel, &call->frame);
    dlb_tf_listen(before);
    return failed;
}

static dlb_entry *find_entry(dlb_tf_node *node) {
    dlb_entry *entry = atomic_load_explicit(&node->entry, memory_order_relaxed);
    if (entry == NULL) {
        entry = dlb_registry_entry(node->name, strlen(node->name));
        atomic_store_explicit(&node->entry, entry, memory_order_relaxed);
    }
    return entry;
}

void dlb_tf_run(void *state, dlb_tf_handle context) {
    dlb_tf_node *node = state;
    tf_call call; /* large: each part is set when it is used */
    call.context = context;
    call.node = node;
    call.output_count = call.held_count = call.dim_count = 0;
    call.status = dlb_tf.NewStatus();
    dlb_frame_start(&call.frame, "tf.Tensor");
    dlb_entry *entry = find_entry(node);
    call.kernel = entry != NULL ? dlb_entry_pin(entry) : NULL;
    if (call.kernel == NULL) {
        dlb_frame_fail(&call.frame, DLB_ERROR_KERNEL,
                       "%s: no kernel of this name is wrapped in this process; call "
                       "dlbridge.wrap with this name first",
                       node->name);
        report_failure(&call, 1);
    } else {
        if (take_inputs(&call) < 0 || take_scalars(&call) < 0 ||
            dlb_frame_bind(call.kernel, &call.frame) < 0 ||
            prepare_outputs(&call) < 0 || run_unheard(&call) < 0)
            report_failure(&call, 0);
        dlb_entry_unpin(entry, call.kernel);
    }
    for (int32_t i = 0; i < call.held_count; i++)
        dlb_tf.DeleteTensor(call.held[i]);
    dlb_tf.DeleteStatus(call.status);
}
