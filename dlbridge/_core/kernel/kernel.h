/* Kernels: what they take, how they are found, how they are run. Up to the last section
 * nothing here needs Python: the handlers of XLA, torch and TensorFlow call these
 * functions on threads of their own.
 *
 * A call has three steps, in this order and the same for every framework:
 *     dlb_frame_bind     dims and dtypes of the inputs against the signature
 *     (results)          the framework allocates what dlb_signature_result says, or
 *                        hands over buffers that dlb_frame_check_results compares with
 * it dlb_frame_run      devices, layouts, overlap; copies where needed; the kernel
 * Nothing is written before dlb_frame_run calls the kernel.
 *
 * Failure. int functions return 0, or -1 with `frame->error` filled in. The text of a
 * mismatch is made by Python (one place, one form): the GIL is taken for it, if it is
 * not held, and only then.
 */
#ifndef DLBRIDGE_CORE_KERNEL_KERNEL_H_
#define DLBRIDGE_CORE_KERNEL_KERNEL_H_

#define DLB_NO_EXPORTS

#include "core.h"
#include "dlbridge_kernel.h"
#include "python/python.h"

#define DLB_MAX_TENSORS 32    /* inputs and results of a schema as it is written */
#define DLB_MOST_TENSORS 4096 /* of a call, with all tensors of its lists */
#define DLB_MOST_NAMES 65536  /* named dimensions and packs of such a call */
#define DLB_MAX_SCALARS 16
#define DLB_MAX_NAMES 32  /* named dimensions of one signature */
#define DLB_MAX_PACKS 32  /* `...` and `*name`: any number of dimensions */
#define DLB_MAX_DTYPES 16 /* dtype variables */
#define DLB_MAX_LISTS 8   /* arguments that are lists of numbers */
#define DLB_MAX_LISTED 64 /* numbers in one of them */
#define DLB_ERROR_SIZE 1024

/* ---- sets of tensors, names and packs: one bit for each ---- */

static inline int32_t dlb_set_words(int32_t count) {
    return (count + 31) / 32;
}

static inline bool dlb_set_has(const uint32_t *set, int64_t i) {
    return set[i >> 5] >> (i & 31) & 1;
}

static inline void dlb_set_add(uint32_t *set, int64_t i) {
    set[i >> 5] |= UINT32_C(1) << (i & 31);
}

static inline void dlb_set_remove(uint32_t *set, int64_t i) {
    set[i >> 5] &= ~(UINT32_C(1) << (i & 31));
}

static inline void dlb_set_clear(uint32_t *set, int32_t count) {
    for (int32_t word = 0; word < dlb_set_words(count); word++)
        set[word] = 0;
}

/* The first member from `from` on; `count`: there is none. */
static inline int32_t dlb_set_next(const uint32_t *set, int32_t count, int32_t from) {
    while (from < count) {
        uint32_t left = set[from >> 5] >> (from & 31);
        if (left != 0) {
            int32_t found = from + __builtin_ctz(left);
            return found < count ? found : count;
        }
        from = (from | 31) + 1;
    }
    return count;
}

/* ---- signature.c: a schema, compiled; made once, then immutable ---- */

typedef enum {
    DLB_DIM_CONSTANT,   /* exactly `value` */
    DLB_DIM_NAME,       /* names[value] */
    DLB_DIM_ANY,        /* `_`: whatever comes */
    DLB_DIM_PACK,       /* packs[value]; at most one in a parameter */
    DLB_DIM_EXPRESSION, /* postfix program: steps value .. value + length */
} dlb_dim_kind;

typedef struct {
    int32_t kind, length;
    int64_t value;
} dlb_dim;

typedef struct { /* '+', '-', '*', '/' (floor), 'c' (constant), 'n' (name) */
    int32_t operation;
    int64_t value;
} dlb_step;

/* The value of a postfix program over `names`, which are all known. False: it divides
 * by zero, or exceeds 64 bits. */
bool dlb_steps_run(const dlb_step *steps, int32_t length, const int64_t *names,
                   int64_t *value);

