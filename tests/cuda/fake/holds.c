/* What is over, and when: all work is pending for a few questions, slow kernels until
 * somebody waits, and host functions run on a thread of the driver's. */
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
static vclock finished;  /* how far the devices have come, whoever knows of it */
static vclock questions; /* by timeline, since it came that far */
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

/* ---- what is pending by itself ---- */

#define MOST_QUESTIONS 3

/* For how many questions the work at a moment of a timeline is pending: 0 to 3. */
static uint32_t patience(int32_t timeline, uint32_t time) {
    uint64_t mixed = seed;
    mixed = (mixed ^ (uint64_t)timeline) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 29 ^ time) * 0xBF58476D1CE4E5B9u;
    return (uint32_t)(mixed >> 40) % (MOST_QUESTIONS + 1);
}

/* One question brings each timeline closer to the moment that was asked for. */
static void advance(const vclock *now) {
    for (int32_t i = 0; i < now->length; i++) {
        if (now->times[i] <= clock_get(&finished, i))
            continue;
        uint32_t asked = clock_get(&questions, i);
        bool is_done = asked >= patience(i, now->times[i]);
        clock_set(&questions, i, is_done ? 0 : asked + 1);
        if (is_done)
            clock_set(&finished, i, now->times[i]);
    }
}

bool is_over(const vclock *now) {
    for (const hold *at = holds; at != NULL; at = at->next)
        if (needs(now, at))
            return false;
    if (clock_reaches(&host_now, now))
        return true;
    clock_merge(&finished, &host_now);
    if (!is_lazy)
        advance(now);
    return clock_reaches(&finished, now);
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
    if (world_error() != SUCCESS)
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
            clock_merge(&finished, &ready->before);
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

CUresult wait_over(const vclock *now) {
    struct timespec pause = {0, 50000};
    clock_merge(&finished, now);
    while (let_go(now) && world_error() == SUCCESS) {
        world_unlock();
        nanosleep(&pause, NULL);
        world_lock();
    }
    return world_error();
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
    finished.length = questions.length = 0;
}
