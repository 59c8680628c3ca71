/* Posted: a message under way, of a head and of large contents. */
#include "python/python.h" /* first, as in quick.c */

#include "mpi/calls.h"

posted *dlb_posted_new(dlb_peers *over, int peer, bool is_receive, size_t size) {
    posted *self = (posted *)dlb_PostedType.tp_alloc(&dlb_PostedType, 0);
    if (self == NULL)
        return NULL;
    self->over = (dlb_peers *)Py_NewRef(over);
    self->peer = peer;
    self->is_receive = is_receive;
    self->head.size = (int)size;
    self->data = PyMem_RawMalloc(size);
    if (self->data == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    return self;
}

static int post(posted *self, request *made, char *data, size_t size, int tag,
                dlb_mpi_handle on) {
    const dlb_peers *over = self->over;
    int code = self->is_receive ? over->mpi.irecv(data, (int)size, over->byte,
                                                  self->peer, tag, on, &made->handle)
                                : over->mpi.isend(data, (int)size, over->byte,
                                                  self->peer, tag, on, &made->handle);
    if (code != 0)
        return dlb_mpi_failed(self->is_receive ? "MPI_Irecv" : "MPI_Isend", code,
                              self->peer);
    made->is_under_way = true;
    return 0;
}

int dlb_post_head(posted *self, int tag) {
    return post(self, &self->head, self->data, (size_t)self->head.size, tag,
                self->over->messages);
}

int dlb_post_contents(posted *self, dlb_buffer *buffer, char *data, size_t nbytes,
                      uint32_t number) {
    self->buffer = dlb_buffer_retain(buffer);
    self->nbytes = nbytes;
    return post(self, &self->contents, data, nbytes, (int)number, self->over->payloads);
}

/* MPI_Test may copy large contents, so the GIL is released for them. */
static int test_request(const posted *self, request *tested, int *done,
                        dlb_mpi_status status) {
    const dlb_mpi *mpi = &self->over->mpi;
    int code;
    if (self->buffer == NULL)
        return mpi->test(&tested->handle, done, status);
    Py_BEGIN_ALLOW_THREADS;
    code = mpi->test(&tested->handle, done, status);
    Py_END_ALLOW_THREADS;
    return code;
}

static int advance_request(const posted *self, request *tested) {
    dlb_mpi_status status;
    dlb_mpi_handle before = tested->handle;
    int done = 1, code;
    if (!tested->is_under_way)
        return 1;
    if ((code = test_request(self, tested, &done, status)) != 0) {
        tested->is_under_way = tested->handle == before; /* as in ballot.c */
        return dlb_mpi_failed("MPI_Test", code, self->peer);
    }
    if (!done)
        return 0;
    tested->is_under_way = false;
    if (self->is_receive && (code = self->over->mpi.get_count(status, self->over->byte,
                                                              &tested->size)) != 0)
        return dlb_mpi_failed("MPI_Get_count", code, self->peer);
    return 1;
}

int dlb_posted_advance(posted *self) {
    if (self->is_busy) /* another thread is in there */
        return 0;
    self->is_busy = true;
    int done = advance_request(self, &self->head);
    if (done > 0)
        done = advance_request(self, &self->contents);
    self->is_busy = false;
    if (done <= 0 || !self->is_receive || self->buffer == NULL ||
        (size_t)self->contents.size == self->nbytes)
        return done;
    dlb_raise_error("MPIError",
                    "recv: rank %d announces %zu bytes and sends %d; run the same "
                    "dlbridge on all ranks",
                    self->peer, self->nbytes, self->contents.size);
    return -1;
}

static PyObject *posted_advance(PyObject *object, PyObject *Py_UNUSED(none)) {
    int done;
    DLB_BEGIN_EXCLUSIVE(object);
    done = dlb_posted_advance((posted *)object);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : PyBool_FromLong(done);
}

int dlb_posted_cancel(posted *self) {
    const dlb_mpi *mpi = &self->over->mpi;
    dlb_mpi_status status;
    int done = 0, is_cancelled = 0, code;
    if (!self->is_receive || !self->head.is_under_way || self->is_busy)
        return 0;
    if ((code = mpi->cancel(&self->head.handle)) != 0)
        return dlb_mpi_failed("MPI_Cancel", code, self->peer);
    while (!done) /* which needs no other rank */
        if ((code = mpi->test(&self->head.handle, &done, status)) != 0)
            return dlb_mpi_failed("MPI_Test", code, self->peer);
    self->head.is_under_way = false;
    if ((code = mpi->test_cancelled(status, &is_cancelled)) != 0)
        return dlb_mpi_failed("MPI_Test_cancelled", code, self->peer);
    if (!is_cancelled &&
        (code = mpi->get_count(status, self->over->byte, &self->head.size)) != 0)
        return dlb_mpi_failed("MPI_Get_count", code, self->peer);
    return is_cancelled;
}

static PyObject *posted_cancel(PyObject *object, PyObject *Py_UNUSED(none)) {
    int done;
    DLB_BEGIN_EXCLUSIVE(object);
    done = dlb_posted_cancel((posted *)object);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *posted_data(PyObject *object, void *Py_UNUSED(closure)) {
    posted *self = (posted *)object;
    PyObject *made;
    DLB_BEGIN_EXCLUSIVE(object);
    made = PyBytes_FromStringAndSize(self->data,
                                     self->head.is_under_way ? 0 : self->head.size);
    DLB_END_EXCLUSIVE();
    return made;
}

/* Both are set before Python sees the object. */
static PyObject *posted_nbytes(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(((posted *)object)->nbytes);
}

static PyObject *posted_result(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *result = ((posted *)object)->result;
    return Py_NewRef(result == NULL ? Py_None : result);
}

/* Memory of incomplete requests is not freed: MPI may still use it. */
static void dealloc_posted(PyObject *object) {
    posted *self = (posted *)object;
    if (!self->head.is_under_way)
        PyMem_RawFree(self->data);
    if (self->buffer != NULL && !self->contents.is_under_way)
        dlb_buffer_drop(self->buffer);
    Py_XDECREF(self->result);
    Py_XDECREF(self->over);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef posted_methods[] = {
    {"advance", posted_advance, METH_NOARGS,
     "advance($self, /)\n--\n\nReturn whether the message has gone, or come."},
    {"cancel", posted_cancel, METH_NOARGS,
     "cancel($self, /)\n--\n\nTake back a receive of which nothing has come; return "
     "whether that was done."},
    {0},
};

static PyGetSetDef posted_fields[] = {
    {"data", posted_data, NULL, "A copy of what has come, without large contents.",
     NULL},
    {"nbytes", posted_nbytes, NULL, "Bytes of large contents that are under way.",
     NULL},
    {"result", posted_result, NULL,
     "The Tensor that large contents are received into; None: another one.", NULL},
    {0},
};

PyTypeObject dlb_PostedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Posted",
    .tp_doc = "A message under way.",
    .tp_basicsize = sizeof(posted),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_methods = posted_methods,
    .tp_getset = posted_fields,
    .tp_dealloc = dealloc_posted,
};
