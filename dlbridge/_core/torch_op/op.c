/* The body of every operator: arguments off torch's stack, the kernel, results onto it.
 * Runs on any thread, without the GIL. An error leaves as a C++ exception that libtorch
 * throws for us, from the last statement: by then nothing is owned any more. */
#include "torch_op/op.h"
#include "cuda/cuda.h"
#include "layout/layout.h"

#include <string.h>

_Atomic(const dlb_torch_layout *) dlb_torch_layouts[DLB_TORCH_OPS];

typedef struct {
    dlb_frame frame;
    const dlb_kernel *kernel;
    dlb_torch_tensor tensors[DLB_MAX_TENSORS]; /* as in the frame; NULL: left out */
    dlb_torch_string strings[DLB_MAX_SCALARS];
    int string_count;
    int32_t device_type, device_index; /* torch's numbers, for the results */
    bool is_out;                       /* results are arguments, too */
} operator_call;

/* ---- arguments ---- */

static dlb_torch_value unbox(dlb_torch_value value) {
    dlb_torch_value *box = (dlb_torch_value *)(uintptr_t)value;
    dlb_torch_value inner = *box;
    if (dlb_shim.delete_boxed_value != NULL)
        dlb_shim.delete_boxed_value(box);
    else
        dlb_shim.delete_value(box);
    return inner;
}

static void take_scalar(operator_call *call, char letter, dlb_torch_value value) {
    dlb_scalar *scalar = &call->frame.scalars[call->frame.scalar_count++];
    const char *text = NULL;
    switch (letter) {
    case 'f':
        scalar->kind = DLB_FLOAT;
        memcpy(&scalar->value.f, &value, sizeof value);
        return;
    case 's':
        call->strings[call->string_count] = (dlb_torch_string)(uintptr_t)value;
        dlb_shim.string_text(call->strings[call->string_count++], &text);
        scalar->kind = DLB_STRING;
        scalar->value.s = text;
        return;
    default: /* a bool is one byte of the value */
        scalar->kind = DLB_INT;
        scalar->value.i = letter == 'b' ? (value & 0xff) != 0 : (int64_t)value;
    }
}

/* Everything on the stack is ours from here on, whatever fails later. */
static void take_argument(operator_call *call, char letter, dlb_torch_value value) {
    bool is_optional = letter < 'a', is_missing = is_optional && value == 0;
    char kind = is_optional ? (char)(letter - 'A' + 'a') : letter;
    if (is_optional && !is_missing)
        value = unbox(value);
    if (kind == 't') {
        call->tensors[call->frame.tensor_count++] =
            is_missing ? NULL : (dlb_torch_tensor)(uintptr_t)value;
    } else if (is_missing) {
        call->frame.scalars[call->frame.scalar_count++].kind = DLB_NONE;
    } else {
        take_scalar(call, kind, value);
    }
}

static int take_arguments(operator_call *call, const dlb_torch_layout *layout,
                          const dlb_torch_value *stack, uint64_t inputs) {
    uint64_t count = strlen(layout->letters), out_at = (uint64_t)layout->out_at;
    if (inputs < count || inputs - count > DLB_MAX_TENSORS)
        return dlb_frame_fail(&call->frame, DLB_ERROR_KERNEL,
                              "%s: the operator is being defined anew",
                              dlb_entry_name(layout->entry));
    uint64_t outs = inputs - count;
    for (uint64_t i = 0; i < count; i++)
        take_argument(call, layout->letters[i], stack[i < out_at ? i : i + outs]);
    call->frame.input_count = call->frame.tensor_count;
    for (uint64_t i = 0; i < outs; i++)
        take_argument(call, 't', stack[out_at + i]);
    call->is_out = outs > 0;
    return 0;
}

/* The kernel of the name may have been replaced by one of another schema. */
static int check_kernel(operator_call *call, const dlb_torch_layout *layout,
                        uint64_t outputs) {
    const dlb_signature *signature = call->kernel ? call->kernel->signature : NULL;
    dlb_frame *frame = &call->frame;
    uint64_t results =
        call->is_out ? (uint64_t)(frame->tensor_count - frame->input_count) : outputs;
    if (call->kernel == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: no kernel of this name is registered any more",
                              dlb_entry_name(layout->entry));
    bool fits = signature != NULL && signature->input_count == frame->input_count &&
                (uint64_t)signature->result_count == results &&
                signature->scalar_count == frame->scalar_count;
    for (int i = 0; fits && i < frame->scalar_count; i++) {
        bool is_string = signature->scalars[i].kind == DLB_STRING;
        fits = is_string ? frame->scalars[i].kind == DLB_STRING ||
                               frame->scalars[i].kind == DLB_NONE
                         : frame->scalars[i].kind != DLB_STRING;
        fits = fits &&
               (frame->scalars[i].kind != DLB_NONE || signature->scalars[i].optional);
    }
    if (!fits)
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: this operator was made for a kernel of another "
                              "schema; look it up in torch.ops again",
                              dlb_entry_name(layout->entry));
    return 0;
}

