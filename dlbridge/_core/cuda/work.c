/* What is known of the work on one piece of CUDA memory; see cuda.h. */
#include "cuda/work.h"

#include <stdlib.h>
#include <string.h>

dlb_work *dlb_work_new(int32_t device) {
    dlb_work *work = malloc(sizeof *work);
    if (work == NULL)
        return NULL;
    atomic_init(&work->is_locked, false);
    work->device = device;
    work->is_own = false;
    work->kept = NULL;
    work->ready = work->home = dlb_cuda_place(DLB_STREAM_NONE);
    work->version = 1;
    work->use_count = work->done_count = 0;
    work->use_room = work->done_room = DLB_FIRST_ROWS;
    work->uses = work->first_uses;
    work->done = work->first_done;
    return work;
}

void dlb_work_drop_done(dlb_work *work, int32_t i) {
    if (work->done[i].event != NULL)
        dlb_cuda_reuse_event(work->device, work->done[i].event);
    work->done[i] = work->done[--work->done_count];
}

void dlb_work_free(dlb_work *work) {
    while (work->done_count > 0)
        dlb_work_drop_done(work, work->done_count - 1);
    if (work->kept != NULL)
        dlb_buffer_drop(work->kept);
    if (work->uses != work->first_uses)
        free(work->uses);
    if (work->done != work->first_done)
        free(work->done);
    free(work);
}

int32_t dlb_work_device(const dlb_work *work) {
    return work->device;
}

bool dlb_work_is_own(const dlb_work *work) {
    return work->is_own;
}

dlb_place dlb_work_ready(dlb_work *work) {
    dlb_work_lock(work);
    dlb_place ready = work->ready;
    dlb_work_unlock(work);
    return ready;
}

/* Only its maker has the memory so far. */
void dlb_work_set(dlb_work *work, dlb_stream ready, dlb_stream home) {
    work->ready = dlb_cuda_place_on(work->device, ready);
    work->home = dlb_cuda_place_on(work->device, home);
    work->version++;
}

void dlb_work_keep(dlb_work *work, dlb_buffer *kept) {
    work->kept = kept;
}

void dlb_work_own(dlb_work *work, dlb_stream home) {
    dlb_work_set(work, home, home);
    work->is_own = true;
}

/* ---- room for uses and events ---- */

/* Room for one more row. */
static int grow(void **rows, void *first, int32_t count, int32_t *room, size_t size) {
    if (count < *room)
        return 0;
    void *grown = realloc(*rows == first ? NULL : *rows, 2 * (size_t)*room * size);
    if (grown == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    if (*rows == first)
        memcpy(grown, first, (size_t)count * size);
    *rows = grown;
    *room *= 2;
    return 0;
}

bool dlb_work_is_done(const dlb_work *work, const dlb_done *done) {
    if (done->event != NULL)
        return dlb_cuda_is_over(work->device, done->event);
    return dlb_cuda_synchronisations(work->device) > done->synchronisations;
}

void dlb_work_drop_what_is_done(dlb_work *work) {
    for (int32_t i = work->done_count - 1; i >= 0; i--)
        if (dlb_work_is_done(work, &work->done[i]))
            dlb_work_drop_done(work, i);
}

int dlb_work_make_room_for_done(dlb_work *work) {
    if (work->done_count == work->done_room)
        dlb_work_drop_what_is_done(work);
    return grow((void **)&work->done, work->first_done, work->done_count,
                &work->done_room, sizeof(dlb_done));
}

int dlb_work_make_room_for_use(dlb_work *work) {
    return grow((void **)&work->uses, work->first_uses, work->use_count,
                &work->use_room, sizeof(dlb_use));
}

/* ---- buffers ---- */

bool dlb_buffer_watch(dlb_buffer *buffer, DLDevice device) {
    bool is_pinned = device.device_type == kDLCUDAHost;
    if (device.device_type != kDLCUDA && device.device_type != kDLCUDAManaged &&
        !is_pinned)
        return true;
    buffer->work = dlb_work_new(device.device_id);
    if (buffer->work == NULL)
        return false;
    if (!is_pinned)
        dlb_work_set(buffer->work, DLB_STREAM_LEGACY, DLB_STREAM_NONE);
    return true;
}
