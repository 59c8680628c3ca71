/* Memory of CUDA devices. No Python here. */
#ifndef DLBRIDGE_CORE_CUDA_MEMORY_H_
#define DLBRIDGE_CORE_CUDA_MEMORY_H_

#include "cuda/cuda.h"

/* CUDA, pinned or managed. */
bool dlb_cuda_has_memory(DLDevice device);
/* New memory, its contents undefined, 256-byte aligned; it belongs to the current
 * stream of the device. When there is none, finished memory is collected and memory
 * kept for reuse is freed, once. NULL: failed. */
dlb_buffer *dlb_cuda_allocate(DLDevice device, int64_t nbytes);
bool dlb_cuda_is_ours(const dlb_buffer *buffer);
/* Free the memory kept for reuse; that of the driver's pool goes back to the system. */
void dlb_cuda_trim(void);
/* Free memory that had to wait for the end of a capture. */
void dlb_cuda_free_postponed(void);
/* Before the driver is forgotten. */
void dlb_cuda_forget_memory(void);
dlb_allocator_statistics *dlb_cuda_statistics(DLDevice device);

#endif /* DLBRIDGE_CORE_CUDA_MEMORY_H_ */
