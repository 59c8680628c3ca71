/* Kernels as custom operators of ONNX Runtime: their registration, their nodes'
 * attributes, shapes and runs.
 *
 * The runtime opens a library of operators and calls its RegisterCustomOps; here that
 * is this very module, and which kernels are meant is what Python has planned just
 * before, on the same thread. The runtime has no types of its own for schemas: an
 * operator whose inputs may have several dtypes is registered once for each
 * combination, under one name.
 */
#include "onnxruntime/onnxruntime.h"
#include "kernel/kernel.h"
#include "layout/layout.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the part of ONNX Runtime's C API that operators need, declared again ----
 *
 * No headers of the runtime, and no link to it: it hands over a table of functions, to
 * which its versions only append, so one binary serves every release with this version
 * of the table. All handles are opaque. */

enum { API_VERSION = 21 }; /* onnxruntime 1.21; that of `custom_op` as well */

typedef void *handle;
typedef handle status; /* NULL: success */

typedef struct {
    const void *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} api_base;

/* Result, name, place in the table, arguments. */
#define ORT_FUNCTIONS(X)                                                               \
    X(status, CreateStatus, 0, (int code, const char *text))                           \
    X(status, CreateCustomOpDomain, 26, (const char *name, handle *domain))            \
    X(status, CustomOpDomain_Add, 27, (handle domain, const void *op))                 \
    X(status, AddCustomOpDomain, 28, (handle options, handle domain))                  \
    X(status, GetTensorMutableData, 51, (const void *value, void **data))              \
    X(status, CreateTensorTypeAndShapeInfo, 57, (handle * info))                       \
    X(status, SetTensorElementType, 58, (handle info, int type))                       \
    X(status, SetDimensions, 59, (handle info, const int64_t *dims, size_t count))     \
    X(status, GetTensorElementType, 60, (handle info, int *type))                      \
    X(status, GetDimensionsCount, 61, (handle info, size_t *count))                    \
    X(status, GetDimensions, 62, (handle info, int64_t *dims, size_t count))           \
    X(status, GetSymbolicDimensions, 63,                                               \
      (handle info, const char **names, size_t count))                                 \
    X(status, GetTensorTypeAndShape, 65, (const void *value, handle *info))            \
    X(status, KernelInfoGetAttribute_float, 85,                                        \
      (const void *info, const char *name, float *value))                              \
    X(status, KernelInfoGetAttribute_int64, 86,                                        \
      (const void *info, const char *name, int64_t *value))                            \
    X(status, KernelInfoGetAttribute_string, 87,                                       \
      (const void *info, const char *name, char *text, size_t *size))                  \
    X(status, KernelContext_GetInputCount, 88, (const void *context, size_t *count))   \
    X(status, KernelContext_GetInput, 90,                                              \
      (const void *context, size_t index, const void **value))                         \
    X(status, KernelContext_GetOutput, 91,                                             \
      (handle context, size_t index, const int64_t *dims, size_t count,                \
       handle *value))                                                                 \
    X(void, ReleaseStatus, 93, (status))                                               \
    X(void, ReleaseTensorTypeAndShapeInfo, 99, (handle info))                          \
    X(status, KernelInfoGetAttributeArray_float, 162,                                  \
      (const void *info, const char *name, float *values, size_t *count))              \
    X(status, KernelInfoGetAttributeArray_int64, 163,                                  \
      (const void *info, const char *name, int64_t *values, size_t *count))            \
    X(status, ShapeInferContext_GetInputTypeShape, 268,                                \
      (const void *context, size_t index, handle *info))                               \
    X(status, ShapeInferContext_SetOutputTypeShape, 270,                               \
      (const void *context, size_t index, handle info))                                \
    X(status, SetSymbolicDimensions, 271,                                              \
      (handle info, const char **names, size_t count))

static struct {
#define ORT_DECLARE(result, name, place, arguments) result(*name) arguments;
    ORT_FUNCTIONS(ORT_DECLARE)
#undef ORT_DECLARE
} ort;

/* From version 24 on: the shape where the value itself has it, so that nothing is
 * allocated for a look at it. NULL before. */
enum { SHAPE_VERSION = 24, SHAPE_PLACE = 414 };
static status (*get_shape_in_place)(const void *value, int *type, const int64_t **dims,
                                    size_t *count);

static const void *opened; /* the table that `ort` was read from */

static void read_table(const void *table, const void *newer) {
    void (*const *functions)(void) = table, (*const *later)(void) = newer;
#define ORT_READ(result, name, place, arguments)                                       \
    ort.name = (result(*) arguments)functions[place];
    ORT_FUNCTIONS(ORT_READ)
#undef ORT_READ
    if (later != NULL)
        get_shape_in_place = (status (*)(const void *, int *, const int64_t **,
                                         size_t *))later[SHAPE_PLACE];
    opened = table;
}

enum { FAIL = 1, INVALID_ARGUMENT = 2 };    /* of OrtErrorCode */
enum { REQUIRED = 0, OPTIONAL = 1 };        /* how an input or output may be missing */
enum { MEMORY_DEFAULT = 0, ELEMENTS = 32 }; /* more than there are element types */

typedef struct custom_op custom_op;

/* OrtCustomOp of version 21: what the runtime asks of an operator. */
typedef struct {
    uint32_t version;
    void *(*create)(const custom_op *, const void *api, const void *info);
    const char *(*get_name)(const custom_op *);
    const char *(*get_provider)(const custom_op *);
    int (*get_input_type)(const custom_op *, size_t);
    size_t (*get_input_count)(const custom_op *);
    int (*get_output_type)(const custom_op *, size_t);
    size_t (*get_output_count)(const custom_op *);
    void (*compute)(void *, handle);
    void (*destroy)(void *);
    int (*get_input_need)(const custom_op *, size_t);
    int (*get_output_need)(const custom_op *, size_t);
    int (*get_input_memory)(const custom_op *, size_t);
    int (*get_input_arity)(const custom_op *);
    int (*are_inputs_alike)(const custom_op *);
    int (*get_output_arity)(const custom_op *);
    int (*are_outputs_alike)(const custom_op *);
    status (*create_checked)(const custom_op *, const void *, const void *, void **);
    status (*compute_checked)(void *, handle);
    status (*infer)(const custom_op *, const void *);
    int (*get_start)(const custom_op *);
    int (*get_end)(const custom_op *);
    size_t (*get_in_place)(int **, int **);
    void (*free_in_place)(int *, int *);
    size_t (*get_aliases)(int **, int **);
    void (*free_aliases)(int *, int *);
} ort_callbacks;
_Static_assert(sizeof(ort_callbacks) == 208 || sizeof(void *) != 8, "of version 21");

