/* Memory that the processes of one host share; see arena.h. */
#define _GNU_SOURCE /* memfd_create, F_GET_SEALS, MADV_REMOVE */
#include "memory/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/lock.h"

#define ALIGNMENT 64
#define PAGE ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define RING ((uint32_t)64 << 10) /* bytes of a mailbox, a power of two */
#define SKIPPED UINT32_MAX        /* for a length: the next message is at the start */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Messages from the owner of the region to another process. They stand one after the
 * other, each behind its length, padded to 8 bytes. The numbers count bytes, and wrap.
 */
typedef struct {
    _Alignas(64) _Atomic uint32_t written; /* by the owner */
    _Alignas(64) _Atomic uint32_t taken;   /* by the other one */
    _Alignas(64) char bytes[RING];
} mailbox;

/* The head of a region, which its blocks begin behind. Behind the mailboxes are the
 * counters of readers: of each slot one for each process. */
typedef struct {
    uint64_t token[2];   /* which region this is */
    mailbox mailboxes[]; /* one for each process */
} head;

typedef struct {
    size_t offset, size; /* in the region */
    uint32_t slot;       /* its counters of readers */
    bool is_used;        /* by its owner */
    bool is_leaving;     /* its pages go back to the system */
} block;

typedef struct {
    char *start; /* NULL: not mapped */
    size_t size;
    uint32_t written; /* to its process, into the mailbox in the own region */
    uint32_t taken;   /* from its mailbox for this process */
    _Atomic uint32_t held[DLB_ARENA_SLOTS]; /* loans that this process has taken */
} region;

struct dlb_arena {
    _Atomic int64_t references;
    uint32_t own, count;
    int file;
    pid_t process;
    uint64_t token[2];
    size_t head; /* bytes, the same in all regions */
    uint32_t block_count;
    _Atomic uint32_t lingering;    /* blocks that were put back and have readers */
    block blocks[DLB_ARENA_SLOTS]; /* in the order of their offsets */
    bool is_taken[DLB_ARENA_SLOTS];
    region regions[];
};

/* Held for the bookkeeping of all arenas. */
DLB_LOCK(blocks_lock)

static head *head_of(const region *region) {
    return (head *)region->start;
}

static bool is_ours(const dlb_arena *arena) {
    return getpid() == arena->process;
}

/* ---- regions ---- */

static size_t head_size(uint32_t count) {
    size_t counters = DLB_ARENA_SLOTS * (size_t)count * sizeof(_Atomic uint32_t);
    size_t needed = sizeof(head) + count * sizeof(mailbox) + counters;
    return (needed + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

static int map(region *made, int file, size_t size, size_t head) {
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start == MAP_FAILED)
        return -1;
#ifdef MADV_HUGEPAGE
    madvise((char *)start + head, size - head, MADV_HUGEPAGE); /* a wish */
#endif
#ifdef MADV_DONTDUMP
    madvise(start, size, MADV_DONTDUMP);
#endif
    made->start = start;
    made->size = size;
    return 0;
}

dlb_arena *dlb_arena_new(uint32_t own, uint32_t count, size_t size) {
    size = size / HUGE_PAGE * HUGE_PAGE;
    size_t head = head_size(count);
    if (own >= count || size < head + HUGE_PAGE || size > SIZE_MAX / 4) {
        errno = EINVAL;
        return NULL;
    }
    dlb_arena *arena = calloc(1, sizeof *arena + count * sizeof *arena->regions);
    if (arena == NULL)
        return NULL;
    atomic_init(&arena->references, 1);
    arena->own = own;
    arena->count = count;
    arena->head = head;
    arena->process = getpid();
    arena->file = memfd_create("dlbridge", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->file < 0 || ftruncate(arena->file, (off_t)size) < 0 ||
        fcntl(arena->file, F_ADD_SEALS, SEALS) < 0 ||
        getrandom(arena->token, sizeof arena->token, 0) != sizeof arena->token ||
        map(&arena->regions[own], arena->file, size, head) < 0) {
        int error = errno;
        dlb_arena_drop(arena);
        errno = error;
        return NULL;
    }
    memcpy(head_of(&arena->regions[own])->token, arena->token, sizeof arena->token);
    return arena;
}

dlb_arena *dlb_arena_retain(dlb_arena *arena) {
    atomic_fetch_add_explicit(&arena->references, 1, memory_order_relaxed);
    return arena;
}

void dlb_arena_close(dlb_arena *arena) {
    if (arena->file >= 0)
        close(arena->file);
    arena->file = -1;
}

void dlb_arena_drop(dlb_arena *arena) {
    if (atomic_fetch_sub_explicit(&arena->references, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < arena->count; i++)
        if (arena->regions[i].start != NULL)
            munmap(arena->regions[i].start, arena->regions[i].size);
    dlb_arena_close(arena);
    free(arena);
}

dlb_arena_address dlb_arena_where(const dlb_arena *arena) {
    return (dlb_arena_address){
        .size = arena->regions[arena->own].size,
        .token = {arena->token[0], arena->token[1]},
        .process = (int32_t)arena->process,
        .file = arena->file,
    };
}

/* Open the file of another process, if it is one that cannot shrink: nothing else is
 * mapped, whatever the address says. */
static int open_region(const dlb_arena_address *address) {
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)address->process,
             (int)address->file);
    int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return -1;
    int seals = fcntl(file, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(file, &found) == 0 &&
        (uint64_t)found.st_size == address->size)
        return file;
    close(file);
    errno = EINVAL;
    return -1;
}

