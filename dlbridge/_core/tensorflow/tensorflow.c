/* One op of TensorFlow for all kernels: its registration, its nodes, its runs.
 *
 * The node carries the kernel's name, never a pointer, so a saved model works in
 * another process that has wrapped a kernel of that name. The results' shapes are set
 * by Python from the schema: TensorFlow's C API does not show attributes to shape
 * functions. */
#define _GNU_SOURCE
#include "tensorflow/tensorflow.h"
#include "kernel/kernel.h"
#include "layout/layout.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the part of TensorFlow's C API that one op needs, declared again ----
 *
 * No headers of TensorFlow, and no link to it: the addresses come from the library that
 * Python has loaded, so one binary serves every release with these functions. */

/* All handles are opaque: TF_Status, TF_Tensor, TF_OpKernelContext and so on. */
typedef void *dlb_tf_handle;
typedef void (*dlb_tf_infer)(dlb_tf_handle context, dlb_tf_handle status);
typedef void *(*dlb_tf_create)(dlb_tf_handle construction);
typedef void (*dlb_tf_compute)(void *state, dlb_tf_handle context);
typedef void (*dlb_tf_delete)(void *state);

#define DLB_TENSORFLOW_FUNCTIONS(X)                                                    \
    X(dlb_tf_handle, NewStatus, (void))                                                \
    X(void, DeleteStatus, (dlb_tf_handle))                                             \
    X(int, GetCode, (dlb_tf_handle))                                                   \
    X(const char *, Message, (dlb_tf_handle))                                          \
    X(void, SetStatus, (dlb_tf_handle, int code, const char *text))                    \
    X(dlb_tf_handle, NewOpDefinitionBuilder, (const char *name))                       \
    X(void, OpDefinitionBuilderAddInput, (dlb_tf_handle, const char *))                \
    X(void, OpDefinitionBuilderAddOutput, (dlb_tf_handle, const char *))               \
    X(void, OpDefinitionBuilderAddAttr, (dlb_tf_handle, const char *))                 \
    X(void, OpDefinitionBuilderSetIsStateful, (dlb_tf_handle, bool))                   \
    X(void, OpDefinitionBuilderSetShapeInferenceFunction,                              \
      (dlb_tf_handle, dlb_tf_infer))                                                   \
    X(void, RegisterOpDefinition, (dlb_tf_handle, dlb_tf_handle status))               \
    X(dlb_tf_handle, NewKernelBuilder,                                                 \
      (const char *op, const char *device, dlb_tf_create, dlb_tf_compute,              \
       dlb_tf_delete))                                                                 \
    X(void, RegisterKernelBuilder,                                                     \
      (const char *name, dlb_tf_handle, dlb_tf_handle status))                         \
    X(void, ShapeInferenceContextSetUnknownShape, (dlb_tf_handle, dlb_tf_handle))      \
    X(void, OpKernelConstruction_GetAttrSize,                                          \
      (dlb_tf_handle, const char *name, int32_t *items, int32_t *bytes,                \
       dlb_tf_handle status))                                                          \
    X(void, OpKernelConstruction_GetAttrString,                                        \
      (dlb_tf_handle, const char *name, char *value, size_t room,                      \
       dlb_tf_handle status))                                                          \
    X(void, OpKernelConstruction_GetAttrTypeList,                                      \
      (dlb_tf_handle, const char *name, int *values, int room, dlb_tf_handle status))  \
    X(void, OpKernelConstruction_Failure, (dlb_tf_handle, dlb_tf_handle status))       \
    X(void, OpKernelContext_Failure, (dlb_tf_handle, dlb_tf_handle status))            \
    X(void, GetInput,                                                                  \
      (dlb_tf_handle, int index, dlb_tf_handle *tensor, dlb_tf_handle status))         \
    X(dlb_tf_handle, AllocateOutput,                                                   \
      (dlb_tf_handle, int index, int dtype, const int64_t *shape, int ndim,            \
       size_t bytes, dlb_tf_handle status))                                            \
    X(dlb_tf_handle, ForwardInputOrAllocateOutput,                                     \
      (dlb_tf_handle, const int *candidates, int candidate_count, int index,           \
       const int64_t *shape, int ndim, int *forwarded, dlb_tf_handle status))          \
    X(void *, TensorData, (dlb_tf_handle))                                             \
    X(int, NumDims, (dlb_tf_handle))                                                   \
    X(int64_t, Dim, (dlb_tf_handle, int))                                              \
    X(int, TensorType, (dlb_tf_handle))                                                \
    X(void, DeleteTensor, (dlb_tf_handle))

typedef struct {
#define DLB_DECLARE(result, name, arguments) result(*name) arguments;
    DLB_TENSORFLOW_FUNCTIONS(DLB_DECLARE)
#undef DLB_DECLARE
} dlb_tensorflow_api;

static dlb_tensorflow_api dlb_tf;

/* The codes of TF_Code that we use. */
enum {
    DLB_TF_OK = 0,
    DLB_TF_UNKNOWN = 2,
    DLB_TF_INVALID_ARGUMENT = 3,
    DLB_TF_NOT_FOUND = 5,
    DLB_TF_RESOURCE_EXHAUSTED = 8,
    DLB_TF_INTERNAL = 13,
};

