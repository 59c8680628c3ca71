/* Copies for tensors that a kernel cannot take as they lie in memory. What is written
 * goes back only after the kernel succeeded. */
#include "kernel.h"

#include <string.h>

typedef struct {
    int32_t index; /* in the frame */
    uint64_t flags;
    DLTensor original, copy;
    dlb_buffer *memory; /* the elements, then the strides */
} stage;

/* Elements as the kernel wants them: packed, row-major, aligned. */
static bool make_copy(const dlb_kernel *kernel, stage *staged) {
    DLTensor *copy = &staged->copy;
    int64_t nbytes =
        dlb_packed_bytes(copy->dtype, 0, dlb_element_count(&staged->original));
    int64_t strides_at = (nbytes + 7) / 8 * 8;
    size_t alignment = kernel->alignment > 64 ? kernel->alignment : 64;
    staged->memory = dlb_buffer_allocate(
        strides_at + copy->ndim * (int64_t)sizeof(int64_t), alignment, false);
    if (staged->memory == NULL)
        return false;
    copy->data = staged->memory->data;
    copy->device = (DLDevice){kDLCPU, 0};
    copy->strides = (int64_t *)((char *)copy->data + strides_at);
    dlb_row_major_strides(copy->ndim, copy->shape, copy->strides);
    return true;
}

static int fill(const dlb_kernel *kernel, dlb_frame *frame, int32_t index,
                stage *staged) {
    DLTensor *tensor = &frame->tensors[index];
    *staged = (stage){.index = index,
                      .flags = frame->flags[index],
                      .original = *tensor,
                      .copy = *tensor};
    if (!dlb_is_host(tensor->device))
        return dlb_frame_refuse(kernel, frame, index,
                                dlb_is_row_major(tensor) ? "alignment" : "strides", -1);
    if (!make_copy(kernel, staged))
        return dlb_frame_fail(frame, DLB_ERROR_MEMORY,
                              "%s: no memory for a copy of tensor %d", kernel->name,
                              (int)index);
    if (index < frame->input_count)
        dlb_copy(&staged->copy, 0, &staged->original, staged->flags);
    *tensor = staged->copy;
    frame->flags[index] = 0;
    return 0;
}

/* The frame is as it was before. */
static void finish(dlb_frame *frame, const stage *staged, bool copy_back) {
    if (copy_back)
        dlb_copy(&staged->original, staged->flags, &staged->copy, 0);
    frame->tensors[staged->index] = staged->original;
    frame->flags[staged->index] = staged->flags;
    if (staged->memory != NULL)
        dlb_buffer_drop(staged->memory);
}

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

/* The objects of the frame, but none for copies: they do not have their memory. */
static void hide_objects(const dlb_frame *frame, uint32_t staged, void **objects) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        objects[i] = staged >> i & 1 ? NULL : frame->objects[i];
}

int dlb_frame_run_staged(const dlb_kernel *kernel, const dlb_target *target,
                         dlb_frame *frame, uint32_t written, uint32_t staged) {
    stage stages[DLB_MAX_TENSORS];
    void *objects[DLB_MAX_TENSORS], *const *own = frame->objects;
    int32_t count = 0;
    int status = 0;
    if (own != NULL) {
        hide_objects(frame, staged, objects);
        frame->objects = objects;
    }
    for (int32_t i = 0; i < frame->tensor_count && status == 0; i++)
        if (staged >> i & 1)
            status = fill(kernel, frame, i, &stages[count++]);
    if (status == 0)
        status = dlb_frame_invoke(kernel, target, frame);
    for (int32_t i = 0; i < count; i++)
        finish(frame, &stages[i],
               status == 0 && must_go_back(kernel, &stages[i], written));
    frame->objects = own;
    return status;
}
