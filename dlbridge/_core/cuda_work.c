/* What is known of the work on one piece of CUDA memory; see cuda.h. */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    dlb_place place;
    bool writes;
    int32_t lent; /* exports that are alive; 0: our own work */
} use_t;

typedef struct {
    CUevent event;
    bool writes;
} done_t;

struct dlb_work {
    pthread_mutex_t lock;
    int32_t device;
    dlb_place ready, home;
    int32_t use_count, use_room, done_count, done_room;
    use_t *uses;
    done_t *done;
};

dlb_work *dlb_work_new(int32_t device) {
    dlb_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return NULL;
    pthread_mutex_init(&work->lock, NULL);
    work->device = device;
    work->ready = dlb_cuda_place(DLB_STREAM_NONE);
    work->home = dlb_cuda_place(DLB_STREAM_NONE);
    return work;
}

void dlb_work_free(dlb_work *work) {
    for (int32_t i = 0; i < work->done_count; i++)
        dlb_cuda_reuse_event(work->device, work->done[i].event);
    pthread_mutex_destroy(&work->lock);
    free(work->uses);
    free(work->done);
    free(work);
}

int32_t dlb_work_device(const dlb_work *work) {
    return work->device;
}

dlb_place dlb_work_ready(dlb_work *work) {
    pthread_mutex_lock(&work->lock);
    dlb_place ready = work->ready;
    pthread_mutex_unlock(&work->lock);
    return ready;
}

void dlb_work_set(dlb_work *work, dlb_stream ready, dlb_stream home) {
    pthread_mutex_lock(&work->lock);
    work->ready = dlb_cuda_place(ready);
    work->home = dlb_cuda_place(home);
    pthread_mutex_unlock(&work->lock);
}

/* ---- uses and events ---- */

static use_t *find_use(dlb_work *work, dlb_place place) {
    for (int32_t i = 0; i < work->use_count; i++)
        if (dlb_cuda_same_place(work->uses[i].place, place))
            return &work->uses[i];
    return NULL;
}

static int grow(void **rows, int32_t count, int32_t *room, size_t size) {
    if (count < *room)
        return 0;
    int32_t more = *room ? 2 * *room : 4;
    void *grown = realloc(*rows, (size_t)more * size);
    if (grown == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    *rows = grown;
    *room = more;
    return 0;
}

static int note_use(dlb_work *work, dlb_place place, bool writes, int32_t lent) {
    use_t *use = find_use(work, place);
    if (use == NULL) {
        if (grow((void **)&work->uses, work->use_count, &work->use_room, sizeof *use) <
            0)
            return -1;
        use = &work->uses[work->use_count++];
        *use = (use_t){.place = place};
    }
    use->writes |= writes;
    use->lent += lent;
    return 0;
}

static void drop_use(dlb_work *work, use_t *use) {
    *use = work->uses[--work->use_count];
}

/* `place` after what was written before, and, to write, after what reads. */
static int catch_up(dlb_work *work, dlb_place place, bool writes) {
    if (dlb_cuda_order(work->device, work->ready, place) < 0)
        return -1;
    for (int32_t i = 0; i < work->use_count; i++)
        if ((writes || work->uses[i].writes) &&
            dlb_cuda_order(work->device, work->uses[i].place, place) < 0)
            return -1;
    for (int32_t i = 0; i < work->done_count; i++)
        if ((writes || work->done[i].writes) &&
            dlb_cuda_wait(work->device, place, work->done[i].event) < 0)
            return -1;
    return 0;
}

/* All that was before is ordered before the work on `place`. */
static void forget_past(dlb_work *work, dlb_place place) {
    for (int32_t i = 0; i < work->done_count; i++)
        dlb_cuda_reuse_event(work->device, work->done[i].event);
    work->done_count = 0;
    for (int32_t i = work->use_count - 1; i >= 0; i--)
        if (work->uses[i].lent == 0)
            drop_use(work, &work->uses[i]);
    work->ready = place;
}

static int begin(dlb_work *work, dlb_place place, bool writes, int32_t lent) {
    pthread_mutex_lock(&work->lock);
    int status = catch_up(work, place, writes);
    if (status == 0 && writes && lent == 0)
        forget_past(work, place);
    if (status == 0 && (lent != 0 || !dlb_cuda_same_place(place, work->home)))
        status = note_use(work, place, writes, lent);
    pthread_mutex_unlock(&work->lock);
    return status;
}

int dlb_work_read(dlb_work *work, dlb_stream on) {
    return on == DLB_STREAM_NONE ? 0 : begin(work, dlb_cuda_place(on), false, 0);
}

int dlb_work_write(dlb_work *work, dlb_stream on) {
    return on == DLB_STREAM_NONE ? 0 : begin(work, dlb_cuda_place(on), true, 0);
}

int dlb_work_lend(dlb_work *work, dlb_stream to, bool writes, dlb_place *lent) {
    *lent = dlb_cuda_place(to);
    return to == DLB_STREAM_NONE ? 0 : begin(work, *lent, writes, 1);
}

/* ---- the way back ---- */

/* An event now: the consumer may destroy its stream as soon as it has given the memory
 * back. */
static int mark_end(dlb_work *work, dlb_place place, bool writes) {
    CUevent event;
    if (grow((void **)&work->done, work->done_count, &work->done_room, sizeof(done_t)) <
            0 ||
        dlb_cuda_mark(work->device, place, &event) < 0)
        return -1;
    if (event != NULL)
        work->done[work->done_count++] = (done_t){event, writes};
    return 0;
}

void dlb_work_take_back(dlb_work *work, dlb_place lent, bool writes) {
    if (lent.stream == DLB_STREAM_NONE)
        return;
    pthread_mutex_lock(&work->lock);
    use_t *use = find_use(work, lent);
    if (use != NULL && --use->lent == 0) {
        writes |= use->writes;
        drop_use(work, use);
        if (!dlb_cuda_same_place(lent, work->home))
            mark_end(work, lent, writes);
    }
    pthread_mutex_unlock(&work->lock);
}

/* Our own uses end with the last reference. */
static void mark_all(dlb_work *work) {
    while (work->use_count > 0) {
        use_t use = work->uses[--work->use_count];
        mark_end(work, use.place, use.writes);
    }
}

bool dlb_work_is_over(dlb_work *work) {
    pthread_mutex_lock(&work->lock);
    mark_all(work);
    while (work->done_count > 0 &&
           dlb_cuda_is_over(work->device, work->done[work->done_count - 1].event))
        dlb_cuda_reuse_event(work->device, work->done[--work->done_count].event);
    bool is_over = work->done_count == 0;
    pthread_mutex_unlock(&work->lock);
    return is_over;
}

int dlb_work_end_on_home(dlb_work *work, dlb_place *home) {
    pthread_mutex_lock(&work->lock);
    int status = catch_up(work, work->home, true);
    *home = work->home;
    pthread_mutex_unlock(&work->lock);
    return status;
}
