/* Allocations that fail on demand: the n-th one of the core during a call, in the thread that makes
 * the call.
 *
 * Preloaded, so that its malloc and its relatives come before those of the C library; calls out of
 * the core's code count. Python's own allocators are replaced through PyMem_SetAllocator; there a
 * call counts if the core asked for it, which the stack shows: the core's code is on it, and between
 * that and the allocation there is nothing but Python's and NumPy's C API. No bytecode: Python itself
 * leaks, or raises SystemError, where some allocations of its bytecode fail. And no other library:
 * torch, JAX and TensorFlow end the process where some of theirs fail. */
#include <Python.h>

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unwind.h>

enum { DEPTH = 64, ENTERING = 16 };

static struct {
    uintptr_t low, high; /* the code of the core */
    void *evaluation; /* the function that evaluates bytecode, or `evaluate` */
    void *entering[ENTERING]; /* those that make its frame, and clear it */
    void *apis[2]; /* where Python and NumPy are loaded */
    PyMemAllocatorEx inner[3];
} known;

static _Thread_local struct {
    bool counts;
    bool stays; /* all after the first fail as well */
    long before, failed;
} state;

static bool in_core(const void *address) {
    return (uintptr_t)address >= known.low && (uintptr_t)address < known.high;
}

static void *library(const void *address) {
    Dl_info found;
    return dladdr(address, &found) ? found.dli_fbase : NULL;
}

static bool enters(const void *function) {
    for (int i = 0; i < ENTERING && known.entering[i] != NULL; i++)
        if (known.entering[i] == function)
            return true;
    return false;
}

/* Whether the core asked for what these calls end with. */
static bool by_core(void *const *stack, int depth) {
    const void *here = library(by_core);
    for (int i = 0; i < depth; i++) {
        if (in_core(stack[i]))
            return true;
        void *function = _Unwind_FindEnclosingFunction(stack[i]);
        if (function == known.evaluation || enters(function))
            return false;
        const void *from = library(stack[i]);
        if (from != here && from != known.apis[0] && from != known.apis[1])
            return false;
    }
    return false;
}

/* Whether this allocation of the core fails. */
static bool fails(void) {
    if (state.before-- > 0)
        return false;
    state.before = 0;
    state.counts = state.stays;
    state.failed++;
    errno = ENOMEM;
    return true;
}

static bool fails_for(const void *caller) {
    return state.counts && in_core(caller) && fails();
}

static bool fails_in_python(void) {
    if (!state.counts)
        return false;
    state.counts = false; /* what is called here may allocate */
    void *stack[DEPTH];
    int depth = backtrace(stack, DEPTH);
    bool found = by_core(stack, depth);
    state.counts = true;
    return found && fails();
}

#define CALLER __builtin_return_address(0)
#define INNER(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void *malloc(size_t size) {
    static __typeof__(&malloc) inner;
    if (inner == NULL)
        inner = INNER(malloc);
    return fails_for(CALLER) ? NULL : inner(size);
}

void *calloc(size_t count, size_t size) {
    static __typeof__(&calloc) inner;
    if (inner == NULL)
        inner = INNER(calloc);
    return fails_for(CALLER) ? NULL : inner(count, size);
}

void *realloc(void *memory, size_t size) {
    static __typeof__(&realloc) inner;
    if (inner == NULL)
        inner = INNER(realloc);
    return fails_for(CALLER) ? NULL : inner(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    static __typeof__(&aligned_alloc) inner;
    if (inner == NULL)
        inner = INNER(aligned_alloc);
    return fails_for(CALLER) ? NULL : inner(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
    static __typeof__(&posix_memalign) inner;
    if (inner == NULL)
        inner = INNER(posix_memalign);
    return fails_for(CALLER) ? ENOMEM : inner(memory, alignment, size);
}

void *mmap(void *address, size_t size, int access, int flags, int file, off_t offset) {
    static __typeof__(&mmap) inner;
    if (inner == NULL)
        inner = INNER(mmap);
    return fails_for(CALLER) ? MAP_FAILED : inner(address, size, access, flags, file, offset);
}

static void *python_malloc(void *context, size_t size) {
    PyMemAllocatorEx *inner = context;
    return fails_in_python() ? NULL : inner->malloc(inner->ctx, size);
}

static void *python_calloc(void *context, size_t count, size_t size) {
    PyMemAllocatorEx *inner = context;
    return fails_in_python() ? NULL : inner->calloc(inner->ctx, count, size);
}

static void *python_realloc(void *context, void *memory, size_t size) {
    PyMemAllocatorEx *inner = context;
    return fails_in_python() ? NULL : inner->realloc(inner->ctx, memory, size);
}

static void python_free(void *context, void *memory) {
    PyMemAllocatorEx *inner = context;
    inner->free(inner->ctx, memory);
}

/* ---- where bytecode begins ---- */

static void add_entering(void *function) {
    for (int i = 0; i < ENTERING; i++) {
        if (known.entering[i] == NULL)
            known.entering[i] = function;
        if (known.entering[i] == function)
            return;
    }
    Py_FatalError("more functions than expected make frames");
}

/* Stands between frames and their evaluation where that is a part without a name, as some compilers
 * cut it off. */
static PyObject *evaluate(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing) {
    static void *last;
    void *caller = __builtin_return_address(0);
    if (caller != last)
        add_entering(_Unwind_FindEnclosingFunction(caller));
    last = caller;
    PyObject *volatile result = _PyEval_EvalFrameDefault(thread, frame, throwing);
    return result; /* no tail call: this frame is looked for */
}

/* Called by a Python function: keeps the functions that evaluate it and made its frame.
 *
 * Returns 0 if they were not found: then another Python function has to call again. */
int find(void) {
    void *stack[DEPTH];
    int depth = backtrace(stack, DEPTH); /* which loads a library the first time */
    if (known.evaluation == NULL)
        known.evaluation = (void *)_PyEval_EvalFrameDefault;
    bool found = false;
    for (int i = 0; i + 1 < depth && !found; i++)
        if (_Unwind_FindEnclosingFunction(stack[i]) == known.evaluation) {
            add_entering(_Unwind_FindEnclosingFunction(stack[i + 1]));
            found = true;
        }
    if (!found) {
        known.evaluation = (void *)evaluate;
        _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate);
    }
    return found;
}

/* Replace Python's allocators, and take these addresses for the core's code; `numpy` is one of
 * NumPy's functions. */
void watch(uintptr_t low, uintptr_t high, const void *numpy) {
    PyMemAllocatorDomain domains[] = {PYMEM_DOMAIN_RAW, PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    known.low = low;
    known.high = high;
    known.apis[0] = library((void *)PyObject_CallNoArgs);
    known.apis[1] = library(numpy);
    for (int i = 0; i < 3; i++) {
        PyMem_GetAllocator(domains[i], &known.inner[i]);
        PyMemAllocatorEx ours = {&known.inner[i], python_malloc, python_calloc, python_realloc,
                                 python_free};
        PyMem_SetAllocator(domains[i], &ours);
    }
}

/* Call a function of no arguments; the allocation of the core after `before` others fails.
 *
 * Returns (how many failed, the result or None, the exception or None). */
PyObject *attempt(PyObject *function, long before, int stays) {
    state.before = before;
    state.failed = 0;
    state.stays = stays;
    state.counts = true;
    PyObject *result = PyObject_CallNoArgs(function);
    state.counts = false;
    if (result != NULL)
        return Py_BuildValue("(lNz)", state.failed, result, NULL);
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return Py_BuildValue("(lzN)", state.failed, NULL, error);
}
