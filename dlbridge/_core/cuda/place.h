/* Where work is enqueued: a stream as one thread sees it. */
#ifndef DLBRIDGE_CORE_CUDA_PLACE_H_
#define DLBRIDGE_CORE_CUDA_PLACE_H_

#include <stdint.h>

/* A stream of a device as a number; see cuda/cuda.h. `thread` says whose default stream
 * it is, where each thread has one; else it is 0. `span` is the block of Python that
 * promises that the stream lives (see stream.c), or 0. */
typedef uintptr_t dlb_stream;
typedef struct {
    dlb_stream stream;
    uintptr_t thread;
    uint64_t span;
} dlb_place;

#endif /* DLBRIDGE_CORE_CUDA_PLACE_H_ */
