/* Ufuncs that NumPy lacks, made of its own: one pass instead of one for each of them.
 */
#include "engine/engine.h"
#include "python/numpy.h"

#include <numpy/ufuncobject.h>

#include <string.h>

typedef void (*inner_loop)(char **, const npy_intp *, const npy_intp *, void *);

typedef struct {
    inner_loop function;
    void *data;
} loop_t;

#define BLOCK 512 /* elements: of a few KiB, which stay in the cache */

/* ---- sigmoid: 1 / (1 + exp(-x)), to the bit what NumPy gives step by step ---- */

static loop_t
    exponentials[2]; /* of float, of double; given to the loops as their data */

#define SIGMOID(name, type)                                                            \
    static void name(char **args, const npy_intp *dims, const npy_intp *steps,         \
                     void *data) {                                                     \
        const loop_t *exponential = data;                                              \
        const char *in = args[0];                                                      \
        char *out = args[1];                                                           \
        type block[BLOCK];                                                             \
        char *const both[2] = {(char *)block, (char *)block};                          \
        const npy_intp compact[2] = {sizeof(type), sizeof(type)};                      \
        for (npy_intp left = dims[0], count; left > 0; left -= count) {                \
            count = left < BLOCK ? left : BLOCK;                                       \
            if (steps[0] == sizeof(type))                                              \
                memcpy(block, in, (size_t)count * sizeof(type));                       \
            else                                                                       \
                for (npy_intp i = 0; i < count; i++)                                   \
                    memcpy(&block[i], in + i * steps[0], sizeof(type));                \
            for (npy_intp i = 0; i < count; i++)                                       \
                block[i] = -block[i];                                                  \
            exponential->function((char **)both, &count, compact, exponential->data);  \
            for (npy_intp i = 0; i < count; i++)                                       \
                block[i] = 1 / (1 + block[i]);                                         \
            if (steps[1] == sizeof(type))                                              \
                memcpy(out, block, (size_t)count * sizeof(type));                      \
            else                                                                       \
                for (npy_intp i = 0; i < count; i++)                                   \
                    memcpy(out + i * steps[1], &block[i], sizeof(type));               \
            in += count * steps[0];                                                    \
            out += count * steps[1];                                                   \
        }                                                                              \
    }

SIGMOID(sigmoid_float, float)
SIGMOID(sigmoid_double, double)

static PyUFuncGenericFunction sigmoid_loops[] = {
    (PyUFuncGenericFunction)sigmoid_float, (PyUFuncGenericFunction)sigmoid_double};
static char sigmoid_types[] = {NPY_FLOAT, NPY_FLOAT, NPY_DOUBLE, NPY_DOUBLE};
static void *sigmoid_data[] = {&exponentials[0], &exponentials[1]};

/* ---- the module ---- */

/* The loop of a ufunc of one operand for a type that it keeps. */
static int find_loop(PyObject *object, int type, loop_t *found) {
    const PyUFuncObject *ufunc = (PyUFuncObject *)object;
    if (PyObject_TypeCheck(object, &PyUFunc_Type) && ufunc->nargs == 2)
        for (int row = 0; row < ufunc->ntypes; row++)
            if (ufunc->types[2 * row] == type && ufunc->types[2 * row + 1] == type) {
                found->function = (inner_loop)ufunc->functions[row];
                found->data = ufunc->data == NULL ? NULL : ufunc->data[row];
                return 0;
            }
    PyErr_Format(PyExc_ImportError, "%R has no loop for NumPy's type %d", object, type);
    return -1;
}

int dlb_ufuncs_start(PyObject *module) {
    import_umath1(-1);
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *exp = numpy == NULL ? NULL : PyObject_GetAttrString(numpy, "exp");
    Py_XDECREF(numpy);
    if (exp == NULL)
        return -1;
    int status = find_loop(exp, NPY_FLOAT, &exponentials[0]) < 0 ||
                         find_loop(exp, NPY_DOUBLE, &exponentials[1]) < 0
                     ? -1
                     : 0;
    Py_DECREF(exp); /* NumPy keeps it, as the loops are in its library */
    if (status < 0)
        return -1;
    PyObject *sigmoid = PyUFunc_FromFuncAndData(
        sigmoid_loops, sigmoid_data, sigmoid_types, 2, 1, 1, PyUFunc_None, "sigmoid",
        "1 / (1 + exp(-x)), element by element, for float32 and float64.", 0);
    if (sigmoid == NULL)
        return -1;
    status = PyModule_AddObjectRef(module, "sigmoid", sigmoid);
    Py_DECREF(sigmoid);
    return status;
}
