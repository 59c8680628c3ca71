/* native.Loops: a call. Arrays become forms, forms a plan, the plan results. */
#include "engine/loops.h"

#include <string.h>
#include <structmember.h>

#define SMALL_INPUTS 32
#define SMALL_MEMORY 8192
#define GIL_FREE_WORK (1 << 16) /* elements, and 16 for each step */

/* ---- plans ---- */

/* The plan of the last call where it fits, with a reference. */
static dlb_loops_plan *find_plan(dlb_loops *loops, const unsigned char *forms) {
    dlb_loops_plan *plan = loops->plan;
    if (plan == NULL || memcmp(plan->forms, forms, (size_t)loops->input_count) != 0) {
        plan = dlb_loops_plan_new(loops, forms);
        if (plan == NULL)
            return NULL;
        dlb_loops_plan_drop(loops->plan);
        loops->plan = plan;
    }
    plan->references++;
    return plan;
}

/* ---- execution ---- */

static void run_placed(dlb_loops_call *at) {
    npy_intp steps = at->plan->once_count + at->plan->step_count;
    if (steps * (at->frame.count + 16) < GIL_FREE_WORK) {
        dlb_loops_run(at->plan, &at->frame);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    dlb_loops_run(at->plan, &at->frame);
    Py_END_ALLOW_THREADS
}

/* ---- results ---- */

/* New arrays for the outputs that blocks are written to. */
static int allocate_arrays(dlb_loops_call *at) {
    const dlb_loops *loops = at->loops;
    for (int32_t i = 0; i < loops->output_count; i++) {
        int32_t value = loops->outputs[i];
        if (at->plan->locations[value] != loops->input_count + i)
            continue;
        Py_INCREF(loops->descrs[value]);
        at->arrays[i] = PyArray_NewFromDescr(
            &PyArray_Type, loops->descrs[value], PyArray_NDIM(at->widest),
            PyArray_DIMS(at->widest), NULL, NULL, 0, NULL);
        if (at->arrays[i] == NULL)
            return -1;
    }
    return 0;
}

/* What is no new array: inputs, elements, and outputs that were named before. */
static int fill_results(dlb_loops_call *at) {
    const dlb_loops *loops = at->loops;
    for (int32_t i = 0; i < loops->output_count; i++) {
        int32_t value = loops->outputs[i], location = at->plan->locations[value];
        if (at->arrays[i] != NULL)
            continue;
        if (value < loops->input_count)
            at->arrays[i] = Py_NewRef(at->values[value]);
        else if (location < at->plan->first_cell)
            at->arrays[i] = Py_NewRef(at->arrays[location - loops->input_count]);
        else if ((at->arrays[i] = PyArray_Scalar(at->frame.pointers[location],
                                                 loops->descrs[value], NULL)) == NULL)
            return -1;
    }
    return 0;
}

static int fill_arrays(dlb_loops_call *at) {
    _Alignas(DLB_LOOP_ALIGNMENT) char small[SMALL_MEMORY];
    char *memory = small, *large = NULL;
    if (allocate_arrays(at) < 0)
        return -1;
    dlb_loops_layout layout = dlb_loops_lay_out(at);
    if (layout.total > SMALL_MEMORY) {
        if ((large = PyMem_RawMalloc(layout.total + DLB_LOOP_ALIGNMENT)) == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memory = (char *)dlb_loops_round_up((size_t)large);
    }
    dlb_loops_place(at, memory, &layout);
    run_placed(at);
    /* An inner loop may have raised: integers to negative powers. */
    int status = PyErr_Occurred() ? -1 : fill_results(at);
    PyMem_RawFree(large);
    return status;
}

static PyObject *make_results(dlb_loops_call *at) {
    PyObject *single = NULL, *several = NULL;
    at->arrays = &single;
    if (!at->loops->single) {
        several = PyTuple_New(at->loops->output_count);
        if (several == NULL)
            return NULL;
        at->arrays = PySequence_Fast_ITEMS(several);
    }
    if (fill_arrays(at) == 0)
        return at->loops->single ? single : several;
    Py_XDECREF(single);
    Py_XDECREF(several);
    return NULL;
}

/* ---- the call ---- */

static PyObject *decline(const dlb_loops *loops, PyObject *const *values) {
    if (loops->slow == NULL)
        return Py_NewRef(Py_NotImplemented);
    return PyObject_Vectorcall(loops->slow, values, (size_t)loops->input_count, NULL);
}

static PyObject *run_operands(dlb_loops *loops, PyObject *const *values,
                              dlb_loops_operand *operands, unsigned char *forms) {
    dlb_loops_call at = {
        .loops = loops, .values = values, .operands = operands, .forms = forms};
    if (!dlb_loops_take(&at))
        return decline(loops, values);
    dlb_loops_plan *plan = find_plan(loops, forms);
    if (plan == NULL)
        return NULL;
    at.plan = plan;
    PyObject *result = plan->declines ? decline(loops, values) : make_results(&at);
    dlb_loops_plan_drop(plan);
    return result;
}

static PyObject *call(PyObject *object, PyObject *const *values, size_t flagged,
                      PyObject *names) {
    dlb_loops *loops = (dlb_loops *)object;
    size_t count = (size_t)PyVectorcall_NARGS(flagged);
    if (names != NULL && PyTuple_GET_SIZE(names) > 0)
        return PyErr_Format(PyExc_TypeError, "Loops: takes no keyword arguments");
    if (count != (size_t)loops->input_count)
        return PyErr_Format(PyExc_TypeError, "Loops: expected %d arrays, got %zu",
                            (int)loops->input_count, count);
    dlb_loops_operand few[SMALL_INPUTS], *operands = few;
    unsigned char few_forms[SMALL_INPUTS], *forms = few_forms;
    if (count > SMALL_INPUTS) {
        operands = PyMem_Malloc(count * (sizeof *operands + 1) + sizeof *operands);
        if (operands == NULL)
            return PyErr_NoMemory();
        forms = (unsigned char *)(operands + count);
    }
    PyObject *result = run_operands(loops, values, operands, forms);
    if (operands != few)
        PyMem_Free(operands);
    return result;
}

/* ---- the type ---- */

static PyObject *new_loops(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    dlb_loops *self = (dlb_loops *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call;
    if (dlb_loops_parse(self, args, kwargs) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((dlb_loops *)object)->kept);
    Py_VISIT(((dlb_loops *)object)->slow);
    return 0;
}

/* `kept` stays: a cycle through it needs `slow`, too. */
static int clear(PyObject *object) {
    Py_CLEAR(((dlb_loops *)object)->slow);
    return 0;
}

static void dealloc(PyObject *object) {
    dlb_loops *self = (dlb_loops *)object;
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_XDECREF(self->kept);
    for (int32_t i = 0; i < self->input_count + self->instruction_count; i++)
        Py_XDECREF(self->descrs[i]);
    PyMem_Free(self->descrs);
    PyMem_Free(self->instructions);
    PyMem_Free(self->outputs);
    dlb_loops_plan_drop(self->plan);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *get_dtypes(PyObject *object, void *Py_UNUSED(closure)) {
    const dlb_loops *loops = (dlb_loops *)object;
    PyObject *result = PyTuple_New(loops->output_count);
    for (int32_t i = 0; result != NULL && i < loops->output_count; i++)
        PyTuple_SET_ITEM(result, i, Py_NewRef(loops->descrs[loops->outputs[i]]));
    return result;
}

static PyGetSetDef properties[] = {
    {"dtypes", get_dtypes, NULL, "The dtypes of the outputs.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(dlb_loops, vectorcall), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject dlb_LoopsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Loops",
    .tp_doc = "Element-wise ufuncs of NumPy, run in C block by block.",
    .tp_basicsize = sizeof(dlb_loops),
    .tp_vectorcall_offset = offsetof(dlb_loops, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_loops,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = dealloc,
    .tp_members = members,
    .tp_getset = properties,
};
