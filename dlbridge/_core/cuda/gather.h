/* Strided copies by kernels on the device: which launches a plan of a copy becomes. The
 * kernels are in gather.cu, and gather.ptx is made of it. No driver and no Python here.
 */
#ifndef DLBRIDGE_CORE_CUDA_GATHER_H_
#define DLBRIDGE_CORE_CUDA_GATHER_H_

#include "cuda/gather_parameters.h"
#include "memory/copy.h"

typedef struct {
    dlb_gather parameters;
    uint32_t size; /* bytes of an element: 1, 2, 4, 8 or 16 */
    bool is_transposed;
    uint32_t blocks;
} dlb_gather_launch;

/* Call `each` with the launches of a plan in bytes; stop where it fails. There is more
 * than one above 1 GiB, or of more loops than a launch has. */
typedef int (*dlb_gather_each)(void *context, const dlb_gather_launch *launch);
int dlb_gather_plan(const dlb_copy_plan *plan, dlb_gather_each each, void *context);

#endif /* DLBRIDGE_CORE_CUDA_GATHER_H_ */
