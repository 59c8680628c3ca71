/* Kernels that run on the GPU, as cuLaunchKernel starts them: how their parameters, the
 * grid and the rest follow from the tensors of a call. */
#ifndef DLBRIDGE_CORE_ABI_LAUNCH_H_
#define DLBRIDGE_CORE_ABI_LAUNCH_H_

#include "cuda/driver.h"
#include "kernel/kernel.h"
#include "python/python.h"

#define DLB_LAUNCH_VALUES 128
#define DLB_LAUNCH_PARAMETERS 192
#define DLB_LAUNCH_STEPS 256
#define DLB_LAUNCH_DEVICES 64
#define DLB_LAUNCH_END INT32_MAX

/* The product of the dimensions start .. stop of a tensor, or a scalar. Dimensions
 * below 0 count from the end; DLB_LAUNCH_END is the end. */
typedef struct {
    int32_t tensor; /* below 0: scalar -1 - tensor */
    int32_t start, stop;
} dlb_launch_source;

/* What the first of its sources says whose tensor is given. */
typedef struct {
    int32_t first, count;
    const char *name;
} dlb_launch_value;

typedef struct {
    char kind; /* 't': the address of tensor `index`; 'v': value `index`; 'i', 'f':
                  scalar `index`; 'c': `index` itself; 's': stride `dim` of tensor
                  `index`, in bytes */
    bool is_signed;
    uint8_t size; /* in bytes */
    int16_t dim;
    int32_t index;
    const char *name;
} dlb_launch_parameter;

typedef struct { /* steps first .. first + length, over values */
    int32_t first, length;
} dlb_launch_program;

enum { DLB_GRID = 0, DLB_BLOCK = 3, DLB_SHARED = 6, DLB_LAUNCH_PROGRAMS = 7 };

/* native.CudaLaunch */
typedef struct {
    PyObject_HEAD
    PyObject *load; /* load(device) -> address of a CUfunction of its primary context */
    PyObject *keeps; /* the texts of names */
    _Atomic(CUfunction) functions[DLB_LAUNCH_DEVICES];
    _Atomic int shared[DLB_LAUNCH_DEVICES]; /* bytes that the function may have */
    int32_t value_count, source_count, parameter_count, step_count;
    dlb_launch_value values[DLB_LAUNCH_VALUES];
    dlb_launch_source sources[DLB_LAUNCH_VALUES];
    dlb_launch_parameter parameters[DLB_LAUNCH_PARAMETERS];
    dlb_launch_program programs[DLB_LAUNCH_PROGRAMS]; /* grid, block, shared */
    dlb_step steps[DLB_LAUNCH_STEPS];
} dlb_launch;

/* The text of what is wrong with a size, or NULL. */
const char *dlb_launch_refusal(int program, int64_t size, char *text, size_t room);
int dlb_invoke_launch(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, dlb_context *context);

extern PyTypeObject dlb_LaunchType; /* native.CudaLaunch */

#endif /* DLBRIDGE_CORE_ABI_LAUNCH_H_ */
