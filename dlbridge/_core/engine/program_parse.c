/* native.Program: its arguments, and the proof that no step meets an empty slot. */
#include "engine/program.h"

#include <string.h>

#define MAX_SLOTS (1 << 28)

typedef enum { EMPTY, FULL } contents; /* of owned slots */

typedef struct {
    dlb_program *program;
    unsigned char *contents; /* by slot */
    int32_t *end;            /* of the indices so far */
    const char *where;       /* "step", "inputs", … and which step, for texts */
    int32_t step;
} parser;

/* ---- one slot ---- */

static int refuse(const parser *at, PyObject *number, const char *why) {
    if (at->step >= 0)
        PyErr_Format(PyExc_ValueError, "Program: step %d, %s: slot %R %s",
                     (int)at->step, at->where, number, why);
    else
        PyErr_Format(PyExc_ValueError, "Program: %s: slot %R %s", at->where, number,
                     why);
    return -1;
}

static int parse_slot(const parser *at, PyObject *number, int32_t *slot) {
    if (!PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "Program: %s: slots are int, got %R", at->where,
                     number);
        return -1;
    }
    int overflow;
    long value = PyLong_AsLongAndOverflow(number, &overflow);
    if (overflow != 0 || value < 0 || value >= at->program->slot_count)
        return refuse(at, number, "does not exist");
    *slot = (int32_t)value;
    return 0;
}

static int read_slot(parser *at, PyObject *number) {
    int32_t slot;
    if (parse_slot(at, number, &slot) < 0)
        return -1;
    if (!at->program->lent[slot] && at->contents[slot] == EMPTY)
        return refuse(at, number, "is empty");
    *at->end++ = slot;
    return 0;
}

static int fill_slot(parser *at, PyObject *number) {
    int32_t slot;
    int overflow = 0;
    if (PyLong_Check(number) &&
        PyLong_AsLongAndOverflow(number, &overflow) == DLB_DISCARDED && overflow == 0) {
        *at->end++ = DLB_DISCARDED;
        return 0;
    }
    if (parse_slot(at, number, &slot) < 0)
        return -1;
    if (at->program->lent[slot])
        return refuse(at, number, "holds a constant or an input");
    if (at->contents[slot] == FULL)
        return refuse(at, number, "is still full");
    at->contents[slot] = FULL;
    *at->end++ = slot;
    return 0;
}

/* Slots that are lent are not released, so that a plan need not tell them apart. */
static int release_slot(parser *at, PyObject *number) {
    int32_t slot;
    if (parse_slot(at, number, &slot) < 0)
        return -1;
    if (at->program->lent[slot])
        return 0;
    if (at->contents[slot] == EMPTY)
        return refuse(at, number, "is empty");
    at->contents[slot] = EMPTY;
    *at->end++ = slot;
    return 0;
}

static int lend_slot(parser *at, PyObject *number) {
    int32_t slot;
    if (parse_slot(at, number, &slot) < 0)
        return -1;
    if (at->program->lent[slot])
        return refuse(at, number, "holds something already");
    at->program->lent[slot] = true;
    *at->end++ = slot;
    return 0;
}

/* ---- several ---- */

static int32_t each_slot(parser *at, const char *where, PyObject *numbers,
                         int (*take)(parser *, PyObject *)) {
    const int32_t *start = at->end;
    at->where = where;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++)
        if (take(at, PyTuple_GET_ITEM(numbers, i)) < 0)
            return -1;
    return (int32_t)(at->end - start);
}

static int parse_constants(parser *at, PyObject *constants) {
    dlb_program *program = at->program;
    Py_ssize_t position = 0;
    PyObject *number, *value;
    at->where = "constants";
    while (PyDict_Next(constants, &position, &number, &value)) {
        if (lend_slot(at, number) < 0)
            return -1;
        int32_t slot = *--at->end;
        program->constants[slot] = Py_NewRef(value);
    }
    program->kept = PyDict_Copy(constants);
    return program->kept == NULL ? -1 : 0;
}

/* ---- steps ---- */

/* The parts of a step, borrowed; `outputs` is an int or a tuple. */
typedef struct {
    PyObject *function, *inputs, *outputs, *releases;
} step_parts;

static int split_step(PyObject *item, step_parts *parts) {
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "OO!OO!", &parts->function, &PyTuple_Type,
                          &parts->inputs, &parts->outputs, &PyTuple_Type,
                          &parts->releases) ||
        !(PyTuple_Check(parts->outputs) || PyLong_Check(parts->outputs)) ||
        !(parts->function == Py_None || PyCallable_Check(parts->function))) {
        PyErr_Format(PyExc_TypeError,
                     "Program: a step is (function or None, input slots, output slot "
                     "or slots, slots to release), got %R",
                     item);
        return -1;
    }
    return 0;
}

static Py_ssize_t output_slots(PyObject *outputs) {
    return PyTuple_Check(outputs) ? PyTuple_GET_SIZE(outputs) : 1;
}

/* How many slots all steps name, or -1. */
static Py_ssize_t count_slots(PyObject *steps) {
    Py_ssize_t total = 0;
    step_parts parts;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
        if (split_step(PyTuple_GET_ITEM(steps, i), &parts) < 0)
            return -1;
        total += PyTuple_GET_SIZE(parts.inputs) + output_slots(parts.outputs) +
                 PyTuple_GET_SIZE(parts.releases);
    }
    return total;
}

static int32_t parse_outputs(parser *at, PyObject *outputs, dlb_program_step *step) {
    if (PyTuple_Check(outputs)) {
        bool ignored = PyTuple_GET_SIZE(outputs) == 0;
        step->form = ignored ? DLB_STEP_IGNORED : DLB_STEP_SEVERAL;
        return each_slot(at, "outputs", outputs, fill_slot);
    }
    step->form = DLB_STEP_BARE;
    at->where = "outputs";
    return fill_slot(at, outputs) < 0 ? -1 : 1;
}

