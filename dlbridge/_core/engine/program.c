/* native.Program, Feed and Fetch.
 *
 * A Program is a plan that runs in one call: functions over numbered slots, without a
 * Python frame of its own. The functions at its ends are a Feed for each value that a
 * user feeds, and a Fetch for each that he fetches.
 *
 * A slot is owned (filled by a step, released by a step or at the end) or borrowed
 * (filled with a constant or an argument, which somebody else keeps alive during the
 * call). Which slot is full at which step is known when the program is made, so running
 * it checks nothing. */
#include "engine/engine.h"
#include "exchange/exchange.h"
#include "memory/buffer.h"
#include "layout/shape.h"
#include "python/numpy.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#define SMALL 192        /* slots and arguments that fit on the C stack */
#define INTERRUPTED (-2) /* or late: the error is set, and is not that of a step */
#define DONE (-1)
#define DISCARDED (-1) /* an output that nobody wants */

typedef enum {
    COPY,    /* no function: the first output is the first input */
    BARE,    /* the result is the only output */
    SEVERAL, /* the result is a tuple or list of the outputs */
    IGNORED, /* the result is not looked at */
} step_form;

/* The slots of a step stand one after another in program_t.indices. */
typedef struct {
    PyObject *function; /* NULL for COPY */
    step_form form;
    int32_t first; /* where its slots start: inputs, outputs, slots to release */
    int32_t input_count, output_count, release_count;
} step_t;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    bool single; /* the only output is returned bare */
    int32_t slot_count;
    int32_t step_count;
    int32_t input_count;
    int32_t output_count;
    int32_t leftover_count; /* owned slots that are full after the last step */
    int32_t argument_room;  /* the most inputs of a step */
    step_t *steps;
    int32_t *indices;
    int32_t *inputs, *outputs, *leftovers;
    bool *moves;           /* by output: its slot gives its reference away */
    unsigned char *states; /* by slot, when all steps have run: see slot_state */
    PyObject **constants;  /* by slot, NULL elsewhere: what a call starts from */
    PyObject *kept;        /* a second reference to each constant, see Fetch */
    PyObject *on_error;    /* or NULL */
} program_t;

/* ==== parsing: the proof that no step meets an empty slot ==== */

#define MAX_SLOTS (1 << 28)

typedef enum { EMPTY, FULL, BORROWED } slot_state;
typedef enum { READ, FILL, RELEASE, BORROW } slot_use;

typedef struct {
    program_t *program;
    int32_t *end; /* of the indices so far */
    int32_t step; /* or -1 */
} parser;

static int refuse(const parser *at, const char *where, PyObject *number,
                  const char *why) {
    char step[32] = "";
    if (at->step >= 0)
        snprintf(step, sizeof step, "step %d, ", (int)at->step);
    PyErr_Format(PyExc_ValueError, "Program: %s%s: slot %R %s", step, where, number,
                 why);
    return -1;
}

/* Borrowed slots are not released, so that a plan need not tell them apart. */
static int parse_slot(parser *at, const char *where, slot_use use, PyObject *number) {
    static const char *const texts[] = {"is empty", "is full",
                                        "holds a constant or an input"};
    static const unsigned char after[] = {
        [FILL] = FULL, [RELEASE] = EMPTY, [BORROW] = BORROWED};
    int overflow;
    if (!PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "Program: %s: slots are int, got %R", where,
                     number);
        return -1;
    }
    long slot = PyLong_AsLongAndOverflow(number, &overflow);
    if (use == FILL && slot == DISCARDED && overflow == 0) {
        *at->end++ = DISCARDED;
        return 0;
    }
    if (overflow != 0 || slot < 0 || slot >= at->program->slot_count)
        return refuse(at, where, number, "does not exist");
    unsigned char *state = &at->program->states[slot];
    if (use == RELEASE && *state == BORROWED)
        return 0;
    if ((*state == EMPTY) != (use == FILL || use == BORROW))
        return refuse(at, where, number, texts[*state]);
    if (use != READ)
        *state = after[use];
    *at->end++ = (int32_t)slot;
    return 0;
}

static int32_t parse_slots(parser *at, const char *where, slot_use use,
                           PyObject *numbers) {
    const int32_t *start = at->end;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++)
        if (parse_slot(at, where, use, PyTuple_GET_ITEM(numbers, i)) < 0)
            return -1;
    return (int32_t)(at->end - start);
}