#define DLB_TF_DTYPES 64 /* more than TF_DataType has numbers */

/* DLPack's dtype for each TF_DataType; bits 0: none that a kernel can take. */
static DLDataType dlb_tf_dtypes[DLB_TF_DTYPES];

/* The part of a kernel that one node of a graph keeps; made once for each node, and
 * never in the cache when the node's turn comes: what every run needs lies in one line
 * of it. */
typedef struct {
    _Atomic(dlb_entry *) entry; /* NULL until somebody has wrapped the kernel */
    char *name;
    dlb_scalar *scalars;
    uint32_t *absent;    /* tensors of the schema that are left out */
    uint32_t *batched;   /* tensors that are batches */
    bool is_batch;       /* there are such; else it is one call of the kernel */
    int16_t input_count; /* of tensors, those that are left out included */
    int16_t output_count;
    uint8_t scalar_count, traced_count;
    uint8_t *outputs; /* TensorFlow's numbers of their dtypes */
    uint32_t traced; /* bit i: the value of scalar i is one of the node's last inputs */
    char *text;      /* the attribute that the scalars were read from */
} tf_node;

/* ---- the attributes of a node, read once when TensorFlow makes the node's kernel ----
 */

static char *read_string(dlb_tf_handle construction, const char *name,
                         dlb_tf_handle status) {
    int32_t items = 0, bytes = 0;
    dlb_tf.OpKernelConstruction_GetAttrSize(construction, name, &items, &bytes, status);
    if (dlb_tf.GetCode(status) != DLB_TF_OK)
        return NULL;
    char *text = bytes < 0 ? NULL : calloc(1, (size_t)bytes + 1);
    if (text != NULL && bytes > 0)
        dlb_tf.OpKernelConstruction_GetAttrString(construction, name, text,
                                                  (size_t)bytes, status);
    if (text != NULL && strlen(text) == (size_t)bytes)
        return text;
    free(text); /* a zero byte would end it too early */
    return NULL;
}

/* Whether all characters are among `digits`; strto* also take spaces and signs. */
static bool consists_of(const char *text, const char *digits) {
    return *text != 0 && text[strspn(text, digits)] == 0;
}

/* A decimal number of int64. */
static bool read_integer(const char *text, dlb_scalar *scalar) {
    char *end;
    errno = 0;
    scalar->kind = DLB_INT;
    scalar->value.i = strtoll(text, &end, 10);
    return errno == 0 && consists_of(text + (*text == '-'), "0123456789");
}

/* The bits of a double, in 16 hexadecimal digits. */
static bool read_double(const char *text, dlb_scalar *scalar) {
    uint64_t bits = strtoull(text, NULL, 16);
    scalar->kind = DLB_FLOAT;
    memcpy(&scalar->value.f, &bits, sizeof bits);
    return strlen(text) == 16 && consists_of(text, "0123456789abcdef");
}

static bool read_value(char kind, const char *value, dlb_scalar *scalar) {
    switch (kind) {
    case 'i':
        return read_integer(value, scalar);
    case 'f':
        return read_double(value, scalar);
    case 's':
        scalar->kind = DLB_STRING;
        scalar->value.s = value;
        return true;
    case 'n':
    case 't':
        scalar->kind = DLB_NONE;
        return *value == 0;
    default:
        return false;
    }
}

/* One scalar is kind, length of the value in bytes, ':', the value, ',': "i2:-7,". The
 * values of 'i' are decimal, those of 'f' the bits of a double in hexadecimal; 'n' is
 * None and 't' a value that comes with the tensors. NULL: not of this form, which
 * `read_scalars` in op.py reads as well. */
static char *read_scalar(char *text, dlb_scalar *scalar, bool *traced) {
    char kind = *text++, *end;
    unsigned long length = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != ':' || strlen(end + 1) <= length)
        return NULL;
    char *value = end + 1;
    end = value + length;
    if (*end != ',')
        return NULL;
    *end = 0; /* a string ends here, for the kernel */
    *traced = kind == 't';
    return read_value(kind, value, scalar) ? end + 1 : NULL;
}

static int read_scalars(tf_node *node) {
    for (char *text = node->text; *text != 0;) {
        int i = node->scalar_count;
        bool traced = false;
        if (i == DLB_MAX_SCALARS)
            return -1;
        text = read_scalar(text, &node->scalars[i], &traced);
        if (text == NULL)
            return -1;
        node->traced |= (uint32_t)traced << i;
        node->traced_count += traced;
        node->scalar_count++;
    }
    return 0;
}

/* One '0' or '1' for each of `count` tensors, or no text at all: the set of those that
 * have `mark`. Returns how many there are, or -1. */
static int read_marks(const char *text, char mark, int32_t count, uint32_t **set) {
    size_t length = strlen(text);
    int found = 0;
    *set = calloc((size_t)dlb_set_words(count) + 1, sizeof **set);
    if (*set == NULL ||
        (length > 0 && (length != (size_t)count || !consists_of(text, "01"))))
        return -1;
    for (size_t i = 0; i < length; i++)
        if (text[i] == mark) {
            dlb_set_add(*set, (int64_t)i);
            found++;
        }
    return found;
}

