/* native.Loops: a run of element-wise ufuncs in C, block by block, on ndarrays or,
 * where they are small, on torch.Tensors.
 *
 * Values are numbered: inputs first, then the result of each instruction. The form
 * of an input (see below) differs from call to call; a plan serves all calls whose
 * inputs have the same forms. A plan knows where each value lies (its location): an
 * input, an output array, a cell (one element) or a register (one block of scratch
 * memory).
 *
 * In the order of a call: arrays become forms, forms a plan, the plan results. */
#include "engine/engine.h"
#include "exchange/exchange.h"
#include "layout/layout.h"
#include "memory/buffer.h"
#include "python/numpy.h"
#include "torch/torch.h"

#include <numpy/ufuncobject.h>

#include <string.h>
#include <structmember.h>

#define MAX_INPUTS 3 /* of one instruction */
#define MAX_OPERANDS (MAX_INPUTS + 1)
#define ALIGNMENT 64
#define LARGEST_ITEM 16 /* bytes: complex128 */

typedef void (*inner_loop)(char **, const npy_intp *, const npy_intp *, void *);

/* The part of an input in the common shape; a value has the bits of all inputs
 * that it depends on. None: an element of rank 0. */
enum {
    FORM_FULL = 1,   /* the common shape */
    FORM_SUFFIX = 2, /* its last dims (and ones before), repeated */
    FORM_ONE = 4,    /* one element of a rank above 0 */
};
#define FORM_BLOCKS (FORM_FULL | FORM_SUFFIX)

typedef struct {
    inner_loop function;
    void *data;
    int32_t operands[MAX_INPUTS];
    int32_t operand_count;
    bool same_shape; /* its operands have one shape, or NumPy decides */
} instruction_t;

typedef struct {
    inner_loop function;
    void *data;
    const npy_intp *strides;
    int32_t locations[MAX_OPERANDS]; /* operands, then the result; then 0 */
} step_t;

typedef struct {
    _Atomic int32_t references;
    bool declines; /* an output has neither the common shape nor rank 0, or operands
                      that must have the same shape may differ */
    int32_t once_count, step_count;
    step_t *once;  /* on cells, before the blocks */
    step_t *steps; /* on each block */
    npy_intp *strides;
    int32_t *locations; /* by value */
    int32_t first_cell, first_register, location_count;
    unsigned char *item_sizes; /* by register: bytes of an element */
    npy_intp block;            /* elements that suit the cache */
    unsigned char *forms;      /* by input */
} plan_t;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    bool single;    /* the only output is returned bare */
    npy_intp small; /* most elements of torch.Tensors; 0: the values are NumPy's */
    int32_t input_count, instruction_count, output_count;
    PyArray_Descr **descrs; /* by value */
    instruction_t *instructions;
    int32_t *outputs; /* values */
    PyObject *kept;   /* the instructions as given: their ufuncs own the loops */
    PyObject *slow;   /* or NULL */
    plan_t *plan;     /* of the last call, or NULL; under DLB_EXCLUSIVE */
} loops_t;

/* How a block moves through memory. */
typedef struct {
    int32_t location;
    npy_intp item_size;
    char *start, *end; /* where it starts again */
} stream_t;

typedef struct {
    npy_intp count;      /* elements of the common shape */
    npy_intp block, row; /* blocks do not cross rows */
    int32_t stream_count;
    stream_t *streams;
    char **pointers; /* by location */
} frame_t;

/* An input of a call. */
typedef struct {
    char *data;
    npy_intp count;
    int32_t ndim;
    const int64_t *dims;
    unsigned char form;
} operand_t;

typedef struct {
    const loops_t *loops;
    PyObject *const *values;
    operand_t *operands;
    unsigned char *forms;
    const operand_t *widest; /* it has the common shape; NULL: all have rank 0 */
    const plan_t *plan;
    frame_t frame;
    dlb_torch_thread thread;
    /* By output, new arrays; NULL: it is none, or the one of an earlier output. */
    PyObject **arrays;
} call_t;

/* Where the parts of the memory of a call start, and its size. */
typedef struct {
    size_t streams, cells, buffers, total;
} layout_t;

static inline npy_intp item_size_of(const loops_t *loops, int32_t value) {
    return PyDataType_ELSIZE(loops->descrs[value]);
}

