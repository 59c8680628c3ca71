/* CUDA streams: who may use memory when. No Python here.
 *
 * The promise. Work that dlbridge enqueues on memory, or lets a consumer enqueue, is
 * ordered after all earlier work on that memory that dlbridge knows of. Events on
 * streams give the order; the host never waits. Memory goes back to its producer only
 * when no kernel that dlbridge knows of can still use it.
 *
 * Every buffer of CUDA memory has an access tracker, a `dlb_access`. It holds:
 *
 * - ready: the stream on which the contents are complete, which must be waited for;
 *
 * - owner: the owner's stream, on which the memory is used again, where that is known;
 *
 * - uses: the streams that use it now, of consumers that have borrowed it and ours;
 *
 * - done: events at the end of uses that consumers have finished.
 *
 * Capture. A stream that is being captured into a CUDA graph takes no order from
 * outside: the graph runs later, wherever it is launched, and whoever launches it
 * orders it. Nothing outside can be ordered after captured work, and that is refused.
 * No function that CUDA forbids during a capture is called for a stream that is
 * captured. The legacy default stream is not used while a stream that it would wait for
 * is captured, because that would end the capture.
 *
 * Destroyed streams. A stream may be destroyed, and its address used again, once nobody
 * needs it: a consumer's stream after the memory was given back, the stream of a scope
 * `dlbridge.cuda.stream(s)` after the scope. The exception is a stream that was being
 * captured at that moment, because no event can stand for it: it must live as long as
 * the memory.
 *
 * Locks, in the order in which they are taken: of an access tracker, of the stream
 * scopes, of a device. No Python runs under one. A call to the driver may wait for a
 * callback that wants the GIL: callers that hold the GIL should release it first.
 *
 * Failure. int functions return 0, or -1 with `dlb_cuda_failure()` filled in: a
 * CUresult and the function that returned it, or a reason of ours. dlb_cuda_raise
 * (python/python.c) turns it into a Python exception. */
#ifndef DLBRIDGE_CORE_CUDA_CUDA_H_
#define DLBRIDGE_CORE_CUDA_CUDA_H_

#include "cuda/driver.h"
#include "memory/buffer.h"
#include "memory/copy.h"

/* A stream of a device as a number; see DLB_STREAM_LEGACY below. */
typedef uintptr_t dlb_stream;

/* Which stream is meant, where work is enqueued: `thread` says whose default stream it
 * is, where each thread has one; else it is 0. `scope` is the block of Python that
 * promises that the stream lives (see stream.c), or 0. */
typedef struct {
    dlb_stream handle;
    uintptr_t thread;
    uint64_t scope;
} dlb_stream_id;

/* ---- driver.c ---- */

/* Open the driver, once; `path` NULL: the one of DLBRIDGE_CUDA_DRIVER or libcuda.so.1.
 * NULL: there is none, and dlb_cuda_missing says why. */
const dlb_cuda_driver *dlb_cuda_open(const char *path);
const char *dlb_cuda_missing(void);
/* For tests with another driver: forget everything. No CUDA memory may be alive. */
void dlb_cuda_close(void);
/* Whether this is the child of a process that used CUDA: then there is no driver. */
bool dlb_cuda_is_forked(void);

/* Failures, contexts, the current stream. */

#define DLB_MAX_DEVICES 64

typedef enum {
    DLB_CUDA_CALL,     /* `function` of the driver returned `code` */
    DLB_CUDA_MISSING,  /* no driver: dlb_cuda_missing() */
    DLB_CUDA_CAPTURE,  /* captured work cannot be ordered before work outside of its
                          graph */
    DLB_CUDA_MEMORY,   /* no host memory for our own records */
    DLB_CUDA_BLOCKED,  /* the legacy default stream, while a stream is captured that it
                          waits for */
    DLB_CUDA_PAGEABLE, /* a graph would keep an address of memory that is not pinned */
} dlb_cuda_failure_kind;

typedef struct {
    dlb_cuda_failure_kind kind;
    CUresult code;
    const char *function;
} dlb_cuda_failure_t;

dlb_cuda_failure_t *dlb_cuda_failure(void); /* of this thread */
/* 0, or -1 with the failure filled in. */
int dlb_cuda_check(CUresult code, const char *function);
int dlb_cuda_fail(dlb_cuda_failure_kind kind);
/* Whether the last failure means that nothing runs any more: no driver, or a context
 * that a kernel has broken. */
bool dlb_cuda_is_gone(void);

/* A dlb_stream is the address of a CUstream, or one of these; 0 is never one. */
#define DLB_STREAM_LEGACY ((dlb_stream)1)
#define DLB_STREAM_PER_THREAD ((dlb_stream)2)
#define DLB_STREAM_NONE UINTPTR_MAX /* no stream: nothing to order */