static int32_t count_marks(const char *text, char mark) {
    int32_t count = 0;
    for (; *text != 0; text++)
        count += *text == mark;
    return count;
}

/* No marks at all: all tensors are there, and none is a batch. */
static int read_tensors(tf_node *node, const char *present, const char *batched,
                        int32_t given) {
    if (given < node->traced_count || given > DLB_MOST_TENSORS ||
        strlen(present) > DLB_MOST_TENSORS)
        return -1;
    int32_t tensors = given - node->traced_count + count_marks(present, '0');
    int absent = read_marks(present, '0', tensors, &node->absent);
    int marked = read_marks(batched, '1', tensors, &node->batched);
    if (tensors > DLB_MOST_TENSORS || absent < 0 || marked < 0)
        return -1;
    for (int32_t i = 0; i < dlb_set_words(tensors); i++)
        if ((node->batched[i] & node->absent[i]) != 0)
            return -1;
    node->is_batch = marked > 0;
    node->input_count = (int16_t)tensors;
    return 0;
}

static int read_outputs(dlb_tf_handle construction, tf_node *node,
                        dlb_tf_handle status) {
    int32_t count = 0, bytes = 0;
    dlb_tf.OpKernelConstruction_GetAttrSize(construction, "Tout", &count, &bytes,
                                            status);
    if (dlb_tf.GetCode(status) != DLB_TF_OK || count < 0 || count > DLB_MOST_TENSORS)
        return -1;
    int *numbers = calloc((size_t)count + 1, sizeof *numbers);
    node->outputs = calloc((size_t)count + 1, sizeof *node->outputs);
    if (numbers != NULL && node->outputs != NULL)
        dlb_tf.OpKernelConstruction_GetAttrTypeList(construction, "Tout", numbers,
                                                    count, status);
    bool is_read =
        numbers != NULL && node->outputs != NULL && dlb_tf.GetCode(status) == DLB_TF_OK;
    for (int32_t i = 0; is_read && i < count; i++)
        node->outputs[i] = numbers[i] > 0 && numbers[i] < DLB_TF_DTYPES
                               ? (uint8_t)numbers[i]
                               : 0; /* no dtype */
    free(numbers);
    node->output_count = (int16_t)count;
    return is_read ? 0 : -1;
}

static int read_attributes(dlb_tf_handle construction, tf_node *node,
                           dlb_tf_handle status) {
    int32_t given = 0, bytes = 0;
    dlb_tf.OpKernelConstruction_GetAttrSize(construction, "Tin", &given, &bytes,
                                            status);
    if (dlb_tf.GetCode(status) != DLB_TF_OK)
        return -1;
    char *present = read_string(construction, "present", status);
    char *batched = read_string(construction, "batched", status);
    node->name = read_string(construction, "kernel", status);
    node->text = read_string(construction, "scalars", status);
    node->scalars = calloc(DLB_MAX_SCALARS, sizeof *node->scalars);
    int failed = present == NULL || batched == NULL || node->name == NULL ||
                 node->text == NULL || node->scalars == NULL ||
                 read_scalars(node) < 0 ||
                 read_tensors(node, present, batched, given) < 0 ||
                 read_outputs(construction, node, status) < 0;
    free(present);
    free(batched);
    return failed ? -1 : 0;
}

static void free_node(void *state) {
    tf_node *node = state;
    if (node == NULL)
        return;
    free(node->name);
    free(node->text);
    free(node->scalars);
    free(node->absent);
    free(node->batched);
    free(node->outputs);
    dlb_count_live(nodes, -1);
    free(node);
}

/* NULL with the status set: an attribute is damaged, or memory is short. */
static tf_node *make_node(dlb_tf_handle construction, dlb_tf_handle status) {
    enum { LINE = 64 };
    size_t size = (sizeof(tf_node) + LINE - 1) / LINE * LINE;
    tf_node *node = aligned_alloc(LINE, size);
    if (node != NULL) {
        dlb_count_live(nodes, 1);
        memset(node, 0, size);
    }
    if (node != NULL && read_attributes(construction, node, status) == 0)
        return node;
    if (dlb_tf.GetCode(status) == DLB_TF_OK) {
        char text[256], shown[160];
        const char *name = node != NULL && node->name != NULL ? node->name : "dlbridge";
        snprintf(text, sizeof text, "%s: the node's attributes are damaged",
                 dlb_show_name(shown, sizeof shown, name, strlen(name)));
        dlb_tf.SetStatus(status, DLB_TF_INVALID_ARGUMENT, text);
    }
    free_node(node);
    return NULL;
}

