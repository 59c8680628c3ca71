/* dlbridge's gather kernels as functions of the host: a block's threads one after the
 * other, a load and a store by way of a function that may look at it. */
#ifndef FAKE_GATHER_HOST_H_
#define FAKE_GATHER_HOST_H_

#include <stdint.h>

#define KERNEL static void
#define DEVICE static inline
#define SHARED
#define UNROLL
#define EACH_THREAD                                                                    \
    for (threadIdx.x = 0; threadIdx.x < DLB_GATHER_THREADS; threadIdx.x++)
#define BARRIER
#define LOAD(TYPE, address) (*(const TYPE *)host_load(address, sizeof(TYPE)))
#define STORE(TYPE, address, value)                                                    \
    (*(TYPE *)host_store(address, sizeof(TYPE)) = (value))

typedef struct {
    uint64_t halves[2];
} sixteen;

static _Thread_local struct {
    uint32_t x;
} threadIdx, blockIdx, gridDim;

/* Where the value is, or where one may be put: what is at the address, or not. */
static void *host_load(uint64_t address, uint64_t nbytes);
static void *host_store(uint64_t address, uint64_t nbytes);

static inline uint32_t __umulhi(uint32_t a, uint32_t b) {
    return (uint32_t)((uint64_t)a * b >> 32);
}

#include "cuda/gather.cu"

typedef void (*gather_kernel)(const dlb_gather plan);

static inline void run_blocks(gather_kernel kernel, uint32_t blocks,
                              const dlb_gather *plan) {
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        kernel(*plan);
}

#endif /* FAKE_GATHER_HOST_H_ */
