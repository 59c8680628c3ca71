/* Managed tensors: owning one of either version that came in, making one of ours to go
 * out. */
#include "tensor/view.h"
#include "cuda/cuda.h"
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

/* ---- in ---- */

/* Fold the offset into the pointer and fill in absent strides, so that nobody after us
 * needs to know of either. CPU memory is one device, whatever index its framework gives
 * it. */
static const char *normalise(dlb_view *view) {
    DLTensor *dl = &view->dl;
    const char *reason = dlb_layout_check(dl, view->flags);
    if (reason != NULL)
        return reason;
    uint64_t offset = dl->byte_offset;
    dl->byte_offset = 0;
    dlb_advance(dl, (int64_t)offset);
    if (dl->strides == NULL || dl->ndim == 0) {
        dlb_row_major_strides(dl->ndim, dl->shape, view->scratch);
        dl->strides = view->scratch;
    }
    if (dl->shape == NULL)
        dl->shape = view->scratch;
    if (dl->device.device_type == kDLCPU)
        dl->device.device_id = 0;
    return NULL;
}

/* ---- out ---- */

typedef struct {
    union {
        DLManagedTensor legacy;
        DLManagedTensorVersioned versioned;
    };
    _Atomic(dlb_buffer *) buffer; /* NULL once the deleter ran */
    dlb_buffer *kept;             /* keeps the consumer's stream alive */
    dlb_stream_id borrowed;       /* the consumer's stream; 0: not known */
    bool writes;
    int64_t dims[]; /* shape, then strides */
} export_t;

/* Broken consumers call a deleter and leave the capsule as it was, whose destructor
 * then calls it again (TensorFlow 2.21 and torch 2.13 do, on devices they refuse). The
 * struct therefore outlives its release a little: a ring holds the latest ones, so that
 * a second call finds the NULL. */
#define RING_SIZE 64
static _Atomic(export_t *) ring[RING_SIZE];
static _Atomic unsigned ring_next;

int dlb_view_lend(dlb_view *view, dlb_stream to, bool may_call) {
    bool writes = !(view->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
    if (view->buffer->access == NULL)
        return 0;
    if (view->dl.device.device_type == kDLCUDAHost) /* the host may read it at once */
        return may_call ? dlb_access_wait(view->buffer->access, writes) : 1;
    if (to == DLB_STREAM_NONE)
        return 0;
    dlb_stream_id borrowed;
    int status = dlb_access_lend(view->buffer->access, to, writes, may_call, &borrowed);
    if (status == 0)
        view->borrowed = borrowed;
    return status;
}

static void take_back(dlb_buffer *buffer, dlb_stream_id borrowed, bool writes) {
    if (buffer->access != NULL && borrowed.handle != 0)
        dlb_access_take_back(buffer->access, borrowed, writes);
}

static void retire(export_t *export) {
    dlb_buffer *buffer = atomic_exchange(&export->buffer, NULL);
    if (buffer == NULL)
        return;
    take_back(buffer, export->borrowed, export->writes);
    dlb_buffer_drop(buffer);
    if (export->kept != NULL)
        dlb_buffer_drop(export->kept);
    atomic_fetch_sub_explicit(&dlb_live.exports, 1, memory_order_relaxed);
    unsigned slot =
        atomic_fetch_add_explicit(&ring_next, 1, memory_order_relaxed) % RING_SIZE;
    free(atomic_exchange(&ring[slot], export));
}

static void delete_versioned(DLManagedTensorVersioned *managed) {
    retire(managed->manager_ctx);
}

static void delete_legacy(DLManagedTensor *managed) {
    retire(managed->manager_ctx);
}

static export_t *make_export(dlb_view *view, DLTensor *(*tensor_of)(export_t *)) {
    int32_t ndim = view->dl.ndim;
    size_t dims = (size_t)ndim * sizeof(int64_t);
    export_t *export = malloc(sizeof *export + 2 * dims);
    if (export == NULL) {
        take_back(view->buffer, view->borrowed, false);
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    if (dims > 0) { /* without dimensions the pointers may be NULL, which memcpy does
                       not take */
        memcpy(export->dims, view->dl.shape, dims);
        memcpy(export->dims + ndim, view->dl.strides, dims);
    }
    DLTensor *out = tensor_of(export);
    *out = view->dl;
    out->shape = export->dims;
    out->strides = export->dims + ndim;
    atomic_init(&export->buffer, view->buffer);
    export->kept = NULL;
    export->borrowed = view->borrowed;
    export->writes = !(view->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
    atomic_fetch_add_explicit(&dlb_live.exports, 1, memory_order_relaxed);
    return export;
}

static DLTensor *legacy_tensor(export_t *export) {
    return &export->legacy.dl_tensor;
}

static DLTensor *versioned_tensor(export_t *export) {
    return &export->versioned.dl_tensor;
}

DLManagedTensorVersioned *dlb_export_managed(dlb_view *view, uint64_t flags) {
    export_t *export = make_export(view, versioned_tensor);
    if (export == NULL)
        return NULL;
    export->versioned.version =
        (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    export->versioned.manager_ctx = export;
    export->versioned.deleter = delete_versioned;
    export->versioned.flags = flags;
    return &export->versioned;
}

DLManagedTensor *dlb_export_legacy(dlb_view *view) {
    export_t *export = make_export(view, legacy_tensor);
    if (export == NULL)
        return NULL;
    export->legacy.manager_ctx = export;
    export->legacy.deleter = delete_legacy;
    return &export->legacy;
}

void dlb_export_keep(void *context, dlb_buffer *kept) {
    ((export_t *)context)->kept = kept;
}

/* ---- in, continued: both take ownership first ---- */

static const char *own(dlb_view *view, dlb_buffer *buffer) {
    const char *reason = normalise(view);
    if (reason == NULL && !dlb_buffer_track(buffer, view->dl.device))
        reason = "memory";
    if (reason != NULL)
        dlb_buffer_drop(buffer);
    else
        view->buffer = buffer;
    return reason;
}

const char *dlb_take_managed(DLManagedTensorVersioned *managed, dlb_view *view) {
    dlb_buffer *buffer = dlb_buffer_of_managed(managed);
    if (buffer == NULL || managed->version.major != DLPACK_MAJOR_VERSION) {
        if (buffer != NULL)
            dlb_buffer_drop(buffer);
        else if (managed->deleter != NULL)
            managed->deleter(managed);
        return buffer == NULL ? "memory" : "version";
    }
    view->dl = managed->dl_tensor;
    view->flags = managed->flags;
    view->version = managed->version;
    view->borrowed = (dlb_stream_id){0};
    return own(view, buffer);
}

const char *dlb_take_legacy(DLManagedTensor *managed, dlb_view *view) {
    dlb_buffer *buffer = dlb_buffer_of_legacy(managed);
    if (buffer == NULL) {
        if (managed->deleter != NULL)
            managed->deleter(managed);
        return "memory";
    }
    view->dl = managed->dl_tensor;
    view->flags = 0;
    view->version = (DLPackVersion){0, 8};
    view->borrowed = (dlb_stream_id){0};
    return own(view, buffer);
}
