/* A collective of MPI that was posted, with the memory that it reads and writes. */
#include "python/python.h" /* first, as in quick.c */

#include "mpi/mpi.h"
#include "tensor/tensor.h"

struct dlb_collective {
    PyObject_HEAD
    dlb_peers *over;
    const char *name; /* of MPI's function */
    dlb_mpi_handle request;
    bool is_under_way, is_busy;
    dlb_buffer *buffer; /* that it reads, or writes */
    PyObject *result;   /* a Tensor that it writes, or None */
};

static dlb_collective *new_collective(dlb_peers *over, const char *name,
                                      dlb_buffer *buffer, PyObject *result) {
    dlb_collective *self =
        (dlb_collective *)dlb_CollectiveType.tp_alloc(&dlb_CollectiveType, 0);
    if (self == NULL)
        return NULL;
    self->over = (dlb_peers *)Py_NewRef(over);
    self->name = name;
    self->buffer = dlb_buffer_retain(buffer);
    self->result = Py_NewRef(result);
    return self;
}

/* What was posted with this code of MPI. */
static dlb_collective *posted(dlb_collective *self, int code) {
    self->is_under_way = code == 0;
    if (code == 0)
        return self;
    dlb_mpi_failed(self->name, code, -1);
    Py_DECREF(self);
    return NULL;
}

static char *data_of(PyObject *tensor) {
    const DLTensor *dl = &((dlb_tensor *)tensor)->dl;
    return (char *)dl->data + dl->byte_offset;
}

dlb_collective *dlb_collective_copy(dlb_peers *over, const char *name,
                                    dlb_mpi_copies function, dlb_buffer *buffer,
                                    const char *from, PyObject *result, size_t part) {
    dlb_collective *self = new_collective(over, name, buffer, result);
    return self == NULL ? NULL
                        : posted(self, function(from, (int)part, over->byte,
                                                data_of(result), (int)part, over->byte,
                                                over->collective, &self->request));
}

dlb_collective *dlb_collective_bcast(dlb_peers *over, dlb_buffer *buffer, char *data,
                                     PyObject *result, size_t nbytes, int root) {
    dlb_collective *self = new_collective(over, "MPI_Ibcast", buffer, result);
    return self == NULL
               ? NULL
               : posted(self, over->mpi.ibcast(data, (int)nbytes, over->byte, root,
                                               over->collective, &self->request));
}

int dlb_collective_advance(dlb_collective *self) {
    dlb_mpi_status status;
    dlb_mpi_handle before = self->request;
    int done = 0, code;
    if (!self->is_under_way)
        return 1;
    if (self->is_busy) /* another thread is in there */
        return 0;
    self->is_busy = true;
    Py_BEGIN_ALLOW_THREADS; /* it may copy for long */
    code = self->over->mpi.test(&self->request, &done, status);
    Py_END_ALLOW_THREADS;
    self->is_busy = false;
    if (code != 0) {
        self->is_under_way = self->request == before; /* as in ballot.c */
        return dlb_mpi_failed("MPI_Test", code, -1);
    }
    self->is_under_way = !done;
    return done != 0;
}

static PyObject *advance(PyObject *object, PyObject *Py_UNUSED(none)) {
    int done;
    DLB_BEGIN_EXCLUSIVE(object);
    done = dlb_collective_advance((dlb_collective *)object);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *get_result(PyObject *object, void *Py_UNUSED(closure)) {
    return Py_NewRef(((dlb_collective *)object)->result);
}

/* Memory of a request that is not complete stays: MPI may still use it. */
static void dealloc(PyObject *object) {
    dlb_collective *self = (dlb_collective *)object;
    if (!self->is_under_way) {
        dlb_buffer_drop(self->buffer);
        Py_DECREF(self->result);
    }
    Py_DECREF(self->over);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"advance", advance, METH_NOARGS,
     "advance($self, /)\n--\n\nReturn whether MPI is done with it."},
    {0},
};

static PyGetSetDef fields[] = {
    {"result", get_result, NULL, "The Tensor that it writes, or None.", NULL},
    {0},
};

PyTypeObject dlb_CollectiveType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Collective",
    .tp_doc = "A collective of MPI under way.",
    .tp_basicsize = sizeof(dlb_collective),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_methods = methods,
    .tp_getset = fields,
    .tp_dealloc = dealloc,
};