/* A copy is (None, (from,), to or (to,), …). */
static int check_copy(const parser *at, dlb_program_step *step) {
    step->form = DLB_STEP_COPY;
    if (step->input_count == 1 && step->output_count == 1 &&
        at->program->indices[step->first + 1] != DLB_DISCARDED)
        return 0;
    PyErr_Format(PyExc_ValueError,
                 "Program: step %d has no function, so it copies one slot to one slot",
                 (int)at->step);
    return -1;
}

static int parse_step(parser *at, PyObject *item) {
    dlb_program *program = at->program;
    dlb_program_step *step = &program->steps[at->step];
    step_parts parts;
    if (split_step(item, &parts) < 0)
        return -1;
    *step = (dlb_program_step){.first = (int32_t)(at->end - program->indices)};
    if ((step->input_count = each_slot(at, "inputs", parts.inputs, read_slot)) < 0 ||
        (step->output_count = parse_outputs(at, parts.outputs, step)) < 0 ||
        (step->release_count =
             each_slot(at, "releases", parts.releases, release_slot)) < 0)
        return -1;
    if (parts.function == Py_None && check_copy(at, step) < 0)
        return -1;
    if (step->input_count > program->argument_room)
        program->argument_room = step->input_count;
    step->function = parts.function == Py_None ? NULL : Py_NewRef(parts.function);
    program->step_count++;
    return 0;
}

/* ---- the end ---- */

/* Each owned output gives its reference away where it is named last; what is full and
 * no output is left over. */
static void find_leftovers(parser *at) {
    dlb_program *program = at->program;
    for (int32_t i = program->output_count - 1; i >= 0; i--) {
        int32_t slot = program->outputs[i];
        program->moves[i] = !program->lent[slot] && at->contents[slot] == FULL;
        at->contents[slot] = EMPTY;
    }
    program->leftovers = at->end;
    for (int32_t slot = 0; slot < program->slot_count; slot++)
        if (!program->lent[slot] && at->contents[slot] == FULL)
            *at->end++ = slot;
    program->leftover_count = (int32_t)(at->end - program->leftovers);
}

/* ---- all of it ---- */

typedef struct {
    Py_ssize_t slots;
    PyObject *constants, *steps, *inputs, *outputs, *on_error;
    int single;
} arguments;

static int allocate(parser *at, const arguments *given) {
    dlb_program *program = at->program;
    Py_ssize_t named = count_slots(given->steps);
    if (named < 0)
        return -1;
    size_t slots = (size_t)given->slots,
           outputs = (size_t)PyTuple_GET_SIZE(given->outputs),
           total = (size_t)named + slots + outputs + 1 +
                   (size_t)PyTuple_GET_SIZE(given->inputs);
    at->contents = PyMem_Calloc(slots + 1, 1);
    program->lent = PyMem_Calloc(slots + 1, sizeof *program->lent);
    program->moves = PyMem_Calloc(outputs + 1, sizeof *program->moves);
    program->constants = PyMem_Calloc(slots + 1, sizeof *program->constants);
    program->indices = PyMem_Calloc(total, sizeof *program->indices);
    program->steps = PyMem_Calloc((size_t)PyTuple_GET_SIZE(given->steps) + 1,
                                  sizeof *program->steps);
    if (at->contents == NULL || program->lent == NULL || program->moves == NULL ||
        program->constants == NULL || program->indices == NULL ||
        program->steps == NULL || total > INT32_MAX) {
        PyErr_NoMemory();
        return -1;
    }
    program->slot_count = (int32_t)slots;
    at->end = program->indices;
    return 0;
}

static int parse_all(parser *at, const arguments *given) {
    dlb_program *program = at->program;
    if (allocate(at, given) < 0 || parse_constants(at, given->constants) < 0)
        return -1;
    program->inputs = at->end;
    program->input_count = each_slot(at, "inputs", given->inputs, lend_slot);
    if (program->input_count < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given->steps); i++) {
        at->step = (int32_t)i;
        if (parse_step(at, PyTuple_GET_ITEM(given->steps, i)) < 0)
            return -1;
    }
    at->step = -1;
    program->outputs = at->end;
    program->output_count = each_slot(at, "outputs", given->outputs, read_slot);
    if (program->output_count < 0)
        return -1;
    find_leftovers(at);
    return 0;
}

int dlb_program_parse(dlb_program *program, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slots",   "constants", "steps",  "inputs",
                            "outputs", "on_error",  "single", NULL};
    arguments given = {.on_error = Py_None};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "nO!O!O!O!|O$p:Program", names, &given.slots, &PyDict_Type,
            &given.constants, &PyTuple_Type, &given.steps, &PyTuple_Type, &given.inputs,
            &PyTuple_Type, &given.outputs, &given.on_error, &given.single))
        return -1;
    if (given.slots < 0 || given.slots > MAX_SLOTS) {
        PyErr_Format(PyExc_ValueError, "Program: %zd slots are not possible",
                     given.slots);
        return -1;
    }
    if (given.single && PyTuple_GET_SIZE(given.outputs) != 1) {
        PyErr_SetString(PyExc_ValueError, "Program: single=True needs one output");
        return -1;
    }
    if (given.on_error != Py_None)
        program->on_error = Py_NewRef(given.on_error);
    program->single = given.single;
    parser at = {.program = program, .step = -1};
    int status = parse_all(&at, &given);
    PyMem_Free(at.contents);
    return status;
}
