/* Memory that the processes of one host share: each has a region of its own, in which
 * it allocates, and reads those of the others. On any thread. No Python here.
 *
 * A region is an anonymous file (memfd): no limit of /dev/shm holds for it, its pages
 * exist once they are touched, and it ends with the last process that maps it,
 * whichever way that ends. At its head are a mailbox for each process, small messages
 * that this one takes in their order, and for each block how many readers it has in
 * each process: who lends it to a process counts up, and that process counts down. All
 * else that the owner knows of its blocks and mailboxes is in memory of its own:
 * whatever others write to its region, it writes nothing outside of that.
 *
 * A block is free again when its owner has put it back and it has no readers. A process
 * takes no more loans than were counted for it, so what it gives back is never
 * another's. In a forked child an arena gives and takes nothing: its counters are those
 * of the parent.
 */
#ifndef DLBRIDGE_CORE_MEMORY_ARENA_H_
#define DLBRIDGE_CORE_MEMORY_ARENA_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DLB_ARENA_SLOTS 1024                 /* blocks of one region at most */
#define DLB_ARENA_MESSAGE ((size_t)16 << 10) /* bytes of a message at most */
#define DLB_ARENA_KEPT                                                                 \
    ((size_t)256 << 20) /* bytes whose pages stay when they are free */

typedef struct dlb_arena dlb_arena;

/* Where another process finds a region. */
typedef struct {
    uint64_t size, token[2];
    int32_t process, file;
} dlb_arena_address;

/* A block that somebody reads: of the region of `owner`. */
typedef struct {
    uint32_t owner, slot;
    uint64_t offset; /* where what is read begins, in the region */
} dlb_arena_loan;

/* The arena of process `own` among `count`, with a region of about `size` bytes; NULL
 * with errno. */
dlb_arena *dlb_arena_new(uint32_t own, uint32_t count, size_t size);
dlb_arena *dlb_arena_retain(dlb_arena *arena);
void dlb_arena_drop(dlb_arena *arena);

dlb_arena_address dlb_arena_where(const dlb_arena *arena);
/* Map the region of another process; -1 with errno. */
int dlb_arena_attach(dlb_arena *arena, uint32_t rank, const dlb_arena_address *address);
/* All others have attached: let nobody else find the region. */
void dlb_arena_close(dlb_arena *arena);
bool dlb_arena_reaches(const dlb_arena *arena, uint32_t rank);

/* A block of the own region, aligned to 64 bytes; NULL: there is no room. */
void *dlb_arena_get(dlb_arena *arena, size_t nbytes);
/* Whether the memory is a block of the own region, which this puts back then. */
bool dlb_arena_put(dlb_arena *arena, void *block);
/* Bytes of a block of the own region; 0: it is none. */
size_t dlb_arena_capacity(dlb_arena *arena, const void *block);
/* Free what others have read to the end. */
void dlb_arena_sweep(dlb_arena *arena);

/* Count one more reader, in another process, of memory in a block of the own region
 * that was not put back; false: it is in none, or not aligned to 64 bytes. */
bool dlb_arena_lend(dlb_arena *arena, const void *data, size_t nbytes, uint32_t rank,
                    dlb_arena_loan *loan);
/* Count one more reader, in another process, of what this process reads itself. */
void dlb_arena_lend_on(dlb_arena *arena, const dlb_arena_loan *loan, uint32_t rank);
/* The other process does not learn of a loan. */
void dlb_arena_withdraw(dlb_arena *arena, const dlb_arena_loan *loan, uint32_t rank);
/* The memory of a loan that another process tells of; NULL if it is not all in the
 * region of an attached process, or not all in one block of the own region, under the
 * slot of that. */
void *dlb_arena_find(const dlb_arena *arena, const dlb_arena_loan *loan, size_t nbytes);
/* Take a loan that dlb_arena_find has found; false: nobody has counted this reader. */
bool dlb_arena_accept(dlb_arena *arena, const dlb_arena_loan *loan);
/* A reader in this process has ended, of a loan that it had taken. */
void dlb_arena_give_back(dlb_arena *arena, const dlb_arena_loan *loan);

/* ---- messages; of one thread at a time ---- */

/* Put a message of `nbytes` > 0 bytes into the mailbox of an attached process; false:
 * there is no room, or it is longer than DLB_ARENA_MESSAGE. */
bool dlb_arena_post(dlb_arena *arena, uint32_t rank, const void *message,
                    size_t nbytes);
/* Bytes of the next message from an attached process; 0: there is none. -1: what is in
 * the mailbox is nothing that dlb_arena_post writes; what is there then is skipped. */
int64_t dlb_arena_next(dlb_arena *arena, uint32_t rank);
/* Take that message, of so many bytes. */
void dlb_arena_take(dlb_arena *arena, uint32_t rank, void *message, size_t nbytes);

/* Bytes of the region that can be allocated, of those allocated, and blocks of these.
 */
void dlb_arena_count(dlb_arena *arena, size_t *room, size_t *used, uint32_t *blocks);

#endif /* DLBRIDGE_CORE_MEMORY_ARENA_H_ */
