/* What speaks the buffer protocol. */
#include "peers/peers.h"
#include "python/numpy.h"

/* Strides in bytes become strides in elements, or the layout cannot be named. */
int dlb_fill_from_buffer(const Py_buffer *in, dlb_view *view) {
    view->dl.ndim = in->ndim;
    view->dl.shape = (int64_t *)in->shape;
    view->dl.strides = view->scratch;
    view->dl.data = in->buf;
    view->flags = in->readonly ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
    for (int i = 0; i < in->ndim; i++) {
        if (in->suboffsets != NULL && in->suboffsets[i] >= 0) {
            dlb_refuse("strides", "buffer: dimension %d is reached through pointers",
                       i);
            return -1;
        }
        if (in->itemsize == 0 || in->strides[i] % in->itemsize) {
            dlb_refuse("strides",
                       "buffer: stride %zd is not a multiple of the item size %zd",
                       in->strides[i], in->itemsize);
            return -1;
        }
        view->scratch[i] = in->strides[i] / in->itemsize;
    }
    return 0;
}

/* The buffer of an object, held without a memoryview: that costs two objects more, and
 * the collector could not pass it. */
typedef struct {
    PyObject_VAR_HEAD Py_buffer view;
    PyObject *kept;  /* besides, without a collector's header; or NULL */
    int64_t shape[]; /* that of a memoryview which is gone */
} held_buffer;

static void held_dealloc(PyObject *self) {
    PyBuffer_Release(&((held_buffer *)self)->view);
    Py_XDECREF(((held_buffer *)self)->kept);
    PyObject_Free(self);
}

static void collectable_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    PyBuffer_Release(&((held_buffer *)self)->view);
    PyObject_GC_Del(self);
}

static int collectable_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((held_buffer *)self)->view.obj);
    return 0;
}

PyTypeObject dlb_HeldBufferType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.HeldBuffer",
    .tp_doc = "The buffer of an object, for as long as a Tensor is over it.",
    .tp_basicsize = sizeof(held_buffer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = held_dealloc,
};

PyTypeObject dlb_CollectableBufferType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.CollectableBuffer",
    .tp_doc = "The buffer of an object that may refer back to a Tensor over it.",
    .tp_basicsize = sizeof(held_buffer),
    .tp_itemsize = sizeof(int64_t),
    .tp_flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = collectable_dealloc,
    .tp_traverse = collectable_traverse,
};

/* Objects of classes written in Python may refer to anything. */
static bool may_refer_back(PyObject *x) {
    return PyObject_IS_GC(x) && PyType_HasFeature(Py_TYPE(x), Py_TPFLAGS_HEAPTYPE);
}

/* The buffer of x, not yet seen by the collector; NULL with an error. */
static held_buffer *hold_buffer(PyObject *x, bool is_collectable, Py_ssize_t ndim) {
    held_buffer *held =
        is_collectable
            ? PyObject_GC_NewVar(held_buffer, &dlb_CollectableBufferType, ndim)
            : PyObject_New(held_buffer, &dlb_HeldBufferType);
    if (held == NULL)
        return NULL;
    held->view.obj = NULL;
    held->kept = NULL;
    if (PyObject_GetBuffer(x, &held->view, PyBUF_FULL_RO) == 0)
        return held;
    held->view.obj = NULL;
    Py_DECREF(held);
    return NULL;
}

PyObject *dlb_hold_buffer(PyObject *x, PyObject *kept) {
    held_buffer *held = hold_buffer(x, false, 0);
    if (held != NULL)
        held->kept = Py_XNewRef(kept);
    return (PyObject *)held;
}

/* Whether the buffer is x's own, with all that a memoryview would fill in. */
static bool is_complete(const Py_buffer *in, PyObject *x) {
    return in->obj == x && in->ndim >= 0 && in->ndim <= PyBUF_MAX_NDIM &&
           (in->ndim == 0 || (in->shape != NULL && in->strides != NULL));
}