static int parse_constants(parser *at, PyObject *constants) {
    Py_ssize_t position = 0;
    PyObject *number, *value;
    while (PyDict_Next(constants, &position, &number, &value)) {
        if (parse_slot(at, "constants", BORROW, number) < 0)
            return -1;
        at->program->constants[*--at->end] = Py_NewRef(value);
    }
    at->program->kept = PyDict_Copy(constants);
    return at->program->kept == NULL ? -1 : 0;
}

/* ---- steps ---- */

/* (function or None, inputs, output or outputs, releases) */
enum { FUNCTION, INPUTS, OUTPUTS, RELEASES, STEP_PARTS };

static bool is_step(PyObject *item) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != STEP_PARTS)
        return false;
    PyObject **parts = PySequence_Fast_ITEMS(item);
    return (parts[FUNCTION] == Py_None || PyCallable_Check(parts[FUNCTION])) &&
           PyTuple_Check(parts[INPUTS]) && PyTuple_Check(parts[RELEASES]) &&
           (PyTuple_Check(parts[OUTPUTS]) || PyLong_Check(parts[OUTPUTS]));
}

/* How many slots all steps name, or -1. */
static Py_ssize_t count_slots(PyObject *steps) {
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
        PyObject *item = PyTuple_GET_ITEM(steps, i);
        if (!is_step(item)) {
            PyErr_Format(PyExc_TypeError,
                         "Program: a step is (function or None, input slots, output "
                         "slot or slots, slots to release), got %R",
                         item);
            return -1;
        }
        for (int part = INPUTS; part < STEP_PARTS; part++) {
            PyObject *numbers = PyTuple_GET_ITEM(item, part);
            total += PyTuple_Check(numbers) ? PyTuple_GET_SIZE(numbers) : 1;
        }
    }
    return total;
}

static int32_t parse_outputs(parser *at, PyObject *outputs, step_t *step) {
    if (PyLong_Check(outputs)) {
        step->form = BARE;
        return parse_slot(at, "outputs", FILL, outputs) < 0 ? -1 : 1;
    }
    step->form = PyTuple_GET_SIZE(outputs) == 0 ? IGNORED : SEVERAL;
    return parse_slots(at, "outputs", FILL, outputs);
}

static int parse_step(parser *at, PyObject *item) {
    program_t *program = at->program;
    PyObject **parts = PySequence_Fast_ITEMS(item);
    step_t *step = &program->steps[at->step];
    *step = (step_t){.first = (int32_t)(at->end - program->indices)};
    if ((step->input_count = parse_slots(at, "inputs", READ, parts[INPUTS])) < 0 ||
        (step->output_count = parse_outputs(at, parts[OUTPUTS], step)) < 0 ||
        (step->release_count = parse_slots(at, "releases", RELEASE, parts[RELEASES])) <
            0)
        return -1;
    if (parts[FUNCTION] != Py_None)
        step->function = Py_NewRef(parts[FUNCTION]);
    else if (step->input_count == 1 && step->output_count == 1 &&
             program->indices[step->first + 1] != DISCARDED)
        step->form = COPY;
    else {
        PyErr_Format(PyExc_ValueError,
                     "Program: step %d has no function, so it copies one slot to one",
                     (int)at->step);
        return -1;
    }
    if (step->input_count > program->argument_room)
        program->argument_room = step->input_count;
    program->step_count++;
    return 0;
}

/* Each owned output gives its reference away where it is named last. Full slots that
 * are no output are left over. */
static void find_leftovers(parser *at) {
    program_t *program = at->program;
    for (int32_t i = program->output_count - 1; i >= 0; i--) {
        unsigned char *state = &program->states[program->outputs[i]];
        program->moves[i] = *state == FULL;
        if (*state == FULL)
            *state = EMPTY;
    }
    program->leftovers = at->end;
    for (int32_t slot = 0; slot < program->slot_count; slot++)
        if (program->states[slot] == FULL)
            *at->end++ = slot;
    program->leftover_count = (int32_t)(at->end - program->leftovers);
}

/* ---- all of it ---- */

