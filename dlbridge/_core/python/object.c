/* Memory that a Python object keeps, and the GIL. */
#include "python/python.h"

/* ---- memory that a Python object keeps ---- */

bool dlb_interpreter_is_gone(void) {
#if PY_VERSION_HEX >= 0x030d0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

static void release_object(dlb_buffer *buffer) {
    PyObject *object = buffer->owner;
    dlb_buffer_free(buffer);
    /* While finalising, taking the GIL would end a foreign thread: leak instead. The
     * thread that finalises still holds the GIL, and may drop references until the very
     * end. */
    if (!Py_IsInitialized())
        return;
    if (PyGILState_Check()) {
        Py_DECREF(object);
        return;
    }
    if (dlb_interpreter_is_gone())
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(object);
    PyGILState_Release(state);
}

dlb_buffer *dlb_buffer_of_object(PyObject *object) {
    dlb_buffer *buffer = dlb_buffer_new(release_object, Py_NewRef(object), NULL, 0);
    if (buffer == NULL) {
        Py_DECREF(object);
        PyErr_NoMemory();
    }
    return buffer;
}

PyObject *dlb_buffer_object(const dlb_buffer *buffer) {
    return buffer->release == release_object ? buffer->owner : NULL;
}

/* ---- the GIL ---- */

enum { HELD_BEFORE = -1 };

/* While finalising, taking the GIL would end a foreign thread. The thread that
 * finalises still holds it, and may drop references until the very end. */
bool dlb_enter_python(int *state) {
    *state = HELD_BEFORE;
    if (!Py_IsInitialized())
        return false;
    if (PyGILState_Check())
        return true;
    if (dlb_interpreter_is_gone())
        return false;
    *state = (int)PyGILState_Ensure();
    return true;
}

void dlb_leave_python(int state) {
    if (state != HELD_BEFORE)
        PyGILState_Release((PyGILState_STATE)state);
}
