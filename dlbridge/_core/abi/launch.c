/* The call of a GPU kernel: values, parameters, the grid; then cuLaunchKernel. */
#include "abi/launch.h"
#include "cuda/cuda.h"
#include "kernel/python.h"
#include "layout/layout.h"

#include <stdio.h>
#include <string.h>

#define FREE_SHARED (48 * 1024) /* what every function may have without asking */
#define MAX_THREADS 1024

/* ---- values ---- */

static int64_t multiply_dims(const DLTensor *tensor, const dlb_launch_source *source) {
    int32_t ndim = tensor->ndim, stop = source->stop;
    int32_t start = source->start < 0 ? ndim + source->start : source->start;
    int64_t extent = 1;
    if (stop == DLB_LAUNCH_END)
        stop = ndim;
    else if (stop < 0)
        stop += ndim;
    for (int32_t i = start; i < stop; i++)
        extent *= tensor->shape[i];
    return extent;
}

static bool read_value(const dlb_launch *self, const dlb_launch_value *value,
                       const dlb_frame *frame, int64_t *out) {
    for (int32_t i = value->first; i < value->first + value->count; i++) {
        const dlb_launch_source *source = &self->sources[i];
        if (source->tensor < 0) {
            *out = frame->scalars[-1 - source->tensor].value.i;
            return true;
        }
        if (frame->tensors[source->tensor].ndim >= 0) {
            *out = multiply_dims(&frame->tensors[source->tensor], source);
            return true;
        }
    }
    return false;
}

static int read_values(const dlb_kernel *kernel, const dlb_launch *self,
                       dlb_frame *frame, int64_t *values) {
    for (int32_t i = 0; i < self->value_count; i++)
        if (!read_value(self, &self->values[i], frame, &values[i]))
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "%s: no tensor is given that tells %s", kernel->name,
                                  self->values[i].name);
    return 0;
}

/* ---- grid, block, shared memory ---- */

static const struct {
    const char *name;
    int64_t least, most;
} limits[DLB_LAUNCH_PROGRAMS] = {
    {"grid[0]", 0, INT32_MAX},  {"grid[1]", 0, 65535}, {"grid[2]", 0, 65535},
    {"block[0]", 1, 1024},      {"block[1]", 1, 1024}, {"block[2]", 1, 64},
    {"shared", 0, 1024 * 1024},
};

const char *dlb_launch_refusal(int program, int64_t size, char *text, size_t room) {
    if (size >= limits[program].least && size <= limits[program].most)
        return NULL;
    snprintf(text, room, "%s must be from %lld to %lld, got %lld", limits[program].name,
             (long long)limits[program].least, (long long)limits[program].most,
             (long long)size);
    return text;
}

static int compute_sizes(const dlb_kernel *kernel, const dlb_launch *self,
                         dlb_frame *frame, const int64_t *values, int64_t *sizes) {
    char text[128];
    for (int i = 0; i < DLB_LAUNCH_PROGRAMS; i++) {
        const dlb_launch_program *program = &self->programs[i];
        if (!dlb_steps_run(self->steps + program->first, program->length, values,
                           &sizes[i]))
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "%s: launch: %s divides by zero or exceeds 64 bits",
                                  kernel->name, limits[i].name);
        if (dlb_launch_refusal(i, sizes[i], text, sizeof text) != NULL)
            return dlb_frame_fail(frame, DLB_ERROR_VALUE, "%s: launch: %s",
                                  kernel->name, text);
    }
    int64_t threads = sizes[DLB_BLOCK] * sizes[DLB_BLOCK + 1] * sizes[DLB_BLOCK + 2];
    if (threads <= MAX_THREADS)
        return 0;
    return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                          "%s: launch: a block has at most %d threads, got %lld",
                          kernel->name, MAX_THREADS, (long long)threads);
}

/* ---- parameters ---- */

static bool fits(int64_t value, const dlb_launch_parameter *parameter) {
    int bits = 8 * parameter->size;
    if (parameter->is_signed)
        return bits == 64 || (value >= -(INT64_C(1) << (bits - 1)) &&
                              value < INT64_C(1) << (bits - 1));
    return value >= 0 && (bits == 64 || value < INT64_C(1) << bits);
}

static int64_t read_integer(const dlb_launch_parameter *parameter,
                            const dlb_frame *frame, const int64_t *values) {
    int32_t index = parameter->index;
    switch (parameter->kind) {
    case 't':
        return frame->tensors[index].ndim < 0 ? 0 : (int64_t)frame->tensors[index].data;
    case 'v':
        return values[index];
    case 'i':
        return frame->scalars[index].value.i;
    case 's':
        return frame->tensors[index].strides[parameter->dim] *
               dlb_packed_bytes(frame->tensors[index].dtype, 0, 1);
    default:
        return index;
    }
}

/* The bytes of a parameter stand at the start of its slot: all CUDA hosts are little
 * endian. */
