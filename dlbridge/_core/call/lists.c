/* Calls of kernels with lists of tensors: the lists are spread in a row, the kernel
 * that serves lists of their lengths is called directly, and what it returns is
 * grouped. The rules are those of kernels/lists.py, which serves all other calls. */
#include "call/call.h"

#include <stdlib.h>

enum { FEW = DLB_MAX_TENSORS + DLB_MAX_SCALARS };

/* The arguments of a call in a row, with a reference each: other threads may change the
 * lists meanwhile. */
typedef struct {
    PyObject **values;
    Py_ssize_t count, room;
    PyObject *few[FEW];
} row;

static int add(row *all, PyObject *const *values, Py_ssize_t count) {
    if (all->count + count > all->room) {
        bool is_first = all->values == all->few;
        Py_ssize_t room = 2 * (all->count + count);
        PyObject **grown =
            realloc(is_first ? NULL : all->values, (size_t)room * sizeof *grown);
        if (grown == NULL)
            return -1;
        for (Py_ssize_t i = 0; is_first && i < all->count; i++)
            grown[i] = all->few[i];
        all->values = grown;
        all->room = room;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        all->values[all->count++] = Py_NewRef(values[i]);
    return 0;
}

static void drop(row *all) {
    for (Py_ssize_t i = 0; i < all->count; i++)
        Py_DECREF(all->values[i]);
    if (all->values != all->few)
        free(all->values);
}

/* Lists by position, as `places` says for each argument, into the row and their lengths
 * into a tuple. False: there is something else, or no memory. */
static bool spread(PyObject *places, PyObject *const *args, Py_ssize_t count, row *all,
                   PyObject **lengths) {
    Py_ssize_t lists = 0, positional = PyTuple_GET_SIZE(places);
    PyObject *found[DLB_MAX_TENSORS];
    bool fits = count <= positional;
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        bool is_list = PyTuple_GET_ITEM(places, i) == Py_True;
        if (!is_list) {
            fits = add(all, &args[i], 1) == 0;
            continue;
        }
        fits = PyList_CheckExact(args[i]) || PyTuple_CheckExact(args[i]);
        Py_ssize_t length = fits ? PySequence_Fast_GET_SIZE(args[i]) : 0;
        if (fits && add(all, PySequence_Fast_ITEMS(args[i]), length) == 0 &&
            (found[lists] = PyLong_FromSsize_t(length)) != NULL)
            lists++;
        else
            fits = false;
    }
    *lengths = fits ? PyTuple_New(lists) : NULL;
    for (Py_ssize_t i = 0; i < lists; i++)
        if (*lengths != NULL)
            PyTuple_SET_ITEM(*lengths, i, found[i]);
        else
            Py_DECREF(found[i]);
    return *lengths != NULL;
}

static PyObject *group(PyObject *found, PyObject *counts) {
    Py_ssize_t size = PyTuple_GET_SIZE(counts), at = 0;
    PyObject *all = PyTuple_New(size);
    bool is_tuple = PyTuple_CheckExact(found);
    PyObject *const *items = is_tuple ? &PyTuple_GET_ITEM(found, 0) : &found;
    for (Py_ssize_t i = 0; all != NULL && i < size; i++) {
        Py_ssize_t count = PyLong_AsSsize_t(PyTuple_GET_ITEM(counts, i));
        PyObject *item = count < 0 ? Py_NewRef(items[at++]) : PyList_New(count);
        for (Py_ssize_t k = 0; item != NULL && k < count; k++)
            PyList_SET_ITEM(item, k, Py_NewRef(items[at++]));
        if (item == NULL)
            Py_CLEAR(all);
        else
            PyTuple_SET_ITEM(all, i, item);
    }
    if (all == NULL || size != 1)
        return all;
    PyObject *one = Py_NewRef(PyTuple_GET_ITEM(all, 0));
    Py_DECREF(all);
    return one;
}

/* `entry`: the kernel for the lengths, and the lengths of its results, -1 for a single
 * tensor. */
static PyObject *call(PyObject *entry, dlb_family family, row *all, Py_ssize_t count,
                      PyObject *names) {
    PyObject *counts = PyTuple_GET_ITEM(entry, 1);
    const dlb_kernel_object *kernel =
        (const dlb_kernel_object *)PyTuple_GET_ITEM(entry, 0);
    if (kernel->kernel->needs_gil)
        return NULL;
    PyObject *found = dlb_call_directly(kernel, &family, all->values, count, names);
    if (found == NULL || PyTuple_GET_SIZE(counts) == 0)
        return found;
    PyObject *grouped = group(found, counts);
    Py_DECREF(found);
    return grouped;
}

bool dlb_has_out(PyObject *names) {
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), "out") == 0)
            return true;
    return false;
}

PyObject *dlb_call_lists(const dlb_kernel_object *self, dlb_family family,
                         PyObject *const *args, Py_ssize_t count, PyObject *names) {
    row all;
    PyObject *lengths = NULL, *entry = NULL, *result = NULL;
    all.values = all.few;
    all.count = 0;
    all.room = FEW;
    /* Python compares the structure of `out` with that of the results. */
    if (family != DLB_FAMILY_OTHER && !dlb_has_out(names) &&
        spread(self->list_places, args, count, &all, &lengths))
        entry = PyDict_GetItemWithError(self->list_kernels, lengths);
    Py_ssize_t positional = all.count;
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (entry != NULL && add(&all, args + count, named) == 0)
        result = call(entry, family, &all, positional, names);
    Py_XDECREF(lengths);
    drop(&all);
    return result;
}
