/* The functions of TensorFlow's C API that dlbridge's op needs, for nodes and tensors
 * that a fuzzer made up. They check what TensorFlow checks, and end the process where
 * it would.
 *
 * Memory is the caller's: each tensor ends where a page begins that nobody may touch.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dlbridge_kernel.h"

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, INVALID_ARGUMENT = 3, EXHAUSTED = 8, OUT_OF_RANGE = 11 };

typedef struct {
    int code;
    char text[1200];
} status_t;

typedef struct {
    int32_t dtype, ndim, references;
    int64_t dims[256];
    size_t nbytes;
    void *data;
} tensor_t;

/* One execution, filled in by the fuzzer. */
typedef struct {
    const char *kernel, *scalars, *present, *batched;
    int32_t kernel_size, scalars_size, present_size, batched_size;
    const int32_t *input_types, *output_types;
    int32_t input_count, output_count;
    tensor_t *inputs, *outputs;
    char **rooms; /* the end of the room of each output */
    size_t room;
    bool forwards; /* inputs to outputs, where TensorFlow might */
    bool failed;
    int code;
    char text[1200];
} node_t;

/* Bytes of an element by the number of its dtype; 0: none that is known. */
static const uint8_t sizes[64] = {
    [1] = 4,  [2] = 8,  [3] = 4,  [4] = 1,   [5] = 2,  [6] = 1,   [7] = 24,
    [8] = 8,  [9] = 8,  [10] = 1, [11] = 1,  [12] = 1, [13] = 4,  [14] = 2,
    [15] = 2, [16] = 2, [17] = 2, [18] = 16, [19] = 2, [20] = 64, [21] = 24,
    [22] = 4, [23] = 8, [24] = 1, [25] = 1,  [29] = 1, [30] = 1};

static void die(const char *why) {
    fprintf(stderr, "TensorFlow ends the process: %s\n", why);
    abort();
}

/* ---- status ---- */

EXPORT void *TF_NewStatus(void) {
    return calloc(1, sizeof(status_t));
}
EXPORT void TF_DeleteStatus(void *status) {
    free(status);
}
EXPORT int TF_GetCode(void *status) {
    return ((status_t *)status)->code;
}
EXPORT const char *TF_Message(void *status) {
    return ((status_t *)status)->text;
}
EXPORT void TF_SetStatus(void *at, int code, const char *text) {
    status_t *status = at;
    status->code = code;
    snprintf(status->text, sizeof status->text, "%s", text);
}

/* ---- registration ---- */

static void *(*create)(void *);
static void (*compute)(void *, void *);
static void (*delete)(void *);

EXPORT void *TF_NewOpDefinitionBuilder(const char *name) {
    return (void *)name;
}
EXPORT void TF_OpDefinitionBuilderAddInput(void *builder, const char *text) {
    (void)builder, (void)text;
}
EXPORT void TF_OpDefinitionBuilderAddOutput(void *builder, const char *text) {
    (void)builder, (void)text;
}
EXPORT void TF_OpDefinitionBuilderAddAttr(void *builder, const char *text) {
    (void)builder, (void)text;
}
EXPORT void TF_OpDefinitionBuilderSetIsStateful(void *builder, bool is_stateful) {
    (void)builder, (void)is_stateful;
}
EXPORT void TF_OpDefinitionBuilderSetShapeInferenceFunction(void *builder,
                                                            void (*infer)(void *,
                                                                          void *)) {
    (void)builder, (void)infer;
}
EXPORT void TF_RegisterOpDefinition(void *builder, void *status) {
    (void)builder, (void)status;
}
EXPORT void *TF_NewKernelBuilder(const char *op, const char *device,
                                 void *(*made)(void *), void (*run)(void *, void *),
                                 void (*drop)(void *)) {
    (void)device;
    create = made;
    compute = run;
    delete = drop;
    return (void *)op;
}
EXPORT void TF_RegisterKernelBuilder(const char *name, void *builder, void *status) {
    (void)name, (void)builder, (void)status;
}
EXPORT void TF_ShapeInferenceContextSetUnknownShape(void *context, void *status) {
    (void)context, (void)status;
}