static int allocate(program_t *program, size_t slots, PyObject *steps, PyObject *inputs,
                    PyObject *outputs) {
    Py_ssize_t named = count_slots(steps);
    if (named < 0)
        return -1;
    size_t results = (size_t)PyTuple_GET_SIZE(outputs);
    size_t total =
        (size_t)named + slots + results + 1 + (size_t)PyTuple_GET_SIZE(inputs);
    program->states = PyMem_Calloc(slots + 1, sizeof *program->states);
    program->moves = PyMem_Calloc(results + 1, sizeof *program->moves);
    program->constants = PyMem_Calloc(slots + 1, sizeof *program->constants);
    program->indices = PyMem_Calloc(total, sizeof *program->indices);
    program->steps =
        PyMem_Calloc((size_t)PyTuple_GET_SIZE(steps) + 1, sizeof *program->steps);
    if (program->states == NULL || program->moves == NULL ||
        program->constants == NULL || program->indices == NULL ||
        program->steps == NULL || total > INT32_MAX) {
        PyErr_NoMemory();
        return -1;
    }
    program->slot_count = (int32_t)slots;
    return 0;
}

/* After a failure the destructor frees the parts that were filled in. */
static int parse_arguments(program_t *program, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slots",   "constants", "steps",  "inputs",
                            "outputs", "on_error",  "single", NULL};
    PyObject *constants, *steps, *inputs, *outputs, *on_error = Py_None;
    Py_ssize_t slots;
    int single = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nO!O!O!O!|O$p:Program", names,
                                     &slots, &PyDict_Type, &constants, &PyTuple_Type,
                                     &steps, &PyTuple_Type, &inputs, &PyTuple_Type,
                                     &outputs, &on_error, &single))
        return -1;
    if (slots < 0 || slots > MAX_SLOTS)
        PyErr_Format(PyExc_ValueError, "Program: %zd slots are not possible", slots);
    else if (single && PyTuple_GET_SIZE(outputs) != 1)
        PyErr_SetString(PyExc_ValueError, "Program: single=True needs one output");
    if (PyErr_Occurred())
        return -1;
    if (allocate(program, (size_t)slots, steps, inputs, outputs) < 0)
        return -1;
    parser at = {.program = program, .end = program->indices, .step = -1};
    if (parse_constants(&at, constants) < 0)
        return -1;
    program->inputs = at.end;
    program->input_count = parse_slots(&at, "inputs", BORROW, inputs);
    if (program->input_count < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
        at.step = (int32_t)i;
        if (parse_step(&at, PyTuple_GET_ITEM(steps, i)) < 0)
            return -1;
    }
    at.step = -1;
    program->outputs = at.end;
    program->output_count = parse_slots(&at, "outputs", READ, outputs);
    if (program->output_count < 0)
        return -1;
    find_leftovers(&at);
    program->single = single;
    program->on_error = on_error == Py_None ? NULL : Py_NewRef(on_error);
    return 0;
}

/* ==== running ==== */

/* ---- failure ---- */

static void raise_from(PyObject *exception, PyObject *cause) {
    if (exception != cause) {
        PyObject *known = PyException_GetCause(exception);
        if (known == NULL)
            PyException_SetCause(exception, Py_NewRef(cause));
        Py_XDECREF(known);
    }
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
}

/* Raise the exception that on_error makes from that of a step. Interrupts have nothing
 * to do with the step and pass through. */
