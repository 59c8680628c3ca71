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

/* ==== parameters of C and of CUDA, as they follow from a call ==== */

#define MAX_VALUES 128
#define MAX_PARAMETERS 192
#define MAX_ROW 8192 /* tensors of a call, those of all lists */
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
    char kind; /* 't': the address of tensor `index`; 'a': that of the addresses of it
                  and the tensors behind it; 'v': value `index`; 'i', 'f': scalar
                  `index`, a dtype is an 'i'; 'z': a text; 'l': the address of a list
                  of numbers, 'n': how many; 'c': `index` itself; 's': stride `dim` of
                  tensor `index`, in bytes; 'p': the stream */
    bool is_signed;
    uint8_t size; /* in bytes */
    int16_t dim;
    int32_t index;
    const char *name;
} parameter;

typedef struct {
    int32_t value_count, source_count, parameter_count, tensor_limit;
    value values[MAX_VALUES];
    source sources[MAX_VALUES];
    parameter parameters[MAX_PARAMETERS];
} parameters;

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

static bool read_value(const parameters *self, const value *value,
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

static int read_values(const dlb_kernel *kernel, const parameters *self,
                       dlb_frame *frame, int64_t *values) {
    for (int32_t i = 0; i < self->value_count; i++)
        if (!read_value(self, &self->values[i], frame, &values[i]))
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "%s: no tensor is given that tells %s", kernel->name,
                                  self->values[i].name);
    return 0;
}

static bool fits(int64_t value, const parameter *parameter) {
    int bits = 8 * parameter->size;
    if (parameter->is_signed)
        return bits == 64 || (value >= -(INT64_C(1) << (bits - 1)) &&
                              value < INT64_C(1) << (bits - 1));
    return value >= 0 && (bits == 64 || value < INT64_C(1) << bits);
}

static int64_t address_of(const DLTensor *tensor) {
    return tensor->ndim < 0 ? 0 : (int64_t)tensor->data + (int64_t)tensor->byte_offset;
}

static int64_t read_integer(const parameter *parameter, const dlb_frame *frame,
                            const int64_t *values) {
    int32_t index = parameter->index;
    switch (parameter->kind) {
    case 't':
        return address_of(&frame->tensors[index]);
    case 'z':
        return (int64_t)frame->scalars[index].value.s;
    case 'l':
        return frame->scalars[index].kind == DLB_INTS
                   ? (int64_t)frame->scalars[index].value.list->ints
                   : (int64_t)frame->scalars[index].value.list->floats;
    case 'n':
        return frame->scalars[index].value.list->count;
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

/* The bytes of a parameter stand at the start of its slot, and what is behind them is
 * the sign, or 0: all hosts of CUDA, and those whose calls of C are known here, are
 * little endian. */
static int fill_slot(const dlb_kernel *kernel, const parameter *parameter,
                     dlb_frame *frame, const int64_t *values, uint64_t *slot) {
    if (parameter->kind == 'f') {
        double number = frame->scalars[parameter->index].value.f;
        float single = (float)number;
        bool is_double = parameter->size == sizeof number;
        *slot = 0;
        memcpy(slot, is_double ? (void *)&number : (void *)&single, parameter->size);
        return 0;
    }
    int64_t value = read_integer(parameter, frame, values);
    memcpy(slot, &value, sizeof value);
    bool is_address = strchr("tzl", parameter->kind) != NULL;
    if (is_address || fits(value, parameter))
        return 0;
    return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                          "%s: %s is %lld, which the kernel's %s integer of %d bits "
                          "cannot hold",
                          kernel->name, parameter->name, (long long)value,
                          parameter->is_signed ? "signed" : "unsigned",
                          8 * parameter->size);
}

/* ==== C functions of bare pointers and sizes, as their signature says ====
 *
 * Where the arguments of a function go depends on their order and on whether they are
 * floating-point numbers, and on nothing else: the first of either kind into registers,
 * the others onto the stack, eight bytes each. So one call serves all functions: it
 * fills all registers, and a function reads those that it has parameters for. That is
 * so on Linux, of the processors below. */

#if defined(__linux__) && defined(__x86_64__)
#define INTEGERS 6
#elif defined(__linux__) && defined(__aarch64__)
#define INTEGERS 8
#else
#define INTEGERS 0 /* not known: Python makes these calls */
#endif
#define FLOATS 8
#define ON_STACK 16

typedef struct {
    int64_t integers[8];
    double floats[FLOATS];
    int64_t stack[ON_STACK];
    int32_t integer_count, float_count, stack_count;
} registers;

#define READS_STATUS (-1) /* the function returns a status, 0 for success */

/* native.CCall */
typedef struct {
    PyObject_HEAD
    PyObject *keeps; /* the texts of names */
    int size;        /* bytes of what is returned; 0: nothing is */
    int result;      /* the tensor that is returned; READS_STATUS; below, none */
    bool is_signed, is_float, takes_lists;
    parameters passed;
} c_call;

/* False: there are too many. */
static bool place_argument(registers *all, char kind, const uint64_t *slot) {
    if (kind == 'f' && all->float_count < FLOATS)
        memcpy(&all->floats[all->float_count++], slot, sizeof *slot);
    else if (kind != 'f' && all->integer_count < INTEGERS)
        memcpy(&all->integers[all->integer_count++], slot, sizeof *slot);
    else if (all->stack_count < ON_STACK)
        memcpy(&all->stack[all->stack_count++], slot, sizeof *slot);
    else
        return false;
    return true;
}

#if INTEGERS == 6
#define INTEGER_TYPES int64_t, int64_t, int64_t, int64_t, int64_t, int64_t
#define INTEGER_VALUES i[0], i[1], i[2], i[3], i[4], i[5]
#else
#define INTEGER_TYPES                                                                  \
    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t
#define INTEGER_VALUES i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7]
#endif
#define FLOAT_TYPES double, double, double, double, double, double, double, double
#define FLOAT_VALUES d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]
#define STACK_TYPES                                                                    \
    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,   \
        int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t
#define STACK_VALUES                                                                   \
    s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12],   \
        s[13], s[14], s[15]

