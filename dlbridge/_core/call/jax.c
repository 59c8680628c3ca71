/* Eager calls with JAX arrays: which jitted function serves a call is learnt once for
 * each form of call, and then costs a comparison.
 *
 * A form is where the arrays stand, what the keywords are called, and the values of all
 * other arguments; of numbers that change from call to call, their types. The Python
 * side decides what serves a form and says so (remember); calls of a form that is not
 * known go there. */
#include "call/call.h"
#include "python/numpy.h"
#include "xla/xla.h"

#include <structmember.h>

enum { FORMS = 8, MAX_ARGUMENTS = DLB_MAX_TENSORS + DLB_MAX_SCALARS };

typedef struct {
    PyObject *function; /* NULL: the form is free */
    PyObject *names;    /* the keywords, a tuple, or NULL */
    PyObject *values; /* one for each argument, then defaults that go into the block */
    uint64_t arrays;  /* bit i: argument i is an array */
    uint64_t moving;  /* bit i: argument i is any number of the type of its value */
    Py_ssize_t count, operand_count, number_count;
    int8_t
        operands[MAX_ARGUMENTS]; /* the arguments that the function takes, in order */
    int8_t numbers[DLB_MAX_SCALARS]; /* the values in the block, in order */
    bool is_shadowed; /* the function takes the numbers once more, behind the block */
} form;

typedef struct {
    PyObject_HEAD
    PyObject *slow; /* slow(args, kwargs) */
    PyTypeObject *array_type;
    PyMethodDef method; /* of the builtin; texts live in `name` and `doc` */
    PyObject *name, *doc;
    int next;          /* form to be replaced */
    form forms[FORMS]; /* under DLB_EXCLUSIVE of the caller */
} caller;

/* ---- forms ---- */

static bool is_same(PyObject *a, PyObject *b);

/* A list of numbers may come as either. */
static bool is_same_list(PyObject *tuple, PyObject *list) {
    if (PyTuple_GET_SIZE(tuple) != PySequence_Fast_GET_SIZE(list))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        if (i >= PySequence_Fast_GET_SIZE(list) ||
            !is_same(PyTuple_GET_ITEM(tuple, i), PySequence_Fast_GET_ITEM(list, i)))
            return false;
    return true;
}

/* Equal for good: the same type and the same bits. Anything in doubt is not equal, and
 * takes the slow path. */
static bool is_same(PyObject *a, PyObject *b) {
    if (a == b)
        return true;
    if (PyTuple_CheckExact(a) && (PyTuple_CheckExact(b) || PyList_CheckExact(b)))
        return is_same_list(a, b);
    if (Py_TYPE(a) != Py_TYPE(b))
        return false;
    if (PyFloat_CheckExact(a))
        return memcmp(&((PyFloatObject *)a)->ob_fval, &((PyFloatObject *)b)->ob_fval,
                      sizeof(double)) == 0;
    if (PyUnicode_CheckExact(a))
        return PyUnicode_Compare(a, b) == 0;
    if (PyLong_CheckExact(a)) {
        int first_overflow, second_overflow;
        long long first = PyLong_AsLongLongAndOverflow(a, &first_overflow);
        long long second = PyLong_AsLongLongAndOverflow(b, &second_overflow);
        return first == second && !first_overflow && !second_overflow;
    }
    return false;
}

static bool has_same_names(PyObject *a, PyObject *b) {
    if (a == b)
        return true;
    if (a == NULL || b == NULL || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++)
        if (!is_same(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)))
            return false;
    return true;
}

/* Whether the block can hold the number. JAX takes integers of 32 bits by itself
 * wherever it takes them, so that no larger one is among the shadows. */
static bool has_place(PyObject *number, bool is_shadowed) {
    int overflow = 0;
    if (PyFloat_CheckExact(number))
        return true;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow && (!is_shadowed || (value >= INT32_MIN && value <= INT32_MAX));
}

static bool is_argument(const caller *self, const form *form, Py_ssize_t i,
                        PyObject *argument) {
    if (form->arrays >> i & 1)
        return Py_TYPE(argument) == self->array_type;
    PyObject *value = PyTuple_GET_ITEM(form->values, i);
    if (form->moving >> i & 1)
        return Py_TYPE(argument) == Py_TYPE(value) &&
               has_place(argument, form->is_shadowed);
    return is_same(value, argument);
}

