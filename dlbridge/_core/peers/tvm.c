/* tvm_ffi.Tensor: an object of tvm-ffi's stable C ABI, in which the DLTensor follows
 * the header. Holding the object takes half the time of a capsule of it. */
#include <Python.h> /* first: it asks for all that the C library has */

#include "peers/peers.h"

#include <dlfcn.h>
#include <link.h>

enum { TENSOR_TYPE = 70 };

/* ---- the library ---- */

static int is_tvm_ffi(struct dl_phdr_info *info, size_t Py_UNUSED(size), void *path) {
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (name == NULL || strncmp(name, "/libtvm_ffi.so", 14) != 0)
        return 0;
    *(const char **)path = info->dlpi_name;
    return 1;
}

bool dlb_tvm_ffi_library(void **library) {
    const char *path;
    *library = RTLD_DEFAULT;
    if (dlsym(RTLD_DEFAULT, "TVMFFIObjectDecRef") != NULL)
        return true;
    if (!dl_iterate_phdr(is_tvm_ffi, &path))
        return false;
    *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD); /* kept open for good */
    return *library != NULL;
}

/* ---- objects ---- */

/* Set before the first type has this row. */
static int (*retain)(void *object), (*drop)(void *object);

static int accept(dlb_known_type *known) {
    void *library, *found_retain = NULL, *found_drop = NULL;
    if (dlb_expect_payload(known->payload, 2, "tvm needs (handle, lend)") < 0)
        return -1;
    if (retain != NULL) /* by an earlier type */
        return 0;
    if (dlb_tvm_ffi_library(&library)) {
        found_retain = dlsym(library, "TVMFFIObjectIncRef");
        found_drop = dlsym(library, "TVMFFIObjectDecRef");
    }
    if (found_retain == NULL || found_drop == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "libtvm_ffi is not loaded");
        return -1;
    }
    *(void **)&drop = found_drop;
    *(void **)&retain = found_retain;
    return 0;
}

static void release(dlb_buffer *buffer) {
    drop(buffer->owner);
    dlb_buffer_free(buffer);
}

static int hold(char *object, dlb_view *view) {
    dlb_buffer *buffer = dlb_buffer_new(release, object, NULL, 0);
    if (buffer == NULL || retain(object) != 0) {
        if (buffer != NULL)
            dlb_buffer_free(buffer);
        PyErr_NoMemory();
        return -1;
    }
    view->dl = *(const DLTensor *)(object + DLB_TVM_HEADER_SIZE);
    view->flags = 0;
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->borrowed = (dlb_stream_id){0};
    const char *reason = dlb_take_held(buffer, view);
    if (reason == NULL)
        return 0;
    dlb_refuse_take(reason, "from_dlpack", &view->dl, view->version);
    return -1;
}

static int take_object(PyObject *x, PyObject *payload, dlb_view *view) {
    PyObject *number = PyObject_CallOneArg(PyTuple_GET_ITEM(payload, 0), x);
    char *object = number != NULL ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    if (object == NULL)
        return PyErr_Occurred() ? -1 : DLB_DECLINED;
    int32_t type;
    memcpy(&type, object + DLB_TVM_TYPE_AT, sizeof type);
    if (type != TENSOR_TYPE)
        return DLB_DECLINED;
    if (hold(object, view) < 0)
        return -1;
    if (view->buffer->access == NULL)
        return 0;
    dlb_buffer_drop(view->buffer); /* asked again, with a stream */
    return dlb_take_by_lending(x, PyTuple_GET_ITEM(payload, 1), view);
}

static int take(PyObject *x, const dlb_known_type *known, bool Py_UNUSED(detaches),
                dlb_view *view) {
    return dlb_take_with_payload(take_object, x, known, view);
}

/* The payload is (handle, lend): the method that returns the address of the object, and
 * the function of `dlb_take_by_lending`. */
const dlb_peer dlb_tvm_peer = {
    .name = "tvm",
    .is_framework = true,
    .accept = accept,
    .take = take,
};
