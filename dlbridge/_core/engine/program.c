/* native.Program: running a plan without a Python frame of its own. */
#include "engine/program.h"

#include <string.h>
#include <structmember.h>

#define SMALL 192        /* slots and arguments that fit on the C stack */
#define SIGNALS_EVERY 64 /* steps; a power of two */
#define INTERRUPTED (-2)
#define DONE (-1)

/* ---- failure ---- */

static PyObject *take_exception(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

static void raise_from(PyObject *exception, PyObject *cause) {
    if (exception != cause) {
        PyObject *known = PyException_GetCause(exception);
        if (known == NULL)
            PyException_SetCause(exception, Py_NewRef(cause));
        Py_XDECREF(known);
    }
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
}

/* Raise what on_error makes of the exception of a step. What is no Exception
 * (KeyboardInterrupt, SystemExit) has nothing to do with the step. */
static void report(const dlb_program *program, int32_t step) {
    if (program->on_error == NULL || !PyErr_ExceptionMatches(PyExc_Exception))
        return;
    PyObject *cause = take_exception();
    PyObject *made = PyObject_CallFunction(program->on_error, "iO", (int)step, cause);
    if (made != NULL && !PyExceptionInstance_Check(made))
        PyErr_Format(PyExc_TypeError,
                     "Program: on_error must return the exception to raise, got %R",
                     made);
    else if (made != NULL)
        raise_from(made, cause);
    Py_XDECREF(made);
    Py_DECREF(cause);
}

/* ---- steps ---- */

/* Put the items of a result into their slots. */
static int unpack(const dlb_program_step *step, const int32_t *outputs,
                  PyObject *result, PyObject **slots) {
    if (!PyTuple_Check(result) && !PyList_Check(result)) {
        PyErr_Format(PyExc_TypeError,
                     "a step of %d outputs returned a %s, not a tuple or a list",
                     (int)step->output_count, Py_TYPE(result)->tp_name);
        return -1;
    }
    if (PySequence_Fast_GET_SIZE(result) != step->output_count) {
        PyErr_Format(PyExc_ValueError, "a step of %d outputs returned %zd",
                     (int)step->output_count, PySequence_Fast_GET_SIZE(result));
        return -1;
    }
    PyObject **items = PySequence_Fast_ITEMS(result);
    for (int32_t i = 0; i < step->output_count; i++)
        if (outputs[i] != DLB_DISCARDED)
            slots[outputs[i]] = Py_NewRef(items[i]);
    return 0;
}

/* `arguments` has room for one more in front, which methods use for their self. */
static int run_step(const dlb_program *program, const dlb_program_step *step,
                    PyObject **slots, PyObject **arguments) {
    const int32_t *inputs = program->indices + step->first;
    const int32_t *outputs = inputs + step->input_count;
    if (step->form == DLB_STEP_COPY) {
        slots[outputs[0]] = Py_NewRef(slots[inputs[0]]);
        return 0;
    }
    for (int32_t i = 0; i < step->input_count; i++)
        arguments[i] = slots[inputs[i]];
    size_t count = (size_t)step->input_count | PY_VECTORCALL_ARGUMENTS_OFFSET;
    PyObject *result = PyObject_Vectorcall(step->function, arguments, count, NULL);
    if (result == NULL)
        return -1;
    if (step->form == DLB_STEP_BARE && outputs[0] != DLB_DISCARDED) {
        slots[outputs[0]] = result;
        return 0;
    }
    int status =
        step->form == DLB_STEP_SEVERAL ? unpack(step, outputs, result, slots) : 0;
    Py_DECREF(result);
    return status;
}

/* DONE, INTERRUPTED, or the step that failed; owned slots stay as they are. */
static int32_t run_steps(const dlb_program *program, PyObject **slots,
                         PyObject **arguments) {
    for (int32_t i = 0; i < program->step_count; i++) {
        const dlb_program_step *step = &program->steps[i];
        if (run_step(program, step, slots, arguments) < 0)
            return i;
        const int32_t *released =
            program->indices + step->first + step->input_count + step->output_count;
        for (int32_t k = 0; k < step->release_count; k++)
            Py_CLEAR(slots[released[k]]);
        if ((i & (SIGNALS_EVERY - 1)) == SIGNALS_EVERY - 1 && PyErr_CheckSignals() < 0)
            return INTERRUPTED;
    }
    return DONE;
}

/* ---- results ---- */

static PyObject *take_output(const dlb_program *program, int32_t index,
                             PyObject **slots) {
    PyObject *value = slots[program->outputs[index]];
    if (program->moves[index])
        slots[program->outputs[index]] = NULL;
    else
        Py_INCREF(value);
    return value;
}

static PyObject *take_outputs(const dlb_program *program, PyObject **slots) {
    if (program->single)
        return take_output(program, 0, slots);
    PyObject *result = PyTuple_New(program->output_count);
    for (int32_t i = 0; result != NULL && i < program->output_count; i++)
        PyTuple_SET_ITEM(result, i, take_output(program, i, slots));
    return result;
}

static void release_all(const dlb_program *program, PyObject **slots) {
    for (int32_t i = 0; i < program->slot_count; i++)
        if (!program->lent[i])
            Py_CLEAR(slots[i]);
}

/* ---- a call ---- */

static PyObject *run_in(const dlb_program *program, PyObject *const *values,
                        PyObject **slots) {
    if (program->slot_count > 0)
        memcpy(slots, program->constants, (size_t)program->slot_count * sizeof *slots);
    for (int32_t i = 0; i < program->input_count; i++)
        slots[program->inputs[i]] = values[i];
    int32_t failed = run_steps(program, slots, slots + program->slot_count + 1);
    PyObject *result = failed == DONE ? take_outputs(program, slots) : NULL;
    if (result == NULL) {
        PyObject *type, *value, *trace; /* destructors must not see it */
        PyErr_Fetch(&type, &value, &trace);
        release_all(program, slots);
        PyErr_Restore(type, value, trace);
        if (failed >= 0)
            report(program, failed);
        return NULL;
    }
    for (int32_t i = 0; i < program->leftover_count; i++)
        Py_CLEAR(slots[program->leftovers[i]]);
    return result;
}

static PyObject *call(PyObject *object, PyObject *const *values, size_t flagged,
                      PyObject *names) {
    dlb_program *program = (dlb_program *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    if (names != NULL && PyTuple_GET_SIZE(names) > 0)
        return PyErr_Format(PyExc_TypeError, "Program: takes no keyword arguments");
    if (count != program->input_count)
        return PyErr_Format(PyExc_TypeError, "Program: expected %d values, got %zd",
                            (int)program->input_count, count);
    PyObject *small[SMALL], **slots = small;
    size_t room = (size_t)program->slot_count + 1 + (size_t)program->argument_room;
    if (room > SMALL && (slots = PyMem_New(PyObject *, room)) == NULL)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    Py_INCREF(object); /* a step may drop the last other reference */
    if (Py_EnterRecursiveCall(" while running a Program") == 0) {
        result = run_in(program, values, slots);
        Py_LeaveRecursiveCall();
    }
    Py_DECREF(object);
    if (slots != small)
        PyMem_Free(slots);
    return result;
}

static PyObject *run(PyObject *self, PyObject *const *values, Py_ssize_t count) {
    return ((dlb_program *)self)->vectorcall(self, values, (size_t)count, NULL);
}

/* What the garbage collector took apart. */
static PyObject *call_cleared(PyObject *Py_UNUSED(self),
                              PyObject *const *Py_UNUSED(values),
                              size_t Py_UNUSED(flagged), PyObject *Py_UNUSED(names)) {
    return PyErr_Format(PyExc_RuntimeError, "Program: it is being destroyed");
}

/* ---- the type ---- */

static PyObject *new_program(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    dlb_program *self = (dlb_program *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call;
    if (dlb_program_parse(self, args, kwargs) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
    dlb_program *self = (dlb_program *)object;
    for (int32_t i = 0; i < self->step_count; i++)
        Py_VISIT(self->steps[i].function);
    for (int32_t i = 0; self->constants != NULL && i < self->slot_count; i++)
        Py_VISIT(self->constants[i]);
    Py_VISIT(self->kept);
    Py_VISIT(self->on_error);
    return 0;
}

static int clear(PyObject *object) {
    dlb_program *self = (dlb_program *)object;
    int32_t count = self->step_count;
    self->step_count = 0;
    self->vectorcall = call_cleared;
    for (int32_t i = 0; i < count; i++)
        Py_CLEAR(self->steps[i].function);
    for (int32_t i = 0; self->constants != NULL && i < self->slot_count; i++)
        Py_CLEAR(self->constants[i]);
    Py_CLEAR(self->kept);
    Py_CLEAR(self->on_error);
    return 0;
}

static void dealloc(PyObject *object) {
    dlb_program *self = (dlb_program *)object;
    PyObject_GC_UnTrack(object);
    clear(object);
    PyMem_Free(self->steps);
    PyMem_Free(self->indices);
    PyMem_Free(self->moves);
    PyMem_Free(self->lent);
    PyMem_Free(self->constants);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL,
     "run(*values): the same as calling the program."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(dlb_program, vectorcall), READONLY,
     NULL},
    {"slot_count", T_INT, offsetof(dlb_program, slot_count), READONLY, NULL},
    {"step_count", T_INT, offsetof(dlb_program, step_count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject dlb_ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Program",
    .tp_doc = "A plan that runs in one call: functions over numbered slots.",
    .tp_basicsize = sizeof(dlb_program),
    .tp_vectorcall_offset = offsetof(dlb_program, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_program,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = dealloc,
    .tp_methods = methods,
    .tp_members = members,
};