static inline size_t round_up(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int dlb_loops_start(void) {
    import_umath1(-1);
    return 0;
}

/* ==== what is run: inner loops found in the ufuncs ==== */

/* Loops of plain dtypes need neither the GIL nor aligned copies. */
static bool is_elementwise(PyObject *object) {
    if (!PyObject_TypeCheck(object, &PyUFunc_Type))
        return false;
    PyUFuncObject *ufunc = (PyUFuncObject *)object;
    return !ufunc->core_enabled && ufunc->nout == 1 && ufunc->nin >= 1 &&
           ufunc->nin <= MAX_INPUTS;
}

/* The row of the ufunc's table for exactly these types, or -1. */
static int find_row(const PyUFuncObject *ufunc, const loops_t *loops,
                    const int32_t *operands) {
    for (int row = 0; row < ufunc->ntypes; row++) {
        const char *types = ufunc->types + row * ufunc->nargs;
        int matched = 0;
        while (matched < ufunc->nin &&
               types[matched] == loops->descrs[operands[matched]]->type_num)
            matched++;
        if (matched == ufunc->nin)
            return ufunc->functions[row] != NULL &&
                           dlb_numpy_is_plain(types[ufunc->nin])
                       ? row
                       : -1;
    }
    return -1;
}

/* The dtype that the ufunc itself gives for these operands; NULL with an exception. */
static PyArray_Descr *ask_ufunc(PyObject *ufunc, const loops_t *loops,
                                const instruction_t *instruction) {
    PyObject *arrays[MAX_INPUTS] = {NULL}, *result = NULL;
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
static PyArray_Descr *known_descr(const loops_t *loops, const PyUFuncObject *ufunc,
                                  int row, int32_t index) {
    for (int32_t i = index - 1; i >= 0 && i >= index - 8; i--)
        if (loops->instructions[i].function == ufunc->functions[row] &&
            loops->instructions[i].data == ufunc->data[row])
            return (PyArray_Descr *)Py_NewRef(loops->descrs[loops->input_count + i]);
    return NULL;
}

static int look_up(PyObject *object, loops_t *loops, int32_t index) {
    PyUFuncObject *ufunc = (PyUFuncObject *)object;
    instruction_t *instruction = &loops->instructions[index];
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
    instruction->function = (inner_loop)ufunc->functions[row];
    instruction->data = ufunc->data == NULL ? NULL : ufunc->data[row];
    return 0;
}

/* ---- arguments: the values so far are known, so that nothing needs checks in a run
 * ---- */

static int parse_input(PyObject *dtype, PyArray_Descr **descr) {
    const PyArray_Descr *given = (PyArray_Descr *)dtype;
    if (!PyArray_DescrCheck(dtype) || !dlb_numpy_is_plain(given->type_num) ||
        !PyArray_ISNBO(given->byteorder)) {
        PyErr_Format(PyExc_TypeError, "Loops: there are no loops in C for %R", dtype);
        return -1;
    }
    *descr = (PyArray_Descr *)Py_NewRef(dtype);
    return 0;
}

static int parse_values(PyObject *numbers, int32_t limit, int32_t *values) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
        PyObject *number = PyTuple_GET_ITEM(numbers, i);
        int overflow = 0;
        long found =
            PyLong_Check(number) ? PyLong_AsLongAndOverflow(number, &overflow) : -1;
        if (found < 0 || found >= limit || overflow != 0) {
            PyErr_Format(PyExc_ValueError, "Loops: %R is none of the %d values so far",
                         number, (int)limit);
            return -1;
        }
        values[i] = (int32_t)found;
    }
    return 0;
}

/* (ufunc, values) or (ufunc, values, same_shape) */
static int parse_instruction(loops_t *loops, int32_t index, PyObject *given) {
    Py_ssize_t size = PyTuple_Check(given) ? PyTuple_GET_SIZE(given) : 0;
    PyObject *ufunc = size > 1 && size < 4 ? PyTuple_GET_ITEM(given, 0) : Py_None;
    PyObject *values = size > 1 ? PyTuple_GET_ITEM(given, 1) : Py_None;
    if (!PyTuple_Check(values) || !is_elementwise(ufunc) ||
        PyTuple_GET_SIZE(values) != ((PyUFuncObject *)ufunc)->nin) {
        PyErr_Format(PyExc_TypeError,
                     "Loops: instruction %d is no element-wise ufunc of one result "
                     "and its operands: %R",
                     (int)index, given);
        return -1;
    }
    instruction_t *instruction = &loops->instructions[index];
    instruction->operand_count = (int32_t)PyTuple_GET_SIZE(values);
    instruction->same_shape = size == 3 && PyTuple_GET_ITEM(given, 2) == Py_True;
    if (parse_values(values, loops->input_count + index, instruction->operands) < 0)
        return -1;
    return look_up(ufunc, loops, index);
}

static int allocate(loops_t *loops, size_t inputs, size_t instructions,
                    size_t outputs) {
    loops->descrs = PyMem_Calloc(inputs + instructions + 1, sizeof *loops->descrs);
    loops->instructions = PyMem_Calloc(instructions + 1, sizeof *loops->instructions);
    loops->outputs = PyMem_Calloc(outputs + 1, sizeof *loops->outputs);
    if (loops->descrs == NULL || loops->instructions == NULL ||
        loops->outputs == NULL || inputs + instructions + outputs > INT32_MAX / 2) {
        PyErr_NoMemory();
        return -1;
    }
    loops->input_count = (int32_t)inputs;
    loops->instruction_count = (int32_t)instructions;
    loops->output_count = (int32_t)outputs;
    return 0;
}