/* DLPack's dtype of each number of an element type; bits 0: none that a kernel can
 * take. */
static DLDataType element_types[ELEMENTS];

/* ---- what is planned: kernels as operators; never freed, since sessions refer to it
 * ---- */

typedef struct {
    char *name;
    dlb_scalar value; /* the default; DLB_NONE where there is none */
    dlb_scalar_kind kind;
    int32_t length; /* how many numbers a list must have; -1: any */
    bool is_required;
} ort_scalar;

typedef struct {
    char *name;               /* without the namespace */
    const dlb_kernel *kernel; /* pinned for good, as the plan is */
    const dlb_target *target; /* its function for the CPU */
    ort_scalar scalars[DLB_MAX_SCALARS];
    int version; /* of the domain that the operator is of */
    uint8_t input_count, output_count, scalar_count;
    uint32_t optional, mutated; /* bit i: input i */
} ort_kernel;

struct custom_op {
    ort_callbacks callbacks; /* first: the runtime has a pointer to it */
    const ort_kernel *kernel;
    uint8_t inputs[DLB_MAX_TENSORS], outputs[DLB_MAX_TENSORS]; /* element types */
};

typedef struct {
    char *name;
    handle domain; /* the runtime's; NULL until it is first registered */
    custom_op *ops;
    size_t op_count;
} ort_domain;

typedef struct {
    ort_domain *domains;
    size_t count;
} ort_plan;

static _Thread_local ort_plan *pending;

/* ---- a node: the values of its attributes ---- */

/* What the checks of a first run have found, for later runs with inputs of the same
 * shapes: all tensors but for their data, and how long they are. Immutable. */
typedef struct {
    DLTensor tensors[DLB_MAX_TENSORS];
    uintptr_t bytes[DLB_MAX_TENSORS];
    int32_t count;
    int64_t dims[];
} ort_proof;

typedef struct {
    const custom_op *op;
    _Atomic(ort_proof *) proof; /* NULL before the first run; then for good */
    dlb_scalar scalars[DLB_MAX_SCALARS];
    char *texts[DLB_MAX_SCALARS];
    dlb_list_room *lists[DLB_MAX_SCALARS];
} ort_node;

static bool is_ok(status answer) {
    if (answer != NULL)
        ort.ReleaseStatus(answer);
    return answer == NULL;
}

typedef enum { ABSENT, READ, OTHER_KIND, OTHER_LENGTH, NO_MEMORY } reading;

/* The caller frees the text; NULL where it is not read. */
static reading read_text(const void *info, const char *name, char **text) {
    size_t size = 0;
    *text = NULL;
    if (!is_ok(ort.KernelInfoGetAttribute_string(info, name, NULL, &size)))
        return ABSENT;
    *text = calloc(1, size + 1);
    if (*text == NULL)
        return NO_MEMORY;
    if (is_ok(ort.KernelInfoGetAttribute_string(info, name, *text, &size)))
        return READ;
    free(*text);
    *text = NULL;
    return ABSENT;
}

/* A float64 that no attribute of ONNX holds is written as text. */
static bool read_double(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return *text != 0 && *end == 0;
}

static dlb_list_room *make_list(dlb_scalar_kind kind, dlb_scalar *value) {
    dlb_list_room *room = calloc(1, sizeof *room);
    bool is_float = kind == DLB_FLOATS;
    if (room == NULL)
        return NULL;
    room->list = (dlb_list){0, is_float ? NULL : room->values.ints,
                            is_float ? room->values.floats : NULL};
    *value = (dlb_scalar){kind, {.list = &room->list}};
    return room;
}

/* "0.1, inf, -2.5": a list of which no attribute of ONNX holds each number. */
static bool read_doubles(const char *text, dlb_list_room *room) {
    char *end;
    for (int64_t i = 0; i < DLB_MAX_LISTED; i++) {
        room->values.floats[i] = strtod(text, &end);
        room->list.count = i + 1;
        if (end == text || (*end != 0 && *end != ','))
            return false;
        if (*end == 0)
            return true;
        text = end + 1;
    }
    return false;
}

/* Whether an attribute has a single value. For the runtime that is a list without
 * numbers as well, and so is a list of the other kind. */
static bool is_single(const void *info, const char *name) {
    int64_t integer;
    float number;
    return is_ok(ort.KernelInfoGetAttribute_int64(info, name, &integer)) ||
           is_ok(ort.KernelInfoGetAttribute_float(info, name, &number));
}

static reading read_integers(const void *info, const ort_scalar *scalar, size_t count,
                             dlb_list_room *room) {
    int64_t *numbers = room->values.ints; /* as long as the doubles */
    if (!is_ok(
            ort.KernelInfoGetAttributeArray_int64(info, scalar->name, numbers, &count)))
        return OTHER_KIND;
    for (size_t i = 0; i < count && scalar->kind == DLB_FLOATS; i++)
        room->values.floats[i] = (double)numbers[i];
    room->list.count = (int64_t)count;
    return READ;
}

static reading read_floats(const void *info, const ort_scalar *scalar, size_t count,
                           dlb_list_room *room) {
    float numbers[DLB_MAX_LISTED];
    if (scalar->kind != DLB_FLOATS || !is_ok(ort.KernelInfoGetAttributeArray_float(
                                          info, scalar->name, numbers, &count)))
        return OTHER_KIND;
    for (size_t i = 0; i < count; i++)
        room->values.floats[i] = (double)numbers[i];
    room->list.count = (int64_t)count;
    return READ;
}

static reading read_listed_text(const char *text, const ort_scalar *scalar,
                                dlb_list_room *room) {
    return scalar->kind == DLB_FLOATS && read_doubles(text, room) ? READ : OTHER_KIND;
}

static reading fill_list(const void *info, const ort_scalar *scalar,
                         dlb_list_room *room) {
    const char *name = scalar->name;
    size_t integers = 0, floats = 0;
    bool has_integers =
        is_ok(ort.KernelInfoGetAttributeArray_int64(info, name, NULL, &integers));
    bool has_floats =
        is_ok(ort.KernelInfoGetAttributeArray_float(info, name, NULL, &floats));
    if (integers > DLB_MAX_LISTED || floats > DLB_MAX_LISTED)
        return OTHER_LENGTH;
    if (integers != 0)
        return read_integers(info, scalar, integers, room);
    if (floats != 0)
        return read_floats(info, scalar, floats, room);
    char *text;
    reading found = read_text(info, name, &text);
    if (found == READ)
        found = read_listed_text(text, scalar, room);
    free(text);
    if (found != ABSENT)
        return found;
    if (is_single(info, name))
        return OTHER_KIND;
    return has_integers || has_floats ? READ : ABSENT;
}

