/* What dlbridge_onnxruntime.h reads of a schema, and what it makes of shapes, as text:
 * for test_onnxruntime_library.py, which compares it with what Python says. */
#include <stdlib.h>

static int allocations_left = -1; /* negative: any number */

static void *limited_calloc(size_t count, size_t size) {
    if (allocations_left == 0)
        return NULL;
    allocations_left -= allocations_left > 0;
    return calloc(count, size);
}

#define calloc limited_calloc
#include "dlbridge_kernel.h"
#include "dlbridge_onnxruntime.h"

static int nothing(void *context, DLTensor *tensors, int count) {
    return dlb_set_error(context, "never called: %d tensors at %p", count,
                         (void *)tensors);
}

typedef struct {
    char *next;
    size_t room;
} writer;

static void add(writer *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(out->next, out->room, format, arguments);
    va_end(arguments);
    if (size > 0 && (size_t)size < out->room) {
        out->next += size;
        out->room -= (size_t)size;
    }
}

static void add_list(writer *out, const dlb_list *list) {
    add(out, "list");
    for (int64_t i = 0; i < list->count; i++)
        if (list->ints != NULL)
            add(out, " %lld", (long long)list->ints[i]);
        else
            add(out, " %.17g", list->floats[i]);
    add(out, "\n");
}

static void add_scalar(writer *out, const dlb_ort_scalar *scalar) {
    add(out, "scalar %s %d %d %d %d ", scalar->name, (int)scalar->kind, scalar->length,
        scalar->is_required, scalar->size >= 0 || scalar->pack >= 0);
    switch (scalar->value.kind) {
    case DLB_INT:
        add(out, "int %lld\n", (long long)scalar->value.value.i);
        break;
    case DLB_FLOAT:
        add(out, "float %.17g\n", scalar->value.value.f);
        break;
    case DLB_STRING:
        add(out, "str %s\n", scalar->value.value.s);
        break;
    case DLB_INTS:
    case DLB_FLOATS:
        add_list(out, scalar->value.value.list);
        break;
    default:
        add(out, "none\n");
    }
}

static void add_tensor(writer *out, const dlb_ort_operator *made, int place) {
    const dlb_ort_tensor *tensor = &made->tensors[place];
    add(out, "tensor %d %d %d %d [%.*s]", tensor->dtype, tensor->count,
        tensor->is_optional, tensor->is_mutated, (int)tensor->text.size,
        tensor->text.start);
    for (int i = 0; i < DLB_ORT_ALL_TYPES; i++)
        if (made->dtypes[tensor->dtype].types >> i & 1)
            add(out, " %d", dlb_ort_types[i].number);
    add(out, "\n");
}

/* A value of a call: a number, or how many a list has and then these. */
static const int64_t *take_value(const dlb_ort_scalar *scalar, const int64_t *values,
                                 dlb_scalar *value, dlb_list *list) {
    value->kind = scalar->kind;
    value->value.i = *values;
    if (scalar->kind != DLB_INTS && scalar->kind != DLB_FLOATS)
        return values + 1;
    list->count = *values;
    list->ints = values + 1;
    value->value.list = list;
    return values + 1 + *values;
}

/* The shapes of a call, -1 for the rank of a tensor that is left out. */
static void add_call(writer *out, const dlb_ort_operator *made, const int *ndims,
                     int64_t *dims, const int64_t *sizes) {
    static dlb_ort_call call;
    static dlb_ort_node node;
    dlb_list lists[DLB_ORT_SCALARS];
    dlb_ort_op op;
    memset(&op, 0, sizeof op);
    memset(&node, 0, sizeof node);
    memset(&call, 0, sizeof call);
    op.kernel = made;
    call.op = &op;
    for (int i = 0; i < made->scalar_count; i++)
        sizes = take_value(&made->scalars[i], sizes, &node.scalars[i], &lists[i]);
    for (int i = 0; i < made->input_count; i++) {
        call.tensors[i].ndim = ndims[i];
        call.tensors[i].shape = dims;
        dims += ndims[i] > 0 ? ndims[i] : 0;
    }
    if (!dlb_ort_bind(&call, &node)) {
        add(out, "refused %s\n", call.error);
        return;
    }
    for (int i = 0; i < made->result_count; i++) {
        int64_t shape[DLB_ORT_NDIM];
        int ndim = dlb_ort_result_shape(made, i, &call.bound, shape);
        add(out, ndim < 0 ? "result none" : "result");
        for (int k = 0; k < ndim; k++)
            add(out, " %lld", (long long)shape[k]);
        add(out, "\n");
    }
}