int dlb_arena_attach(dlb_arena *arena, uint32_t rank,
                     const dlb_arena_address *address) {
    if (rank >= arena->count || rank == arena->own ||
        arena->regions[rank].start != NULL || address->size < arena->head + HUGE_PAGE ||
        address->size > SIZE_MAX / 4 || address->size % HUGE_PAGE != 0) {
        errno = EINVAL;
        return -1;
    }
    int file = open_region(address);
    if (file < 0)
        return -1;
    region *made = &arena->regions[rank];
    int result = map(made, file, (size_t)address->size, arena->head), error = errno;
    close(file);
    if (result == 0 && memcmp(head_of(made)->token, address->token,
                              sizeof address->token) != 0) { /* of somebody else */
        munmap(made->start, made->size);
        made->start = NULL;
        error = EINVAL;
        result = -1;
    }
    errno = error;
    return result;
}

bool dlb_arena_reaches(const dlb_arena *arena, uint32_t rank) {
    return rank < arena->count && arena->regions[rank].start != NULL;
}

/* ---- blocks of the own region, under the lock ---- */

/* The counters of a slot in the region of `owner`, one for each process. */
static _Atomic uint32_t *counters_of(const dlb_arena *arena, uint32_t owner,
                                     uint32_t slot) {
    head *start = head_of(&arena->regions[owner]);
    _Atomic uint32_t *all = (_Atomic uint32_t *)&start->mailboxes[arena->count];
    return all + (size_t)slot * arena->count;
}

static bool is_read(const dlb_arena *arena, const block *one) {
    _Atomic uint32_t *readers = counters_of(arena, arena->own, one->slot);
    for (uint32_t rank = 0; rank < arena->count; rank++)
        if (atomic_load_explicit(&readers[rank], memory_order_acquire) != 0)
            return true;
    return false;
}