#define DEFINE_CALL(name, type)                                                        \
    static type name(void *function, const registers *all) {                           \
        const int64_t *i = all->integers, *s = all->stack;                             \
        const double *d = all->floats;                                                 \
        if (all->stack_count == 0)                                                     \
            return ((type (*)(INTEGER_TYPES, FLOAT_TYPES))function)(INTEGER_VALUES,    \
                                                                    FLOAT_VALUES);     \
        return ((type (*)(INTEGER_TYPES, FLOAT_TYPES, STACK_TYPES))function)(          \
            INTEGER_VALUES, FLOAT_VALUES, STACK_VALUES);                               \
    }
DEFINE_CALL(call_c, int64_t)
DEFINE_CALL(call_float, float)
DEFINE_CALL(call_double, double)

/* Call a function that returns a result, of at most 8 bytes; `to` may be NULL. */
static void take_result(const c_call *self, void *function, const registers *all,
                        void *to) {
    union {
        int8_t one;
        int16_t two;
        int32_t four;
        int64_t eight;
        float single;
        double wide;
    } value;
    if (self->is_float && self->size == sizeof value.single)
        value.single = call_float(function, all);
    else if (self->is_float)
        value.wide = call_double(function, all);
    else {
        int64_t whole = call_c(function, all);
        if (self->size == 1)
            value.one = (int8_t)whole;
        else if (self->size == 2)
            value.two = (int16_t)whole;
        else if (self->size == 4)
            value.four = (int32_t)whole;
        else
            value.eight = whole;
    }
    if (to != NULL)
        memcpy(to, &value, (size_t)self->size);
}

/* What is behind the bytes of a smaller integer is undefined. */
static int64_t read_status(const c_call *self, int64_t returned) {
    int unused = 64 - 8 * self->size;
    if (self->size == 0)
        return 0;
    uint64_t bits = (uint64_t)returned << unused;
    return self->is_signed ? (int64_t)bits >> unused : (int64_t)(bits >> unused);
}

static int check_layout(const dlb_kernel *kernel, dlb_frame *frame, int32_t index) {
    const DLTensor *tensor = &frame->tensors[index];
    return tensor->ndim < 0 || dlb_is_row_major(tensor)
               ? 0
               : dlb_frame_refuse(kernel, frame, index, "strides", -1);
}