/* ---- tensors ---- */

static int fail_in_torch(operator_call *call) {
    const char *text = dlb_shim.exception_text ? dlb_shim.exception_text() : NULL;
    return dlb_frame_fail(&call->frame, DLB_ERROR_KERNEL, "%s: torch: %s",
                          call->kernel->name, text ? text : "an error");
}

static bool is_written(const operator_call *call, int index) {
    return index >= call->frame.input_count ||
           call->kernel->signature->parameters[index].mutated;
}

/* A storage may have been resized to less than its tensors need. */
static bool has_memory(const DLTensor *dl, dlb_torch_tensor tensor) {
    int64_t bytes = 0, offset = 0, last = 0;
    for (int32_t i = 0; i < dl->ndim; i++) {
        if (dl->shape[i] == 0)
            return true;
        last += (dl->shape[i] - 1) * dl->strides[i];
    }
    if (dl->data == NULL || dlb_shim.storage_size(tensor, &bytes) != 0 ||
        dlb_shim.storage_offset(tensor, &offset) != 0)
        return false;
    return dlb_packed_bytes(dl->dtype, 0, offset + last + 1) <= bytes;
}

static int describe(operator_call *call, int index) {
    DLTensor *dl = &call->frame.tensors[index];
    dlb_torch_tensor tensor = call->tensors[index];
    int64_t ndim = 0;
    int32_t dtype = -1;
    call->frame.flags[index] = 0;
    *dl = (DLTensor){.ndim = -1, .device = {kDLCPU, 0}};
    if (tensor == NULL)
        return 0;
    /* A pointer to read from leaves lazily shared memory shared. */
    bool reads = dlb_shim.const_data_ptr != NULL && !is_written(call, index);
    int failed = reads ? dlb_shim.const_data_ptr(tensor, (const void **)&dl->data)
                       : dlb_shim.data_ptr(tensor, &dl->data);
    failed |= dlb_shim.ndim(tensor, &ndim) | dlb_shim.sizes(tensor, &dl->shape) |
              dlb_shim.strides(tensor, &dl->strides) | dlb_shim.dtype(tensor, &dtype) |
              dlb_shim.device_type(tensor, &call->device_type) |
              dlb_shim.device_index(tensor, &call->device_index);
    if (failed)
        return fail_in_torch(call);
    dl->ndim = (int32_t)ndim;
    dl->dtype = dlb_shim_dtype(dtype);
    dl->device = dlb_shim_device(call->device_type, call->device_index);
    if (dl->dtype.bits == 0)
        return dlb_frame_fail(&call->frame, DLB_ERROR_TYPE,
                              "%s: argument %d has a dtype that DLPack does not know",
                              call->kernel->name, index + 1);
    return 0;
}

static int describe_all(operator_call *call) {
    dlb_frame *frame = &call->frame;
    int first = -1;
    for (int i = 0; i < frame->tensor_count; i++) {
        if (describe(call, i) < 0)
            return -1;
        if (call->tensors[i] == NULL)
            continue;
        if (first < 0)
            first = i;
        DLDevice here = frame->tensors[i].device, there = frame->tensors[first].device;
        if (here.device_type != there.device_type || here.device_id != there.device_id)
            return dlb_frame_refuse(call->kernel, frame, i, "device", first);
    }
    return 0;
}

static int check_memory(operator_call *call) {
    dlb_frame *frame = &call->frame;
    for (int i = 0; i < frame->tensor_count; i++)
        if (call->tensors[i] != NULL &&
            !has_memory(&frame->tensors[i], call->tensors[i]))
            return dlb_frame_refuse(call->kernel, frame, i, "null_data", -1);
    return 0;
}

/* ---- gradients and versions ---- */

static bool needs_gradient(dlb_torch_tensor tensor) {
    const void *impl = *(const void *const *)tensor;
    return (dlb_shim.grad_enabled() && dlb_shim.requires_grad(impl)) ||
           *dlb_shim.forward_grad(impl, 0, tensor) != dlb_shim.undefined;
}

/* A call that writes into its arguments has no derivative here. Versions change before
 * the kernel runs: what autograd saved must not be used, even after a kernel that
 * failed. */
static int prepare_writes(operator_call *call) {
    dlb_frame *frame = &call->frame;
    for (int i = 0; i < frame->tensor_count; i++)
        if (call->tensors[i] != NULL && needs_gradient(call->tensors[i]))
            return dlb_frame_refuse(call->kernel, frame, i, "requires_grad", -1);
    bool inference = dlb_shim.inference_enabled();
    for (int i = 0; i < frame->tensor_count; i++) {
        if (call->tensors[i] == NULL || !is_written(call, i))
            continue;
        if (!dlb_shim.is_inference(call->tensors[i]))
            dlb_shim.bump_version(call->tensors[i]);
        else if (!inference)
            return dlb_frame_refuse(call->kernel, frame, i, "readonly", -1);
    }
    return 0;
}

