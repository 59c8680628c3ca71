/* The copy on the CPU: a plan of loops, in bytes or in bits; plans taken apart; the
 * loops that run a plan. */
#include "memory/copy.h"
#include "layout/layout.h"

#include <string.h>

/* ---- planning ---- */

static void add_loop(dlb_copy_plan *plan, int64_t extent, int64_t destination,
                     int64_t source) {
    if (extent != 1)
        plan->loops[plan->ndim++] = (dlb_copy_loop){extent, destination, source};
}

/* One loop for each dimension, strides in `destination_unit` and `source_unit` per
 * element. */
static void add_dimensions(dlb_copy_plan *plan, const DLTensor *destination,
                           int64_t destination_unit, const DLTensor *source,
                           int64_t source_unit) {
    int64_t destination_compact[DLB_MAX_NDIM], source_compact[DLB_MAX_NDIM];
    const int64_t *destination_strides = destination->strides,
                  *source_strides = source->strides;
    if (destination_strides == NULL) {
        dlb_row_major_strides(destination->ndim, destination->shape,
                              destination_compact);
        destination_strides = destination_compact;
    }
    if (source_strides == NULL) {
        dlb_row_major_strides(source->ndim, source->shape, source_compact);
        source_strides = source_compact;
    }
    for (int32_t i = 0; i < destination->ndim; i++)
        if (destination->shape[i] != 1)
            add_loop(plan, destination->shape[i],
                     destination_strides[i] * destination_unit,
                     source_strides[i] * source_unit);
}

/* Walk negative destination strides from their other end, so that memory is written
 * upwards. */
static void flip_negative(dlb_copy_plan *plan) {
    for (int32_t i = 0; i < plan->ndim; i++) {
        dlb_copy_loop *loop = &plan->loops[i];
        if (loop->destination >= 0)
            continue;
        plan->destination_start += loop->destination * (loop->extent - 1);
        plan->source_start += loop->source * (loop->extent - 1);
        loop->destination = -loop->destination;
        loop->source = -loop->source;
    }
}

static int64_t magnitude(int64_t value) {
    return value < 0 ? -value : value;
}

static bool writes_inside(const dlb_copy_loop *one, const dlb_copy_loop *other) {
    if (one->destination != other->destination)
        return one->destination < other->destination;
    return magnitude(one->source) < magnitude(other->source);
}

/* Insertion sort: there are few loops, and most arrive in order. */
static inline void sort_loops(dlb_copy_plan *plan,
                              bool (*belongs_inside)(const dlb_copy_loop *,
                                                     const dlb_copy_loop *)) {
    for (int32_t i = 1; i < plan->ndim; i++) {
        dlb_copy_loop moving = plan->loops[i];
        int32_t at = i;
        for (; at > 0 && belongs_inside(&plan->loops[at - 1], &moving); at--)
            plan->loops[at] = plan->loops[at - 1];
        plan->loops[at] = moving;
    }
}

/* Join each loop with the next outer one where both sides step over it without a gap,
 * and let the unit grow over an innermost loop that is contiguous on both sides. */
static void merge_loops(dlb_copy_plan *plan) {
    int32_t kept = 0;
    for (int32_t i = 1; i < plan->ndim; i++) {
        dlb_copy_loop *outer = &plan->loops[kept];
        const dlb_copy_loop *inner = &plan->loops[i];
        if (outer->destination == inner->destination * inner->extent &&
            outer->source == inner->source * inner->extent)
            *outer = (dlb_copy_loop){outer->extent * inner->extent, inner->destination,
                                     inner->source};
        else
            plan->loops[++kept] = *inner;
    }
    plan->ndim = plan->ndim > 0 ? kept + 1 : 0;
    if (plan->ndim == 0)
        return;
    const dlb_copy_loop *last = &plan->loops[plan->ndim - 1];
    if (last->destination == plan->unit && last->source == plan->unit) {
        plan->unit *= last->extent;
        plan->ndim--;
    }
}

static bool is_empty(const DLTensor *tensor) {
    for (int32_t i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] == 0)
            return true;
    return false;
}

void dlb_copy_arrange(dlb_copy_plan *plan) {
    flip_negative(plan);
    sort_loops(plan, writes_inside);
    merge_loops(plan);
}