/* ---- a node is made ---- */

EXPORT void TF_OpKernelConstruction_GetAttrSize(void *at, const char *name,
                                                int32_t *items, int32_t *bytes,
                                                void *status) {
    node_t *node = at;
    *items = -1;
    *bytes = -1;
    TF_SetStatus(status, OK, "");
    if (strcmp(name, "Tin") == 0)
        *items = node->input_count;
    else if (strcmp(name, "Tout") == 0)
        *items = node->output_count;
    else if (strcmp(name, "kernel") == 0)
        *bytes = node->kernel_size;
    else if (strcmp(name, "scalars") == 0)
        *bytes = node->scalars_size;
    else if (strcmp(name, "present") == 0)
        *bytes = node->present_size;
    else if (strcmp(name, "batched") == 0)
        *bytes = node->batched_size;
    else
        TF_SetStatus(status, INVALID_ARGUMENT, "no such attribute");
}
EXPORT void TF_OpKernelConstruction_GetAttrString(void *at, const char *name,
                                                  char *value, size_t room,
                                                  void *status) {
    node_t *node = at;
    const char *text = name[0] == 'k'   ? node->kernel
                       : name[0] == 's' ? node->scalars
                       : name[0] == 'b' ? node->batched
                                        : node->present;
    int32_t size = name[0] == 'k'   ? node->kernel_size
                   : name[0] == 's' ? node->scalars_size
                   : name[0] == 'b' ? node->batched_size
                                    : node->present_size;
    memcpy(value, text, (size_t)size < room ? (size_t)size : room);
    TF_SetStatus(status, OK, "");
}
EXPORT void TF_OpKernelConstruction_GetAttrTypeList(void *at, const char *name,
                                                    int *values, int room,
                                                    void *status) {
    node_t *node = at;
    bool in = strcmp(name, "Tin") == 0;
    int32_t count = in ? node->input_count : node->output_count;
    const int32_t *types = in ? node->input_types : node->output_types;
    for (int32_t i = 0; i < count && i < room; i++)
        values[i] = types[i];
    TF_SetStatus(status, OK, "");
}
static void fail(node_t *node, const status_t *status) {
    if (status->code == OK)
        die("a failure with the status OK");
    node->failed = true;
    node->code = status->code;
    snprintf(node->text, sizeof node->text, "%s", status->text);
}
EXPORT void TF_OpKernelConstruction_Failure(void *node, void *status) {
    fail(node, status);
}
EXPORT void TF_OpKernelContext_Failure(void *node, void *status) {
    fail(node, status);
}

/* ---- a node runs ---- */

EXPORT void TF_GetInput(void *at, int index, void **tensor, void *status) {
    node_t *node = at;
    if (index < 0 || index >= node->input_count) {
        TF_SetStatus(status, OUT_OF_RANGE, "no such input");
        return;
    }
    node->inputs[index].references++;
    *tensor = &node->inputs[index];
    TF_SetStatus(status, OK, "");
}

