/* The gather kernels and what plans their launches, over memory of the host, without a
 * driver: for test_gather.py. */
#include "cuda/gather.h"
#include "fake/gather_host.h"

#define API __attribute__((visibility("default")))

typedef struct {
    int32_t ndim, itemsize;
    void *to, *from;
    int64_t *shape, *to_strides, *from_strides; /* strides in elements */
} tensors;

/* What a plan has become. */
typedef struct {
    int64_t launches, transposed, bytes, sizes; /* sizes: all of them, or-ed */
    /* samples that are asked for of each launch, and got */
    int64_t wanted, got;
    uint64_t seed;
    int64_t *to, *from; /* offsets of the samples, in bytes; room for `wanted` each */
    int64_t room;
    const tensors *of;
} summary;

static void *host_load(uint64_t address, uint64_t nbytes) {
    return address % nbytes == 0 ? (void *)(uintptr_t)address : NULL;
}

static void *host_store(uint64_t address, uint64_t nbytes) {
    return host_load(address, nbytes);
}

static const gather_kernel kernels[2][5] = {
    {dlb_gather_1, dlb_gather_2, dlb_gather_4, dlb_gather_8, dlb_gather_16},
    {dlb_transpose_1, dlb_transpose_2, dlb_transpose_4, dlb_transpose_8,
     dlb_transpose_16},
};

static uint64_t draw(summary *into) { /* splitmix64 */
    uint64_t z = into->seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t elements(const dlb_gather_launch *one) {
    const dlb_gather *plan = &one->parameters;
    if (!one->is_transposed)
        return plan->count;
    int64_t count = (int64_t)plan->width.extent * plan->height.extent;
    for (int i = 2; i < DLB_GATHER_LOOPS; i++)
        count *= plan->loops[i].extent;
    return count;
}

static void sample(summary *into, const dlb_gather_launch *one, uint32_t index) {
    const dlb_gather *plan = &one->parameters;
    uint64_t to, from;
    if (one->is_transposed) {
        tile_place at = place_tile(plan, index);
        int64_t x = (int64_t)(draw(into) % at.width);
        int64_t y = (int64_t)(draw(into) % at.height);
        to = at.to + (uint64_t)(x * plan->width.to + y * plan->height.to);
        from = at.from + (uint64_t)(x * plan->width.from + y * plan->height.from);
    } else {
        place(plan, index, &to, &from);
    }
    if (into->got < into->room) {
        into->to[into->got] = (int64_t)(to - (uintptr_t)into->of->to);
        into->from[into->got++] = (int64_t)(from - (uintptr_t)into->of->from);
    }
}

/* The first one, the last one, and as many between them as are wanted. */
static int count_launch(void *context, const dlb_gather_launch *one) {
    summary *into = context;
    into->launches++;
    into->transposed += one->is_transposed;
    into->sizes |= one->size;
    into->bytes += elements(one) * one->size;
    for (int64_t i = 0; i < into->wanted; i++)
        sample(into, one,
               i == 0   ? 0
               : i == 1 ? one->parameters.count - 1
                        : (uint32_t)(draw(into) % one->parameters.count));
    return 0;
}

static int run_launch(void *context, const dlb_gather_launch *one) {
    count_launch(context, one);
    run_blocks(kernels[one->is_transposed][__builtin_ctz(one->size)], one->blocks,
               &one->parameters);
    return 0;
}

API int gather(const tensors *given, int runs, summary *into) {
    DLDataType dtype = {kDLUInt, 8, (uint16_t)given->itemsize};
    DLTensor to = {
        given->to, {kDLCPU, 0}, given->ndim, dtype, given->shape, given->to_strides, 0};
    DLTensor from = {given->from,
                     {kDLCPU, 0},
                     given->ndim,
                     dtype,
                     given->shape,
                     given->from_strides,
                     0};
    dlb_copy_plan plan;
    into->of = given;
    if (!dlb_copy_prepare(&plan, &to, 0, &from, 0))
        return 0;
    return dlb_gather_plan(&plan, runs ? run_launch : count_launch, into);
}
