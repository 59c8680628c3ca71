/* native.CudaLaunch, made of tuples by dlbridge.kernels.kinds.cuda_launch and never changed.
 */
#include "abi/launch.h"
#include "kernel/python.h"

#include <string.h>
#include <structmember.h>

static int refuse(const char *what, PyObject *item) {
    PyErr_Format(PyExc_ValueError, "CudaLaunch: %s: %R", what, item);
    return -1;
}

/* ---- values: (name, ((tensor, start, stop), ...)) ---- */

static int read_source(dlb_launch *self, PyObject *item) {
    dlb_launch_source *source = &self->sources[self->source_count];
    if (self->source_count == DLB_LAUNCH_VALUES || !PyTuple_Check(item))
        return refuse("no source of a value, or too many", item);
    if (!PyArg_ParseTuple(item, "iii;CudaLaunch: a source", &source->tensor,
                          &source->start, &source->stop))
        return -1;
    if (source->tensor < -DLB_MAX_SCALARS || source->tensor >= DLB_MAX_TENSORS)
        return refuse("a source is wrong", item);
    self->source_count++;
    return 0;
}

static int read_value(dlb_launch *self, PyObject *item) {
    PyObject *sources;
    dlb_launch_value *value = &self->values[self->value_count];
    if (self->value_count == DLB_LAUNCH_VALUES || !PyTuple_Check(item))
        return refuse("no value, or too many", item);
    if (!PyArg_ParseTuple(item, "sO!;CudaLaunch: a value", &value->name, &PyTuple_Type,
                          &sources))
        return -1;
    value->first = self->source_count;
    value->count = (int32_t)PyTuple_GET_SIZE(sources);
    for (int32_t i = 0; i < value->count; i++)
        if (read_source(self, PyTuple_GET_ITEM(sources, i)) < 0)
            return -1;
    self->value_count++;
    return 0;
}

/* ---- parameters: (name, kind, index, size, is_signed, dim) ---- */

static bool is_within(const dlb_launch *self, const dlb_launch_parameter *made) {
    const int32_t limits[][2] = {{'t', DLB_MAX_TENSORS},   {'s', DLB_MAX_TENSORS},
                                 {'i', DLB_MAX_SCALARS},   {'f', DLB_MAX_SCALARS},
                                 {'v', self->value_count}, {'c', INT32_MAX}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (made->kind == limits[i][0])
            return made->index >= 0 && made->index < limits[i][1];
    return false;
}

static int read_parameter(dlb_launch *self, PyObject *item) {
    int kind, size, is_signed, dim;
    dlb_launch_parameter *made = &self->parameters[self->parameter_count];
    if (self->parameter_count == DLB_LAUNCH_PARAMETERS || !PyTuple_Check(item))
        return refuse("no parameter, or too many", item);
    if (!PyArg_ParseTuple(item, "sCiipi;CudaLaunch: a parameter", &made->name, &kind,
                          &made->index, &size, &is_signed, &dim))
        return -1;
    made->kind = (char)kind;
    made->size = (uint8_t)size;
    made->is_signed = is_signed;
    made->dim = (int16_t)dim;
    if (!is_within(self, made) || size < 1 || size > 8 || dim < 0)
        return refuse("a parameter is wrong", item);
    self->parameter_count++;
    return 0;
}

/* ---- programs: steps as in Schema.encode(), over the values ---- */

static int check_constant(const dlb_launch *self, int index) {
    char text[128];
    const dlb_step *step = &self->steps[self->programs[index].first];
    if (step->operation != 'c' ||
        dlb_launch_refusal(index, step->value, text, sizeof text) == NULL)
        return 0;
    PyErr_SetString(PyExc_ValueError, text);
    return -1;
}

static int read_program(dlb_launch *self, PyObject *item, int index) {
    dlb_launch_program *program = &self->programs[index];
    if (!PyTuple_Check(item) ||
        PyTuple_GET_SIZE(item) > DLB_LAUNCH_STEPS - self->step_count)
        return refuse("no expression, or too long", item);
    program->first = self->step_count;
    program->length = (int32_t)PyTuple_GET_SIZE(item);
    self->step_count += program->length;
    if (dlb_parse_steps(item, self->value_count, self->steps + program->first) < 0)
        return -1;
    return program->length == 1 ? check_constant(self, index) : 0;
}

/* ---- the type ---- */

static int read_all(dlb_launch *self, PyObject *values, PyObject *parameters,
                    PyObject *programs) {
    if (PyTuple_GET_SIZE(programs) != DLB_LAUNCH_PROGRAMS)
        return refuse("there must be seven expressions", programs);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (read_value(self, PyTuple_GET_ITEM(values, i)) < 0)
            return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameters); i++)
        if (read_parameter(self, PyTuple_GET_ITEM(parameters, i)) < 0)
            return -1;
    for (int i = 0; i < DLB_LAUNCH_PROGRAMS; i++)
        if (read_program(self, PyTuple_GET_ITEM(programs, i), i) < 0)
            return -1;
    return 0;
}

static PyObject *launch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"load", "values", "parameters", "programs", NULL};
    PyObject *load, *values, *parameters, *programs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!:CudaLaunch", names, &load,
                                     &PyTuple_Type, &values, &PyTuple_Type, &parameters,
                                     &PyTuple_Type, &programs))
        return NULL;
    dlb_launch *self = (dlb_launch *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->load = Py_NewRef(load);
    self->keeps = PyTuple_Pack(2, values, parameters);
    if (self->keeps == NULL || read_all(self, values, parameters, programs) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void launch_dealloc(PyObject *object) {
    dlb_launch *self = (dlb_launch *)object;
    Py_XDECREF(self->load);
    Py_XDECREF(self->keeps);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef launch_members[] = {
    {"load", T_OBJECT, offsetof(dlb_launch, load), READONLY, NULL},
    {0},
};

PyTypeObject dlb_LaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.CudaLaunch",
    .tp_doc = "How a GPU kernel is launched: parameters, grid, block, shared memory.",
    .tp_basicsize = sizeof(dlb_launch),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = launch_new,
    .tp_dealloc = launch_dealloc,
    .tp_members = launch_members,
};
