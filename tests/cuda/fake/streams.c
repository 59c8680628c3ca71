/* Streams: the default ones, those that are made, and how the host waits for them. */
#include "fake.h"

vclock host_now;
static uint32_t host_time;
static _Thread_local char thread_mark;

void host_reaches(const vclock *now) {
    clock_merge(&host_now, now);
    deferred_flush(now);
}

/* Work of the host itself, such as touching pinned memory. */
void op_of_host(op *self) {
    clock_set(&host_now, HOST, ++host_time);
    *self = (op){.timeline = HOST, .time = host_time, .device = -1};
    self->call = call_number();
    clock_copy(&self->now, &host_now);
}

/* ---- handles ---- */

/* All there ever were: a default stream still waits for the work of a destroyed one. */
static struct stream *streams;

static struct stream *make(struct stream *self, struct context *context,
                           uint32_t flags) {
    self->context = context;
    self->flags = flags;
    self->timeline = timeline_new();
    self->next = streams;
    streams = self;
    return self;
}

/* Default streams are no handles of anybody's. `thread` 0: the legacy one. */
static struct stream *implicit_stream(uintptr_t thread) {
    struct context *context = context_current();
    if (thread == 0 && context->legacy != NULL)
        return context->legacy;
    for (struct stream *at = streams; at != NULL; at = at->next)
        if (at->thread == thread && at->context == context && thread != 0)
            return at;
    struct stream *new = make(calloc(1, sizeof *new), context, 0);
    new->thread = thread;
    if (thread == 0)
        context->legacy = new;
    return new;
}

CUresult stream_find(CUstream handle, struct stream **stream) {
    uintptr_t number = (uintptr_t)handle;
    if (number <= 2 && context_current() == NULL)
        return refuse(INVALID_CONTEXT, "no current context for a default stream");
    if (number <= 2) {
        *stream = implicit_stream(number == 2 ? (uintptr_t)&thread_mark : 0);
        return SUCCESS;
    }
    if (!handle_is(handle, ANY_STREAM))
        return refuse(INVALID_HANDLE, "%p is no stream, or one that was destroyed",
                      (void *)handle);
    *stream = handle;
    return SUCCESS;
}

/* ---- the legacy default stream and those that block ---- */

static void gather(vclock *into, const struct context *context, bool is_all) {
    for (struct stream *at = streams; at != NULL; at = at->next)
        if ((context == NULL || at->context == context) &&
            (is_all || !(at->flags & STREAM_NON_BLOCKING)))
            clock_merge(into, &at->now);
}

void streams_now(vclock *into) {
    gather(into, NULL, true);
}

void stream_catch_up(struct stream *self) {
    struct context *context = self->context;
    if (self == context->legacy)
        gather(&self->now, context, false);
    else if (context->legacy != NULL && !(self->flags & STREAM_NON_BLOCKING))
        clock_merge(&self->now, &context->legacy->now);
}

/* ---- the interface ---- */

/* The last stream that was destroyed, where addresses are used again. Its work goes on:
 * what is enqueued under the address then comes after none of it. */
static bool is_reusing;
static struct stream *vacant;

API void fake_set_reusing(int is_on) {
    world_lock();
    is_reusing = is_on;
    world_unlock();
}

/* The one that was here stays in the list, at another address. */
static struct stream *move_in(struct stream *place) {
    struct stream **at = &streams, *old = malloc(sizeof *old);
    while (*at != place)
        at = &(*at)->next;
    *old = *place;
    *at = old;
    memset(place, 0, sizeof *place);
    handle_revive(place, ANY_STREAM);
    return place;
}

static CUresult create(CUstream *stream, unsigned int flags, int priority) {
    struct context *context = context_current();
    if (context == NULL)
        return refuse(INVALID_CONTEXT, "no current context for a new stream");
    bool is_moving = is_reusing && vacant != NULL;
    *stream =
        make(is_moving ? move_in(vacant) : handle_new(ANY_STREAM, sizeof **stream),
             context, flags);
    vacant = is_moving ? NULL : vacant;
    (*stream)->priority = priority;
    return SUCCESS;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    CALL(SAFE, "cuStreamCreate")
    return call_end(&call, create(stream, flags, 0));
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags,
                                        int priority) {
    CALL(SAFE, "cuStreamCreateWithPriority")
    return call_end(&call, create(stream, flags, priority));
}

