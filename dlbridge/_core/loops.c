/* native.Loops: a call. Arrays become forms, forms a plan, the plan results. */
#include "loops.h"

#include <string.h>
#include <structmember.h>

#define SMALL_INPUTS 32
#define SMALL_MEMORY 8192
#define ALIGNMENT 64
#define GIL_FREE_WORK (1 << 16) /* elements, and 16 for each step */

/* An input of a call. */
typedef struct {
    char *data;
    npy_intp count;
    unsigned char form;
    _Alignas(DLB_LARGEST_ITEM) char cell[DLB_LARGEST_ITEM]; /* of a NumPy scalar */
} operand;

typedef struct {
    const dlb_loops *loops;
    PyObject *const *values;
    operand *operands;
    unsigned char *forms;
    PyArrayObject *widest; /* it has the common shape; NULL: all have rank 0 */
    const dlb_loops_plan *plan;
    dlb_loops_frame frame;
    PyObject *
        *arrays; /* by output: new arrays; NULL: not an array, or an earlier one */
} call_state;

/* ---- inputs ---- */

/* False where only NumPy knows what to do. */
static bool take_operand(PyArray_Descr *descr, PyObject *value, operand *operand) {
    if (!PyArray_CheckExact(value)) {
        if (Py_TYPE(value) != descr->typeobj)
            return false;
        PyArray_ScalarAsCtype(value, operand->cell);
        operand->data = operand->cell;
        operand->count = 1;
        return true;
    }
    const int needed = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    PyArrayObject *array = (PyArrayObject *)value;
    operand->data = PyArray_DATA(array);
    operand->count = PyArray_SIZE(array);
    return (PyArray_FLAGS(array) & needed) == needed &&
           (PyArray_DESCR(array) == descr ||
            PyArray_EquivTypes(PyArray_DESCR(array), descr));
}

static int rank(PyObject *value) {
    return PyArray_CheckExact(value) ? PyArray_NDIM((PyArrayObject *)value) : 0;
}

/* One element widens nothing, not even what has no elements. */
static npy_intp width(PyArrayObject *array) {
    npy_intp size = PyArray_SIZE(array);
    return size == 1 ? -1 : size;
}

static bool is_wider(PyArrayObject *array, PyArrayObject *other) {
    return other == NULL || PyArray_NDIM(array) > PyArray_NDIM(other) ||
           (PyArray_NDIM(array) == PyArray_NDIM(other) && width(array) > width(other));
}

/* The dims of `array`, without ones in front, are the last of `widest`. */
static bool is_suffix(PyArrayObject *array, PyArrayObject *widest) {
    int ndim = PyArray_NDIM(array);
    const npy_intp *dims = PyArray_DIMS(array);
    while (ndim > 0 && *dims == 1) {
        dims++;
        ndim--;
    }
    const npy_intp *last = PyArray_DIMS(widest) + PyArray_NDIM(widest) - ndim;
    return memcmp(dims, last, (size_t)ndim * sizeof *dims) == 0;
}

/* A form, or -1 where shapes are mixed in another way. */
static int find_form(const call_state *at, PyArrayObject *array, npy_intp count) {
    PyArrayObject *widest = at->widest;
    int ndim = PyArray_NDIM(array);
    if (ndim == PyArray_NDIM(widest) &&
        memcmp(PyArray_DIMS(array), PyArray_DIMS(widest),
               (size_t)ndim * sizeof(npy_intp)) == 0)
        return DLB_FORM_FULL;
    if (count == 1 && at->frame.count != 1)
        return DLB_FORM_ONE;
    return is_suffix(array, widest) ? DLB_FORM_SUFFIX : -1;
}

static bool take_operands(call_state *at) {
    int32_t count = at->loops->input_count;
    for (int32_t i = 0; i < count; i++) {
        PyObject *value = at->values[i];
        if (!take_operand(at->loops->descrs[i], value, &at->operands[i]))
            return false;
        if (rank(value) > 0 && is_wider((PyArrayObject *)value, at->widest))
            at->widest = (PyArrayObject *)value;
    }
    at->frame.count = at->widest == NULL ? 0 : PyArray_SIZE(at->widest);
    for (int32_t i = 0; i < count; i++) {
        PyObject *value = at->values[i];
        int form = 0;
        if (rank(value) > 0)
            form = find_form(at, (PyArrayObject *)value, at->operands[i].count);
        if (form < 0)
            return false;
        at->forms[i] = at->operands[i].form = (unsigned char)form;
    }
    return true;
}

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

/* ---- blocks ---- */

/* A suffix that is shorter than a block is laid out repeatedly in a buffer as long as a
 * block; a longer one is walked through, and blocks end where it ends. */
static bool is_repeated(const call_state *at, const operand *operand) {
    return operand->form == DLB_FORM_SUFFIX && operand->count <= at->plan->block &&
           operand->count < at->frame.count;
}

