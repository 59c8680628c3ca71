/* Whether tensors share memory: arithmetic on addresses, in bits. */
#include "layout/layout.h"

typedef struct { /* blocks of `size` bits, one at each sum of multiples of the steps */
    int64_t start, size;
    int32_t count;
    int64_t steps[DLB_MAX_NDIM], extents[DLB_MAX_NDIM];
} lattice;

static void remove_step(lattice *blocks, int32_t index) {
    blocks->count--;
    blocks->steps[index] = blocks->steps[blocks->count];
    blocks->extents[index] = blocks->extents[blocks->count];
}

/* All steps positive, dimensions that continue a block merged into it. */
static void make_lattice(const DLTensor *tensor, uint64_t flags, uintptr_t origin,
                         lattice *blocks) {
    int64_t bits = dlb_element_bits(tensor->dtype, flags);
    blocks->start = (int64_t)((uintptr_t)tensor->data - origin) * 8;
    blocks->size = bits;
    blocks->count = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t step = tensor->strides[i] * bits, extent = tensor->shape[i];
        if (extent < 2)
            continue;
        if (step < 0) {
            blocks->start += (extent - 1) * step;
            step = -step;
        }
        blocks->extents[blocks->count] = extent;
        blocks->steps[blocks->count++] = step;
    }
    for (int32_t i = 0; i < blocks->count;) {
        if (blocks->steps[i] > blocks->size) {
            i++;
            continue;
        }
        blocks->size += blocks->steps[i] * (blocks->extents[i] - 1);
        remove_step(blocks, i);
        i = 0; /* the larger block may now reach what it did not before */
    }
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Every block of both lies at its start modulo the common divisor of all steps: where
 * the starts keep the blocks apart there, as in interleaved views and columns, nothing
 * is shared. */
bool dlb_share_memory(const DLTensor *a, uint64_t a_flags, const DLTensor *b,
                      uint64_t b_flags) {
    lattice first, second;
    uintptr_t origin = (uintptr_t)a->data;
    make_lattice(a, a_flags, origin, &first);
    make_lattice(b, b_flags, origin, &second);
    int64_t divisor = 0;
    for (int32_t i = 0; i < first.count; i++)
        divisor = common_divisor(divisor, first.steps[i]);
    for (int32_t i = 0; i < second.count; i++)
        divisor = common_divisor(divisor, second.steps[i]);
    if (divisor == 0) /* two blocks */
        return first.start < second.start + second.size &&
               second.start < first.start + first.size;
    int64_t distance = (second.start - first.start) % divisor;
    distance += distance < 0 ? divisor : 0;
    return distance < first.size || divisor - distance < second.size;
}

/* In order of their strides, each dimension must step over all that the smaller ones
 * reach. The search is quadratic, ranks are small. */
bool dlb_overlaps_itself(const DLTensor *tensor) {
    int64_t reach = 0, last = -1;
    int32_t last_index = -1;
    for (;;) {
        int64_t least = INT64_MAX;
        int32_t found = -1;
        for (int32_t i = 0; i < tensor->ndim; i++) {
            int64_t stride =
                tensor->strides[i] < 0 ? -tensor->strides[i] : tensor->strides[i];
            bool is_next = stride > last || (stride == last && i > last_index);
            if (tensor->shape[i] == 0)
                return false;
            if (tensor->shape[i] > 1 && is_next && stride < least) {
                least = stride;
                found = i;
            }
        }
        if (found < 0)
            return false;
        if (least <= reach)
            return true;
        reach += (tensor->shape[found] - 1) * least;
        last = least;
        last_index = found;
    }
}
