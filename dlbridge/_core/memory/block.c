/* Blocks of CPU memory; see block.h.
 *
 * Each kept block lies in a slot, an atomic pointer: whoever swaps it out owns it.
 * There is no lock that a fork could leave taken in the child. */
#define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */
#include "memory/block.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)0)
#endif

#define HUGE_PAGE ((size_t)2 << 20)
#define MAPPED ((size_t)256 << 10) /* blocks from here on are mapped, not malloc's */
#define LARGEST_KEPT (DLB_BLOCK_BOUND / 2)
#define SLOTS 16
enum { CLASSES = 4 * (63 - 6) + 1 };

static _Atomic(void *) kept[CLASSES][SLOTS];
static _Atomic int64_t kept_bytes;

/* ---- sizes: four classes from each power of two to the next ---- */

static int class_of(size_t nbytes, size_t *capacity) {
    if (nbytes <= 64) {
        *capacity = 64;
        return 0;
    }
    int top = 63 - __builtin_clzll(nbytes - 1), shift = top - 2;
    size_t step = (size_t)1 << shift;
    *capacity = (nbytes + step - 1) & ~(step - 1);
    return 4 * (top - 6) + (int)((*capacity - 1) >> shift & 3) + 1;
}

static size_t capacity_of(int size_class) {
    if (size_class == 0)
        return 64;
    int top = (size_class - 1) / 4 + 6, quarter = (size_class - 1) % 4;
    return ((size_t)5 + (size_t)quarter) << (top - 2);
}

size_t dlb_block_capacity(size_t nbytes) {
    size_t capacity;
    class_of(nbytes, &capacity);
    return capacity;
}

/* ---- blocks of the system ---- */

/* From 2 MiB on it begins where a huge page does. */
static void *map(size_t size) {
    size_t slack = size >= HUGE_PAGE ? HUGE_PAGE - (size_t)sysconf(_SC_PAGESIZE) : 0;
    char *found = mmap(NULL, size + slack, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        return NULL;
    if (slack > 0) {
        size_t before = -(uintptr_t)found & (HUGE_PAGE - 1);
        if (before > 0)
            munmap(found, before);
        found += before;
        if (before < slack)
            munmap(found + size, slack - before);
#ifdef MADV_HUGEPAGE
        madvise(found, size,
                MADV_HUGEPAGE); /* a wish: without them it is only slower */
#endif
    }
    return found;
}

static void *make(size_t capacity) {
    void *made = NULL;
    if (capacity >= MAPPED)
        return map(capacity);
    return posix_memalign(&made, DLB_BLOCK_ALIGNMENT, capacity) == 0 ? made : NULL;
}

static void destroy(void *block, size_t capacity) {
    if (capacity >= MAPPED)
        munmap(block, capacity);
    else
        free(block);
}

/* ---- blocks that are kept ---- */

static void *take_slot(_Atomic(void *) *slot, size_t capacity) {
    if (atomic_load_explicit(slot, memory_order_relaxed) == NULL)
        return NULL;
    void *found = atomic_exchange_explicit(slot, NULL, memory_order_acquire);
    if (found != NULL) {
        atomic_fetch_sub_explicit(&kept_bytes, (int64_t)capacity, memory_order_relaxed);
        ASAN_UNPOISON_MEMORY_REGION(found, capacity);
    }
    return found;
}

static void *take(int size_class, size_t capacity) {
    void *found = NULL;
    for (int i = 0; i < SLOTS && found == NULL; i++)
        found = take_slot(&kept[size_class][i], capacity);
    return found;
}

static bool put_slot(_Atomic(void *) *slot, void *block) {
    void *empty = NULL;
    return atomic_load_explicit(slot, memory_order_relaxed) == NULL &&
           atomic_compare_exchange_strong_explicit(
               slot, &empty, block, memory_order_release, memory_order_relaxed);
}

/* Counted before it can be found, so that the count is never below what is there. */
static bool keep(void *block, int size_class, size_t capacity) {
    const int64_t bound = (int64_t)DLB_BLOCK_BOUND, size = (int64_t)capacity;
    if (capacity > LARGEST_KEPT)
        return false;
    if (atomic_fetch_add_explicit(&kept_bytes, size, memory_order_relaxed) + size >
        bound)
        dlb_block_trim(bound);
    if (atomic_load_explicit(&kept_bytes, memory_order_relaxed) <= bound) {
        ASAN_POISON_MEMORY_REGION(block, capacity);
        for (int i = 0; i < SLOTS; i++)
            if (put_slot(&kept[size_class][i], block))
                return true;
        ASAN_UNPOISON_MEMORY_REGION(block, capacity);
    }
    atomic_fetch_sub_explicit(&kept_bytes, size, memory_order_relaxed);
    return false;
}

int64_t dlb_block_kept(void) {
    return atomic_load_explicit(&kept_bytes, memory_order_relaxed);
}

int64_t dlb_block_trim(int64_t bound) {
    int64_t freed = 0;
    for (int i = CLASSES * SLOTS - 1; i >= 0 && dlb_block_kept() > bound; i--) {
        size_t capacity = capacity_of(i / SLOTS);
        void *found = take_slot(&kept[i / SLOTS][i % SLOTS], capacity);
        if (found != NULL) {
            destroy(found, capacity);
            freed += (int64_t)capacity;
        }
    }
    return freed;
}

/* ---- out and back ---- */

void *dlb_block_get(size_t nbytes, bool zero) {
    size_t capacity;
    if (nbytes > SIZE_MAX / 4)
        return NULL;
    int size_class = class_of(nbytes, &capacity);
    /* New pages are zero, and cost nothing until touched. */
    bool is_new = zero && capacity >= MAPPED;
    void *block = is_new ? NULL : take(size_class, capacity);
    if (block == NULL)
        block = make(capacity);
    if (block == NULL && dlb_block_trim(0) > 0)
        block = make(capacity);
    if (block != NULL && zero && !is_new)
        memset(block, 0, nbytes);
    return block;
}

void dlb_block_put(void *block, size_t nbytes) {
    size_t capacity;
    int size_class = class_of(nbytes, &capacity);
    if (!keep(block, size_class, capacity))
        destroy(block, capacity);
}
