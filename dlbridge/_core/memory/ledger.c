/* A table of what is alive, by address, and a list of what was misused. */
#define _POSIX_C_SOURCE 200809L
#include "memory/ledger.h"
#include "memory/buffer.h"
#include "memory/lock.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const void *what;       /* NULL: the entry is free */
    const DLTensor *tensor; /* of an export; NULL: `what` is a dlb_buffer */
    int64_t serial;
    int32_t place;
    int32_t next; /* of the same bucket, or the next free one; -1: none */
    bool is_dead; /* an export whose deleter ran, not freed yet */
} entry_t;

_Atomic int dlb_ledger_is_open;
_Atomic int64_t dlb_ledger_count;
int32_t (*dlb_ledger_place)(void);
const char *(*dlb_ledger_kind)(const dlb_buffer *buffer);

DLB_LOCK(mutex)
static int64_t last_serial, lost;
static entry_t *entries;
static int32_t *buckets; /* as many as there are entries */
static int32_t capacity, first_free = -1;
static dlb_ledger_row *events;
static int64_t event_count, event_capacity;

static void lock(void) {
    pthread_mutex_lock(&mutex);
}

static void unlock(void) {
    pthread_mutex_unlock(&mutex);
}

static int32_t bucket_of(const void *what) {
    return (int32_t)(((uintptr_t)what >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 33) &
           (capacity - 1);
}

static int32_t find(const void *what) {
    int32_t i = capacity > 0 ? buckets[bucket_of(what)] : -1;
    while (i >= 0 && entries[i].what != what)
        i = entries[i].next;
    return i;
}

static void insert(int32_t i) {
    int32_t *bucket = &buckets[bucket_of(entries[i].what)];
    entries[i].next = *bucket;
    *bucket = i;
}

static bool grow(void) {
    int32_t larger = capacity ? 2 * capacity : 256;
    if (larger <= 0 || larger > 1 << 28)
        return false;
    entry_t *more = realloc(entries, (size_t)larger * sizeof *more);
    if (more == NULL)
        return false;
    entries = more;
    int32_t *wider = realloc(buckets, (size_t)larger * sizeof *wider);
    if (wider == NULL)
        return false;
    buckets = wider;
    int32_t before = capacity;
    capacity = larger;
    memset(buckets, -1, (size_t)larger * sizeof *buckets);
    for (int32_t i = 0; i < before; i++) /* none is free, or this would not be needed */
        insert(i);
    for (int32_t i = larger; i-- > before;) {
        entries[i] = (entry_t){.next = first_free};
        first_free = i;
    }
    return true;
}

static void take_out(int32_t i) {
    int32_t *at = &buckets[bucket_of(entries[i].what)];
    while (*at != i)
        at = &entries[*at].next;
    *at = entries[i].next;
    entries[i].what = NULL;
    entries[i].next = first_free;
    first_free = i;
    atomic_fetch_sub_explicit(&dlb_ledger_count, 1, memory_order_relaxed);
}

void dlb_ledger_record(const void *what, const DLTensor *tensor) {
    int32_t place = dlb_ledger_place ? dlb_ledger_place() : -1;
    lock();
    int32_t known = find(what);
    if (known >= 0) /* freed in a way that nobody saw */
        take_out(known);
    if (atomic_load_explicit(&dlb_ledger_is_open, memory_order_relaxed) == 0) {
        unlock();
        return;
    }
    if (first_free < 0 && !grow()) {
        lost++;
        unlock();
        return;
    }
    int32_t i = first_free;
    first_free = entries[i].next;
    entries[i] = (entry_t){what, tensor, ++last_serial, place, -1, false};
    insert(i);
    atomic_fetch_add_explicit(&dlb_ledger_count, 1, memory_order_relaxed);
    unlock();
}

void dlb_ledger_record_death(const void *what, bool is_freed) {
    lock();
    int32_t i = find(what);
    if (i >= 0) {
        if (is_freed)
            take_out(i);
        else
            entries[i].is_dead = true;
    }
    unlock();
}

static void describe(const entry_t *entry, dlb_ledger_row *row) {
    memset(row, 0, sizeof *row);
    row->serial = entry->serial;
    row->place = entry->place;
    row->event_place = -1;
    if (entry->tensor == NULL) {
        const dlb_buffer *buffer = entry->what;
        row->kind = dlb_ledger_kind ? dlb_ledger_kind(buffer) : dlb_buffer_kind(buffer);
        row->nbytes = buffer->nbytes;
        row->ndim = -1;
        return;
    }
    const DLTensor *tensor = entry->tensor;
    row->kind = "export";
    row->dtype = tensor->dtype;
    row->device = tensor->device;
    row->ndim = tensor->ndim;
    for (int32_t d = 0; d < tensor->ndim && d < DLB_LEDGER_DIMS; d++)
        row->shape[d] = tensor->shape[d];
}

void dlb_ledger_record_misuse(const void *what, int64_t serial, dlb_misuse misuse) {
    int32_t place = dlb_ledger_place ? dlb_ledger_place() : -1;
    lock();
    int32_t i = find(what);
    if (i >= 0 && serial != 0 && entries[i].serial != serial)
        i = -1;
    if (i >= 0 && misuse == DLB_NEVER_CONSUMED && entries[i].is_dead) {
        unlock(); /* its deleter was called, and will be again */
        return;
    }
    bool is_wanted =
        i >= 0 || atomic_load_explicit(&dlb_ledger_is_open, memory_order_relaxed) != 0;
    if (is_wanted && event_count == event_capacity) {
        int64_t larger = event_capacity ? 2 * event_capacity : 64;
        dlb_ledger_row *more = larger <= 2 * DLB_LEDGER_EVENTS
                                   ? realloc(events, (size_t)larger * sizeof *more)
                                   : NULL;
        if (more != NULL) {
            events = more;
            event_capacity = larger;
        }
    }
    if (is_wanted &&
        (event_count == event_capacity || event_count == DLB_LEDGER_EVENTS))
        lost++;
    else if (is_wanted) {
        dlb_ledger_row *event = &events[event_count++];
        if (i >= 0) {
            describe(&entries[i], event);
        } else {
            memset(event, 0, sizeof *event);
            event->kind = "export";
            event->ndim = event->place = -1;
            event->serial = serial;
        }
        event->misuse = misuse;
        event->event_place = place;
        event->event = ++last_serial;
        if (event->serial == 0)
            event->serial = event->event;
    }
    unlock();
}

int64_t dlb_ledger_open(void) {
    lock();
    atomic_fetch_add_explicit(&dlb_ledger_is_open, 1, memory_order_relaxed);
    int64_t first = last_serial;
    unlock();
    return first;
}

int64_t dlb_ledger_close(void) {
    lock();
    atomic_fetch_sub_explicit(&dlb_ledger_is_open, 1, memory_order_relaxed);
    int64_t last = last_serial;
    unlock();
    return last;
}

int64_t dlb_ledger_now(void) {
    lock();
    int64_t last = last_serial;
    unlock();
    return last;
}

int64_t dlb_ledger_serial(const void *what) {
    lock();
    int32_t i = find(what);
    int64_t serial = i >= 0 ? entries[i].serial : 0;
    unlock();
    return serial;
}

void dlb_ledger_clear(void) {
    lock();
    free(entries);
    free(buckets);
    free(events);
    entries = NULL;
    buckets = NULL;
    events = NULL;
    capacity = 0;
    first_free = -1;
    event_count = event_capacity = lost = 0;
    atomic_store_explicit(&dlb_ledger_count, 0, memory_order_relaxed);
    unlock();
}

static int by_serial(const void *a, const void *b) {
    int64_t x = ((const dlb_ledger_row *)a)->serial;
    int64_t y = ((const dlb_ledger_row *)b)->serial;
    return (x > y) - (x < y);
}

dlb_ledger_row *dlb_ledger_alive(int64_t first, int64_t last, int64_t *count) {
    lock();
    int64_t most = atomic_load_explicit(&dlb_ledger_count, memory_order_relaxed);
    dlb_ledger_row *rows = malloc((size_t)(most + 1) * sizeof *rows);
    *count = rows ? 0 : -1;
    for (int32_t i = 0; rows != NULL && i < capacity; i++) {
        const entry_t *entry = &entries[i];
        if (entry->what != NULL && !entry->is_dead && entry->serial > first &&
            entry->serial <= last)
            describe(entry, &rows[(*count)++]);
    }
    unlock();
    if (rows != NULL)
        qsort(rows, (size_t)*count, sizeof *rows, by_serial);
    return rows;
}

dlb_ledger_row *dlb_ledger_events(int64_t first, int64_t last, int64_t *count) {
    lock();
    dlb_ledger_row *rows = malloc((size_t)(event_count + 1) * sizeof *rows);
    *count = rows ? 0 : -1;
    for (int64_t i = 0; rows != NULL && i < event_count; i++)
        if (events[i].serial > first && events[i].serial <= last)
            rows[(*count)++] = events[i];
    unlock();
    return rows;
}

int64_t dlb_ledger_births(int64_t first, int64_t last) {
    lock();
    int64_t births = last - first;
    for (int64_t i = 0; i < event_count; i++)
        births -= events[i].event > first && events[i].event <= last;
    unlock();
    return births;
}

int64_t dlb_ledger_lost(void) {
    lock();
    int64_t now = lost;
    unlock();
    return now;
}