static int parse_arguments(loops_t *loops, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"inputs", "instructions", "outputs", "slow",
                            "single", "small_torch",  NULL};
    PyObject *inputs, *instructions, *outputs, *slow = Py_None;
    int single = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!|O$pn:Loops", names,
                                     &PyTuple_Type, &inputs, &PyTuple_Type,
                                     &instructions, &PyTuple_Type, &outputs, &slow,
                                     &single, &loops->small) ||
        allocate(loops, (size_t)PyTuple_GET_SIZE(inputs),
                 (size_t)PyTuple_GET_SIZE(instructions),
                 (size_t)PyTuple_GET_SIZE(outputs)) < 0)
        return -1;
    loops->single = single;
    loops->kept = Py_NewRef(instructions);
    loops->slow = slow == Py_None ? NULL : Py_NewRef(slow);
    for (int32_t i = 0; i < loops->input_count; i++)
        if (parse_input(PyTuple_GET_ITEM(inputs, i), &loops->descrs[i]) < 0)
            return -1;
    for (int32_t i = 0; i < loops->instruction_count; i++)
        if (parse_instruction(loops, i, PyTuple_GET_ITEM(instructions, i)) < 0)
            return -1;
    if (single && loops->output_count != 1) {
        PyErr_SetString(PyExc_ValueError, "Loops: single=True needs one output");
        return -1;
    }
    return parse_values(outputs, loops->input_count + loops->instruction_count,
                        loops->outputs);
}

/* ==== plans: where values lie, and which memory is used again ==== */

#define NOWHERE (-1)
#define SIZES 5            /* bytes of an element: 1, 2, 4, 8, 16 */
#define CACHE (24 << 10)   /* bytes that one block of all values should take */
#define SHORTEST_BLOCK 512 /* elements; below, calls cost more than arithmetic */
#define LONGEST_BLOCK 8192
#define WHOLE_BLOCK (1 << 20) /* of a single step: it finds nothing in the cache */

/* Working memory, by value. */
typedef struct {
    const loops_t *loops;
    plan_t *plan;
    unsigned char *forms; /* what the value depends on */
    int32_t *last_uses;   /* instruction, or NOWHERE: nobody needs the value */
    int32_t *free_next;   /* by register: lists of those that are free, by size */
    int32_t free_first[SIZES];
    int32_t register_count, cell_count;
    npy_intp *strides; /* the end of the plan's */
} planner;

static bool is_output(const loops_t *loops, int32_t value, int32_t *index) {
    for (*index = 0; *index < loops->output_count; ++*index)
        if (loops->outputs[*index] == value)
            return true;
    return false;
}

/* ---- which values are needed, and until when ---- */

static void find_last_uses(planner *at) {
    const loops_t *loops = at->loops;
    int32_t inputs = loops->input_count;
    for (int32_t v = 0; v < inputs + loops->instruction_count; v++)
        at->last_uses[v] = NOWHERE;
    for (int32_t i = 0; i < loops->output_count; i++)
        at->last_uses[loops->outputs[i]] = loops->instruction_count;
    for (int32_t i = loops->instruction_count - 1; i >= 0; i--) {
        const instruction_t *instruction = &loops->instructions[i];
        for (int k = 0;
             at->last_uses[inputs + i] != NOWHERE && k < instruction->operand_count;
             k++)
            if (at->last_uses[instruction->operands[k]] == NOWHERE)
                at->last_uses[instruction->operands[k]] = i;
    }
}

/* Whether operands are known to have one shape: rank 0, or the common one. */
static bool has_one_shape(const planner *at, const instruction_t *instruction) {
    int elements = 0, full = 0;
    for (int k = 0; k < instruction->operand_count; k++) {
        unsigned char form = at->forms[instruction->operands[k]];
        elements += form == 0;
        full += (form & FORM_FULL) != 0;
    }
    return elements == instruction->operand_count || full == instruction->operand_count;
}

static void find_forms(planner *at, const unsigned char *forms) {
    const loops_t *loops = at->loops;
    memcpy(at->forms, forms, (size_t)loops->input_count);
    for (int32_t i = 0; i < loops->instruction_count; i++) {
        const instruction_t *instruction = &loops->instructions[i];
        int32_t value = loops->input_count + i;
        at->forms[value] = 0;
        for (int k = 0; k < instruction->operand_count; k++)
            at->forms[value] |= at->forms[instruction->operands[k]];
        if (instruction->same_shape && !has_one_shape(at, instruction))
            at->plan->declines = true;
        at->cell_count +=
            at->last_uses[value] != NOWHERE && (at->forms[value] & FORM_BLOCKS) == 0;
    }
    for (int32_t i = 0; i < loops->output_count; i++) {
        int32_t value = loops->outputs[i];
        if (value >= loops->input_count && at->forms[value] != 0 &&
            (at->forms[value] & FORM_FULL) == 0)
            at->plan->declines = true;
    }
}

/* ---- registers ---- */

static int size_class(npy_intp bytes) {
    return __builtin_ctzl((unsigned long)bytes);
}

static int32_t take_register(planner *at, npy_intp bytes) {
    int32_t *first = &at->free_first[size_class(bytes)], number = *first;
    if (number != NOWHERE) {
        *first = at->free_next[number];
        return number;
    }
    at->plan->item_sizes[at->register_count] = (unsigned char)bytes;
    return at->register_count++;
}

/* A result may overwrite an operand of the same size: loops work element by element,
 * and NumPy itself runs them in place. */
static void release_registers(planner *at, int32_t index) {
    const instruction_t *instruction = &at->loops->instructions[index];
    for (int k = 0; k < instruction->operand_count; k++) {
        int32_t value = instruction->operands[k],
                number = at->plan->locations[value] - at->plan->first_register;
        if (at->last_uses[value] != index || number < 0)
            continue;
        at->last_uses[value] = NOWHERE; /* it may be an operand twice */
        int32_t *first = &at->free_first[size_class(item_size_of(at->loops, value))];
        at->free_next[number] = *first;
        *first = number;
    }
}