bool dlb_copy_prepare(dlb_copy_plan *plan, const DLTensor *destination,
                      uint64_t destination_flags, const DLTensor *source,
                      uint64_t source_flags) {
    DLDataType dtype = destination->dtype;
    int64_t destination_bits = dlb_element_bits(dtype, destination_flags);
    int64_t source_bits = dlb_element_bits(dtype, source_flags);
    bool whole_bytes = destination_bits == source_bits && destination_bits % 8 == 0;
    int64_t scale = whole_bytes ? 8 : 1;
    if (is_empty(destination))
        return false;
    plan->destination = destination->data;
    plan->source = source->data;
    plan->destination_start = plan->source_start = 0;
    plan->ndim = 0;
    plan->is_bits = !whole_bytes;
    plan->is_widened = !whole_bytes && destination_bits > source_bits;
    plan->is_signed = dtype.code == kDLInt;
    plan->unit = whole_bytes ? destination_bits / 8 : dtype.bits;
    add_dimensions(plan, destination, destination_bits / scale, source,
                   source_bits / scale);
    if (!whole_bytes)
        add_loop(plan, dtype.lanes, destination_bits / dtype.lanes,
                 source_bits / dtype.lanes);
    dlb_copy_arrange(plan);
    return true;
}

/* ---- plans taken apart: pieces that fit a buffer, ways through compact memory ---- */

int64_t dlb_copy_count(const dlb_copy_plan *plan) {
    int64_t count = plan->unit;
    for (int32_t i = 0; i < plan->ndim; i++)
        count *= plan->loops[i].extent;
    return count;
}

/* Without clearing the loops, which are many. */
static void copy_head(dlb_copy_plan *to, const dlb_copy_plan *from) {
    to->destination = from->destination;
    to->source = from->source;
    to->destination_start = from->destination_start;
    to->source_start = from->source_start;
    to->unit = from->unit;
    to->ndim = 0;
    to->is_bits = to->is_widened = to->is_signed = false;
}

/* The loops of `from` after the first `skipped`. */
static void copy_inner(dlb_copy_plan *to, const dlb_copy_plan *from, int32_t skipped) {
    copy_head(to, from);
    to->ndim = from->ndim - skipped;
    for (int32_t i = 0; i < to->ndim; i++)
        to->loops[i] = from->loops[i + skipped];
}

static int split_unit(const dlb_copy_plan *plan, int64_t limit, dlb_copy_each each,
                      void *context) {
    dlb_copy_plan part;
    copy_head(&part, plan);
    for (int64_t done = 0; done < plan->unit; done += limit) {
        part.unit = plan->unit - done < limit ? plan->unit - done : limit;
        part.destination_start = plan->destination_start + done;
        part.source_start = plan->source_start + done;
        if (each(context, &part) < 0)
            return -1;
    }
    return 0;
}

int dlb_copy_split(const dlb_copy_plan *plan, int64_t limit, dlb_copy_each each,
                   void *context) {
    int64_t total = dlb_copy_count(plan);
    if (total <= limit)
        return each(context, plan);
    if (plan->ndim == 0)
        return split_unit(plan, limit, each, context);
    dlb_copy_loop outer = plan->loops[0];
    int64_t inside = total / outer.extent, rows = inside <= limit ? limit / inside : 1;
    dlb_copy_plan part;
    for (int64_t done = 0; done < outer.extent; done += rows) {
        copy_inner(&part, plan, rows == 1);
        if (rows > 1)
            part.loops[0].extent =
                outer.extent - done < rows ? outer.extent - done : rows;
        part.destination_start = plan->destination_start + done * outer.destination;
        part.source_start = plan->source_start + done * outer.source;
        if (dlb_copy_split(&part, limit, each, context) < 0)
            return -1;
    }
    return 0;
}

void dlb_copy_through(const dlb_copy_plan *plan, void *middle, dlb_copy_plan *in,
                      dlb_copy_plan *out) {
    int64_t step = plan->unit;
    copy_inner(in, plan, 0);
    copy_inner(out, plan, 0);
    for (int32_t i = plan->ndim - 1; i >= 0; i--) {
        in->loops[i].destination = out->loops[i].source = step;
        step *= plan->loops[i].extent;
    }
    in->destination = middle;
    out->source = middle;
    in->destination_start = out->source_start = 0;
    dlb_copy_arrange(in);
    dlb_copy_arrange(out);
}

static bool reads_inside(const dlb_copy_loop *one, const dlb_copy_loop *other) {
    return magnitude(one->source) < magnitude(other->source);
}

void dlb_copy_order_by_source(dlb_copy_plan *plan) {
    sort_loops(plan, reads_inside);
}

bool dlb_copy_to_bytes(dlb_copy_plan *plan) {
    int64_t all = plan->unit | plan->destination_start | plan->source_start;
    for (int32_t i = 0; i < plan->ndim; i++)
        all |= plan->loops[i].destination | plan->loops[i].source;
    if (!plan->is_bits)
        return true;
    if (plan->is_widened || (all & 7) != 0)
        return false;
    plan->is_bits = false;
    plan->unit /= 8;
    plan->destination_start /= 8;
    plan->source_start /= 8;
    for (int32_t i = 0; i < plan->ndim; i++) {
        plan->loops[i].destination /= 8;
        plan->loops[i].source /= 8;
    }
    return true;
}

