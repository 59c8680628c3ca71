#include "abi/tvm_loan.h"
#include "layout/layout.h"
#include "memory/copy.h"
#include "python/python.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_SIZE = 24 }; /* of every object; a tensor object is a DLTensor after it */

struct dlb_tvm_loan {
    DLManagedTensor managed;
    atomic_flag is_busy;
    bool is_over;    /* the object is gone */
    bool is_kept;    /* it outlives the call: `release` frees the loan */
    PyObject *owner; /* of the memory, or NULL */
    dlb_buffer *copy;
    int64_t numbers[]; /* shape, strides */
};

static void lock(dlb_tvm_loan *loan) {
    while (atomic_flag_test_and_set_explicit(&loan->is_busy, memory_order_acquire))
        sched_yield();
}

static void unlock(dlb_tvm_loan *loan) {
    atomic_flag_clear_explicit(&loan->is_busy, memory_order_release);
}

static void let_go(dlb_tvm_loan *loan) {
    int state;
    if (loan->owner != NULL && dlb_enter_python(&state)) {
        Py_DECREF(loan->owner);
        dlb_leave_python(state);
    }
    if (loan->copy != NULL)
        dlb_buffer_drop(loan->copy);
    free(loan);
}

/* The object's deleter: any thread, during the call or long after it. */
static void release(DLManagedTensor *managed) {
    dlb_tvm_loan *loan = managed->manager_ctx;
    lock(loan);
    loan->is_over = true;
    bool is_kept = loan->is_kept;
    unlock(loan);
    if (is_kept)
        let_go(loan);
}

dlb_tvm_loan *dlb_tvm_lend(const dlb_tvm_objects *api, const DLTensor *tensor,
                           bool is_compact, void **object) {
    size_t rank = (size_t)tensor->ndim, size = rank * sizeof(int64_t);
    dlb_tvm_loan *loan = malloc(sizeof *loan + 2 * size);
    if (loan == NULL)
        return NULL;
    DLTensor *own = &loan->managed.dl_tensor;
    *own = *tensor;
    own->shape = loan->numbers;
    own->strides = loan->numbers + rank;
    if (rank > 0)
        memcpy(own->shape, tensor->shape, size);
    if (is_compact)
        dlb_row_major_strides(own->ndim, own->shape, own->strides);
    else if (rank > 0)
        memcpy(own->strides, tensor->strides, size);
    loan->managed.manager_ctx = loan;
    loan->managed.deleter = release;
    atomic_flag_clear(&loan->is_busy);
    loan->is_over = loan->is_kept = false;
    loan->owner = NULL;
    loan->copy = NULL;
    if (api->make(&loan->managed, 0, 0, object) == 0)
        return loan;
    free(loan);
    return NULL;
}

/* Values for an object that outlives its memory. Memory of a device is cut off. */
static void give_copy(dlb_tvm_loan *loan, DLTensor *seen) {
    DLTensor original = *seen;
    int64_t nbytes = dlb_packed_bytes(seen->dtype, 0, dlb_element_count(seen));
    if (dlb_is_host(seen->device))
        loan->copy = dlb_buffer_allocate(nbytes, 64, false);
    seen->data = loan->copy ? loan->copy->data : NULL;
    if (loan->copy == NULL)
        return;
    int64_t strides[DLB_MAX_NDIM];
    memcpy(strides, original.strides, (size_t)original.ndim * sizeof *strides);
    original.strides = strides;
    dlb_row_major_strides(seen->ndim, seen->shape, seen->strides);
    dlb_copy(seen, 0, &original, 0);
}

/* Whether the object was gone by now. Whoever has the GIL may wait for the lock in
 * `release`, so that the GIL comes first here. */
static bool keep(dlb_tvm_loan *loan, void *object, PyObject *owner) {
    int state;
    bool has_gil = owner != NULL && dlb_enter_python(&state);
    lock(loan);
    bool is_over = loan->is_over;
    if (!is_over && has_gil)
        loan->owner = Py_NewRef(owner);
    else if (!is_over)
        give_copy(loan, (DLTensor *)((char *)object + HEADER_SIZE));
    loan->is_kept = !is_over;
    unlock(loan);
    if (has_gil)
        dlb_leave_python(state);
    return is_over;
}

bool dlb_tvm_end(const dlb_tvm_objects *api, dlb_tvm_loan *loan, void *object,
                 void *owner) {
    api->drop(object);
    lock(loan);
    bool is_over = loan->is_over;
    unlock(loan);
    is_over = is_over || keep(loan, object, owner);
    if (is_over)
        free(loan);
    return is_over || owner != NULL;
}