static void report(const program_t *program, int32_t step) {
    if (program->on_error == NULL || dlb_is_interrupt())
        return;
    PyObject *cause = dlb_take_exception();
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
static int unpack(const step_t *step, const int32_t *outputs, PyObject *result,
                  PyObject **slots) {
    if (!PyTuple_Check(result) && !PyList_Check(result)) {
        PyErr_Format(PyExc_TypeError,
                     "a step of %d outputs returned a %s, not a tuple or a list",
                     (int)step->output_count, Py_TYPE(result)->tp_name);
        return -1;
    }
    Py_ssize_t count;
    DLB_BEGIN_EXCLUSIVE(result); /* a list may be in others' hands */
    count = PySequence_Fast_GET_SIZE(result);
    PyObject **items = PySequence_Fast_ITEMS(result);
    for (int32_t i = 0; count == step->output_count && i < count; i++)
        if (outputs[i] != DISCARDED)
            slots[outputs[i]] = Py_NewRef(items[i]);
    DLB_END_EXCLUSIVE();
    if (count == step->output_count)
        return 0;
    PyErr_Format(PyExc_ValueError, "a step of %d outputs returned %zd",
                 (int)step->output_count, count);
    return -1;
}

/* `arguments` has room for one more in front, which methods use for their self. */
static int run_step(const program_t *program, const step_t *step, PyObject **slots,
                    PyObject **arguments) {
    const int32_t *inputs = program->indices + step->first;
    const int32_t *outputs = inputs + step->input_count;
    if (step->form == COPY) {
        slots[outputs[0]] = Py_NewRef(slots[inputs[0]]);
        return 0;
    }
    for (int32_t i = 0; i < step->input_count; i++)
        arguments[i] = slots[inputs[i]];
    size_t count = (size_t)step->input_count | PY_VECTORCALL_ARGUMENTS_OFFSET;
    PyObject *result = PyObject_Vectorcall(step->function, arguments, count, NULL);
    if (result == NULL)
        return -1;
    if (step->form == BARE && outputs[0] != DISCARDED) {
        slots[outputs[0]] = result;
        return 0;
    }
    int status = step->form == SEVERAL ? unpack(step, outputs, result, slots) : 0;
    Py_DECREF(result);
    return status;
}

/* When a call must have ended. */
typedef struct {
    double end;     /* in seconds of CLOCK_MONOTONIC */
    PyObject *late; /* returns the error of a call that has not */
} deadline_t;

/* 0, or -1 with that error. */
static int check_time(const deadline_t *deadline) {
    struct timespec now;
    if (deadline == NULL)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec <= deadline->end)
        return 0;
    PyObject *error = PyObject_CallNoArgs(deadline->late);
    if (error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return -1;
}

/* DONE, INTERRUPTED, or the step that failed; owned slots stay as they are. */
static int32_t run_steps(const program_t *program, PyObject **slots,
                         PyObject **arguments, const deadline_t *deadline) {
    for (int32_t i = 0; i < program->step_count; i++) {
        const step_t *step = &program->steps[i];
        if (run_step(program, step, slots, arguments) < 0)
            return i;
        const int32_t *released =
            program->indices + step->first + step->input_count + step->output_count;
        for (int32_t k = 0; k < step->release_count; k++)
            Py_CLEAR(slots[released[k]]);
        /* A step may take long: after each one. */
        if (PyErr_CheckSignals() < 0 || check_time(deadline) < 0)
            return INTERRUPTED;
    }
    return DONE;
}

/* ---- results ---- */

static PyObject *take_output(const program_t *program, int32_t index,
                             PyObject **slots) {
    PyObject *value = slots[program->outputs[index]];
    if (program->moves[index])
        slots[program->outputs[index]] = NULL;
    else
        Py_INCREF(value);
    return value;
}

static PyObject *take_outputs(const program_t *program, PyObject **slots) {
    if (program->single)
        return take_output(program, 0, slots);
    PyObject *result = PyTuple_New(program->output_count);
    for (int32_t i = 0; result != NULL && i < program->output_count; i++)
        PyTuple_SET_ITEM(result, i, take_output(program, i, slots));
    return result;
}

static void release_all(const program_t *program, PyObject **slots) {
    for (int32_t i = 0; i < program->slot_count; i++)
        if (program->states[i] != BORROWED)
            Py_CLEAR(slots[i]);
}

/* ---- a call ---- */

static PyObject *run_in(const program_t *program, PyObject *const *values,
                        PyObject **slots, const deadline_t *deadline) {
    if (program->slot_count > 0)
        memcpy(slots, program->constants, (size_t)program->slot_count * sizeof *slots);
    for (int32_t i = 0; i < program->input_count; i++)
        slots[program->inputs[i]] = values[i];
    int32_t failed =
        run_steps(program, slots, slots + program->slot_count + 1, deadline);
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

static PyObject *call_until(PyObject *object, PyObject *const *values, Py_ssize_t count,
                            const deadline_t *deadline) {
    program_t *program = (program_t *)object;
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
        result = run_in(program, values, slots, deadline);
        Py_LeaveRecursiveCall();
    }
    Py_DECREF(object);
    if (slots != small)
        PyMem_Free(slots);
    return result;
}

static PyObject *call(PyObject *object, PyObject *const *values, size_t flagged,
                      PyObject *names) {
    if (names != NULL && PyTuple_GET_SIZE(names) > 0)
        return PyErr_Format(PyExc_TypeError, "Program: takes no keyword arguments");
    return call_until(object, values, PyVectorcall_NARGS(flagged), NULL);
}

static PyObject *run(PyObject *self, PyObject *const *values, Py_ssize_t count) {
    return ((program_t *)self)->vectorcall(self, values, (size_t)count, NULL);
}

static PyObject *run_until(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count < 2)
        return PyErr_Format(PyExc_TypeError,
                            "Program.run_until: expected a time and a function");
    deadline_t deadline = {.end = PyFloat_AsDouble(args[0]), .late = args[1]};
    if (deadline.end == -1 && PyErr_Occurred())
        return NULL;
    if (((program_t *)self)->vectorcall != call)
        return run(self, args, 0); /* it is being destroyed */
    return call_until(self, args + 2, count - 2, &deadline);
}

