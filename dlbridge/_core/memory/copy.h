/* The copy on the CPU, and what is inside of it: a plan of byte (or bit) strides, and
 * the loops that run it. No Python here. */
#ifndef DLBRIDGE_CORE_MEMORY_COPY_H_
#define DLBRIDGE_CORE_MEMORY_COPY_H_

#include "core.h"

/* Copy element by element on the CPU; shapes and dtypes are equal, both layouts were
 * checked, both data pointers include their byte_offset. Packed sub-byte elements are
 * copied bit by bit where the layout demands it; one side may be padded and the other
 * packed (flags). */
void dlb_copy(const DLTensor *destination, uint64_t destination_flags,
              const DLTensor *source, uint64_t source_flags);

/* One loop: how often, and how far each side moves. */
typedef struct {
    int64_t extent;
    int64_t destination;
    int64_t source;
} dlb_copy_loop;

/* `unit` bytes (or bits) are moved by every innermost step. Loops run outermost first,
 * sorted by the destination's stride, which is never negative; at most one more than
 * there are dimensions, for the lanes. */
typedef struct {
    char *destination; /* the base, to which the start is added */
    const char *source;
    int64_t destination_start; /* where to begin, in the measure of the strides */
    int64_t source_start;
    int64_t unit;
    int32_t ndim;
    bool is_bits;    /* what strides, starts and unit are measured in; else bytes */
    bool is_widened; /* packed to padded: each destination unit is a whole byte, */
    bool is_signed;  /* filled up with the sign, or else with zeros */
    dlb_copy_loop loops[DLB_MAX_NDIM + 1];
} dlb_copy_plan;

/* Plan the copy of one tensor to another; false: there are no elements. */
bool dlb_copy_prepare(dlb_copy_plan *plan, const DLTensor *destination,
                      uint64_t destination_flags, const DLTensor *source,
                      uint64_t source_flags);
/* Bring loops that were changed in order, and merge them. */
void dlb_copy_arrange(dlb_copy_plan *plan);
void dlb_copy_run(dlb_copy_plan *plan);

/* ---- narrow.c ---- */

/* The dtype of half the width that a checked copy of 64-bit numbers, or complex128, may
 * have; false: there is none. */
bool dlb_narrower(DLDataType dtype, DLDataType *narrower);
/* Copy to compact row-major memory of that dtype: whether every integer is what it was,
 * and every finite number finite. */
bool dlb_copy_narrowed(void *to, const DLTensor *from);

/* ---- plans of bytes in parts, for memory that is not reached at once ---- */

int64_t dlb_copy_count(const dlb_copy_plan *plan); /* bytes that it moves */
/* Call `each` with plans that move at most `limit` bytes each; stop where it fails. */
typedef int (*dlb_copy_each)(void *context, const dlb_copy_plan *part);
int dlb_copy_split(const dlb_copy_plan *plan, int64_t limit, dlb_copy_each each,
                   void *context);
/* The same through compact memory at `middle`: into it, and out of it. It lies in the
 * order of the plan's loops. */
void dlb_copy_through(const dlb_copy_plan *plan, void *middle, dlb_copy_plan *in,
                      dlb_copy_plan *out);
/* Order the loops by the source, so that parts of it are compact. */
void dlb_copy_order_by_source(dlb_copy_plan *plan);
/* A plan in bits whose steps are all whole bytes becomes one in bytes. */
bool dlb_copy_to_bytes(dlb_copy_plan *plan);
/* Remove the loops that read one place repeatedly; returns how many there were. */
int32_t dlb_copy_take_repeats(dlb_copy_plan *plan, dlb_copy_loop *repeats);
/* Where memory that the plan touches begins and ends, in bytes from the base. */
void dlb_copy_span(const dlb_copy_plan *plan, bool of_destination, int64_t *low,
                   int64_t *high);

/* Run a plan whose strides and unit are bytes. */
void dlb_copy_bytes(dlb_copy_plan *plan);
/* Run a plan whose strides and unit are bits. No bit outside the units changes. */
void dlb_copy_bits(dlb_copy_plan *plan);

/* Step through the outer `ndim` loops like an odometer. `index` starts at zero; false
 * after the last position. */
static inline bool dlb_copy_advance(const dlb_copy_loop *loops, int32_t ndim,
                                    int64_t *index, int64_t *destination,
                                    int64_t *source) {
    for (int32_t i = ndim - 1; i >= 0; i--) {
        *destination += loops[i].destination;
        *source += loops[i].source;
        if (++index[i] < loops[i].extent)
            return true;
        *destination -= loops[i].destination * loops[i].extent;
        *source -= loops[i].source * loops[i].extent;
        index[i] = 0;
    }
    return false;
}

#endif /* DLBRIDGE_CORE_MEMORY_COPY_H_ */