void peer_read(const char *schema, const int *ndims, int64_t *dims,
               const int64_t *sizes, char *text, size_t room);
void peer_read(const char *schema, const int *ndims, int64_t *dims,
               const int64_t *sizes, char *text, size_t room) {
    writer out = {text, room};
    dlb_export described;
    memset(&described, 0, sizeof described);
    described.schema = schema;
    described.is_dltensors = 1;
    described.function = (void (*)(void))nothing;
    dlb_ort_operator *made = dlb_ort_make(&described);
    if (made == NULL) {
        add(&out, "no name\n");
        return;
    }
    add(&out, "name %s %s\n", made->space, made->name);
    if (made->why[0] != 0)
        add(&out, "why %s\n", made->why);
    else {
        for (int i = 0; i < made->scalar_count; i++)
            add_scalar(&out, &made->scalars[i]);
        for (int i = 0; i < made->input_count + made->result_count; i++)
            add_tensor(&out, made, i);
        add_call(&out, made, ndims, dims, sizes);
    }
    dlb_ort_free(made);
}

/* ---- a node whose attributes are all the text "1,2", with too little memory ---- */

static void *refusal(int code, const char *text) {
    static char said[DLB_ORT_TEXT];
    snprintf(said, sizeof said, "%d %s", code, text);
    return said;
}

static void release(void *status) {
    (void)status;
}

static void *get_integer(const void *info, const char *name, int64_t *value) {
    *value = 0;
    return refusal(DLB_ORT_FAIL, info == NULL ? name : "");
}

static void *get_float(const void *info, const char *name, float *value) {
    *value = 0;
    return refusal(DLB_ORT_FAIL, info == NULL ? name : "");
}

static void *get_integers(const void *info, const char *name, int64_t *values,
                          size_t *count) {
    *count = values != NULL;
    return refusal(DLB_ORT_FAIL, info == NULL ? name : "");
}

static void *get_floats(const void *info, const char *name, float *values,
                        size_t *count) {
    *count = values != NULL;
    return refusal(DLB_ORT_FAIL, info == NULL ? name : "");
}

static void *get_text(const void *info, const char *name, char *text, size_t *size) {
    *size = sizeof "1,2";
    if (text != NULL)
        memcpy(text, "1,2", sizeof "1,2");
    return info == NULL && name != NULL ? NULL : refusal(DLB_ORT_FAIL, "");
}

void peer_open(const char *schema, char *text, size_t room);
void peer_open(const char *schema, char *text, size_t room) {
    writer out = {text, room};
    dlb_export described;
    dlb_ort_api api;
    dlb_ort_op op;
    void *node = NULL, *problem;
    memset(&described, 0, sizeof described);
    memset(&api, 0, sizeof api);
    memset(&op, 0, sizeof op);
    described.schema = schema;
    described.is_dltensors = 1;
    described.function = (void (*)(void))nothing;
    api.CreateStatus = refusal;
    api.ReleaseStatus = release;
    api.KernelInfoGetAttribute_int64 = get_integer;
    api.KernelInfoGetAttribute_float = get_float;
    api.KernelInfoGetAttribute_string = get_text;
    api.KernelInfoGetAttributeArray_int64 = get_integers;
    api.KernelInfoGetAttributeArray_float = get_floats;
    op.kernel = dlb_ort_make(&described);
    op.api = &api;
    for (int i = 0; op.kernel != NULL && node == NULL && i < 100; i++) {
        allocations_left = i;
        problem = dlb_ort_create(&op, NULL, NULL, &node);
        allocations_left = -1;
        add(&out, "%s\n", problem != NULL ? (const char *)problem : "made");
    }
    if (node != NULL)
        dlb_ort_destroy(node);
    dlb_ort_free((dlb_ort_operator *)op.kernel);
}
