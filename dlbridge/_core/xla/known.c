/* Calls that were checked before. Programs repeat the same dtypes and shapes; a call
 * like one that passed all checks needs none of them again, only its own addresses. No
 * Python here.
 *
 * What is left out here XLA warrants: results have memory of their own. */
#include "xla/xla.h"

static inline const dlb_xla_buffer *buffer_at(const dlb_xla_call *call, int64_t index) {
    int64_t inputs = call->arguments.count;
    return index < inputs ? call->arguments.buffers[index]
                          : call->results.buffers[index - inputs];
}

static inline dlb_xla_known *find_place(const dlb_xla_run *run,
                                        const dlb_kernel *kernel) {
    const dlb_xla_buffers *arguments = &run->call->arguments;
    uint64_t key = kernel->serial;
    if (arguments->count > 0 && arguments->buffers[0]->rank > 0)
        key += (uint64_t)arguments->buffers[0]->dims[0] * 7;
    return &run->thread->known[key % DLB_XLA_KNOWN];
}

/* Whether a buffer is like the known one; its strides are copied on the way: the known
 * ones may be replaced while the kernel runs, by a call that it leads to. */
static inline bool is_alike(const dlb_xla_buffer *buffer,
                            const dlb_xla_known_tensor *known, int64_t *strides) {
    const int64_t *dims = buffer->dims;
    if (buffer->dtype != known->xla_dtype || buffer->rank != known->rank ||
        buffer->data == NULL)
        return false;
    for (int32_t d = 0; d < known->rank; d++) {
        if (dims[d] != known->dims[d])
            return false;
        strides[d] = known->strides[d];
    }
    return true;
}

/* Fill in the tensors as long as they are like the known ones; false where one is not.
 */
static inline bool fill_tensors(dlb_xla_run *run, const dlb_kernel *kernel,
                                const dlb_xla_known *known) {
    int64_t *strides = run->first_room;
    uintptr_t bits = 0;
    for (int32_t i = 0; i < known->count; i++) {
        const dlb_xla_buffer *buffer = buffer_at(run->call, i);
        const dlb_xla_known_tensor *like = &known->tensors[i];
        if (!is_alike(buffer, like, strides))
            return false;
        run->frame.tensors[i] = (DLTensor){.data = buffer->data,
                                           .device = run->device,
                                           .ndim = like->rank,
                                           .dtype = like->dtype,
                                           .shape = buffer->dims,
                                           .strides = strides};
        run->frame.flags[i] =
            i < known->input_count ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
        bits |= (uintptr_t)buffer->data;
        strides += DLB_XLA_KNOWN_RANK;
    }
    return (bits & (kernel->alignment - 1)) == 0;
}

/* Scalars that are dimensions decide on shapes: such calls are checked. */
static inline bool has_plain_scalars(const dlb_frame *frame, const dlb_kernel *kernel) {
    const dlb_signature *signature = kernel->signature;
    int32_t count = signature ? signature->scalar_count : 0;
    if (frame->scalar_count != count || (signature && signature->has_sizes))
        return false;
    for (int32_t i = 0; i < count; i++)
        if (frame->scalars[i].kind != (int64_t)signature->scalars[i].kind)
            return false;
    return true;
}

bool dlb_xla_run_known(dlb_xla_run *run, const dlb_kernel *kernel, int *status) {
    const dlb_xla_known *known = find_place(run, kernel);
    const dlb_xla_call *call = run->call;
    dlb_frame *frame = &run->frame;
    if (known->serial != kernel->serial || run->layout != NULL ||
        run->device.device_type != known->device_type || run->room != run->first_room ||
        call->arguments.count != known->input_count ||
        call->results.count != known->count - known->input_count ||
        !has_plain_scalars(frame, kernel) || !fill_tensors(run, kernel, known))
        return false;
    frame->input_count = known->input_count;
    frame->tensor_count = known->count;
    *status = dlb_frame_invoke(kernel, known->target, frame);
    return true;
}

/* ---- learning ---- */

static const dlb_target *find_target(const dlb_kernel *kernel, DLDeviceType type) {
    for (int32_t i = 0; i < kernel->target_count; i++)
        if (kernel->targets[i].device_type == type)
            return &kernel->targets[i];
    return NULL;
}

static bool learn_tensor(dlb_xla_known_tensor *known, const DLTensor *tensor,
                         const dlb_xla_buffer *buffer) {
    if (tensor->ndim > DLB_XLA_KNOWN_RANK)
        return false;
    known->xla_dtype = buffer->dtype;
    known->rank = tensor->ndim;
    known->dtype = tensor->dtype;
    for (int32_t d = 0; d < tensor->ndim; d++) {
        known->dims[d] = tensor->shape[d];
        known->strides[d] = tensor->strides[d];
    }
    return true;
}

void dlb_xla_learn(dlb_xla_run *run, const dlb_kernel *kernel) {
    dlb_xla_known *known = find_place(run, kernel);
    const dlb_frame *frame = &run->frame;
    if (run->layout != NULL || frame->tensor_count > DLB_XLA_KNOWN_TENSORS)
        return;
    known->serial = 0;
    known->device_type = run->device.device_type;
    known->target = find_target(kernel, known->device_type);
    known->count = frame->tensor_count;
    known->input_count = frame->input_count;
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (!learn_tensor(&known->tensors[i], &frame->tensors[i],
                          buffer_at(run->call, i)))
            return;
    known->serial = known->target ? kernel->serial : 0;
}