/* ---- results ---- */

static int allocate(operator_call *call, int index) {
    dlb_frame *frame = &call->frame;
    int64_t shape[DLB_MAX_NDIM], strides[DLB_MAX_NDIM];
    DLDataType dtype;
    int32_t ndim =
        dlb_signature_result(call->kernel->signature, index - frame->input_count,
                             &frame->bindings, &dtype, shape);
    int32_t number = ndim < 0 ? -1 : dlb_shim_dtype_number(dtype);
    if (ndim < 0)
        return dlb_frame_fail(
            frame, DLB_ERROR_VALUE,
            "%s: result %d has no shape that these arguments determine",
            call->kernel->name, index - frame->input_count + 1);
    if (number < 0)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "%s: result %d has a dtype that torch does not know",
                              call->kernel->name, index - frame->input_count + 1);
    dlb_row_major_strides(ndim, shape, strides);
    if (dlb_shim.empty_strided(ndim, shape, strides, number, call->device_type,
                               call->device_index, &call->tensors[index]) != 0) {
        call->tensors[index] = NULL;
        return fail_in_torch(call);
    }
    return describe(call, index);
}

static int prepare_results(operator_call *call, uint64_t outputs) {
    dlb_frame *frame = &call->frame;
    if (call->is_out)
        return dlb_frame_check_results(call->kernel, frame);
    for (uint64_t i = 0; i < outputs; i++) {
        call->tensors[frame->tensor_count++] = NULL;
        if (allocate(call, frame->tensor_count - 1) < 0)
            return -1;
    }
    return 0;
}

/* The current stream of the tensors' device: torch calls the default one 0, which means
 * another one to code compiled for per-thread default streams. */
static int find_stream(operator_call *call) {
    DLDevice device = dlb_shim_device(call->device_type, call->device_index);
    if (device.device_type == kDLCPU || dlb_shim.cuda_stream == NULL)
        return 0;
    if (dlb_shim.cuda_stream(call->device_index, &call->frame.stream) != 0)
        return fail_in_torch(call);
    if (call->frame.stream == NULL && device.device_type == kDLCUDA)
        call->frame.stream = (void *)DLB_STREAM_LEGACY;
    return 0;
}

/* ---- the call ---- */

static int execute(operator_call *call, const dlb_torch_layout *layout,
                   uint64_t outputs) {
    dlb_frame *frame = &call->frame;
    if (check_kernel(call, layout, outputs) < 0 || describe_all(call) < 0 ||
        dlb_frame_bind(call->kernel, frame) < 0 || check_memory(call) < 0 ||
        prepare_results(call, outputs) < 0)
        return -1;
    if (find_stream(call) < 0)
        return -1;
    if ((call->is_out || call->kernel->signature->has_mutated) &&
        prepare_writes(call) < 0)
        return -1;
    return dlb_frame_run(call->kernel, frame);
}

static void release(operator_call *call, int first, int end) {
    for (int i = first; i < end; i++)
        if (call->tensors[i] != NULL)
            dlb_shim.delete_tensor(call->tensors[i]);
}

/* Keep the error for who awaits it, else drop what it owns; its text stays readable. */
static void hand_over(dlb_error *error) {
    if (error->text[0] == 0)
        strcpy(error->text, "the kernel failed");
    if (dlb_torch_failed.awaited) {
        dlb_error_clear(&dlb_torch_failed.error);
        dlb_torch_failed.error = *error;
    } else if (error->exception != NULL) {
        dlb_error dropped = {.kind = error->kind, .exception = error->exception};
        dlb_error_clear(&dropped);
    }
}

void dlb_torch_run(dlb_torch_value *stack, uint64_t inputs, uint64_t outputs,
                   int number) {
    const dlb_torch_layout *layout =
        atomic_load_explicit(&dlb_torch_layouts[number], memory_order_acquire);
    operator_call call;
    call.string_count = 0;
    call.kernel = dlb_entry_pin(layout->entry);
    call.device_index = -1;
    dlb_frame_start(&call.frame, "torch.Tensor");
    call.device_type = dlb_shim_cpu_type();
    int failed = take_arguments(&call, layout, stack, inputs) < 0 ||
                 execute(&call, layout, outputs) < 0;
    dlb_frame *frame = &call.frame;
    bool returns = !failed && !call.is_out;
    release(&call, 0, returns ? frame->input_count : frame->tensor_count);
    for (int i = frame->input_count; returns && i < frame->tensor_count; i++)
        stack[i - frame->input_count] = (dlb_torch_value)(uintptr_t)call.tensors[i];
    for (int i = 0; i < call.string_count; i++)
        dlb_shim.delete_string(call.strings[i]);
    if (call.kernel != NULL)
        dlb_entry_unpin(layout->entry, call.kernel);
    if (failed) {
        hand_over(&frame->error);
        dlb_shim.check(false, "dlb_torch_run", __FILE__, __LINE__, frame->error.text);
    }
}
