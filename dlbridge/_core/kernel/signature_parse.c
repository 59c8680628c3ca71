/* `Schema.encode()`, nested tuples, to a signature in C.
 *
 * The tuples are read twice: once to count (and to find what is wrong with them), once
 * to fill the tables, which are one allocation together with the signature.
 */
#include "kernel/python.h"

#include <stdlib.h>
#include <string.h>

#define STACK_SIZE 16

typedef struct {
    dlb_signature signature; /* first: the allocation is freed through it */
    dlb_parameter parameters[DLB_MAX_TENSORS];
    dlb_dtype_set dtypes[DLB_MAX_DTYPES];
    dlb_scalar_parameter scalars[DLB_MAX_SCALARS];
} tables;

/* The tables of no fixed size; the pointers are NULL while counting. */
typedef struct {
    tables *out;
    dlb_dim *dims;
    dlb_step *steps;
    uint32_t *keys;
    int32_t dim_count, step_count, key_count;
} reader;

static int refuse(const char *what) {
    PyErr_Format(PyExc_ValueError, "KernelBase: signature: %s", what);
    return -1;
}

static int check_tuple(PyObject *object, Py_ssize_t least, Py_ssize_t most,
                       const char *what) {
    if (PyTuple_Check(object) && PyTuple_GET_SIZE(object) >= least &&
        PyTuple_GET_SIZE(object) <= most)
        return 0;
    PyErr_Format(PyExc_ValueError,
                 "KernelBase: signature: %s must be a tuple of %zd to %zd items, "
                 "got %R",
                 what, least, most, object);
    return -1;
}

/* An integer of 0 <= value < limit. */
static int read_index(PyObject *object, int64_t limit, const char *what,
                      int64_t *value) {
    *value = PyLong_AsLongLong(object);
    if (*value == -1 && PyErr_Occurred())
        return -1;
    if (*value >= 0 && *value < limit)
        return 0;
    PyErr_Format(PyExc_ValueError, "KernelBase: signature: %s is out of range: %R",
                 what, object);
    return -1;
}

/* ---- dims ---- */

/* The one character that says what an item is. */
static int read_kind(PyObject *item, const char *kinds) {
    PyObject *kind = PyTuple_GET_ITEM(item, 0);
    if (PyUnicode_Check(kind) && PyUnicode_GET_LENGTH(kind) == 1) {
        Py_UCS4 character = PyUnicode_READ_CHAR(kind, 0);
        if (character < 128 && strchr(kinds, (int)character) != NULL)
            return (int)character;
    }
    PyErr_Format(PyExc_ValueError, "KernelBase: signature: unknown kind in %R", item);
    return -1;
}

static int read_step(PyObject *item, int32_t name_count, dlb_step *step) {
    if (check_tuple(item, 1, 2, "a step") < 0)
        return -1;
    *step = (dlb_step){.operation = read_kind(item, "cn+-*/")};
    if (step->operation < 0)
        return -1;
    if (step->operation != 'c' && step->operation != 'n')
        return 0;
    if (check_tuple(item, 2, 2, "an operand") < 0)
        return -1;
    if (step->operation == 'n')
        return read_index(PyTuple_GET_ITEM(item, 1), name_count, "a name",
                          &step->value);
    step->value = PyLong_AsLongLong(PyTuple_GET_ITEM(item, 1));
    return step->value == -1 && PyErr_Occurred() ? -1 : 0;
}

int dlb_parse_steps(PyObject *program, int32_t name_count, dlb_step *steps) {
    int32_t depth = 0;
    if (check_tuple(program, 1, 1000, "an expression") < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(program); i++) {
        dlb_step step;
        if (read_step(PyTuple_GET_ITEM(program, i), name_count, &step) < 0)
            return -1;
        depth += step.operation == 'c' || step.operation == 'n' ? 1 : -1;
        if (depth < 1 || depth > STACK_SIZE)
            return refuse("an expression has too few operands, or too many");
        if (steps != NULL)
            steps[i] = step;
    }
    return depth == 1 ? 0 : refuse("an expression leaves more than one value");
}

static int read_expression(reader *in, PyObject *program, dlb_dim *dim) {
    dlb_step *steps = in->steps ? in->steps + in->step_count : NULL;
    if (dlb_parse_steps(program, in->out->signature.name_count, steps) < 0)
        return -1;
    dim->value = in->step_count;
    dim->length = (int32_t)PyTuple_GET_SIZE(program);
    in->step_count += dim->length;
    return 0;
}

