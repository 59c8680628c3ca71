/* Counted memory and the default CPU allocator. Only `release_object` knows Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "cuda_memory.h"
#include "object.h"

#include <stdlib.h>
#include <string.h>

dlb_live_counts dlb_live;
dlb_allocator_statistics dlb_cpu_statistics;

dlb_buffer *dlb_buffer_new(void (*release)(dlb_buffer *), void *owner, void *data,
                           int64_t nbytes) {
    dlb_buffer *buffer = malloc(sizeof *buffer);
    if (buffer == NULL)
        return NULL;
    atomic_init(&buffer->references, 1);
    buffer->release = release;
    buffer->owner = owner;
    buffer->data = data;
    buffer->nbytes = nbytes;
    buffer->work = NULL;
    atomic_fetch_add_explicit(&dlb_live.buffers, 1, memory_order_relaxed);
    return buffer;
}

bool dlb_buffer_watch(dlb_buffer *buffer, DLDevice device) {
    bool is_pinned = device.device_type == kDLCUDAHost;
    if (device.device_type != kDLCUDA && device.device_type != kDLCUDAManaged &&
        !is_pinned)
        return true;
    buffer->work = dlb_work_new(device.device_id);
    if (buffer->work == NULL)
        return false;
    if (!is_pinned)
        dlb_work_set(buffer->work, DLB_STREAM_LEGACY, DLB_STREAM_NONE);
    return true;
}

void dlb_buffer_free(dlb_buffer *buffer) {
    free(buffer);
    atomic_fetch_sub_explicit(&dlb_live.buffers, 1, memory_order_relaxed);
}

/* ---- managed tensors ---- */

static void release_managed(dlb_buffer *buffer) {
    DLManagedTensorVersioned *managed = buffer->owner;
    if (managed->deleter != NULL)
        managed->deleter(managed);
    dlb_buffer_free(buffer);
}

static void release_legacy(dlb_buffer *buffer) {
    DLManagedTensor *managed = buffer->owner;
    if (managed->deleter != NULL)
        managed->deleter(managed);
    dlb_buffer_free(buffer);
}

dlb_buffer *dlb_buffer_of_managed(DLManagedTensorVersioned *managed) {
    return dlb_buffer_new(release_managed, managed, NULL, 0);
}

dlb_buffer *dlb_buffer_of_legacy(DLManagedTensor *managed) {
    return dlb_buffer_new(release_legacy, managed, NULL, 0);
}

/* ---- memory on loan ---- */

static void release_loan(dlb_buffer *buffer) {
    dlb_buffer_free(buffer);
}

dlb_buffer *dlb_buffer_of_loan(void) {
    return dlb_buffer_new(release_loan, NULL, NULL, 0);
}

/* ---- memory of the default allocator ---- */

static void release_allocation(dlb_buffer *buffer) {
    atomic_fetch_sub_explicit(&dlb_cpu_statistics.bytes_in_use, buffer->nbytes,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&dlb_cpu_statistics.count, 1, memory_order_relaxed);
    free(buffer->owner);
    dlb_buffer_free(buffer);
}

static void count_allocation(int64_t nbytes) {
    dlb_allocator_statistics *s = &dlb_cpu_statistics;
    int64_t now = atomic_fetch_add(&s->bytes_in_use, nbytes) + nbytes;
    int64_t peak = atomic_load(&s->peak_bytes_in_use);
    while (peak < now &&
           !atomic_compare_exchange_weak(&s->peak_bytes_in_use, &peak, now))
        ;
    atomic_fetch_add(&s->count, 1);
    atomic_fetch_add(&s->total, 1);
}

/* Zeroed memory comes from calloc, whose pages cost nothing until touched; the
 * alignment is made by hand there, since no aligned calloc exists. */
dlb_buffer *dlb_buffer_allocate(int64_t nbytes, size_t alignment, bool zero) {
    size_t wanted = nbytes ? (size_t)nbytes : 1;
    void *memory = NULL, *data;
    if (wanted > SIZE_MAX / 2)
        return NULL;
    if (zero) {
        memory = calloc(1, wanted + alignment - 1);
        data =
            (void *)(((uintptr_t)memory + alignment - 1) & ~(uintptr_t)(alignment - 1));
    } else if (posix_memalign(&memory, alignment, wanted) != 0) {
        memory = NULL;
    } else {
        data = memory;
    }
    if (memory == NULL)
        return NULL;
    dlb_buffer *buffer = dlb_buffer_new(release_allocation, memory, data, nbytes);
    if (buffer == NULL) {
        free(memory);
        return NULL;
    }
    count_allocation(nbytes);
    return buffer;
}

/* ---- memory that a Python object keeps ---- */

bool dlb_interpreter_is_gone(void) {
#if PY_VERSION_HEX >= 0x030d0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

static void release_object(dlb_buffer *buffer) {
    PyObject *object = buffer->owner;
    dlb_buffer_free(buffer);
    /* While finalising, taking the GIL would end a foreign thread: leak instead. The
     * thread that finalises still holds the GIL, and may drop references until the very
     * end. */
    if (!Py_IsInitialized())
        return;
    if (PyGILState_Check()) {
        Py_DECREF(object);
        return;
    }
    if (dlb_interpreter_is_gone())
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(object);
    PyGILState_Release(state);
}

dlb_buffer *dlb_buffer_of_object(PyObject *object) {
    dlb_buffer *buffer = dlb_buffer_new(release_object, Py_NewRef(object), NULL, 0);
    if (buffer == NULL) {
        Py_DECREF(object);
        PyErr_NoMemory();
    }
    return buffer;
}

PyObject *dlb_buffer_object(const dlb_buffer *buffer) {
    return buffer->release == release_object ? buffer->owner : NULL;
}

const char *dlb_buffer_kind(const dlb_buffer *buffer) {
    if (buffer->release == release_object)
        return "object";
    if (buffer->release == release_loan)
        return "loan";
    bool is_own = buffer->release == release_allocation || dlb_cuda_is_ours(buffer);
    return is_own ? "allocator" : "managed";
}
