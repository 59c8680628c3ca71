/* The view, and managed tensors in and out. No Python here. */
#ifndef DLBRIDGE_CORE_TENSOR_VIEW_H_
#define DLBRIDGE_CORE_TENSOR_VIEW_H_

#include "cuda/stream.h"
#include "memory/buffer.h"

typedef struct {
    DLTensor dl; /* byte_offset 0, strides set; shape and strides live in `scratch` or
                    the buffer */
    uint64_t flags;
    DLPackVersion version;
    dlb_buffer
        *buffer; /* one reference, passed on or dropped by whoever holds the view */
    dlb_stream_id
        borrowed; /* to a consumer's stream, by dlb_view_lend; stream 0: to none */
    int64_t scratch[DLB_MAX_NDIM];
} dlb_view;

/* ---- managed.c ---- */

/* Take ownership of a managed tensor: whatever happens, its deleter is called exactly
 * once. On success the view owns it. On failure it was released; the reason is
 * returned. */
const char *dlb_take_managed(DLManagedTensorVersioned *managed, dlb_view *view);
const char *dlb_take_legacy(DLManagedTensor *managed, dlb_view *view);
/* A managed tensor of ours over the view's tensor; steals the view's buffer reference
 * even on failure (NULL, no Python error set: out of memory). */
DLManagedTensorVersioned *dlb_export_managed(dlb_view *view, uint64_t flags);
DLManagedTensor *dlb_export_legacy(dlb_view *view);
/* Keep something else until the deleter has run; `context` is the manager_ctx of an
 * export of ours. Steals the reference. */
void dlb_export_keep(void *context, dlb_buffer *kept);

/* Lend the view's memory to a consumer's stream before it is exported; the
 * export's deleter takes it back. Nothing happens to memory of other devices. Returns 1
 * as dlb_access_lend does. On failure the view is as it was. */
int dlb_view_lend(dlb_view *view, dlb_stream to, bool may_call);

#endif /* DLBRIDGE_CORE_TENSOR_VIEW_H_ */
