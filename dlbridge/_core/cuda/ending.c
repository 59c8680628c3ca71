/* Work on CUDA memory ends: events at its end, and when the memory may go back. */
#include "cuda/work.h"

bool dlb_work_mark_end(dlb_work *work, const dlb_use *use) {
    CUevent event = NULL;
    if (dlb_work_make_room_for_done(work) < 0)
        return false;
    bool failed = dlb_cuda_mark(work->device, use->place, &event) < 0;
    if (failed && dlb_cuda_is_gone())
        return true;
    if (!failed && event == NULL)
        return false;
    work->done[work->done_count++] =
        (dlb_done){event, use->writes, dlb_cuda_synchronisations(work->device)};
    work->version++;
    return true;
}

void dlb_work_take_back(dlb_work *work, dlb_place lent, bool writes) {
    if (lent.stream == DLB_STREAM_NONE || dlb_cuda_is_forked())
        return;
    dlb_work_lock(work);
    dlb_use *use = dlb_work_find_use(work, lent);
    if (use != NULL && --use->lent == 0) {
        use->writes |= writes;
        bool needs_event = !dlb_work_is_known(work, lent);
        work->version++;
        if (!needs_event || dlb_work_mark_end(work, use))
            dlb_work_drop_use(work, use);
    }
    dlb_work_unlock(work);
}

/* From here on nobody else has the memory, so that nothing needs the lock. Our own uses
 * end with the last reference. */
static void end_uses(dlb_work *work) {
    for (int32_t i = work->use_count - 1; i >= 0; i--) {
        dlb_use *use = &work->uses[i];
        bool is_closed = !dlb_span_is_open(use->place.span);
        if (is_closed ? dlb_span_is_over(use->place.span)
                      : dlb_work_mark_end(work, use))
            dlb_work_drop_use(work, use);
    }
}

bool dlb_work_is_over(dlb_work *work) {
    if (dlb_cuda_is_forked())
        return true;
    end_uses(work);
    dlb_work_drop_what_is_done(work);
    bool is_over = work->use_count == 0 && work->done_count == 0;
    return is_over;
}

bool dlb_work_watch(dlb_work *work, dlb_stream stream) {
    bool waits = false;
    for (int32_t i = 0; i < work->done_count; i++)
        waits |= work->done[i].event != NULL &&
                 dlb_cuda_wait(work->device, dlb_cuda_place(stream),
                               work->done[i].event) == 0;
    return waits;
}

/* ---- memory of ours, freed in the order of its home ---- */

/* A stream of ours takes the place of one that may be gone. */
static int find_home(dlb_work *work) {
    dlb_place old = work->home;
    if (dlb_span_is_open(old.span))
        return 0;
    dlb_stream side = dlb_cuda_side_stream(work->device, DLB_CUDA_FREEING);
    if (side == 0)
        return -1;
    work->home = dlb_cuda_place(side);
    return dlb_cuda_order(work->device, old, work->home);
}

static int end_on_home(dlb_work *work) {
    bool is_captured = false; /* what is outside of its graph stays without order */
    dlb_cuda_scope scope;     /* default streams are those of the current context */
    for (int32_t i = 0; i < work->done_count; i++)
        if (work->done[i].event == NULL)
            return dlb_cuda_check(CUDA_ERROR_INVALID_HANDLE, "cuEventRecord");
    if (find_home(work) < 0 || dlb_cuda_enter(work->device, &scope) < 0)
        return -1;
    int status = dlb_work_catch_up(work, work->home, true, true, &is_captured);
    dlb_cuda_leave(&scope);
    return status == 0 && is_captured ? dlb_cuda_fail(DLB_CUDA_CAPTURE) : status;
}

int dlb_work_end_on_home(dlb_work *work, dlb_place *home) {
    if (dlb_cuda_is_forked())
        return 0;
    dlb_work_lock(work);
    int status = end_on_home(work);
    *home = work->home;
    dlb_work_unlock(work);
    return status;
}

dlb_place dlb_work_home(dlb_work *work) {
    find_home(work);
    dlb_place home = work->home;
    return home;
}