/* The value of an attribute that is a list; the caller frees the room. Integers are
 * floats as well, and floats may be text. */
static reading read_list(const void *info, const ort_scalar *scalar, dlb_scalar *value,
                         dlb_list_room **room) {
    *room = make_list(scalar->kind, value);
    reading found = *room == NULL ? NO_MEMORY : fill_list(info, scalar, *room);
    if (found == ABSENT)
        *value = scalar->value;
    else if (found == READ && scalar->length >= 0 &&
             (*room)->list.count != scalar->length)
        found = OTHER_LENGTH;
    return found;
}

/* The value of an attribute as the kernel takes it, whatever the model has: an integer
 * is a float as well. */
static reading read_attribute(const void *info, const ort_scalar *scalar,
                              dlb_scalar *value, char **text) {
    int64_t integer;
    float number;
    *value = scalar->value;
    if (is_ok(ort.KernelInfoGetAttribute_int64(info, scalar->name, &integer))) {
        *value = (dlb_scalar){DLB_INT, {.i = integer}};
        if (scalar->kind == DLB_FLOAT)
            *value = (dlb_scalar){DLB_FLOAT, {.f = (double)integer}};
        return scalar->kind != DLB_STRING ? READ : OTHER_KIND;
    }
    if (is_ok(ort.KernelInfoGetAttribute_float(info, scalar->name, &number))) {
        *value = (dlb_scalar){DLB_FLOAT, {.f = (double)number}};
        return scalar->kind == DLB_FLOAT ? READ : OTHER_KIND;
    }
    reading found = read_text(info, scalar->name, text);
    if (found != READ)
        return found;
    value->kind = scalar->kind;
    if (scalar->kind == DLB_FLOAT)
        return read_double(*text, &value->value.f) ? READ : OTHER_KIND;
    value->value.s = *text;
    return scalar->kind == DLB_STRING ? READ : OTHER_KIND;
}

static void destroy_node(void *state) {
    ort_node *node = state;
    for (size_t i = 0; i < DLB_MAX_SCALARS; i++) {
        free(node->texts[i]);
        free(node->lists[i]);
    }
    free(node->proof);
    free(node);
}

static status refuse_attribute(const ort_kernel *kernel, const ort_scalar *scalar,
                               const char *problem) {
    static const char *const kinds[] = {"none",   "int",   "float",
                                        "string", "int[]", "float[]"};
    char text[DLB_ERROR_SIZE], length[16] = "";
    if (scalar->length >= 0)
        snprintf(length, sizeof length, " of %d", (int)scalar->length);
    snprintf(text, sizeof text, "%s: attribute '%s' %s; the kernel takes %s %s%s",
             kernel->kernel->name, scalar->name, problem,
             scalar->kind < DLB_INTS ? "a scalar of kind" : "a list,",
             kinds[scalar->kind], length);
    return ort.CreateStatus(INVALID_ARGUMENT, text);
}

static status read_scalar(const ort_kernel *kernel, ort_node *node, const void *info,
                          size_t i) {
    const ort_scalar *scalar = &kernel->scalars[i];
    dlb_scalar *value = &node->scalars[i];
    reading found = scalar->kind >= DLB_INTS
                        ? read_list(info, scalar, value, &node->lists[i])
                        : read_attribute(info, scalar, value, &node->texts[i]);
    if (found == NO_MEMORY)
        return ort.CreateStatus(FAIL, "out of memory");
    if (found == OTHER_KIND)
        return refuse_attribute(kernel, scalar, "is of another kind");
    if (found == OTHER_LENGTH)
        return refuse_attribute(kernel, scalar, "has another number of elements");
    if (scalar->is_required && value->kind == DLB_NONE)
        return refuse_attribute(kernel, scalar, "is missing");
    return NULL;
}

static status create_node(const custom_op *op, const void *Py_UNUSED(api),
                          const void *info, void **made) {
    const ort_kernel *kernel = op->kernel;
    ort_node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return ort.CreateStatus(FAIL, "out of memory");
    node->op = op;
    status problem = NULL;
    for (size_t i = 0; problem == NULL && i < kernel->scalar_count; i++)
        problem = read_scalar(kernel, node, info, i);
    if (problem != NULL)
        destroy_node(node);
    else
        *made = node;
    return problem;
}

/* ---- one run: the runtime's tensors as DLTensors, the kernel, its results ---- */

enum { DIMS_ROOM = 1024 }; /* shapes and strides of all tensors of a call */
_Static_assert(DIMS_ROOM >= 4 * DLB_MAX_NDIM, "an input and a result of any rank");

typedef struct {
    const custom_op *op;
    const dlb_kernel *kernel;
    handle context;
    status problem; /* the runtime's own */
    int32_t dim_count;
    int64_t dims[DIMS_ROOM + DLB_MAX_NDIM];
    dlb_frame frame;
} ort_call;

static int fail_by_status(ort_call *call, status answer) {
    call->problem = answer;
    return -1;
}

static int64_t *take_dims(ort_call *call, size_t ndim) {
    if (ndim > DLB_MAX_NDIM || (size_t)call->dim_count + 2 * ndim > DIMS_ROOM) {
        dlb_frame_fail(&call->frame, DLB_ERROR_VALUE,
                       "%s: the arguments have too many dimensions",
                       call->kernel->name);
        return NULL;
    }
    int64_t *dims = call->dims + call->dim_count;
    call->dim_count += 2 * (int32_t)ndim;
    return dims;
}

static void describe(DLTensor *tensor, void *data, uint8_t type, int32_t ndim,
                     int64_t *dims, int64_t *strides) {
    dlb_row_major_strides(ndim, dims, strides);
    tensor->data = data;
    tensor->device.device_type = kDLCPU;
    tensor->device.device_id = 0;
    tensor->ndim = ndim;
    tensor->dtype = element_types[type];
    tensor->shape = dims;
    tensor->strides = strides;
    tensor->byte_offset = 0;
}

/* The extents of a value: its own, or a copy. */
static int read_dims(ort_call *call, const void *value, int64_t **dims, size_t *ndim) {
    handle info;
    status answer = ort.GetTensorTypeAndShape(value, &info);
    if (answer != NULL)
        return fail_by_status(call, answer);
    answer = ort.GetDimensionsCount(info, ndim);
    if (answer == NULL && (*dims = take_dims(call, *ndim)) != NULL)
        answer = ort.GetDimensions(info, *dims, *ndim);
    ort.ReleaseTensorTypeAndShapeInfo(info);
    if (answer != NULL)
        return fail_by_status(call, answer);
    return *dims == NULL ? -1 : 0;
}

