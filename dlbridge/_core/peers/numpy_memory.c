/* The memory of NumPy's own arrays, from our blocks (NEP 49). */
#include "memory/block.h"
#include "peers/peers.h"
#include "python/numpy.h"

#include <string.h>

/* Before the data lies how many bytes the block has: NumPy's own idea of the size of an
 * array can change. */
enum { HEADER = DLB_BLOCK_ALIGNMENT };

static void *get_block(size_t nbytes, bool zero) {
    char *block = nbytes < SIZE_MAX / 4 ? dlb_block_get(nbytes + HEADER, zero) : NULL;
    if (block == NULL)
        return NULL;
    *(size_t *)block = nbytes + HEADER;
    return block + HEADER;
}

static void *numpy_malloc(void *Py_UNUSED(context), size_t nbytes) {
    return get_block(nbytes, false);
}

static void *numpy_calloc(void *Py_UNUSED(context), size_t count, size_t size) {
    size_t nbytes;
    return __builtin_mul_overflow(count, size, &nbytes) ? NULL
                                                        : get_block(nbytes, true);
}

static void numpy_free(void *Py_UNUSED(context), void *data, size_t Py_UNUSED(nbytes)) {
    char *block = data ? (char *)data - HEADER : NULL;
    if (block != NULL)
        dlb_block_put(block, *(size_t *)block);
}

static void *numpy_realloc(void *context, void *data, size_t nbytes) {
    size_t *size = data ? (size_t *)((char *)data - HEADER) : NULL;
    if (size != NULL && nbytes < SIZE_MAX / 4 &&
        dlb_block_capacity(*size) == dlb_block_capacity(nbytes + HEADER)) {
        *size = nbytes + HEADER;
        return data;
    }
    void *moved = get_block(nbytes, false);
    if (moved == NULL || size == NULL)
        return moved;
    size_t before = *size - HEADER;
    memcpy(moved, data, before < nbytes ? before : nbytes);
    numpy_free(context, data, before);
    return moved;
}

static PyDataMem_Handler numpy_handler = {
    "dlbridge_aligned",
    1,
    {NULL, numpy_malloc, numpy_calloc, numpy_realloc, numpy_free},
};

/* A handler that refuses large arrays, and has the memory of others from `inner`. The
 * arrays keep the capsule, and it keeps that of `inner`. */
typedef struct {
    PyDataMem_Handler handler;
    PyObject *before; /* the capsule of `inner` */
    const PyDataMemAllocator *inner;
    size_t most; /* bytes of one array */
} limited_handler;

static void *limited_malloc(void *context, size_t nbytes) {
    const limited_handler *self = context;
    return nbytes > self->most ? NULL : self->inner->malloc(self->inner->ctx, nbytes);
}

static void *limited_calloc(void *context, size_t count, size_t size) {
    const limited_handler *self = context;
    size_t nbytes;
    if (__builtin_mul_overflow(count, size, &nbytes) || nbytes > self->most)
        return NULL;
    return self->inner->calloc(self->inner->ctx, count, size);
}

static void limited_free(void *context, void *data, size_t nbytes) {
    const limited_handler *self = context;
    self->inner->free(self->inner->ctx, data, nbytes);
}

static void *limited_realloc(void *context, void *data, size_t nbytes) {
    const limited_handler *self = context;
    return nbytes > self->most ? NULL
                               : self->inner->realloc(self->inner->ctx, data, nbytes);
}

static void free_limited(PyObject *capsule) {
    limited_handler *self = PyCapsule_GetPointer(capsule, "mem_handler");
    Py_DECREF(self->before);
    PyMem_Free(self);
}