/* The primary context of a device as the current one, and back. */
typedef struct {
    bool is_pushed;
} dlb_cuda_scope;
int dlb_cuda_enter(int32_t device, dlb_cuda_scope *scope);
void dlb_cuda_leave(const dlb_cuda_scope *scope);
/* Where the driver says that an address is: CUDA, pinned or managed memory. 0: it does
 * not know the address; -1: it failed. A thread without a current context is given that
 * of `device`, where it probably is. */
int dlb_cuda_locate(const void *address, int32_t device, DLDevice *found);
CUcontext dlb_cuda_context(int32_t device); /* NULL: failed */
void dlb_cuda_forget_devices(void);
/* Functions that are forbidden while any stream is captured (to query an event, to
 * allocate) may be called between these two, for streams that are not captured. */
int dlb_cuda_relax(void);
void dlb_cuda_unrelax(int mode);
/* A stream of our own that waits for no other, made when first asked for; 0: failed. */
typedef enum { DLB_CUDA_FREEING, DLB_CUDA_WATCHING, DLB_CUDA_SIDES } dlb_cuda_side;
dlb_stream dlb_cuda_side_stream(int32_t device, dlb_cuda_side side);
/* How often somebody has waited for all work on a device by dlb_cuda_synchronised. */
uint64_t dlb_cuda_synchronisations(int32_t device);
void dlb_cuda_synchronised(int32_t device);

/* Wait for the default streams of this thread, which is about to end. */
void dlb_cuda_finish_thread(void);

/* The stream of this thread for calls that name none; at first the legacy default one.
 * Returns the previous one. */
dlb_stream dlb_cuda_current_stream(int32_t device);
dlb_stream dlb_cuda_set_current_stream(int32_t device, dlb_stream stream);

/* ---- stream.c: the identity of streams, capture, events, order ---- */

/* The stream as the calling thread sees it, without a scope. */
dlb_stream_id dlb_stream_identify(dlb_stream stream);
/* The same for our work on a device, with the innermost open scope of the stream. */
dlb_stream_id dlb_stream_identify_on(int32_t device, dlb_stream stream);
/* The handle by which this thread reaches a stream. */
dlb_stream dlb_stream_handle(dlb_stream_id id);

/* Into which graph the stream is being captured; 0: it is not. */
int dlb_cuda_capture(dlb_stream stream, uint64_t *id);
/* -1: the stream is the legacy default one, and a stream that it waits for is captured:
 * any work on it would end the capture. In the context of its device. */
int dlb_cuda_check_usable(dlb_stream stream);
/* Make later work on `after` wait for earlier work on `before`. Both streams are of
 * `device`. Nothing happens if they are the same or one is DLB_STREAM_NONE. 1: nothing
 * was done because `after` is captured, and takes no order from outside. */
int dlb_cuda_order(int32_t device, dlb_stream_id before, dlb_stream_id after);
/* An event at the current end of the stream; NULL without a failure: none can be
 * recorded before a capture ends. */
int dlb_cuda_mark(int32_t device, dlb_stream_id id, CUevent *event);
bool dlb_cuda_is_through(int32_t device, dlb_stream_id id);
int dlb_cuda_wait(int32_t device, dlb_stream_id id, CUevent event); /* 1: as above */
bool dlb_cuda_is_over(int32_t device, CUevent event); /* also when the driver is gone */
void dlb_cuda_reuse_event(int32_t device, CUevent event);
CUevent dlb_cuda_spare_event(int32_t device);
bool dlb_cuda_keep_event(int32_t device, CUevent event);

/* Scopes: streams that live until a block of Python ends. */

uint64_t dlb_stream_scope_open(int32_t device, dlb_stream stream); /* 0: not tracked */
void dlb_stream_scope_close(uint64_t scope);
/* Of this thread, or 0. */
uint64_t dlb_stream_scope_find(int32_t device, dlb_stream stream);
/* 0 counts as open. The stream of a closed scope must not be used. */
bool dlb_stream_scope_is_open(uint64_t scope);
/* Wait for the event at the end of a closed scope, or ask whether it is over. */
int dlb_stream_scope_wait(uint64_t scope, int32_t device, dlb_stream_id after);
bool dlb_stream_scope_is_over(uint64_t scope);
void dlb_stream_scope_forget_all(void);

static inline bool dlb_stream_is_same(dlb_stream_id a, dlb_stream_id b) {
    return a.handle == b.handle && a.thread == b.thread &&
           (a.scope == b.scope ||
            (dlb_stream_scope_is_open(a.scope) && dlb_stream_scope_is_open(b.scope)));
}

/* ---- access.c: the access tracker of one piece of memory ---- */

typedef struct dlb_access dlb_access;

/* NULL: no memory. */
dlb_access *dlb_access_new(int32_t device);
void dlb_access_free(dlb_access *access);
/* Give a buffer of CUDA memory a tracker; buffers of other devices need none. The
 * contents are assumed to be complete on the legacy default stream. False: no memory.
 */