typedef struct {
    int32_t dtype; /* index into dtypes */
    int32_t dim_count;
    int32_t pack; /* which of dims is the pack; -1: none */
    const dlb_dim *dims;
    bool optional, mutated;
} dlb_parameter;

typedef struct {
    dlb_scalar_kind kind;
    int32_t name;  /* the dimension that it is, of kind DLB_INT; -1: none */
    int32_t dtype; /* the dtype variable that it is, of kind DLB_INT; -1: none */
    int32_t pack;  /* the pack that it is, of kind DLB_INTS; -1: none */
    int32_t count; /* how many numbers a list must have; -1: any */
    bool optional, is_bool;
    bool is_dtype; /* of kind DLB_INT: a dlb_dtype_key */
} dlb_scalar_parameter;

/* One dtype variable: all parameters that name it have the same dtype, one of `keys`
 * (none: any dtype). */
typedef struct {
    int32_t key_count;
    const uint32_t *keys; /* dlb_dtype_key */
} dlb_dtype_set;

typedef struct { /* a name that only this dimension, an expression, determines */
    int32_t parameter, dim, name;
} dlb_solution;

typedef struct {
    int32_t input_count, result_count, scalar_count;
    int32_t name_count, pack_count, dtype_count, solution_count;
    const dlb_parameter *parameters; /* inputs, then results */
    const dlb_dtype_set *dtypes;
    const dlb_scalar_parameter *scalars;
    const dlb_step *steps;
    const dlb_solution *solutions; /* in the order in which they can be found */
    bool has_mutated;
    bool has_expressions; /* in inputs */
    bool has_sizes; /* scalars or lists that are dimensions or dtypes of tensors */
    bool has_packs; /* lists that are dimensions of tensors */
    bool is_large;  /* a call needs more room than a frame has by itself */
} dlb_signature;

typedef struct {
    int32_t ndim;
    const int64_t *shape; /* of the tensor or the list that bound it */
} dlb_pack;

typedef struct { /* only what is in the sets has a meaning; see dlb_signature_bind */
    uint32_t *has_name, *has_pack, has_dtype;
    uint32_t dtypes[DLB_MAX_DTYPES]; /* keys */
    int64_t *names;
    dlb_pack *packs;
    /* Where names and packs lie, but for large signatures. */
    uint32_t own_sets[2];
    int64_t own_names[DLB_MAX_NAMES];
    dlb_pack own_packs[DLB_MAX_PACKS];
} dlb_bindings;

/* -1: all fits. Else the index of the first input that does not, or DLB_MOST_TENSORS: a
 * scalar that is a dimension is negative. Inputs that are left out have ndim -1;
 * scalars are of their kinds. The arrays of the bindings of a large signature are there
 * by then, see dlb_frame_fit. */
int dlb_signature_bind(const dlb_signature *signature, const DLTensor *inputs,
                       const dlb_scalar *scalars, dlb_bindings *bindings);
/* Find the name for which the expression has this extent, into `names`, which has all
 * others of the expression. False: there is none from 0 on, or any is one. */
bool dlb_signature_solve(const dlb_signature *signature, const dlb_solution *solution,
                         int64_t extent, int64_t *names);
/* Whether a tensor that exists is result number `result`, after a bind. */
bool dlb_signature_fits_result(const dlb_signature *signature, int result,
                               const DLTensor *tensor, dlb_bindings *bindings);
/* Dtype and shape of one result: into `shape`, room for DLB_MAX_NDIM. Returns the ndim,
 * or -1 where it is not determined, negative or too large. */
int32_t dlb_signature_result(const dlb_signature *signature, int result,
                             const dlb_bindings *bindings, DLDataType *dtype,
                             int64_t *shape);

/* ---- kernel.c: one wrapped kernel, and the run of one call ---- */

