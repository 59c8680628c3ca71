/* Run a planned copy of whole bytes: row by row, or in tiles where the two sides
 * disagree about which loop is the inner one. */
#include <string.h>

#include "memory/copy.h"

typedef struct {
    uint64_t halves[2];
} pair;

/* Units of a size that fits registers. A fixed-size memcpy is one unaligned load or
 * store. */
#define DEFINE_ROW(NAME, TYPE)                                                         \
    static void copy_row_##NAME(char *to, const char *from, const dlb_copy_loop *loop, \
                                int64_t unit) {                                        \
        const int64_t extent = loop->extent, forth = loop->source,                     \
                      back = loop->destination;                                        \
        const int64_t size = sizeof(TYPE);                                             \
        TYPE value;                                                                    \
        (void)unit;                                                                    \
        memcpy(&value, from, sizeof value);                                            \
        if (back != size)                                                              \
            for (int64_t i = 0; i < extent; i++)                                       \
                memcpy(to + i * back, from + i * forth, sizeof value);                 \
        else if (forth != 0)                                                           \
            _Pragma("GCC unroll 8") for (int64_t i = 0; i < extent; i++)               \
                memcpy(to + i * size, from + i * forth, sizeof value);                 \
        else                                                                           \
            for (int64_t i = 0; i < extent; i++)                                       \
                memcpy(to + i * size, &value, sizeof value);                           \
    }

DEFINE_ROW(1, uint8_t)
DEFINE_ROW(2, uint16_t)
DEFINE_ROW(4, uint32_t)
DEFINE_ROW(8, uint64_t)
DEFINE_ROW(16, pair)

static void copy_row_any(char *to, const char *from, const dlb_copy_loop *loop,
                         int64_t unit) {
    for (int64_t i = 0; i < loop->extent; i++)
        memcpy(to + i * loop->destination, from + i * loop->source, (size_t)unit);
}

typedef struct {
    int64_t unit;
    void (*copy_row)(char *, const char *, const dlb_copy_loop *, int64_t unit);
    int64_t side; /* of a tile, in units; 0: no tiles */
} kernel;

#define MAX_TILE_BYTES (64 * 65 * 4)
#define UNBUFFERED_TILE 4096 /* units */
static const kernel kernels[] = {
    {1, copy_row_1, 64}, {2, copy_row_2, 64},   {4, copy_row_4, 64},
    {8, copy_row_8, 32}, {16, copy_row_16, 16}, {0, copy_row_any, 0},
};

static const kernel *find_kernel(int64_t unit) {
    const kernel *found = kernels;
    while (found->unit != 0 && found->unit != unit)
        found++;
    return found;
}

static int64_t magnitude(int64_t value) {
    return value < 0 ? -value : value;
}

static int64_t shorter(int64_t one, int64_t other) {
    return one < other ? one : other;
}

/* Copy one tile, the longer of its sides as rows. */
static void copy_tile(const kernel *use, char *to, const char *from,
                      const dlb_copy_loop *one, const dlb_copy_loop *other) {
    const dlb_copy_loop *row = one->extent > other->extent ? one : other;
    const dlb_copy_loop *column = row == one ? other : one;
    for (int64_t i = 0; i < column->extent; i++)
        use->copy_row(to + i * column->destination, from + i * column->source, row,
                      use->unit);
}

/* Lines a large power of two apart compete for the same place in the cache. Such a tile
 * is first read, each line at once, into a buffer whose odd pitch spreads the lines. */
static void copy_tile_buffered(const kernel *use, char *to, const char *from,
                               const dlb_copy_loop *outer, const dlb_copy_loop *inner) {
    char buffer[MAX_TILE_BYTES]; /* the largest side * (side + 1) * unit */
    int64_t pitch = (outer->extent + 1) * use->unit;
    dlb_copy_loop column = {outer->extent, use->unit, outer->source};
    for (int64_t j = 0; j < inner->extent; j++)
        if (outer->source == use->unit)
            memcpy(buffer + j * pitch, from + j * inner->source,
                   (size_t)(pitch - use->unit));
        else
            use->copy_row(buffer + j * pitch, from + j * inner->source, &column,
                          use->unit);
    dlb_copy_loop from_outer = {outer->extent, outer->destination, use->unit};
    dlb_copy_loop from_inner = {inner->extent, inner->destination, pitch};
    copy_tile(use, to, buffer, &from_outer, &from_inner);
}

/* Both sides are local to a tile, so each cache line is fetched once. `inner` is the
 * destination's inner loop, `outer` the source's; a short side leaves its room to the
 * other. */
static void copy_tiles(const kernel *use, char *to, const char *from,
                       const dlb_copy_loop *outer, const dlb_copy_loop *inner) {
    int64_t rows = shorter(use->side, inner->extent),
            columns = shorter(use->side, outer->extent);
    bool buffered = rows >= 8 && columns >= 8;
    if (!buffered) {
        rows = shorter(UNBUFFERED_TILE / columns, inner->extent);
        columns = shorter(UNBUFFERED_TILE / rows, outer->extent);
    }
    dlb_copy_loop tile_outer = *outer, tile_inner = *inner;
    for (int64_t i = 0; i < outer->extent; i += columns)
        for (int64_t j = 0; j < inner->extent; j += rows) {
            tile_outer.extent = shorter(columns, outer->extent - i);
            tile_inner.extent = shorter(rows, inner->extent - j);
            (buffered ? copy_tile_buffered : copy_tile)(
                use, to + i * outer->destination + j * inner->destination,
                from + i * outer->source + j * inner->source, &tile_outer, &tile_inner);
        }
}

/* Move the loop with the source's smallest step next to the innermost one, when it is
 * another. */
static bool arrange_tiles(dlb_copy_plan *plan) {
    int32_t last = plan->ndim - 1, best = last;
    for (int32_t i = 0; i < last; i++)
        if (magnitude(plan->loops[i].source) < magnitude(plan->loops[best].source))
            best = i;
    if (best == last)
        return false;
    dlb_copy_loop moving = plan->loops[best];
    for (int32_t i = best; i < last - 1; i++)
        plan->loops[i] = plan->loops[i + 1];
    plan->loops[last - 1] = moving;
    return true;
}

void dlb_copy_bytes(dlb_copy_plan *plan) {
    int64_t index[DLB_MAX_NDIM + 1], to = plan->destination_start,
                                     from = plan->source_start;
    if (plan->ndim == 0) {
        memcpy(plan->destination + to, plan->source + from, (size_t)plan->unit);
        return;
    }
    const kernel *use = find_kernel(plan->unit);
    bool tiled = use->side != 0 && arrange_tiles(plan);
    int32_t ndim = plan->ndim - (tiled ? 2 : 1);
    const dlb_copy_loop *loops = plan->loops;
    memset(index, 0, (size_t)ndim * sizeof *index);
    do {
        if (tiled)
            copy_tiles(use, plan->destination + to, plan->source + from, &loops[ndim],
                       &loops[ndim + 1]);
        else
            use->copy_row(plan->destination + to, plan->source + from, &loops[ndim],
                          plan->unit);
    } while (dlb_copy_advance(loops, ndim, index, &to, &from));
}
