/* Run a planned copy of whole bytes: row by row, or in tiles where the two sides disagree about
 * which loop is the inner one. */
#include <string.h>

#include "copy.h"

typedef struct {
    uint64_t halves[2];
} pair;

/* Units of a size that fits a register. A fixed-size memcpy is one unaligned load or store. */
#define DEFINE_ROW(NAME, TYPE)                                                                     \
    static void copy_row_##NAME(char *to, const char *from, const dlb_copy_loop *loop,            \
                                int64_t unit) {                                                    \
        const int64_t extent = loop->extent, forth = loop->source;                                 \
        const int64_t back = loop->destination;                                                    \
        TYPE value;                                                                                \
        (void)unit;                                                                                \
        memcpy(&value, from, sizeof value);                                                        \
        if (forth == 0 && back == sizeof value)                                                    \
            for (int64_t i = 0; i < extent; i++)                                                   \
                memcpy(to + i * (int64_t)sizeof value, &value, sizeof value);                      \
        else                                                                                       \
            for (int64_t i = 0; i < extent; i++, from += forth, to += back) {                      \
                memcpy(&value, from, sizeof value);                                                \
                memcpy(to, &value, sizeof value);                                                  \
            }                                                                                      \
    }

/* A tile is read in the source's order into a buffer that stays in the cache, and written from it
 * in the destination's order, so that each side touches every cache line once. The odd pitch
 * spreads the buffer's columns over the cache. */
#define DEFINE_TILE(NAME, TYPE, SIDE)                                                              \
    static void copy_tile_##NAME(char *to, const char *from, const dlb_copy_loop *outer,          \
                                 const dlb_copy_loop *inner) {                                     \
        enum { PITCH = SIDE + 1 };                                                                 \
        const int64_t rows = inner->extent, columns = outer->extent;                               \
        const bool source_runs = outer->source == sizeof(TYPE);                                    \
        const bool destination_runs = inner->destination == sizeof(TYPE);                          \
        const int64_t forth = source_runs ? (int64_t)sizeof(TYPE) : outer->source;                 \
        const int64_t back = destination_runs ? (int64_t)sizeof(TYPE) : inner->destination;        \
        TYPE buffer[SIDE * PITCH];                                                                 \
        for (int64_t j = 0; j < rows; j++)                                                         \
            for (int64_t i = 0; i < columns; i++)                                                  \
                memcpy(&buffer[j * PITCH + i], from + j * inner->source + i * forth,               \
                       sizeof(TYPE));                                                              \
        for (int64_t i = 0; i < columns; i++)                                                      \
            for (int64_t j = 0; j < rows; j++)                                                     \
                memcpy(to + i * outer->destination + j * back, &buffer[j * PITCH + i],             \
                       sizeof(TYPE));                                                              \
    }

#define DEFINE_UNIT(NAME, TYPE, SIDE) DEFINE_ROW(NAME, TYPE) DEFINE_TILE(NAME, TYPE, SIDE)

DEFINE_UNIT(1, uint8_t, 64)
DEFINE_UNIT(2, uint16_t, 64)
DEFINE_UNIT(4, uint32_t, 32)
DEFINE_UNIT(8, uint64_t, 32)
DEFINE_UNIT(16, pair, 16)

static void copy_row_any(char *to, const char *from, const dlb_copy_loop *loop, int64_t unit) {
    for (int64_t i = 0; i < loop->extent; i++)
        memcpy(to + i * loop->destination, from + i * loop->source, (size_t)unit);
}

typedef struct {
    int64_t unit;
    void (*copy_row)(char *, const char *, const dlb_copy_loop *, int64_t unit);
    void (*copy_tile)(char *, const char *, const dlb_copy_loop *, const dlb_copy_loop *);
    int64_t side; /* of a tile, in units */
} kernel;

static const kernel kernels[] = {
    {1, copy_row_1, copy_tile_1, 64},    {2, copy_row_2, copy_tile_2, 64},
    {4, copy_row_4, copy_tile_4, 32},    {8, copy_row_8, copy_tile_8, 32},
    {16, copy_row_16, copy_tile_16, 16}, {0, copy_row_any, NULL, 0},
};

static const kernel *find_kernel(int64_t unit) {
    const kernel *found = kernels;
    while (found->unit != 0 && found->unit != unit)
        found++;
    return found;
}

static int64_t shorter(int64_t one, int64_t other) {
    return one < other ? one : other;
}

static void copy_tiles(const kernel *use, char *to, const char *from, const dlb_copy_loop *outer,
                       const dlb_copy_loop *inner) {
    dlb_copy_loop columns = *outer, rows = *inner;
    for (int64_t i = 0; i < outer->extent; i += use->side)
        for (int64_t j = 0; j < inner->extent; j += use->side) {
            columns.extent = shorter(use->side, outer->extent - i);
            rows.extent = shorter(use->side, inner->extent - j);
            use->copy_tile(to + i * outer->destination + j * inner->destination,
                           from + i * outer->source + j * inner->source, &columns, &rows);
        }
}

static int64_t magnitude(int64_t value) {
    return value < 0 ? -value : value;
}

/* Move the loop with the source's smallest step next to the innermost one, when tiles pay. */
static bool arrange_tiles(dlb_copy_plan *plan) {
    const int64_t enough = 4;
    int32_t last = plan->ndim - 1, best = last;
    for (int32_t i = 0; i < last; i++)
        if (plan->loops[i].extent >= enough &&
            magnitude(plan->loops[i].source) < magnitude(plan->loops[best].source))
            best = i;
    if (best == last || plan->loops[last].extent < enough)
        return false;
    dlb_copy_loop moving = plan->loops[best];
    for (int32_t i = best; i < last - 1; i++)
        plan->loops[i] = plan->loops[i + 1];
    plan->loops[last - 1] = moving;
    return true;
}

void dlb_copy_bytes(dlb_copy_plan *plan) {
    int64_t index[DLB_MAX_NDIM + 1], to = plan->destination_start, from = plan->source_start;
    if (plan->ndim == 0) {
        memcpy(plan->destination + to, plan->source + from, (size_t)plan->unit);
        return;
    }
    const kernel *use = find_kernel(plan->unit);
    bool tiled = use->copy_tile != NULL && arrange_tiles(plan);
    int32_t ndim = plan->ndim - (tiled ? 2 : 1);
    const dlb_copy_loop *loops = plan->loops;
    memset(index, 0, (size_t)ndim * sizeof *index);
    do {
        if (tiled)
            copy_tiles(use, plan->destination + to, plan->source + from, &loops[ndim],
                       &loops[ndim + 1]);
        else
            use->copy_row(plan->destination + to, plan->source + from, &loops[ndim], plan->unit);
    } while (dlb_copy_advance(loops, ndim, index, &to, &from));
}