/* The first block that ends behind the offset. */
static uint32_t search(const dlb_arena *arena, size_t offset) {
    uint32_t low = 0, high = arena->block_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const block *one = &arena->blocks[middle];
        if (one->offset + one->size <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void forget(dlb_arena *arena, uint32_t i) {
    arena->is_taken[arena->blocks[i].slot] = false;
    arena->block_count--;
    memmove(&arena->blocks[i], &arena->blocks[i + 1],
            (arena->block_count - i) * sizeof *arena->blocks);
}

/* Free a block that nobody has. Pages far from the start go back to the system, and the
 * lock is given up for that. */
static void release(dlb_arena *arena, uint32_t i) {
    size_t offset = arena->blocks[i].offset, size = arena->blocks[i].size;
    if (offset + size > arena->head + DLB_ARENA_KEPT) {
        arena->blocks[i].is_leaving = true;
        pthread_mutex_unlock(&blocks_lock);
        madvise(arena->regions[arena->own].start + offset, size, MADV_REMOVE);
        pthread_mutex_lock(&blocks_lock);
        i = search(arena, offset);
    }
    forget(arena, i);
}

/* Free a block that was put back, once it has no readers; whether it did. */
static bool release_if_unread(dlb_arena *arena, uint32_t i) {
    block *one = &arena->blocks[i];
    if (one->is_used || one->is_leaving || is_read(arena, one))
        return false;
    atomic_fetch_sub_explicit(&arena->lingering, 1, memory_order_relaxed);
    release(arena, i);
    return true;
}

static void sweep(dlb_arena *arena) {
    uint32_t i = 0;
    while (i < arena->block_count)
        if (release_if_unread(arena, i))
            i = 0; /* others may have changed them meanwhile */
        else
            i++;
}

void dlb_arena_sweep(dlb_arena *arena) {
    if (atomic_load_explicit(&arena->lingering, memory_order_relaxed) == 0 ||
        !is_ours(arena))
        return;
    pthread_mutex_lock(&blocks_lock);
    sweep(arena);
    pthread_mutex_unlock(&blocks_lock);
}

/* The first gap of so many bytes: the nearest to the start, whose pages are there. */
static block *find_gap(dlb_arena *arena, size_t size) {
    if (arena->block_count == DLB_ARENA_SLOTS)
        return NULL;
    size_t offset = arena->head;
    uint32_t i = 0, slot = 0;
    while (i < arena->block_count && arena->blocks[i].offset - offset < size) {
        offset = arena->blocks[i].offset + arena->blocks[i].size;
        i++;
    }
    if (arena->regions[arena->own].size - offset < size)
        return NULL;
    while (arena->is_taken[slot])
        slot++;
    memmove(&arena->blocks[i + 1], &arena->blocks[i],
            (arena->block_count - i) * sizeof *arena->blocks);
    arena->block_count++;
    arena->is_taken[slot] = true;
    arena->blocks[i] = (block){.offset = offset, .size = size, .slot = slot};
    return &arena->blocks[i];
}

void *dlb_arena_get(dlb_arena *arena, size_t nbytes) {
    if (nbytes == 0 || nbytes > arena->regions[arena->own].size || !is_ours(arena))
        return NULL;
    pthread_mutex_lock(&blocks_lock);
    if (atomic_load_explicit(&arena->lingering, memory_order_relaxed) > 0)
        sweep(arena);
    void *made = NULL;
    block *one = find_gap(arena, (nbytes + PAGE - 1) / PAGE * PAGE);
    if (one != NULL) {
        one->is_used = true;
        _Atomic uint32_t *readers = counters_of(arena, arena->own, one->slot);
        for (uint32_t rank = 0; rank < arena->count; rank++)
            atomic_store_explicit(&readers[rank], 0, memory_order_relaxed);
        made = arena->regions[arena->own].start + one->offset;
    }
    pthread_mutex_unlock(&blocks_lock);
    return made;
}

/* The offset of memory in the own region, or 0. */
static size_t offset_of(const dlb_arena *arena, const void *data) {
    const region *own = &arena->regions[arena->own];
    size_t offset = (uintptr_t)data - (uintptr_t)own->start;
    return (uintptr_t)data >= (uintptr_t)own->start && offset < own->size ? offset : 0;
}

bool dlb_arena_put(dlb_arena *arena, void *data) {
    size_t offset = offset_of(arena, data);
    if (offset < arena->head)
        return false;
    if (!is_ours(arena))
        return true;
    pthread_mutex_lock(&blocks_lock);
    uint32_t i = search(arena, offset);
    if (i < arena->block_count && arena->blocks[i].offset == offset &&
        arena->blocks[i].is_used) {
        arena->blocks[i].is_used = false;
        atomic_fetch_add_explicit(&arena->lingering, 1, memory_order_relaxed);
        release_if_unread(arena, i);
    }
    pthread_mutex_unlock(&blocks_lock);
    return true;
}

size_t dlb_arena_capacity(dlb_arena *arena, const void *data) {
    size_t offset = offset_of(arena, data), size = 0;
    if (offset < arena->head)
        return 0;
    pthread_mutex_lock(&blocks_lock);
    uint32_t i = search(arena, offset);
    if (i < arena->block_count && arena->blocks[i].offset == offset)
        size = arena->blocks[i].size;
    pthread_mutex_unlock(&blocks_lock);
    return size;
}

void dlb_arena_count(dlb_arena *arena, size_t *room, size_t *used, uint32_t *blocks) {
    *room = arena->regions[arena->own].size - arena->head;
    *used = 0;
    pthread_mutex_lock(&blocks_lock);
    *blocks = arena->block_count;
    for (uint32_t i = 0; i < arena->block_count; i++)
        *used += arena->blocks[i].size;
    pthread_mutex_unlock(&blocks_lock);
}

/* ---- readers ---- */

static _Atomic uint32_t *counter_of(const dlb_arena *arena, const dlb_arena_loan *loan,
                                    uint32_t rank) {
    return &counters_of(arena, loan->owner, loan->slot)[rank];
}

static void count_up(_Atomic uint32_t *readers) {
    atomic_fetch_add_explicit(readers, 1, memory_order_relaxed);
}

static void count_down(_Atomic uint32_t *readers) {
    uint32_t before = atomic_load_explicit(readers, memory_order_relaxed);
    while (before > 0 && /* else somebody has written there what he must not */
           !atomic_compare_exchange_weak_explicit(readers, &before, before - 1,
                                                  memory_order_release,
                                                  memory_order_relaxed))
        ;
}

bool dlb_arena_lend(dlb_arena *arena, const void *data, size_t nbytes, uint32_t rank,
                    dlb_arena_loan *loan) {
    size_t offset = offset_of(arena, data);
    if (offset < arena->head || offset % ALIGNMENT != 0 || rank >= arena->count ||
        !is_ours(arena))
        return false;
    pthread_mutex_lock(&blocks_lock);
    uint32_t i = search(arena, offset);
    const block *one = &arena->blocks[i];
    bool is_there = i < arena->block_count && one->is_used && one->offset <= offset &&
                    nbytes <= one->size - (offset - one->offset);
    if (is_there) {
        *loan = (dlb_arena_loan){arena->own, one->slot, offset};
        count_up(counter_of(arena, loan, rank));
    }
    pthread_mutex_unlock(&blocks_lock);
    return is_there;
}

void dlb_arena_lend_on(dlb_arena *arena, const dlb_arena_loan *loan, uint32_t rank) {
    count_up(counter_of(arena, loan, rank));
}

void dlb_arena_withdraw(dlb_arena *arena, const dlb_arena_loan *loan, uint32_t rank) {
    count_down(counter_of(arena, loan, rank));
}

/* Whether a loan of the own region is of a block that is there, under its slot. */
static bool is_of_block(const dlb_arena *arena, const dlb_arena_loan *loan,
                        size_t nbytes) {
    size_t offset = (size_t)loan->offset;
    pthread_mutex_lock(&blocks_lock);
    uint32_t i = search(arena, offset);
    const block *one = &arena->blocks[i];
    bool is_there = i < arena->block_count && one->slot == loan->slot &&
                    one->offset <= offset &&
                    nbytes <= one->size - (offset - one->offset);
    pthread_mutex_unlock(&blocks_lock);
    return is_there;
}

void *dlb_arena_find(const dlb_arena *arena, const dlb_arena_loan *loan,
                     size_t nbytes) {
    if (!dlb_arena_reaches(arena, loan->owner) || loan->slot >= DLB_ARENA_SLOTS)
        return NULL;
    const region *from = &arena->regions[loan->owner];
    if (loan->offset < arena->head || loan->offset % ALIGNMENT != 0 ||
        loan->offset >= from->size || nbytes > from->size - (size_t)loan->offset ||
        (loan->owner == arena->own && !is_of_block(arena, loan, nbytes)))
        return NULL;
    return from->start + loan->offset;
}

bool dlb_arena_accept(dlb_arena *arena, const dlb_arena_loan *loan) {
    _Atomic uint32_t *readers = counter_of(arena, loan, arena->own);
    _Atomic uint32_t *held = &arena->regions[loan->owner].held[loan->slot];
    if (!is_ours(arena) || atomic_load_explicit(held, memory_order_relaxed) >=
                               atomic_load_explicit(readers, memory_order_acquire))
        return false;
    count_up(held);
    return true;
}

void dlb_arena_give_back(dlb_arena *arena, const dlb_arena_loan *loan) {
    if (!is_ours(arena))
        return;
    count_down(&arena->regions[loan->owner].held[loan->slot]); /* first: see accept */
    count_down(counter_of(arena, loan, arena->own));
}

/* ---- messages ---- */

static uint32_t padded(uint32_t nbytes) {
    return (nbytes + 7) & ~(uint32_t)7;
}

bool dlb_arena_post(dlb_arena *arena, uint32_t rank, const void *message,
                    size_t nbytes) {
    if (nbytes == 0 || nbytes > DLB_ARENA_MESSAGE)
        return false;
    region *to = &arena->regions[rank];
    mailbox *box = &head_of(&arena->regions[arena->own])->mailboxes[rank];
    uint32_t taken = atomic_load_explicit(&box->taken, memory_order_acquire);
    uint32_t at = to->written % RING, needed = 8 + padded((uint32_t)nbytes);
    uint32_t skipped = RING - at < needed ? RING - at : 0, used = to->written - taken;
    if (used > RING || skipped + needed > RING - used)
        return false; /* what the other one has written is taken for a full mailbox */
    if (skipped > 0) {
        memcpy(box->bytes + at, &(uint32_t){SKIPPED}, sizeof(uint32_t));
        at = 0;
    }
    memcpy(box->bytes + at, &(uint32_t){(uint32_t)nbytes}, sizeof(uint32_t));
    memcpy(box->bytes + at + 8, message, nbytes);
    to->written += skipped + needed;
    atomic_store_explicit(&box->written, to->written, memory_order_release);
    return true;
}

static mailbox *box_of(const dlb_arena *arena, uint32_t rank) {
    return &head_of(&arena->regions[rank])->mailboxes[arena->own];
}

static void note_taken(dlb_arena *arena, uint32_t rank, uint32_t taken) {
    arena->regions[rank].taken = taken;
    atomic_store_explicit(&box_of(arena, rank)->taken, taken, memory_order_release);
}

int64_t dlb_arena_next(dlb_arena *arena, uint32_t rank) {
    const mailbox *box = box_of(arena, rank);
    uint32_t taken = arena->regions[rank].taken, length = SKIPPED;
    uint32_t written = atomic_load_explicit(&box->written, memory_order_acquire);
    if (written == taken)
        return 0;
    uint32_t there = written - taken;
    if (there <= RING && there % 8 == 0 && taken % 8 == 0) {
        memcpy(&length, box->bytes + taken % RING, sizeof length);
        uint32_t rest = RING - taken % RING;
        if (length == SKIPPED && there > rest) {
            there -= rest;
            note_taken(arena, rank, taken += rest);
            memcpy(&length, box->bytes + taken % RING, sizeof length);
        }
        if (length > 0 && length <= DLB_ARENA_MESSAGE && there >= 8 + padded(length) &&
            RING - taken % RING >= 8 + padded(length))
            return length;
    }
    note_taken(arena, rank, written & ~(uint32_t)7);
    return -1;
}

void dlb_arena_take(dlb_arena *arena, uint32_t rank, void *message, size_t nbytes) {
    uint32_t taken = arena->regions[rank].taken;
    memcpy(message, box_of(arena, rank)->bytes + taken % RING + 8, nbytes);
    note_taken(arena, rank, taken + 8 + padded((uint32_t)nbytes));
    /* An answer needs it, and the other processor has just written it. */
    const head *own = head_of(&arena->regions[arena->own]);
    __builtin_prefetch((const void *)&own->mailboxes[rank].taken);
}
