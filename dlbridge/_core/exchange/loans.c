/* Calls of a compiled function of another framework with tensors of torch: see
 * frameworks/torch/layers.py. The tensors of a module are lent once and not in each
 * call: a Loans has an array over the memory of each of them, which keeps that memory.
 * Only tensors of the CPU are read here; all others are Python's. */
#include "exchange/exchange.h"

#include <string.h>

/* ---- Forms ---- */

typedef struct {
    DLDataType dtype;
    int32_t ndim;
    const int64_t *shape;
    Py_ssize_t held; /* the place among the tensors of the module; -1: none of them */
} form;

/* What the operands of a function are; immutable. */
typedef struct {
    PyObject_VAR_HEAD int64_t *shapes;
    form of[];
} forms_object;

/* A dense tensor of the CPU, whose memory is its values, in a thread without modes:
 * `dl` has what torch has, until Python code runs. 1, 0, or -1 with an exception. */
static int look(PyObject *x, DLTensor *dl) {
    if (dlb_torch_is_exact(x)) {
        const char *impl = dlb_torch_impl(x);
        return impl != NULL && dlb_torch_is_cpu(impl) && dlb_torch_borrow(x, dl) == 0 &&
               dlb_torch_has_memory(x, dl);
    }
    int may = dlb_torch_is_queried(x) ? dlb_torch_query_lendable(x, true) : 0;
    if (may == 1) {
        int status = dlb_torch_query_memory(x, dl);
        may = status < 0 ? -1 : status == 0;
    }
    return may;
}

static bool is_of_form(const DLTensor *dl, const form *wanted) {
    return dlb_dtype_key(dl->dtype) == dlb_dtype_key(wanted->dtype) &&
           dl->ndim == wanted->ndim &&
           (dl->ndim == 0 || memcmp(dl->shape, wanted->shape,
                                    (size_t)dl->ndim * sizeof *dl->shape) == 0);
}

/* 1: the tensors, a tuple, are of these forms; `out`: where each of them is, or NULL.
 */
typedef struct {
    void *data;
    bool is_row_major;
} place;

static int fits(const forms_object *forms, PyObject *tensors, place *out) {
    if (Py_SIZE(forms) != PyTuple_GET_SIZE(tensors))
        return 0;
    for (Py_ssize_t i = 0; i < Py_SIZE(forms); i++) {
        DLTensor dl;
        int status = look(PyTuple_GET_ITEM(tensors, i), &dl);
        if (status != 1)
            return status;
        if (!is_of_form(&dl, &forms->of[i]))
            return 0;
        if (out != NULL)
            out[i] = (place){(char *)dl.data + dl.byte_offset, dlb_is_row_major(&dl)};
    }
    return 1;
}