/* As TensorShape: a product beyond 64 bits ends the process. */
static tensor_t *make(node_t *node, int index, const int64_t *dims, int ndim,
                      void *status) {
    tensor_t *made = &node->outputs[index];
    size_t size = node->output_types[index] < 64 ? sizes[node->output_types[index]] : 0;
    int64_t nbytes = 1;
    if (ndim < 0 || ndim > 254)
        die("more than 254 dimensions");
    for (int i = 0; i < ndim; i++)
        if (dims[i] < 0 || __builtin_mul_overflow(nbytes, dims[i], &nbytes))
            die("the elements of an output exceed 64 bits");
    if (size == 0 || __builtin_mul_overflow(nbytes, (int64_t)size, &nbytes) ||
        (size_t)nbytes > node->room) {
        TF_SetStatus(status, EXHAUSTED, "no memory for an output");
        return NULL;
    }
    *made = (tensor_t){.dtype = node->output_types[index],
                       .ndim = ndim,
                       .references = 1,
                       .nbytes = (size_t)nbytes,
                       .data = nbytes ? node->rooms[index] - nbytes : NULL};
    memcpy(made->dims, dims, (size_t)ndim * sizeof *dims);
    TF_SetStatus(status, OK, "");
    return made;
}
EXPORT void *TF_AllocateOutput(void *at, int index, int dtype, const int64_t *dims,
                               int ndim, size_t nbytes, void *status) {
    node_t *node = at;
    if (index < 0 || index >= node->output_count)
        die("an output that is none");
    if (dtype != node->output_types[index]) {
        TF_SetStatus(status, INVALID_ARGUMENT, "another dtype than the node says");
        return NULL;
    }
    tensor_t *made = make(node, index, dims, ndim, status);
    if (made != NULL && made->nbytes != nbytes)
        die("an output of another size than was said");
    return made;
}
EXPORT void *TF_ForwardInputOrAllocateOutput(void *at, const int *candidates, int count,
                                             int index, const int64_t *dims, int ndim,
                                             int *forwarded, void *status) {
    node_t *node = at;
    if (index < 0 || index >= node->output_count)
        die("an output that is none");
    tensor_t *input = &node->inputs[candidates[0]];
    if (node->forwards && count == 1 && input->references == 1 &&
        input->dtype == node->output_types[index]) {
        *forwarded = candidates[0];
        input->references++;
        TF_SetStatus(status, OK, "");
        return input;
    }
    return make(node, index, dims, ndim, status);
}
EXPORT void *TF_TensorData(void *tensor) {
    return ((tensor_t *)tensor)->data;
}
EXPORT int TF_NumDims(void *tensor) {
    return ((tensor_t *)tensor)->ndim;
}
EXPORT int64_t TF_Dim(void *tensor, int index) {
    return ((tensor_t *)tensor)->dims[index];
}
EXPORT int TF_TensorType(void *tensor) {
    return ((tensor_t *)tensor)->dtype;
}
EXPORT void TF_DeleteTensor(void *tensor) {
    if (--((tensor_t *)tensor)->references < 0)
        die("a tensor is deleted too often");
}

/* ---- what the fuzzer calls ---- */

/* Reads and writes every byte of every tensor. */
EXPORT int touch(void *context, DLTensor *tensors, int count) {
    const dlb_context *call = context;
    volatile size_t sum = 0;
    for (int i = 0; i < call->scalar_count; i++)
        if (call->scalars[i].kind == DLB_STRING)
            sum += strlen(call->scalars[i].value.s);
    for (int i = 0; i < count; i++) {
        int64_t nbytes = (tensors[i].dtype.bits * tensors[i].dtype.lanes + 7) / 8;
        if (dlb_is_missing(&tensors[i]))
            continue;
        for (int k = 0; k < tensors[i].ndim; k++)
            nbytes *= tensors[i].shape[k];
        for (volatile char *at = tensors[i].data; nbytes > 0; nbytes--, at++)
            *at = (char)(*at + 1);
    }
    return 0;
}

/* 0: it ran; else the code of the status. */
EXPORT int run_node(node_t *node) {
    node->failed = false;
    void *state = create(node);
    if (state == NULL && !node->failed)
        die("no kernel, and no failure");
    if (state != NULL && node->failed)
        die("a kernel of a node that failed");
    if (state == NULL)
        return node->code;
    compute(state, node);
    delete(state);
    for (int32_t i = 0; i < node->input_count; i++)
        if (node->inputs[i].references != 1)
            die("a reference to an input is left");
    return node->failed ? node->code : 0;
}
