/* Copies for tensors that a kernel cannot take as they lie in memory. What is written
 * goes back only after the kernel succeeded. On a GPU all of it is enqueued on the
 * stream of the caller. */
#include "kernel/kernel.h"
#include "cuda/copy.h"
#include "layout/layout.h"

#include <string.h>

typedef struct {
    int32_t index; /* in the frame */
    uint64_t flags;
    DLTensor original, copy;
    dlb_access *access;           /* of the original, or NULL */
    dlb_buffer *memory, *strides; /* of the copy */
} stage;

/* ---- memory ---- */

static dlb_buffer *allocate(const dlb_kernel *kernel, DLDevice device, int64_t nbytes) {
    size_t alignment = kernel->alignment > 64 ? kernel->alignment : 64;
    return dlb_is_cuda(device) ? dlb_cuda_allocate(device, nbytes)
                               : dlb_buffer_allocate(nbytes, alignment, false);
}

static bool is_aligned(const dlb_kernel *kernel, const dlb_buffer *memory) {
    return ((uintptr_t)memory->data & (kernel->alignment - 1)) == 0;
}

/* Elements as the kernel wants them: packed, row-major, aligned. */
static int make_copy(const dlb_kernel *kernel, dlb_frame *frame, stage *staged) {
    DLTensor *copy = &staged->copy;
    int64_t nbytes =
        dlb_packed_bytes(copy->dtype, 0, dlb_element_count(&staged->original));
    if (!dlb_is_cuda(copy->device))
        copy->device = (DLDevice){kDLCPU, 0};
    staged->strides =
        dlb_buffer_allocate((int64_t)sizeof(int64_t) * copy->ndim, 8, false);
    staged->memory = staged->strides ? allocate(kernel, copy->device, nbytes) : NULL;
    if (staged->memory == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_MEMORY,
                              "%s: no memory for a copy of tensor %d on its device",
                              kernel->name, (int)staged->index);
    copy->data = staged->memory->data;
    copy->strides = staged->strides->data;
    dlb_row_major_strides(copy->ndim, copy->shape, copy->strides);
    return is_aligned(kernel, staged->memory)
               ? 0
               : dlb_frame_refuse(kernel, frame, staged->index, "alignment", -1);
}

/* ---- to the copy and back ---- */

static int copy_elements(const dlb_kernel *kernel, dlb_frame *frame,
                         const dlb_cuda_operand *to, const dlb_cuda_operand *from) {
    if (!dlb_is_cuda(to->dl->device)) {
        dlb_copy(to->dl, to->flags, from->dl, from->flags);
        return 0;
    }
    return dlb_cuda_copy(to, from) < 0 ? dlb_frame_fail_cuda(kernel, frame) : 0;
}

static dlb_cuda_operand copy_of(const stage *staged) {
    return (dlb_cuda_operand){&staged->copy, 0, staged->memory->access};
}

static dlb_cuda_operand original_of(const stage *staged) {
    return (dlb_cuda_operand){&staged->original, staged->flags, staged->access};
}

static void replace(dlb_frame *frame, const stage *staged, const DLTensor *tensor,
                    uint64_t flags, dlb_access *access) {
    uint32_t bit = UINT32_C(1) << staged->index;
    frame->tensors[staged->index] = *tensor;
    frame->flags[staged->index] = flags;
    frame->accesses[staged->index] = access;
    frame->watched = access ? frame->watched | bit : frame->watched & ~bit;
}

/* Without a schema nobody said for sure what the kernel writes, and no device compares
 * afterwards. */
static bool is_possible(const dlb_kernel *kernel, DLDevice device) {
    return dlb_is_host(device) ||
           (dlb_is_cuda(device) && kernel->signature != NULL && dlb_cuda_get() != NULL);
}

static int fill(const dlb_kernel *kernel, dlb_frame *frame, int32_t index,
                stage *staged) {
    DLTensor *tensor = &frame->tensors[index];
    bool is_watched = frame->watched >> index & 1;
    *staged = (stage){.index = index,
                      .flags = frame->flags[index],
                      .original = *tensor,
                      .copy = *tensor,
                      .access = is_watched ? frame->accesses[index] : NULL};
    if (!is_possible(kernel, tensor->device))
        return dlb_frame_refuse(kernel, frame, index,
                                dlb_is_row_major(tensor) ? "alignment" : "strides", -1);
    if (make_copy(kernel, frame, staged) < 0)
        return -1;
    const dlb_cuda_operand copy = copy_of(staged), original = original_of(staged);
    if (index < frame->input_count &&
        copy_elements(kernel, frame, &copy, &original) < 0)
        return -1;
    replace(frame, staged, &staged->copy, 0, staged->memory->access);
    return 0;
}