typedef enum { /* which Python exception an error becomes */
               DLB_ERROR_NONE,
               DLB_ERROR_TYPE,
               DLB_ERROR_VALUE,
               DLB_ERROR_BUFFER,
               DLB_ERROR_KERNEL, /* the kernel returned a status: KernelError */
               DLB_ERROR_PYTHON, /* `exception` is what Python code raised */
               DLB_ERROR_MEMORY,
} dlb_error_class;

typedef struct {
    dlb_error_class kind;
    const char *reason; /* of DLB_ERROR_BUFFER: a static key of errors.REASONS */
    void *exception;    /* a PyObject, one reference; see dlb_error_clear */
    char text[DLB_ERROR_SIZE];
} dlb_error;

typedef struct dlb_kernel dlb_kernel;

typedef struct { /* a list of the call, and its numbers */
    dlb_list list;
    union {
        int64_t ints[DLB_MAX_LISTED];
        double floats[DLB_MAX_LISTED];
    } values;
} dlb_list_room;

typedef struct { /* addresses low <= a < high; low == high: no elements */
    uintptr_t low, high;
} dlb_span;

/* What is known of the tensors of a call, for `room` of them. */
typedef struct {
    DLTensor tensors[DLB_MAX_TENSORS];
    uint64_t flags[DLB_MAX_TENSORS];
    struct dlb_access *accesses[DLB_MAX_TENSORS];
    uint32_t written, watched;
} dlb_frame_room;

typedef struct {
    DLTensor *tensors; /* inputs, then results; strides always set */
    uint64_t *flags;   /* DLPACK_FLAG_BITMASK_READ_ONLY counts */
    uint32_t *written; /* the kernel writes these tensors; set by dlb_frame_run */
    uint32_t *watched; /* accesses[i] tracks the memory of these tensors */
    struct dlb_access **accesses; /* see cuda/cuda.h */
    dlb_scalar scalars[DLB_MAX_SCALARS];
    int32_t tensor_count, input_count, scalar_count, list_count;
    int32_t room; /* there can be so many tensors */
    /* The order of the call's arguments: tensor i as i, scalar j as -1 - j. NULL: that
     * of the kernel. Conventions that mix tensors and scalars need it. */
    const int16_t *order;
    int32_t order_count;
    void *stream; /* the caller's on a device that has such, as a dlb_stream; NULL: that
                     of dlbridge */
    const char *source;   /* "torch.Tensor", "jax.Array", … for texts; may be NULL */
    void *const *objects; /* Python's own of `tensors`, for who must keep memory alive;
                             NULL: unknown */
    void *returned;     /* without a schema: what the function returned, a PyObject, one
                           reference; NULL: None */
    dlb_frame_room own; /* where the arrays above lie, but for calls of large kernels */
    void *large;        /* where those lie; NULL: none */
    dlb_bindings bindings;
    dlb_error error; /* kind is DLB_ERROR_NONE until something fails */
    dlb_list_room lists[DLB_MAX_LISTS]; /* the first list_count are of `scalars` */
} dlb_frame;

/* The calling convention of one function: returns the kernel's status. Runs with or
 * without the GIL; may fill frame->error, else the status and the context's text do. */
typedef struct dlb_target dlb_target;
typedef int (*dlb_invoke)(const dlb_kernel *kernel, const dlb_target *target,
                          dlb_frame *frame, dlb_context *context);

struct dlb_target { /* a function for the devices of one type */
    DLDeviceType device_type;
    dlb_invoke invoke;
    void *function; /* what `invoke` calls: an address, or a handle */
    void *user;     /* dlb_context.user; for Python functions a PyObject */
};