static int read_dim(reader *in, PyObject *item) {
    dlb_dim dim = {0};
    const dlb_signature *signature = &in->out->signature;
    if (check_tuple(item, 1, 2, "a dimension") < 0)
        return -1;
    int kind = read_kind(item, "cn_pe"), status = 0;
    if (kind < 0 || (kind != '_' && check_tuple(item, 2, 2, "a dimension") < 0))
        return -1;
    PyObject *value = kind == '_' ? NULL : PyTuple_GET_ITEM(item, 1);
    switch (kind) {
    case 'c':
        dim.kind = DLB_DIM_CONSTANT;
        status = read_index(value, INT64_MAX, "a constant", &dim.value);
        break;
    case 'n':
        dim.kind = DLB_DIM_NAME;
        status = read_index(value, signature->name_count, "a name", &dim.value);
        break;
    case 'p':
        dim.kind = DLB_DIM_PACK;
        status = read_index(value, signature->pack_count, "a pack", &dim.value);
        break;
    case 'e':
        dim.kind = DLB_DIM_EXPRESSION;
        status = read_expression(in, value, &dim);
        break;
    default:
        dim.kind = DLB_DIM_ANY;
    }
    if (in->dims != NULL)
        in->dims[in->dim_count] = dim;
    in->dim_count++;
    return status < 0 ? -1 : dim.kind;
}

static int read_dims(reader *in, PyObject *dims, dlb_parameter *parameter,
                     bool *has_expression) {
    if (check_tuple(dims, 0, DLB_MAX_NDIM, "the dimensions") < 0)
        return -1;
    parameter->dims = in->dims ? in->dims + in->dim_count : NULL;
    parameter->dim_count = (int32_t)PyTuple_GET_SIZE(dims);
    parameter->pack = -1;
    for (int32_t i = 0; i < parameter->dim_count; i++) {
        int kind = read_dim(in, PyTuple_GET_ITEM(dims, i));
        if (kind < 0)
            return -1;
        *has_expression |= kind == DLB_DIM_EXPRESSION;
        if (kind == DLB_DIM_PACK && parameter->pack >= 0)
            return refuse("a parameter has two packs");
        if (kind == DLB_DIM_PACK)
            parameter->pack = i;
    }
    return 0;
}

/* ---- the parts of a signature ---- */

/* (dtype_index, dims, optional, mutated) of an input, (dtype_index, dims) of a result
 */
static int read_parameter(reader *in, PyObject *item, bool is_result,
                          dlb_parameter *parameter) {
    dlb_signature *signature = &in->out->signature;
    Py_ssize_t size = is_result ? 2 : 4;
    int64_t dtype;
    bool has_expression = false;
    if (check_tuple(item, size, size, is_result ? "a result" : "a parameter") < 0 ||
        read_index(PyTuple_GET_ITEM(item, 0), signature->dtype_count, "a dtype",
                   &dtype) < 0 ||
        read_dims(in, PyTuple_GET_ITEM(item, 1), parameter, &has_expression) < 0)
        return -1;
    parameter->dtype = (int32_t)dtype;
    if (is_result)
        return 0;
    parameter->optional = PyObject_IsTrue(PyTuple_GET_ITEM(item, 2)) == 1;
    parameter->mutated = PyObject_IsTrue(PyTuple_GET_ITEM(item, 3)) == 1;
    signature->has_mutated |= parameter->mutated;
    signature->has_expressions |= has_expression;
    return PyErr_Occurred() ? -1 : 0;
}

static int read_tensors(reader *in, PyObject *inputs, PyObject *results) {
    dlb_signature *signature = &in->out->signature;
    if (check_tuple(inputs, 0, DLB_MAX_TENSORS, "the parameters") < 0 ||
        check_tuple(results, 0, DLB_MAX_TENSORS, "the results") < 0)
        return -1;
    signature->input_count = (int32_t)PyTuple_GET_SIZE(inputs);
    signature->result_count = (int32_t)PyTuple_GET_SIZE(results);
    if (signature->input_count + signature->result_count > DLB_MAX_TENSORS)
        return refuse("there are more than 32 parameters and results");
    dlb_parameter *next = in->out->parameters;
    for (int32_t i = 0; i < signature->input_count; i++)
        if (read_parameter(in, PyTuple_GET_ITEM(inputs, i), false, next++) < 0)
            return -1;
    for (int32_t i = 0; i < signature->result_count; i++)
        if (read_parameter(in, PyTuple_GET_ITEM(results, i), true, next++) < 0)
            return -1;
    return 0;
}

static int read_dtypes(reader *in, PyObject *sets) {
    if (check_tuple(sets, 0, DLB_MAX_DTYPES, "the dtypes") < 0)
        return -1;
    in->out->signature.dtype_count = (int32_t)PyTuple_GET_SIZE(sets);
    for (int32_t i = 0; i < in->out->signature.dtype_count; i++) {
        PyObject *set = PyTuple_GET_ITEM(sets, i);
        if (check_tuple(set, 0, 1000, "the dtypes of a variable") < 0)
            return -1;
        dlb_dtype_set *out = &in->out->dtypes[i];
        out->keys = in->keys ? in->keys + in->key_count : NULL;
        out->key_count = (int32_t)PyTuple_GET_SIZE(set);
        for (int32_t k = 0; k < out->key_count; k++) {
            int64_t key;
            if (read_index(PyTuple_GET_ITEM(set, k), UINT32_MAX, "a dtype", &key) < 0)
                return -1;
            if (in->keys != NULL)
                in->keys[in->key_count] = (uint32_t)key;
            in->key_count++;
        }
    }
    return 0;
}

