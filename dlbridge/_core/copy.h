/* Inside the copy: a plan of byte (or bit) strides, and the loops that run it. */
#ifndef DLBRIDGE_COPY_H_
#define DLBRIDGE_COPY_H_

#include <stddef.h>

#include "core.h"

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
    char *destination;
    const char *source;
    int64_t destination_start; /* where to begin, in the measure of the strides */
    int64_t source_start;
    int64_t unit;
    int32_t ndim;
    bool is_widened; /* packed to padded: each destination unit is a whole byte, */
    bool is_signed;  /* filled up with the sign, or else with zeros */
    dlb_copy_loop loops[DLB_MAX_NDIM + 1];
} dlb_copy_plan;

/* copy_bytes.c: run a plan whose strides and unit are bytes. */
void dlb_copy_bytes(dlb_copy_plan *plan);
/* copy_bits.c: run a plan whose strides and unit are bits. No bit outside the units
 * changes. */
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

#endif /* DLBRIDGE_COPY_H_ */
