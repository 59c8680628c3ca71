/* Memory that nobody holds any more, but that kernels may still touch: it goes back to
 * its producer when they are through. A producer may hand it out again on any stream,
 * so that no wait on one stream would do. */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct waiting {
    struct waiting *next;
    dlb_buffer *buffer;
} waiting;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static waiting *first;
static _Atomic int64_t count;

static void give_back(dlb_buffer *buffer) {
    dlb_work *work = buffer->work;
    buffer->work = NULL;
    buffer->release(buffer);
    dlb_work_free(work);
}

void dlb_buffer_release_later(dlb_buffer *buffer) {
    if (atomic_load(&count) > 0)
        dlb_cuda_collect();
    if (dlb_work_is_over(buffer->work)) {
        give_back(buffer);
        return;
    }
    waiting *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return; /* kept for ever: better than freed too early */
    entry->buffer = buffer;
    pthread_mutex_lock(&lock);
    entry->next = first;
    first = entry;
    atomic_fetch_add(&count, 1);
    pthread_mutex_unlock(&lock);
}

/* The ones that are over, taken out of the list: a deleter may come back here. */
static waiting *take_finished(void) {
    waiting *finished = NULL;
    pthread_mutex_lock(&lock);
    for (waiting **at = &first; *at != NULL;) {
        waiting *entry = *at;
        if (!dlb_work_is_over(entry->buffer->work)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        entry->next = finished;
        finished = entry;
        atomic_fetch_sub(&count, 1);
    }
    pthread_mutex_unlock(&lock);
    return finished;
}

int64_t dlb_cuda_collect(void) {
    for (waiting *entry = take_finished(); entry != NULL;) {
        waiting *next = entry->next;
        give_back(entry->buffer);
        free(entry);
        entry = next;
    }
    return atomic_load(&count);
}