int32_t dlb_copy_take_repeats(dlb_copy_plan *plan, dlb_copy_loop *repeats) {
    int32_t kept = 0, taken = 0;
    for (int32_t i = 0; i < plan->ndim; i++)
        if (plan->loops[i].source == 0)
            repeats[taken++] = plan->loops[i];
        else
            plan->loops[kept++] = plan->loops[i];
    plan->ndim = kept;
    if (taken > 0)
        dlb_copy_arrange(plan);
    return taken;
}

void dlb_copy_span(const dlb_copy_plan *plan, bool of_destination, int64_t *low,
                   int64_t *high) {
    int64_t start = of_destination ? plan->destination_start : plan->source_start;
    int64_t unit = of_destination && plan->is_widened ? 8 : plan->unit;
    int64_t first = start, last = start + unit, scale = plan->is_bits ? 8 : 1;
    for (int32_t i = 0; i < plan->ndim; i++) {
        const dlb_copy_loop *loop = &plan->loops[i];
        int64_t step = of_destination ? loop->destination : loop->source;
        *(step < 0 ? &first : &last) += step * (loop->extent - 1);
    }
    *low = (first - (first % scale + scale) % scale) / scale;
    *high = (last + (scale - last % scale) % scale) / scale;
}

/* ---- running a plan of bytes ---- */

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

/* ---- running a plan of bits: bit i is bit i % 8 of byte i / 8, low bits first ---- */

/* Byte and bit of a signed bit offset, rounding down. */
static int64_t byte_of(int64_t bit) {
    return (bit - (bit & 7)) / 8;
}

/* Up to 8 bits from `bit` on; reads no byte that holds none of them. */
static unsigned get_bits(const uint8_t *from, int64_t bit, unsigned width) {
    unsigned shift = (unsigned)(bit & 7);
    const uint8_t *at = from + byte_of(bit);
    unsigned value = *at;
    if (shift + width > 8)
        value |= (unsigned)at[1] << 8;
    return value >> shift & ((1u << width) - 1);
}

static void set_bits(uint8_t *to, int64_t bit, unsigned width, unsigned value) {
    unsigned shift = (unsigned)(bit & 7), mask = ((1u << width) - 1) << shift;
    uint8_t *at = to + byte_of(bit);
    value <<= shift;
    at[0] = (uint8_t)((at[0] & ~mask) | (value & mask));
    if (shift + width > 8)
        at[1] = (uint8_t)((at[1] & ~(mask >> 8)) | (value >> 8 & mask >> 8));
}

/* A run of any length: bytes at once where both sides lie on a byte boundary. */
static void copy_run(uint8_t *to, int64_t to_bit, const uint8_t *from, int64_t from_bit,
                     int64_t count) {
    if ((to_bit & 7) == 0 && (from_bit & 7) == 0) {
        int64_t bytes = count / 8;
        memcpy(to + byte_of(to_bit), from + byte_of(from_bit), (size_t)bytes);
        to_bit += bytes * 8;
        from_bit += bytes * 8;
        count -= bytes * 8;
    }
    for (int64_t done = 0; done < count; done += 8) {
        unsigned width = count - done < 8 ? (unsigned)(count - done) : 8;
        set_bits(to, to_bit + done, width, get_bits(from, from_bit + done, width));
    }
}

/* Fill the byte as readers of padded elements, such as ml_dtypes, expect. */
static uint8_t widen(unsigned value, unsigned width, bool is_signed) {
    bool is_negative = is_signed && value >> (width - 1);
    return (uint8_t)(is_negative ? value | (0xffu << width) : value);
}

void dlb_copy_bits(dlb_copy_plan *plan) {
    int64_t index[DLB_MAX_NDIM + 1];
    int64_t to_bit = plan->destination_start, from_bit = plan->source_start;
    uint8_t *to = (uint8_t *)plan->destination;
    const uint8_t *from = (const uint8_t *)plan->source;
    unsigned width = (unsigned)plan->unit;
    memset(index, 0, (size_t)plan->ndim * sizeof *index);
    do {
        if (plan->is_widened)
            to[byte_of(to_bit)] =
                widen(get_bits(from, from_bit, width), width, plan->is_signed);
        else
            copy_run(to, to_bit, from, from_bit, plan->unit);
    } while (dlb_copy_advance(plan->loops, plan->ndim, index, &to_bit, &from_bit));
}

/* ---- the whole ---- */

void dlb_copy_run(dlb_copy_plan *plan) {
    (plan->is_bits ? dlb_copy_bits : dlb_copy_bytes)(plan);
}

void dlb_copy(const DLTensor *destination, uint64_t destination_flags,
              const DLTensor *source, uint64_t source_flags) {
    dlb_copy_plan plan;
    if (dlb_copy_prepare(&plan, destination, destination_flags, source, source_flags))
        dlb_copy_run(&plan);
}
