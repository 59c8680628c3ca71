/* What a launch of a gather kernel gets; gather.cu includes it too. */
#ifndef DLBRIDGE_CORE_CUDA_GATHER_PARAMETERS_H_
#define DLBRIDGE_CORE_CUDA_GATHER_PARAMETERS_H_

#include <stdint.h>

#define DLB_GATHER_LOOPS 8
#define DLB_GATHER_THREADS 256 /* of a block */
#define DLB_GATHER_BATCH 4     /* elements that a thread loads before it stores */
#define DLB_GATHER_TILE 32     /* a side of a tile, in elements */

/* One loop. A number n below 2^31, divided by an extent above 1, is the upper half of
 * the 64-bit product n * magic, shifted right. */
typedef struct {
    int64_t to, from; /* strides in bytes */
    uint32_t extent, magic, shift, reserved;
} dlb_gather_loop;

/* The one parameter of every kernel, by value. The first loop is the innermost one. */
typedef struct {
    uint64_t to, from; /* addresses of the first element */
    uint32_t count;    /* of elements, or of tiles; below 2^31 */
    uint32_t reserved;
    /* A transposed copy goes in tiles: the first two loops step over tiles, `width` is
     * compact in the destination, and `height` is in the source. */
    dlb_gather_loop width, height;
    dlb_gather_loop loops[DLB_GATHER_LOOPS]; /* of extent 1 where there are fewer */
} dlb_gather;

#endif /* DLBRIDGE_CORE_CUDA_GATHER_PARAMETERS_H_ */