struct dlb_kernel {
    _Atomic int64_t references;
    uint64_t serial;                /* of no other kernel, ever; not 0 */
    char *name;                     /* "namespace::name" */
    const dlb_signature *signature; /* NULL: positional, the last tensor is written */
    dlb_target targets[4];
    int32_t target_count;
    uint32_t alignment; /* bytes that data pointers must be multiples of; else copied */
    bool contiguous;    /* the kernel wants row-major memory; else copied */
    bool may_overlap;   /* results may share memory with inputs */
    bool releases_gil;  /* for callers that hold it, see dlb_frame_holds_gil */
    int64_t holds_below; /* but not for calls that cost less; 0: for all */
    dlb_step
        *cost; /* what a call costs, over the names of the signature; NULL: bytes */
    int32_t cost_length;
    bool on_default_stream; /* of its device, instead of the caller's */
    bool casts;             /* torch.autocast casts its arguments */
    bool needs_gil;         /* the function is Python: it takes the GIL by itself */
    bool writes_last;       /* without a signature: the last tensor is written */
    uint32_t *written;      /* these inputs are written in place; one word or more */
    int16_t *order;         /* see dlb_frame; results last */
    int32_t order_count;
    /* With lists of tensors: of how many each argument and result is; else none. */
    int32_t counts[DLB_MAX_TENSORS];
    int32_t count_count;
    bool says_extents; /* of a result: see said_by */
    /* Of each result, which result has its first extent, as the kernel says it; -1: the
     * whole result is written. */
    int8_t said_by[DLB_MAX_TENSORS];
    void *schema; /* the Python Schema, for texts; one reference */
    void *keeps;  /* a Python tuple that keeps functions alive; one reference */
};

void dlb_kernel_drop(dlb_kernel *kernel); /* frees; takes the GIL where it must */

/* Start a call: counts 0, no error. Costs a few stores, not a memset. What ends it is
 * dlb_frame_end. */
static inline void dlb_frame_start(dlb_frame *frame, const char *source) {
    frame->tensor_count = frame->input_count = frame->scalar_count = 0;
    frame->list_count = 0;
    frame->order = NULL;
    frame->stream = NULL;
    dlb_frame_room *own = &frame->own;
    frame->tensors = own->tensors;
    frame->flags = own->flags;
    frame->accesses = own->accesses;
    frame->written = &own->written;
    frame->watched = &own->watched;
    own->written = own->watched = 0;
    frame->room = DLB_MAX_TENSORS;
    frame->large = NULL;
    frame->source = source;
    frame->objects = NULL;
    frame->returned = NULL;
    frame->error.kind = DLB_ERROR_NONE;
    frame->error.reason = NULL;
    frame->error.exception = NULL;
    frame->error.text[0] = 0;
}

int dlb_frame_make_room(const dlb_kernel *kernel, dlb_frame *frame);

/* Room for a call of the kernel, before there are tensors. Returns -1 where there is no
 * memory. */
static inline int dlb_frame_fit(const dlb_kernel *kernel, dlb_frame *frame) {
    bool fits = kernel->signature == NULL || !kernel->signature->is_large;
    return fits ? 0 : dlb_frame_make_room(kernel, frame);
}

void dlb_frame_drop_room(dlb_frame *frame);

static inline void dlb_frame_end(dlb_frame *frame) {
    if (frame->large != NULL)
        dlb_frame_drop_room(frame);
}

/* Room for one more list of the frame, empty; NULL: there are too many. */
dlb_list_room *dlb_frame_add_list(dlb_frame *frame, dlb_scalar_kind kind,
                                  dlb_scalar *scalar);
/* Lists may be texts, as programs have them: see write_list in kernels/schema/parts.py.
 */
int dlb_frame_bind(const dlb_kernel *kernel, dlb_frame *frame);
/* tensors[input_count + i] against result i. */
int dlb_frame_check_results(const dlb_kernel *kernel, dlb_frame *frame);
int dlb_frame_run(const dlb_kernel *kernel, dlb_frame *frame);
/* Whether the caller, which has the GIL, holds it while the kernel runs: what takes
 * less time than others could make use of is not worth the release. After a bind;
 * results count. */