static int32_t find_location(planner *at, int32_t index) {
    const loops_t *loops = at->loops;
    int32_t value = loops->input_count + index, output;
    if ((at->forms[value] & FORM_BLOCKS) == 0)
        return at->plan->first_cell + at->cell_count++;
    release_registers(at, index);
    if (at->last_uses[value] == loops->instruction_count &&
        is_output(loops, value, &output))
        return loops->input_count + output;
    return at->plan->first_register + take_register(at, item_size_of(loops, value));
}

/* ---- steps ---- */

static npy_intp stride(const planner *at, int32_t value) {
    bool moves = (at->forms[value] & FORM_BLOCKS) != 0;
    return moves ? item_size_of(at->loops, value) : 0;
}

/* Most steps have the strides of the step before. */
static const npy_intp *share_strides(planner *at, const npy_intp *strides) {
    size_t bytes = MAX_OPERANDS * sizeof *strides;
    if (at->strides == at->plan->strides ||
        memcmp(at->strides - MAX_OPERANDS, strides, bytes) != 0) {
        memcpy(at->strides, strides, bytes);
        at->strides += MAX_OPERANDS;
    }
    return at->strides - MAX_OPERANDS;
}

static void add_step(planner *at, int32_t index) {
    plan_t *plan = at->plan;
    const instruction_t *instruction = &at->loops->instructions[index];
    int32_t value = at->loops->input_count + index;
    npy_intp strides[MAX_OPERANDS] = {0};
    step_t step = {.function = instruction->function, .data = instruction->data};
    int k;
    for (k = 0; k < instruction->operand_count; k++) {
        step.locations[k] = plan->locations[instruction->operands[k]];
        strides[k] = stride(at, instruction->operands[k]);
    }
    plan->locations[value] = step.locations[k] = find_location(at, index);
    /* Also for one element, as NumPy has it: 0 would mean a reduction to some loops. */
    strides[k] = item_size_of(at->loops, value);
    step.strides = share_strides(at, strides);
    if ((at->forms[value] & FORM_BLOCKS) != 0)
        plan->steps[plan->step_count++] = step;
    else
        plan->once[plan->once_count++] = step;
}

static void add_steps(planner *at) {
    const loops_t *loops = at->loops;
    plan_t *plan = at->plan;
    plan->first_cell = loops->input_count + loops->output_count;
    plan->first_register = plan->first_cell + at->cell_count;
    at->cell_count = 0;
    for (int32_t i = 0; i < loops->input_count; i++)
        plan->locations[i] = i;
    for (int32_t i = 0; i < loops->instruction_count; i++)
        if (at->last_uses[loops->input_count + i] != NOWHERE)
            add_step(at, i);
    plan->location_count = plan->first_register + at->register_count;
}

/* ---- the block ---- */

static void choose_block(planner *at) {
    const loops_t *loops = at->loops;
    npy_intp bytes = 1;
    bool repeats = false;
    for (int32_t i = 0; i < at->register_count; i++)
        bytes += at->plan->item_sizes[i];
    for (int32_t i = 0; i < loops->input_count; i++) {
        bytes += stride(at, i);
        repeats |= at->forms[i] == FORM_SUFFIX;
    }
    for (int32_t i = 0; i < loops->output_count; i++)
        bytes += stride(at, loops->outputs[i]);
    npy_intp block = CACHE / bytes / 64 * 64;
    at->plan->block = block < SHORTEST_BLOCK  ? SHORTEST_BLOCK
                      : block > LONGEST_BLOCK ? LONGEST_BLOCK
                                              : block;
    if (at->plan->step_count == 1 && !repeats)
        at->plan->block = WHOLE_BLOCK;
}

/* ---- memory ---- */

static void drop_plan(plan_t *plan) {
    if (plan == NULL || atomic_fetch_sub(&plan->references, 1) > 1)
        return;
    PyMem_Free(plan->once);
    PyMem_Free(plan->steps);
    PyMem_Free(plan->strides);
    PyMem_Free(plan->locations);
    PyMem_Free(plan->item_sizes);
    PyMem_Free(plan->forms);
    PyMem_Free(plan);
}

static plan_t *allocate_plan(const loops_t *loops) {
    size_t steps = (size_t)loops->instruction_count,
           values = steps + (size_t)loops->input_count;
    plan_t *plan = PyMem_Calloc(1, sizeof *plan);
    if (plan == NULL)
        return NULL;
    plan->references = 1;
    plan->once = PyMem_Calloc(steps + 1, sizeof *plan->once);
    plan->steps = PyMem_Calloc(steps + 1, sizeof *plan->steps);
    plan->strides = PyMem_Calloc(steps + 1, MAX_OPERANDS * sizeof *plan->strides);
    plan->locations = PyMem_Calloc(values + 1, sizeof *plan->locations);
    plan->item_sizes = PyMem_Calloc(steps + 1, 1);
    plan->forms = PyMem_Calloc(values + 1, 1);
    if (plan->once == NULL || plan->steps == NULL || plan->strides == NULL ||
        plan->locations == NULL || plan->item_sizes == NULL || plan->forms == NULL) {
        drop_plan(plan);
        return NULL;
    }
    return plan;
}

