/* CUDA streams: who may touch memory when. No Python here.
 *
 * The promise. Work that dlbridge enqueues on memory, or lets a consumer enqueue, is
 * ordered after all earlier work on that memory that it knows of, by events on streams:
 * the host never waits. Memory goes back to its producer only when no kernel that
 * dlbridge knows of can still touch it.
 *
 * What is known of memory stands in its `dlb_work`, which every buffer of CUDA memory
 * has:
 *
 * - ready: the stream on which its contents are there, which must be waited for;
 *
 * - home: the stream on which its owner may use the memory again, where that is known;
 *
 * - uses: streams that read or write it now, consumers' that hold an export, and ours;
 *
 * - done: events at the end of uses whose consumer is through with them.
 *
 * Capture. A stream that is being captured into a CUDA graph takes no order from
 * outside: the graph runs later, wherever it is launched, and whoever launches it
 * orders it. The other way, from captured work to a stream outside, nothing can be
 * ordered, and it is refused. No function that CUDA forbids during a capture is called
 * for a stream that is captured; nor is the legacy default stream used while a stream
 * that it would wait for is captured, which would end the capture.
 *
 * Streams that are gone. A stream may be destroyed, and its address used again, once
 * nobody needs it: a consumer's after it gave the memory back; one of a block
 * `dlbridge.cuda.stream(s)` after the block. Not so where it was being
 * captured then, so that no event could take its place: it must live as long as the
 * memory.
 *
 * Locks, in the order in which they are taken: of a work, of the spans, of a device. No
 * function of Python is called under one. A call to the driver may wait for a callback
 * that wants the GIL: what calls it holding the GIL should release it first.
 *
 * Failure. int functions return 0, or -1 with `dlb_cuda_failure()` filled in: a
 * CUresult and the function that returned it, or a reason of ours. dlb_cuda_raise
 * (python/refusal.c) makes it a Python exception. */
#ifndef DLBRIDGE_CORE_CUDA_CUDA_H_
#define DLBRIDGE_CORE_CUDA_CUDA_H_

#include "cuda/driver.h"
#include "cuda/place.h"
#include "memory/buffer.h"

/* ---- driver.c ---- */

/* Open the driver, once; `path` NULL: the one of DLBRIDGE_CUDA_DRIVER or libcuda.so.1.
 * NULL: there is none, and dlb_cuda_missing says why. */
const dlb_cuda_driver *dlb_cuda_open(const char *path);
const char *dlb_cuda_missing(void);
/* For tests with another driver: forget it all. No CUDA memory may be alive. */
void dlb_cuda_close(void);
/* Whether this is the child of a process that used CUDA: then there is no driver. */
bool dlb_cuda_is_forked(void);

/* ---- context.c: failures, contexts, the current stream ---- */

#define DLB_MAX_DEVICES 64