/* Its work goes on; the host and the default streams still wait for it. */
API CUresult cuStreamDestroy_v2(CUstream stream) {
    CALL(SAFE, "cuStreamDestroy", (uintptr_t)stream)
    if (!handle_is(stream, ANY_STREAM))
        return call_end(&call, refuse(INVALID_HANDLE, "%p is no stream to destroy",
                                      (void *)stream));
    if (capture_of(stream) != NULL)
        capture_break(stream); /* which goes on to name the stream */
    else
        vacant = stream;
    handle_retire(stream, ANY_STREAM);
    return call_end(&call, SUCCESS);
}

#define WITH_STREAM                                                                    \
    struct stream *self;                                                               \
    CUresult result = stream_find(stream, &self);                                      \
    if (result != SUCCESS)                                                             \
        return call_end(&call, result);

/* A captured stream has no state that could be asked for. */
static CUresult check_idle(struct stream *self, const char *name) {
    if (capture_of(self) == NULL)
        return capture_check_legacy(self);
    capture_break(self);
    return refuse(CAPTURE_UNSUPPORTED, "%s of a stream that is captured", name);
}

API CUresult cuStreamQuery(CUstream stream) {
    CALL(UNSAFE, "cuStreamQuery", (uintptr_t)stream)
    WITH_STREAM
    result = check_idle(self, "cuStreamQuery");
    if (result == SUCCESS) {
        stream_catch_up(self);
        result = is_over(&self->now) ? SUCCESS : NOT_READY;
    }
    if (result == SUCCESS)
        host_reaches(&self->now);
    return call_end(&call, result);
}

CUresult host_waits_for(const vclock *moment) {
    vclock now = {0}; /* an event may be recorded again meanwhile */
    host_waits++;
    clock_copy(&now, moment);
    CUresult result = wait_over(&now);
    if (result == SUCCESS) {
        host_reaches(&now);
        memory_synchronised();
    }
    clock_free(&now);
    return result;
}

CUresult host_waits_implicitly(const struct context *context) {
    vclock now = {0};
    host_waits++;
    implicit_waits++;
    gather(&now, context, true);
    CUresult result = wait_over(&now);
    clock_free(&now);
    return result;
}

API CUresult cuStreamSynchronize(CUstream stream) {
    CALL(UNSAFE, "cuStreamSynchronize", (uintptr_t)stream)
    WITH_STREAM
    result = check_idle(self, "cuStreamSynchronize");
    if (result == SUCCESS) {
        stream_catch_up(self);
        result = host_waits_for(&self->now);
    }
    return call_end(&call, result);
}

API CUresult cuCtxSynchronize(void) {
    CALL(UNSAFE, "cuCtxSynchronize")
    struct context *context = context_current();
    vclock now = {0};
    if (context == NULL)
        return call_end(&call, refuse(INVALID_CONTEXT, "no current context"));
    CUresult result = capture_check_context(context);
    if (result == SUCCESS) {
        gather(&now, context, true);
        result = host_waits_for(&now);
        clock_free(&now);
    }
    return call_end(&call, result);
}

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    CALL(SAFE, "cuStreamGetCtx", (uintptr_t)stream)
    WITH_STREAM
    *context = self->context;
    return call_end(&call, SUCCESS);
}

API CUresult cuStreamGetDevice(CUstream stream, CUdevice *device) {
    CALL(SAFE, "cuStreamGetDevice", (uintptr_t)stream)
    WITH_STREAM
    *device = self->context->device;
    return call_end(&call, SUCCESS);
}

API CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags) {
    CALL(SAFE, "cuStreamGetFlags", (uintptr_t)stream)
    WITH_STREAM
    *flags = self->flags;
    return call_end(&call, SUCCESS);
}

API CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    CALL(SAFE, "cuStreamGetPriority", (uintptr_t)stream)
    WITH_STREAM
    *priority = self->priority;
    return call_end(&call, SUCCESS);
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CALL(SAFE, "cuCtxGetStreamPriorityRange")
    *least = 0;
    *greatest = -5;
    return call_end(&call, SUCCESS);
}

void streams_reset(void) {
    streams = vacant = NULL;
    is_reusing = false;
    host_now.length = 0;
    host_time = 0;
}
