/* The 16-byte shape record; see shape.h. */
#include "layout/shape.h"
#include "core.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(DLB_SHAPE_MAX_RANK == DLB_MAX_NDIM, "one limit for all of dlbridge");

/* How each tag stores a dimension: bytes, room, largest extent, and what unknown looks
 * like. */
typedef struct {
    int32_t width;
    int32_t max_rank;
    uint64_t max_extent;
    uint64_t unknown;
} representation;

static const representation representations[3] = {
    [DLB_SHAPE_REP16] = {2, 6, DLB_SHAPE_MAX_REP16, UINT16_MAX},
    [DLB_SHAPE_REP32] = {4, 3, DLB_SHAPE_MAX_REP32, UINT32_MAX},
    [DLB_SHAPE_REP64] = {8, DLB_SHAPE_MAX_RANK, INT64_MAX, UINT64_MAX},
};

static void set_unknown_rank(dlb_shape *shape) {
    memset(shape, 0, sizeof *shape);
    shape->ndims = DLB_SHAPE_UNKNOWN_RANK;
}

static bool is_on_heap(const dlb_shape *shape) {
    return shape->tag == DLB_SHAPE_REP64;
}

static uint8_t *get_heap(const dlb_shape *shape) {
    uint8_t *heap;
    memcpy(&heap, shape->dims, sizeof heap);
    return heap;
}

static const uint8_t *get_dims(const dlb_shape *shape) {
    return is_on_heap(shape) ? get_heap(shape) : shape->dims;
}

/* Little-endian machines only, like the record itself. */
static void store_dims(uint8_t *to, const representation *rep, int32_t rank,
                       const int64_t *dims) {
    for (int32_t i = 0; i < rank; i++) {
        uint64_t value = dims[i] == -1 ? rep->unknown : (uint64_t)dims[i];
        memcpy(to + i * rep->width, &value, (size_t)rep->width);
    }
}

static uint8_t choose_tag(int32_t rank, uint64_t largest) {
    uint8_t tag = DLB_SHAPE_REP16;
    while (rank > representations[tag].max_rank ||
           largest > representations[tag].max_extent)
        tag++;
    return tag;
}

const char *dlb_shape_pack(dlb_shape *shape, int32_t rank, const int64_t *dims) {
    uint64_t largest = 0;
    set_unknown_rank(shape);
    if (rank == -1)
        return NULL;
    if (rank < 0 || rank > DLB_SHAPE_MAX_RANK)
        return "ndim";
    for (int32_t i = 0; i < rank; i++) {
        if (dims[i] < -1)
            return "shape";
        if (dims[i] != -1 && (uint64_t)dims[i] > largest)
            largest = (uint64_t)dims[i];
    }
    uint8_t tag = choose_tag(rank, largest);
    uint8_t *to = shape->dims;
    if (tag == DLB_SHAPE_REP64) {
        to = malloc((size_t)rank * sizeof *dims);
        if (to == NULL)
            return "memory";
        memcpy(shape->dims, &to, sizeof to);
    }
    store_dims(to, &representations[tag], rank, dims);
    shape->ndims = (uint8_t)rank;
    shape->tag = tag;
    return NULL;
}

void dlb_shape_release(dlb_shape *shape) {
    if (is_on_heap(shape))
        free(get_heap(shape));
    set_unknown_rank(shape);
}

int32_t dlb_shape_rank(const dlb_shape *shape) {
    return shape->ndims == DLB_SHAPE_UNKNOWN_RANK ? -1 : shape->ndims;
}

/* -1: unknown */
static inline int64_t dim_at(const uint8_t *dims, uint8_t tag, int32_t axis) {
    uint16_t half;
    uint32_t word;
    int64_t whole; /* unknown is all ones, -1 as it is */
    switch (tag) {
    case DLB_SHAPE_REP16:
        memcpy(&half, dims + axis * sizeof half, sizeof half);
        return half == UINT16_MAX ? -1 : half;
    case DLB_SHAPE_REP32:
        memcpy(&word, dims + axis * sizeof word, sizeof word);
        return word == UINT32_MAX ? -1 : (int64_t)word;
    default:
        memcpy(&whole, dims + axis * sizeof whole, sizeof whole);
        return whole;
    }
}

int32_t dlb_shape_unpack(const dlb_shape *shape, int64_t *dims) {
    int32_t rank = dlb_shape_rank(shape);
    const uint8_t *from = get_dims(shape);
    for (int32_t i = 0; i < rank; i++)
        dims[i] = dim_at(from, shape->tag, i);
    return rank;
}

bool dlb_shape_fits(const dlb_shape *shape, int32_t rank, const int64_t *dims) {
    int32_t known = dlb_shape_rank(shape);
    const uint8_t *from = get_dims(shape);
    if (known != rank)
        return known < 0;
    for (int32_t i = 0; i < rank; i++) {
        int64_t dim = dim_at(from, shape->tag, i);
        if (dim != -1 && dim != dims[i])
            return false;
    }
    return true;
}
