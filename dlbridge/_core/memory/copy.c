/* Plan a strided copy: which loops, in which order, in bytes or in bits. */
#include "memory/copy.h"
#include "layout/layout.h"

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

static bool belongs_inside(const dlb_copy_loop *one, const dlb_copy_loop *other) {
    if (one->destination != other->destination)
        return one->destination < other->destination;
    return magnitude(one->source) < magnitude(other->source);
}

/* Insertion sort: there are few loops, and most arrive in order. */
static void sort_loops(dlb_copy_plan *plan) {
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
    sort_loops(plan);
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

void dlb_copy_run(dlb_copy_plan *plan) {
    (plan->is_bits ? dlb_copy_bits : dlb_copy_bytes)(plan);
}

void dlb_copy(const DLTensor *destination, uint64_t destination_flags,
              const DLTensor *source, uint64_t source_flags) {
    dlb_copy_plan plan;
    if (dlb_copy_prepare(&plan, destination, destination_flags, source, source_flags))
        dlb_copy_run(&plan);
}