/* The frame is as it was before. */
static int finish(const dlb_kernel *kernel, dlb_frame *frame, const stage *staged,
                  bool copy_back) {
    int status = 0;
    if (copy_back) {
        const dlb_cuda_operand copy = copy_of(staged), original = original_of(staged);
        status = copy_elements(kernel, frame, &original, &copy);
    }
    replace(frame, staged, &staged->original, staged->flags, staged->access);
    if (staged->memory != NULL)
        dlb_buffer_drop(staged->memory);
    if (staged->strides != NULL)
        dlb_buffer_drop(staged->strides);
    return status;
}

/* ---- what was written ---- */

/* Whether the copy of an input has other values than the input by now. */
static bool has_changed(const stage *staged) {
    DLTensor again = staged->copy;
    int64_t nbytes = dlb_packed_bytes(again.dtype, 0, dlb_element_count(&again));
    dlb_buffer *memory = dlb_buffer_allocate(nbytes, 64, true);
    if (memory == NULL)
        return true;
    again.data = memory->data;
    dlb_copy(&again, 0, &staged->original, staged->flags);
    bool differs = memcmp(again.data, staged->copy.data, (size_t)nbytes) != 0;
    dlb_buffer_drop(memory);
    return differs;
}

/* Without a schema nobody said for sure what the kernel writes: a write into a copy
 * must not get lost. */
static bool must_go_back(const dlb_kernel *kernel, const stage *staged,
                         uint32_t written) {
    if (written >> staged->index & 1)
        return true;
    return kernel->writes_last && !(staged->flags & DLPACK_FLAG_BITMASK_READ_ONLY) &&
           has_changed(staged);
}

/* ---- the run ---- */

/* The objects of the frame, but none for copies: they do not have their memory. */
static void hide_objects(const dlb_frame *frame, uint32_t staged, void **objects) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        objects[i] = staged >> i & 1 ? NULL : frame->objects[i];
}

static int run(const dlb_kernel *kernel, const dlb_target *target, dlb_frame *frame,
               uint32_t written, uint32_t staged) {
    stage stages[DLB_MAX_TENSORS];
    int32_t count = 0;
    int status = 0;
    for (int32_t i = 0; i < frame->tensor_count && status == 0; i++)
        if (staged >> i & 1)
            status = fill(kernel, frame, i, &stages[count++]);
    if (status == 0)
        status = dlb_frame_invoke(kernel, target, frame);
    for (int32_t i = 0; i < count; i++) {
        bool copy_back = status == 0 && must_go_back(kernel, &stages[i], written);
        if (finish(kernel, frame, &stages[i], copy_back) < 0)
            status = -1;
    }
    return status;
}

/* Copies work on the current stream of dlbridge: the caller's, for as long. */
static int run_on_stream(const dlb_kernel *kernel, const dlb_target *target,
                         dlb_frame *frame, uint32_t written, uint32_t staged) {
    DLDevice device = frame->tensors[__builtin_ctz(staged)].device;
    if (!dlb_is_cuda(device) || frame->stream == NULL)
        return run(kernel, target, frame, written, staged);
    dlb_stream before =
        dlb_cuda_set_current_stream(device.device_id, (dlb_stream)frame->stream);
    int status = run(kernel, target, frame, written, staged);
    dlb_cuda_set_current_stream(device.device_id, before);
    return status;
}

int dlb_frame_run_staged(const dlb_kernel *kernel, const dlb_target *target,
                         dlb_frame *frame, uint32_t written, uint32_t staged) {
    void *objects[DLB_MAX_TENSORS], *const *own = frame->objects;
    if (own != NULL) {
        hide_objects(frame, staged, objects);
        frame->objects = objects;
    }
    int status = run_on_stream(kernel, target, frame, written, staged);
    frame->objects = own;
    return status;
}
