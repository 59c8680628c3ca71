/* Blocks of Python that work on a stream: `with dlbridge.cuda.stream(s)`. Whoever opens
 * one promises that the stream lives until its end. What is noted of work on the stream
 * names the span of the block; when it is closed, an event takes the stream's place,
 * for as long as it has not come. */
#include "cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>

/* A span is a number that never comes again, and the slot that it has while it is open.
 */
#define SLOTS 256
#define NESTED 16

typedef struct {
    _Atomic uint64_t span; /* 0: free */
    int32_t device;
    dlb_stream stream;
    _Atomic bool is_used;
    bool is_left; /* its block has ended, in a capture */
} slot_t;

typedef struct {
    uint64_t span;
    int32_t device;
    CUevent event;
} end_t;

typedef struct {
    uint64_t span;
    int32_t device;
    dlb_stream stream;
} block_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot_t slots[SLOTS];
static uint64_t count;
static end_t *ends; /* of closed spans; those that are not here are over */
static int32_t end_count, end_room;
static _Thread_local block_t blocks[NESTED]; /* innermost last */
static _Thread_local int32_t depth;

static slot_t *slot_of(uint64_t span) {
    return &slots[span % SLOTS];
}

bool dlb_span_is_open(uint64_t span) {
    return span == 0 ||
           atomic_load_explicit(&slot_of(span)->span, memory_order_acquire) == span;
}

/* ---- open ---- */

/* A free one, or else one that a capture left open: nothing can be ordered after work
 * in a graph, so that it may as well count as over. NULL: there is none. */
static slot_t *find_slot(void) {
    slot_t *left = NULL;
    for (int32_t i = 0; i < SLOTS; i++) {
        if (atomic_load(&slots[i].span) == 0)
            return &slots[i];
        if (slots[i].is_left)
            left = &slots[i];
    }
    return left;
}

static uint64_t take_slot(int32_t device, dlb_stream stream) {
    uint64_t span = 0;
    pthread_mutex_lock(&lock);
    slot_t *slot = find_slot();
    if (slot != NULL) {
        span = ++count * SLOTS + (uint64_t)(slot - slots);
        slot->device = device;
        slot->stream = stream;
        slot->is_left = false;
        atomic_store(&slot->is_used, false);
        atomic_store_explicit(&slot->span, span, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return span;
}

/* A block may be closed by another thread than opened it. */
static void drop_closed_blocks(void) {
    while (depth > 0 && !dlb_span_is_open(blocks[depth - 1].span))
        depth--;
}

/* The default streams live as long as their device or thread. */
uint64_t dlb_span_open(int32_t device, dlb_stream stream) {
    drop_closed_blocks();
    bool is_made =
        stream != 0 && stream > DLB_STREAM_PER_THREAD && stream != DLB_STREAM_NONE;
    uint64_t span = is_made && depth < NESTED ? take_slot(device, stream) : 0;
    if (span != 0)
        blocks[depth++] = (block_t){span, device, stream};
    return span;
}

uint64_t dlb_span_find(int32_t device, dlb_stream stream) {
    for (int32_t i = depth - 1; i >= 0; i--) {
        const block_t *block = &blocks[i];
        if (block->stream == stream && block->device == device &&
            dlb_span_is_open(block->span)) {
            atomic_store_explicit(&slot_of(block->span)->is_used, true,
                                  memory_order_relaxed);
            return block->span;
        }
    }
    return 0;
}

/* ---- closed ---- */

static bool grow(void) {
    if (end_count < end_room)
        return true;
    int32_t room = end_room ? 2 * end_room : 16;
    end_t *grown = realloc(ends, (size_t)room * sizeof *grown);
    if (grown == NULL)
        return false;
    ends = grown;
    end_room = room;
    return true;
}

static void forget_come(void) {
    for (int32_t i = end_count - 1; i >= 0; i--)
        if (dlb_cuda_is_over(ends[i].device, ends[i].event)) {
            dlb_cuda_reuse_event(ends[i].device, ends[i].event);
            ends[i] = ends[--end_count];
        }
}

/* False: the stream has to stand for itself, since it is being captured. */
static bool note_end(const slot_t *slot, uint64_t span) {
    CUevent event;
    if (end_count == end_room)
        forget_come();
    if (!grow() ||
        dlb_cuda_mark(slot->device, dlb_cuda_place(slot->stream), &event) < 0)
        return dlb_cuda_is_gone();
    if (event != NULL)
        ends[end_count++] = (end_t){span, slot->device, event};
    return event != NULL;
}

void dlb_span_close(uint64_t span) {
    slot_t *slot = slot_of(span);
    if (span == 0 || dlb_cuda_is_forked())
        return;
    pthread_mutex_lock(&lock);
    if (dlb_span_is_open(span)) {
        slot->is_left = atomic_load(&slot->is_used) && !note_end(slot, span);
        if (!slot->is_left)
            atomic_store_explicit(&slot->span, 0, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    for (int32_t i = 0; i < depth; i++)
        if (blocks[i].span == span) {
            for (depth--; i < depth; i++)
                blocks[i] = blocks[i + 1];
            break;
        }
}

/* Under the lock. */
static end_t *find_end(uint64_t span) {
    for (int32_t i = 0; i < end_count; i++)
        if (ends[i].span == span)
            return &ends[i];
    return NULL;
}

int dlb_span_wait(uint64_t span, int32_t device, dlb_place after) {
    pthread_mutex_lock(&lock);
    const end_t *end = find_end(span);
    int status = end ? dlb_cuda_wait(device, after, end->event) : 0;
    pthread_mutex_unlock(&lock);
    return status;
}

bool dlb_span_is_over(uint64_t span) {
    pthread_mutex_lock(&lock);
    end_t *end = find_end(span);
    bool is_over = end == NULL || dlb_cuda_is_over(end->device, end->event);
    if (end != NULL && is_over) {
        dlb_cuda_reuse_event(end->device, end->event);
        *end = ends[--end_count];
    }
    pthread_mutex_unlock(&lock);
    return is_over;
}

void dlb_span_forget(void) {
    pthread_mutex_lock(&lock);
    while (end_count > 0) {
        end_count--;
        dlb_cuda_reuse_event(ends[end_count].device, ends[end_count].event);
    }
    for (int32_t i = 0; i < SLOTS; i++)
        atomic_store(&slots[i].span, 0);
    pthread_mutex_unlock(&lock);
}