/* The call of a program that the garbage collector has cleared. */
static PyObject *call_cleared(PyObject *Py_UNUSED(self),
                              PyObject *const *Py_UNUSED(values),
                              size_t Py_UNUSED(flagged), PyObject *Py_UNUSED(names)) {
    return PyErr_Format(PyExc_RuntimeError, "Program: it is being destroyed");
}

/* ==== the type ==== */

static PyObject *new_program(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    program_t *self = (program_t *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    dlb_count_object(programs, 1);
    self->vectorcall = call;
    if (parse_arguments(self, args, kwargs) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
    program_t *self = (program_t *)object;
    for (int32_t i = 0; i < self->step_count; i++)
        Py_VISIT(self->steps[i].function);
    for (int32_t i = 0; self->constants != NULL && i < self->slot_count; i++)
        Py_VISIT(self->constants[i]);
    Py_VISIT(self->kept);
    Py_VISIT(self->on_error);
    return 0;
}

static int clear(PyObject *object) {
    program_t *self = (program_t *)object;
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
    program_t *self = (program_t *)object;
    PyObject_GC_UnTrack(object);
    clear(object);
    PyMem_Free(self->steps);
    PyMem_Free(self->indices);
    PyMem_Free(self->moves);
    PyMem_Free(self->states);
    PyMem_Free(self->constants);
    dlb_count_object(programs, -1);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL,
     "run($self, /, *values)\n--\n\nThe same as calling the program."},
    {"run_until", (PyCFunction)(void (*)(void))run_until, METH_FASTCALL,
     "run_until($self, end, late, /, *values)\n--\n\nThe same; raises what late() "
     "returns after the first step that ends after `end`, in seconds of "
     "time.monotonic."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"slot_count", T_INT, offsetof(program_t, slot_count), READONLY, NULL},
    {"step_count", T_INT, offsetof(program_t, step_count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject dlb_ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Program",
    .tp_doc = "A plan that runs in one call: functions over numbered slots.",
    .tp_basicsize = sizeof(program_t),
    .tp_vectorcall_offset = offsetof(program_t, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_program,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = dealloc,
    .tp_methods = methods,
    .tp_members = members,
};

/* ==== Feed: a fed value becomes an array of a placeholder's dtype and shape ==== */

/* A Fetch, and the head of a Feed. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *slow; /* called for the values that C leaves to Python */
} converter;

static int traverse_converter(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((converter *)object)->slow);
    return 0;
}

static int clear_converter(PyObject *object) {
    Py_XSETREF(((converter *)object)->slow, Py_NewRef(Py_None));
    return 0;
}

typedef struct {
    converter base;
    PyArray_Descr *descr;
    dlb_shape shape; /* as far as it is known: the record of TensorShape */
} feed;

/* ---- arrays ---- */

static bool fits(const feed *self, PyArrayObject *array) {
    if (PyArray_DESCR(array) != self->descr &&
        !PyArray_EquivTypes(PyArray_DESCR(array), self->descr))
        return false;
    return dlb_shape_fits(&self->shape, PyArray_NDIM(array),
                          (const int64_t *)PyArray_DIMS(array));
}

/* ---- Python's numbers ---- */

typedef union {
    npy_bool b;
    npy_int8 i8;
    npy_int16 i16;
    npy_int32 i32;
    npy_int64 i64;
    float f32;
    double f64;
} element;

/* Whether an integer dtype holds the value; of uint64 only the range of int64. */
static bool integer_fits(const PyArray_Descr *descr, long long value) {
    int bits = 8 * (int)PyDataType_ELSIZE(descr);
    if (descr->kind == 'u')
        return value >= 0 && (bits == 64 || value >> bits == 0);
    return bits == 64 || (value >= -(1LL << (bits - 1)) && value < 1LL << (bits - 1));
}

static bool store_integer(int size, long long value, element *element) {
    switch (size) {
    case 1:
        element->i8 = (npy_int8)value;
        return true;
    case 2:
        element->i16 = (npy_int16)value;
        return true;
    case 4:
        element->i32 = (npy_int32)value;
        return true;
    default:
        element->i64 = value;
        return size == 8;
    }
}

/* A finite number stays finite. */
static bool store_float(int type, double value, element *element) {
    if (type == NPY_DOUBLE) {
        element->f64 = value;
        return true;
    }
    if (type != NPY_FLOAT || (isfinite(value) && fabs(value) > (double)FLT_MAX))
        return false;
    element->f32 = (float)value;
    return true;
}

/* False: the Python side decides. */
static bool store_number(const feed *self, PyObject *value, element *element) {
    int type = self->descr->type_num;
    if (PyFloat_CheckExact(value))
        return store_float(type, PyFloat_AS_DOUBLE(value), element);
    if (PyBool_Check(value)) {
        element->b = value == Py_True;
        return type == NPY_BOOL;
    }
    if (!PyLong_CheckExact(value))
        return false;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0)
        return false;
    if (self->descr->kind == 'f') { /* only integers that it holds exactly */
        long long most = type == NPY_FLOAT ? 1LL << 24 : 1LL << 53;
        return number >= -most && number <= most &&
               store_float(type, (double)number, element);
    }
    return (self->descr->kind == 'i' || self->descr->kind == 'u') &&
           integer_fits(self->descr, number) &&
           store_integer((int)PyDataType_ELSIZE(self->descr), number, element);
}

static PyObject *new_scalar(const feed *self, const element *element) {
    Py_INCREF(self->descr);
    PyObject *array =
        PyArray_NewFromDescr(&PyArray_Type, self->descr, 0, NULL, NULL, NULL, 0, NULL);
    if (array != NULL)
        memcpy(PyArray_DATA((PyArrayObject *)array), element,
               (size_t)PyDataType_ELSIZE(self->descr));
    return array;
}

/* ---- the type ---- */

static PyObject *call_feed(PyObject *object, PyObject *const *values, size_t flagged,
                           PyObject *names) {
    const feed *self = (feed *)object;
    if (PyVectorcall_NARGS(flagged) != 1 ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "Feed: expected one value");
    PyObject *value = values[0];
    element element;
    if (PyArray_CheckExact(value)) {
        if (fits(self, (PyArrayObject *)value))
            return Py_NewRef(value);
    } else if (dlb_shape_rank(&self->shape) <= 0 && store_number(self, value, &element))
        return new_scalar(self, &element);
    return PyObject_CallOneArg(self->base.slow, value);
}

static int parse_shape(feed *self, PyObject *shape) {
    int64_t dims[DLB_SHAPE_MAX_RANK];
    Py_ssize_t rank = PyTuple_Check(shape) ? PyTuple_GET_SIZE(shape) : -1;
    if (rank < 0 && shape != Py_None) {
        PyErr_Format(PyExc_TypeError, "Feed: shape must be a tuple or None, got %R",
                     shape);
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank && i < DLB_SHAPE_MAX_RANK; i++) {
        PyObject *dim = PyTuple_GET_ITEM(shape, i);
        dims[i] = dim == Py_None ? -1 : PyLong_AsLongLong(dim);
        if (dim != Py_None && dims[i] < 0) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError,
                             "Feed: a dimension is None or at least 0, got %R", dim);
            return -1;
        }
    }
    if (rank > DLB_SHAPE_MAX_RANK)
        PyErr_Format(PyExc_ValueError, "Feed: %zd dimensions are too many", rank);
    else if (dlb_shape_pack(&self->shape, (int32_t)rank, dims) != NULL)
        PyErr_NoMemory();
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *new_feed(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dtype", "shape", "slow", NULL};
    PyObject *descr, *shape, *slow;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO:Feed", names,
                                     &PyArrayDescr_Type, &descr, &shape, &slow))
        return NULL;
    feed *self = (feed *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->base.vectorcall = call_feed;
    self->base.slow = Py_NewRef(slow);
    self->descr = (PyArray_Descr *)Py_NewRef(descr);
    if (parse_shape(self, shape) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void dealloc_feed(PyObject *object) {
    feed *self = (feed *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->base.slow);
    Py_XDECREF(self->descr);
    dlb_shape_release(&self->shape);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject dlb_FeedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Feed",
    .tp_doc = "Makes a value that is fed an array of one dtype and shape.",
    .tp_basicsize = sizeof(feed),
    .tp_vectorcall_offset = offsetof(converter, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_feed,
    .tp_traverse = traverse_converter,
    .tp_clear = clear_converter,
    .tp_dealloc = dealloc_feed,
};

/* ==== Fetch: a fetched value may be kept and written into by the user ====
 *
 * An array that nobody but the run knows is handed out as it is. Steps see the one
 * reference of their slot, so 1 means that; a constant has a second one (`kept` of the
 * program) for that reason, and what a user fed is also the user's. Memory that other
 * processes may read is never handed out. */

#define WASTE 4096 /* bytes that a view may keep alive for nothing */

static bool is_private(PyArrayObject *array) {
    const int needed = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED;
    if (!dlb_is_only_reference((PyObject *)array) ||
        (PyArray_FLAGS(array) & needed) != needed)
        return false;
    PyArrayObject *base = (PyArrayObject *)PyArray_BASE(array);
    if (base == NULL)
        return PyArray_CHKFLAGS(array, NPY_ARRAY_OWNDATA);
    return PyArray_CheckExact((PyObject *)base) &&
           dlb_is_only_reference((PyObject *)base) && PyArray_BASE(base) == NULL &&
           PyArray_CHKFLAGS(base, NPY_ARRAY_OWNDATA | NPY_ARRAY_WRITEABLE) &&
           PyArray_NBYTES(base) - PyArray_NBYTES(array) <= WASTE;
}

/* Whether other processes may read the memory, or write it. */
static bool is_in_arena(PyArrayObject *array) {
    PyObject *base = (PyObject *)array;
    while (PyArray_Check(base) && PyArray_BASE((PyArrayObject *)base) != NULL)
        base = PyArray_BASE((PyArrayObject *)base);
    return Py_IS_TYPE(base, &dlb_LoanType) ||
           (PyArray_Check(base) && dlb_numpy_in_arena(base));
}

/* A copy in one of our blocks, as large values have that are received. */
static PyObject *copy_out(PyArrayObject *array) {
    PyObject *memory = dlb_numpy_bytes((size_t)PyArray_NBYTES(array));
    if (memory == NULL)
        return NULL;
    PyArray_Descr *descr = (PyArray_Descr *)Py_NewRef(PyArray_DESCR(array));
    PyObject *made = PyArray_NewFromDescr(
        &PyArray_Type, descr, PyArray_NDIM(array), PyArray_DIMS(array), NULL,
        PyArray_DATA((PyArrayObject *)memory),
        NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | NPY_ARRAY_WRITEABLE, NULL);
    if (made == NULL)
        Py_DECREF(memory);
    else if (PyArray_SetBaseObject((PyArrayObject *)made, memory) < 0 ||
             PyArray_CopyInto((PyArrayObject *)made, array) < 0)
        Py_CLEAR(made);
    return made;
}

static PyObject *call_fetch(PyObject *object, PyObject *const *values, size_t flagged,
                            PyObject *names) {
    if (PyVectorcall_NARGS(flagged) != 1 ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "Fetch: expected one value");
    PyObject *value = values[0];
    if (PyArray_IsScalar(value, Generic))
        return Py_NewRef(value);
    if (!PyArray_CheckExact(value))
        return PyObject_CallOneArg(((converter *)object)->slow, value);
    PyArrayObject *array = (PyArrayObject *)value;
    if (PyArray_NDIM(array) == 0)
        return PyArray_ToScalar(PyArray_DATA(array), array);
    if (is_in_arena(array) && !PyDataType_REFCHK(PyArray_DESCR(array)))
        return copy_out(array); /* references have to be in memory that NumPy clears */
    if (is_private(array))
        return Py_NewRef(value);
    return PyArray_NewCopy(array, NPY_CORDER);
}

static PyObject *new_fetch(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slow", NULL};
    PyObject *slow;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Fetch", names, &slow))
        return NULL;
    converter *self = (converter *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = call_fetch;
        self->slow = Py_NewRef(slow);
    }
    return (PyObject *)self;
}

static void dealloc_fetch(PyObject *object) {
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((converter *)object)->slow);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject dlb_FetchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Fetch",
    .tp_doc = "A value of a run as its user gets it.",
    .tp_basicsize = sizeof(converter),
    .tp_vectorcall_offset = offsetof(converter, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_fetch,
    .tp_traverse = traverse_converter,
    .tp_clear = clear_converter,
    .tp_dealloc = dealloc_fetch,
};
