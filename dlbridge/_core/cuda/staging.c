/* Copies between the device and pageable memory of the host, through pinned memory that
 * the copy engine reads and writes while the host is at the next piece. Large copies
 * have several threads, since one does not move as much as the bus does. */
#include "cuda/copy.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIRECT (64 << 10)     /* the driver takes as much at once, without waiting */
#define SMALL_SLOT (1 << 20)  /* pieces of copies up to 8 of them */
#define LARGE_SLOT (4 << 20)  /* of larger ones */
#define THREADED (32LL << 20) /* bytes from which on threads help */
#define MAX_WORKERS 4
#define SLOTS 2

typedef struct {
    const dlb_copy_plan *plan;
    bool to_device;
    int32_t device;
    dlb_stream stream;
    int64_t slot_bytes;
} job;

typedef struct {
    const job *of;
    int64_t first, step, next; /* the pieces that are its own, the next one it sees */
    dlb_buffer *slots[SLOTS];
    dlb_copy_plan unpacking[SLOTS]; /* from the device: where a slot's piece goes */
    bool is_full[SLOTS];
    int32_t turn;
    int status;
    dlb_cuda_failure_t failure;
} worker;

/* ---- one piece ---- */

static dlb_buffer *take_slot(worker *self) {
    dlb_buffer **slot = &self->slots[self->turn];
    if (*slot == NULL)
        *slot = dlb_cuda_allocate((DLDevice){kDLCUDAHost, self->of->device},
                                  self->of->slot_bytes);
    if (*slot != NULL && dlb_work_wait((*slot)->work, true) < 0)
        return NULL;
    return *slot;
}

/* Between the slot and the device; an event stands at its end. */
static int issue(const worker *self, const dlb_buffer *slot, const dlb_copy_plan *plan,
                 bool writes_slot) {
    dlb_stream on = self->of->stream;
    int status =
        writes_slot ? dlb_work_write(slot->work, on) : dlb_work_read(slot->work, on);
    if (status == 0)
        status = dlb_cuda_issue(plan, on);
    if (status == 0)
        status = dlb_work_finish(slot->work, on, writes_slot);
    return status;
}

static int unpack(worker *self, int32_t slot) {
    if (!self->is_full[slot])
        return 0;
    self->is_full[slot] = false;
    if (dlb_work_wait(self->slots[slot]->work, true) < 0)
        return -1;
    dlb_copy_bytes(&self->unpacking[slot]);
    return 0;
}

static int move_piece(worker *self, const dlb_copy_plan *piece) {
    dlb_copy_plan in, out;
    int32_t turn = self->turn;
    dlb_buffer *slot = take_slot(self);
    if (slot == NULL)
        return -1;
    dlb_copy_through(piece, slot->data, &in, &out);
    self->turn = (turn + 1) % SLOTS;
    if (self->of->to_device) {
        dlb_copy_bytes(&in);
        return issue(self, slot, &out, false);
    }
    if (issue(self, slot, &in, true) < 0)
        return -1;
    self->unpacking[turn] = out;
    self->is_full[turn] = true;
    return unpack(self, self->turn); /* while the device fills this one */
}

static int see_piece(void *context, const dlb_copy_plan *piece) {
    worker *self = context;
    bool is_own = self->next++ % self->step == self->first;
    return is_own ? move_piece(self, piece) : 0;
}

/* ---- workers ---- */

static void *work(void *context) {
    worker *self = context;
    dlb_cuda_scope scope;
    self->status = dlb_cuda_enter(self->of->device, &scope);
    if (self->status == 0) {
        self->status =
            dlb_copy_split(self->of->plan, self->of->slot_bytes, see_piece, self);
        for (int32_t i = 0; i < SLOTS && self->status == 0; i++)
            self->status = unpack(self, (self->turn + i) % SLOTS);
        dlb_cuda_leave(&scope);
    }
    self->failure = *dlb_cuda_failure();
    for (int32_t i = 0; i < SLOTS; i++)
        if (self->slots[i] != NULL)
            dlb_buffer_drop(self->slots[i]); /* kept again when its copy is through */
    return NULL;
}

/* The default stream of a thread is another one in each. */
static int64_t count_workers(const job *of, int64_t total) {
    if (total < THREADED || of->stream == DLB_STREAM_PER_THREAD)
        return 1;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return processors < 1 ? 1 : processors < MAX_WORKERS ? processors : MAX_WORKERS;
}

static int run_workers(const job *of, int64_t count) {
    worker *workers = calloc((size_t)count, sizeof *workers);
    pthread_t threads[MAX_WORKERS];
    bool is_started[MAX_WORKERS] = {false};
    int status = 0;
    if (workers == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    for (int64_t i = 0; i < count; i++) {
        workers[i].of = of;
        workers[i].first = i;
        workers[i].step = count;
        is_started[i] =
            i > 0 && pthread_create(&threads[i], NULL, work, &workers[i]) == 0;
    }
    for (int64_t i = 0; i < count; i++)
        if (!is_started[i])
            work(&workers[i]);
    for (int64_t i = 0; i < count; i++) {
        if (is_started[i])
            pthread_join(threads[i], NULL);
        if (workers[i].status < 0) {
            status = -1;
            *dlb_cuda_failure() = workers[i].failure;
        }
    }
    free(workers);
    return status;
}

/* ---- small ones ---- */

/* The driver takes the values before it returns. */
static int send_directly(const dlb_copy_plan *plan, dlb_stream on) {
    dlb_copy_plan in, out;
    if (plan->ndim == 0)
        return dlb_cuda_issue(plan, on);
    char packed[4096], *middle = packed;
    int64_t total = dlb_copy_count(plan);
    if (total > (int64_t)sizeof packed && (middle = malloc((size_t)total)) == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    dlb_copy_through(plan, middle, &in, &out);
    dlb_copy_bytes(&in);
    int status = dlb_cuda_issue(&out, on);
    if (middle != packed)
        free(middle);
    return status;
}

int dlb_cuda_stage(const dlb_copy_plan *plan, bool to_device, int32_t device,
                   dlb_stream on) {
    int64_t total = dlb_copy_count(plan);
    if (to_device && total <= DIRECT)
        return send_directly(plan, on);
    dlb_copy_plan ordered = *plan;
    if (!to_device) /* the host is better at changing the order than the copy engine */
        dlb_copy_order_by_source(&ordered);
    int64_t slot = total <= 8 * SMALL_SLOT ? SMALL_SLOT : LARGE_SLOT;
    job of = {&ordered, to_device, device, on, total < slot ? total : slot};
    return run_workers(&of, count_workers(&of, total));
}