/* ---- one run: TensorFlow's tensors as DLTensors, the kernel, its results ----
 *
 * A graph is data: its nodes say what they like. So nothing is read or written before
 * all of a node's attributes agree with the kernel's schema and with the inputs.
 *
 * Inputs are used where they lie. An argument that the kernel changes is an output: its
 * input is copied there first, unless nobody else needs the input. Outputs are in
 * memory that TensorFlow allocates.
 *
 * A node with batched inputs calls the kernel once for each element of the batch, with
 * every check of a call of its own. The frame has the tensors of one element: the
 * extent of the batch lies in front of their shapes.
 */

enum { DIMS_ROOM = 1024 }; /* shapes and strides of all tensors of a call */
_Static_assert(DIMS_ROOM >= 4 * DLB_MAX_NDIM, "an input and a result of any rank");

typedef struct {
    dlb_tf_handle context, status;
    const tf_node *node;
    const dlb_kernel *kernel;
    int16_t *inputs;     /* the op's input of each of the kernel's */
    int32_t input_count; /* those that were dealt with */
    dlb_tf_handle *held;
    int64_t size;   /* of the batch; -1: no batched input yet */
    int64_t *steps; /* bytes from one element to the next; batches only */
    int32_t held_count, dim_count, dim_room;
    int64_t *dims;
    dlb_frame frame;
    void *large; /* where the arrays lie that the pointers have; NULL: here */
    int16_t own_inputs[DLB_MAX_TENSORS];
    dlb_tf_handle own_held[DLB_MAX_TENSORS];
    int64_t own_steps[DLB_MAX_TENSORS], own_dims[DIMS_ROOM];
} tf_call;

static _Thread_local dlb_error *listener;

dlb_error *dlb_tf_listen(dlb_error *error) {
    dlb_error *before = listener;
    listener = error;
    return before;
}

/* ---- failure ---- */

/* The status of TensorFlow speaks for itself. */
static int fail_by_status(tf_call *call) {
    return dlb_frame_fail(&call->frame, DLB_ERROR_KERNEL, "%s: %s", call->node->name,
                          dlb_tf.Message(call->status));
}

static int status_ok(const tf_call *call) {
    return dlb_tf.GetCode(call->status) == DLB_TF_OK;
}

static void report_failure(tf_call *call, int missing) {
    static const int codes[] = {
        [DLB_ERROR_TYPE] = DLB_TF_INVALID_ARGUMENT,
        [DLB_ERROR_VALUE] = DLB_TF_INVALID_ARGUMENT,
        [DLB_ERROR_BUFFER] = DLB_TF_INVALID_ARGUMENT,
        [DLB_ERROR_KERNEL] = DLB_TF_INTERNAL,
        [DLB_ERROR_PYTHON] = DLB_TF_UNKNOWN,
        [DLB_ERROR_MEMORY] = DLB_TF_RESOURCE_EXHAUSTED,
    };
    dlb_error *error = &call->frame.error;
    int code = missing ? DLB_TF_NOT_FOUND : codes[error->kind];
    dlb_tf.SetStatus(call->status, code, error->text);
    dlb_tf.OpKernelContext_Failure(call->context, call->status);
    if (listener != NULL && listener->kind == DLB_ERROR_NONE)
        *listener = *error; /* with the exception's reference */
    else
        dlb_error_clear(error);
}

static int fail_stale(tf_call *call) {
    return dlb_frame_fail(&call->frame, DLB_ERROR_VALUE,
                          "%s: this graph was made for another schema of the kernel; "
                          "trace it again",
                          call->node->name);
}

static int fail_batch(tf_call *call) {
    return dlb_frame_fail(&call->frame, DLB_ERROR_VALUE,
                          "%s: the node's inputs are no batch of calls: what its "
                          "attribute batched marks must have a first dimension, of one "
                          "size, for which the results fit into memory; and what the "
                          "kernel writes must be marked",
                          call->node->name);
}

/* ---- tensors ---- */

/* Room for a shape and strides. */
static int64_t *take_dims(tf_call *call, int32_t ndim) {
    if (ndim < 0 || ndim > DLB_MAX_NDIM ||
        call->dim_count + 2 * ndim > call->dim_room) {
        dlb_frame_fail(&call->frame, DLB_ERROR_VALUE,
                       "%s: the arguments have too many dimensions", call->node->name);
        return NULL;
    }
    int64_t *dims = call->dims + call->dim_count;
    call->dim_count += 2 * ndim;
    return dims;
}

static int describe_tensor(tf_call *call, dlb_tf_handle handle, DLTensor *tensor) {
    int number = dlb_tf.TensorType(handle);
    int32_t ndim = dlb_tf.NumDims(handle);
    int64_t *shape = take_dims(call, ndim);
    if (shape == NULL)
        return -1;
    for (int32_t i = 0; i < ndim; i++)
        shape[i] = dlb_tf.Dim(handle, i);
    *tensor = (DLTensor){
        .data = dlb_tf.TensorData(handle),
        .device = {kDLCPU, 0},
        .ndim = ndim,
        .dtype = number >= 0 && number < DLB_TF_DTYPES ? dlb_tf_dtypes[number]
                                                       : (DLDataType){0, 0, 0},
        .shape = shape,
    };
    if (tensor->dtype.bits == 0)
        return dlb_frame_fail(&call->frame, DLB_ERROR_TYPE,
                              "%s: kernels cannot take TensorFlow's dtype number %d",
                              call->node->name, number);
    const char *reason = dlb_layout_check(tensor, 0);
    if (reason != NULL)
        return dlb_frame_fail(&call->frame, DLB_ERROR_VALUE,
                              "%s: kernels cannot take this tensor: %s",
                              call->node->name, reason);
    tensor->strides = shape + ndim;
    dlb_row_major_strides(ndim, shape, tensor->strides);
    return 0;
}

