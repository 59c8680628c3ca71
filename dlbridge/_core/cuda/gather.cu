/* Strided copies on the device, a kernel for each size of element. `make
 * ptx` makes gather.ptx of this file, with nvcc.
 *
 * It is C as well as CUDA C: tests compile it for the host, where the threads of a
 * block run one after the other between two barriers. */
#include "cuda/gather_parameters.h"

#ifdef __CUDACC__
#define KERNEL extern "C" __global__ void __launch_bounds__(DLB_GATHER_THREADS)
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define EACH_THREAD
#define BARRIER __syncthreads();
#define LOAD(TYPE, address) (*(const TYPE *)(address))
#define STORE(TYPE, address, value) (*(TYPE *)(address) = (value))
typedef uint4 sixteen;
#endif

/* What is left of the index after the loop; moves both offsets by the loop's part. */
DEVICE uint32_t step(const dlb_gather_loop *loop, uint32_t index, int64_t *to,
                     int64_t *from) {
    uint32_t quotient = index;
    if (loop->extent != 1)
        quotient = __umulhi(index, loop->magic) >> loop->shift;
    uint32_t remainder = index - quotient * loop->extent;
    *to += (int64_t)remainder * loop->to;
    *from += (int64_t)remainder * loop->from;
    return quotient;
}

/* The loops have constant numbers once they are unrolled: parameters of a kernel cannot
 * be indexed otherwise. */
DEVICE void place(const dlb_gather *plan, uint32_t index, uint64_t *to,
                  uint64_t *from) {
    int64_t forth = 0, back = 0;
    UNROLL
    for (int i = 0; i < DLB_GATHER_LOOPS; i++) {
        if (plan->loops[i].extent == 1)
            break;
        index = step(&plan->loops[i], index, &back, &forth);
    }
    *to = plan->to + (uint64_t)back;
    *from = plan->from + (uint64_t)forth;
}

/* Each thread loads a batch before it stores: the memory is slow, but takes much at
 * once. */
#define DEFINE_GATHER(SIZE, TYPE)                                                      \
    KERNEL dlb_gather_##SIZE(const dlb_gather plan) {                                  \
        uint32_t stride = gridDim.x * DLB_GATHER_THREADS;                              \
        EACH_THREAD {                                                                  \
            uint32_t first = blockIdx.x * DLB_GATHER_THREADS + threadIdx.x;            \
            for (; first < plan.count; first += DLB_GATHER_BATCH * stride) {           \
                uint64_t to[DLB_GATHER_BATCH], from;                                   \
                TYPE values[DLB_GATHER_BATCH];                                         \
                UNROLL                                                                 \
                for (uint32_t i = 0; i < DLB_GATHER_BATCH; i++)                        \
                    if (first + i * stride < plan.count) {                             \
                        place(&plan, first + i * stride, &to[i], &from);               \
                        values[i] = LOAD(TYPE, from);                                  \
                    }                                                                  \
                UNROLL                                                                 \
                for (uint32_t i = 0; i < DLB_GATHER_BATCH; i++)                        \
                    if (first + i * stride < plan.count)                               \
                        STORE(TYPE, to[i], values[i]);                                 \
            }                                                                          \
        }                                                                              \
    }

/* Where a tile begins, and how much of its sides there is. */
typedef struct {
    uint64_t to, from;
    uint32_t width, height;
} tile_place;

DEVICE uint32_t at_most(uint32_t left, uint32_t side) {
    return left < side ? left : side;
}

DEVICE tile_place place_tile(const dlb_gather *plan, uint32_t index) {
    int64_t forth = 0, back = 0;
    uint32_t after_width = step(&plan->loops[0], index, &back, &forth);
    uint32_t column = index - after_width * plan->loops[0].extent;
    uint32_t rest = step(&plan->loops[1], after_width, &back, &forth);
    uint32_t row = after_width - rest * plan->loops[1].extent;
    UNROLL
    for (int i = 2; i < DLB_GATHER_LOOPS; i++) {
        if (plan->loops[i].extent == 1)
            break;
        rest = step(&plan->loops[i], rest, &back, &forth);
    }
    tile_place found;
    found.to = plan->to + (uint64_t)back;
    found.from = plan->from + (uint64_t)forth;
    found.width =
        at_most(plan->width.extent - column * DLB_GATHER_TILE, DLB_GATHER_TILE);
    found.height =
        at_most(plan->height.extent - row * DLB_GATHER_TILE, DLB_GATHER_TILE);
    return found;
}

#define SIDE(loop, i, way) ((uint64_t)((int64_t)(i) * plan.loop.way))

/* Threads beside each other read what lies together in the source, and write what lies
 * together in the destination. */
#define DEFINE_TRANSPOSE(SIZE, TYPE)                                                   \
    KERNEL dlb_transpose_##SIZE(const dlb_gather plan) {                               \
        SHARED TYPE tile[DLB_GATHER_TILE][DLB_GATHER_TILE + 1];                        \
        const uint32_t rows = DLB_GATHER_THREADS / DLB_GATHER_TILE;                    \
        for (uint32_t i = blockIdx.x; i < plan.count; i += gridDim.x) {                \
            tile_place at = place_tile(&plan, i);                                      \
            EACH_THREAD {                                                              \
                uint32_t x = threadIdx.x % DLB_GATHER_TILE;                            \
                uint32_t y = threadIdx.x / DLB_GATHER_TILE;                            \
                UNROLL                                                                 \
                for (uint32_t k = 0; k < DLB_GATHER_TILE; k += rows)                   \
                    if (x < at.height && y + k < at.width)                             \
                        tile[y + k][x] = LOAD(TYPE, at.from + SIDE(height, x, from) +  \
                                                        SIDE(width, y + k, from));     \
            }                                                                          \
            BARRIER EACH_THREAD {                                                      \
                uint32_t x = threadIdx.x % DLB_GATHER_TILE;                            \
                uint32_t y = threadIdx.x / DLB_GATHER_TILE;                            \
                UNROLL                                                                 \
                for (uint32_t k = 0; k < DLB_GATHER_TILE; k += rows)                   \
                    if (x < at.width && y + k < at.height)                             \
                        STORE(TYPE,                                                    \
                              at.to + SIDE(width, x, to) + SIDE(height, y + k, to),    \
                              tile[x][y + k]);                                         \
            }                                                                          \
            BARRIER                                                                    \
        }                                                                              \
    }

DEFINE_GATHER(1, uint8_t)
DEFINE_GATHER(2, uint16_t)
DEFINE_GATHER(4, uint32_t)
DEFINE_GATHER(8, uint64_t)
DEFINE_GATHER(16, sixteen)

DEFINE_TRANSPOSE(1, uint8_t)
DEFINE_TRANSPOSE(2, uint16_t)
DEFINE_TRANSPOSE(4, uint32_t)
DEFINE_TRANSPOSE(8, uint64_t)
DEFINE_TRANSPOSE(16, sixteen)
