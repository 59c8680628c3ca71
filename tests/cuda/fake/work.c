/* Operations: what is enqueued happens at once, at its own time. */
#include "fake.h"

void op_begin(struct stream *stream, op *self) {
    stream_catch_up(stream);
    clock_merge(&stream->now, &host_now);
    *self = (op){.timeline = stream->timeline, .call = call_number()};
    self->device = stream->context->device;
    self->peers = stream->context->peers;
    self->time = clock_get(&stream->now, stream->timeline) + 1;
    clock_set(&stream->now, stream->timeline, self->time);
    clock_copy(&self->now, &stream->now);
}

void op_end(struct stream *stream, op *self) {
    clock_merge(&stream->now, &self->now);
    clock_free(&self->now);
}

CUresult run_action(action *work, op *op) {
    return work->run != NULL ? work->run(work, op) : SUCCESS;
}

/* What is slow is not over before somebody waits for it. */
void action_hold(const action *work, const op *op) {
    if (work->is_slow)
        hold_add(op->timeline, op->time, &op->now, NULL, NULL);
}

CUresult submit(struct stream *stream, action *work) {
    CUresult result = capture_check_legacy(stream);
    if (result != SUCCESS)
        return result;
    work->call = call_number();
    if (capture_of(stream) != NULL)
        return capture_append(stream, work);
    op op;
    op_begin(stream, &op);
    action_hold(work, &op);
    if (!deferred_add(work, &op))
        result = run_action(work, &op);
    op_end(stream, &op);
    return result;
}

void action_copy(action *to, const action *from) {
    *to = *from;
    if (from->run == kernel_run) {
        to->kernel = malloc(sizeof *to->kernel);
        *to->kernel = *from->kernel;
    } else if (from->run == touch_run) {
        size_t size = (size_t)from->touch.count * sizeof *from->touch.ranges;
        to->touch.ranges = memcpy(malloc(size), from->touch.ranges, size);
    }
}

void action_free(action *self) {
    if (self->run == kernel_run)
        free(self->kernel);
    else if (self->run == touch_run)
        free(self->touch.ranges);
}

/* ---- host functions ---- */

static CUresult host_run(action *self, op *op) {
    hold_add(op->timeline, op->time, &op->now, self->host.function, self->host.data);
    return SUCCESS;
}

API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    CALL(SAFE, "cuLaunchHostFunc", (uintptr_t)stream)
    struct stream *self;
    CUresult result = stream_find(stream, &self);
    if (result == SUCCESS) {
        action work = {host_run, "cuLaunchHostFunc", .host = {function, data}};
        work.is_prompt = true;
        result = submit(self, &work);
    }
    return call_end(&call, result);
}

/* ---- work of tests: touches memory as a kernel does ---- */

CUresult touch_run(action *self, op *op) {
    for (int32_t i = 0; i < self->touch.count; i++) {
        const touch_range *range = &self->touch.ranges[i];
        if (access_memory(op, range->address, range->nbytes, range->writes) == 0 &&
            range->writes && range->value >= 0)
            memset((void *)(uintptr_t)range->address, range->value, range->nbytes);
    }
    return SUCCESS;
}

API CUresult fake_touch(CUstream stream, const touch_range *ranges, int32_t count) {
    CALL(SAFE, "fake_touch", (uintptr_t)stream)
    struct stream *self;
    CUresult result = stream_find(stream, &self);
    if (result == SUCCESS) {
        action work = {touch_run, "fake_touch",
                       .touch = {(touch_range *)ranges, count}};
        result = submit(self, &work);
    }
    return call_end(&call, result);
}

/* The host's own access, to pinned or managed memory, or to what tests look at. */
API int fake_host_access(uint64_t address, uint64_t nbytes, int writes) {
    op op;
    world_lock();
    op_of_host(&op);
    int status = access_memory(&op, address, nbytes, writes);
    clock_free(&op.now);
    world_unlock();
    return status;
}
