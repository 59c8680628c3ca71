/* A producer of DLPack whose structs and exchange tables say what they are told to.
 *
 * One managed tensor is lent at a time. Its deleter frees the struct and both arrays,
 * so that a sanitizer sees whoever reads them later, and counts.
 */
#include "dlpack.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct object object;
extern int PyCapsule_IsValid(object *, const char *);
extern void *PyCapsule_GetPointer(object *, const char *);
extern object *PyCapsule_New(void *, const char *, void (*)(object *));
extern void PyErr_SetString(object *, const char *);
extern object *PyExc_ValueError;
extern object _Py_NoneStruct;
extern void Py_IncRef(object *);

/* What is lent next, and what the functions of a table do. */
typedef struct {
    union {
        DLManagedTensor old;
        DLManagedTensorVersioned new;
    } image;
    int64_t length; /* of the arrays, whatever ndim says */
    int32_t is_versioned, without_deleter;
    int32_t status;   /* that a function of the table returns */
    int32_t is_given; /* whether it writes its result */
    int32_t raises;   /* whether it sets an exception */
    int32_t deletes;  /* whether to_py calls the deleter, else it keeps the tensor */
    void *stream;
    int64_t shape[256], strides[256];
} plan;

EXPORT plan dlpack_plan;
EXPORT int64_t dlpack_lent, dlpack_deleted;
static void *lent;
static DLManagedTensorVersioned *kept;

/* ---- lending ---- */

static void forget(DLTensor *of) {
    free(of->shape);
    free(of->strides);
    free(lent);
    lent = NULL;
}

static void delete_legacy(DLManagedTensor *self) {
    dlpack_deleted++;
    if (self != lent)
        abort();
    forget(&self->dl_tensor);
}

static void delete_versioned(DLManagedTensorVersioned *self) {
    dlpack_deleted++;
    if (self != lent)
        abort();
    forget(&self->dl_tensor);
}

static int64_t *copy_of(const int64_t *array) {
    size_t nbytes = (size_t)dlpack_plan.length * sizeof *array;
    return memcpy(malloc(nbytes), array, nbytes);
}

/* Free what nobody deletes; 0 where there was nothing. */
EXPORT int dlpack_forget(void) {
    if (lent == NULL)
        return 0;
    forget(dlpack_plan.is_versioned ? &((DLManagedTensorVersioned *)lent)->dl_tensor
                                    : &((DLManagedTensor *)lent)->dl_tensor);
    return 1;
}

static void *lend(void) {
    DLManagedTensor *old = NULL;
    DLManagedTensorVersioned *new = NULL;
    dlpack_forget();
    dlpack_lent++;
    if (dlpack_plan.is_versioned) {
        lent = new = malloc(sizeof *new);
        *new = dlpack_plan.image.new;
        new->deleter = dlpack_plan.without_deleter ? NULL : delete_versioned;
    } else {
        lent = old = malloc(sizeof *old);
        *old = dlpack_plan.image.old;
        old->deleter = dlpack_plan.without_deleter ? NULL : delete_legacy;
    }
    DLTensor *dl = new ? &new->dl_tensor : &old->dl_tensor;
    dl->shape = dl->shape ? copy_of(dlpack_plan.shape) : NULL;
    dl->strides = dl->strides ? copy_of(dlpack_plan.strides) : NULL;
    return lent;
}

static void destroy_capsule(object *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        DLManagedTensor *managed = PyCapsule_GetPointer(capsule, "dltensor");
        if (managed->deleter != NULL)
            managed->deleter(managed);
    } else if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *managed =
            PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->deleter != NULL)
            managed->deleter(managed);
    }
}

EXPORT object *dlpack_capsule(void) {
    return PyCapsule_New(lend(),
                         dlpack_plan.is_versioned ? "dltensor_versioned" : "dltensor",
                         destroy_capsule);
}

/* ---- exchange tables ---- */

static int answer(void) {
    if (dlpack_plan.raises)
        PyErr_SetString(PyExc_ValueError, "the stand-in raises");
    return dlpack_plan.status;
}

static int allocate(DLTensor *prototype, DLManagedTensorVersioned **out,
                    void *error_ctx,
                    void (*set_error)(void *, const char *, const char *)) {
    uint64_t sum = 0; /* of all that may be read; wraps */
    for (int32_t i = 0; i < prototype->ndim; i++)
        sum += (uint64_t)(prototype->shape[i] ^ prototype->strides[i]);
    dlpack_plan.stream = (void *)sum;
    if (dlpack_plan.is_given)
        *out = lend();
    if (dlpack_plan.status != 0 && !dlpack_plan.raises)
        set_error(error_ctx, dlpack_plan.deletes ? NULL : "Kind",
                  "the stand-in refuses");
    return answer();
}

static int from_py(void *x, DLManagedTensorVersioned **out) {
    (void)x;
    if (dlpack_plan.is_given)
        *out = lend();
    return answer();
}

static int to_py(DLManagedTensorVersioned *given, void **out) {
    if (dlpack_plan.deletes)
        given->deleter(given);
    else if (dlpack_plan.status == 0)
        kept = given;
    if (dlpack_plan.is_given) {
        *out = &_Py_NoneStruct;
        if (dlpack_plan.status == 0)
            Py_IncRef(*out);
    }
    return answer();
}

static int borrow(void *x, DLTensor *out) {
    (void)x;
    *out = dlpack_plan.image.new.dl_tensor;
    return answer();
}

static int stream(DLDeviceType type, int32_t index, void **out) {
    (void)type;
    (void)index;
    if (dlpack_plan.is_given)
        *out = dlpack_plan.stream;
    return answer();
}

/* Delete what to_py kept. */
EXPORT void dlpack_let_go(void) {
    if (kept != NULL)
        kept->deleter(kept);
    kept = NULL;
}

/* Several tables, the first of which may lead to those behind it. */
EXPORT DLPackExchangeAPI dlpack_tables[4];

/* Bit i of `functions` is for function i; the others are NULL. */
EXPORT void dlpack_fill_table(int index, uint32_t major, uint32_t minor, int previous,
                              unsigned functions) {
    dlpack_tables[index] = (DLPackExchangeAPI){
        .header = {.version = {major, minor},
                   .prev_api = previous < 0 ? NULL : &dlpack_tables[previous].header},
        .managed_tensor_allocator = functions & 1 ? allocate : NULL,
        .managed_tensor_from_py_object_no_sync = functions & 2 ? from_py : NULL,
        .managed_tensor_to_py_object_no_sync = functions & 4 ? to_py : NULL,
        .dltensor_from_py_object_no_sync = functions & 8 ? borrow : NULL,
        .current_work_stream = functions & 16 ? stream : NULL,
    };
}

EXPORT object *dlpack_table(const char *name) {
    return PyCapsule_New(&dlpack_tables[0], name, NULL);
}
