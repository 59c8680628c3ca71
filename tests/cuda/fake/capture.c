/* Captures: what is enqueued becomes nodes of a graph. */
#include "graph.h"

#include <stdio.h>

static struct capture *captures; /* that run */
static uint64_t last_id;
static _Thread_local int thread_mode; /* MODE_GLOBAL at first */
static _Thread_local char thread_mark;

struct capture *capture_of(struct stream *stream) {
    return stream->capture;
}

static struct capture *find_capture(uint64_t id) {
    for (struct capture *at = captures; at != NULL; at = at->next)
        if (at->id == id)
            return at;
    return NULL;
}

void capture_break(struct stream *stream) {
    if (stream->capture != NULL)
        stream->capture->is_broken = true;
}

/* ---- nodes ---- */

static void set_ends(struct node ***ends, int32_t *count, struct node **nodes,
                     int32_t node_count) {
    struct node **copy = malloc((size_t)(node_count + 1) * sizeof *copy);
    memcpy(copy, nodes, (size_t)node_count * sizeof *copy);
    free(*ends);
    *ends = copy;
    *count = node_count;
}

static void join(struct stream *stream, struct capture *capture) {
    stream->capture = capture;
    stream->end_count = 0;
    capture->streams =
        realloc(capture->streams, (size_t)(capture->stream_count + 1) * sizeof stream);
    capture->streams[capture->stream_count++] = stream;
}

static int32_t branch_of(const struct capture *capture, const struct stream *stream) {
    for (int32_t i = 0; i < capture->stream_count; i++)
        if (capture->streams[i] == stream)
            return i;
    return -1;
}

CUresult capture_append(struct stream *stream, const action *work) {
    struct capture *capture = stream->capture;
    if (capture->is_broken)
        return refuse(CAPTURE_INVALIDATED, "%s in a capture that failed before",
                      work->name);
    struct node *new = calloc(1, sizeof *new);
    action_copy(&new->work, work);
    new->branch = branch_of(capture, stream);
    new->device = stream->context->device;
    new->peers = stream->context->peers;
    set_ends(&new->before, &new->before_count, stream->ends, stream->end_count);
    graph_add(capture->graph, new);
    set_ends(&stream->ends, &stream->end_count, &new, 1);
    return SUCCESS;
}

CUresult capture_record(struct stream *stream, struct event *event) {
    if (stream->capture->is_broken)
        return refuse(CAPTURE_INVALIDATED, "an event in a capture that failed before");
    event->capture_id = stream->capture->id;
    set_ends(&event->ends, &event->end_count, stream->ends, stream->end_count);
    return SUCCESS;
}

static void add_ends(struct stream *stream, struct node **nodes, int32_t count) {
    struct node **all = malloc((size_t)(stream->end_count + count + 1) * sizeof *all);
    int32_t total = stream->end_count;
    memcpy(all, stream->ends, (size_t)total * sizeof *all);
    for (int32_t i = 0; i < count; i++) {
        bool is_there = false;
        for (int32_t j = 0; j < total; j++)
            is_there |= all[j] == nodes[i];
        if (!is_there)
            all[total++] = nodes[i];
    }
    free(stream->ends);
    stream->ends = all;
    stream->end_count = total;
}

CUresult capture_wait(struct stream *stream, struct event *event) {
    struct capture *mine = stream->capture, *theirs = find_capture(event->capture_id);
    if (event->capture_id == 0 && !event->is_recorded)
        return SUCCESS;
    if (event->capture_id == 0) {
        capture_break(stream);
        return refuse(CAPTURE_ISOLATION,
                      "a captured stream waits for an event outside of the capture");
    }
    if (theirs == NULL)
        return refuse(CAPTURED_EVENT,
                      "a stream waits for an event of a capture that has ended");
    if (stream == stream->context->legacy) {
        theirs->is_broken = true;
        return refuse(CAPTURE_IMPLICIT,
                      "the legacy default stream waits for an event of a capture");
    }
    if (mine != NULL && mine != theirs) {
        mine->is_broken = theirs->is_broken = true;
        return refuse(CAPTURE_MERGE, "one capture waits for an event of another");
    }
    if (theirs->is_broken)
        return refuse(CAPTURE_INVALIDATED, "a wait in a capture that failed before");
    if (mine == NULL)
        join(stream, theirs);
    add_ends(stream, event->ends, event->end_count);
    return SUCCESS;
}

/* ---- what captures forbid ---- */

static bool forbids(const struct capture *capture) {
    if (thread_mode == MODE_RELAXED || capture->mode == MODE_RELAXED)
        return false;
    return capture->thread == (uintptr_t)&thread_mark ||
           (thread_mode == MODE_GLOBAL && capture->mode == MODE_GLOBAL);
}

CUresult capture_check_unsafe(const char *name) {
    CUresult result = SUCCESS;
    for (struct capture *at = captures; at != NULL; at = at->next)
        if (forbids(at)) {
            at->is_broken = true;
            result = CAPTURE_UNSUPPORTED;
        }
    if (result != SUCCESS)
        refuse(result, "%s, which is not allowed while a stream is captured", name);
    return result;
}

static bool has_blocking(const struct capture *capture, const struct context *context) {
    for (int32_t i = 0; i < capture->stream_count; i++)
        if (capture->streams[i]->context == context &&
            !(capture->streams[i]->flags & STREAM_NON_BLOCKING))
            return true;
    return false;
}

static struct capture *blocked_by(const struct stream *stream) {
    if (stream != stream->context->legacy)
        return NULL;
    for (struct capture *at = captures; at != NULL; at = at->next)
        if (has_blocking(at, stream->context))
            return at;
    return NULL;
}

