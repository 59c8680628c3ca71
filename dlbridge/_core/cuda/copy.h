/* Copies of CUDA memory. No Python here. */
#ifndef DLBRIDGE_CORE_CUDA_COPY_H_
#define DLBRIDGE_CORE_CUDA_COPY_H_

#include "cuda/memory.h"
#include "memory/copy.h"

/* One tensor of a copy. */
typedef struct {
    const DLTensor *dl;
    uint64_t flags;
    dlb_access *access; /* of CUDA and pinned memory */
} dlb_cuda_operand;

/* Copy element by element, in the order of streams: shapes and dtypes are equal, both
 * layouts were checked, at least one side is in CUDA memory, pinned or not. The copy is
 * enqueued on the current stream of the device (between two: of both), after all known
 * work on either side. Values in pageable host memory are read before this returns, and
 * are complete when it returns. */
int dlb_cuda_copy(const dlb_cuda_operand *to, const dlb_cuda_operand *from);
/* All bytes of compact CUDA memory become `value`. */
int dlb_cuda_fill(const dlb_cuda_operand *to, int value);

/* Before the driver is forgotten. */
void dlb_cuda_forget_peers(void);

#endif /* DLBRIDGE_CORE_CUDA_COPY_H_ */