static bool is_form(const caller *self, const form *form, PyObject *const *args,
                    Py_ssize_t count, PyObject *names) {
    if (form->function == NULL || form->count != count ||
        !has_same_names(form->names, names))
        return false;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!is_argument(self, form, i, args[i]))
            return false;
    return true;
}

/* A form with these values is faster than one for all numbers. */
static const form *find_form(const caller *self, PyObject *const *args,
                             Py_ssize_t count, PyObject *names) {
    const form *found = NULL;
    for (int i = 0; i < FORMS; i++)
        if (is_form(self, &self->forms[i], args, count, names)) {
            found = &self->forms[i];
            if (!found->moving)
                break;
        }
    return found;
}

/* ---- the call ---- */

/* A call that a form serves. `remember` may replace the form meanwhile, so that what
 * the call needs of it is held. */
typedef struct {
    PyObject *function, *values;
    PyObject
        *operands[1 + MAX_ARGUMENTS + 1 + DLB_MAX_SCALARS]; /* the first is spare */
    Py_ssize_t count, number_count; /* of operands before the block; in the block */
    bool is_shadowed;
} served_call;

static bool prepare_call(caller *self, PyObject *const *args, Py_ssize_t count,
                         PyObject *names, served_call *call) {
    DLB_BEGIN_EXCLUSIVE(self);
    const form *form = find_form(self, args, count, names);
    call->function = form ? Py_NewRef(form->function) : NULL;
    if (form != NULL) {
        call->values = Py_NewRef(form->values);
        call->count = form->operand_count;
        call->number_count = form->number_count;
        call->is_shadowed = form->is_shadowed;
        for (Py_ssize_t i = 0; i < form->operand_count; i++)
            call->operands[1 + i] = args[form->operands[i]];
        PyObject **shadows = call->operands + 1 + form->operand_count + 1;
        for (Py_ssize_t i = 0; i < form->number_count; i++)
            shadows[i] = form->numbers[i] < form->count
                             ? args[form->numbers[i]]
                             : PyTuple_GET_ITEM(form->values, form->numbers[i]);
    }
    DLB_END_EXCLUSIVE();
    return call->function != NULL;
}

/* The block of make_block in frameworks/jax/program.py: two uint32 for each number. */
static PyObject *make_block(PyObject *const *numbers, Py_ssize_t count) {
    npy_intp length = 2 * count;
    PyObject *block = PyArray_SimpleNew(1, &length, NPY_UINT32);
    char *place = block ? PyArray_BYTES((PyArrayObject *)block) : NULL;
    for (Py_ssize_t i = 0; block && i < count; i++, place += sizeof(int64_t)) {
        PyObject *number = numbers[i];
        if (PyFloat_CheckExact(number)) {
            double value = PyFloat_AS_DOUBLE(number);
            memcpy(place, &value, sizeof value);
        } else {
            int64_t value = PyLong_AsLongLong(number); /* has_place has looked */
            memcpy(place, &value, sizeof value);
        }
    }
    return block;
}