static int fill_slot(const dlb_kernel *kernel, const dlb_launch_parameter *parameter,
                     dlb_frame *frame, const int64_t *values, uint64_t *slot) {
    if (parameter->kind == 'f') {
        double number = frame->scalars[parameter->index].value.f;
        float single = (float)number;
        bool is_double = parameter->size == sizeof number;
        memcpy(slot, is_double ? (void *)&number : (void *)&single, parameter->size);
        return 0;
    }
    int64_t value = read_integer(parameter, frame, values);
    memcpy(slot, &value, sizeof value);
    if (parameter->kind == 't' || fits(value, parameter))
        return 0;
    return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                          "%s: %s is %lld, which the kernel's %s integer of %d bits "
                          "cannot hold",
                          kernel->name, parameter->name, (long long)value,
                          parameter->is_signed ? "signed" : "unsigned",
                          8 * parameter->size);
}

/* ---- the function of a device ---- */

/* What the signature says against what the driver knows, where it does: a kernel that
 * reads other parameters than it is given writes anywhere. */
static int check_parameters(const dlb_kernel *kernel, const dlb_launch *self,
                            dlb_frame *frame, CUfunction function) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    size_t offset, size;
    for (int32_t i = 0; driver->cuFuncGetParamInfo != NULL; i++) {
        CUresult code = driver->cuFuncGetParamInfo(function, (size_t)i, &offset, &size);
        bool is_over = code == CUDA_ERROR_INVALID_VALUE;
        if (is_over ? i == self->parameter_count : code != 0)
            break;
        if (is_over || i == self->parameter_count)
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "%s: launch: the kernel has %s%d parameters, its "
                                  "signature %d",
                                  kernel->name, is_over ? "" : "more than ", (int)i,
                                  (int)self->parameter_count);
        if (size != self->parameters[i].size)
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "%s: launch: parameter %d, %s, has %d bytes in the "
                                  "signature and %zu in the kernel",
                                  kernel->name, (int)i, self->parameters[i].name,
                                  self->parameters[i].size, size);
    }
    return 0;
}

static int load(const dlb_kernel *kernel, dlb_launch *self, dlb_frame *frame,
                int32_t device) {
    int state;
    if (!dlb_enter_python(&state))
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: the interpreter is shutting down", kernel->name);
    PyObject *address = PyObject_CallFunction(self->load, "i", (int)device);
    void *function = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    if (function == NULL)
        dlb_error_catch(&frame->error, kernel->name);
    dlb_leave_python(state);
    if (function == NULL || check_parameters(kernel, self, frame, function) < 0)
        return -1;
    atomic_store(&self->functions[device], (CUfunction)function);
    return 0;
}

static int find_device(const dlb_frame *frame) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (frame->tensors[i].ndim >= 0)
            return frame->tensors[i].device.device_id;
    return -1;
}

/* A function has 48 KiB of shared memory unless it is given more. */
static int allow_shared(dlb_launch *self, int device, CUfunction function,
                        int64_t shared) {
    if (shared <= FREE_SHARED || shared <= atomic_load(&self->shared[device]))
        return 0;
    CUresult code = dlb_cuda_get()->cuFuncSetAttribute(
        function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared);
    if (code == 0)
        atomic_store(&self->shared[device], (int)shared);
    return dlb_cuda_check(code, "cuFuncSetAttribute");
}

static int launch(dlb_launch *self, int device, const int64_t *sizes, dlb_stream stream,
                  void **parameters) {
    CUfunction function = atomic_load(&self->functions[device]);
    if (allow_shared(self, device, function, sizes[DLB_SHARED]) < 0)
        return -1;
    return dlb_cuda_check(
        dlb_cuda_get()->cuLaunchKernel(
            function, (unsigned)sizes[0], (unsigned)sizes[1], (unsigned)sizes[2],
            (unsigned)sizes[3], (unsigned)sizes[4], (unsigned)sizes[5],
            (unsigned)sizes[DLB_SHARED], (CUstream)stream, parameters, NULL),
        "cuLaunchKernel");
}

int dlb_invoke_launch(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, dlb_context *context) {
    dlb_launch *self = target->user;
    int64_t values[DLB_LAUNCH_VALUES], sizes[DLB_LAUNCH_PROGRAMS];
    uint64_t slots[DLB_LAUNCH_PARAMETERS];
    void *parameters[DLB_LAUNCH_PARAMETERS];
    int device = find_device(frame);
    if (read_values(kernel, self, frame, values) < 0 ||
        compute_sizes(kernel, self, frame, values, sizes) < 0)
        return -1;
    for (int32_t i = 0; i < self->parameter_count; i++) {
        parameters[i] = &slots[i];
        if (fill_slot(kernel, &self->parameters[i], frame, values, &slots[i]) < 0)
            return -1;
    }
    if (sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0)
        return 0; /* CUDA refuses what has nothing to do */
    if (dlb_cuda_get() == NULL) {
        dlb_cuda_fail(DLB_CUDA_MISSING);
        return dlb_frame_fail_cuda(kernel, frame);
    }
    if (device < 0 || device >= DLB_LAUNCH_DEVICES)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                              "%s: launch: no tensor tells a device", kernel->name);
    if (atomic_load(&self->functions[device]) == NULL &&
        load(kernel, self, frame, device) < 0)
        return -1;
    return launch(self, device, sizes, (dlb_stream)context->stream, parameters) < 0
               ? dlb_frame_fail_cuda(kernel, frame)
               : 0;
}
