/* Copies and fills, each row an access of its own. */
#include "fake.h"

typedef enum { FROM, TO } side;

/* Memory that no driver knows is pageable memory of the host. */
static bool is_pageable(uint64_t address) {
    return block_find(address) == NULL;
}

static int access_rows(op *op, const copy_work *copy, side side) {
    uint64_t start = side == TO ? copy->to : copy->from;
    size_t pitch = side == TO ? copy->to_pitch : copy->from_pitch;
    size_t slice = side == TO ? copy->to_slice : copy->from_slice;
    if (is_pageable(start))
        return 0;
    bool is_block = copy->height == 1 || pitch == copy->width;
    if (is_block && (copy->depth == 1 || slice == copy->width * copy->height))
        return access_memory(op, start, copy->width * copy->height * copy->depth,
                             side == TO);
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            if (access_memory(op, start + z * slice + y * pitch, copy->width,
                              side == TO) != 0)
                return -1;
    return 0;
}

static CUresult copy_run(action *self, op *op) {
    const copy_work *copy = &self->copy;
    op->is_copy = true;
    if (self->is_prompt)
        deferred_flush(&op->now);
    if (access_rows(op, copy, FROM) != 0 || access_rows(op, copy, TO) != 0)
        return SUCCESS; /* a GPU would say so later */
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memmove((char *)(uintptr_t)copy->to + z * copy->to_slice +
                        y * copy->to_pitch,
                    (char *)(uintptr_t)copy->from + z * copy->from_slice +
                        y * copy->from_pitch,
                    copy->width);
    return SUCCESS;
}

/* The driver may wait for the stream before it stages pageable memory, or read it when
 * the call has returned, as here where work is deferred: no document excludes it on
 * devices that reach pageable memory by themselves. Into a graph some drivers take such
 * copies and some do not; whoever is to work with all of them leaves them out. */
static CUresult check_pageable(struct stream *stream, const copy_work *copy) {
    if (!is_pageable(copy->to) && !is_pageable(copy->from))
        return SUCCESS;
    if (capture_of(stream) != NULL) {
        capture_break(stream);
        return refuse(CAPTURE_UNSUPPORTED, "a copy of pageable memory in a capture");
    }
    pageable_copies++;
    return SUCCESS;
}

/* A copy to pageable memory returns when it is complete. */
static CUresult wait_for_copy(const struct stream *stream) {
    return host_waits_for(&stream->now);
}

static CUresult copy_on(CUstream handle, const copy_work *copy) {
    struct stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result == SUCCESS && copy->width * copy->height * copy->depth == 0)
        return SUCCESS;
    if (result == SUCCESS)
        result = check_pageable(stream, copy);
    if (result != SUCCESS)
        return result;
    action work = {copy_run, "a copy", .copy = *copy};
    work.is_prompt = is_pageable(copy->to);
    result = submit(stream, &work);
    if (result == SUCCESS && is_pageable(copy->to))
        result = wait_for_copy(stream);
    return result;
}

static CUresult copy_flat(CUstream stream, uint64_t to, uint64_t from, size_t nbytes) {
    copy_work copy = {to, from, nbytes, nbytes, nbytes, nbytes, nbytes, 1, 1};
    return copy_on(stream, &copy);
}

/* ---- in one piece ---- */