/* The addresses of all tensors of a call, of which lists are parts. */
static int64_t *list_addresses(const dlb_frame *frame, int64_t *room, int32_t count) {
    int64_t *all = frame->tensor_count < count
                       ? room
                       : malloc(((size_t)frame->tensor_count + 1) * sizeof *all);
    for (int32_t i = 0; all != NULL && i < frame->tensor_count; i++)
        all[i] = address_of(&frame->tensors[i]);
    return all;
}

static int invoke(const dlb_kernel *kernel, const dlb_target *target, dlb_frame *frame,
                  dlb_context *context, const int64_t *addresses) {
    const c_call *self = target->user;
    const parameters *passed = &self->passed;
    int64_t values[MAX_VALUES];
    registers all;
    memset(&all, 0, sizeof all);
    if (read_values(kernel, passed, frame, values) < 0)
        return -1;
    for (int32_t i = 0; i < passed->parameter_count; i++) {
        const parameter *each = &passed->parameters[i];
        uint64_t slot = (uint64_t)(uintptr_t)context->stream;
        if (each->kind == 't' && check_layout(kernel, frame, each->index) < 0)
            return -1;
        if (each->kind == 'a')
            slot = (uint64_t)(uintptr_t)(addresses + each->index);
        else if (each->kind != 'p' && fill_slot(kernel, each, frame, values, &slot) < 0)
            return -1;
        place_argument(&all, each->kind, &slot); /* there is room, see c_call_new */
    }
    if (self->result != READS_STATUS) {
        void *to = self->result < 0
                       ? NULL
                       : (void *)(uintptr_t)address_of(&frame->tensors[self->result]);
        take_result(self, target->function, &all, to);
        return 0;
    }
    int64_t status = read_status(self, call_c(target->function, &all));
    return status == 0 ? 0
                       : dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                                        "%s: the kernel returned status %lld",
                                        kernel->name, (long long)status);
}

int dlb_invoke_c(const dlb_kernel *kernel, const dlb_target *target, dlb_frame *frame,
                 dlb_context *context) {
    const c_call *self = target->user;
    int64_t room[64], *addresses = NULL;
    if (self->takes_lists &&
        (addresses = list_addresses(frame, room,
                                    (int32_t)(sizeof room / sizeof *room))) == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_MEMORY, "%s: no memory for %d addresses",
                              kernel->name, (int)frame->tensor_count);
    int done = 0;
    for (int32_t i = 0; self->takes_lists && done == 0 && i < frame->tensor_count; i++)
        done = check_layout(kernel, frame, i);
    if (done == 0)
        done = invoke(kernel, target, frame, context, addresses);
    if (addresses != room)
        free(addresses);
    return done;
}

/* ==== CUDA functions, as cuLaunchKernel starts them ====
 *
 * How the grid and the rest follow from the tensors of a call. */

#define MAX_STEPS 256
#define MAX_DEVICES 64

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
    parameters passed;
    int32_t step_count;
    program programs[PROGRAMS]; /* grid, block, shared */
    dlb_step steps[MAX_STEPS];
} launch_plan;

#define FREE_SHARED (48 * 1024) /* of a block, without asking */
#define MAX_THREADS 1024

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

/* ---- the function of a device ---- */

/* Compare the signature with the driver's, if the driver knows one: a kernel that reads
 * other parameters than it is given writes anywhere. */