static PyObject *make_call(served_call *call) {
    PyObject *block = NULL, *result = NULL;
    Py_ssize_t count = call->count, numbers = call->number_count;
    if (numbers) {
        block = make_block(call->operands + 1 + count + 1, numbers);
        call->operands[1 + count] = block;
        count += call->is_shadowed ? numbers + 1 : 1;
    }
    if (block != NULL || !numbers) {
        result =
            PyObject_Vectorcall(call->function, call->operands + 1,
                                (size_t)count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        if (result == NULL)
            dlb_xla_raise_failure();
    }
    Py_XDECREF(block);
    Py_DECREF(call->function);
    Py_DECREF(call->values);
    return result;
}

static PyObject *call_slowly(caller *self, PyObject *const *args, Py_ssize_t positional,
                             PyObject *names) {
    PyObject *tuple, *kwargs;
    if (dlb_pack_arguments(args, positional, names, &tuple, &kwargs) < 0)
        return NULL;
    PyObject *result = PyObject_CallFunction(self->slow, "NN", tuple, kwargs);
    if (result == NULL)
        dlb_xla_raise_failure();
    return result;
}

/* Whether JAX failed because an array is deleted: a plain RuntimeError, which does not
 * say which argument it was. */
static bool failed_by_deletion(const caller *self, PyObject *const *args,
                               Py_ssize_t count) {
    PyObject *type, *value, *traceback;
    bool found = false;
    if (PyErr_Occurred() != PyExc_RuntimeError || dlb_is_interrupt())
        return false;
    PyErr_Fetch(&type, &value, &traceback);
    for (Py_ssize_t i = 0; !found && i < count; i++) {
        if (Py_TYPE(args[i]) != self->array_type)
            continue;
        PyObject *answer = PyObject_CallMethod(args[i], "is_deleted", NULL);
        found = answer == Py_True;
        Py_XDECREF(answer);
        dlb_drop_error();
    }
    PyErr_Restore(type, value, traceback);
    return found;
}

PyObject *dlb_jax_call(PyObject *object, PyObject *const *args, Py_ssize_t positional,
                       PyObject *names) {
    caller *self = (caller *)object;
    Py_ssize_t count = positional + (names ? PyTuple_GET_SIZE(names) : 0);
    served_call call;
    if (prepare_call(self, args, count, names, &call)) {
        PyObject *result = make_call(&call);
        if (result != NULL || !failed_by_deletion(self, args, count))
            return result;
        PyErr_Clear(); /* Python names the argument */
    }
    return call_slowly(self, args, positional, names);
}

bool dlb_jax_serves(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    const caller *self = (const caller *)object;
    bool has_array = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        bool is_array = Py_TYPE(args[i]) == self->array_type;
        has_array |= is_array;
        if (!is_array && args[i] != Py_None && !PyFloat_CheckExact(args[i]) &&
            !PyLong_CheckExact(args[i]) && !PyUnicode_CheckExact(args[i]) &&
            !PyTuple_CheckExact(args[i]) && !PyList_CheckExact(args[i]) &&
            !PyBool_Check(args[i]))
            return false;
    }
    return has_array;
}

/* ---- set from Python ---- */

static void clear_form(form *form) {
    PyObject *function = form->function, *names = form->names, *values = form->values;
    form->function = form->names = form->values = NULL;
    Py_XDECREF(function);
    Py_XDECREF(names);
    Py_XDECREF(values);
}

static int mark_operands(form *form, PyObject *operands) {
    form->operand_count = PyTuple_GET_SIZE(operands);
    if (form->operand_count > MAX_ARGUMENTS)
        return -1;
    for (Py_ssize_t i = 0; i < form->operand_count; i++) {
        long at = PyLong_AsLong(PyTuple_GET_ITEM(operands, i));
        if (at < 0 || at >= form->count)
            return -1;
        form->operands[i] = (int8_t)at;
        form->arrays |= (uint64_t)1 << at;
    }
    return 0;
}

static bool is_number(PyObject *value) {
    return PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value);
}

static int mark_numbers(form *form, PyObject *values, PyObject *numbers) {
    form->number_count = PyTuple_GET_SIZE(numbers);
    if (form->number_count > DLB_MAX_SCALARS)
        return -1;
    for (Py_ssize_t i = 0; i < form->number_count; i++) {
        long at = PyLong_AsLong(PyTuple_GET_ITEM(numbers, i));
        if (at < 0 || at >= PyTuple_GET_SIZE(values) ||
            !is_number(PyTuple_GET_ITEM(values, at)) ||
            !has_place(PyTuple_GET_ITEM(values, at), form->is_shadowed))
            return -1;
        form->numbers[i] = (int8_t)at;
        if (at < form->count)
            form->moving |= (uint64_t)1 << at;
    }
    return 0;
}

