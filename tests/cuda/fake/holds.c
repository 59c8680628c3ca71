/* Long work: slow kernels, and host functions, which run on a thread of the
 * driver's. */
#include "fake.h"

#include <time.h>

typedef struct hold {
    struct hold *next;
    int32_t timeline;
    uint32_t time;
    vclock before; /* what has to be over first */
    CUhostFn function;
    void *data;
    bool is_running;
} hold;

static hold *holds;
static vclock finished; /* for lazy streams */
static _Thread_local bool is_callback;
static bool has_worker;

bool holds_is_callback(void) {
    return is_callback;
}

static bool needs(const vclock *now, const hold *held) {
    return clock_get(now, held->timeline) >= held->time;
}

/* Of a hold itself, its own moment does not count. */
static bool may_run(const hold *self) {
    for (const hold *at = holds; at != NULL; at = at->next)
        if (at != self && needs(&self->before, at))
            return false;
    return !is_lazy || clock_reaches(&finished, &self->before);
}

bool is_over(const vclock *now) {
    for (const hold *at = holds; at != NULL; at = at->next)
        if (needs(now, at))
            return false;
    return !is_lazy || clock_reaches(&finished, now) || clock_reaches(&host_now, now);
}

static void take_out(hold *self) {
    for (hold **at = &holds; *at != NULL; at = &(*at)->next)
        if (*at == self) {
            *at = self->next;
            clock_free(&self->before);
            free(self);
            return;
        }
}

/* ---- the thread of host functions ---- */

/* After an error in their context they are never called. */
static hold *next_function(void) {
    hold *found = NULL; /* the oldest is the last of the list */
    if (world_is_broken())
        return NULL;
    for (hold *at = holds; at != NULL; at = at->next)
        if (at->function != NULL && !at->is_running && may_run(at))
            found = at;
    return found;
}

static void *work(void *unused) {
    is_callback = true;
    struct timespec pause = {0, 200000};
    for (;;) {
        world_lock();
        hold *ready = next_function();
        if (ready != NULL) {
            ready->is_running = true;
            deferred_flush(&ready->before);
        }
        world_unlock();
        if (ready == NULL) {
            nanosleep(&pause, NULL);
            continue;
        }
        ready->function(ready->data);
        world_lock();
        take_out(ready);
        world_unlock();
    }
    return unused;
}

static void start_worker(void) {
    pthread_t thread;
    if (!has_worker && pthread_create(&thread, NULL, work, NULL) == 0)
        pthread_detach(thread);
    has_worker = true;
}

void hold_add(int32_t timeline, uint32_t time, const vclock *before, CUhostFn function,
              void *data) {
    hold *new = calloc(1, sizeof *new);
    *new = (hold){.next = holds, .timeline = timeline, .time = time};
    new->function = function;
    new->data = data;
    clock_copy(&new->before, before);
    if (function != NULL)
        start_worker();
    holds = new;
}

/* ---- waiting ---- */

static bool let_go(const vclock *now) {
    bool has_functions = false;
    for (hold *at = holds, *next; at != NULL; at = next) {
        next = at->next;
        if (!needs(now, at))
            continue;
        if (at->function == NULL)
            take_out(at);
        else
            has_functions = true;
    }
    return has_functions;
}

void wait_over(const vclock *now) {
    struct timespec pause = {0, 50000};
    clock_merge(&finished, now);
    while (let_go(now) && !world_is_broken()) {
        world_unlock();
        nanosleep(&pause, NULL);
        world_lock();
    }
}

/* ---- what tests can ask ---- */

/* A kernel that ends when somebody waits for it, or at fake_let_go. */
API CUresult fake_hold(CUstream stream) {
    CALL(SAFE, "fake_hold", (uintptr_t)stream)
    struct stream *self;
    CUresult result = stream_find(stream, &self);
    if (result == SUCCESS) {
        action work = {NULL, "fake_hold", .is_prompt = true, .is_slow = true};
        result = submit(self, &work);
    }
    return call_end(&call, result);
}

/* All that was enqueued so far is over; the host does not know of it before it asks.
 * Host functions run soon. */
API void fake_finish(void) {
    world_lock();
    for (hold *at = holds, *next; at != NULL; at = next) {
        next = at->next;
        if (at->function == NULL)
            take_out(at);
    }
    streams_now(&finished);
    deferred_flush(NULL);
    world_unlock();
}

API int32_t fake_held(void) {
    int32_t count = 0;
    world_lock();
    for (hold *at = holds; at != NULL; at = at->next)
        count++;
    world_unlock();
    return count;
}

void holds_reset(void) {
    while (holds != NULL && !holds->is_running)
        take_out(holds);
    finished.length = 0;
}
