/* The part of the independent DLPack peer that ctypes cannot play: code that runs
 * without the GIL, on threads that Python never saw, and after the interpreter is gone.
 *
 * Own declarations, from the text of the standard; nothing of dlbridge is included. The
 * few functions of CPython that are used are declared here and found in the running
 * process.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* ---- the standard ---- */

typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;

typedef struct legacy {
    tensor dl;
    void *context;
    void (*deleter)(struct legacy *);
} legacy;

typedef struct versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct versioned *);
    uint64_t flags;
    tensor dl;
} versioned;

typedef struct {
    uint32_t major, minor;
    void *previous;
    int (*allocate)(tensor *, versioned **, void *,
                    void (*)(void *, const char *, const char *));
    int (*from_py)(void *, versioned **);
    int (*to_py)(versioned *, void **);
    int (*borrow)(void *, tensor *);
    int (*stream)(int32_t, int32_t, void **);
} table;

/* ---- CPython ---- */

typedef struct object object;
extern int PyGILState_Check(void);
extern int Py_IsInitialized(void);
extern int Py_AtExit(void (*)(void));
extern int PyCapsule_IsValid(object *, const char *);
extern void *PyCapsule_GetPointer(object *, const char *);
extern object *PyCapsule_New(void *, const char *, void (*)(object *));
extern void PyErr_SetString(object *, const char *);
extern object *PyExc_ValueError;

/* ---- lending: a managed tensor whose deleter counts ---- */

typedef struct {
    atomic_long calls, calls_with_gil, calls_after_python;
    atomic_ulong thread; /* pthread_self() of the latest call */
    int64_t *dims;       /* shape and strides, poisoned by the deleter */
    int64_t dim_count;
    int forget; /* the deleter frees everything, this record too */
    union {
        legacy old;
        versioned new;
    } managed;
} record;

static void free_record(record *loan) {
    free(loan->dims);
    free(loan);
}

/* A consumer's read after it called the deleter must not look right by luck. */
static void on_delete(record *loan) {
    if (loan->forget) {
        free_record(loan);
        return;
    }
    atomic_fetch_add(&loan->calls, 1);
    if (!Py_IsInitialized())
        atomic_fetch_add(&loan->calls_after_python, 1);
    else if (PyGILState_Check())
        atomic_fetch_add(&loan->calls_with_gil, 1);
    atomic_store(&loan->thread, (unsigned long)pthread_self());
    for (int64_t i = 0; i < loan->dim_count; i++)
        loan->dims[i] = INT64_C(0x5ad5ad5ad5ad5ad5);
}

static void delete_legacy(legacy *managed) {
    on_delete(managed->context);
}

static void delete_versioned(versioned *managed) {
    on_delete(managed->context);
}

/* Copy the managed tensor that `image` describes, with `ndim` entries of its shape and
 * strides where these are not NULL. The memory of the record stays until peer_free, or,
 * with `forget`, until the deleter. */
EXPORT record *peer_lend(int is_versioned, const void *image, int64_t ndim, int forget,
                         int without_deleter) {
    record *loan = calloc(1, sizeof *loan);
    tensor *dl = is_versioned ? &loan->managed.new.dl : &loan->managed.old.dl;
    memcpy(&loan->managed, image, is_versioned ? sizeof(versioned) : sizeof(legacy));
    loan->forget = forget;
    loan->dim_count = 2 * ndim;
    loan->dims = calloc((size_t)(2 * ndim + 1), sizeof *loan->dims);
    if (dl->shape != NULL)
        dl->shape = memcpy(loan->dims, dl->shape, (size_t)ndim * sizeof(int64_t));
    if (dl->strides != NULL)
        dl->strides =
            memcpy(loan->dims + ndim, dl->strides, (size_t)ndim * sizeof(int64_t));
    if (is_versioned) {
        loan->managed.new.context = loan;
        loan->managed.new.deleter = without_deleter ? NULL : delete_versioned;
    } else {
        loan->managed.old.context = loan;
        loan->managed.old.deleter = without_deleter ? NULL : delete_legacy;
    }
    return loan;
}

EXPORT void *peer_managed(record *loan) {
    return &loan->managed;
}

EXPORT void peer_free(record *loan) {
    free_record(loan);
}

static void destroy_capsule(object *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        legacy *managed = PyCapsule_GetPointer(capsule, "dltensor");
        if (managed->deleter != NULL)
            managed->deleter(managed);
    } else if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->deleter != NULL)
            managed->deleter(managed);
    }
}

EXPORT object *peer_capsule(int is_versioned, void *managed) {
    return PyCapsule_New(managed, is_versioned ? "dltensor_versioned" : "dltensor",
                         destroy_capsule);
}

/* ---- calling the deleters of others ---- */

