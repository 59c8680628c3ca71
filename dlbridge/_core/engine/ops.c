/* Functions for kernels of op types: a checksum, special functions, joined buffers. */
#define _DEFAULT_SOURCE /* madvise */
#include "engine/engine.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

/* ---- CRC-32C (Castagnoli), the checksum of TensorFlow's record files ---- */

#define POLYNOMIAL 0x82F63B78u /* reversed: the lowest bit comes first */

uint32_t dlb_crc32c(uint32_t crc, const void *bytes, size_t size) {
    uint32_t
        table[16]; /* half a byte at a time: no state to set up, and quick enough */
    for (uint32_t i = 0; i < 16; i++) {
        table[i] = i;
        for (int bit = 0; bit < 4; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? POLYNOMIAL : 0);
    }
    crc = ~crc;
    for (const uint8_t *byte = bytes, *end = byte + size; byte < end; byte++) {
        crc ^= *byte;
        crc = table[crc & 15] ^ crc >> 4;
        crc = table[crc & 15] ^ crc >> 4;
    }
    return ~crc;
}

/* ---- special functions that NumPy lacks, from the C library ---- */

#define LOOP(name, type, function)                                                     \
    static void name(const void *in, void *out, size_t count) {                        \
        const type *x = in;                                                            \
        type *y = out;                                                                 \
        for (size_t i = 0; i < count; i++)                                             \
            y[i] = function(x[i]);                                                     \
    }

LOOP(erf_double, double, erf)
LOOP(erf_float, float, erff)
LOOP(erfc_double, double, erfc)
LOOP(erfc_float, float, erfcf)
LOOP(log_gamma_double, double, lgamma)
LOOP(log_gamma_float, float, lgammaf)

static void (*const LOOPS[][2])(const void *, void *, size_t) = {
    [DLB_SPECIAL_ERF] = {erf_double, erf_float},
    [DLB_SPECIAL_ERFC] = {erfc_double, erfc_float},
    [DLB_SPECIAL_LOG_GAMMA] = {log_gamma_double, log_gamma_float},
};

void dlb_special(int function, bool is_float, const void *in, void *out, size_t count) {
    LOOPS[function][is_float](in, out, count);
}

/* ---- several buffers as one bytes object, at the speed of memcpy ----
 *
 * Fresh memory of hundreds of megabytes is mapped page by page, which takes longer than
 * to copy into it; in huge pages, where the system has them for the asking, it does
 * not. */

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