static bool is_mutated(const dlb_kernel *kernel, int32_t index, int32_t count) {
    return dlb_writes_input(kernel, count, index);
}

static bool is_batched(const tf_call *call, int32_t index) {
    return index < call->frame.input_count ? dlb_set_has(call->node->batched, index)
                                           : call->node->is_batch;
}

/* Leave the first element of a batch, whose tensor has a whole number of bytes. */
static void enter_batch(tf_call *call, int32_t index) {
    DLTensor *tensor = &call->frame.tensors[index];
    bool is_empty = dlb_element_count(tensor) == 0; /* then strides may be too large */
    int64_t bytes = tensor->dtype.bits * tensor->dtype.lanes / 8;
    call->steps[index] = is_empty ? 0 : *tensor->strides * bytes;
    tensor->shape++;
    tensor->strides++;
    tensor->ndim--;
}

/* All that is batched has the same number of elements; what the kernel writes is
 * batched, since each call has its own. */
static int take_batch(tf_call *call, int32_t index) {
    const DLTensor *tensor = &call->frame.tensors[index];
    if (tensor->ndim < 1 || (call->size >= 0 && call->size != *tensor->shape))
        return fail_batch(call);
    call->size = *tensor->shape;
    enter_batch(call, index);
    return 0;
}

static int take_input(tf_call *call, int32_t index, int input, bool mutated) {
    dlb_tf_handle handle = NULL;
    dlb_tf.GetInput(call->context, input, &handle, call->status);
    if (!status_ok(call))
        return fail_by_status(call);
    call->inputs[index] = (int16_t)input;
    int failed = describe_tensor(call, handle, &call->frame.tensors[index]);
    if (failed == 0 && dlb_set_has(call->node->batched, index))
        failed = take_batch(call, index);
    else if (failed == 0 && mutated && call->node->is_batch)
        failed = fail_batch(call);
    if (mutated) /* else it would count as needed by somebody; the context keeps it */
        dlb_tf.DeleteTensor(handle);
    else
        call->held[call->held_count++] = handle;
    return failed;
}

static int take_inputs(tf_call *call) {
    const dlb_signature *signature = call->kernel->signature;
    int32_t count = call->node->input_count;
    int next = 0;
    if (signature == NULL || signature->input_count != count)
        return fail_stale(call); /* only kernels with a schema are in graphs */
    for (int32_t i = 0; i < count; i++) {
        bool mutated = is_mutated(call->kernel, i, count);
        call->frame.flags[i] = mutated ? 0 : DLPACK_FLAG_BITMASK_READ_ONLY;
        if (dlb_set_has(call->node->absent, i))
            call->frame.tensors[i] = (DLTensor){.ndim = -1, .device = {kDLCPU, 0}};
        else if (take_input(call, i, next++, mutated) < 0)
            return -1;
    }
    call->frame.input_count = call->frame.tensor_count = count;
    call->input_count = next;
    return 0;
}

/* Those of a graph are float64 or int64, as `_scalar_tensor` in op.py makes them. */
static int take_scalar(tf_call *call, int input, dlb_scalar *scalar) {
    static const DLDataType floating = {kDLFloat, 64, 1}, integer = {kDLInt, 64, 1};
    dlb_tf_handle handle = NULL;
    DLTensor tensor;
    dlb_tf.GetInput(call->context, input, &handle, call->status);
    if (!status_ok(call))
        return fail_by_status(call);
    int failed = describe_tensor(call, handle, &tensor);
    uint32_t key = dlb_dtype_key(tensor.dtype);
    bool is_float = key == dlb_dtype_key(floating);
    if (failed == 0 && (tensor.ndim != 0 || tensor.data == NULL ||
                        (!is_float && key != dlb_dtype_key(integer))))
        failed = fail_stale(call);
    if (failed == 0) {
        scalar->kind = is_float ? DLB_FLOAT : DLB_INT;
        memcpy(&scalar->value, tensor.data, sizeof scalar->value);
    }
    dlb_tf.DeleteTensor(handle);
    return failed;
}

static int take_scalars(tf_call *call) {
    const tf_node *node = call->node;
    if (call->kernel->signature->scalar_count != node->scalar_count)
        return fail_stale(call);
    for (int32_t i = 0; i < node->scalar_count; i++) {
        call->frame.scalars[i] = node->scalars[i];
        if ((node->traced >> i & 1) &&
            take_scalar(call, call->input_count++, &call->frame.scalars[i]) < 0)
            return -1;
    }
    call->frame.scalar_count = node->scalar_count;
    return 0;
}

