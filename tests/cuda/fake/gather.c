/* dlbridge's own kernels for strided copies. They run twice: first without touching
 * memory, to see what they would touch. */
#include "fake.h"
#include "gather_host.h"

typedef struct {
    uint64_t start, end;
} range;

typedef struct {
    range *all;
    size_t count, room;
} ranges;

static _Thread_local ranges *loads, *stores; /* NULL: the second run */
static _Thread_local bool is_misaligned;

/* What lies together is one access, if it is touched in its order. */
static void *note(ranges *seen, uint64_t address, uint64_t nbytes) {
    static _Thread_local uint64_t nothing[2];
    is_misaligned |= address % nbytes != 0;
    if (seen == NULL)
        return (void *)(uintptr_t)address;
    if (seen->count > 0 && seen->all[seen->count - 1].end == address) {
        seen->all[seen->count - 1].end += nbytes;
        return nothing;
    }
    if (seen->count == seen->room) {
        seen->room = seen->room ? 2 * seen->room : 64;
        seen->all = realloc(seen->all, seen->room * sizeof *seen->all);
    }
    seen->all[seen->count++] = (range){address, address + nbytes};
    return nothing;
}

static void *host_load(uint64_t address, uint64_t nbytes) {
    return note(loads, address, nbytes);
}

static void *host_store(uint64_t address, uint64_t nbytes) {
    return note(stores, address, nbytes);
}

static int compare(const void *one, const void *other) {
    uint64_t a = ((const range *)one)->start, b = ((const range *)other)->start;
    return a < b ? -1 : a > b;
}

static size_t join(range *all, size_t count, uint64_t gap) {
    size_t kept = 0;
    for (size_t i = 1; i < count; i++)
        if (all[i].start <= all[kept].end + gap)
            all[kept].end = all[i].end > all[kept].end ? all[i].end : all[kept].end;
        else
            all[++kept] = all[i];
    return count > 0 ? kept + 1 : 0;
}

/* So many ranges at most, by taking gaps between them for touched. */
#define MANY 2048

static int check(launch *self, ranges *seen, bool writes) {
    int status = 0;
    if (seen->count > 0)
        qsort(seen->all, seen->count, sizeof *seen->all, compare);
    size_t count = join(seen->all, seen->count, 0);
    for (uint64_t gap = 1; count > MANY; gap *= 2)
        count = join(seen->all, count, gap);
    world_lock();
    for (size_t i = 0; i < count && status == 0; i++)
        status = access_memory(self->op, seen->all[i].start,
                               seen->all[i].end - seen->all[i].start, writes);
    world_unlock();
    free(seen->all);
    return status;
}

static void run(launch *self, gather_kernel kernel, const dlb_gather *plan) {
    ranges in = {0}, out = {0};
    loads = &in;
    stores = &out;
    is_misaligned = false;
    run_blocks(kernel, self->grid[0], plan);
    loads = stores = NULL;
    if (is_misaligned) {
        world_lock();
        fault("misaligned", "a gather kernel touches an address that its elements "
                            "cannot have");
        world_unlock();
    }
    bool is_good = check(self, &in, false) == 0;
    if (check(self, &out, true) == 0 && is_good && !is_misaligned)
        run_blocks(kernel, self->grid[0], plan);
}

#define BODY(kernel)                                                                   \
    static void run_##kernel(launch *self, void **parameters) {                        \
        run(self, kernel, parameters[0]);                                              \
    }

BODY(dlb_gather_1)
BODY(dlb_gather_2)
BODY(dlb_gather_4)
BODY(dlb_gather_8)
BODY(dlb_gather_16)
BODY(dlb_transpose_1)
BODY(dlb_transpose_2)
BODY(dlb_transpose_4)
BODY(dlb_transpose_8)
BODY(dlb_transpose_16)

_Static_assert(sizeof(dlb_gather) == GATHER_BYTES, "the size of the one parameter");

#define ROW(kernel) {NULL, #kernel, {PARAMETER_GATHER}, run_##kernel}

const kernel_entry gather_kernels[GATHER_KERNELS] = {
    ROW(dlb_gather_1),     ROW(dlb_gather_2),    ROW(dlb_gather_4),
    ROW(dlb_gather_8),     ROW(dlb_gather_16),   ROW(dlb_transpose_1),
    ROW(dlb_transpose_2),  ROW(dlb_transpose_4), ROW(dlb_transpose_8),
    ROW(dlb_transpose_16),
};