static int point_at_dims(ort_call *call, const void *value, int64_t **dims,
                         size_t *ndim) {
    int type;
    const int64_t *found;
    status answer = get_shape_in_place(value, &type, &found, ndim);
    if (answer != NULL)
        return fail_by_status(call, answer);
    *dims = (int64_t *)(uintptr_t)found;
    return 0;
}

static int describe_input(ort_call *call, int32_t index, const void *value) {
    size_t ndim = 0;
    int64_t *dims = NULL, *room;
    void *data = NULL;
    if ((get_shape_in_place != NULL ? point_at_dims : read_dims)(call, value, &dims,
                                                                 &ndim) < 0)
        return -1;
    status answer = ort.GetTensorMutableData(value, &data);
    if (answer != NULL)
        return fail_by_status(call, answer);
    if ((room = take_dims(call, ndim)) == NULL)
        return -1;
    describe(&call->frame.tensors[index], data, call->op->inputs[index], (int32_t)ndim,
             dims, room);
    return 0;
}

static int take_input(ort_call *call, int32_t index, size_t given) {
    const void *value = NULL;
    bool is_mutated = call->op->kernel->mutated >> index & 1;
    call->frame.flags[index] = is_mutated ? 0 : DLPACK_FLAG_BITMASK_READ_ONLY;
    status answer =
        (size_t)index < given
            ? ort.KernelContext_GetInput(call->context, (size_t)index, &value)
            : NULL;
    if (answer != NULL)
        return fail_by_status(call, answer);
    if (value != NULL)
        return describe_input(call, index, value);
    call->frame.tensors[index] = (DLTensor){.ndim = -1, .device = {kDLCPU, 0}};
    return 0;
}

static void take_scalars(dlb_frame *frame, const ort_node *node) {
    frame->scalar_count = node->op->kernel->scalar_count;
    for (int32_t i = 0; i < frame->scalar_count; i++)
        frame->scalars[i] = node->scalars[i];
}

static int take_inputs(ort_call *call, const ort_node *node) {
    const ort_kernel *kernel = call->op->kernel;
    dlb_frame *frame = &call->frame;
    size_t given = kernel->input_count;
    if (kernel->optional != 0) {
        status answer = ort.KernelContext_GetInputCount(call->context, &given);
        if (answer != NULL)
            return fail_by_status(call, answer);
    }
    for (int32_t i = 0; i < kernel->input_count; i++)
        if (take_input(call, i, given) < 0)
            return -1;
    frame->input_count = frame->tensor_count = kernel->input_count;
    take_scalars(frame, node);
    return 0;
}

static void *make_output(ort_call *call, size_t output, const int64_t *dims,
                         int32_t ndim) {
    handle value = NULL;
    void *data = NULL;
    status answer =
        ort.KernelContext_GetOutput(call->context, output, dims, (size_t)ndim, &value);
    if (answer == NULL)
        answer = ort.GetTensorMutableData(value, &data);
    if (answer != NULL)
        fail_by_status(call, answer);
    return data;
}

static int make_result(ort_call *call, int32_t result) {
    dlb_frame *frame = &call->frame;
    int64_t *dims = call->dims + call->dim_count; /* there is room for any rank */
    DLDataType dtype;
    int32_t ndim = dlb_signature_result(call->kernel->signature, result,
                                        &frame->bindings, &dtype, dims);
    if (ndim < 0) /* Python finds out why */
        return dlb_frame_refuse(call->kernel, frame, 0, "mismatch", -1);
    if (take_dims(call, (size_t)ndim) == NULL)
        return -1;
    void *data = make_output(call, (size_t)result, dims, ndim);
    if (call->problem != NULL)
        return -1;
    frame->flags[frame->tensor_count] = 0;
    describe(&frame->tensors[frame->tensor_count++], data, call->op->outputs[result],
             ndim, dims, dims + ndim);
    return 0;
}

/* Values of a model never change: what a kernel writes in place is an output, which
 * begins as a copy of the input. */
static int copy_mutated(ort_call *call, int32_t input, int32_t output) {
    DLTensor *tensor = &call->frame.tensors[input];
    void *data = make_output(call, (size_t)output, tensor->shape, tensor->ndim);
    if (call->problem != NULL)
        return -1;
    int64_t bytes = dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor));
    if (bytes > 0)
        memcpy(data, tensor->data, (size_t)bytes);
    tensor->data = data;
    return 0;
}

static int make_outputs(ort_call *call) {
    int32_t next = call->kernel->signature->result_count;
    for (int32_t i = 0; i < next; i++)
        if (make_result(call, i) < 0)
            return -1;
    for (int32_t i = 0; i < call->frame.input_count; i++)
        if ((call->op->kernel->mutated >> i & 1) && copy_mutated(call, i, next++) < 0)
            return -1;
    return 0;
}

static status report(ort_call *call) {
    dlb_error *error = &call->frame.error;
    if (call->problem != NULL)
        return call->problem;
    bool is_of_caller = error->kind == DLB_ERROR_TYPE ||
                        error->kind == DLB_ERROR_VALUE ||
                        error->kind == DLB_ERROR_BUFFER;
    status made = ort.CreateStatus(is_of_caller ? INVALID_ARGUMENT : FAIL, error->text);
    dlb_error_clear(error);
    return made;
}

/* ---- runs like one that passed all checks ---- */

/* A kernel of C, all of whose tensors are the model's. */
static bool may_be_proved(const ort_call *call) {
    const ort_kernel *kernel = call->op->kernel;
    return get_shape_in_place != NULL && kernel->optional == 0 &&
           kernel->mutated == 0 && !call->kernel->needs_gil;
}

static void keep_proof(ort_node *node, const ort_call *call) {
    const dlb_frame *frame = &call->frame;
    size_t room = 0;
    for (int32_t i = 0; i < frame->tensor_count; i++)
        room += 2 * (size_t)frame->tensors[i].ndim;
    ort_proof *made = malloc(sizeof *made + room * sizeof(int64_t)), *none = NULL;
    if (made == NULL)
        return;
    int64_t *next = made->dims;
    made->count = frame->tensor_count;
    for (int32_t i = 0; i < made->count; i++) {
        const DLTensor *tensor = &frame->tensors[i];
        DLTensor *kept = &made->tensors[i];
        size_t size = (size_t)tensor->ndim * sizeof(int64_t);
        *kept = *tensor;
        kept->shape = next;
        kept->strides = next + tensor->ndim;
        memcpy(kept->shape, tensor->shape, size);
        memcpy(kept->strides, tensor->strides, size);
        next += 2 * tensor->ndim;
        made->bytes[i] =
            (uintptr_t)dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor));
    }
    if (!atomic_compare_exchange_strong(&node->proof, &none, made))
        free(made); /* another thread was faster */
}

