/* The calling conventions of plain C functions, and of kernels that run on the GPU. */
#include "abi/abi.h"
#include "cuda/cuda.h"
#include "layout/layout.h"
#include "memory/lock.h"
#include <stdio.h>
#include <string.h>
#include <structmember.h>

/* ==== plain C functions ==== */

int dlb_invoke_dltensors(const dlb_kernel *kernel, const dlb_target *target,
                         dlb_frame *frame, dlb_context *context) {
    (void)kernel;
    return ((int (*)(void *, DLTensor *, int))target->function)(context, frame->tensors,
                                                                frame->tensor_count);
}

/* ---- one DLTensor * per tensor: a cast for each count ---- */

#define TYPES_1 DLTensor *
#define TYPES_2 TYPES_1, DLTensor *
#define TYPES_3 TYPES_2, DLTensor *
#define TYPES_4 TYPES_3, DLTensor *
#define TYPES_5 TYPES_4, DLTensor *
#define TYPES_6 TYPES_5, DLTensor *
#define TYPES_7 TYPES_6, DLTensor *
#define TYPES_8 TYPES_7, DLTensor *
#define TYPES_9 TYPES_8, DLTensor *
#define TYPES_10 TYPES_9, DLTensor *
#define TYPES_11 TYPES_10, DLTensor *
#define TYPES_12 TYPES_11, DLTensor *
#define TYPES_13 TYPES_12, DLTensor *
#define TYPES_14 TYPES_13, DLTensor *
#define TYPES_15 TYPES_14, DLTensor *
#define TYPES_16 TYPES_15, DLTensor *

#define VALUES_1 t
#define VALUES_2 VALUES_1, t + 1
#define VALUES_3 VALUES_2, t + 2
#define VALUES_4 VALUES_3, t + 3
#define VALUES_5 VALUES_4, t + 4
#define VALUES_6 VALUES_5, t + 5
#define VALUES_7 VALUES_6, t + 6
#define VALUES_8 VALUES_7, t + 7
#define VALUES_9 VALUES_8, t + 8
#define VALUES_10 VALUES_9, t + 9
#define VALUES_11 VALUES_10, t + 10
#define VALUES_12 VALUES_11, t + 11
#define VALUES_13 VALUES_12, t + 12
#define VALUES_14 VALUES_13, t + 13
#define VALUES_15 VALUES_14, t + 14
#define VALUES_16 VALUES_15, t + 15