static int check_parameters(const dlb_kernel *kernel, const parameters *passed,
                            dlb_frame *frame, CUfunction function) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    size_t offset, size;
    for (int32_t i = 0; driver->cuFuncGetParamInfo != NULL; i++) {
        CUresult code = driver->cuFuncGetParamInfo(function, (size_t)i, &offset, &size);
        bool is_over = code == CUDA_ERROR_INVALID_VALUE;
        if (is_over ? i == passed->parameter_count : code != 0)
            break;
        if (is_over || i == passed->parameter_count)
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "%s: launch: the kernel has %s%d parameters, its "
                                  "signature %d",
                                  kernel->name, is_over ? "" : "more than ", (int)i,
                                  (int)passed->parameter_count);
        if (size != passed->parameters[i].size)
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "%s: launch: parameter %d, %s, has %d bytes in the "
                                  "signature and %zu in the kernel",
                                  kernel->name, (int)i, passed->parameters[i].name,
                                  passed->parameters[i].size, size);
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
    if (function == NULL ||
        check_parameters(kernel, &self->passed, frame, function) < 0)
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
                  dlb_stream stream, void **addresses) {
    CUfunction function = atomic_load(&self->functions[device]);
    if (allow_shared(self, device, function, sizes[SHARED]) < 0)
        return -1;
    return dlb_cuda_check(
        dlb_cuda_get()->cuLaunchKernel(
            function, (unsigned)sizes[0], (unsigned)sizes[1], (unsigned)sizes[2],
            (unsigned)sizes[3], (unsigned)sizes[4], (unsigned)sizes[5],
            (unsigned)sizes[SHARED], (CUstream)stream, addresses, NULL),
        "cuLaunchKernel");
}