/* 1: the inputs have the shapes of the proof; 0: they do not; -1: a failure. */
static int take_known_input(ort_call *call, int32_t index, const DLTensor *known) {
    const void *value = NULL;
    int64_t *dims;
    size_t ndim;
    status answer = ort.KernelContext_GetInput(call->context, (size_t)index, &value);
    if (answer != NULL)
        return fail_by_status(call, answer);
    if (point_at_dims(call, value, &dims, &ndim) < 0)
        return -1;
    if (ndim != (size_t)known->ndim)
        return 0;
    for (size_t i = 0; i < ndim; i++)
        if (dims[i] != known->shape[i])
            return 0;
    DLTensor *tensor = &call->frame.tensors[index];
    *tensor = *known;
    answer = ort.GetTensorMutableData(value, &tensor->data);
    call->frame.flags[index] = DLPACK_FLAG_BITMASK_READ_ONLY;
    return answer == NULL ? 1 : fail_by_status(call, answer);
}

static int make_known_output(ort_call *call, int32_t index, const DLTensor *known) {
    DLTensor *tensor = &call->frame.tensors[index];
    *tensor = *known;
    tensor->data = make_output(call, (size_t)(index - call->frame.input_count),
                               known->shape, known->ndim);
    call->frame.flags[index] = 0;
    return call->problem == NULL ? 0 : -1;
}

/* What the shapes do not tell: alignment, and memory that outputs share with inputs,
 * which an application may have bound. */
static bool lies_well(const ort_call *call, const ort_proof *proof, uint32_t written) {
    dlb_span spans[DLB_MAX_TENSORS];
    uintptr_t addresses = 0;
    bool has_null = false;
    for (int32_t i = 0; i < proof->count; i++) {
        uintptr_t data = (uintptr_t)call->frame.tensors[i].data;
        addresses |= data;
        has_null |= data == 0;
        spans[i] = (dlb_span){data, data + proof->bytes[i]};
    }
    return !has_null && dlb_is_aligned(call->kernel, addresses) &&
           dlb_spans_are_apart(call->kernel, spans, proof->count, written);
}

/* 1: it has run; 0: with inputs of other shapes; -1: a failure. */
static int run_proved(ort_call *call, const ort_node *node, const ort_proof *proof) {
    const ort_kernel *kernel = call->op->kernel;
    dlb_frame *frame = &call->frame;
    for (int32_t i = 0; i < kernel->input_count; i++) {
        int matches = take_known_input(call, i, &proof->tensors[i]);
        if (matches <= 0)
            return matches;
    }
    take_scalars(frame, node);
    frame->input_count = kernel->input_count;
    for (int32_t i = frame->input_count; i < proof->count; i++)
        if (make_known_output(call, i, &proof->tensors[i]) < 0)
            return -1;
    frame->tensor_count = proof->count;
    *frame->written = (UINT32_MAX >> (DLB_MAX_TENSORS - proof->count)) &
                      ~((UINT32_C(1) << frame->input_count) - 1);
    if (lies_well(call, proof, *frame->written))
        return dlb_frame_invoke(call->kernel, kernel->target, frame) == 0 ? 1 : -1;
    return dlb_frame_bind(call->kernel, frame) == 0 &&
                   dlb_frame_run(call->kernel, frame) == 0
               ? 1
               : -1;
}

static int run_checked(ort_call *call, const ort_node *node) {
    call->dim_count = 0;
    return take_inputs(call, node) < 0 ||
                   dlb_frame_bind(call->kernel, &call->frame) < 0 ||
                   make_outputs(call) < 0 ||
                   dlb_frame_run(call->kernel, &call->frame) < 0
               ? -1
               : 0;
}

static status run_node(void *state, handle context) {
    ort_node *node = state;
    const ort_proof *proof = atomic_load_explicit(&node->proof, memory_order_acquire);
    ort_call call; /* large: each part is set when it is used */
    call.op = node->op;
    call.kernel = node->op->kernel->kernel;
    call.context = context;
    call.problem = NULL;
    dlb_frame_start(&call.frame, "onnxruntime.OrtValue");
    int done = proof == NULL ? 0 : run_proved(&call, node, proof);
    if (done == 0) {
        done = run_checked(&call, node);
        if (done == 0 && proof == NULL && may_be_proved(&call))
            keep_proof(node, &call);
    }
    return done < 0 ? report(&call) : NULL;
}

/* ---- the shapes of results, as far as the model knows those of the inputs ---- */

/* An extent: a number, or a name of the model, or neither. */
typedef struct {
    int64_t value;      /* -1: unknown */
    const char *symbol; /* not "" where it is known by name only; else NULL */
} extent;

typedef struct {
    int32_t ndim; /* -1: unknown */
    extent extents[DLB_MAX_NDIM];
} known_shape;

typedef struct {
    extent names[DLB_MAX_NAMES];
    known_shape packs[DLB_MAX_PACKS];
    int types[DLB_MAX_DTYPES]; /* of the dtype variables; 0: unknown */
    known_shape input;
    int input_type;
} inference;

static const extent unknown = {-1, NULL};

static bool is_known(extent each) {
    return each.value >= 0 || each.symbol != NULL;
}

static void read_shape(const void *context, inference *known, size_t index) {
    size_t ndim = 0;
    int64_t dims[DLB_MAX_NDIM];
    const char *symbols[DLB_MAX_NDIM];
    handle info = NULL;
    known->input.ndim = -1;
    known->input_type = 0;
    if (!is_ok(ort.ShapeInferContext_GetInputTypeShape(context, index, &info)) ||
        info == NULL || !is_ok(ort.GetTensorElementType(info, &known->input_type)) ||
        !is_ok(ort.GetDimensionsCount(info, &ndim)) || ndim > DLB_MAX_NDIM ||
        !is_ok(ort.GetDimensions(info, dims, ndim)) ||
        !is_ok(ort.GetSymbolicDimensions(info, symbols, ndim)))
        return;
    for (size_t i = 0; i < ndim; i++) {
        bool is_named = symbols[i] != NULL && symbols[i][0] != 0;
        known->input.extents[i] = (extent){dims[i], is_named ? symbols[i] : NULL};
    }
    known->input.ndim = (int32_t)ndim;
}

