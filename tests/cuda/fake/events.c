/* Events: a clock of the stream at the moment of the record. */
#include "fake.h"

API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    CALL(SAFE, "cuEventCreate")
    struct context *context = context_current();
    if (context == NULL)
        return call_end(&call, refuse(INVALID_CONTEXT, "no current context"));
    if (flags & EVENT_INTERPROCESS && !(flags & EVENT_NO_TIMING))
        return call_end(&call, INVALID_VALUE);
    *event = handle_new(ANY_EVENT, sizeof **event);
    (*event)->context = context;
    (*event)->flags = flags;
    (*event)->exported = -1;
    return call_end(&call, SUCCESS);
}

static CUresult check(CUevent event) {
    if (handle_is(event, ANY_EVENT))
        return SUCCESS;
    return refuse(INVALID_HANDLE, "%p is no event, or one that was destroyed",
                  (void *)event);
}

API CUresult cuEventDestroy_v2(CUevent event) {
    CALL(SAFE, "cuEventDestroy", .event = (uintptr_t)event)
    CUresult result = check(event);
    if (result == SUCCESS)
        handle_retire(event, ANY_EVENT);
    return call_end(&call, result);
}

static CUresult record_event(struct stream *stream, CUevent event) {
    if (event->context != stream->context)
        return refuse(INVALID_HANDLE,
                      "an event of device %d recorded on a stream of device %d",
                      event->context->device, stream->context->device);
    CUresult result = capture_check_legacy(stream);
    if (result != SUCCESS)
        return result;
    if (capture_of(stream) != NULL)
        return capture_record(stream, event);
    op op;
    op_begin(stream, &op);
    event->capture_id = 0;
    event->is_recorded = true;
    clock_copy(&event->now, &op.now);
    op_end(stream, &op);
    ipc_record(event);
    return SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    CALL(SAFE, "cuEventRecord", (uintptr_t)stream, (uintptr_t)event)
    struct stream *self;
    CUresult result = check(event);
    if (result == SUCCESS)
        result = stream_find(stream, &self);
    if (result == SUCCESS)
        result = record_event(self, event);
    return call_end(&call, result);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream,
                                    unsigned int flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}

static CUresult wait_event(struct stream *stream, CUevent event) {
    CUresult result = capture_check_legacy(stream);
    if (result != SUCCESS)
        return result;
    if (capture_of(stream) != NULL || event->capture_id != 0)
        return capture_wait(stream, event);
    op op;
    op_begin(stream, &op);
    clock_merge(&op.now, &event->now);
    op_end(stream, &op);
    return SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    CALL(SAFE, "cuStreamWaitEvent", (uintptr_t)stream, (uintptr_t)event)
    struct stream *self;
    (void)flags;
    CUresult result = check(event);
    if (result == SUCCESS)
        result = stream_find(stream, &self);
    if (result == SUCCESS && event->is_foreign)
        ipc_refresh(event);
    if (result == SUCCESS)
        result = wait_event(self, event);
    return call_end(&call, result);
}

static CUresult check_asked(CUevent event, const char *name) {
    CUresult result = check(event);
    if (result != SUCCESS || event->capture_id == 0)
        return result;
    return refuse(CAPTURED_EVENT, "%s of an event that was recorded in a capture",
                  name);
}

API CUresult cuEventQuery(CUevent event) {
    CALL(UNSAFE, "cuEventQuery", .event = (uintptr_t)event)
    CUresult result = check_asked(event, "cuEventQuery");
    if (result == SUCCESS && event->is_foreign)
        ipc_refresh(event);
    if (result == SUCCESS && !is_over(&event->now))
        result = NOT_READY;
    if (result == SUCCESS)
        host_reaches(&event->now);
    return call_end(&call, result);
}

API CUresult cuEventSynchronize(CUevent event) {
    CALL(UNSAFE, "cuEventSynchronize", .event = (uintptr_t)event)
    CUresult result = check_asked(event, "cuEventSynchronize");
    if (result == SUCCESS && event->is_foreign)
        ipc_refresh(event);
    if (result == SUCCESS)
        result = host_waits_for(&event->now);
    return call_end(&call, result);
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    CALL(SAFE, "cuEventElapsedTime")
    CUresult result = check_asked(start, "cuEventElapsedTime");
    if (result == SUCCESS)
        result = check_asked(end, "cuEventElapsedTime");
    if (result == SUCCESS && (!start->is_recorded || !end->is_recorded ||
                              (start->flags | end->flags) & EVENT_NO_TIMING))
        result = INVALID_HANDLE;
    *milliseconds = 1.0f;
    return call_end(&call, result);
}
