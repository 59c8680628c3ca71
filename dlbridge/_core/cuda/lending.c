/* Work on CUDA memory begins, ours or a consumer's: after what it is ordered. */
#include "cuda/work.h"

/* ---- what must be waited for ---- */

/* Whether a use must be waited for by other work; not if waiting for `ready` does. */
static bool matters(const dlb_work *work, const dlb_use *use, const dlb_use *own,
                    bool writes, bool *at_ready) {
    if (use == own || !(writes || use->writes))
        return false;
    if (!dlb_cuda_same_place(use->place, work->ready))
        return true;
    *at_ready |= use->lent > 0 || !use->writes;
    return false;
}

static int note_order(int status, bool *is_captured) {
    *is_captured |= status > 0;
    return status < 0 ? -1 : 0;
}

int dlb_work_catch_up(dlb_work *work, dlb_place place, bool writes, bool may_call,
                      bool *is_captured) {
    const dlb_use *own = dlb_work_find_use(work, place);
    bool has_seen = own && own->seen == work->version && (own->writes || !writes);
    bool after_ready = !has_seen;
    for (int32_t i = 0; i < work->use_count; i++) {
        if (!matters(work, &work->uses[i], own, writes, &after_ready))
            continue;
        if (!may_call)
            return 1;
        if (note_order(dlb_cuda_order(work->device, work->uses[i].place, place),
                       is_captured) < 0)
            return -1;
    }
    for (int32_t i = 0; i < work->done_count && !has_seen; i++) {
        if (work->done[i].event == NULL || !(writes || work->done[i].writes))
            continue;
        if (!may_call)
            return 1;
        if (note_order(dlb_cuda_wait(work->device, place, work->done[i].event),
                       is_captured) < 0)
            return -1;
    }
    if (!after_ready || work->ready.stream == DLB_STREAM_NONE ||
        dlb_cuda_same_place(work->ready, place))
        return 0;
    if (!may_call)
        return 1;
    return note_order(dlb_cuda_order(work->device, work->ready, place), is_captured);
}

/* ---- a use begins ---- */

static void note_use(dlb_work *work, dlb_place place, bool writes, int32_t lent,
                     uint64_t seen) {
    dlb_use *use = dlb_work_find_use(work, place);
    if (use == NULL) {
        use = &work->uses[work->use_count++];
        *use = (dlb_use){.place = place};
    }
    use->writes |= writes;
    use->lent += lent;
    use->seen = seen;
}

static void forget_done(dlb_work *work) {
    for (int32_t i = work->done_count - 1; i >= 0; i--)
        if (work->done[i].event != NULL)
            dlb_work_drop_done(work, i);
}

/* All that was before is ordered before the work on `place`. */
static void forget_past(dlb_work *work, dlb_place place) {
    forget_done(work);
    for (int32_t i = work->use_count - 1; i >= 0; i--)
        if (work->uses[i].lent == 0)
            dlb_work_drop_use(work, &work->uses[i]);
    work->ready = place;
    work->version++;
}

static int begin_locked(dlb_work *work, dlb_place place, bool writes, int32_t lent,
                        bool may_call) {
    if (dlb_cuda_is_forked())
        return dlb_cuda_fail(DLB_CUDA_MISSING);
    if (dlb_work_make_room_for_use(work) < 0)
        return -1;
    bool is_captured = false; /* into a graph, which nothing is ordered before */
    int status = dlb_work_catch_up(work, place, writes, may_call, &is_captured);
    if (status != 0)
        return status;
    if (writes && lent == 0 && !is_captured)
        forget_past(work, place);
    else if (writes && !is_captured && dlb_cuda_same_place(place, work->ready))
        forget_done(work); /* who waits for `ready` waits for them, too */
    /* At home, what comes after `ready` is waited for with it, by all once more. */
    if (lent == 0 && !is_captured && dlb_work_is_known(work, place))
        work->version++;
    else
        note_use(work, place, writes, lent, is_captured ? 0 : work->version);
    return 0;
}

static int begin(dlb_work *work, dlb_stream on, bool writes) {
    if (on == DLB_STREAM_NONE)
        return 0;
    dlb_work_lock(work);
    dlb_place place = dlb_cuda_place_on(work->device, on);
    int status = begin_locked(work, place, writes, 0, true);
    dlb_work_unlock(work);
    return status;
}

int dlb_work_read(dlb_work *work, dlb_stream on) {
    return begin(work, on, false);
}

int dlb_work_write(dlb_work *work, dlb_stream on) {
    return begin(work, on, true);
}

int dlb_work_lend(dlb_work *work, dlb_stream to, bool writes, bool may_call,
                  dlb_place *lent) {
    *lent = dlb_cuda_place(to);
    if (to == DLB_STREAM_NONE)
        return 0;
    if (may_call)
        dlb_work_lock(work);
    else if (!dlb_work_try_lock(work))
        return 1;
    int status = begin_locked(work, *lent, writes, 1, may_call);
    dlb_work_unlock(work);
    return status;
}

/* Consumers of the CUDA array interface mostly work on the legacy default stream, or on
 * one that it waits for: it stands for them. */
int dlb_work_publish(dlb_work *work, dlb_stream *ready) {
    dlb_work_lock(work);
    dlb_place place = work->ready;
    if (place.stream == DLB_STREAM_NONE || !dlb_span_is_open(place.span) ||
        place.thread != 0)
        place = dlb_cuda_place(DLB_STREAM_LEGACY);
    bool is_captured = false, may_call = !dlb_cuda_is_forked();
    int status = dlb_work_make_room_for_use(work) < 0
                     ? -1
                     : dlb_work_catch_up(work, place, false, may_call, &is_captured);
    dlb_place legacy = dlb_cuda_place(DLB_STREAM_LEGACY);
    if (status == 0 && !dlb_cuda_same_place(legacy, work->home))
        note_use(work, legacy, true, 0, 0);
    *ready = place.stream;
    dlb_work_unlock(work);
    return status;
}
