/* A CUDA driver without a GPU. Device memory is host memory; what is enqueued happens
 * at once, in the order of the calls. The check is whether a GPU would have had
 * to keep that order.
 *
 * Time. Each stream is a timeline, and the host is one. A clock says how far each
 * timeline is known to have come: an operation happens before another if the other's
 * clock has reached it. Clocks flow along streams, from events into waits, from streams
 * into the host when it waits, and from the host into what it enqueues.
 *
 * Memory remembers who wrote it last and who has read it since; an access that is not
 * ordered after those is a race, however it went this time. Freed memory is never
 * handed out again.
 *
 * Work is asynchronous: what was enqueued is pending for none or a few of the host's
 * questions, by a seed, unless the host waits. FAKE_CUDA_SEED is another seed.
 *
 * Faults are sentences, collected; see control.c for what tests can ask.
 *
 * One lock guards everything. It is not held while code of a test runs. */
#ifndef FAKE_FAKE_H_
#define FAKE_FAKE_H_

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

/* ---- clocks.c ---- */

#define HOST 0 /* the host's timeline */

typedef struct {
    uint32_t *times;
    int32_t length, room;
} vclock;

uint32_t clock_get(const vclock *self, int32_t timeline);
void clock_set(vclock *self, int32_t timeline, uint32_t time);
void clock_merge(vclock *self, const vclock *other);
void clock_copy(vclock *self, const vclock *other);
bool clock_reaches(const vclock *self, const vclock *other);
void clock_free(vclock *self);
int32_t timeline_new(void);
void timelines_reset(void);

/* ---- world.c, handles.c: the lock, calls, faults, handles ---- */

typedef struct {
    const char *name;
    uint64_t stream, event, address, nbytes, thread;
    int32_t device, result;
} record;

typedef enum { SAFE, UNSAFE, QUIET } call_kind; /* UNSAFE: not while capturing */

/* Every function of the API starts with CALL and ends with `return call_end`. */
int call_begin(record *call, call_kind kind);
CUresult call_end(record *call, CUresult result);
#define CALL(kind, ...)                                                                \
    record call = {__VA_ARGS__};                                                       \
    if (call_begin(&call, kind) != 0)                                                  \
        return call.result;