/* The capsule of a handler over the current one. */
static PyObject *new_limited(size_t most) {
    PyObject *before = PyDataMem_GetHandler();
    PyDataMem_Handler *inner =
        before ? PyCapsule_GetPointer(before, "mem_handler") : NULL;
    limited_handler *self = inner ? PyMem_Calloc(1, sizeof *self) : NULL;
    if (self == NULL) {
        Py_XDECREF(before);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    *self = (limited_handler){
        {"dlbridge_limited",
         1,
         {self, limited_malloc, limited_calloc, limited_realloc, limited_free}},
        before,
        &inner->allocator,
        most,
    };
    PyObject *capsule = PyCapsule_New(&self->handler, "mem_handler", free_limited);
    if (capsule == NULL) {
        Py_DECREF(before);
        PyMem_Free(self);
    }
    return capsule;
}

/* A handler that has large arrays from an arena, and the memory of others from our
 * blocks. The arrays keep the capsule, and it keeps the arena. */
typedef struct {
    PyDataMem_Handler handler;
    dlb_arena *arena;
    size_t least; /* bytes of an array in the arena */
} arena_handler;

static void *arena_malloc(void *context, size_t nbytes) {
    const arena_handler *self = context;
    void *found = nbytes < self->least ? NULL : dlb_arena_get(self->arena, nbytes);
    return found != NULL ? found : numpy_malloc(NULL, nbytes);
}

/* Pages of the arena may have been used before. */
static void *arena_calloc(void *context, size_t count, size_t size) {
    const arena_handler *self = context;
    size_t nbytes;
    if (__builtin_mul_overflow(count, size, &nbytes))
        return NULL;
    void *found = nbytes < self->least ? NULL : dlb_arena_get(self->arena, nbytes);
    return found != NULL ? memset(found, 0, nbytes) : numpy_calloc(NULL, count, size);
}

static void arena_free(void *context, void *data, size_t nbytes) {
    const arena_handler *self = context;
    if (!dlb_arena_put(self->arena, data))
        numpy_free(NULL, data, nbytes);
}

/* NumPy does not say how many bytes there were: what has grown is elsewhere. */
static void *arena_realloc(void *context, void *data, size_t nbytes) {
    const arena_handler *self = context;
    size_t before = dlb_arena_capacity(self->arena, data);
    if (before == 0)
        return numpy_realloc(NULL, data, nbytes);
    void *moved = arena_malloc(context, nbytes);
    if (moved == NULL)
        return NULL;
    memcpy(moved, data, before < nbytes ? before : nbytes);
    dlb_arena_put(self->arena, data);
    return moved;
}

static void free_arena_handler(PyObject *capsule) {
    arena_handler *self = PyCapsule_GetPointer(capsule, "mem_handler");
    dlb_arena_drop(self->arena);
    PyMem_Free(self);
}

PyObject *dlb_numpy_arena_handler(dlb_arena *arena, size_t least) {
    arena_handler *self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL)
        return PyErr_NoMemory();
    *self = (arena_handler){
        {"dlbridge_arena",
         1,
         {self, arena_malloc, arena_calloc, arena_realloc, arena_free}},
        dlb_arena_retain(arena),
        least,
    };
    PyObject *capsule =
        PyCapsule_New(&self->handler, "mem_handler", free_arena_handler);
    if (capsule == NULL) {
        dlb_arena_drop(arena);
        PyMem_Free(self);
    }
    return capsule;
}

bool dlb_numpy_in_arena(PyObject *array) {
    PyObject *capsule = PyArray_HANDLER((PyArrayObject *)array);
    if (capsule == NULL || !PyArray_CHKFLAGS((PyArrayObject *)array, NPY_ARRAY_OWNDATA))
        return false;
    const PyDataMem_Handler *handler = PyCapsule_GetPointer(capsule, "mem_handler");
    if (handler == NULL)
        PyErr_Clear();
    return handler != NULL && handler->allocator.free == arena_free;
}

/* Make `handler`, or for NULL ours, the current one of this context; the one before. */
static PyObject *set_handler(PyObject *handler) {
    PyObject *ours =
        handler ? NULL : PyCapsule_New(&numpy_handler, "mem_handler", NULL);
    if (handler == NULL && ours == NULL)
        return NULL;
    PyObject *before = PyDataMem_SetHandler(handler ? handler : ours);
    Py_XDECREF(ours);
    return before;
}

PyObject *dlb_numpy_bytes(size_t nbytes) {
    npy_intp length = (npy_intp)nbytes;
    PyObject *before = set_handler(NULL);
    if (before == NULL)
        return NULL;
    PyObject *made = PyArray_SimpleNew(1, &length, NPY_UINT8);
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *ours = PyDataMem_SetHandler(before);
    Py_DECREF(before);
    if (ours == NULL)
        Py_CLEAR(made);
    Py_XDECREF(ours);
    if (type != NULL)
        PyErr_Restore(type, error, traceback);
    return made;
}

static PyObject *set_aligned_numpy(PyObject *Py_UNUSED(module), PyObject *enabled) {
    int is_on = PyObject_IsTrue(enabled);
    PyObject *before = NULL;
    if (is_on >= 0)
        before = is_on ? set_handler(NULL) : PyDataMem_SetHandler(NULL);
    if (before == NULL)
        return NULL;
    const PyDataMem_Handler *known = PyCapsule_GetPointer(before, "mem_handler");
    Py_DECREF(before);
    return known ? PyBool_FromLong(known == &numpy_handler) : NULL;
}

typedef struct {
    PyObject_HEAD
    PyObject *before; /* a list of handlers, one for each block that is open */
    size_t most;      /* of limited_numpy */
} aligned_object;