/* ---- outputs: the results, then what the kernel changes ---- */

/* Whether the node also says that this output has the dtype. */
static bool is_output(const tf_call *call, int32_t output, DLDataType dtype) {
    return output < call->node->output_count &&
           dlb_dtype_key(dlb_tf_dtypes[call->node->outputs[output]]) ==
               dlb_dtype_key(dtype);
}

/* Dtype and shape of a result, from the schema and the inputs; memory comes later. */
static int describe_result(tf_call *call, int32_t result) {
    int64_t shape[DLB_MAX_NDIM], *dims;
    dlb_frame *frame = &call->frame;
    DLDataType dtype;
    int32_t ndim = dlb_signature_result(call->kernel->signature, result,
                                        &frame->bindings, &dtype, shape);
    if (ndim < 0) /* Python finds out why */
        return dlb_frame_refuse(call->kernel, frame, 0, "mismatch", -1);
    if (!is_output(call, result, dtype))
        return fail_stale(call);
    bool batched = call->node->is_batch;
    if ((dims = take_dims(call, ndim + batched)) == NULL)
        return -1;
    *dims = call->size;
    memcpy(dims + batched, shape, (size_t)ndim * sizeof *shape);
    ndim += batched;
    dlb_row_major_strides(ndim, dims, dims + ndim);
    frame->tensors[frame->input_count + result] = (DLTensor){
        .device = {kDLCPU, 0},
        .ndim = ndim,
        .dtype = dtype,
        .shape = dims,
        .strides = dims + ndim,
    };
    if (!batched)
        return 0;
    DLTensor sized = frame->tensors[frame->input_count + result];
    sized.data = dims; /* comes later */
    if (dlb_extent_check(&sized, 0) != NULL)
        return fail_batch(call);
    enter_batch(call, frame->input_count + result);
    return 0;
}

/* All that a node says of its outputs, before any of them is made. */
static int check_outputs(tf_call *call) {
    const dlb_signature *signature = call->kernel->signature;
    const dlb_frame *frame = &call->frame;
    int32_t next = signature->result_count;
    for (int32_t i = 0; i < signature->result_count; i++)
        if (describe_result(call, i) < 0)
            return -1;
    for (int32_t i = 0; i < frame->input_count; i++)
        if (is_mutated(call->kernel, i, frame->input_count) &&
            frame->tensors[i].ndim >= 0 &&
            !is_output(call, next++, frame->tensors[i].dtype))
            return fail_stale(call);
    return next == call->node->output_count ? 0 : fail_stale(call);
}

/* A new output, or NULL with the error. */
static void *hold_output(tf_call *call, dlb_tf_handle handle) {
    if (!status_ok(call)) {
        fail_by_status(call);
        return NULL;
    }
    call->held[call->held_count++] = handle;
    return dlb_tf.TensorData(handle);
}

/* A tensor as TensorFlow has it, the dimension of the batch included. */
static DLTensor whole(const tf_call *call, int32_t index) {
    DLTensor tensor = call->frame.tensors[index];
    if (is_batched(call, index)) {
        tensor.shape--;
        tensor.ndim++;
    }
    return tensor;
}

static size_t count_bytes(const DLTensor *tensor) {
    return (size_t)dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor));
}

static int allocate_result(tf_call *call, int32_t result) {
    DLTensor made = whole(call, call->frame.tensor_count);
    call->frame.tensors[call->frame.tensor_count].data = hold_output(
        call,
        dlb_tf.AllocateOutput(call->context, result, call->node->outputs[result],
                              made.shape, made.ndim, count_bytes(&made), call->status));
    call->frame.flags[call->frame.tensor_count++] = 0;
    return status_ok(call) ? 0 : -1;
}

/* Let the kernel change an output that starts as the input's value. */
static int prepare_mutated(tf_call *call, int32_t index, int32_t output) {
    DLTensor tensor = whole(call, index);
    int input = call->inputs[index], forwarded = -1;
    size_t bytes = count_bytes(&tensor);
    void *data = hold_output(call, dlb_tf.ForwardInputOrAllocateOutput(
                                       call->context, &input, 1, output, tensor.shape,
                                       tensor.ndim, &forwarded, call->status));
    if (!status_ok(call))
        return -1;
    if (bytes > 0 && data != tensor.data)
        memcpy(data, tensor.data, bytes);
    call->frame.tensors[index].data = data;
    return 0;
}

static int prepare_outputs(tf_call *call) {
    int32_t inputs = call->frame.input_count;
    int32_t results = call->kernel->signature->result_count, next = results;
    if (check_outputs(call) < 0)
        return -1;
    for (int32_t i = 0; i < results; i++)
        if (allocate_result(call, i) < 0)
            return -1;
    for (int32_t i = 0; i < inputs; i++)
        if (is_mutated(call->kernel, i, inputs) && call->frame.tensors[i].ndim >= 0 &&
            prepare_mutated(call, i, next++) < 0)
            return -1;
    return 0;
}

/* ---- the run ---- */