static void bind_dim(inference *known, const dlb_dim *dim, extent given) {
    extent *name = &known->names[dim->value];
    if (dim->kind == DLB_DIM_NAME && (!is_known(*name) || given.value >= 0))
        *name = given;
}

/* A scalar has no dimensions, as what the model knows nothing of: such inputs say
 * nothing unless the schema says that they have none. */
static void bind_input(inference *known, const dlb_parameter *parameter) {
    const known_shape *given = &known->input;
    int32_t fixed = parameter->dim_count - (parameter->pack >= 0);
    if (known->input_type != 0)
        known->types[parameter->dtype] = known->input_type;
    if (given->ndim <= 0 || given->ndim < fixed ||
        (parameter->pack < 0 && given->ndim != fixed))
        return;
    int32_t extra = given->ndim - fixed, at = 0;
    for (int32_t i = 0; i < parameter->dim_count; i++) {
        const dlb_dim *dim = &parameter->dims[i];
        if (dim->kind != DLB_DIM_PACK) {
            bind_dim(known, dim, given->extents[at++]);
            continue;
        }
        known_shape *pack = &known->packs[dim->value];
        if (pack->ndim < 0) {
            pack->ndim = extra;
            memcpy(pack->extents, given->extents + at, (size_t)extra * sizeof(extent));
        }
        at += extra;
    }
}

/* Which of a shape's extents a dimension is; unknown where the ranks do not fit. */
static extent extent_of(const known_shape *given, const dlb_parameter *parameter,
                        int32_t dim) {
    int32_t extra = given->ndim - (parameter->dim_count - (parameter->pack >= 0));
    bool has_pack = parameter->pack >= 0;
    if (given->ndim <= 0 || extra < 0 || (!has_pack && extra > 0))
        return unknown;
    return given->extents[has_pack && dim > parameter->pack ? dim + extra - 1 : dim];
}

/* Names that only expressions determine, where all numbers are known. */
static void solve(const void *context, const dlb_signature *signature,
                  inference *known) {
    int64_t names[DLB_MAX_NAMES];
    for (int32_t i = 0; i < signature->name_count; i++)
        names[i] = known->names[i].value;
    for (int32_t i = 0; i < signature->solution_count; i++) {
        const dlb_solution *solution = &signature->solutions[i];
        const dlb_parameter *parameter = &signature->parameters[solution->parameter];
        const dlb_dim *dim = &parameter->dims[solution->dim];
        read_shape(context, known, (size_t)solution->parameter);
        extent given = extent_of(&known->input, parameter, solution->dim);
        bool can_be = names[solution->name] < 0 && given.value >= 0;
        for (int32_t k = 0; can_be && k < dim->length; k++) {
            const dlb_step *step = &signature->steps[dim->value + k];
            can_be = step->operation != 'n' || step->value == solution->name ||
                     names[step->value] >= 0;
        }
        if (can_be && dlb_signature_solve(signature, solution, given.value, names))
            known->names[solution->name] = (extent){names[solution->name], NULL};
        else if (can_be)
            names[solution->name] = -1;
    }
}

static extent evaluate(const inference *known, const dlb_signature *signature,
                       const dlb_dim *dim) {
    int64_t names[DLB_MAX_NAMES], value;
    if (dim->kind == DLB_DIM_CONSTANT)
        return (extent){dim->value, NULL};
    if (dim->kind == DLB_DIM_NAME)
        return known->names[dim->value];
    for (int32_t i = 0; i < signature->name_count; i++)
        names[i] = known->names[i].value;
    const dlb_step *steps = signature->steps + dim->value;
    for (int32_t i = 0; i < dim->length; i++)
        if (steps[i].operation == 'n' && names[steps[i].value] < 0)
            return unknown;
    return dlb_steps_run(steps, dim->length, names, &value) && value >= 0
               ? (extent){value, NULL}
               : unknown;
}

/* False: not known in each dimension. What is not known has no name that others lack.
 */
static bool infer_result(const inference *known, const dlb_signature *signature,
                         const dlb_parameter *result, known_shape *shape) {
    shape->ndim = 0;
    for (int32_t i = 0; i < result->dim_count; i++) {
        const dlb_dim *dim = &result->dims[i];
        bool is_pack = dim->kind == DLB_DIM_PACK;
        const known_shape *pack = is_pack ? &known->packs[dim->value] : NULL;
        int32_t count = is_pack ? pack->ndim : 1;
        if (count < 0 || shape->ndim + count > DLB_MAX_NDIM)
            return false;
        for (int32_t k = 0; k < count; k++) {
            extent each = is_pack ? pack->extents[k] : evaluate(known, signature, dim);
            if (!is_known(each))
                return false;
            shape->extents[shape->ndim++] = each;
        }
    }
    return true;
}

static void set_shape(const void *context, size_t output, int type,
                      const known_shape *shape) {
    int64_t dims[DLB_MAX_NDIM];
    const char *symbols[DLB_MAX_NDIM];
    handle info = NULL;
    size_t ndim = (size_t)shape->ndim;
    for (size_t i = 0; i < ndim; i++) {
        dims[i] = shape->extents[i].value;
        symbols[i] = dims[i] < 0 ? shape->extents[i].symbol : "";
    }
    if (!is_ok(ort.CreateTensorTypeAndShapeInfo(&info)))
        return;
    if (is_ok(ort.SetTensorElementType(info, type)) &&
        is_ok(ort.SetDimensions(info, dims, ndim)) &&
        is_ok(ort.SetSymbolicDimensions(info, symbols, ndim)))
        is_ok(ort.ShapeInferContext_SetOutputTypeShape(context, output, info));
    ort.ReleaseTensorTypeAndShapeInfo(info);
}

/* `op` is the first of the operator's name, of whatever dtypes. */
static void infer(const custom_op *op, const dlb_signature *signature,
                  const void *context, inference *known) {
    for (size_t i = 0; i < DLB_MAX_DTYPES; i++)
        known->types[i] = 0;
    for (size_t i = 0; i < DLB_MAX_NAMES; i++)
        known->names[i] = unknown;
    for (size_t i = 0; i < DLB_MAX_PACKS; i++)
        known->packs[i].ndim = -1;
    for (int32_t i = 0; i < signature->input_count; i++) {
        read_shape(context, known, (size_t)i);
        bind_input(known, &signature->parameters[i]);
    }
    solve(context, signature, known);
    for (int32_t i = 0; i < signature->result_count; i++) {
        const dlb_parameter *result =
            &signature->parameters[signature->input_count + i];
        int type = known->types[result->dtype];
        known_shape shape;
        if (infer_result(known, signature, result, &shape))
            set_shape(context, (size_t)i, type != 0 ? type : op->outputs[i], &shape);
    }
    size_t next = (size_t)signature->result_count;
    for (int32_t i = 0; i < signature->input_count; i++) {
        if (!(op->kernel->mutated >> i & 1))
            continue;
        read_shape(context, known, (size_t)i);
        bool is_whole = known->input.ndim > 0;
        for (int32_t k = 0; is_whole && k < known->input.ndim; k++)
            is_whole = is_known(known->input.extents[k]);
        if (is_whole)
            set_shape(context, next, known->input_type, &known->input);
        next++;
    }
}

