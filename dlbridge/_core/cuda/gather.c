/* The launches of the gather kernels, made of a plan of a copy. */
#include "cuda/gather.h"

#define MAX_BYTES (INT64_C(1) << 30) /* of a launch, so that indices fit 31 bits */
#define MAX_BLOCKS (1 << 14)         /* those that come after go round */
#define MIN_SIDE 16                  /* of what is worth a tile */

/* The largest element that fits all of the plan. */
static uint32_t element_size(const dlb_copy_plan *plan) {
    uint64_t all = (uintptr_t)plan->destination + (uint64_t)plan->destination_start;
    all |= (uintptr_t)plan->source + (uint64_t)plan->source_start;
    all |= (uint64_t)plan->unit | 16;
    for (int32_t i = 0; i < plan->ndim; i++)
        all |= (uint64_t)(plan->loops[i].destination | plan->loops[i].source);
    return (uint32_t)(all & -all);
}

/* With 2^s the first power of two that is not below the extent, the magic number is
 * 2^(31 + s) / extent, rounded up: what that adds to the quotient of a number below
 * 2^31 is less than 1 / extent. */
static dlb_gather_loop make_loop(int64_t extent, int64_t to, int64_t from) {
    uint32_t shift = 0;
    while (INT64_C(1) << shift < extent)
        shift++;
    dlb_gather_loop made = {.to = to, .from = from, .extent = (uint32_t)extent};
    if (shift > 0) {
        uint64_t numerator = UINT64_C(1) << (31 + shift), divisor = (uint64_t)extent;
        made.magic = (uint32_t)((numerator + divisor - 1) / divisor);
        made.shift = shift - 1;
    }
    return made;
}

/* The loops of the plan inside the first `outer` ones, innermost first; returns how
 * many. */
static int32_t fill_loops(const dlb_copy_plan *plan, int32_t outer,
                          dlb_gather_launch *launch) {
    dlb_gather_loop *loops = launch->parameters.loops;
    int64_t size = launch->size;
    int32_t count = 0;
    if (plan->unit > size)
        loops[count++] = make_loop(plan->unit / size, size, size);
    for (int32_t i = plan->ndim - 1; i >= outer; i--) {
        const dlb_copy_loop *loop = &plan->loops[i];
        if (loop->extent > 1)
            loops[count++] = make_loop(loop->extent, loop->destination, loop->source);
    }
    for (int32_t i = count; i < DLB_GATHER_LOOPS; i++)
        loops[i] = make_loop(1, 0, 0);
    return count;
}

static int64_t magnitude(int64_t value) {
    return value < 0 ? -value : value;
}

/* The loop along which the source is compact, where the destination is so along the
 * innermost one; 0: there is none. */
static int32_t find_height(const dlb_gather_launch *launch, int32_t count) {
    const dlb_gather_loop *loops = launch->parameters.loops;
    int64_t size = launch->size;
    if (count == 0 || loops[0].to != size || magnitude(loops[0].from) == size ||
        loops[0].extent < MIN_SIDE)
        return 0;
    for (int32_t i = 1; i < count; i++)
        if (magnitude(loops[i].from) == size && loops[i].extent >= MIN_SIDE)
            return i;
    return 0;
}

static dlb_gather_loop over_tiles(const dlb_gather_loop *side) {
    return make_loop((side->extent + DLB_GATHER_TILE - 1) / DLB_GATHER_TILE,
                     side->to * DLB_GATHER_TILE, side->from * DLB_GATHER_TILE);
}

static void transpose(dlb_gather_launch *launch, int32_t height) {
    dlb_gather_loop *loops = launch->parameters.loops;
    launch->is_transposed = true;
    launch->parameters.width = loops[0];
    launch->parameters.height = loops[height];
    for (int32_t i = height; i > 1; i--)
        loops[i] = loops[i - 1];
    loops[0] = over_tiles(&launch->parameters.width);
    loops[1] = over_tiles(&launch->parameters.height);
}

static uint32_t divide_up(uint32_t value, uint32_t divisor) {
    return (value + divisor - 1) / divisor;
}

static void count_blocks(dlb_gather_launch *launch) {
    dlb_gather *parameters = &launch->parameters;
    uint32_t each = launch->is_transposed ? 1 : DLB_GATHER_THREADS * DLB_GATHER_BATCH;
    parameters->count = 1;
    for (int32_t i = 0; i < DLB_GATHER_LOOPS; i++)
        parameters->count *= parameters->loops[i].extent;
    launch->blocks = divide_up(parameters->count, each);
    if (launch->blocks > MAX_BLOCKS)
        launch->blocks = MAX_BLOCKS;
}

typedef struct {
    dlb_gather_each each;
    void *context;
} receiver;

static int launch_part(void *context, const dlb_copy_plan *part) {
    const receiver *to = context;
    dlb_gather_launch launch = {.size = element_size(part)};
    int32_t outer = part->ndim + (part->unit > launch.size) - DLB_GATHER_LOOPS;
    int64_t index[DLB_MAX_NDIM + 1] = {0};
    int64_t back = part->destination_start, forth = part->source_start;
    int status;
    if (outer < 0)
        outer = 0;
    int32_t height = find_height(&launch, fill_loops(part, outer, &launch));
    if (height > 0)
        transpose(&launch, height);
    count_blocks(&launch);
    do {
        launch.parameters.to = (uintptr_t)part->destination + (uint64_t)back;
        launch.parameters.from = (uintptr_t)part->source + (uint64_t)forth;
        status = to->each(to->context, &launch);
    } while (status == 0 && dlb_copy_advance(part->loops, outer, index, &back, &forth));
    return status;
}

int dlb_gather_plan(const dlb_copy_plan *plan, dlb_gather_each each, void *context) {
    receiver to = {each, context};
    return dlb_copy_split(plan, MAX_BYTES, launch_part, &to);
}