static int append_shape(forms_object *forms, Py_ssize_t index, const DLTensor *dl,
                        Py_ssize_t *used) {
    size_t room = (size_t)(*used + dl->ndim + 1) * sizeof *forms->shapes;
    int64_t *shapes = PyMem_Realloc(forms->shapes, room);
    if (shapes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    forms->shapes = shapes;
    for (int32_t i = 0; i < dl->ndim; i++)
        shapes[*used + i] = dl->shape[i];
    *used += dl->ndim;
    forms->of[index].dtype = dl->dtype;
    forms->of[index].ndim = dl->ndim;
    return 0;
}

/* 1, 0: a tensor that is not read here, or -1 with an exception. */
static int fill(forms_object *forms, PyObject *tensors, PyObject *held) {
    Py_ssize_t used = 0, count = PyTuple_GET_SIZE(tensors);
    for (Py_ssize_t i = 0; i < count; i++) {
        DLTensor dl;
        int status = look(PyTuple_GET_ITEM(tensors, i), &dl);
        if (status != 1)
            return status;
        if (append_shape(forms, i, &dl, &used) < 0)
            return -1;
        forms->of[i].held = -1;
        if (i < PyTuple_GET_SIZE(held)) {
            forms->of[i].held = PyLong_AsSsize_t(PyTuple_GET_ITEM(held, i));
            if (forms->of[i].held == -1 && PyErr_Occurred())
                return -1;
        }
    }
    const int64_t *shape = forms->shapes;
    for (Py_ssize_t i = 0; i < count; i++) {
        forms->of[i].shape = shape;
        shape += forms->of[i].ndim;
    }
    return 1;
}

static void forms_dealloc(PyObject *self) {
    PyMem_Free(((forms_object *)self)->shapes);
    PyObject_Free(self);
}

/* Forms.of(tensors, held) */
static PyObject *forms_of(PyObject *Py_UNUSED(type), PyObject *args) {
    PyObject *tensors, *held;
    if (!PyArg_ParseTuple(args, "O!O!:of", &PyTuple_Type, &tensors, &PyTuple_Type,
                          &held))
        return NULL;
    forms_object *made =
        PyObject_NewVar(forms_object, &dlb_FormsType, PyTuple_GET_SIZE(tensors));
    if (made == NULL)
        return NULL;
    made->shapes = NULL;
    int status = fill(made, tensors, held);
    if (status == 1)
        return (PyObject *)made;
    Py_DECREF(made);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *forms_fit(PyObject *self, PyObject *tensors) {
    if (!PyTuple_Check(tensors))
        return PyErr_Format(PyExc_TypeError, "fit: expected a tuple of tensors");
    int status = fits((forms_object *)self, tensors, NULL);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

static PyMethodDef forms_methods[] = {
    {"of", forms_of, METH_VARARGS | METH_STATIC,
     "of(tensors, held, /)\n--\n\nThe forms of these tensors, or None."},
    {"fit", forms_fit, METH_O,
     "fit($self, tensors, /)\n--\n\nWhether tensors are of these forms."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_FormsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Forms",
    .tp_doc = "Dtypes and shapes of tensors of torch on the CPU.",
    .tp_basicsize = sizeof(forms_object),
    .tp_itemsize = sizeof(form),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = forms_dealloc,
    .tp_methods = forms_methods,
};

/* ---- Loans ---- */

/* `of` and `index`: its form. */
typedef struct {
    PyObject *array; /* NULL: there is none */
    const void *data;
    forms_object *of;
    Py_ssize_t index;
} loan;

typedef struct {
    PyObject_VAR_HEAD PyObject *framework;
    loan lent[];
} loans_object;

static bool is_same_form(const loan *lent, const forms_object *forms,
                         Py_ssize_t index) {
    const form *a = &lent->of->of[lent->index], *b = &forms->of[index];
    return a == b ||
           (dlb_dtype_key(a->dtype) == dlb_dtype_key(b->dtype) && a->ndim == b->ndim &&
            memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0);
}

/* A new reference; NULL without an exception: there is none. */
static PyObject *find_loan(loans_object *self, const forms_object *forms,
                           Py_ssize_t index, const void *data) {
    const loan *lent = &self->lent[forms->of[index].held];
    PyObject *found = NULL;
    DLB_BEGIN_EXCLUSIVE(self);
    if (lent->array != NULL && lent->data == data && is_same_form(lent, forms, index))
        found = Py_NewRef(lent->array);
    DLB_END_EXCLUSIVE();
    return found;
}

/* `new`: its references are taken. */
static void set_loan(loans_object *self, Py_ssize_t held, loan new) {
    loan old;
    DLB_BEGIN_EXCLUSIVE(self);
    old = self->lent[held];
    self->lent[held] = new;
    DLB_END_EXCLUSIVE();
    Py_XDECREF(old.array);
    Py_XDECREF(old.of);
}

/* convert(x, to, **names), names being those of `values`. */
static PyObject *convert(PyObject *x, PyObject *to, PyObject *names, PyObject *first,
                         PyObject *second) {
    PyObject *stack[] = {x, to, first, second};
    return dlb_convert(NULL, stack, 2, names);
}

/* What the calls of `convert` need; set while the package is imported. */
static struct {
    PyObject *torch, *numpy, *detach, *checked, *detaches, *detaches_and_narrows;
} words;

int dlb_loans_start(void) {
    PyObject *grad = PyUnicode_InternFromString("grad"),
             *narrow = PyUnicode_InternFromString("narrow");
    words.torch = PyUnicode_InternFromString("torch");
    words.numpy = PyUnicode_InternFromString("numpy");
    words.detach = PyUnicode_InternFromString("detach");
    words.checked = PyUnicode_InternFromString("checked");
    if (grad && narrow && words.torch && words.numpy && words.detach && words.checked) {
        words.detaches = PyTuple_Pack(1, grad);
        words.detaches_and_narrows = PyTuple_Pack(2, grad, narrow);
    }
    Py_XDECREF(grad);
    Py_XDECREF(narrow);
    return words.detaches && words.detaches_and_narrows ? 0 : -1;
}

static PyObject *lend(const loans_object *self, PyObject *x) {
    return convert(x, self->framework, words.detaches_and_narrows, words.detach,
                   words.checked);
}

/* Lend a tensor of the module for this call and others. What had to be copied is of
 * this call alone, and so are tensors in a Python kernel, which may be on loan
 * themselves. Writes to integers are rare, but they may be narrowed: not kept. */
static PyObject *lend_for_long(loans_object *self, forms_object *forms,
                               Py_ssize_t index, PyObject *x, const place *at) {
    const form *own = &forms->of[index];
    const void *address = NULL;
    PyObject *array = lend(self, x);
    if (array == NULL)
        return NULL;
    bool may_stay = at->is_row_major && dlb_kernel_depth == 0 &&
                    (own->dtype.code == kDLFloat || own->dtype.code == kDLBfloat);
    int status = may_stay ? dlb_look_address(array, &address) : DLB_DECLINED;
    if (status < 0) {
        Py_DECREF(array);
        return NULL;
    }
    loan made = {NULL, NULL, NULL, 0};
    if (status == 0 && address == at->data && address != NULL)
        made =
            (loan){Py_NewRef(array), address, (forms_object *)Py_NewRef(forms), index};
    set_loan(self, own->held, made);
    return array;
}

/* Whether NumPy shares the memory, as XLA does with an array of NumPy. */
static bool may_be_numpy(PyObject *numpy, Py_ssize_t index, const place *at) {
    return index > 0 && index < PySequence_Fast_GET_SIZE(numpy) &&
           PySequence_Fast_GET_ITEM(numpy, index) == Py_True && at->is_row_major &&
           (uintptr_t)at->data % 64 == 0;
}

static PyObject *lend_operand(loans_object *self, forms_object *forms, Py_ssize_t index,
                              PyObject *x, const place *at, PyObject *numpy) {
    bool is_held = forms->of[index].held >= 0;
    PyObject *found =
        is_held && at->is_row_major ? find_loan(self, forms, index, at->data) : NULL;
    if (found != NULL)
        return found;
    if (is_held)
        return lend_for_long(self, forms, index, x, at);
    if (may_be_numpy(numpy, index, at))
        return convert(x, words.numpy, words.detaches, words.detach, NULL);
    return lend(self, x);
}

/* A result, which is new, as torch's tensor over its memory. */
static PyObject *take_result(PyObject *x) {
    dlb_view view;
    int status = dlb_is_recorded() ? DLB_DECLINED : dlb_jax_take_result(x, &view);
    if (status < 0)
        return NULL;
    PyObject *torch = status == 0 ? dlb_cache_get(dlb.converters, words.torch) : NULL;
    if (torch == NULL && status == 0) {
        dlb_buffer_drop(view.buffer);
        if (PyErr_Occurred())
            return NULL;
    }
    PyObject *made = torch != NULL ? dlb_converter_give(torch, &view)
                                   : convert(x, words.torch, NULL, NULL, NULL);
    Py_XDECREF(torch);
    return made;
}

/* A list of torch's tensors; takes the results. */
static PyObject *take_results(PyObject *results) {
    PyObject *all =
        results ? PySequence_Fast(results, "results must be a sequence") : NULL;
    Py_XDECREF(results);
    Py_ssize_t count = all ? PySequence_Fast_GET_SIZE(all) : 0;
    PyObject *made = all ? PyList_New(count) : NULL;
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *tensor = take_result(PySequence_Fast_GET_ITEM(all, i));
        if (tensor == NULL)
            Py_CLEAR(made);
        else
            PyList_SET_ITEM(made, i, tensor);
    }
    Py_XDECREF(all);
    return made;
}

enum { FEW = 32 };

static PyObject *call(loans_object *self, PyObject *function, forms_object *forms,
                      PyObject *tensors, PyObject *numpy, place *places,
                      PyObject **arrays) {
    int status = fits(forms, tensors, places);
    if (status < 0)
        return NULL;
    if (status == 0)
        Py_RETURN_NONE;
    PyObject *results = NULL;
    Py_ssize_t count = Py_SIZE(forms), made = 0;
    while (made < count && (arrays[made] = lend_operand(self, forms, made,
                                                        PyTuple_GET_ITEM(tensors, made),
                                                        &places[made], numpy)) != NULL)
        made++;
    if (made == count)
        results =
            take_results(PyObject_Vectorcall(function, arrays, (size_t)count, NULL));
    while (made > 0) /* not before the results are there: until then they are read */
        Py_DECREF(arrays[--made]);
    return results;
}

static bool has_places_in(const forms_object *forms, const loans_object *loans) {
    for (Py_ssize_t i = 0; i < Py_SIZE(forms); i++)
        if (forms->of[i].held >= Py_SIZE(loans))
            return false;
    return true;
}

/* call(function, forms, tensors, numpy) */
static PyObject *loans_call(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    loans_object *self = (loans_object *)object;
    if (count != 4 || Py_TYPE(args[1]) != &dlb_FormsType || !PyTuple_Check(args[2]) ||
        !(PyList_Check(args[3]) || PyTuple_Check(args[3])) ||
        !has_places_in((forms_object *)args[1], self))
        return PyErr_Format(
            PyExc_TypeError,
            "call: expected (function, Forms, tuple, list or tuple), and the "
            "places of so many tensors as there are loans");
    place few_places[FEW], *places = few_places;
    PyObject *few_arrays[FEW], **arrays = few_arrays;
    size_t size = (size_t)Py_SIZE(args[1]);
    if (size > FEW) {
        places = PyMem_Malloc(size * sizeof *places);
        arrays = PyMem_Malloc(size * sizeof *arrays);
    }
    PyObject *made = places && arrays ? call(self, args[0], (forms_object *)args[1],
                                             args[2], args[3], places, arrays)
                                      : PyErr_NoMemory();
    if (size > FEW) {
        PyMem_Free(places);
        PyMem_Free(arrays);
    }
    return made;
}

/* Loans(framework, count) */
static PyObject *loans_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"framework", "count", NULL};
    PyObject *framework;
    Py_ssize_t count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Un:Loans", names, &framework,
                                     &count))
        return NULL;
    if (count < 0)
        return PyErr_Format(PyExc_ValueError, "Loans: count must be at least 0");
    loans_object *self = (loans_object *)type->tp_alloc(type, count);
    if (self != NULL)
        self->framework = Py_NewRef(framework);
    return (PyObject *)self;
}

static void loans_dealloc(PyObject *object) {
    loans_object *self = (loans_object *)object;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_XDECREF(self->lent[i].array);
        Py_XDECREF(self->lent[i].of);
    }
    Py_DECREF(self->framework);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef loans_methods[] = {
    {"call", (PyCFunction)(void (*)(void))loans_call, METH_FASTCALL,
     "call($self, function, forms, tensors, numpy, /)\n--\n\n"
     "The results of a function of the framework as tensors, or None."},
    {NULL, NULL, 0, NULL},
};

/* Not seen by the collector: arrays refer to nothing but memory. */
PyTypeObject dlb_LoansType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Loans",
    .tp_doc = "Arrays of a framework over the memory of a module's tensors.",
    .tp_basicsize = sizeof(loans_object),
    .tp_itemsize = sizeof(loan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = loans_new,
    .tp_dealloc = loans_dealloc,
    .tp_methods = loans_methods,
};