static PyObject *aligned_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":aligned_numpy", names))
        return NULL;
    aligned_object *self = (aligned_object *)type->tp_alloc(type, 0);
    if (self != NULL && (self->before = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *limited_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"max_bytes", NULL};
    Py_ssize_t most;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:limited_numpy", names, &most))
        return NULL;
    if (most < 0)
        return PyErr_Format(PyExc_ValueError,
                            "limited_numpy: max_bytes must be at least 0, got %zd",
                            most);
    aligned_object *self = (aligned_object *)type->tp_alloc(type, 0);
    if (self != NULL && (self->before = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    if (self != NULL)
        self->most = (size_t)most;
    return (PyObject *)self;
}

static PyObject *enter(PyObject *object) {
    bool limited = Py_TYPE(object) == &dlb_LimitedNumpyType;
    PyObject *own = limited ? new_limited(((aligned_object *)object)->most) : NULL;
    if (limited && own == NULL)
        return NULL;
    PyObject *list = ((aligned_object *)object)->before;
    PyObject *before = PyDataMem_GetHandler();
    PyObject *replaced = NULL;
    if (before != NULL && PyList_Append(list, before) == 0) {
        replaced = set_handler(own);
        if (replaced == NULL) { /* without memory, but maybe changed all the same */
            PyObject *type, *error, *traceback;
            PyErr_Fetch(&type, &error, &traceback);
            Py_XDECREF(PyDataMem_SetHandler(before));
            Py_ssize_t last = PyList_GET_SIZE(list) - 1;
            PyList_SetSlice(list, last, last + 1, NULL);
            PyErr_Restore(type, error, traceback);
        }
    }
    Py_XDECREF(own);
    Py_XDECREF(before);
    Py_XDECREF(replaced);
    return replaced ? Py_NewRef(Py_None) : NULL;
}

static PyObject *aligned_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
    PyObject *result;
    DLB_BEGIN_EXCLUSIVE(object);
    result = enter(object);
    DLB_END_EXCLUSIVE();
    return result;
}

static PyObject *leave(PyObject *object) {
    PyObject *list = ((aligned_object *)object)->before;
    Py_ssize_t last = PyList_GET_SIZE(list) - 1;
    if (last < 0)
        return PyErr_Format(PyExc_RuntimeError,
                            "aligned_numpy: __exit__ without __enter__");
    PyObject *before = dlb_list_item(list, last);
    if (before == NULL)
        return NULL;
    PyObject *replaced =
        PyList_SetSlice(list, last, last + 1, NULL) == 0 ? set_handler(before) : NULL;
    Py_DECREF(before);
    Py_XDECREF(replaced);
    return replaced ? Py_NewRef(Py_None) : NULL;
}

static PyObject *aligned_exit(PyObject *object, PyObject *Py_UNUSED(args)) {
    PyObject *result;
    DLB_BEGIN_EXCLUSIVE(object);
    result = leave(object);
    DLB_END_EXCLUSIVE();
    return result;
}

static void aligned_dealloc(PyObject *object) {
    Py_XDECREF(((aligned_object *)object)->before);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef aligned_methods[] = {
    {"__enter__", aligned_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", aligned_exit, METH_VARARGS, "__exit__($self, /, *exception)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_AlignedNumpyType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.aligned_numpy",
    .tp_doc =
        "aligned_numpy()\n--\n\n"
        "Allocate the memory of NumPy's new arrays so that JAX and TensorFlow can "
        "share "
        "it.\n\n"
        "Inside the `with` block NumPy's memory handler (NEP 49) is dlbridge's: arrays "
        "begin at a\n"
        "multiple of 64 bytes, large ones lie in huge pages, and freed memory is kept "
        "for reuse\n"
        "(`dlbridge.trim`). Without it NumPy aligns to 16 bytes, and the way to JAX "
        "and "
        "TensorFlow\n"
        "copies. Arrays keep their memory after the block, and free it where it came "
        "from.\n\n"
        "NumPy keeps the handler in a context variable: the block is for this thread "
        "or "
        "task alone, and\n"
        "a thread begins with NumPy's own handler. Blocks nest.\n"
        "`dlbridge.set_aligned_numpy()` is the\n"
        "same without a block.\n\n"
        "Example:\n"
        "    >>> import numpy, dlbridge\n"
        "    >>> with dlbridge.aligned_numpy():\n"
        "    ...     x = numpy.ones(1000)\n"
        "    >>> x.ctypes.data % 64\n"
        "    0",
    .tp_basicsize = sizeof(aligned_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = aligned_new,
    .tp_dealloc = aligned_dealloc,
    .tp_methods = aligned_methods,
};

PyTypeObject dlb_LimitedNumpyType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.limited_numpy",
    .tp_doc = "limited_numpy(max_bytes)\n--\n\n"
              "Let NumPy fail with MemoryError where a new array would be larger.\n\n"
              "The memory comes from the handler before (NEP 49). The block is for "
              "this thread or task\n"
              "alone. Blocks nest.",
    .tp_basicsize = sizeof(aligned_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = limited_new,
    .tp_dealloc = aligned_dealloc,
    .tp_methods = aligned_methods,
};

PyMethodDef dlb_numpy_memory_functions[] = {
    {"set_aligned_numpy", set_aligned_numpy, METH_O,
     "set_aligned_numpy($module, enabled, /)\n--\n\nUse our memory for NumPy's arrays "
     "in this context, or NumPy's own; whether it was ours."},
    {NULL, NULL, 0, NULL},
};
