/* native.Loops: its arguments, and the inner loops of NumPy's ufuncs. */
#include "engine/loops.h"

#include <numpy/ufuncobject.h>

#include <string.h>

#define MAX_COUNT (1 << 24)

int dlb_loops_start(void) {
    import_umath1(-1);
    return 0;
}

/* ---- dtypes ---- */

/* Numbers of at most 16 bytes: their loops need neither the GIL nor aligned copies. */
static bool is_plain(int type) {
    return (type >= NPY_BOOL && type <= NPY_DOUBLE) || type == NPY_HALF ||
           type == NPY_CFLOAT || type == NPY_CDOUBLE;
}

static int parse_input(PyObject *dtype, PyArray_Descr **descr) {
    if (!PyArray_DescrCheck(dtype)) {
        PyErr_Format(PyExc_TypeError, "Loops: expected a NumPy dtype, got %R", dtype);
        return -1;
    }
    *descr = (PyArray_Descr *)dtype;
    if (!is_plain((*descr)->type_num) || !PyArray_ISNBO((*descr)->byteorder)) {
        PyErr_Format(PyExc_TypeError, "Loops: there are no loops in C for %R", dtype);
        return -1;
    }
    Py_INCREF(dtype);
    return 0;
}

/* ---- one ufunc ---- */

static bool is_elementwise(PyObject *object) {
    if (!PyObject_TypeCheck(object, &PyUFunc_Type))
        return false;
    PyUFuncObject *ufunc = (PyUFuncObject *)object;
    return !ufunc->core_enabled && ufunc->nout == 1 && ufunc->nin >= 1 &&
           ufunc->nin <= DLB_LOOP_INPUTS;
}

/* The row of the ufunc's table for exactly these types, or -1. */
static int find_row(const PyUFuncObject *ufunc, const dlb_loops *loops,
                    const int32_t *operands) {
    for (int row = 0; row < ufunc->ntypes; row++) {
        const char *types = ufunc->types + row * ufunc->nargs;
        int matched = 0;
        while (matched < ufunc->nin &&
               types[matched] == loops->descrs[operands[matched]]->type_num)
            matched++;
        if (matched == ufunc->nin)
            return ufunc->functions[row] != NULL && is_plain(types[ufunc->nin]) ? row
                                                                                : -1;
    }
    return -1;
}

/* The dtype that the ufunc itself gives for these operands; NULL with an exception. */
static PyArray_Descr *ask_ufunc(PyObject *ufunc, const dlb_loops *loops,
                                const dlb_instruction *instruction) {
    PyObject *arrays[DLB_LOOP_INPUTS] = {NULL}, *result = NULL;
    npy_intp none = 0;
    int made = 0;
    for (; made < instruction->operand_count; made++) {
        PyArray_Descr *descr = loops->descrs[instruction->operands[made]];
        Py_INCREF(descr);
        arrays[made] = PyArray_Empty(1, &none, descr, 0);
        if (arrays[made] == NULL)
            break;
    }
    if (made == instruction->operand_count)
        result = PyObject_Vectorcall(ufunc, arrays, (size_t)made, NULL);
    for (int i = 0; i < made; i++)
        Py_DECREF(arrays[i]);
    PyArray_Descr *descr = NULL;
    if (result != NULL && PyArray_Check(result))
        descr = (PyArray_Descr *)Py_NewRef(PyArray_DESCR((PyArrayObject *)result));
    else if (result != NULL)
        PyErr_Format(PyExc_TypeError, "Loops: %R returned no array", ufunc);
    Py_XDECREF(result);
    return descr;
}

/* An earlier instruction with the same loop needs no second question. */
static PyArray_Descr *known_descr(const dlb_loops *loops, const PyUFuncObject *ufunc,
                                  int row, int32_t index) {
    for (int32_t i = index - 1; i >= 0 && i >= index - 8; i--)
        if (loops->instructions[i].function == ufunc->functions[row] &&
            loops->instructions[i].data == ufunc->data[row])
            return (PyArray_Descr *)Py_NewRef(loops->descrs[loops->input_count + i]);
    return NULL;
}

static int look_up(PyObject *object, dlb_loops *loops, int32_t index) {
    PyUFuncObject *ufunc = (PyUFuncObject *)object;
    dlb_instruction *instruction = &loops->instructions[index];
    int row = find_row(ufunc, loops, instruction->operands);
    if (row < 0) {
        PyErr_Format(PyExc_TypeError,
                     "Loops: instruction %d: %R has no loop in C for exactly these "
                     "dtypes",
                     (int)index, object);
        return -1;
    }
    int type = ufunc->types[row * ufunc->nargs + ufunc->nin];
    PyArray_Descr *descr = known_descr(loops, ufunc, row, index);
    if (descr == NULL && (descr = ask_ufunc(object, loops, instruction)) == NULL)
        return -1;
    loops->descrs[loops->input_count + index] = descr;
    if (descr->type_num != type) {
        PyErr_Format(PyExc_TypeError,
                     "Loops: instruction %d: %R does not use its loop for these dtypes",
                     (int)index, object);
        return -1;
    }
    instruction->function = (dlb_inner_loop)ufunc->functions[row];
    instruction->data = ufunc->data == NULL ? NULL : ufunc->data[row];
    return 0;
}