CUresult capture_check_legacy(struct stream *stream) {
    struct capture *blocking = captures != NULL ? blocked_by(stream) : NULL;
    if (blocking == NULL)
        return SUCCESS;
    blocking->is_broken = true;
    return refuse(CAPTURE_IMPLICIT,
                  "work on the legacy default stream would wait for a captured one");
}

CUresult capture_check_context(struct context *context) {
    CUresult result = SUCCESS;
    for (struct capture *at = captures; at != NULL; at = at->next)
        if (at->streams[0]->context == context) {
            at->is_broken = true;
            result = CAPTURE_UNSUPPORTED;
        }
    if (result != SUCCESS)
        refuse(result, "cuCtxSynchronize while a stream is captured");
    return result;
}

/* ---- the interface ---- */

API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    CALL(SAFE, "cuStreamBeginCapture", (uintptr_t)stream)
    struct stream *self;
    CUresult result = stream_find(stream, &self);
    if (result != SUCCESS)
        return call_end(&call, result);
    if (self == self->context->legacy || self->capture != NULL)
        return call_end(
            &call, refuse(CAPTURE_UNSUPPORTED, "this stream cannot be captured now"));
    struct capture *new = calloc(1, sizeof *new);
    *new = (struct capture){.next = captures, .id = ++last_id, .mode = mode};
    new->thread = (uintptr_t)&thread_mark;
    new->graph = graph_new();
    join(self, new);
    captures = new;
    return call_end(&call, SUCCESS);
}

/* Whether all that was captured comes before the ends of the first stream. */
static bool is_joined(const struct capture *capture) {
    const struct stream *first = capture->streams[0];
    graph_clear_marks(capture->graph);
    for (int32_t i = 0; i < first->end_count; i++)
        node_mark(first->ends[i]);
    for (int32_t i = 1; i < capture->stream_count; i++)
        for (int32_t j = 0; j < capture->streams[i]->end_count; j++)
            if (!capture->streams[i]->ends[j]->is_marked)
                return false;
    return true;
}

static CUresult check_end(const struct capture *capture, const struct stream *stream) {
    if (capture->mode != MODE_RELAXED && capture->thread != (uintptr_t)&thread_mark)
        return refuse(CAPTURE_WRONG_THREAD, "a capture ended by another thread");
    if (capture->streams[0] != stream)
        return refuse(CAPTURE_UNMATCHED, "a capture ended on another stream");
    if (capture->is_broken)
        return CAPTURE_INVALIDATED; /* what broke it was a fault already */
    if (!is_joined(capture))
        return refuse(CAPTURE_UNJOINED, "a stream was captured and never joined");
    return SUCCESS;
}

static void end(struct capture *capture) {
    for (int32_t i = 0; i < capture->stream_count; i++) {
        capture->streams[i]->capture = NULL;
        capture->streams[i]->end_count = 0;
    }
    struct capture **at = &captures;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CALL(SAFE, "cuStreamEndCapture", (uintptr_t)stream)
    struct stream *self;
    CUresult result = stream_find(stream, &self);
    *graph = NULL;
    if (result == SUCCESS && self->capture == NULL)
        result = refuse(INVALID_VALUE, "no capture to end");
    if (result != SUCCESS)
        return call_end(&call, result);
    struct capture *capture = self->capture;
    result = check_end(capture, self);
    if (result == CAPTURE_WRONG_THREAD || result == CAPTURE_UNMATCHED)
        return call_end(&call, result);
    end(capture);
    if (result == SUCCESS)
        *graph = capture->graph;
    else
        handle_retire(capture->graph, ANY_GRAPH);
    return call_end(&call, result);
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    CALL(SAFE, "cuThreadExchangeStreamCaptureMode")
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return call_end(&call, SUCCESS);
}

/* The legacy default stream has no answer while a blocking one is captured; to ask does
 * no harm, though. */
static CUresult ask(CUstream handle, int *status, struct stream **stream) {
    CUresult result = stream_find(handle, stream);
    if (result != SUCCESS)
        return result;
    if (captures != NULL && blocked_by(*stream) != NULL)
        return CAPTURE_IMPLICIT;
    const struct capture *capture = (*stream)->capture;
    *status = capture == NULL      ? CAPTURE_NONE
              : capture->is_broken ? CAPTURE_BROKEN
                                   : CAPTURE_ACTIVE;
    return SUCCESS;
}

API CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    CALL(SAFE, "cuStreamIsCapturing", (uintptr_t)stream)
    struct stream *self;
    return call_end(&call, ask(stream, status, &self));
}

static CUresult info(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                     const CUgraphNode **nodes, size_t *count) {
    struct stream *self;
    CUresult result = ask(handle, status, &self);
    if (result != SUCCESS || *status != CAPTURE_ACTIVE)
        return result;
    if (id != NULL)
        *id = self->capture->id;
    if (graph != NULL)
        *graph = self->capture->graph;
    if (nodes != NULL)
        *nodes = self->ends;
    if (count != NULL)
        *count = (size_t)self->end_count;
    return SUCCESS;
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id,
                                       CUgraph *graph, const CUgraphNode **nodes,
                                       size_t *count) {
    CALL(SAFE, "cuStreamGetCaptureInfo", (uintptr_t)stream)
    return call_end(&call, info(stream, status, id, graph, nodes, count));
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id,
                                       CUgraph *graph, const CUgraphNode **nodes,
                                       const void **edges, size_t *count) {
    CALL(SAFE, "cuStreamGetCaptureInfo", (uintptr_t)stream)
    if (edges != NULL)
        *edges = NULL;
    return call_end(&call, info(stream, status, id, graph, nodes, count));
}

void captures_reset(void) {
    captures = NULL;
}