bool dlb_frame_holds_gil(const dlb_kernel *kernel, const dlb_frame *frame);
/* Fill the error in: kind and a text by printf, always returns -1. */
int dlb_frame_fail(dlb_frame *frame, dlb_error_class kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Tensor `index` (results after inputs) is not what the schema or the kernel takes:
 * `reason` is "mismatch" (dtype or shape), "returned" (the same of what a Python
 * function returned), or a static key of errors.REASONS; `other` is a second tensor
 * that has to do with it, or -1. Python makes the text. Returns -1.
 */
int dlb_frame_refuse(const dlb_kernel *kernel, dlb_frame *frame, int index,
                     const char *reason, int other);
/* What debug mode found out about tensor `index`: `reason` is a key of errors.FINDINGS,
 * `count` how many elements or bytes, `place` where the first one is. Returns -1. */
int dlb_frame_report(const dlb_kernel *kernel, dlb_frame *frame, int index,
                     const char *reason, int64_t count, int64_t place);
/* A failure of the CUDA driver, as dlb_cuda_failure() has it. Returns -1. */
int dlb_frame_fail_cuda(const dlb_kernel *kernel, dlb_frame *frame);
/* Write a name that came from a file into `room` bytes: what no name of a kernel can
 * have in it is shown as \xNN, so that no text has control characters. Returns `text`.
 */
const char *dlb_show_name(char *text, size_t room, const char *name, size_t length);
void dlb_error_clear(dlb_error *error); /* drop the exception; takes the GIL if any */

/* The call itself, without checks: for calls like one that passed them all. On a CUDA
 * device it is ordered after all known work on its tensors. */
int dlb_frame_invoke(const dlb_kernel *kernel, const dlb_target *target,
                     dlb_frame *frame);
/* The function itself, on no particular stream. */
int dlb_frame_call(const dlb_kernel *kernel, const dlb_target *target,
                   dlb_frame *frame);
/* The first extent of tensor `index` after a call on the CPU: less than that of its
 * memory where the kernel said so. */
int64_t dlb_frame_said(const dlb_kernel *kernel, const dlb_frame *frame, int32_t index);
/* The function for a device, or NULL. Pinned memory also counts as the CPU's, managed
 * memory as that of the GPU. */
const dlb_target *dlb_kernel_target(const dlb_kernel *kernel, DLDevice device);

/* ---- rules that every fast path shares with dlb_frame_run ---- */

/* Whether input `index` of `input_count` is written in place. */
static inline bool dlb_writes_input(const dlb_kernel *kernel, int32_t input_count,
                                    int32_t index) {
    return dlb_set_has(kernel->written, index) ||
           (kernel->writes_last && index == input_count - 1);
}

/* Which of `input_count` inputs, no more than 32, are written in place, by bits. */
static inline uint32_t dlb_written_inputs(const dlb_kernel *kernel,
                                          int32_t input_count) {
    uint32_t last =
        kernel->writes_last && input_count > 0 ? UINT32_C(1) << (input_count - 1) : 0;
    return *kernel->written | last;
}

/* Which tensors of a call are written, results included: into frame->written. */
static inline void dlb_mark_written(const dlb_kernel *kernel, dlb_frame *frame) {
    if (frame->tensor_count <= 32) {
        uint64_t all = (UINT64_C(1) << frame->tensor_count) - 1;
        uint64_t results = all & ~((UINT64_C(1) << frame->input_count) - 1);
        uint64_t inputs = dlb_written_inputs(kernel, frame->input_count) & all;
        *frame->written = (uint32_t)(inputs | results);
        return;
    }
    dlb_set_clear(frame->written, frame->tensor_count);
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (i >= frame->input_count || dlb_writes_input(kernel, frame->input_count, i))
            dlb_set_add(frame->written, i);
}

/* `addresses`: one, or several or-ed. */
static inline bool dlb_is_aligned(const dlb_kernel *kernel, uintptr_t addresses) {
    return (addresses & (kernel->alignment - 1)) == 0;
}

static inline bool dlb_spans_meet(dlb_span a, dlb_span b) {
    return (a.low < b.high) & (b.low < a.high);
}

/* Whether no tensor that is written (by bits, of at most 32) may share memory with
 * another one. */
static inline bool dlb_spans_are_apart(const dlb_kernel *kernel, const dlb_span *spans,
                                       int32_t count, uint32_t written) {
    uint32_t left = kernel->may_overlap ? 0 : written;
    bool meet = false; /* few spans: a branch for each takes longer */
    for (; left != 0; left &= left - 1) {
        int32_t place = __builtin_ctz(left);
        dlb_span span = spans[place];
        for (int32_t i = 0; i < count; i++)
            meet |= dlb_spans_meet(span, spans[i]) & (i != place);
    }
    return !meet;
}

/* ---- debug.c: calls on the CPU in debug mode ---- */

/* Bit t: calls of functions for devices of type t are more than the call itself. */
extern _Atomic uint64_t dlb_detours;
/* As dlb_frame_call, on copies that are checked afterwards. */
int dlb_debug_invoke(const dlb_kernel *kernel, const dlb_target *target,
                     dlb_frame *frame);
PyObject *dlb_debug_kernels(PyObject *module, PyObject *args);

/* ---- registry.c: the kernel of a name; handlers carry names, never pointers ---- */

/* Never freed: handlers and trampolines may keep the pointer. */
typedef struct dlb_entry dlb_entry;

/* NULL: unknown. A version that another process gave ("a::f__v2") is the name's. For
 * an unknown key of a kernel with lists, as "mylib::stack[2]", Python is called. */
extern void (*dlb_ask_for_kernel)(const char *name, size_t length);
dlb_entry *dlb_registry_entry(const char *name, size_t length);
dlb_entry *dlb_registry_add(const char *name); /* finds or makes; NULL: out of memory */
const char *dlb_entry_name(const dlb_entry *entry);
/* Make `kernel` (a reference is taken; NULL: none) what the name means from now on. */
void dlb_entry_set(dlb_entry *entry, dlb_kernel *kernel);
/* The kernel of now, kept alive until the matching unpin; NULL: none. Lock-free. */
const dlb_kernel *dlb_entry_pin(dlb_entry *entry);
void dlb_entry_unpin(dlb_entry *entry, const dlb_kernel *kernel);

/* ---- Python: errors in both directions, the hooks, schemas ---- */

/* Set once by dlbridge.kernels (native.set_kernel_hooks); each may be NULL.
 *
 * explain(name, schema, tensors, scalars, index, reason, other, count, place)
 *     -> exception
 *     name: str; schema: Schema or None; tensors: inputs, then results, each None or
 *     (shape, (code, bits, lanes), source or None, (device_type, device_id));
 *     scalars: integers, None for others;
 *     index: the tensor that is refused; reason: "mismatch", "returned" or a key of
 *     errors.REASONS or errors.FINDINGS; other: index of a second tensor that has to
 *     do with it, or -1; count, place: see dlb_frame_report.
 * slow_call(kernel, framework, args, kwargs) -> result
 *     framework: str or None; args: tuple; kwargs: dict.
 * find(key): make a kernel known that serves lists of tensors, see kernels/lists.py. */
typedef struct {
    PyObject *explain, *slow_call, *find;
    PyObject *type_error, *value_error, *kernel_error, *memory_error; /* classes */
    PyObject *dtype;                                                  /* the class */
    PyObject *dtypes; /* dict: (type(x), x) -> DType, what as_dtype returned */
} dlb_kernel_hooks;
extern dlb_kernel_hooks dlb_hooks;

PyObject *dlb_set_kernel_hooks(PyObject *module, PyObject *args, PyObject *kwargs);
/* Raise what the error says, and clear it. Always NULL. */
PyObject *dlb_raise(dlb_error *error);
/* Turn the Python exception that is set into the error; `name` is the kernel's. Needs
 * the GIL. Always -1. */
int dlb_error_catch(dlb_error *error, const char *name);
PyObject *dlb_list_object(const dlb_list *list); /* a tuple */

dlb_signature *dlb_parse_signature(PyObject *encoded); /* free() it */
/* A tuple of steps, into `steps`, which has `room`. Returns how many, or -1. */
int dlb_parse_steps(PyObject *program, int32_t name_count, dlb_step *steps,
                    int32_t room);

#endif /* DLBRIDGE_CORE_KERNEL_KERNEL_H_ */