static void call_deleter(int is_versioned, void *managed) {
    if (is_versioned)
        ((versioned *)managed)->deleter(managed);
    else
        ((legacy *)managed)->deleter(managed);
}

typedef struct {
    int is_versioned, count, times;
    void **managed;
    useconds_t pause;
} work;

static void *run_work(void *argument) {
    work *todo = argument;
    for (int i = 0; i < todo->count; i++)
        for (int k = 0; k < todo->times; k++) {
            if (todo->pause)
                usleep(todo->pause);
            call_deleter(todo->is_versioned, todo->managed[i]);
        }
    return NULL;
}

/* Delete `count` managed tensors on `threads` new threads, each one `times` times by
 * its thread. Waits. Call it without the GIL: a deleter may want to take it. */
EXPORT int peer_delete_on_threads(int is_versioned, void **managed, int count,
                                  int threads, int times) {
    pthread_t ids[64];
    work shares[64];
    int failed = 0;
    if (threads > 64)
        return -1;
    for (int i = 0; i < threads; i++) {
        int from = (int)((int64_t)count * i / threads);
        int to = (int)((int64_t)count * (i + 1) / threads);
        shares[i] = (work){is_versioned, to - from, times, managed + from, 0};
        failed |= pthread_create(&ids[i], NULL, run_work, &shares[i]);
    }
    for (int i = 0; i < threads && !failed; i++)
        failed |= pthread_join(ids[i], NULL);
    return failed;
}

/* Delete them one after the other on a thread that nobody waits for: it runs on while
 * the interpreter shuts down. */
EXPORT int peer_delete_in_background(int is_versioned, void **managed, int count,
                                     int pause) {
    pthread_t id;
    work *todo = malloc(sizeof *todo);
    void **copy = malloc((size_t)count * sizeof *copy);
    memcpy(copy, managed, (size_t)count * sizeof *copy);
    *todo = (work){is_versioned, count, 1, copy, (useconds_t)pause};
    return pthread_create(&id, NULL, run_work, todo) || pthread_detach(id);
}

static work last_work;

static void run_last_work(void) {
    run_work(&last_work);
    static const char text[] = "deleters ran at exit\n";
    if (write(STDOUT_FILENO, text, sizeof text - 1) < 0)
        _exit(99);
}

/* Delete them when Python is gone: at the very end of Py_FinalizeEx, or, with
 * `at_exit`, later still, when the process ends. */
EXPORT int peer_delete_after_python(int is_versioned, void **managed, int count,
                                    int at_exit) {
    void **copy = malloc((size_t)count * sizeof *copy);
    memcpy(copy, managed, (size_t)count * sizeof *copy);
    last_work = (work){is_versioned, count, 1, copy, 0};
    return at_exit ? atexit(run_last_work) : Py_AtExit(run_last_work);
}

/* ---- exchange tables: theirs, used from C ---- */

static void keep_message(void *context, const char *kind, const char *message) {
    char *text = context;
    strncat(text, kind, 60);
    strncat(text, ": ", 3);
    strncat(text, message, 180);
}

/* `text` has room for 256 bytes. */
EXPORT int peer_table_allocate(const table *api, tensor *prototype, versioned **out,
                               char *text) {
    text[0] = 0;
    return api->allocate(prototype, out, text, keep_message);
}

EXPORT int peer_table_from_py(const table *api, object *x, versioned **out) {
    return api->from_py(x, out);
}

EXPORT int peer_table_to_py(const table *api, versioned *managed, object **out) {
    return api->to_py(managed, (void **)out);
}

EXPORT int peer_table_borrow(const table *api, object *x, tensor *out) {
    return api->borrow(x, out);
}

EXPORT int peer_table_stream(const table *api, int device_type, int device_id,
                             void **out) {
    return api->stream(device_type, device_id, out);
}

/* Out of x and away again, `times` times; 0, or the number of the step that failed. */
EXPORT int peer_table_churn(const table *api, object *x, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
        versioned *managed = NULL;
        tensor view;
        if (api->from_py(x, &managed) != 0)
            return 1;
        if (api->borrow(x, &view) != 0 || view.data != managed->dl.data)
            return 2;
        managed->deleter(managed);
    }
    return 0;
}

/* ---- exchange tables: functions of ours that fail as C code fails ---- */

EXPORT int peer_from_py_raises(void *x, versioned **out) {
    (void)x;
    (void)out;
    PyErr_SetString(PyExc_ValueError, "the peer's table raises");
    return -1;
}

/* Against the standard: success is reported and nothing given. */
EXPORT int peer_from_py_gives_nothing(void *x, versioned **out) {
    (void)x;
    *out = NULL;
    return 0;
}

EXPORT int peer_from_py_fails_silently(void *x, versioned **out) {
    (void)x;
    (void)out;
    return -1;
}
