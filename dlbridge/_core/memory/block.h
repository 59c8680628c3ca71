/* Blocks of CPU memory, 64-byte aligned. Large ones are mapped, in huge pages where the
 * system has them; freed ones are kept for reuse up to a bound, as touching new pages
 * costs several times what writing them does. On any thread. No Python here. */
#ifndef DLBRIDGE_CORE_MEMORY_BLOCK_H_
#define DLBRIDGE_CORE_MEMORY_BLOCK_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DLB_BLOCK_ALIGNMENT 64
#define DLB_BLOCK_BOUND ((size_t)256 << 20) /* bytes that are kept at most */

/* `nbytes` bytes, all zero if asked for. NULL: there is no memory. */
void *dlb_block_get(size_t nbytes, bool zero);
/* The way back; `nbytes` as they were asked for. */
void dlb_block_put(void *block, size_t nbytes);
/* Bytes that dlb_block_put takes for as many: a block may grow up to there in place. */
size_t dlb_block_capacity(size_t nbytes);

int64_t dlb_block_kept(void); /* bytes */
/* Free kept blocks, the largest first, until `bound` bytes are left; returns how many
 * bytes were freed. */
int64_t dlb_block_trim(int64_t bound);

#endif /* DLBRIDGE_CORE_MEMORY_BLOCK_H_ */