static int run_batch(tf_call *call) {
    dlb_frame *frame = &call->frame;
    int failed = 0;
    for (int64_t i = 0; failed == 0 && i < call->size; i++) {
        for (int32_t k = 0; i > 0 && k < frame->tensor_count; k++)
            if (is_batched(call, k) && call->steps[k] != 0)
                frame->tensors[k].data =
                    (char *)frame->tensors[k].data + call->steps[k];
        failed = dlb_frame_run(call->kernel, frame);
    }
    return failed;
}

/* Calls inside a Python kernel are not for the listener of this op. */
static int run_unheard(tf_call *call) {
    dlb_error *before = dlb_tf_listen(NULL);
    int failed = call->node->is_batch ? run_batch(call)
                                      : dlb_frame_run(call->kernel, &call->frame);
    dlb_tf_listen(before);
    return failed;
}

static dlb_entry *find_entry(tf_node *node) {
    dlb_entry *entry = atomic_load_explicit(&node->entry, memory_order_acquire);
    if (entry == NULL) {
        entry = dlb_registry_entry(node->name, strlen(node->name));
        atomic_store_explicit(&node->entry, entry, memory_order_release);
    }
    return entry;
}

static void start(tf_call *call) {
    call->held_count = call->dim_count = 0;
    call->size = -1;
    call->inputs = call->own_inputs;
    call->held = call->own_held;
    call->steps = call->own_steps;
    call->dims = call->own_dims;
    call->dim_room = DIMS_ROOM;
    call->large = NULL;
    dlb_frame_start(&call->frame, "tf.Tensor");
}

/* For a large kernel: one block for all arrays. */
static int make_room(tf_call *call) {
    enum { EACH_DIMS = 32 };
    dlb_frame *frame = &call->frame;
    if (dlb_frame_fit(call->kernel, frame) < 0 || frame->large == NULL)
        return frame->error.kind == DLB_ERROR_NONE ? 0 : -1;
    size_t count = (size_t)frame->room, dims = DIMS_ROOM + count * EACH_DIMS;
    call->large = malloc((dims + count) * sizeof *call->dims +
                         count * sizeof *call->held + count * sizeof *call->inputs);
    if (call->large == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_MEMORY, "%s: out of memory",
                              call->node->name);
    call->dims = call->large;
    call->steps = call->dims + dims;
    call->held = (dlb_tf_handle *)(call->steps + count);
    call->inputs = (int16_t *)(call->held + count);
    call->dim_room = (int32_t)dims;
    return 0;
}

static void run(void *state, dlb_tf_handle context) {
    tf_node *node = state;
    tf_call call; /* large: each part is set when it is used */
    call.context = context;
    call.node = node;
    start(&call);
    call.status = dlb_tf.NewStatus();
    dlb_entry *entry = find_entry(node);
    call.kernel = entry != NULL ? dlb_entry_pin(entry) : NULL;
    if (call.kernel == NULL) {
        char shown[256];
        dlb_frame_fail(
            &call.frame, DLB_ERROR_KERNEL,
            "%s: no kernel of this name is wrapped in this process; call "
            "dlbridge.wrap with this name first",
            dlb_show_name(shown, sizeof shown, node->name, strlen(node->name)));
        report_failure(&call, 1);
    } else {
        if (make_room(&call) < 0 || take_inputs(&call) < 0 || take_scalars(&call) < 0 ||
            dlb_frame_bind(call.kernel, &call.frame) < 0 ||
            prepare_outputs(&call) < 0 || run_unheard(&call) < 0)
            report_failure(&call, 0);
        dlb_entry_unpin(entry, call.kernel);
    }
    for (int32_t i = 0; i < call.held_count; i++)
        dlb_tf.DeleteTensor(call.held[i]);
    dlb_tf.DeleteStatus(call.status);
    free(call.large);
    dlb_frame_end(&call.frame);
}

/* ---- registration ---- */

/* "Call" may be folded, shared and dropped like any function of its inputs; "Effect" is
 * for kernels without results, which are run for what they do, and for those without
 * tensors, whose results TensorFlow would take for constants. "CallTransposed" is in
 * no graph: Python gives it the gradient of "Call", and TensorFlow transposes that. */
static const struct {
    const char *name;
    bool stateful;
} ops[] = {{"DlbridgeCall", false},
           {"DlbridgeCallTransposed", false},
           {"DlbridgeEffect", true}};

static const char *const attributes[] = {
    "kernel: string",       "scalars: string = ''", "present: string = ''",
    "batched: string = ''", "Tin: list(type) >= 0", "Tout: list(type) >= 0",
};

static void infer_shapes(dlb_tf_handle context, dlb_tf_handle status) {
    dlb_tf.ShapeInferenceContextSetUnknownShape(context, status);
}

static void *create_node(dlb_tf_handle construction) {
    dlb_tf_handle status = dlb_tf.NewStatus();
    tf_node *node = make_node(construction, status);
    if (node == NULL)
        dlb_tf.OpKernelConstruction_Failure(construction, status);
    dlb_tf.DeleteStatus(status);
    return node;
}