#define FLAT_COPY(name, to_type, from_type)                                            \
    API CUresult name(to_type to, from_type from, size_t nbytes, CUstream stream) {    \
        CALL(SAFE, #name, (uintptr_t)stream, 0, (uint64_t)to, nbytes)                  \
        return call_end(&call,                                                         \
                        copy_flat(stream, (uint64_t)to, (uint64_t)from, nbytes));      \
    }

FLAT_COPY(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
FLAT_COPY(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)
FLAT_COPY(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
FLAT_COPY(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                               CUcontext from_context, size_t nbytes, CUstream stream) {
    CALL(SAFE, "cuMemcpyPeerAsync", (uintptr_t)stream, 0, to, nbytes)
    const block *there = block_find(to), *here = block_find(from);
    if (!handle_is(to_context, ANY_CONTEXT) || !handle_is(from_context, ANY_CONTEXT))
        return call_end(&call, refuse(INVALID_CONTEXT, "a copy to or from no context"));
    if (there == NULL || here == NULL || there->device != to_context->device ||
        here->device != from_context->device)
        return call_end(&call, refuse(INVALID_VALUE, "memory of another context"));
    return call_end(&call, copy_flat(stream, to, from, nbytes));
}

/* Those without a stream are on the legacy one, and the host waits. */
static CUresult copy_and_wait(uint64_t to, uint64_t from, size_t nbytes) {
    struct stream *legacy;
    CUresult result = copy_flat(NULL, to, from, nbytes);
    if (result == SUCCESS)
        result = stream_find(NULL, &legacy);
    if (result == SUCCESS && !is_pageable(to))
        result = wait_for_copy(legacy);
    return result;
}

#define WAITING_COPY(name, to_type, from_type)                                         \
    API CUresult name(to_type to, from_type from, size_t nbytes) {                     \
        CALL(UNSAFE, #name, 0, 0, (uint64_t)to, nbytes)                                \
        return call_end(&call, copy_and_wait((uint64_t)to, (uint64_t)from, nbytes));   \
    }

WAITING_COPY(cuMemcpy, CUdeviceptr, CUdeviceptr)
WAITING_COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
WAITING_COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
WAITING_COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr)

/* ---- in rows ---- */

static uint64_t place(unsigned int kind, const void *host, CUdeviceptr device) {
    return kind == KIND_HOST ? (uint64_t)(uintptr_t)host : device;
}

static bool is_good(unsigned int kind, size_t pitch, size_t x, size_t width,
                    size_t rows) {
    return kind != 0 && kind != KIND_ARRAY && kind <= KIND_UNIFIED &&
           (rows <= 1 || pitch == 0 || pitch >= x + width);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream) {
    CALL(SAFE, "cuMemcpy2DAsync", (uintptr_t)stream,
         .nbytes = c->WidthInBytes * c->Height)
    size_t from_pitch = c->srcPitch ? c->srcPitch : c->srcXInBytes + c->WidthInBytes;
    size_t to_pitch = c->dstPitch ? c->dstPitch : c->dstXInBytes + c->WidthInBytes;
    if (!is_good(c->srcMemoryType, from_pitch, c->srcXInBytes, c->WidthInBytes,
                 c->Height) ||
        !is_good(c->dstMemoryType, to_pitch, c->dstXInBytes, c->WidthInBytes,
                 c->Height))
        return call_end(&call, refuse(INVALID_VALUE, "a 2D copy with wrong pitches"));
    copy_work copy = {
        .to = place(c->dstMemoryType, c->dstHost, c->dstDevice) + c->dstXInBytes +
              c->dstY * to_pitch,
        .from = place(c->srcMemoryType, c->srcHost, c->srcDevice) + c->srcXInBytes +
                c->srcY * from_pitch,
        .to_pitch = to_pitch,
        .from_pitch = from_pitch,
        .width = c->WidthInBytes,
        .height = c->Height,
        .depth = 1,
    };
    return call_end(&call, copy_on(stream, &copy));
}

API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *c, CUstream stream) {
    CALL(SAFE, "cuMemcpy3DAsync", (uintptr_t)stream,
         .nbytes = c->WidthInBytes * c->Height * c->Depth)
    size_t from_pitch = c->srcPitch ? c->srcPitch : c->srcXInBytes + c->WidthInBytes;
    size_t to_pitch = c->dstPitch ? c->dstPitch : c->dstXInBytes + c->WidthInBytes;
    size_t from_height = c->srcHeight ? c->srcHeight : c->srcY + c->Height;
    size_t to_height = c->dstHeight ? c->dstHeight : c->dstY + c->Height;
    if (c->reserved0 != NULL || c->reserved1 != NULL ||
        !is_good(c->srcMemoryType, from_pitch, c->srcXInBytes, c->WidthInBytes, 2) ||
        !is_good(c->dstMemoryType, to_pitch, c->dstXInBytes, c->WidthInBytes, 2) ||
        (c->Depth > 1 &&
         (from_height < c->srcY + c->Height || to_height < c->dstY + c->Height)))
        return call_end(&call, refuse(INVALID_VALUE, "a 3D copy with wrong pitches"));
    copy_work copy = {
        .to = place(c->dstMemoryType, c->dstHost, c->dstDevice) + c->dstXInBytes +
              (c->dstZ * to_height + c->dstY) * to_pitch,
        .from = place(c->srcMemoryType, c->srcHost, c->srcDevice) + c->srcXInBytes +
                (c->srcZ * from_height + c->srcY) * from_pitch,
        .to_pitch = to_pitch,
        .from_pitch = from_pitch,
        .to_slice = to_pitch * to_height,
        .from_slice = from_pitch * from_height,
        .width = c->WidthInBytes,
        .height = c->Height,
        .depth = c->Depth,
    };
    return call_end(&call, copy_on(stream, &copy));
}