static plan_t *new_plan(const loops_t *loops, const unsigned char *forms) {
    size_t values = (size_t)loops->input_count + (size_t)loops->instruction_count + 1;
    planner at = {.loops = loops, .plan = allocate_plan(loops)};
    at.forms = PyMem_Calloc(values, 1);
    at.last_uses = PyMem_Calloc(values, sizeof *at.last_uses);
    at.free_next = PyMem_Calloc(values, sizeof *at.free_next);
    if (at.plan == NULL || at.forms == NULL || at.last_uses == NULL ||
        at.free_next == NULL) {
        drop_plan(at.plan);
        at.plan = NULL;
        PyErr_NoMemory();
    } else {
        memcpy(at.plan->forms, forms, (size_t)loops->input_count);
        at.strides = at.plan->strides;
        for (int i = 0; i < SIZES; i++)
            at.free_first[i] = NOWHERE;
        find_last_uses(&at);
        find_forms(&at, forms);
        add_steps(&at);
        choose_block(&at);
    }
    PyMem_Free(at.forms);
    PyMem_Free(at.last_uses);
    PyMem_Free(at.free_next);
    return at.plan;
}

/* ==== the arrays of a call: their forms, or that only NumPy knows ==== */

/* False where only NumPy knows what to do. */
static bool take_array(PyArray_Descr *descr, PyObject *value, operand_t *operand) {
    if (!PyArray_CheckExact(value)) {
        if (Py_TYPE(value) != descr->typeobj)
            return false;
        operand->data = dlb_numpy_scalar_value(value);
        operand->count = 1;
        operand->ndim = 0;
        return true;
    }
    const int needed = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    PyArrayObject *array = (PyArrayObject *)value;
    operand->data = PyArray_DATA(array);
    operand->count = PyArray_SIZE(array);
    operand->ndim = PyArray_NDIM(array);
    operand->dims = (const int64_t *)PyArray_DIMS(array);
    return (PyArray_FLAGS(array) & needed) == needed &&
           (PyArray_DESCR(array) == descr ||
            PyArray_EquivTypes(PyArray_DESCR(array), descr));
}

/* Plain memory of the host that no derivative is wanted of; false: torch decides. */
static bool take_tensor(const call_t *at, PyArray_Descr *descr, PyObject *value,
                        operand_t *operand) {
    DLTensor dl;
    DLDataType dtype;
    if (!dlb_torch_is_exact(value) ||
        !dlb_torch_is_ordinary(value, at->thread, false) ||
        dlb_torch_borrow(value, &dl) != 0 || dl.device.device_type != kDLCPU ||
        dl.ndim > DLB_MAX_NDIM || !dlb_is_row_major(&dl) ||
        !dlb_torch_has_memory(value, &dl))
        return false;
    operand->data = dl.data;
    operand->count = dlb_element_count(&dl);
    operand->ndim = dl.ndim;
    operand->dims = dl.shape;
    return operand->count <= at->loops->small &&
           (uintptr_t)dl.data % (uintptr_t)PyDataType_ELSIZE(descr) == 0 &&
           dlb_numpy_dtype((PyObject *)descr, &dtype) &&
           dlb_dtype_key(dtype) == dlb_dtype_key(dl.dtype);
}

/* One element widens nothing, not even an array without elements. */
static npy_intp width(const operand_t *operand) {
    return operand->count == 1 ? -1 : operand->count;
}

static bool is_wider(const operand_t *operand, const operand_t *other) {
    return other == NULL || operand->ndim > other->ndim ||
           (operand->ndim == other->ndim && width(operand) > width(other));
}

/* The dims of `operand`, without ones in front, are the last of `widest`. */
static bool is_suffix(const operand_t *operand, const operand_t *widest) {
    int32_t ndim = operand->ndim;
    const int64_t *dims = operand->dims;
    while (ndim > 0 && *dims == 1) {
        dims++;
        ndim--;
    }
    const int64_t *last = widest->dims + widest->ndim - ndim;
    return memcmp(dims, last, (size_t)ndim * sizeof *dims) == 0;
}

/* A form, or -1 where shapes are mixed in another way. */
static int find_form(const call_t *at, const operand_t *operand) {
    const operand_t *widest = at->widest;
    if (operand->ndim == 0)
        return 0;
    if (operand->ndim == widest->ndim &&
        memcmp(operand->dims, widest->dims,
               (size_t)operand->ndim * sizeof *operand->dims) == 0)
        return FORM_FULL;
    if (operand->count == 1 && at->frame.count != 1)
        return FORM_ONE;
    return is_suffix(operand, widest) ? FORM_SUFFIX : -1;
}

static bool take_operands(call_t *at) {
    const loops_t *loops = at->loops;
    if (loops->small > 0)
        at->thread = dlb_torch_thread_state(true);
    for (int32_t i = 0; i < loops->input_count; i++) {
        operand_t *operand = &at->operands[i];
        if (loops->small > 0
                ? !take_tensor(at, loops->descrs[i], at->values[i], operand)
                : !take_array(loops->descrs[i], at->values[i], operand))
            return false;
        if (operand->ndim > 0 && is_wider(operand, at->widest))
            at->widest = operand;
    }
    at->frame.count = at->widest == NULL ? 0 : at->widest->count;
    for (int32_t i = 0; i < loops->input_count; i++) {
        int form = find_form(at, &at->operands[i]);
        if (form < 0)
            return false;
        at->forms[i] = at->operands[i].form = (unsigned char)form;
    }
    return true;
}