int dlb_invoke_launch(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, dlb_context *context) {
    launch_plan *self = target->user;
    const parameters *passed = &self->passed;
    int64_t values[MAX_VALUES], sizes[PROGRAMS];
    uint64_t slots[MAX_PARAMETERS];
    void *addresses[MAX_PARAMETERS];
    int device = find_device(frame);
    if (read_values(kernel, passed, frame, values) < 0 ||
        compute_sizes(kernel, self, frame, values, sizes) < 0)
        return -1;
    for (int32_t i = 0; i < passed->parameter_count; i++) {
        addresses[i] = &slots[i];
        if (fill_slot(kernel, &passed->parameters[i], frame, values, &slots[i]) < 0)
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
    return launch(self, device, sizes, (dlb_stream)context->stream, addresses) < 0
               ? dlb_frame_fail_cuda(kernel, frame)
               : 0;
}

/* ---- native.CCall and CudaLaunch: made of tuples, see kernels/kinds/c_call.py ---- */

static int refuse(const char *what, PyObject *item) {
    PyErr_Format(PyExc_ValueError, "%s: %R", what, item);
    return -1;
}

/* ---- values: (name, ((tensor, start, stop), ...)) ---- */

static int parse_source(parameters *self, PyObject *item) {
    source *source = &self->sources[self->source_count];
    if (self->source_count == MAX_VALUES || !PyTuple_Check(item))
        return refuse("no source of a value, or too many", item);
    if (!PyArg_ParseTuple(item, "iii;a source", &source->tensor, &source->start,
                          &source->stop))
        return -1;
    if (source->tensor < -DLB_MAX_SCALARS || source->tensor >= self->tensor_limit)
        return refuse("a source is wrong", item);
    self->source_count++;
    return 0;
}

static int parse_value(parameters *self, PyObject *item) {
    PyObject *sources;
    value *value = &self->values[self->value_count];
    if (self->value_count == MAX_VALUES || !PyTuple_Check(item))
        return refuse("no value, or too many", item);
    if (!PyArg_ParseTuple(item, "sO!;a value", &value->name, &PyTuple_Type, &sources))
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

static bool is_within(const parameters *self, const parameter *made) {
    const int32_t limits[][2] = {{'t', self->tensor_limit},
                                 {'a', self->tensor_limit},
                                 {'s', self->tensor_limit},
                                 {'z', DLB_MAX_SCALARS},
                                 {'l', DLB_MAX_SCALARS},
                                 {'n', DLB_MAX_SCALARS},
                                 {'i', DLB_MAX_SCALARS},
                                 {'f', DLB_MAX_SCALARS},
                                 {'v', self->value_count},
                                 {'c', INT32_MAX},
                                 {'p', 1}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (made->kind == limits[i][0])
            return made->index >= 0 && made->index < limits[i][1];
    return false;
}

static int parse_parameter(parameters *self, PyObject *item) {
    int kind, size, is_signed, dim;
    parameter *made = &self->parameters[self->parameter_count];
    if (self->parameter_count == MAX_PARAMETERS || !PyTuple_Check(item))
        return refuse("no parameter, or too many", item);
    if (!PyArg_ParseTuple(item, "sCiipi;a parameter", &made->name, &kind, &made->index,
                          &size, &is_signed, &dim))
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

static int parse_parameters(parameters *self, PyObject *values, PyObject *items,
                            int32_t tensor_limit) {
    self->tensor_limit = tensor_limit;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (parse_value(self, PyTuple_GET_ITEM(values, i)) < 0)
            return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++)
        if (parse_parameter(self, PyTuple_GET_ITEM(items, i)) < 0)
            return -1;
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
        dlb_parse_steps(item, self->passed.value_count, self->steps + self->step_count,
                        MAX_STEPS - self->step_count);
    if (program->length < 0)
        return -1;
    self->step_count += program->length;
    return program->length == 1 ? check_constant(self, index) : 0;
}

/* ---- the type ---- */

static int parse_all(launch_plan *self, PyObject *values, PyObject *items,
                     PyObject *programs) {
    if (PyTuple_GET_SIZE(programs) != PROGRAMS)
        return refuse("there must be seven expressions", programs);
    if (parse_parameters(&self->passed, values, items, DLB_MAX_TENSORS) < 0)
        return -1;
    for (int i = 0; i < PROGRAMS; i++)
        if (parse_program(self, PyTuple_GET_ITEM(programs, i), i) < 0)
            return -1;
    return 0;
}

static PyObject *launch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"load", "values", "parameters", "programs", NULL};
    PyObject *load, *values, *items, *programs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!:CudaLaunch", names, &load,
                                     &PyTuple_Type, &values, &PyTuple_Type, &items,
                                     &PyTuple_Type, &programs))
        return NULL;
    launch_plan *self = (launch_plan *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->load = Py_NewRef(load);
    self->keeps = PyTuple_Pack(2, values, items);
    if (self->keeps == NULL || parse_all(self, values, items, programs) < 0)
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

/* Whether there is room for all parameters. */
static bool has_room(const parameters *passed) {
    registers all = {.integer_count = 0};
    uint64_t slot = 0;
    for (int32_t i = 0; i < passed->parameter_count; i++)
        if (!place_argument(&all, passed->parameters[i].kind, &slot))
            return false;
    return true;
}

static PyObject *c_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"values", "parameters", "size", "is_signed",
                            "result", "is_float",   NULL};
    PyObject *values, *items;
    int size, is_signed, result = READS_STATUS, is_float = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!ip|ip:CCall", names,
                                     &PyTuple_Type, &values, &PyTuple_Type, &items,
                                     &size, &is_signed, &result, &is_float))
        return NULL;
    if (size != 0 && size != 1 && size != 2 && size != 4 && size != 8)
        return PyErr_Format(PyExc_ValueError, "CCall: nothing returned has %d bytes",
                            size);
    if (result != READS_STATUS && size == 0)
        return PyErr_Format(PyExc_ValueError, "CCall: a result has bytes");
    if (is_float && (size < (int)sizeof(float) || result == READS_STATUS))
        return PyErr_Format(PyExc_ValueError, "CCall: no status is floating");
    c_call *self = (c_call *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->size = size;
    self->is_signed = is_signed;
    self->result = result;
    self->is_float = is_float;
    self->keeps = PyTuple_Pack(2, values, items);
    if (self->keeps == NULL ||
        parse_parameters(&self->passed, values, items, MAX_ROW) < 0)
        Py_CLEAR(self);
    for (int32_t i = 0; self != NULL && i < self->passed.parameter_count; i++)
        self->takes_lists |= self->passed.parameters[i].kind == 'a';
    if (self != NULL && (INTEGERS == 0 || !has_room(&self->passed))) {
        Py_CLEAR(self);
        PyErr_SetString(PyExc_NotImplementedError,
                        "CCall: such calls are not known of this processor");
    }
    return (PyObject *)self;
}

static void c_call_dealloc(PyObject *object) {
    Py_XDECREF(((c_call *)object)->keeps);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject dlb_CCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.CCall",
    .tp_doc = "How a C function of bare pointers and sizes is called.",
    .tp_basicsize = sizeof(c_call),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = c_call_new,
    .tp_dealloc = c_call_dealloc,
};
