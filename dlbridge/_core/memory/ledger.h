/* Which buffers and exports are alive, for who asks: `dlbridge.ledger()`. No Python
 * here.
 *
 * While nobody asks, a birth and a death cost the load of one flag each. While somebody
 * does, both go into a table under a mutex, on any thread, with or without the GIL.
 * Nothing of Python happens under the mutex: a collection could come back here. */
#ifndef DLBRIDGE_CORE_MEMORY_LEDGER_H_
#define DLBRIDGE_CORE_MEMORY_LEDGER_H_

#include "core.h"

#define DLB_LEDGER_DIMS 16 /* of the shape that is shown */

typedef enum { DLB_NEVER_CONSUMED, DLB_CONSUMED_TWICE, DLB_DELETED_TWICE } dlb_misuse;

/* A buffer or an export, or one that was misused, as far as it is known. */
typedef struct {
    int64_t serial;   /* of its birth: a later one has a greater number; 0: not known */
    const char *kind; /* "export", or of a buffer; static */
    int64_t nbytes;   /* of the memory of a buffer; 0: not known */
    int32_t place;    /* where it was made: dlb_ledger_place; -1: not known */
    dlb_misuse misuse; /* of an event */
    int64_t event;     /* the serial of an event */
    int32_t event_place;
    DLDataType dtype; /* of an export */
    DLDevice device;
    int32_t ndim; /* -1: a buffer, which has no shape */
    int64_t shape[DLB_LEDGER_DIMS];
} dlb_ledger_row;

/* The number of the place in the code that this thread is at, or -1. Set by
 * tensor/ledger.c. */
extern int32_t (*dlb_ledger_place)(void);
struct dlb_buffer;
/* "allocator", "managed", "object" or "loan"; set by tensor/ledger.c. */
extern const char *(*dlb_ledger_kind)(const struct dlb_buffer *buffer);

extern _Atomic int dlb_ledger_is_open;   /* how many ledgers record births */
extern _Atomic int64_t dlb_ledger_count; /* entries of the table */

void dlb_ledger_record(const void *what, const DLTensor *tensor);
void dlb_ledger_record_death(const void *what, bool is_freed);
void dlb_ledger_record_misuse(const void *what, int64_t serial, dlb_misuse misuse);

/* `tensor` is NULL for a dlb_buffer. */
static inline void dlb_ledger_born(const void *what, const DLTensor *tensor) {
    if (atomic_load_explicit(&dlb_ledger_is_open, memory_order_relaxed) != 0)
        dlb_ledger_record(what, tensor);
}

/* Before the memory of `what` is freed; an export is dead before that. */
static inline void dlb_ledger_died(const void *what, bool is_freed) {
    if (atomic_load_explicit(&dlb_ledger_count, memory_order_relaxed) != 0)
        dlb_ledger_record_death(what, is_freed);
}

/* `what` may be another producer's, or be gone; only an entry with this serial is
 * meant, unless that is 0: then `what` is an export of ours that is not freed. */
static inline void dlb_ledger_misused(const void *what, int64_t serial,
                                      dlb_misuse misuse) {
    if (atomic_load_explicit(&dlb_ledger_is_open, memory_order_relaxed) != 0 ||
        atomic_load_explicit(&dlb_ledger_count, memory_order_relaxed) != 0)
        dlb_ledger_record_misuse(what, serial, misuse);
}

/* Record from now on; returns the last serial so far. Each call needs one of
 * dlb_ledger_close, which returns the last serial of what was recorded. */
int64_t dlb_ledger_open(void);
int64_t dlb_ledger_close(void);
int64_t dlb_ledger_now(void);
/* Of the birth of what is in the table, or 0. */
int64_t dlb_ledger_serial(const void *what);
/* Forget everything; nobody may ask any more. */
void dlb_ledger_clear(void);
/* Copies of the rows whose serial is in (first, last], oldest first, in memory to be
 * freed; of what is alive, or of events. NULL with *count -1: no memory. */
dlb_ledger_row *dlb_ledger_alive(int64_t first, int64_t last, int64_t *count);
dlb_ledger_row *dlb_ledger_events(int64_t first, int64_t last, int64_t *count);
/* How many could not be recorded for lack of memory, or were events beyond
 * DLB_LEDGER_EVENTS. */
int64_t dlb_ledger_lost(void);
/* How many were born with a serial in (first, last]. */
int64_t dlb_ledger_births(int64_t first, int64_t last);
#define DLB_LEDGER_EVENTS 100000

#endif /* DLBRIDGE_CORE_MEMORY_LEDGER_H_ */