bool dlb_buffer_track(dlb_buffer *buffer, DLDevice device);
int32_t dlb_access_device(const dlb_access *access);
dlb_stream_id dlb_access_ready(dlb_access *access);
/* Note the producer's streams: the contents are complete on `ready`, and the owner uses
 * the memory again on `owner` (DLB_STREAM_NONE: unknown). */
void dlb_access_set_streams(dlb_access *access, dlb_stream ready, dlb_stream owner);
/* Keep something, such as the object of the producer's stream, as long as the memory.
 * Steals the reference; to be called once. */
void dlb_access_keep(dlb_access *access, dlb_buffer *kept);
/* Memory of ours that was allocated on a stream, and that `release` frees in the order
 * of that stream: its release need not wait until all uses are over. */
void dlb_access_set_stream_ordered(dlb_access *access, dlb_stream owner);
bool dlb_access_is_stream_ordered(const dlb_access *access);

/* Work begins, ours or a consumer's. */

/* To be called before work that reads the memory, or writes it, is enqueued on `on`. */
int dlb_access_read(dlb_access *access, dlb_stream on);
int dlb_access_write(dlb_access *access, dlb_stream on);
/* A consumer borrows the memory, until dlb_access_take_back gets the `borrowed` that
 * comes out. The contents are made ready for `to`; the consumer works on `worker`,
 * which it orders after `to` by itself (mostly they are the same). Returns 1, and has
 * done nothing, if that needs a call to the driver and `may_call` is false. */
int dlb_access_lend(dlb_access *access, dlb_stream to, dlb_stream worker, bool writes,
                    bool may_call, dlb_stream_id *borrowed);
/* A consumer gets the address and the stream to wait for, and will not say when it has
 * finished (the CUDA array interface). Returns that stream in `ready`: everything that
 * was written is complete on it. */
int dlb_access_publish(dlb_access *access, dlb_stream *ready);

/* Work ends, and memory may go back. */

void dlb_access_take_back(dlb_access *access, dlb_stream_id borrowed, bool writes);
/* Whether borrowers have not given the memory back whose work may still run, or may
 * have been captured. */
bool dlb_access_is_busy(dlb_access *access);
/* Nobody holds the memory any more. True: its owner may have it back, on any stream.
 * False: kernels may still use it; ask again. */
bool dlb_access_is_over(dlb_access *access);
/* The same for memory of ours: orders all uses before `owner`, on which it may be
 * freed. -1: not possible now; ask dlb_access_is_over. */
int dlb_access_end_on_owner(dlb_access *access, dlb_stream_id *owner);
/* The stream on which memory of ours may be freed, for its `release`. */
dlb_stream_id dlb_access_owner(dlb_access *access);
/* Make `stream` wait until all uses are over, as far as events tell. */
bool dlb_access_make_wait(dlb_access *access, dlb_stream stream);

/* Memory that the host reads or writes. */

/* Record an event at the end of our work on `on`. The host, when it reads the memory,
 * then waits for no more than that. */
int dlb_access_finish(dlb_access *access, dlb_stream on, bool writes);
/* The host waits for what writes the memory and, before it writes, for what reads it.
 */
int dlb_access_wait(dlb_access *access, bool writes);

/* Memory that is given back when its kernels have finished. */

/* Nobody holds this memory any more: it goes back now or later. */
void dlb_buffer_release_later(dlb_buffer *buffer);
/* Give back memory whose uses are over; returns how many buffers still wait. */
int64_t dlb_cuda_collect(void);
/* At the end of a process: make the host wait for the oldest. False: nothing waits, or
 * no event tells when it is over. */
bool dlb_cuda_wait_for_one(void);
/* Called, on any thread and without the GIL, when memory can be given back: to have
 * dlb_cuda_collect called soon. Set by tensor/streams.c; NULL at the end of the
 * process.
 */
typedef void (*dlb_cuda_waker)(void);
extern _Atomic(dlb_cuda_waker) dlb_cuda_wake;

/* ---- memory.c: memory of CUDA devices ---- */

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

/* ---- copy.c: copies of CUDA memory ---- */

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

/* ---- kernels.c: dlbridge's own kernels ---- */

/* gather.ptx, as text; build.py puts it into the extension module. */
extern const char dlb_gather_ptx[];
/* Enqueue a copy of bytes as launches of a kernel, in the current context, within whose
 * reach both sides are. 1: it has no kernels, being too old for them. */
int dlb_cuda_gather(const dlb_copy_plan *plan, dlb_stream on);
/* Before the driver is forgotten. */
void dlb_cuda_forget_kernels(void);

#endif /* DLBRIDGE_CORE_CUDA_CUDA_H_ */