/* A new reference to what keeps the memory of a memoryview: the exporter's own buffer
 * if it can refer back and gives the same memory again, else the memoryview. */
static PyObject *keep_memory(PyObject *memory, dlb_view *view) {
    Py_buffer *in = PyMemoryView_GET_BUFFER(memory);
    PyObject *exporter = in->obj;
    if (exporter == NULL || !may_refer_back(exporter))
        return Py_NewRef(memory);
    held_buffer *held = hold_buffer(exporter, true, in->ndim);
    if (held == NULL)
        return dlb_clear_error() < 0 ? NULL : Py_NewRef(memory);
    const char *start = held->view.buf, *at = in->buf;
    if (held->view.obj != exporter || at < start || at > start + held->view.len) {
        Py_DECREF(held);
        return Py_NewRef(memory);
    }
    for (int i = 0; i < in->ndim; i++)
        held->shape[i] = in->shape[i];
    view->dl.shape = held->shape;
    PyObject_GC_Track(held);
    return (PyObject *)held;
}

/* The view of a buffer, without its keeper. */
static int read_buffer(const Py_buffer *in, dlb_view *view) {
    if (dlb_buffer_format(in->format, in->itemsize, &view->dl.dtype) == 0)
        return dlb_fill_from_buffer(in, view);
    dlb_refuse("dtype",
               "buffer: elements of %zd bytes in the format '%s' have no DLPack dtype",
               in->itemsize, in->format ? in->format : "B");
    return -1;
}

/* The object that keeps the memory of x, or NULL with an error. */
static PyObject *take_memoryview(PyObject *x, dlb_view *view) {
    PyObject *memory = PyMemoryView_FromObject(x), *keeper = NULL;
    if (memory != NULL && read_buffer(PyMemoryView_GET_BUFFER(memory), view) == 0)
        keeper = keep_memory(memory, view);
    Py_XDECREF(memory);
    return keeper;
}

static PyObject *take_own_buffer(PyObject *x, dlb_view *view) {
    bool is_collectable = may_refer_back(x);
    held_buffer *held = hold_buffer(x, is_collectable, 0);
    if (held == NULL)
        return NULL;
    PyObject *keeper = NULL;
    if (!is_complete(&held->view, x))
        keeper = take_memoryview(x, view);
    else if (read_buffer(&held->view, view) == 0)
        keeper = Py_NewRef(held);
    if (is_collectable)
        PyObject_GC_Track(held);
    Py_DECREF(held);
    return keeper;
}

int dlb_take_buffer(PyObject *x, dlb_view *view) {
    view->dl = (DLTensor){.device = {kDLCPU, 0}};
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->borrowed = (dlb_stream_id){0};
    view->buffer = NULL;
    /* A memoryview can be released while a Tensor is over its memory. */
    bool is_own = PyObject_CheckBuffer(x) && !PyMemoryView_Check(x);
    PyObject *keeper = is_own ? take_own_buffer(x, view) : take_memoryview(x, view);
    PyObject *exporter = PyMemoryView_Check(x) ? PyMemoryView_GET_BASE(x) : x;
    bool is_array = exporter != NULL && PyArray_Check(exporter);
    if (keeper != NULL)
        view->buffer = is_array ? dlb_buffer_of_array(keeper, exporter)
                                : dlb_buffer_of_object(keeper);
    Py_XDECREF(keeper);
    if (view->buffer == NULL)
        return -1;
    const char *reason = dlb_layout_check(&view->dl, view->flags);
    if (reason == NULL)
        return 0;
    dlb_refuse_layout(reason, "buffer", &view->dl);
    dlb_buffer_drop(view->buffer);
    return -1;
}

static int take_buffer(PyObject *x, const dlb_known_type *Py_UNUSED(known),
                       bool Py_UNUSED(detaches), dlb_view *view) {
    return dlb_take_buffer(x, view);
}

const dlb_peer dlb_buffer_peer = {
    .name = "buffer",
    .is_framework = true,
    .take = take_buffer,
};