#define CALL(n)                                                                        \
    static int call_##n(void *function, DLTensor *t) {                                 \
        return ((int (*)(TYPES_##n))function)(VALUES_##n);                             \
    }
CALL(1)
CALL(2)
CALL(3)
CALL(4)
CALL(5)
CALL(6)
CALL(7)
CALL(8)
CALL(9)
CALL(10)
CALL(11)
CALL(12)
CALL(13)
CALL(14)
CALL(15)
CALL(16)

static int call_0(void *function, DLTensor *t) {
    (void)t;
    return ((int (*)(void))function)();
}

static int (*const calls[DLB_MAX_POINTERS + 1])(void *, DLTensor *) = {
    call_0, call_1,  call_2,  call_3,  call_4,  call_5,  call_6,  call_7, call_8,
    call_9, call_10, call_11, call_12, call_13, call_14, call_15, call_16};

int dlb_invoke_pointers(const dlb_kernel *kernel, const dlb_target *target,
                        dlb_frame *frame, dlb_context *context) {
    (void)context;
    if (frame->tensor_count > DLB_MAX_POINTERS || frame->scalar_count > 0)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "%s: takes at most %d tensors and no scalars, got %d "
                              "tensors and %d scalars",
                              kernel->name, DLB_MAX_POINTERS, (int)frame->tensor_count,
                              (int)frame->scalar_count);
    return calls[frame->tensor_count](target->function, frame->tensors);
}

/* ==== CUDA functions, as cuLaunchKernel starts them ====
 *
 * How their parameters, the grid and the rest follow from the tensors of a call. */

#define MAX_VALUES 128
#define MAX_PARAMETERS 192
#define MAX_STEPS 256
#define MAX_DEVICES 64
#define END INT32_MAX

/* The product of the dimensions start .. stop of a tensor, or a scalar. Dimensions
 * below 0 count from the end; END is the end. */
typedef struct {
    int32_t tensor; /* below 0: scalar -1 - tensor */
    int32_t start, stop;
} source;

/* Read from the first of its sources whose tensor is given. */
typedef struct {
    int32_t first, count;
    const char *name;
} value;

typedef struct {
    char kind; /* 't': the address of tensor `index`; 'v': value `index`; 'i', 'f':
                  scalar `index`; 'c': `index` itself; 's': stride `dim` of tensor
                  `index`, in bytes */
    bool is_signed;
    uint8_t size; /* in bytes */
    int16_t dim;
    int32_t index;
    const char *name;
} parameter;

typedef struct { /* steps first .. first + length, over values */
    int32_t first, length;
} program;

enum { GRID = 0, BLOCK = 3, SHARED = 6, PROGRAMS = 7 };

/* native.CudaLaunch */
typedef struct {
    PyObject_HEAD
    PyObject *load; /* load(device) -> address of a CUfunction of its primary context */
    PyObject *keeps; /* the texts of names */
    _Atomic(CUfunction) functions[MAX_DEVICES];
    _Atomic int shared[MAX_DEVICES]; /* dynamic bytes that were seen to be allowed */
    int32_t value_count, source_count, parameter_count, step_count;
    value values[MAX_VALUES];
    source sources[MAX_VALUES];
    parameter parameters[MAX_PARAMETERS];
    program programs[PROGRAMS]; /* grid, block, shared */
    dlb_step steps[MAX_STEPS];
} launch_plan;

#define FREE_SHARED (48 * 1024) /* of a block, without asking */
#define MAX_THREADS 1024

/* ---- values ---- */

static int64_t multiply_dims(const DLTensor *tensor, const source *source) {
    int32_t ndim = tensor->ndim, stop = source->stop;
    int32_t start = source->start < 0 ? ndim + source->start : source->start;
    int64_t extent = 1;
    if (stop == END)
        stop = ndim;
    else if (stop < 0)
        stop += ndim;
    for (int32_t i = start; i < stop; i++)
        extent *= tensor->shape[i];
    return extent;
}

static bool read_value(const launch_plan *self, const value *value,
                       const dlb_frame *frame, int64_t *out) {
    for (int32_t i = value->first; i < value->first + value->count; i++) {
        const source *source = &self->sources[i];
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

static int read_values(const dlb_kernel *kernel, const launch_plan *self,
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
} limits[PROGRAMS] = {
    {"grid[0]", 0, INT32_MAX},  {"grid[1]", 0, 65535}, {"grid[2]", 0, 65535},
    {"block[0]", 1, 1024},      {"block[1]", 1, 1024}, {"block[2]", 1, 64},
    {"shared", 0, 1024 * 1024},
};

static const char *find_size_fault(int program, int64_t size, char *text, size_t room) {
    if (size >= limits[program].least && size <= limits[program].most)
        return NULL;
    snprintf(text, room, "%s must be from %lld to %lld, got %lld", limits[program].name,
             (long long)limits[program].least, (long long)limits[program].most,
             (long long)size);
    return text;
}

static int compute_sizes(const dlb_kernel *kernel, const launch_plan *self,
                         dlb_frame *frame, const int64_t *values, int64_t *sizes) {
    char text[128];
    for (int i = 0; i < PROGRAMS; i++) {
        const program *program = &self->programs[i];
        if (!dlb_steps_run(self->steps + program->first, program->length, values,
                           &sizes[i]))
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "%s: launch: %s divides by zero or exceeds 64 bits",
                                  kernel->name, limits[i].name);
        if (find_size_fault(i, sizes[i], text, sizeof text) != NULL)
            return dlb_frame_fail(frame, DLB_ERROR_VALUE, "%s: launch: %s",
                                  kernel->name, text);
    }
    int64_t threads = sizes[BLOCK] * sizes[BLOCK + 1] * sizes[BLOCK + 2];
    if (threads <= MAX_THREADS)
        return 0;
    return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                          "%s: launch: a block has at most %d threads, got %lld",
                          kernel->name, MAX_THREADS, (long long)threads);
}

/* ---- parameters ---- */

static bool fits(int64_t value, const parameter *parameter) {
    int bits = 8 * parameter->size;
    if (parameter->is_signed)
        return bits == 64 || (value >= -(INT64_C(1) << (bits - 1)) &&
                              value < INT64_C(1) << (bits - 1));
    return value >= 0 && (bits == 64 || value < INT64_C(1) << bits);
}

static int64_t read_integer(const parameter *parameter, const dlb_frame *frame,
                            const int64_t *values) {
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
static int fill_slot(const dlb_kernel *kernel, const parameter *parameter,
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

/* Compare the signature with the driver's, if the driver knows one: a kernel that reads
 * other parameters than it is given writes anywhere. */
static int check_parameters(const dlb_kernel *kernel, const launch_plan *self,
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

static int load(const dlb_kernel *kernel, launch_plan *self, dlb_frame *frame,
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

/* A function has 48 KiB of shared memory, its static variables included, unless it is
 * given more. The limit belongs to the function, which others may also launch, and is
 * never lowered: they are held apart by the lock. */
DLB_LOCK_RENEWED(shared_lock)

static CUresult raise_limit(CUfunction function, int wanted, int *allowed) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    int of_statics = 0;
    CUresult code = driver->cuFuncGetAttribute(
        &of_statics, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function);
    if (code == 0)
        code = driver->cuFuncGetAttribute(
            allowed, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function);
    bool is_free = wanted <= *allowed && wanted <= FREE_SHARED - of_statics;
    if (code != 0 || is_free)
        return code;
    *allowed = wanted > *allowed ? wanted : *allowed;
    return driver->cuFuncSetAttribute(
        function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, *allowed);
}

static int allow_shared(launch_plan *self, int device, CUfunction function,
                        int64_t shared) {
    int allowed = 0;
    if (shared <= atomic_load(&self->shared[device]))
        return 0;
    pthread_mutex_lock(&shared_lock);
    int mode = dlb_cuda_relax();
    CUresult code = raise_limit(function, (int)shared, &allowed);
    dlb_cuda_unrelax(mode);
    if (code == 0 && allowed >= shared)
        atomic_store(&self->shared[device], (int)shared);
    pthread_mutex_unlock(&shared_lock);
    return dlb_cuda_check(code, "cuFuncSetAttribute");
}

static int launch(launch_plan *self, int device, const int64_t *sizes,
                  dlb_stream stream, void **parameters) {
    CUfunction function = atomic_load(&self->functions[device]);
    if (allow_shared(self, device, function, sizes[SHARED]) < 0)
        return -1;
    return dlb_cuda_check(
        dlb_cuda_get()->cuLaunchKernel(
            function, (unsigned)sizes[0], (unsigned)sizes[1], (unsigned)sizes[2],
            (unsigned)sizes[3], (unsigned)sizes[4], (unsigned)sizes[5],
            (unsigned)sizes[SHARED], (CUstream)stream, parameters, NULL),
        "cuLaunchKernel");
}

int dlb_invoke_launch(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, dlb_context *context) {
    launch_plan *self = target->user;
    int64_t values[MAX_VALUES], sizes[PROGRAMS];
    uint64_t slots[MAX_PARAMETERS];
    void *parameters[MAX_PARAMETERS];
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
    if (device < 0 || device >= MAX_DEVICES)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                              "%s: launch: no tensor tells a device", kernel->name);
    if (atomic_load(&self->functions[device]) == NULL &&
        load(kernel, self, frame, device) < 0)
        return -1;
    return launch(self, device, sizes, (dlb_stream)context->stream, parameters) < 0
               ? dlb_frame_fail_cuda(kernel, frame)
               : 0;
}

/* ---- native.CudaLaunch: made of tuples by dlbridge.kernels.kinds.cuda_launch ---- */

static int refuse(const char *what, PyObject *item) {
    PyErr_Format(PyExc_ValueError, "CudaLaunch: %s: %R", what, item);
    return -1;
}

/* ---- values: (name, ((tensor, start, stop), ...)) ---- */

static int parse_source(launch_plan *self, PyObject *item) {
    source *source = &self->sources[self->source_count];
    if (self->source_count == MAX_VALUES || !PyTuple_Check(item))
        return refuse("no source of a value, or too many", item);
    if (!PyArg_ParseTuple(item, "iii;CudaLaunch: a source", &source->tensor,
                          &source->start, &source->stop))
        return -1;
    if (source->tensor < -DLB_MAX_SCALARS || source->tensor >= DLB_MAX_TENSORS)
        return refuse("a source is wrong", item);
    self->source_count++;
    return 0;
}

static int parse_value(launch_plan *self, PyObject *item) {
    PyObject *sources;
    value *value = &self->values[self->value_count];
    if (self->value_count == MAX_VALUES || !PyTuple_Check(item))
        return refuse("no value, or too many", item);
    if (!PyArg_ParseTuple(item, "sO!;CudaLaunch: a value", &value->name, &PyTuple_Type,
                          &sources))
        return -1;
    value->first = self->source_count;
    value->count = (int32_t)PyTuple_GET_SIZE(sources);
    for (int32_t i = 0; i < value->count; i++)
        if (parse_source(self, PyTuple_GET_ITEM(sources, i)) < 0)
            return -1;
    self->value_count++;
    return 0;
}

/* ---- parameters: (name, kind, index, size, is_signed, dim) ---- */

static bool is_within(const launch_plan *self, const parameter *made) {
    const int32_t limits[][2] = {{'t', DLB_MAX_TENSORS},   {'s', DLB_MAX_TENSORS},
                                 {'i', DLB_MAX_SCALARS},   {'f', DLB_MAX_SCALARS},
                                 {'v', self->value_count}, {'c', INT32_MAX}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (made->kind == limits[i][0])
            return made->index >= 0 && made->index < limits[i][1];
    return false;
}

static int parse_parameter(launch_plan *self, PyObject *item) {
    int kind, size, is_signed, dim;
    parameter *made = &self->parameters[self->parameter_count];
    if (self->parameter_count == MAX_PARAMETERS || !PyTuple_Check(item))
        return refuse("no parameter, or too many", item);
    if (!PyArg_ParseTuple(item, "sCiipi;CudaLaunch: a parameter", &made->name, &kind,
                          &made->index, &size, &is_signed, &dim))
        return -1;
    made->kind = (char)kind;
    made->size = (uint8_t)size;
    made->is_signed = is_signed;
    made->dim = (int16_t)dim;
    bool is_float = kind == 'f' && size != sizeof(float) && size != sizeof(double);
    if (!is_within(self, made) || size < 1 || size > 8 || is_float || dim < 0)
        return refuse("a parameter is wrong", item);
    self->parameter_count++;
    return 0;
}

/* ---- programs: steps as in Schema.encode(), over the values ---- */

static int check_constant(const launch_plan *self, int index) {
    char text[128];
    const dlb_step *step = &self->steps[self->programs[index].first];
    if (step->operation != 'c' ||
        find_size_fault(index, step->value, text, sizeof text) == NULL)
        return 0;
    PyErr_SetString(PyExc_ValueError, text);
    return -1;
}

static int parse_program(launch_plan *self, PyObject *item, int index) {
    program *program = &self->programs[index];
    program->first = self->step_count;
    program->length =
        dlb_parse_steps(item, self->value_count, self->steps + self->step_count,
                        MAX_STEPS - self->step_count);
    if (program->length < 0)
        return -1;
    self->step_count += program->length;
    return program->length == 1 ? check_constant(self, index) : 0;
}

/* ---- the type ---- */

static int parse_all(launch_plan *self, PyObject *values, PyObject *parameters,
                     PyObject *programs) {
    if (PyTuple_GET_SIZE(programs) != PROGRAMS)
        return refuse("there must be seven expressions", programs);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (parse_value(self, PyTuple_GET_ITEM(values, i)) < 0)
            return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameters); i++)
        if (parse_parameter(self, PyTuple_GET_ITEM(parameters, i)) < 0)
            return -1;
    for (int i = 0; i < PROGRAMS; i++)
        if (parse_program(self, PyTuple_GET_ITEM(programs, i), i) < 0)
            return -1;
    return 0;
}

static PyObject *launch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"load", "values", "parameters", "programs", NULL};
    PyObject *load, *values, *parameters, *programs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!:CudaLaunch", names, &load,
                                     &PyTuple_Type, &values, &PyTuple_Type, &parameters,
                                     &PyTuple_Type, &programs))
        return NULL;
    launch_plan *self = (launch_plan *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->load = Py_NewRef(load);
    self->keeps = PyTuple_Pack(2, values, parameters);
    if (self->keeps == NULL || parse_all(self, values, parameters, programs) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void launch_dealloc(PyObject *object) {
    launch_plan *self = (launch_plan *)object;
    Py_XDECREF(self->load);
    Py_XDECREF(self->keeps);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef launch_members[] = {
    {"load", T_OBJECT, offsetof(launch_plan, load), READONLY, NULL},
    {0},
};

PyTypeObject dlb_LaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.CudaLaunch",
    .tp_doc = "How a GPU kernel is launched: parameters, grid, block, shared memory.",
    .tp_basicsize = sizeof(launch_plan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = launch_new,
    .tp_dealloc = launch_dealloc,
    .tp_members = launch_members,
};