static status infer_shapes(const custom_op *op, const void *context) {
    inference *known = malloc(sizeof *known);
    if (known != NULL)
        infer(op, op->kernel->kernel->signature, context, known);
    free(known);
    return NULL;
}

/* ---- what the runtime asks of an operator ---- */

static const char *get_name(const custom_op *op) {
    return op->kernel->name;
}

static const char *get_provider(const custom_op *Py_UNUSED(op)) {
    return NULL; /* the CPU's */
}

static int get_input_type(const custom_op *op, size_t index) {
    return op->inputs[index];
}

static size_t get_input_count(const custom_op *op) {
    return op->kernel->input_count;
}

static int get_output_type(const custom_op *op, size_t index) {
    return op->outputs[index];
}

static size_t get_output_count(const custom_op *op) {
    return op->kernel->output_count;
}

static int get_input_need(const custom_op *op, size_t index) {
    return op->kernel->optional >> index & 1 ? OPTIONAL : REQUIRED;
}

static int get_output_need(const custom_op *Py_UNUSED(op), size_t Py_UNUSED(index)) {
    return REQUIRED;
}

static int get_input_memory(const custom_op *Py_UNUSED(op), size_t Py_UNUSED(index)) {
    return MEMORY_DEFAULT;
}

static int return_0(const custom_op *Py_UNUSED(op)) {
    return 0;
}

static int get_start(const custom_op *op) {
    return op->kernel->version;
}

static int return_last(const custom_op *Py_UNUSED(op)) {
    return INT32_MAX; /* the last version of the operator set that has the operator */
}

static const ort_callbacks callbacks = {
    .version = API_VERSION,
    .get_name = get_name,
    .get_provider = get_provider,
    .get_input_type = get_input_type,
    .get_input_count = get_input_count,
    .get_output_type = get_output_type,
    .get_output_count = get_output_count,
    .destroy = destroy_node,
    .get_input_need = get_input_need,
    .get_output_need = get_output_need,
    .get_input_memory = get_input_memory,
    .get_input_arity = return_0,
    .are_inputs_alike = return_0,
    .get_output_arity = return_0,
    .are_outputs_alike = return_0,
    .create_checked = create_node,
    .compute_checked = run_node,
    .infer = infer_shapes,
    .get_start = get_start,
    .get_end = return_last,
};

/* ---- registration: what the runtime calls ---- */

static status register_domain(handle options, ort_domain *each) {
    status problem = NULL;
    if (each->domain == NULL) {
        handle made;
        problem = ort.CreateCustomOpDomain(each->name, &made);
        for (size_t i = 0; problem == NULL && i < each->op_count; i++)
            problem = ort.CustomOpDomain_Add(made, &each->ops[i]);
        if (problem != NULL)
            return problem;
        each->domain = made;
    }
    return ort.AddCustomOpDomain(options, each->domain);
}

static status refuse(const api_base *base, const char *why) {
    status (*const *first)(int, const char *) = base->get_api(1);
    char text[256];
    snprintf(text, sizeof text, "dlbridge: %s (this is ONNX Runtime %s)", why,
             base->get_version());
    return first == NULL ? NULL : (*first)(INVALID_ARGUMENT, text);
}

/* Version N of the table came with release 1.N; the runtime prints a message when it is
 * asked for one that it does not have. */
static bool has_version(const api_base *base, unsigned version) {
    unsigned major = 0, minor = 0;
    return sscanf(base->get_version(), "%u.%u", &major, &minor) == 2 &&
           (major > 1 || minor >= version) && base->get_api(version) != NULL;
}

#define EXPORTED __attribute__((visibility("default")))
EXPORTED status RegisterCustomOps(handle options, const api_base *base);
EXPORTED status RegisterCustomOps(handle options, const api_base *base) {
    if (pending == NULL)
        return refuse(base, "this is no library of operators by itself; call "
                            "dlbridge.register_onnxruntime(session_options, kernels)");
    if (!has_version(base, API_VERSION))
        return refuse(
            base, "kernels need version 21 of its C API, which 1.21 and later have");
    const void *table = base->get_api(API_VERSION);
    if (opened != NULL && opened != table)
        return refuse(base,
                      "another copy of the runtime has the kernels of this process");
    read_table(table,
               has_version(base, SHAPE_VERSION) ? base->get_api(SHAPE_VERSION) : NULL);
    for (size_t i = 0; i < pending->count; i++) {
        status problem = register_domain(options, &pending->domains[i]);
        if (problem != NULL)
            return problem;
    }
    return NULL;
}

/* ---- what Python calls ---- */

static char *copy_text(PyObject *text) {
    const char *bytes = PyUnicode_AsUTF8(text);
    char *copied = bytes == NULL ? NULL : strdup(bytes);
    if (copied == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    return copied;
}

static int parse_list(PyObject *numbers, dlb_scalar_kind kind, dlb_scalar *value) {
    Py_ssize_t count = PyTuple_GET_SIZE(numbers);
    dlb_list_room *room = count > DLB_MAX_LISTED ? NULL : make_list(kind, value);
    if (room == NULL) {
        PyErr_SetString(PyExc_ValueError, "onnxruntime_plan: no room for a list");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (kind == DLB_FLOATS)
            room->values.floats[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(numbers, i));
        else
            room->values.ints[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, i));
    room->list.count = count;
    return PyErr_Occurred() ? -1 : 0;
}

static int parse_default(PyObject *object, dlb_scalar_kind kind, dlb_scalar *value) {
    if (object == Py_None)
        return 0;
    if (PyTuple_Check(object))
        return parse_list(object, kind, value);
    if (PyFloat_Check(object)) {
        *value = (dlb_scalar){DLB_FLOAT, {.f = PyFloat_AsDouble(object)}};
    } else if (PyLong_Check(object)) {
        *value = (dlb_scalar){DLB_INT, {.i = PyLong_AsLongLong(object)}};
    } else {
        *value = (dlb_scalar){DLB_STRING, {.s = copy_text(object)}};
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int parse_scalars(PyObject *scalars, ort_kernel *kernel) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(scalars); i++) {
        ort_scalar *scalar = &kernel->scalars[kernel->scalar_count++];
        PyObject *name, *value;
        int kind, length, is_required;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(scalars, i), "UiiOp", &name, &kind,
                              &length, &value, &is_required))
            return -1;
        scalar->kind = (dlb_scalar_kind)kind;
        scalar->length = length;
        scalar->is_required = is_required;
        if ((scalar->name = copy_text(name)) == NULL ||
            parse_default(value, scalar->kind, &scalar->value) < 0)
            return -1;
    }
    return 0;
}