static PyObject *remember(PyObject *object, PyObject *args) {
    caller *self = (caller *)object;
    PyObject *values, *names, *operands, *function, *numbers;
    Py_ssize_t defaults;
    int is_shadowed;
    if (!PyArg_ParseTuple(args, "O!O!O!OO!np:remember", &PyTuple_Type, &values,
                          &PyTuple_Type, &names, &PyTuple_Type, &operands, &function,
                          &PyTuple_Type, &numbers, &defaults, &is_shadowed))
        return NULL;
    if (PyTuple_GET_SIZE(values) > MAX_ARGUMENTS)
        Py_RETURN_NONE; /* of a large kernel: Python finds it each time */
    form new = {.count = PyTuple_GET_SIZE(values) - defaults,
                .is_shadowed = is_shadowed};
    if (defaults < 0 || new.count < 0 || mark_operands(&new, operands) < 0 ||
        mark_numbers(&new, values, numbers) < 0) {
        PyErr_SetString(PyExc_ValueError, "remember: no such operands");
        return NULL;
    }
    new.function = Py_NewRef(function);
    new.names = PyTuple_GET_SIZE(names) ? Py_NewRef(names) : NULL;
    new.values = Py_NewRef(values);
    form old;
    DLB_BEGIN_EXCLUSIVE(self);
    old = self->forms[self->next];
    self->forms[self->next] = new;
    self->next = (self->next + 1) % FORMS;
    DLB_END_EXCLUSIVE();
    clear_form(&old);
    Py_RETURN_NONE;
}

/* From now on the kernel's own calls come here where they fit. */
static PyObject *serve(PyObject *object, PyObject *kernel) {
    if (!dlb_is_kernel(kernel))
        return PyErr_Format(PyExc_TypeError, "serve: %R is no kernel", kernel);
    PyObject *there = NULL; /* calls may be in it: it stays */
    if (atomic_compare_exchange_strong(&((dlb_kernel_object *)kernel)->jax, &there,
                                       object))
        Py_INCREF(object);
    Py_RETURN_NONE;
}

static PyObject *function(PyObject *object, PyObject *Py_UNUSED(unused)) {
    return PyCFunction_New(&((caller *)object)->method, object);
}

/* ---- the type ---- */

static PyObject *new_caller(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *slow, *name, *doc, *array_type;
    static char *names[] = {"slow", "array_type", "name", "doc", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!UU:JaxCaller", names, &slow,
                                     &PyType_Type, &array_type, &name, &doc))
        return NULL;
    const char *name_text = PyUnicode_AsUTF8(name), *doc_text = PyUnicode_AsUTF8(doc);
    if (name_text == NULL || doc_text == NULL)
        return NULL;
    caller *self = (caller *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->slow = Py_NewRef(slow);
    self->array_type = (PyTypeObject *)Py_NewRef(array_type);
    self->name = Py_NewRef(name);
    self->doc = Py_NewRef(doc);
    self->method = (PyMethodDef){name_text, (PyCFunction)(void (*)(void))dlb_jax_call,
                                 METH_FASTCALL | METH_KEYWORDS, doc_text};
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
    caller *self = (caller *)object;
    Py_VISIT(self->slow);
    Py_VISIT(self->array_type);
    for (int i = 0; i < FORMS; i++) {
        Py_VISIT(self->forms[i].function);
        Py_VISIT(self->forms[i].values);
    }
    return 0;
}

static int clear(PyObject *object) {
    caller *self = (caller *)object;
    for (int i = 0; i < FORMS; i++)
        clear_form(&self->forms[i]);
    Py_CLEAR(self->slow);
    return 0;
}

static void dealloc(PyObject *object) {
    caller *self = (caller *)object;
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_XDECREF(self->array_type);
    Py_XDECREF(self->name);
    Py_XDECREF(self->doc);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"remember", remember, METH_VARARGS,
     "remember($self, values, names, operands, function, numbers, defaults, "
     "is_shadowed, /)\n--\n\nWhat serves calls of this form."},
    {"serve", serve, METH_O,
     "serve($self, kernel, /)\n--\n\nBe called by the kernel's own calls."},
    {"function", function, METH_NOARGS,
     "function($self, /)\n--\n\nThe builtin function that users call."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_JaxCallerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.JaxCaller",
    .tp_doc = "Eager calls with JAX arrays, by the form of the call.",
    .tp_basicsize = sizeof(caller),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = new_caller,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = dealloc,
    .tp_methods = methods,
};
