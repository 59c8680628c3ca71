/* Several buffers as one bytes object, at the speed of memcpy.
 *
 * Fresh memory of hundreds of megabytes is mapped page by page, which takes longer than
 * to copy into it; in huge pages, where the system has them for the asking, it does
 * not.
 */
#define _DEFAULT_SOURCE
#include "engine/engine.h"

#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((uintptr_t)1 << 21)

static void ask_for_huge_pages(char *memory, size_t nbytes) {
#ifdef MADV_HUGEPAGE
    uintptr_t start = ((uintptr_t)memory + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    uintptr_t end = ((uintptr_t)memory + nbytes) & ~(HUGE_PAGE - 1);
    if (nbytes >= 4 * HUGE_PAGE && end > start)
        (void)madvise((void *)start, end - start, MADV_HUGEPAGE); /* only advice */
#else
    (void)memory, (void)nbytes;
#endif
}

/* Open every buffer; return their bytes in all, or -1 with what was opened in *opened.
 */
static Py_ssize_t open_all(PyObject *sequence, Py_buffer *parts, Py_ssize_t *opened) {
    Py_ssize_t count = PyTuple_GET_SIZE(sequence), total = 0;
    for (*opened = 0; *opened < count; ++*opened) {
        Py_buffer *part = &parts[*opened];
        PyObject *object = PyTuple_GET_ITEM(sequence, *opened);
        if (PyObject_GetBuffer(object, part, PyBUF_SIMPLE) < 0)
            return -1;
        if (part->len > PY_SSIZE_T_MAX - total) {
            PyBuffer_Release(part);
            PyErr_SetString(PyExc_OverflowError, "join: more than 2**63 - 1 bytes");
            return -1;
        }
        total += part->len;
    }
    return total;
}

static PyObject *copy_all(const Py_buffer *parts, Py_ssize_t count, Py_ssize_t total) {
    PyObject *joined = PyBytes_FromStringAndSize(NULL, total);
    if (joined == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(joined);
    ask_for_huge_pages(to, (size_t)total);
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parts[i].len > 0)
            memcpy(to, parts[i].buf, (size_t)parts[i].len);
        to += parts[i].len;
    }
    Py_END_ALLOW_THREADS;
    return joined;
}

PyObject *dlb_join(PyObject *Py_UNUSED(module), PyObject *buffers) {
    PyObject *joined = NULL;
    Py_ssize_t opened = 0;
    PyObject *sequence = PySequence_Tuple(buffers);
    if (sequence == NULL)
        return NULL;
    size_t count = (size_t)PyTuple_GET_SIZE(sequence);
    Py_buffer *parts = PyMem_Calloc(count ? count : 1, sizeof *parts);
    if (parts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    Py_ssize_t total = open_all(sequence, parts, &opened);
    if (total >= 0)
        joined = copy_all(parts, opened, total);
    for (Py_ssize_t i = 0; i < opened; i++)
        PyBuffer_Release(&parts[i]);
    PyMem_Free(parts);
done:
    Py_DECREF(sequence);
    return joined;
}