typedef enum {
    DLB_CUDA_CALL,     /* `function` of the driver returned `code` */
    DLB_CUDA_MISSING,  /* no driver: dlb_cuda_missing() */
    DLB_CUDA_CAPTURE,  /* captured work cannot be ordered before work outside of its
                          graph */
    DLB_CUDA_MEMORY,   /* no host memory for our own records */
    DLB_CUDA_BLOCKED,  /* the legacy default stream, while a stream is captured that it
                          waits for */
    DLB_CUDA_PAGEABLE, /* a graph cannot hold copies of memory that is not pinned */
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
CUcontext dlb_cuda_context(int32_t device); /* NULL: failed */
void dlb_cuda_forget_devices(void);
/* What must not be called while any stream is captured (to query an event, to allocate)
 * may be called between these two all the same, for streams that are not. */
int dlb_cuda_relax(void);
void dlb_cuda_unrelax(int mode);
/* A stream of our own that waits for no other, made when first asked for; 0: failed. */
typedef enum { DLB_CUDA_FREEING, DLB_CUDA_WATCHING, DLB_CUDA_SIDES } dlb_cuda_side;
dlb_stream dlb_cuda_side_stream(int32_t device, dlb_cuda_side side);
/* How often somebody has waited for all work on a device by dlb_cuda_synchronised. */
uint64_t dlb_cuda_synchronisations(int32_t device);
void dlb_cuda_synchronised(int32_t device);

/* The stream that this thread works on where a call names none; the legacy default one
 * at first. Returns the one before. */
dlb_stream dlb_cuda_current_stream(int32_t device);
dlb_stream dlb_cuda_set_current_stream(int32_t device, dlb_stream stream);

/* ---- stream.c: what a stream is to a thread, capture, events, order ---- */

/* As the calling thread sees the stream; no span is looked for. */
dlb_place dlb_cuda_place(dlb_stream stream);
/* The same for work of ours on a device: of the innermost block that has the stream. */
dlb_place dlb_cuda_place_on(int32_t device, dlb_stream stream);

/* The handle by which this thread reaches a place. */
dlb_stream dlb_cuda_handle(dlb_place place);

/* Whether the stream is being captured, and into which graph (0: it is not). */
int dlb_cuda_capture(dlb_stream stream, uint64_t *id);
/* -1: the stream is the legacy default one, and a stream is captured that it waits for:
 * any work on it would end the capture. In the context of its device. */
int dlb_cuda_check_usable(dlb_stream stream);
/* Work enqueued on `after` from now on waits for what is on `before` now. Both streams
 * are of `device`. Nothing happens where they are the same or one is DLB_STREAM_NONE.
 * 1: nor here, since `after` is captured, and takes no order from outside. */
int dlb_cuda_order(int32_t device, dlb_place before, dlb_place after);
/* An event at the end of what is on the stream now; NULL without a failure: none can be
 * recorded before a capture ends. */
int dlb_cuda_mark(int32_t device, dlb_place place, CUevent *event);
int dlb_cuda_wait(int32_t device, dlb_place place, CUevent event); /* 1: as above */
bool dlb_cuda_is_over(int32_t device, CUevent event); /* also when the driver is gone */
void dlb_cuda_reuse_event(int32_t device, CUevent event);
/* context.c keeps them. */
CUevent dlb_cuda_spare_event(int32_t device);
bool dlb_cuda_keep_event(int32_t device, CUevent event);

/* Scopes: streams that live until a block of Python ends. */

uint64_t dlb_span_open(int32_t device, dlb_stream stream); /* 0: not kept account of */
void dlb_span_close(uint64_t span);
uint64_t dlb_span_find(int32_t device, dlb_stream stream); /* of this thread, or 0 */
/* 0 counts as open. Of a closed one the stream must not be touched. */
bool dlb_span_is_open(uint64_t span);
/* The end of a closed one: wait for it, or ask whether it has come. */
int dlb_span_wait(uint64_t span, int32_t device, dlb_place after);
bool dlb_span_is_over(uint64_t span);
void dlb_span_forget(void);

static inline bool dlb_cuda_same_place(dlb_place a, dlb_place b) {
    return a.stream == b.stream && a.thread == b.thread &&
           (a.span == b.span || (dlb_span_is_open(a.span) && dlb_span_is_open(b.span)));
}

/* ---- access.c: what is known of the work on one piece of memory ---- */

typedef struct dlb_work dlb_work;

/* NULL: no memory. */
dlb_work *dlb_work_new(int32_t device);
void dlb_work_free(dlb_work *work);
/* Keep account of the streams that use memory of a CUDA device; of other devices
 * nothing is kept. The contents are taken to be there for the legacy default stream.
 * False: no memory. */
bool dlb_buffer_watch(dlb_buffer *buffer, DLDevice device);
int32_t dlb_work_device(const dlb_work *work);
dlb_place dlb_work_ready(dlb_work *work);
/* Known from the producer: its contents are there for `ready`; its owner uses it again
 * on `home` (DLB_STREAM_NONE: nobody said where). */
void dlb_work_set(dlb_work *work, dlb_stream ready, dlb_stream home);
/* Keep something, such as the object of a stream that the producer works on, as long as
 * the memory. Steals the reference; to be called once. */
void dlb_work_keep(dlb_work *work, dlb_buffer *kept);
/* Memory of ours that was allocated on a stream, in the order of which `release` frees
 * it: it need not wait until all uses are over. */
void dlb_work_own(dlb_work *work, dlb_stream home);
bool dlb_work_is_own(const dlb_work *work);

/* Work begins, ours or a consumer's. */

/* Before work on stream `on` is enqueued that reads the memory, or writes it. */
int dlb_work_read(dlb_work *work, dlb_stream on);
int dlb_work_write(dlb_work *work, dlb_stream on);
/* A consumer gets the memory for its work on `to`, until it is given back by
 * dlb_work_take_back with the place that comes out. Returns 1, and has done nothing, if
 * that takes a call to the driver and `may_call` is false. */
int dlb_work_lend(dlb_work *work, dlb_stream to, bool writes, bool may_call,
                  dlb_place *lent);
/* Somebody was told the address and the stream to wait for, and will not say when he is
 * through (the CUDA array interface). Returns that stream in `ready`, on which all that
 * was written is there. */
int dlb_work_publish(dlb_work *work, dlb_stream *ready);

/* Work ends, and memory may go back. */

void dlb_work_take_back(dlb_work *work, dlb_place lent, bool writes);
/* Nobody holds the memory any more. True: its owner may have it back, whatever it does
 * with it. False: kernels may still touch it; ask again. */
bool dlb_work_is_over(dlb_work *work);
/* The same for memory of ours: orders all uses before `home`, on which it may be freed.
 * -1: not possible now; ask dlb_work_is_over. */
int dlb_work_end_on_home(dlb_work *work, dlb_place *home);
/* The stream on which memory of ours may be freed, for its `release`. */
dlb_place dlb_work_home(dlb_work *work);
/* Make `stream` wait until all uses are over, as far as events tell. */
bool dlb_work_watch(dlb_work *work, dlb_stream stream);

/* Memory that the host reads or writes. */

/* The work on `on` ends here, as an event: for memory that the host reads, too, which
 * then waits for no more than that. */
int dlb_work_finish(dlb_work *work, dlb_stream on, bool writes);
/* The host waits for what writes the memory, or, to write, for what reads it, too. */
int dlb_work_wait(dlb_work *work, bool writes);

/* ---- release.c: memory that waits for kernels before it goes back ---- */

/* Nobody holds this memory any more: it goes back at once, or later. */
void dlb_buffer_release_later(dlb_buffer *buffer);
/* Give back what is over by now; returns how many buffers still wait. */
int64_t dlb_cuda_collect(void);
/* At the end of a process: make the host wait for the oldest. False: nothing waits, or
 * for what no event tells of. */
bool dlb_cuda_wait_for_one(void);
/* Called, on any thread and without the GIL, when memory can be given back: to have
 * dlb_cuda_collect called soon. Set by tensor/streams.c; NULL at the end of the
 * process.
 */
typedef void (*dlb_cuda_waker)(void);
extern _Atomic(dlb_cuda_waker) dlb_cuda_wake;

#endif /* DLBRIDGE_CORE_CUDA_CUDA_H_ */