static void choose_blocks(call_state *at) {
    dlb_loops_frame *frame = &at->frame;
    npy_intp period = 1, block = at->plan->block;
    frame->row = frame->count;
    for (int32_t i = 0; i < at->loops->input_count; i++) {
        const operand *operand = &at->operands[i];
        if (operand->form != DLB_FORM_SUFFIX || operand->count == 0)
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

static size_t round_up(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Registers that touch look as if they overlapped to some loops, which then take
 * another path. */
static size_t buffer_bytes(const call_state *at, npy_intp item_size) {
    return round_up((size_t)(at->frame.block * item_size)) + ALIGNMENT;
}

typedef struct {
    size_t pointers, streams, cells, buffers, total;
} memory_layout;

static memory_layout lay_out(const call_state *at) {
    const dlb_loops *loops = at->loops;
    const dlb_loops_plan *plan = at->plan;
    memory_layout layout = {0};
    layout.streams = round_up((size_t)plan->location_count * sizeof(char *));
    size_t streams = (size_t)(loops->input_count + loops->output_count);
    layout.cells = layout.streams + round_up(streams * sizeof(dlb_loop_stream));
    layout.buffers = layout.cells + DLB_LARGEST_ITEM * (size_t)(plan->first_register -
                                                                plan->first_cell);
    layout.buffers = round_up(layout.buffers);
    layout.total = layout.buffers;
    for (int32_t i = 0; i < plan->location_count - plan->first_register; i++)
        layout.total += buffer_bytes(at, plan->item_sizes[i]);
    for (int32_t i = 0; i < loops->input_count; i++)
        if (is_repeated(at, &at->operands[i]))
            layout.total += buffer_bytes(at, dlb_loops_item_size(loops, i));
    return layout;
}

static void add_stream(call_state *at, int32_t location, char *start, npy_intp count,
                       npy_intp item_size) {
    at->frame.pointers[location] = start;
    at->frame.streams[at->frame.stream_count++] =
        (dlb_loop_stream){location, item_size, start, start + count * item_size};
}

static char *repeat(const call_state *at, const operand *operand, npy_intp item_size,
                    char *buffer) {
    size_t bytes = (size_t)(operand->count * item_size);
    for (npy_intp done = 0; done < at->frame.block; done += operand->count)
        memcpy(buffer + done * item_size, operand->data, bytes);
    return buffer;
}

static void place_all(call_state *at, char *memory, const memory_layout *layout) {
    const dlb_loops *loops = at->loops;
    const dlb_loops_plan *plan = at->plan;
    dlb_loops_frame *frame = &at->frame;
    char *buffer = memory + layout->buffers, *cell = memory + layout->cells;
    frame->pointers = (char **)memory;
    frame->streams = (dlb_loop_stream *)(memory + layout->streams);
    for (int32_t i = 0; i < loops->input_count; i++) {
        const operand *operand = &at->operands[i];
        npy_intp item_size = dlb_loops_item_size(loops, i);
        if (is_repeated(at, operand)) {
            frame->pointers[i] = repeat(at, operand, item_size, buffer);
            buffer += buffer_bytes(at, item_size);
        } else if (operand->form & DLB_FORM_BLOCKS) {
            add_stream(at, i, operand->data, operand->count, item_size);
        } else
            frame->pointers[i] = operand->data;
    }
    for (int32_t i = 0; i < loops->output_count; i++)
        if (at->arrays[i] != NULL)
            add_stream(at, loops->input_count + i,
                       PyArray_DATA((PyArrayObject *)at->arrays[i]), frame->count,
                       dlb_loops_item_size(loops, loops->outputs[i]));
    for (int32_t i = plan->first_cell; i < plan->first_register; i++)
        frame->pointers[i] = cell + DLB_LARGEST_ITEM * (i - plan->first_cell);
    for (int32_t i = plan->first_register; i < plan->location_count; i++) {
        frame->pointers[i] = buffer;
        buffer += buffer_bytes(at, plan->item_sizes[i - plan->first_register]);
    }
}

/* ---- execution ---- */

static void run_placed(call_state *at) {
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
static int allocate_arrays(call_state *at) {
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
static int fill_results(call_state *at) {
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

static int fill_arrays(call_state *at) {
    _Alignas(ALIGNMENT) char small[SMALL_MEMORY];
    char *memory = small, *large = NULL;
    if (allocate_arrays(at) < 0)
        return -1;
    choose_blocks(at);
    memory_layout layout = lay_out(at);
    if (layout.total > SMALL_MEMORY) {
        if ((large = PyMem_RawMalloc(layout.total + ALIGNMENT)) == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memory = (char *)round_up((size_t)large);
    }
    place_all(at, memory, &layout);
    run_placed(at);
    /* An inner loop may have raised: integers to negative powers. */
    int status = PyErr_Occurred() ? -1 : fill_results(at);
    PyMem_RawFree(large);
    return status;
}

static PyObject *make_results(call_state *at) {
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
                              operand *operands, unsigned char *forms) {
    call_state at = {
        .loops = loops, .values = values, .operands = operands, .forms = forms};
    if (!take_operands(&at))
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
    operand few[SMALL_INPUTS], *operands = few;
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