uint32_t call_number(void); /* of the call in progress */
const char *call_text(uint32_t number, char *text, size_t size);
void world_lock(void);
void world_unlock(void);
void fault(const char *kind, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A failure that correct programs do not have. */
CUresult refuse(CUresult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

typedef enum {
    ANY_CONTEXT = 1,
    ANY_STREAM,
    ANY_EVENT,
    ANY_MODULE,
    ANY_FUNCTION,
    ANY_GRAPH,
    ANY_EXEC,
    ANY_POOL,
    ANY_ALLOCATION,
    HANDLE_KINDS,
} handle_kind;

/* Handles are never used twice, so that a stale one is always found; streams' are where
 * fake_set_reusing says so, as drivers do. */
void *handle_new(handle_kind kind, size_t size);
bool handle_is(const void *handle, handle_kind kind);
void handle_retire(void *handle, handle_kind kind);
void handle_revive(void *handle, handle_kind kind);
int64_t handle_count(handle_kind kind);
void handles_each(handle_kind kind, void (*visit)(void *handle, void *data),
                  void *data);

void handles_reset(void);
void world_reset(void);

extern int64_t host_waits, implicit_waits, pageable_copies;
CUresult world_error(void); /* what every call returns since a kernel has failed */
extern bool is_lazy;        /* nothing is over before somebody waits, or fake_finish */
extern uint32_t seed;       /* of how long work is pending; see holds.c */

/* ---- contexts.c ---- */

#define MAX_DEVICES 8

struct context {
    int32_t device, retained;
    uint32_t peers; /* a bit for each device whose memory it may touch */
    struct stream *legacy;
};

extern int32_t device_count;
struct context *context_current(void);
struct context *context_primary(int32_t device);
bool device_is(CUdevice device);
void contexts_reset(void);
API void fake_set_devices(int32_t count, int peers);

/* ---- memory.c ---- */

typedef struct {
    int32_t timeline;
    uint32_t time, call;
} moment;

typedef struct {
    uint64_t start, end;
    moment write;
    moment *reads;
    int32_t read_count;
} segment;

typedef enum {
    DEVICE_MEMORY,
    POOL_MEMORY,
    MANAGED,
    PINNED,
    FOREIGN,
    MAPPED_MEMORY, /* into a reservation */
} memory_kind;

typedef struct block {
    uint64_t address, nbytes;
    memory_kind kind;
    int32_t device;
    bool is_freed, is_discounted;
    bool is_graphs;    /* it was allocated in a capture */
    uint32_t freed_by; /* a call */
    struct pool *pool;
    uint64_t range_start, range_nbytes; /* the reservation; or its own */
    struct allocation *allocation;      /* what is mapped */
    uint32_t access;                    /* a bit for each device that may touch it */
    segment *segments;                  /* sorted; they cover the block */
    int32_t segment_count, segment_room;
    int32_t opens;    /* of memory of another process, here */
    int32_t exported; /* its row in the arena's list of what other processes have */
} block;

struct pool {
    int32_t device;
    uint64_t used, kept, threshold, high;
    uint32_t peers;
};

typedef struct op op;

block *block_find(uint64_t address); /* also a freed one; NULL: not ours */
CUresult block_new(memory_kind kind, int32_t device, uint64_t nbytes, struct pool *pool,
                   block **out);
block *block_adopt(uint64_t address, uint64_t nbytes, int32_t device);
block *block_map(uint64_t address, uint64_t nbytes, int32_t device);
bool blocks_forget(uint64_t start, uint64_t nbytes); /* false: some are in use */
CUresult memory_charge(int32_t device, uint64_t nbytes);
void memory_refund(int32_t device, uint64_t nbytes);
void block_discount(block *self);
void block_free(block *self);
void block_revive(block *self);
struct pool *pool_default(int32_t device);
uint64_t memory_free(int32_t device);
void memory_synchronised(void);
void memory_reset(void);
int64_t blocks_alive(void);
uint64_t bytes_alive(int32_t device);
extern uint64_t memory_limit[MAX_DEVICES];

/* reservations.c */
void reservations_reset(void);

/* arena.c: address space, shared with other processes where they ask */
uint64_t arena_take(uint64_t nbytes);
void arena_give(uint64_t address, uint64_t nbytes);
void arena_reset(void);
int arena_file(void);
char *arena_head(void);
uint64_t arena_offset(uint64_t address);

/* ---- access.c ---- */

/* 0, or a fault was recorded and the memory must not be touched. */
int access_memory(op *self, uint64_t address, uint64_t nbytes, bool writes);
int access_all(op *self, block *memory, bool writes, const char *verb);
void access_begin_life(block *memory, const op *self);

/* ---- streams.c ---- */

struct stream {
    struct stream *next;
    struct context *context;
    uint32_t flags;
    int32_t timeline, priority;
    uintptr_t thread; /* of a per-thread default stream */
    vclock now;
    struct capture *capture;
    struct node **ends; /* of what was captured on it last */
    int32_t end_count;
};

struct event {
    struct context *context;
    uint32_t flags;
    bool is_recorded, is_foreign;
    vclock now;
    uint64_t capture_id; /* 0: it was not recorded in a capture */
    struct node **ends;
    int32_t end_count;
    int32_t exported, process;
};

/* The stream of a handle, with its failure; `legacy` for the implicit ones. */
CUresult stream_find(CUstream handle, struct stream **stream);
/* The work that a stream waits for by itself before its next operation. */
void stream_catch_up(struct stream *self);
void host_reaches(const vclock *now);
CUresult host_waits_for(const vclock *now);
/* What some calls do by themselves, or may: no order that a program could rely on. */
CUresult host_waits_implicitly(const struct context *context);
void streams_now(vclock *into); /* as far as all have come */
void streams_reset(void);
extern vclock host_now;

/* ---- work.c: operations ---- */

struct op {
    int32_t timeline, device;
    uint32_t time, call;
    uint32_t peers;
    bool is_reported;
    bool is_copy; /* copy engines reach the memory of all devices */
    vclock now;
};

typedef struct {
    uint64_t to, from;
    size_t to_pitch, from_pitch, to_slice, from_slice, width, height, depth;
} copy_work;

typedef struct {
    uint64_t to;
    uint32_t value, value_size;
    size_t pitch, width, height;
} fill_work;

#define MAX_PARAMETERS 32
#define PARAMETER_BYTES 1024

typedef struct {
    struct function *function;
    unsigned int grid[3], block[3], shared;
    unsigned char bytes[PARAMETER_BYTES];
} kernel_work;

typedef struct {
    uint64_t address, nbytes;
    int32_t writes, value; /* value < 0: contents stay */
} touch_range;

typedef struct action action;
struct action {
    CUresult (*run)(action *self, op *op); /* the lock is held */
    const char *name;
    uint32_t call;
    bool is_prompt; /* it never waits for fake_finish; see deferred.c */
    bool is_slow;   /* it takes until somebody waits for it; see holds.c */
    union {
        copy_work copy;
        fill_work fill;
        kernel_work *kernel;
        struct {
            touch_range *ranges;
            int32_t count;
        } touch;
        struct {
            CUhostFn function;
            void *data;
        } host;
        block *memory;
        struct graph *exec;
    };
};

/* Run it on the stream, or record it where the stream is captured. */
CUresult submit(struct stream *stream, action *work);
CUresult run_action(action *work, op *op);
void action_hold(const action *work, const op *op);
CUresult touch_run(action *self, op *op);
void op_begin(struct stream *stream, op *op);
void op_end(struct stream *stream, op *op);
void op_of_host(op *op);
void action_copy(action *to, const action *from);
void action_free(action *self);

/* deferred.c: work that happens as late as it may */
bool deferred_add(const action *work, const op *op); /* false: run it now */
void deferred_flush(const vclock *now);
void deferred_reset(void);

/* holds.c: what takes long */
void hold_add(int32_t timeline, uint32_t time, const vclock *now, CUhostFn function,
              void *data);
/* The host asks for it: a question that brings the device on. */
bool is_over(const vclock *now);
/* The host waits for all of it: the lock is let go meanwhile. The error of the context,
 * if there is one by then. */
CUresult wait_over(const vclock *now);
void holds_let_go(int32_t timeline); /* -1: all */
void holds_finish(const vclock *now);
void holds_reset(void);
bool holds_is_callback(void); /* this thread is in a host function */

/* ---- kernels.c, launches.c, modules.c ---- */

typedef struct {
    unsigned int grid[3], block[3], shared;
    op *op;
} launch;
typedef void (*kernel_body)(launch *self, void **parameters);

typedef struct kernel_entry {
    struct kernel_entry *next;
    char name[128];
    char sizes[MAX_PARAMETERS + 1]; /* one character for each parameter: its bytes */
    kernel_body body;
    int32_t statics; /* bytes of static shared memory */
} kernel_entry;

struct module {
    struct context *context; /* NULL: a library, for all */
};

struct function {
    struct module *module;
    struct context *context;
    const kernel_entry *kernel;
    int32_t shared_limit; /* of dynamic shared memory */
};

#define FREE_SHARED 49152  /* of a block, static and dynamic, without opting in */
#define MOST_SHARED 232448 /* with it */

const kernel_entry *kernel_find(const char *name);
bool function_is(const struct function *function); /* its module is loaded still */
/* Whether its parameters, in a row, let it spin. */
bool kernel_spins(const kernel_entry *kernel, const unsigned char *parameters);

/* A digit, or the struct that is the parameter of a gather kernel. */
#define PARAMETER_GATHER 'G'
#define GATHER_BYTES 344
#define GATHER_KERNELS 10
extern const kernel_entry gather_kernels[GATHER_KERNELS]; /* gather.c */
static inline size_t parameter_size(char code) {
    return code == PARAMETER_GATHER ? GATHER_BYTES : (size_t)(code - '0');
}
static inline size_t parameter_alignment(char code) {
    return code == PARAMETER_GATHER ? 8 : (size_t)(code - '0');
}
CUresult kernel_run(action *self, op *op);
void launches_reset(void);

/* ---- capture.c ---- */

struct capture *capture_of(struct stream *stream);
CUresult capture_append(struct stream *stream, const action *work);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);
/* Whether the mode of running captures allows a call. */
CUresult capture_check_unsafe(const char *name);
CUresult capture_check_legacy(struct stream *stream);
CUresult capture_check_context(struct context *context);
void capture_break(struct stream *stream);
void captures_reset(void);

/* ---- ipc.c ---- */
void ipc_reset(void);
void ipc_check_free(block *memory);
void ipc_record(struct event *event);
void ipc_refresh(struct event *event);

#endif /* FAKE_FAKE_H_ */
