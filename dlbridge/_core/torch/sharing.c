/* What keeps the memory of a storage of torch's whose internals are not proved: see
 * frameworks/torch/sharing.py, which moves memory here before its storage goes
 * elsewhere.
 *
 * A storage that was lent has one Memory, in the attributes of its Python object. Each
 * view keeps a Hold, of the storage and its Memory; a Memory refers to no storage. */
#include "torch/torch.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *before; /* what keeps the memory that the storage has left; or NULL */
    _Atomic int64_t views;
} memory_object;

typedef struct {
    PyObject_HEAD
    PyObject *storage;
    memory_object *memory;
} hold_object;

/* ---- Memory ---- */

static void memory_dealloc(PyObject *self) {
    Py_XDECREF(((memory_object *)self)->before);
    PyObject_Free(self);
}

static PyObject *memory_views(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(atomic_load(&((memory_object *)self)->views));
}

static PyMemberDef memory_members[] = {
    {"before", T_OBJECT, offsetof(memory_object, before), 0,
     "What keeps the memory that the storage has left, or None."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef memory_attributes[] = {
    {"views", memory_views, NULL, "How many views there are.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject dlb_TorchMemoryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.TorchMemory",
    .tp_doc = "The memory of a storage of torch that was lent, of a fixed size.",
    .tp_basicsize = sizeof(memory_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = memory_dealloc,
    .tp_members = memory_members,
    .tp_getset = memory_attributes,
};

/* ---- holds ---- */

static void hold_dealloc(PyObject *self) {
    hold_object *held = (hold_object *)self;
    atomic_fetch_sub(&held->memory->views, 1);
    Py_DECREF(held->memory);
    Py_DECREF(held->storage);
    PyObject_Free(self);
}

/* Not seen by the collector: a storage refers to no view of itself. */
PyTypeObject dlb_TorchHoldType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.TorchHold",
    .tp_doc = "What a view of a storage of torch keeps.",
    .tp_basicsize = sizeof(hold_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = hold_dealloc,
};

/* The Memory of a storage, a new reference; NULL, perhaps without an exception. */
static PyObject *find_memory(PyObject *storage) {
    static _Atomic(PyObject *) kept;
    PyObject *key = dlb_kept_name(&kept, "_dlbridge_memory");
    PyObject *attributes = key ? PyObject_GenericGetDict(storage, NULL) : NULL;
    PyObject *memory = NULL;
    if (attributes == NULL)
        return NULL;
    DLB_BEGIN_EXCLUSIVE(attributes);
    memory = Py_XNewRef(PyDict_GetItemWithError(attributes, key));
    DLB_END_EXCLUSIVE();
    Py_DECREF(attributes);
    if (memory != NULL && Py_TYPE(memory) != &dlb_TorchMemoryType)
        Py_CLEAR(memory);
    return memory;
}

PyObject *dlb_torch_hold_storage(PyObject *storage) {
    PyObject *memory = find_memory(storage);
    hold_object *held = memory ? PyObject_New(hold_object, &dlb_TorchHoldType) : NULL;
    if (held == NULL) {
        Py_XDECREF(memory);
        return NULL;
    }
    held->storage = Py_NewRef(storage);
    held->memory = (memory_object *)memory;
    atomic_fetch_add(&held->memory->views, 1);
    return (PyObject *)held;
}

/* torch_hold(storage): see sharing.py; None where it never met the storage. */
static PyObject *hold_storage(PyObject *Py_UNUSED(module), PyObject *storage) {
    PyObject *held = dlb_torch_hold_storage(storage);
    if (held == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return held;
}

PyMethodDef dlb_torch_sharing_functions[] = {
    {"torch_hold", hold_storage, METH_O,
     "torch_hold($module, storage, /)\n--\n\nWhat a view of a storage keeps."},
    {NULL, NULL, 0, NULL},
};
