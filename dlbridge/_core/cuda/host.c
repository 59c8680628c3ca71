/* CUDA memory that the host reads or writes, too: what it waits for. */
#include "cuda/work.h"

/* Forget what is over; whether something is not, and its event. */
static bool find_pending(dlb_work *work, bool writes, CUevent *event) {
    for (int32_t i = work->done_count - 1; i >= 0; i--) {
        if (!writes && !work->done[i].writes)
            continue;
        *event = work->done[i].event;
        if (!dlb_work_is_done(work, &work->done[i]))
            return true;
        dlb_work_drop_done(work, i);
    }
    return false;
}

/* An event at the end of what is there now, also where the stream may be gone. */
static bool mark_now(dlb_work *work, dlb_use use) {
    if (!dlb_span_is_open(use.place.span)) {
        dlb_stream side = dlb_cuda_side_stream(work->device, DLB_CUDA_FREEING);
        dlb_place after = dlb_cuda_place(side);
        if (side == 0 || dlb_cuda_order(work->device, use.place, after) < 0)
            return false;
        use.place = after;
    }
    return dlb_work_mark_end(work, &use);
}

#define MANY 16

int dlb_work_finish(dlb_work *work, dlb_stream on, bool writes) {
    CUevent event;
    dlb_work_lock(work);
    dlb_place place = dlb_cuda_place_on(work->device, on);
    if (work->done_count >= MANY)
        find_pending(work, true, &event);
    if (dlb_work_mark_end(work, &(dlb_use){.place = place, .writes = writes})) {
        dlb_use *use = dlb_work_find_use(work, place);
        if (use != NULL && use->lent == 0)
            dlb_work_drop_use(work, use);
        if (dlb_cuda_same_place(work->ready, place))
            work->ready = dlb_cuda_place(DLB_STREAM_NONE);
    }
    dlb_work_unlock(work);
    return 0;
}

/* An event at the end of all that is not marked by one yet. */
static bool mark_pending(dlb_work *work, bool writes) {
    if (work->ready.stream != DLB_STREAM_NONE) {
        if (!mark_now(work, (dlb_use){.place = work->ready, .writes = true}))
            return false;
        work->ready = dlb_cuda_place(DLB_STREAM_NONE);
    }
    for (int32_t i = work->use_count - 1; i >= 0; i--) {
        dlb_use use = work->uses[i];
        if (!writes && !use.writes)
            continue;
        if (!mark_now(work, use))
            return false;
        if (use.lent == 0)
            dlb_work_drop_use(work, &work->uses[i]);
    }
    return true;
}

/* Without the lock: another thread may need it to let go of the memory. An event that
 * is used anew in between only makes the wait longer. */
static int wait_for(int32_t device, CUevent event) {
    dlb_cuda_scope scope;
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    int mode = dlb_cuda_relax();
    int status =
        event != NULL
            ? dlb_cuda_check(dlb_cuda_get()->cuEventSynchronize(event),
                             "cuEventSynchronize")
            : dlb_cuda_check(dlb_cuda_get()->cuCtxSynchronize(), "cuCtxSynchronize");
    dlb_cuda_unrelax(mode);
    if (status == 0 && event == NULL)
        dlb_cuda_synchronised(device);
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_work_wait(dlb_work *work, bool writes) {
    CUevent event;
    dlb_work_lock(work);
    int status = mark_pending(work, writes) ? 0 : dlb_cuda_fail(DLB_CUDA_CAPTURE);
    bool is_pending = status == 0 && find_pending(work, writes, &event);
    dlb_work_unlock(work);
    while (status == 0 && is_pending) {
        status = wait_for(work->device, event);
        dlb_work_lock(work);
        is_pending = find_pending(work, writes, &event);
        dlb_work_unlock(work);
    }
    return status;
}