/* ==== new arrays ==== */

/* NULL without an exception: torch allocates it itself. */
static PyObject *new_array(const loops_t *loops, int32_t value, int32_t ndim,
                           const int64_t *dims) {
    PyArray_Descr *descr = loops->descrs[value];
    DLDataType dtype;
    if (loops->small == 0) {
        Py_INCREF(descr);
        return PyArray_NewFromDescr(&PyArray_Type, descr, ndim, (const npy_intp *)dims,
                                    NULL, NULL, 0, NULL);
    }
    if (!dlb_numpy_dtype((PyObject *)descr, &dtype))
        return NULL;
    return dlb_torch_allocate((DLDevice){kDLCPU, 0}, ndim, dims, dtype);
}

static char *data_of(const loops_t *loops, PyObject *array) {
    DLTensor dl = {.data = NULL};
    if (loops->small == 0)
        return PyArray_DATA((PyArrayObject *)array);
    dlb_torch_borrow(array, &dl);
    return dl.data;
}

/* ==== the memory of a call: blocks, buffers, and what points to them ==== */

/* ---- blocks ---- */

/* A suffix that is shorter than a block is laid out repeatedly in a buffer as long as a
 * block; a longer one is walked through, and blocks end where it ends. */
static bool is_repeated(const call_t *at, const operand_t *operand) {
    return operand->form == FORM_SUFFIX && operand->count <= at->plan->block &&
           operand->count < at->frame.count;
}

static void choose_blocks(call_t *at) {
    frame_t *frame = &at->frame;
    npy_intp period = 1, block = at->plan->block;
    frame->row = frame->count;
    for (int32_t i = 0; i < at->loops->input_count; i++) {
        const operand_t *operand = &at->operands[i];
        if (operand->form != FORM_SUFFIX || operand->count == 0)
            continue;
        if (operand->count <= block && operand->count > period)
            period = operand->count;
        else if (operand->count > block && operand->count < frame->row)
            frame->row = operand->count;
    }
    block = block / period * period;
    frame->block = block < frame->row ? block : frame->row;
}

/* ---- memory ---- */

/* Registers that touch look as if they overlapped to some loops, which then take
 * another path. */
static size_t buffer_bytes(const call_t *at, npy_intp item_size) {
    return round_up((size_t)(at->frame.block * item_size)) + ALIGNMENT;
}

static layout_t lay_out(call_t *at) {
    choose_blocks(at);
    const loops_t *loops = at->loops;
    const plan_t *plan = at->plan;
    layout_t layout = {0};
    layout.streams = round_up((size_t)plan->location_count * sizeof(char *));
    size_t streams = (size_t)(loops->input_count + loops->output_count);
    layout.cells = layout.streams + round_up(streams * sizeof(stream_t));
    layout.buffers =
        layout.cells + LARGEST_ITEM * (size_t)(plan->first_register - plan->first_cell);
    layout.buffers = round_up(layout.buffers);
    layout.total = layout.buffers;
    for (int32_t i = 0; i < plan->location_count - plan->first_register; i++)
        layout.total += buffer_bytes(at, plan->item_sizes[i]);
    for (int32_t i = 0; i < loops->input_count; i++)
        if (is_repeated(at, &at->operands[i]))
            layout.total += buffer_bytes(at, item_size_of(loops, i));
    return layout;
}

static void add_stream(call_t *at, int32_t location, char *start, npy_intp count,
                       npy_intp item_size) {
    at->frame.pointers[location] = start;
    at->frame.streams[at->frame.stream_count++] =
        (stream_t){location, item_size, start, start + count * item_size};
}

static char *repeat(const call_t *at, const operand_t *operand, npy_intp item_size,
                    char *buffer) {
    size_t bytes = (size_t)(operand->count * item_size);
    for (npy_intp done = 0; done < at->frame.block; done += operand->count)
        memcpy(buffer + done * item_size, operand->data, bytes);
    return buffer;
}

static void place_memory(call_t *at, char *memory, const layout_t *layout) {
    const loops_t *loops = at->loops;
    const plan_t *plan = at->plan;
    frame_t *frame = &at->frame;
    char *buffer = memory + layout->buffers, *cell = memory + layout->cells;
    frame->pointers = (char **)memory;
    frame->streams = (stream_t *)(memory + layout->streams);
    for (int32_t i = 0; i < loops->input_count; i++) {
        const operand_t *operand = &at->operands[i];
        npy_intp item_size = item_size_of(loops, i);
        if (is_repeated(at, operand)) {
            frame->pointers[i] = repeat(at, operand, item_size, buffer);
            buffer += buffer_bytes(at, item_size);
        } else if (operand->form & FORM_BLOCKS) {
            add_stream(at, i, operand->data, operand->count, item_size);
        } else
            frame->pointers[i] = operand->data;
    }
    for (int32_t i = 0; i < loops->output_count; i++)
        if (at->arrays[i] != NULL)
            add_stream(at, loops->input_count + i, data_of(loops, at->arrays[i]),
                       frame->count, item_size_of(loops, loops->outputs[i]));
    for (int32_t i = plan->first_cell; i < plan->first_register; i++)
        frame->pointers[i] = cell + LARGEST_ITEM * (i - plan->first_cell);
    for (int32_t i = plan->first_register; i < plan->location_count; i++) {
        frame->pointers[i] = buffer;
        buffer += buffer_bytes(at, plan->item_sizes[i - plan->first_register]);
    }
}