/* DLB_NONE with an exception for anything else. */
static dlb_scalar_kind parse_scalar_kind(PyObject *name) {
    static const struct {
        const char *name;
        dlb_scalar_kind kind;
    } kinds[] = {
        {"int", DLB_INT}, {"bool", DLB_INT}, {"float", DLB_FLOAT}, {"str", DLB_STRING}};
    for (size_t i = 0; PyUnicode_Check(name) && i < 4; i++)
        if (PyUnicode_CompareWithASCIIString(name, kinds[i].name) == 0)
            return kinds[i].kind;
    PyErr_Format(PyExc_ValueError,
                 "KernelBase: the kind of a scalar is int, bool, float or str, got %R",
                 name);
    return DLB_NONE;
}

/* (kind, optional, name or -1) */
static int read_scalar(dlb_signature *signature, PyObject *item,
                       dlb_scalar_parameter *out) {
    if (check_tuple(item, 3, 3, "a scalar") < 0)
        return -1;
    PyObject *kind = PyTuple_GET_ITEM(item, 0);
    *out = (dlb_scalar_parameter){
        .kind = parse_scalar_kind(kind),
        .name = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(item, 2)),
        .optional = PyObject_IsTrue(PyTuple_GET_ITEM(item, 1)) == 1,
    };
    if (PyErr_Occurred())
        return -1;
    out->is_bool = PyUnicode_CompareWithASCIIString(kind, "bool") == 0;
    if (out->name < -1 || out->name >= signature->name_count)
        return refuse("a scalar's name is out of range");
    if (out->name >= 0 && (out->kind != DLB_INT || out->is_bool || out->optional))
        return refuse("a scalar that is a dimension must be int");
    signature->has_sizes |= out->name >= 0;
    return 0;
}

static int read_scalars(reader *in, PyObject *scalars) {
    if (check_tuple(scalars, 0, DLB_MAX_SCALARS, "the scalars") < 0)
        return -1;
    in->out->signature.scalar_count = (int32_t)PyTuple_GET_SIZE(scalars);
    for (int32_t i = 0; i < in->out->signature.scalar_count; i++)
        if (read_scalar(&in->out->signature, PyTuple_GET_ITEM(scalars, i),
                        &in->out->scalars[i]) < 0)
            return -1;
    return 0;
}

static int read_signature(reader *in, PyObject *encoded) {
    dlb_signature *signature = &in->out->signature;
    int64_t names, packs;
    if (check_tuple(encoded, 6, 6, "it") < 0 ||
        read_index(PyTuple_GET_ITEM(encoded, 1), DLB_MAX_NAMES + 1,
                   "the number of named dimensions", &names) < 0 ||
        read_index(PyTuple_GET_ITEM(encoded, 2), DLB_MAX_PACKS + 1,
                   "the number of packs", &packs) < 0)
        return -1;
    signature->name_count = (int32_t)names;
    signature->pack_count = (int32_t)packs;
    if (read_dtypes(in, PyTuple_GET_ITEM(encoded, 0)) < 0 ||
        read_tensors(in, PyTuple_GET_ITEM(encoded, 3), PyTuple_GET_ITEM(encoded, 4)) <
            0)
        return -1;
    return read_scalars(in, PyTuple_GET_ITEM(encoded, 5));
}

/* ---- both passes ---- */

dlb_signature *dlb_parse_signature(PyObject *encoded) {
    reader in = {.out = calloc(1, sizeof(tables))};
    if (in.out == NULL)
        return (dlb_signature *)PyErr_NoMemory();
    int status = read_signature(&in, encoded);
    size_t dims = (size_t)in.dim_count, steps = (size_t)in.step_count;
    free(in.out);
    if (status < 0)
        return NULL;
    tables *out =
        calloc(1, sizeof *out + dims * sizeof(dlb_dim) + steps * sizeof(dlb_step) +
                      (size_t)in.key_count * sizeof(uint32_t));
    if (out == NULL)
        return (dlb_signature *)PyErr_NoMemory();
    in = (reader){.out = out, .steps = (dlb_step *)(out + 1)};
    in.dims = (dlb_dim *)(in.steps + steps);
    in.keys = (uint32_t *)(in.dims + dims);
    out->signature.parameters = out->parameters;
    out->signature.dtypes = out->dtypes;
    out->signature.scalars = out->scalars;
    out->signature.steps = in.steps;
    if (read_signature(&in, encoded) == 0)
        return &out->signature;
    free(out);
    return NULL;
}
