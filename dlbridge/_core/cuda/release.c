/* Memory that nobody holds any more, but that kernels may still use: it goes back to
 * its producer when they have finished. A producer may hand it out again on any stream,
 * so waiting on one stream is not enough.
 *
 * Nothing waits for the kernels. Finished memory is found whenever memory is given back
 * or allocated; and a stream of ours, on which nothing else runs, waits for one piece
 * of the rest and calls back. */
#include "cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct waiting {
    struct waiting *next;
    dlb_buffer *buffer;
} waiting;

/* How many are checked whenever memory comes back: thousands that come back must not
 * check thousands each time. */
#define ON_THE_WAY 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static waiting *first, **end = &first; /* oldest first */
static _Atomic int64_t count;
static _Atomic bool is_watching;
static _Atomic int64_t gone_since; /* the last watch began */
_Atomic(dlb_cuda_waker) dlb_cuda_wake;

/* ---- the list ---- */

static void push(waiting *entry) {
    entry->next = NULL;
    pthread_mutex_lock(&lock);
    *end = entry;
    end = &entry->next;
    pthread_mutex_unlock(&lock);
}

static waiting *pop(void) {
    pthread_mutex_lock(&lock);
    waiting *entry = first;
    if (entry != NULL) {
        first = entry->next;
        if (first == NULL)
            end = &first;
    }
    pthread_mutex_unlock(&lock);
    return entry;
}

static void give_back(dlb_buffer *buffer) {
    dlb_access *access = buffer->access;
    buffer->release(buffer);
    dlb_access_free(access);
}

/* Outside of the lock: a deleter may come back here. */
static void collect(int64_t at_most) {
    for (int64_t left = atomic_load(&count); left > 0 && at_most > 0;
         left--, at_most--) {
        waiting *entry = pop();
        if (entry == NULL)
            break;
        if (!dlb_access_is_over(entry->buffer->access)) {
            push(entry);
            continue;
        }
        atomic_fetch_sub(&count, 1);
        give_back(entry->buffer);
        free(entry);
        atomic_fetch_add(&gone_since, 1);
    }
}

/* ---- being called back ---- */

/* Runs on a thread of the driver, from which the driver must not be called. */
static void wake_up(void *unused) {
    (void)unused;
    atomic_store(&is_watching, false);
    dlb_cuda_waker wake = atomic_load(&dlb_cuda_wake); /* drained at the same time? */
    if (wake != NULL)
        wake();
}

static bool watch(dlb_access *access) {
    dlb_cuda_scope scope;
    int32_t device = dlb_access_device(access);
    dlb_stream side = dlb_cuda_side_stream(device, DLB_CUDA_WATCHING);
    if (side == 0 || !dlb_access_make_wait(access, side) ||
        dlb_cuda_enter(device, &scope) < 0)
        return false;
    int status =
        dlb_cuda_check(dlb_cuda_get()->cuLaunchHostFunc((CUstream)side, wake_up, NULL),
                       "cuLaunchHostFunc");
    dlb_cuda_leave(&scope);
    return status == 0;
}

/* One at a time: the callback checks the others. */
static void watch_one(dlb_access *access) {
    if (atomic_exchange(&is_watching, true))
        return;
    atomic_store(&gone_since, 0);
    if (!watch(access))
        atomic_store(&is_watching, false);
}

/* ---- in and out ---- */

static bool may_go(dlb_access *access) {
    dlb_stream_id owner;
    return (dlb_access_is_stream_ordered(access) &&
            dlb_access_end_on_owner(access, &owner) == 0) ||
           dlb_access_is_over(access);
}

void dlb_buffer_release_later(dlb_buffer *buffer) {
    if (atomic_load(&count) > 0)
        collect(ON_THE_WAY);
    if (may_go(buffer->access)) {
        give_back(buffer);
        return;
    }
    waiting *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return; /* leaked: better than freed too early */
    entry->buffer = buffer;
    watch_one(buffer->access); /* before another thread can give it back */
    atomic_fetch_add(&count, 1);
    push(entry);
}

/* Nothing is watched again before something was given back: callbacks without effect
 * would never end. */
int64_t dlb_cuda_collect(void) {
    collect(INT64_MAX);
    bool is_idle = !atomic_load(&is_watching) && atomic_load(&gone_since) > 0;
    waiting *entry = is_idle ? pop() : NULL;
    if (entry != NULL) {
        watch_one(entry->buffer->access);
        push(entry);
    }
    return atomic_load(&count);
}

/* ---- the end of the process ---- */

bool dlb_cuda_wait_for_one(void) {
    dlb_cuda_scope scope;
    bool has_waited = false;
    waiting *entry = pop();
    if (entry == NULL)
        return false;
    int32_t device = dlb_access_device(entry->buffer->access);
    dlb_stream side = dlb_cuda_side_stream(device, DLB_CUDA_WATCHING);
    if (side != 0 && dlb_access_make_wait(entry->buffer->access, side) &&
        dlb_cuda_enter(device, &scope) == 0) {
        dlb_cuda_get()->cuStreamSynchronize((CUstream)side);
        dlb_cuda_leave(&scope);
        has_waited = true;
    }
    push(entry);
    return has_waited;
}