static void register_definition(const char *name, bool stateful, dlb_tf_handle status) {
    dlb_tf_handle builder = dlb_tf.NewOpDefinitionBuilder(name);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        dlb_tf.OpDefinitionBuilderAddAttr(builder, attributes[i]);
    dlb_tf.OpDefinitionBuilderAddInput(builder, "inputs: Tin");
    dlb_tf.OpDefinitionBuilderAddOutput(builder, "outputs: Tout");
    if (stateful) /* TensorFlow does not look at the value */
        dlb_tf.OpDefinitionBuilderSetIsStateful(builder, true);
    dlb_tf.OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shapes);
    dlb_tf.RegisterOpDefinition(builder, status);
}

int dlb_tf_register(char *error, size_t size) {
    dlb_tf_handle status = dlb_tf.NewStatus();
    int code = DLB_TF_OK;
    for (size_t i = 0; i < sizeof ops / sizeof *ops && code == DLB_TF_OK; i++) {
        register_definition(ops[i].name, ops[i].stateful, status);
        code = dlb_tf.GetCode(status);
        if (code != DLB_TF_OK)
            break;
        dlb_tf_handle builder =
            dlb_tf.NewKernelBuilder(ops[i].name, "CPU", create_node, run, free_node);
        dlb_tf.RegisterKernelBuilder(ops[i].name, builder, status);
        code = dlb_tf.GetCode(status);
    }
    if (code != DLB_TF_OK)
        snprintf(error, size, "%s", dlb_tf.Message(status));
    dlb_tf.DeleteStatus(status);
    return code == DLB_TF_OK ? 0 : -1;
}

/* ---- what Python calls: finding the C API, the registration, eager ops ---- */

/* NULL, or the function that the loaded library does not have, or why it is not found.
 */
static const char *find_functions(const char *library) {
    void *handle = dlopen(library, RTLD_NOLOAD | RTLD_NOW);
    if (handle == NULL)
        return "the library is not loaded";
    const struct {
        const char *name;
        void **function;
    } wanted[] = {
#define DLB_FIND(result, function, arguments)                                          \
    {"TF_" #function, (void **)(void *)&dlb_tf.function},
        DLB_TENSORFLOW_FUNCTIONS(DLB_FIND)
#undef DLB_FIND
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].function = dlsym(handle, wanted[i].name);
        if (*wanted[i].function == NULL)
            return wanted[i].name;
    }
    return NULL; /* `handle` stays open: the op refers to the library for good */
}

static int read_dtypes(PyObject *dtypes) {
    PyObject *number, *triple;
    for (Py_ssize_t next = 0; PyDict_Next(dtypes, &next, &number, &triple);) {
        long place = PyLong_AsLong(number);
        if (place == -1 && PyErr_Occurred())
            return -1;
        if (place < 0 || place >= DLB_TF_DTYPES) {
            PyErr_Format(PyExc_ValueError, "tensorflow_open: no number of a dtype: %ld",
                         place);
            return -1;
        }
        if (dlb_parse_dtype(triple, &dlb_tf_dtypes[place]) < 0)
            return -1;
    }
    return 0;
}

static PyObject *tensorflow_open(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *library;
    PyObject *dtypes;
    char error[DLB_ERROR_SIZE];
    if (!PyArg_ParseTuple(args, "sO!:tensorflow_open", &library, &PyDict_Type, &dtypes))
        return NULL;
    const char *missing = find_functions(library);
    if (missing != NULL)
        return PyErr_Format(PyExc_ImportError, "tensorflow_open: %s: %s", library,
                            missing);
    if (read_dtypes(dtypes) < 0)
        return NULL;
    if (dlb_tf_register(error, sizeof error) < 0)
        return PyErr_Format(PyExc_ImportError, "tensorflow_open: %s", error);
    Py_RETURN_NONE;
}

/* TensorFlow's own error is replaced by the one that our op reported on this thread. */
static PyObject *tensorflow_execute(PyObject *Py_UNUSED(module), PyObject *const *args,
                                    Py_ssize_t count) {
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "tensorflow_execute: a function is missing");
        return NULL;
    }
    dlb_error error;
    error.kind = DLB_ERROR_NONE;
    error.exception = NULL;
    dlb_error *before = dlb_tf_listen(&error);
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)count - 1, NULL);
    dlb_tf_listen(before);
    if (error.kind == DLB_ERROR_NONE)
        return result;
    if (result != NULL) { /* somebody has dealt with the error */
        dlb_error_clear(&error);
        return result;
    }
    if (dlb_clear_error() == 0)
        return dlb_raise(&error);
    dlb_error_clear(&error);
    return NULL;
}

PyMethodDef dlb_tensorflow_functions[] = {
    {"tensorflow_open", tensorflow_open, METH_VARARGS,
     "tensorflow_open($module, library, dtypes, /)\n--\n\nRegister the op with the "
     "loaded TensorFlow."},
    {"tensorflow_execute", (PyCFunction)(void (*)(void))tensorflow_execute,
     METH_FASTCALL,
     "tensorflow_execute($module, function, /, *args)\n--\n\nCall what runs the op "
     "eagerly, and raise our own errors."},
    {NULL, NULL, 0, NULL},
};
