/* Inside the memory of CUDA devices. No Python here. */
#ifndef DLBRIDGE_CORE_CUDA_BLOCKS_H_
#define DLBRIDGE_CORE_CUDA_BLOCKS_H_

#include "cuda/memory.h"

enum { DLB_BLOCK_DEVICE, DLB_BLOCK_PINNED, DLB_BLOCK_MANAGED, DLB_BLOCK_KINDS };

typedef struct dlb_block {
    struct dlb_block *next;
    void *address;
    int64_t nbytes; /* as asked for */
    int32_t kind, device, size_class;
    dlb_place home;
    uint64_t graph; /* the capture that it was allocated in, or 0 */
    bool is_pooled;
} dlb_block;

/* From the driver, in the context of its device: what the block says. */
int dlb_block_get(dlb_block *made);
/* To the driver; the struct, too. */
void dlb_block_free(dlb_block *old);
/* Pinned and managed ones have a power of two of bytes, and are kept. */
int32_t dlb_block_size_class(int64_t nbytes);
bool dlb_block_take_kept(dlb_block *wanted);
void dlb_block_keep(dlb_block *old);
void dlb_block_free_kept(void);
/* That, and the driver's pools give back what nobody has. */
void dlb_block_trim(void);
void dlb_block_forget_pools(void);

#endif /* DLBRIDGE_CORE_CUDA_BLOCKS_H_ */