static int parse_types(PyObject *types, uint8_t *numbers) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
        long number = PyLong_AsLong(PyTuple_GET_ITEM(types, i));
        if (number == -1 && PyErr_Occurred())
            return -1;
        if (number <= 0 || number >= ELEMENTS || element_types[number].bits == 0) {
            PyErr_Format(PyExc_ValueError, "onnxruntime_plan: no element type: %ld",
                         number);
            return -1;
        }
        numbers[i] = (uint8_t)number;
    }
    return 0;
}

/* (key, name, version, scalars, optional, mutated, overloads): one operator for each
 * overload. */
static ort_kernel *parse_kernel(PyObject *described, PyObject **overloads) {
    PyObject *key, *name, *scalars;
    unsigned int optional, mutated;
    int version;
    if (!PyArg_ParseTuple(described, "UUiO!IIO!", &key, &name, &version, &PyTuple_Type,
                          &scalars, &optional, &mutated, &PyTuple_Type, overloads))
        return NULL;
    const char *known = PyUnicode_AsUTF8(key);
    ort_kernel *kernel = known == NULL ? NULL : calloc(1, sizeof *kernel);
    if (kernel == NULL)
        return (ort_kernel *)(PyErr_Occurred() ? NULL : PyErr_NoMemory());
    kernel->version = version;
    kernel->optional = optional;
    kernel->mutated = mutated;
    dlb_entry *entry = dlb_registry_entry(known, strlen(known));
    kernel->kernel = entry == NULL ? NULL : dlb_entry_pin(entry);
    if (kernel->kernel != NULL)
        kernel->target = dlb_kernel_target(kernel->kernel, (DLDevice){kDLCPU, 0});
    if (kernel->kernel == NULL || kernel->target == NULL)
        return (ort_kernel *)PyErr_Format(PyExc_ValueError,
                                          "onnxruntime_plan: no kernel %U", key);
    if ((kernel->name = copy_text(name)) == NULL || parse_scalars(scalars, kernel) < 0)
        return NULL;
    return kernel;
}

static int parse_ops(PyObject *described, ort_domain *domain) {
    PyObject *overloads, *inputs, *outputs;
    ort_kernel *kernel = parse_kernel(described, &overloads);
    if (kernel == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(overloads); i++) {
        custom_op *op = &domain->ops[domain->op_count++];
        op->callbacks = callbacks;
        if (kernel->optional !=
            0) /* the runtime reads the type of one that is missing */
            op->callbacks.infer = NULL;
        op->kernel = kernel;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(overloads, i), "O!O!", &PyTuple_Type,
                              &inputs, &PyTuple_Type, &outputs) ||
            parse_types(inputs, op->inputs) < 0 ||
            parse_types(outputs, op->outputs) < 0)
            return -1;
        kernel->input_count = (uint8_t)PyTuple_GET_SIZE(inputs);
        kernel->output_count = (uint8_t)PyTuple_GET_SIZE(outputs);
    }
    return 0;
}

static int parse_domain(PyObject *described, ort_domain *domain) {
    PyObject *name, *kernels;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(described, "UO!n", &name, &PyTuple_Type, &kernels, &count) ||
        (domain->name = copy_text(name)) == NULL)
        return -1;
    domain->ops = calloc((size_t)count, sizeof *domain->ops);
    if (domain->ops == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kernels); i++)
        if (parse_ops(PyTuple_GET_ITEM(kernels, i), domain) < 0)
            return -1;
    return 0;
}

static const char plan_name[] = "dlbridge.onnxruntime.plan";

static int parse_element_types(PyObject *types) {
    PyObject *number, *triple;
    for (Py_ssize_t next = 0; PyDict_Next(types, &next, &number, &triple);) {
        long place = PyLong_AsLong(number);
        if (place < 0 || place >= ELEMENTS) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "onnxruntime_plan: no element type");
            return -1;
        }
        if (dlb_parse_dtype(triple, &element_types[place]) < 0)
            return -1;
    }
    return 0;
}

static PyObject *onnxruntime_plan(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *types, *domains;
    if (!PyArg_ParseTuple(args, "O!O!:onnxruntime_plan", &PyDict_Type, &types,
                          &PyTuple_Type, &domains) ||
        parse_element_types(types) < 0)
        return NULL;
    size_t count = (size_t)PyTuple_GET_SIZE(domains);
    ort_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL || (plan->domains = calloc(count, sizeof *plan->domains)) == NULL)
        return PyErr_NoMemory();
    for (; plan->count < count; plan->count++)
        if (parse_domain(PyTuple_GET_ITEM(domains, (Py_ssize_t)plan->count),
                         &plan->domains[plan->count]) < 0)
            return NULL;
    return PyCapsule_New(plan, plan_name, NULL);
}

static PyObject *onnxruntime_register(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *capsule, *function, *library;
    if (!PyArg_ParseTuple(args, "OOU:onnxruntime_register", &capsule, &function,
                          &library))
        return NULL;
    ort_plan *plan = PyCapsule_GetPointer(capsule, plan_name);
    if (plan == NULL)
        return NULL;
    ort_plan *before = pending;
    pending = plan;
    PyObject *result = PyObject_CallOneArg(function, library);
    pending = before;
    return result;
}

PyMethodDef dlb_onnxruntime_functions[] = {
    {"onnxruntime_plan", onnxruntime_plan, METH_VARARGS,
     "onnxruntime_plan($module, element_types, domains, /)\n--\n\nKernels as "
     "operators; "
     "what is returned is kept for good."},
    {"onnxruntime_register", onnxruntime_register, METH_VARARGS,
     "onnxruntime_register($module, plan, function, library, /)\n--\n\nCall what has "
     "the "
     "runtime ask this module for its operators."},
    {NULL, NULL, 0, NULL},
};
