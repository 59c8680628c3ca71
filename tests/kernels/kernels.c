/* Kernels for the tests: each does one thing, and says so by its status. */
#include <time.h>

#include "dlbridge_kernel.h"

int nothing(void *context, DLTensor *args, int n) {
    (void)context, (void)args, (void)n;
    return 0;
}

/* ---- what arrives ---- */

/* Address, number of dimensions and shape of the first tensor, into eight numbers. */
int show_tensor(void *context, DLTensor *args, int n) {
    int64_t *seen = ((dlb_context *)context)->user;
    seen[0] = (int64_t)(uintptr_t)args[0].data;
    seen[1] = args[0].ndim;
    for (int i = 0; i < args[0].ndim && i < 6; i++)
        seen[2 + i] = args[0].shape[i];
    return n == 1 ? 0 : -1;
}

/* user: a table of int64. n, scalar_count, then for each tensor: data, ndim,
 * byte_offset, device type, the first extent and the first stride (or -1). */
int record(void *context, DLTensor *args, int n) {
    const dlb_context *call = (const dlb_context *)context;
    int64_t *out = (int64_t *)call->user;
    *out++ = n;
    *out++ = call->scalar_count;
    for (int i = 0; i < n; i++) {
        int has_dims = args[i].ndim > 0;
        *out++ = (int64_t)(intptr_t)args[i].data;
        *out++ = args[i].ndim;
        *out++ = (int64_t)args[i].byte_offset;
        *out++ = args[i].device.device_type;
        *out++ = has_dims ? args[i].shape[0] : -1;
        *out++ = has_dims ? args[i].strides[0] : -1;
    }
    return 0;
}

/* out (f64[3]): the kind, the integer and the float of each scalar, one after another.
 */
int show_scalars(void *context, DLTensor *args, int n) {
    const dlb_context *call = (const dlb_context *)context;
    double *out = (double *)args[n - 1].data;
    for (int i = 0; i < call->scalar_count; i++) {
        int is_text = call->scalars[i].kind == DLB_STRING;
        *out++ = (double)call->scalars[i].kind;
        *out++ =
            is_text ? call->scalars[i].value.s[0] : (double)dlb_get_int(context, i);
        *out++ = is_text ? 0 : dlb_get_float(context, i);
    }
    return 0;
}

/* ---- arithmetic on row-major float32 ---- */

static int64_t count_of(const DLTensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

static int is_compact(const DLTensor *tensor) {
    int64_t expected = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] > 1 && tensor->strides[i] != expected)
            return 0;
        expected *= tensor->shape[i];
    }
    return (intptr_t)tensor->data % 4 == 0;
}

/* out = -x; 3 where memory is not as it was asked for. */
int negate(void *context, DLTensor *args, int n) {
    (void)context;
    for (int i = 0; i < n; i++)
        if (count_of(&args[i]) > 0 && !is_compact(&args[i]))
            return 3;
    for (int64_t i = 0; i < count_of(&args[0]); i++)
        ((float *)args[1].data)[i] = -((float *)args[0].data)[i];
    return 0;
}

/* x += 1 in place; fails afterwards where a scalar says so. */
int increment(void *context, DLTensor *args, int n) {
    if (!is_compact(&args[n - 1]))
        return 3;
    for (int64_t i = 0; i < count_of(&args[n - 1]); i++)
        ((float *)args[n - 1].data)[i] += 1;
    if (((const dlb_context *)context)->scalar_count && dlb_get_int(context, 0))
        return dlb_set_error(context, "told to fail");
    return 0;
}

/* out (u8[k]) = the bytes of x, packed. */
int copy_bytes(void *context, DLTensor *args, int n) {
    (void)context, (void)n;
    for (int64_t i = 0; i < args[1].shape[0]; i++)
        ((uint8_t *)args[1].data)[i] = ((uint8_t *)args[0].data)[i];
    return 0;
}

/* out (i64[1]): how many optional tensors were left out. */
int count_missing(void *context, DLTensor *args, int n) {
    (void)context;
    int64_t missing = 0;
    for (int i = 0; i < n - 1; i++)
        missing += dlb_is_missing(&args[i]);
    *(int64_t *)args[n - 1].data = missing;
    return 0;
}

/* ---- failures ---- */

int fail_with_text(void *context, DLTensor *args, int n) {
    (void)args;
    return dlb_set_error(context, "%d tensors are %s", n, "too many");
}

int fail_with_status(void *context, DLTensor *args, int n) {
    (void)context, (void)args, (void)n;
    return 7;
}

int fail_with_both(void *context, DLTensor *args, int n) {
    (void)args, (void)n;
    dlb_set_error(context, "no luck");
    return 7;
}

int fail_with_latin(void *context, DLTensor *args, int n) {
    (void)args, (void)n;
    return dlb_set_error(context, "gr\xf6\xdf"
                                  "er");
}

/* Longer than the room for it, and without an end. */
int fail_at_length(void *context, DLTensor *args, int n) {
    (void)args, (void)n;
    dlb_context *call = (dlb_context *)context;
    for (size_t i = 0; i < call->error_size; i++)
        call->error[i] = 'x';
    return -1;
}

/* ---- one pointer for each tensor ---- */

int pointers_0(void) {
    return 0;
}

int pointers_1(DLTensor *a) {
    return a->shape[0] == 1 ? 0 : 4;
}

int pointers_3(DLTensor *a, DLTensor *b, DLTensor *c) {
    return a->shape[0] == 1 && b->shape[0] == 2 && c->shape[0] == 3 ? 0 : 4;
}

int pointers_16(DLTensor *a, DLTensor *b, DLTensor *c, DLTensor *d, DLTensor *e,
                DLTensor *f, DLTensor *g, DLTensor *h, DLTensor *i, DLTensor *j,
                DLTensor *k, DLTensor *l, DLTensor *m, DLTensor *n, DLTensor *o,
                DLTensor *p) {
    DLTensor *all[] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
    for (int x = 0; x < 16; x++)
        if (all[x]->shape[0] != x + 1)
            return 4;
    return 0;
}

/* ---- time ---- */

/* Write whether this thread has the GIL: 2 if it has. */
int PyGILState_Check(void);
int has_gil(void *context, DLTensor *args, int n) {
    (void)context, (void)n;
    *(float *)args->data = PyGILState_Check() ? 2 : 1;
    return 0;
}
