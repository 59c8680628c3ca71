/* Streams as numbers, and what tells them apart. */
#ifndef DLBRIDGE_CORE_CUDA_STREAM_H_
#define DLBRIDGE_CORE_CUDA_STREAM_H_

#include <stdint.h>

/* A stream of a device as a number; see cuda/cuda.h. */
typedef uintptr_t dlb_stream;

/* Which stream is meant, where work is enqueued: `thread` says whose default stream it
 * is, where each thread has one; else it is 0. `scope` is the block of Python that
 * promises that the stream lives (see stream.c), or 0. */
typedef struct {
    dlb_stream handle;
    uintptr_t thread;
    uint64_t scope;
} dlb_stream_id;

#endif /* DLBRIDGE_CORE_CUDA_STREAM_H_ */