/* ==== steps over blocks, without Python ==== */

static void run_steps(const step_t *step, int32_t count, char *const *pointers,
                      npy_intp length) {
    for (const step_t *end = step + count; step < end; step++) {
        char *arguments[MAX_OPERANDS];
        for (int i = 0; i < MAX_OPERANDS; i++)
            arguments[i] = pointers[step->locations[i]];
        step->function(arguments, &length, step->strides, step->data);
    }
}

static void advance(const frame_t *frame, npy_intp length) {
    for (int32_t i = 0; i < frame->stream_count; i++) {
        const stream_t *stream = &frame->streams[i];
        char **pointer = &frame->pointers[stream->location];
        *pointer += length * stream->item_size;
        if (*pointer == stream->end)
            *pointer = stream->start;
    }
}

#define WORK_BETWEEN_SIGNALS (1 << 23) /* elements of steps: 5 to 100 ms */

/* Whether to stop: a signal handler or an inner loop raised. Takes the GIL for it. */
static bool is_interrupted(PyThreadState **released) {
    PyEval_RestoreThread(*released);
    bool stop = PyErr_Occurred() != NULL || PyErr_CheckSignals() < 0;
    *released = PyEval_SaveThread();
    return stop;
}

/* `released`: the thread's state where the GIL is released; NULL where it is held.
 * Flags of floating-point exceptions stay set: NumPy clears them before each loop of
 * its own, and to look at them takes as long as the addition of two numbers. */
static void run_plan(const plan_t *plan, const frame_t *frame,
                     PyThreadState **released) {
    npy_intp work = 0;
    bool stop = false;
    run_steps(plan->once, plan->once_count, frame->pointers, 1);
    for (npy_intp row = 0; row < frame->count && !stop; row += frame->row)
        for (npy_intp done = 0, length; done < frame->row && !stop; done += length) {
            length =
                frame->row - done < frame->block ? frame->row - done : frame->block;
            run_steps(plan->steps, plan->step_count, frame->pointers, length);
            advance(frame, length);
            work += length * plan->step_count;
            if (work >= WORK_BETWEEN_SIGNALS && released != NULL) {
                stop = is_interrupted(released);
                work = 0;
            }
        }
}

/* ==== a call ==== */

#define SMALL_INPUTS 32
#define SMALL_MEMORY 8192
#define GIL_FREE_WORK (1 << 16) /* elements, and 16 for each step */

/* ---- plans ---- */

/* The plan of the last call where it fits, with a reference. */
static plan_t *find_plan(loops_t *loops, const unsigned char *forms) {
    plan_t *plan;
    DLB_BEGIN_EXCLUSIVE(loops);
    plan = loops->plan;
    if (plan == NULL || memcmp(plan->forms, forms, (size_t)loops->input_count) != 0) {
        plan = new_plan(loops, forms);
        if (plan != NULL) {
            drop_plan(loops->plan);
            loops->plan = plan;
        }
    }
    if (plan != NULL)
        plan->references++;
    DLB_END_EXCLUSIVE();
    return plan;
}

/* ---- execution ---- */

static void run_placed(call_t *at) {
    npy_intp steps = at->plan->once_count + at->plan->step_count;
    if (steps * (at->frame.count + 16) < GIL_FREE_WORK) {
        run_plan(at->plan, &at->frame, NULL);
        return;
    }
    PyThreadState *released = PyEval_SaveThread();
    run_plan(at->plan, &at->frame, &released);
    PyEval_RestoreThread(released);
}

/* ---- results ---- */

/* New arrays for the outputs that blocks are written to. -1 without an exception: torch
 * allocates them itself. */
static int allocate_arrays(call_t *at) {
    const loops_t *loops = at->loops;
    for (int32_t i = 0; i < loops->output_count; i++) {
        int32_t value = loops->outputs[i];
        if (at->plan->locations[value] != loops->input_count + i)
            continue;
        at->arrays[i] = new_array(loops, value, at->widest->ndim, at->widest->dims);
        if (at->arrays[i] == NULL)
            return -1;
    }
    return 0;
}

/* An element of rank 0: NumPy gives a scalar, torch a tensor. */
static PyObject *new_element(const loops_t *loops, int32_t value, char *cell) {
    if (loops->small == 0)
        return PyArray_Scalar(cell, loops->descrs[value], NULL);
    PyObject *tensor = new_array(loops, value, 0, NULL);
    if (tensor != NULL)
        memcpy(data_of(loops, tensor), cell, (size_t)item_size_of(loops, value));
    return tensor;
}

/* Results that are no new array: inputs, elements, and repeated outputs. */
static int fill_results(call_t *at) {
    const loops_t *loops = at->loops;
    for (int32_t i = 0; i < loops->output_count; i++) {
        int32_t value = loops->outputs[i], location = at->plan->locations[value];
        if (at->arrays[i] != NULL)
            continue;
        if (value < loops->input_count)
            at->arrays[i] = Py_NewRef(at->values[value]);
        else if (location < at->plan->first_cell)
            at->arrays[i] = Py_NewRef(at->arrays[location - loops->input_count]);
        else if ((at->arrays[i] =
                      new_element(loops, value, at->frame.pointers[location])) == NULL)
            return -1;
    }
    return 0;
}

