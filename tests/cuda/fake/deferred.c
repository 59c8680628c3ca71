/* Work that happens as late as it may: when the host learns that it is over, or at
 * fake_finish. A host that touches pinned memory too early then finds, or leaves, the
 * wrong bytes, as it may on a GPU. */
#include "fake.h"

#include <time.h>

typedef struct deferred {
    struct deferred *next;
    action work;
    op op;
} deferred;

static bool is_deferring, is_flushing;
static deferred *first, **last = &first;

bool deferred_add(const action *work, const op *op) {
    if (!is_deferring || work->is_prompt)
        return false;
    deferred *new = calloc(1, sizeof *new);
    action_copy(&new->work, work);
    new->op = *op;
    new->op.now = (vclock){0};
    clock_copy(&new->op.now, &op->now);
    *last = new;
    last = &new->next;
    return true;
}

static bool is_due(const deferred *self, const vclock *now) {
    return now == NULL || clock_get(now, self->op.timeline) >= self->op.time;
}

static deferred *take_due(const vclock *now) {
    for (deferred **at = &first; *at != NULL; at = &(*at)->next)
        if (is_due(*at, now)) {
            deferred *found = *at;
            *at = found->next;
            if (last == &found->next)
                last = at;
            return found;
        }
    return NULL;
}

/* What is before `now`, in the order of the calls; NULL: all. Kernels let the lock go,
 * so that another thread may come here meanwhile: it waits. */
void deferred_flush(const vclock *now) {
    struct timespec pause = {0, 20000};
    while (is_flushing) {
        world_unlock();
        nanosleep(&pause, NULL);
        world_lock();
    }
    is_flushing = true;
    for (deferred *due = take_due(now); due != NULL; due = take_due(now)) {
        run_action(&due->work, &due->op);
        action_free(&due->work);
        clock_free(&due->op.now);
        free(due);
    }
    is_flushing = false;
}

void deferred_reset(void) {
    is_deferring = is_flushing = false;
    for (deferred *at = first, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
    first = NULL;
    last = &first;
}

API void fake_set_deferred(int is_on) {
    world_lock();
    deferred_flush(NULL);
    is_deferring = is_on;
    world_unlock();
}
