/* The rows of a dlb_work, for work.c, lending.c, ending.c and
 * host.c alone; see cuda.h. */
#ifndef DLBRIDGE_CORE_CUDA_WORK_H_
#define DLBRIDGE_CORE_CUDA_WORK_H_

#include "cuda/cuda.h"

#include <sched.h>

typedef struct {
    dlb_place place;
    bool writes;
    int32_t lent;  /* exports that are alive; 0: our own work */
    uint64_t seen; /* the version of the memory that it comes after, with its readers
                      if it writes; 0: none, it was captured */
} dlb_use;

typedef struct {
    CUevent event; /* NULL: nobody can tell, until all work on the device is over */
    bool writes;
    uint64_t synchronisations; /* of the device, then */
} dlb_done;

enum { DLB_FIRST_ROWS = 2 };

struct dlb_work {
    _Atomic bool is_locked;
    int32_t device;
    bool is_own;
    dlb_place ready, home;
    dlb_buffer *kept;
    uint64_t version; /* of what must be waited for, beside what still goes on */
    int32_t use_count, use_room, done_count, done_room;
    dlb_use *uses, first_uses[DLB_FIRST_ROWS];
    dlb_done *done, first_done[DLB_FIRST_ROWS];
};

/* Each exchange takes it several times; hardly ever do two threads want the same. */
static inline bool dlb_work_try_lock(dlb_work *work) {
    return !atomic_exchange_explicit(&work->is_locked, true, memory_order_acquire);
}

static inline void dlb_work_lock(dlb_work *work) {
    while (!dlb_work_try_lock(work))
        sched_yield();
}

static inline void dlb_work_unlock(dlb_work *work) {
    atomic_store_explicit(&work->is_locked, false, memory_order_release);
}

static inline dlb_use *dlb_work_find_use(dlb_work *work, dlb_place place) {
    for (int32_t i = 0; i < work->use_count; i++)
        if (dlb_cuda_same_place(work->uses[i].place, place))
            return &work->uses[i];
    return NULL;
}

/* Another takes its row: go through them from the last to the first. */
static inline void dlb_work_drop_use(dlb_work *work, dlb_use *use) {
    *use = work->uses[--work->use_count];
}

/* At home, what comes after `ready` is waited for with it. */
static inline bool dlb_work_is_known(const dlb_work *work, dlb_place place) {
    return dlb_cuda_same_place(place, work->home) &&
           dlb_cuda_same_place(place, work->ready);
}

/* ---- work.c ---- */

bool dlb_work_is_done(const dlb_work *work, const dlb_done *done);
/* Another takes its row. */
void dlb_work_drop_done(dlb_work *work, int32_t i);
void dlb_work_drop_what_is_done(dlb_work *work);
/* Room for one more; the others may move. */
int dlb_work_make_room_for_use(dlb_work *work);
/* Memory that is lent again and again keeps account of what still runs, no more. */
int dlb_work_make_room_for_done(dlb_work *work);

/* ---- lending.c ---- */

/* `place` after what was written before, and, to write, after what reads. Without a
 * call to the driver if `may_call` is false: 1 if it takes one. */
int dlb_work_catch_up(dlb_work *work, dlb_place place, bool writes, bool may_call,
                      bool *is_captured);

/* ---- ending.c ---- */

/* An event now: the consumer may destroy its stream as soon as it has given the memory
 * back. False: none can be recorded before a capture ends. */
bool dlb_work_mark_end(dlb_work *work, const dlb_use *use);

#endif /* DLBRIDGE_CORE_CUDA_WORK_H_ */