static int fill_arrays(call_t *at) {
    _Alignas(ALIGNMENT) char small[SMALL_MEMORY];
    char *memory = small, *large = NULL;
    if (allocate_arrays(at) < 0)
        return -1;
    layout_t layout = lay_out(at);
    if (layout.total > SMALL_MEMORY) {
        if ((large = PyMem_RawMalloc(layout.total + ALIGNMENT)) == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        dlb_count_live(scratch, 1);
        memory = (char *)round_up((size_t)large);
    }
    place_memory(at, memory, &layout);
    run_placed(at);
    /* A signal handler, or an inner loop: integers to negative powers. */
    int status = PyErr_Occurred() ? -1 : fill_results(at);
    if (large != NULL)
        dlb_count_live(scratch, -1);
    PyMem_RawFree(large);
    return status;
}

static PyObject *make_results(call_t *at) {
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

static PyObject *decline(const loops_t *loops, PyObject *const *values) {
    if (loops->slow == NULL)
        return Py_NewRef(Py_NotImplemented);
    return PyObject_Vectorcall(loops->slow, values, (size_t)loops->input_count, NULL);
}

static PyObject *run_operands(loops_t *loops, PyObject *const *values,
                              operand_t *operands, unsigned char *forms) {
    call_t at = {
        .loops = loops, .values = values, .operands = operands, .forms = forms};
    if (!take_operands(&at))
        return decline(loops, values);
    plan_t *plan = find_plan(loops, forms);
    if (plan == NULL)
        return NULL;
    at.plan = plan;
    PyObject *result = plan->declines ? NULL : make_results(&at);
    drop_plan(plan);
    return result != NULL || PyErr_Occurred() ? result : decline(loops, values);
}

static PyObject *call(PyObject *object, PyObject *const *values, size_t flagged,
                      PyObject *names) {
    loops_t *loops = (loops_t *)object;
    size_t count = (size_t)PyVectorcall_NARGS(flagged);
    if (names != NULL && PyTuple_GET_SIZE(names) > 0)
        return PyErr_Format(PyExc_TypeError, "Loops: takes no keyword arguments");
    if (count != (size_t)loops->input_count)
        return PyErr_Format(PyExc_TypeError, "Loops: expected %d arrays, got %zu",
                            (int)loops->input_count, count);
    operand_t few[SMALL_INPUTS], *operands = few;
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
    loops_t *self = (loops_t *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    dlb_count_object(programs, 1);
    self->vectorcall = call;
    if (parse_arguments(self, args, kwargs) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((loops_t *)object)->kept);
    Py_VISIT(((loops_t *)object)->slow);
    return 0;
}

/* `kept` stays: every cycle through it contains `slow`. */
static int clear(PyObject *object) {
    Py_CLEAR(((loops_t *)object)->slow);
    return 0;
}

static void dealloc(PyObject *object) {
    loops_t *self = (loops_t *)object;
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_XDECREF(self->kept);
    for (int32_t i = 0; i < self->input_count + self->instruction_count; i++)
        Py_XDECREF(self->descrs[i]);
    PyMem_Free(self->descrs);
    PyMem_Free(self->instructions);
    PyMem_Free(self->outputs);
    drop_plan(self->plan);
    dlb_count_object(programs, -1);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *get_dtypes(PyObject *object, void *Py_UNUSED(closure)) {
    const loops_t *loops = (loops_t *)object;
    PyObject *result = PyTuple_New(loops->output_count);
    for (int32_t i = 0; result != NULL && i < loops->output_count; i++)
        PyTuple_SET_ITEM(result, i, Py_NewRef(loops->descrs[loops->outputs[i]]));
    return result;
}

static PyObject *takes(PyObject *object, PyObject *const *values, Py_ssize_t count) {
    loops_t *loops = (loops_t *)object;
    operand_t *operands;
    if (count != loops->input_count)
        Py_RETURN_FALSE;
    operands = PyMem_Malloc((size_t)count * (sizeof *operands + 1) + sizeof *operands);
    if (operands == NULL)
        return PyErr_NoMemory();
    call_t at = {.loops = loops,
                 .values = values,
                 .operands = operands,
                 .forms = (unsigned char *)(operands + count)};
    plan_t *plan = take_operands(&at) ? find_plan(loops, at.forms) : NULL;
    bool answer = plan != NULL && !plan->declines;
    drop_plan(plan);
    PyMem_Free(operands);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(answer);
}

static PyMethodDef methods[] = {
    {"takes", (PyCFunction)(void (*)(void))takes, METH_FASTCALL,
     "takes($self, /, *arrays)\n--\n\nWhether a call with them runs in the loops."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"dtypes", get_dtypes, NULL, "The dtypes of the outputs.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject dlb_LoopsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Loops",
    .tp_doc = "Element-wise ufuncs of NumPy, run in C block by block.",
    .tp_basicsize = sizeof(loops_t),
    .tp_vectorcall_offset = offsetof(loops_t, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_loops,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = dealloc,
    .tp_methods = methods,
    .tp_getset = properties,
};