/* ---- instructions ---- */

static int parse_value(PyObject *number, int32_t limit, int32_t *value) {
    int overflow = 0;
    long found =
        PyLong_Check(number) ? PyLong_AsLongAndOverflow(number, &overflow) : -1;
    if (found < 0 || found >= limit || overflow != 0) {
        PyErr_Format(PyExc_ValueError, "Loops: %R is none of the %d values so far",
                     number, (int)limit);
        return -1;
    }
    *value = (int32_t)found;
    return 0;
}

static int parse_instruction(dlb_loops *loops, int32_t index, PyObject *given) {
    PyObject *ufunc, *operands;
    dlb_instruction *instruction = &loops->instructions[index];
    if (!PyTuple_Check(given) ||
        !PyArg_ParseTuple(given, "OO!", &ufunc, &PyTuple_Type, &operands)) {
        PyErr_Format(PyExc_TypeError,
                     "Loops: an instruction is (ufunc, values), got %R", given);
        return -1;
    }
    if (!is_elementwise(ufunc) ||
        PyTuple_GET_SIZE(operands) != ((PyUFuncObject *)ufunc)->nin) {
        PyErr_Format(PyExc_TypeError,
                     "Loops: instruction %d: %R is no element-wise ufunc of %zd "
                     "operands and one result",
                     (int)index, ufunc, PyTuple_GET_SIZE(operands));
        return -1;
    }
    instruction->operand_count = (int32_t)PyTuple_GET_SIZE(operands);
    for (int32_t i = 0; i < instruction->operand_count; i++)
        if (parse_value(PyTuple_GET_ITEM(operands, i), loops->input_count + index,
                        &instruction->operands[i]) < 0)
            return -1;
    return look_up(ufunc, loops, index);
}

/* ---- all of it ---- */

static int allocate(dlb_loops *loops, Py_ssize_t inputs, Py_ssize_t instructions,
                    Py_ssize_t outputs) {
    if (inputs > MAX_COUNT || instructions > MAX_COUNT || outputs > MAX_COUNT) {
        PyErr_SetString(PyExc_ValueError, "Loops: too many values");
        return -1;
    }
    loops->descrs =
        PyMem_Calloc((size_t)(inputs + instructions) + 1, sizeof *loops->descrs);
    loops->instructions =
        PyMem_Calloc((size_t)instructions + 1, sizeof *loops->instructions);
    loops->outputs = PyMem_Calloc((size_t)outputs + 1, sizeof *loops->outputs);
    if (loops->descrs == NULL || loops->instructions == NULL ||
        loops->outputs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    loops->input_count = (int32_t)inputs;
    loops->instruction_count = (int32_t)instructions;
    loops->output_count = (int32_t)outputs;
    return 0;
}

static int parse_all(dlb_loops *loops, PyObject *inputs, PyObject *instructions,
                     PyObject *outputs) {
    if (allocate(loops, PyTuple_GET_SIZE(inputs), PyTuple_GET_SIZE(instructions),
                 PyTuple_GET_SIZE(outputs)) < 0)
        return -1;
    for (int32_t i = 0; i < loops->input_count; i++)
        if (parse_input(PyTuple_GET_ITEM(inputs, i), &loops->descrs[i]) < 0)
            return -1;
    for (int32_t i = 0; i < loops->instruction_count; i++)
        if (parse_instruction(loops, i, PyTuple_GET_ITEM(instructions, i)) < 0)
            return -1;
    for (int32_t i = 0; i < loops->output_count; i++)
        if (parse_value(PyTuple_GET_ITEM(outputs, i),
                        loops->input_count + loops->instruction_count,
                        &loops->outputs[i]) < 0)
            return -1;
    return 0;
}

int dlb_loops_parse(dlb_loops *loops, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"inputs", "instructions", "outputs",
                            "slow",   "single",       NULL};
    PyObject *inputs, *instructions, *outputs, *slow = Py_None;
    int single = 0;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!O!O!|O$p:Loops", names, &PyTuple_Type, &inputs,
            &PyTuple_Type, &instructions, &PyTuple_Type, &outputs, &slow, &single))
        return -1;
    if (single && PyTuple_GET_SIZE(outputs) != 1) {
        PyErr_SetString(PyExc_ValueError, "Loops: single=True needs one output");
        return -1;
    }
    loops->single = single;
    loops->kept = Py_NewRef(instructions);
    loops->slow = slow == Py_None ? NULL : Py_NewRef(slow);
    return parse_all(loops, inputs, instructions, outputs);
}
