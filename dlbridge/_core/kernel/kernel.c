/* The run of one call, from the tensors of a framework to the kernel and back. */
#include "kernel/kernel.h"
#include "layout/layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- errors ---- */

int dlb_frame_fail(dlb_frame *frame, dlb_error_class kind, const char *format, ...) {
    va_list arguments;
    frame->error.kind = kind;
    va_start(arguments, format);
    vsnprintf(frame->error.text, sizeof frame->error.text, format, arguments);
    va_end(arguments);
    return -1;
}

/* A kernel that failed and did not say how in a way of its own. */
static int fail_with_status(const dlb_kernel *kernel, dlb_frame *frame, int status,
                            const char *text) {
    if (text[0] == 0)
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: the kernel returned status %d", kernel->name,
                              status);
    if (status == -1) /* what dlb_set_error returns */
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL, "%s: %s", kernel->name, text);
    return dlb_frame_fail(frame, DLB_ERROR_KERNEL, "%s: %s (status %d)", kernel->name,
                          text, status);
}

/* ---- arguments against the signature ---- */

static int bind_scalar(const dlb_kernel *kernel, dlb_frame *frame, int32_t index) {
    const dlb_scalar_parameter *parameter = &kernel->signature->scalars[index];
    dlb_scalar *scalar = &frame->scalars[index];
    if (scalar->kind == (int64_t)parameter->kind ||
        (scalar->kind == DLB_NONE && parameter->optional))
        return 0;
    if (scalar->kind == DLB_INT && parameter->kind == DLB_FLOAT) {
        *scalar = (dlb_scalar){DLB_FLOAT, {.f = (double)scalar->value.i}};
        return 0;
    }
    static const char *const kinds[] = {"none", "int", "float", "str"};
    return dlb_frame_fail(frame, DLB_ERROR_TYPE, "%s: scalar %d: expected %s, got %s",
                          kernel->name, (int)index, kinds[parameter->kind],
                          kinds[scalar->kind & 3]);
}

int dlb_frame_bind(const dlb_kernel *kernel, dlb_frame *frame) {
    const dlb_signature *signature = kernel->signature;
    if (signature == NULL)
        return 0;
    if (frame->input_count != signature->input_count ||
        frame->scalar_count != signature->scalar_count)
        return dlb_frame_fail(
            frame, DLB_ERROR_TYPE,
            "%s: expected %d tensors and %d scalars, got %d tensors and %d scalars",
            kernel->name, (int)signature->input_count, (int)signature->scalar_count,
            (int)frame->input_count, (int)frame->scalar_count);
    for (int32_t i = 0; i < signature->scalar_count; i++)
        if (bind_scalar(kernel, frame, i) < 0)
            return -1;
    int index =
        dlb_signature_bind(signature, frame->tensors, frame->scalars, &frame->bindings);
    return index < 0 ? 0 : dlb_frame_refuse(kernel, frame, index, "mismatch", -1);
}

static int check_result_count(const dlb_kernel *kernel, dlb_frame *frame) {
    int32_t results = frame->tensor_count - frame->input_count;
    if (results == kernel->signature->result_count)
        return 0;
    return dlb_frame_fail(frame, DLB_ERROR_TYPE, "%s: expected %d results, got %d",
                          kernel->name, (int)kernel->signature->result_count,
                          (int)results);
}

int dlb_frame_check_results(const dlb_kernel *kernel, dlb_frame *frame) {
    const dlb_signature *signature = kernel->signature;
    if (signature == NULL)
        return 0;
    if (check_result_count(kernel, frame) < 0)
        return -1;
    for (int32_t i = 0; i < signature->result_count; i++) {
        int32_t index = signature->input_count + i;
        if (!dlb_signature_fits_result(signature, i, &frame->tensors[index],
                                       &frame->bindings))
            return dlb_frame_refuse(kernel, frame, index, "mismatch", -1);
    }
    return 0;
}

/* ---- the run ---- */

static uint32_t find_written(const dlb_kernel *kernel, const dlb_frame *frame) {
    uint64_t all = (UINT64_C(1) << frame->tensor_count) - 1;
    uint64_t results = all & ~((UINT64_C(1) << frame->input_count) - 1);
    uint64_t last = kernel->writes_last ? (all + 1) >> 1 : 0;
    return (uint32_t)(((kernel->written | last) & all) | results);
}

static const DLTensor *find_first(const dlb_frame *frame) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (frame->tensors[i].ndim >= 0)
            return &frame->tensors[i];
    return NULL;
}

static const dlb_target *find_target(const dlb_kernel *kernel, DLDeviceType type) {
    for (int32_t i = 0; i < kernel->target_count; i++)
        if (kernel->targets[i].device_type == type)
            return &kernel->targets[i];
    return NULL;
}

const dlb_target *dlb_kernel_target(const dlb_kernel *kernel, DLDevice device) {
    const dlb_target *target = find_target(kernel, device.device_type);
    if (target == NULL && dlb_is_host(device))
        return find_target(kernel, kDLCPU);
    return target == NULL && dlb_is_cuda(device) ? find_target(kernel, kDLCUDA)
                                                 : target;
}

/* Where the call runs: with the first tensor, or without tensors where it can. */
static DLDevice find_device(const dlb_kernel *kernel, const dlb_frame *frame) {
    const DLTensor *first = find_first(frame);
    return first ? first->device : (DLDevice){kernel->targets[0].device_type, 0};
}

static int fail_without_target(const dlb_kernel *kernel, dlb_frame *frame) {
    const DLTensor *tensor = find_first(frame);
    if (kernel->target_count == 0 || tensor == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL, "%s: the kernel is gone",
                              kernel->name);
    return dlb_frame_refuse(kernel, frame, (int)(tensor - frame->tensors), "device",
                            -1);
}

int dlb_frame_call(const dlb_kernel *kernel, const dlb_target *target,
                   dlb_frame *frame) {
    char text[DLB_ERROR_SIZE];
    text[0] = 0;
    dlb_context context = {
        .size = sizeof context,
        .kernel = kernel->name,
        .user = target->user,
        .stream = frame->stream,
        .scalars = frame->scalars,
        .scalar_count = frame->scalar_count,
        .error = text,
        .error_size = sizeof text,
    };
    int status = target->invoke(kernel, target, frame, &context);
    if (status == 0)
        return 0;
    if (frame->error.kind != DLB_ERROR_NONE)
        return -1;
    text[sizeof text - 1] = 0;
    return fail_with_status(kernel, frame, status, text);
}

int dlb_frame_invoke(const dlb_kernel *kernel, const dlb_target *target,
                     dlb_frame *frame) {
    return target->device_type == kDLCUDA ? dlb_cuda_invoke(kernel, target, frame)
                                          : dlb_frame_call(kernel, target, frame);
}

int dlb_frame_run(const dlb_kernel *kernel, dlb_frame *frame) {
    if (kernel->signature != NULL && check_result_count(kernel, frame) < 0)
        return -1;
    DLDevice device = find_device(kernel, frame);
    const dlb_target *target = dlb_kernel_target(kernel, device);
    if (target == NULL)
        return fail_without_target(kernel, frame);
    uint32_t written = find_written(kernel, frame), staged = 0;
    frame->written = written;
    if (dlb_frame_check(kernel, frame, device, written, &staged) < 0)
        return -1;
    if (staged != 0)
        return dlb_frame_run_staged(kernel, target, frame, written, staged);
    return dlb_frame_invoke(kernel, target, frame);
}
