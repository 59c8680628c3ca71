/* A compiled schema: made of what Python says, then compared with tensors, whose dims
 * and dtypes are bound or do not fit. Only making one needs Python. */
#include "kernel/kernel.h"
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

#define STACK_SIZE 16 /* read_steps refuses programs that need more */

/* Floor division, as in Python. */
static bool divide(int64_t a, int64_t b, int64_t *result) {
    if (b == 0 || (a == INT64_MIN && b == -1))
        return false;
    *result = a / b - (a % b != 0 && (a < 0) != (b < 0));
    return true;
}

static bool operate(int32_t operation, int64_t a, int64_t b, int64_t *result) {
    switch (operation) {
    case '+':
        return !__builtin_add_overflow(a, b, result);
    case '-':
        return !__builtin_sub_overflow(a, b, result);
    case '*':
        return !__builtin_mul_overflow(a, b, result);
    default:
        return divide(a, b, result);
    }
}

bool dlb_steps_run(const dlb_step *steps, int32_t length, const int64_t *names,
                   int64_t *value) {
    int64_t stack[STACK_SIZE] = {0};
    int32_t depth = 0;
    for (const dlb_step *step = steps; step < steps + length; step++) {
        if (step->operation == 'c') {
            stack[depth++] = step->value;
        } else if (step->operation == 'n') {
            stack[depth++] = names[step->value];
        } else {
            depth--;
            if (!operate(step->operation, stack[depth - 1], stack[depth],
                         &stack[depth - 1]))
                return false;
        }
    }
    *value = stack[0];
    return true;
}

typedef enum {
    VALUE_UNKNOWN, /* a name is not bound */
    VALUE_INVALID, /* divided by zero, or beyond 64 bits */
    VALUE_KNOWN
} value_state;

static value_state evaluate(const dlb_signature *signature, const dlb_dim *dim,
                            const dlb_bindings *bindings, int64_t *value) {
    const dlb_step *steps = &signature->steps[dim->value];
    for (const dlb_step *step = steps; step < steps + dim->length; step++)
        if (step->operation == 'n' && !dlb_set_has(bindings->has_name, step->value))
            return VALUE_UNKNOWN;
    return dlb_steps_run(steps, dim->length, bindings->names, value) ? VALUE_KNOWN
                                                                     : VALUE_INVALID;
}

/* ---- tensors against parameters ---- */

/* False: the dtype is none of the variable's. */
static inline bool bind_dtype(const dlb_signature *signature, int32_t index,
                              uint32_t key, dlb_bindings *bindings) {
    const dlb_dtype_set *set = &signature->dtypes[index];
    int32_t i = 0;
    while (i < set->key_count && set->keys[i] != key)
        i++;
    if (i == set->key_count && i > 0)
        return false;
    dlb_set_add(&bindings->has_dtype, index);
    bindings->dtypes[index] = key;
    return true;
}

static inline bool match_dtype(const dlb_signature *signature, int32_t index,
                               uint32_t key, dlb_bindings *bindings) {
    if (dlb_set_has(&bindings->has_dtype, index))
        return bindings->dtypes[index] == key;
    return bind_dtype(signature, index, key, bindings);
}

static inline bool match_name(int64_t index, int64_t extent, dlb_bindings *bindings) {
    if (dlb_set_has(bindings->has_name, index))
        return bindings->names[index] == extent;
    dlb_set_add(bindings->has_name, index);
    bindings->names[index] = extent;
    return true;
}

/* Expressions are left for later: their names may be bound by tensors to come. */
static inline bool match_dims(const dlb_dim *dims, int32_t count, const int64_t *shape,
                              dlb_bindings *bindings) {
    for (int32_t i = 0; i < count; i++)
        if (dims[i].kind == DLB_DIM_NAME) {
            if (!match_name(dims[i].value, shape[i], bindings))
                return false;
        } else if (dims[i].kind == DLB_DIM_CONSTANT && dims[i].value != shape[i]) {
            return false;
        }
    return true;
}

static bool match_pack(int64_t index, int32_t ndim, const int64_t *shape,
                       dlb_bindings *bindings) {
    if (!dlb_set_has(bindings->has_pack, index)) {
        dlb_set_add(bindings->has_pack, index);
        bindings->packs[index].ndim = ndim;
        bindings->packs[index].shape = shape;
        return true;
    }
    return bindings->packs[index].ndim == ndim &&
           (ndim == 0 || memcmp(bindings->packs[index].shape, shape,
                                (size_t)ndim * sizeof *shape) == 0);
}

static inline bool match(const dlb_signature *signature, const dlb_parameter *parameter,
                         const DLTensor *tensor, dlb_bindings *bindings) {
    if (tensor->ndim < 0)
        return parameter->optional;
    if (!match_dtype(signature, parameter->dtype, dlb_dtype_key(tensor->dtype),
                     bindings))
        return false;
    const dlb_dim *dims = parameter->dims;
    int32_t pack = parameter->pack, count = parameter->dim_count;
    if (pack < 0)
        return tensor->ndim == count &&
               match_dims(dims, count, tensor->shape, bindings);
    int32_t size = tensor->ndim - (count - 1);
    return size >= 0 && match_dims(dims, pack, tensor->shape, bindings) &&
           match_pack(dims[pack].value, size, tensor->shape + pack, bindings) &&
           match_dims(dims + pack + 1, count - pack - 1, tensor->shape + pack + size,
                      bindings);
}

/* Of a tensor that has as many dimensions as `match` demands. */
static int32_t place_of(const dlb_parameter *parameter, const DLTensor *tensor,
                        int32_t dim) {
    bool after_pack = parameter->pack >= 0 && dim > parameter->pack;
    return after_pack ? tensor->ndim - (parameter->dim_count - dim) : dim;
}

/* The tensor has as many dimensions as `match` demands. An expression whose names only
 * a left out tensor would have bound says nothing. */
static bool match_expressions(const dlb_signature *signature,
                              const dlb_parameter *parameter, const DLTensor *tensor,
                              const dlb_bindings *bindings) {
    for (int32_t i = 0; i < parameter->dim_count; i++) {
        const dlb_dim *dim = &parameter->dims[i];
        int64_t value = -1;
        if (dim->kind == DLB_DIM_EXPRESSION &&
            evaluate(signature, dim, bindings, &value) != VALUE_UNKNOWN &&
            value != tensor->shape[place_of(parameter, tensor, i)])
            return false;
    }
    return true;
}

/* False: an extent is negative. */
static bool bind_pack_list(const dlb_list *list, int32_t pack, dlb_bindings *bindings) {
    for (int64_t i = 0; i < list->count; i++)
        if (list->ints[i] < 0)
            return false;
    dlb_set_add(bindings->has_pack, pack);
    bindings->packs[pack].ndim = (int32_t)list->count;
    bindings->packs[pack].shape = list->ints;
    return true;
}

/* False: one is negative, or a dtype that may not be. */
static bool bind_sizes(const dlb_signature *signature, const dlb_scalar *scalars,
                       dlb_bindings *bindings) {
    for (int32_t i = 0; i < signature->scalar_count; i++) {
        int32_t name = signature->scalars[i].name, dtype = signature->scalars[i].dtype;
        if (dtype >= 0 && scalars[i].kind != DLB_NONE &&
            !bind_dtype(signature, dtype, (uint32_t)scalars[i].value.i, bindings))
            return false;
        int32_t pack = signature->scalars[i].pack;
        if (pack >= 0 && !bind_pack_list(scalars[i].value.list, pack, bindings))
            return false;
        if (name < 0)
            continue;
        if (scalars[i].value.i < 0)
            return false;
        dlb_set_add(bindings->has_name, name);
        bindings->names[name] = scalars[i].value.i;
    }
    return true;
}

/* The expression is `factor` times the name, plus `base`. */
bool dlb_signature_solve(const dlb_signature *signature, const dlb_solution *solution,
                         int64_t extent, int64_t *names) {
    const dlb_dim *dim =
        &signature->parameters[solution->parameter].dims[solution->dim];
    const dlb_step *steps = &signature->steps[dim->value];
    int64_t *name = &names[solution->name], base, next, factor, rest, back;
    *name = 0;
    if (!dlb_steps_run(steps, dim->length, names, &base))
        return false;
    *name = 1;
    return dlb_steps_run(steps, dim->length, names, &next) &&
           operate('-', next, base, &factor) && operate('-', extent, base, &rest) &&
           operate('/', rest, factor, name) && *name >= 0 &&
           operate('*', *name, factor, &back) && back == rest;
}

/* The index of the first input without a solution, or -1. */
static int bind_solutions(const dlb_signature *signature, const DLTensor *inputs,
                          dlb_bindings *bindings) {
    for (int32_t i = 0; i < signature->solution_count; i++) {
        const dlb_solution *solution = &signature->solutions[i];
        const DLTensor *tensor = &inputs[solution->parameter];
        const dlb_parameter *parameter = &signature->parameters[solution->parameter];
        if (dlb_set_has(bindings->has_name, solution->name))
            continue;
        int32_t place = place_of(parameter, tensor, solution->dim);
        if (!dlb_signature_solve(signature, solution, tensor->shape[place],
                                 bindings->names))
            return solution->parameter;
        dlb_set_add(bindings->has_name, solution->name);
    }
    return -1;
}

int dlb_signature_bind(const dlb_signature *signature, const DLTensor *inputs,
                       const dlb_scalar *scalars, dlb_bindings *bindings) {
    if (!signature->is_large) {
        bindings->has_name = &bindings->own_sets[0];
        bindings->has_pack = &bindings->own_sets[1];
        bindings->names = bindings->own_names;
        bindings->packs = bindings->own_packs;
    }
    bindings->has_dtype = 0;
    dlb_set_clear(bindings->has_name, signature->name_count);
    dlb_set_clear(bindings->has_pack, signature->pack_count);
    if (signature->has_sizes && !bind_sizes(signature, scalars, bindings))
        return DLB_MOST_TENSORS;
    for (int32_t i = 0; i < signature->input_count; i++)
        if (!match(signature, &signature->parameters[i], &inputs[i], bindings))
            return i;
    if (!signature->has_expressions)
        return -1;
    int unsolved = bind_solutions(signature, inputs, bindings);
    if (unsolved >= 0)
        return unsolved;
    for (int32_t i = 0; i < signature->input_count; i++)
        if (inputs[i].ndim >= 0 &&
            !match_expressions(signature, &signature->parameters[i], &inputs[i],
                               bindings))
            return i;
    return -1;
}

/* ---- results ---- */

bool dlb_signature_fits_result(const dlb_signature *signature, int result,
                               const DLTensor *tensor, dlb_bindings *bindings) {
    const dlb_parameter *parameter =
        &signature->parameters[signature->input_count + result];
    return tensor->ndim >= 0 && match(signature, parameter, tensor, bindings) &&
           match_expressions(signature, parameter, tensor, bindings);
}

static bool find_dtype(const dlb_signature *signature, int32_t index,
                       const dlb_bindings *bindings, DLDataType *dtype) {
    const dlb_dtype_set *set = &signature->dtypes[index];
    uint32_t key = set->key_count == 1 ? set->keys[0] : 0;
    if (dlb_set_has(&bindings->has_dtype, index))
        key = bindings->dtypes[index];
    *dtype = dlb_dtype_of_key(key);
    return key != 0;
}

/* -1: not determined, or no extent. */
static int64_t find_extent(const dlb_signature *signature, const dlb_dim *dim,
                           const dlb_bindings *bindings) {
    int64_t value = -1;
    if (dim->kind == DLB_DIM_CONSTANT)
        value = dim->value;
    else if (dim->kind == DLB_DIM_NAME && dlb_set_has(bindings->has_name, dim->value))
        value = bindings->names[dim->value];
    else if (dim->kind == DLB_DIM_EXPRESSION)
        evaluate(signature, dim, bindings, &value);
    return value;
}

int32_t dlb_signature_result(const dlb_signature *signature, int result,
                             const dlb_bindings *bindings, DLDataType *dtype,
                             int64_t *shape) {
    const dlb_parameter *parameter =
        &signature->parameters[signature->input_count + result];
    DLTensor made = {.device = {kDLCPU, 0}, .shape = shape, .data = shape};
    int32_t ndim = 0;
    if (!find_dtype(signature, parameter->dtype, bindings, dtype))
        return -1;
    for (int32_t i = 0; i < parameter->dim_count; i++) {
        const dlb_dim *dim = &parameter->dims[i];
        bool is_pack = dim->kind == DLB_DIM_PACK;
        if (is_pack && !dlb_set_has(bindings->has_pack, dim->value))
            return -1;
        int32_t size = is_pack ? bindings->packs[dim->value].ndim : 1;
        if (size > DLB_MAX_NDIM - ndim)
            return -1;
        if (is_pack) {
            for (int32_t k = 0; k < size; k++)
                shape[ndim++] = bindings->packs[dim->value].shape[k];
        } else {
            shape[ndim] = find_extent(signature, dim, bindings);
            if (shape[ndim++] < 0)
                return -1;
        }
    }
    made.ndim = ndim;
    made.dtype = *dtype;
    return dlb_layout_check(&made, 0) == NULL ? ndim : -1;
}

/* ---- from Python: Schema.encode() ----
 *
 * The nested tuples are flattened into words: a tuple into its length and its items, a
 * short text into its bytes. The range of each word is checked as it is read, so that
 * whatever is not a signature ends with an error and no table points outside. */

#define MAX_DEPTH 8
#define MAX_WORDS (1 << 20)
#define TUPLE INT64_MIN /* plus the length */
#define SMALLEST (TUPLE + MAX_WORDS + 1)

typedef struct {
    int64_t *words;
    int32_t next, count, room;
    const char *fault; /* the first one, or NULL */
} reader;

static int add_word(reader *out, int64_t word) {
    if (out->count == out->room) {
        int32_t room = 2 * out->room + 64;
        int64_t *words = realloc(out->words, (size_t)room * sizeof *words);
        if (words == NULL || room > MAX_WORDS) {
            free(words ? words : out->words);
            out->words = NULL;
            PyErr_NoMemory();
            return -1;
        }
        out->words = words;
        out->room = room;
    }
    out->words[out->count++] = word;
    return 0;
}

/* A text of less than eight characters: less than 0, as no number that is read. */
static int64_t word_of(const char *text) {
    uint64_t word = 0;
    for (int i = 0; i < 7 && text[i] != 0; i++)
        word |= (uint64_t)(unsigned char)text[i] << 8 * i;
    return -(int64_t)word;
}

/* -1 with an exception. */
static int flatten(reader *out, PyObject *object, int depth) {
    if (PyTuple_Check(object) && depth < MAX_DEPTH) {
        int status = add_word(out, TUPLE + PyTuple_GET_SIZE(object));
        for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(object); i++)
            status = flatten(out, PyTuple_GET_ITEM(object, i), depth + 1);
        return status;
    }
    const char *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : NULL;
    int64_t word = text ? word_of(text) : PyLong_AsLongLong(object);
    return PyErr_Occurred() ? -1 : add_word(out, word);
}

/* The words are the caller's until close_reader; -1 with an exception. */
static int open_reader(reader *in, PyObject *object) {
    *in = (reader){0};
    int status = flatten(in, object, 0);
    if (status < 0)
        free(in->words);
    return status;
}

static int close_reader(const reader *in) {
    free(in->words);
    const char *fault = in->next < in->count ? "items to spare" : NULL;
    fault = in->fault ? in->fault : fault;
    if (fault == NULL)
        return 0;
    PyErr_Format(PyExc_ValueError, "KernelBase: signature: wrong %s", fault);
    return -1;
}

/* The next word, from `low` to `high`; `low` after any fault, so that loops end. */
static int64_t read_word(reader *in, int64_t low, int64_t high, const char *what) {
    if (in->fault == NULL && in->next < in->count) {
        int64_t word = in->words[in->next++];
        if (word >= low && word <= high)
            return word;
    }
    in->fault = in->fault ? in->fault : what;
    return low;
}

static int32_t read_length(reader *in, int32_t least, int32_t most, const char *what) {
    return (int32_t)(read_word(in, TUPLE + least, TUPLE + most, what) - TUPLE);
}

static void check(reader *in, bool is_right, const char *what) {
    if (in->fault == NULL && !is_right)
        in->fault = what;
}

static int32_t read_letter(reader *in, const char *what) {
    return (int32_t)-read_word(in, -127, -1, what);
}

/* ("c", value), ("n", name), ("+",) or ("+", anything) */
static dlb_step read_step(reader *in, int32_t name_count) {
    int32_t length = read_length(in, 1, 2, "a step");
    dlb_step step = {.operation = read_letter(in, "an operation")};
    check(in, strchr("cn+-*/", step.operation) != NULL, "an operation");
    bool is_operand = step.operation == 'c' || step.operation == 'n';
    check(in, length == 2 || !is_operand, "an operand");
    if (length == 2)
        step.value = step.operation == 'n'
                         ? read_word(in, 0, name_count - 1, "a name")
                         : read_word(in, SMALLEST, INT64_MAX, "an operand");
    return step;
}

/* Returns the number of steps. */
static int32_t read_steps(reader *in, int32_t name_count, dlb_step *steps) {
    int32_t depth = 0, length = read_length(in, 1, 1000, "an expression");
    for (int32_t i = 0; i < length && in->fault == NULL; i++) {
        steps[i] = read_step(in, name_count);
        depth += steps[i].operation == 'c' || steps[i].operation == 'n' ? 1 : -1;
        check(in, depth >= 1 && depth <= STACK_SIZE, "the operands of an expression");
    }
    check(in, depth == 1, "the values of an expression");
    return length;
}

int dlb_parse_steps(PyObject *program, int32_t name_count, dlb_step *steps,
                    int32_t room) {
    reader in;
    if (open_reader(&in, program) < 0)
        return -1;
    check(&in, PyTuple_Check(program) && PyTuple_GET_SIZE(program) <= room,
          "the length of an expression");
    int32_t length = in.fault ? 0 : read_steps(&in, name_count, steps);
    return close_reader(&in) < 0 ? -1 : length;
}

/* All tables of a signature in one allocation, freed through its first member. */
typedef struct {
    dlb_signature signature;
    dlb_dtype_set dtypes[DLB_MAX_DTYPES];
    dlb_scalar_parameter scalars[DLB_MAX_SCALARS];
    dlb_parameter *parameters; /* of each as many as the words can be at most */
    dlb_solution *solutions;
    dlb_dim *dims; /* the next free ones */
    dlb_step *steps;
    uint32_t *keys;
} tables;

static dlb_dim read_dim(reader *in, tables *out) {
    const dlb_signature *signature = &out->signature;
    int32_t length = read_length(in, 1, 2, "a dimension");
    int32_t kind = read_letter(in, "the kind of a dimension");
    dlb_dim dim = {.kind = DLB_DIM_ANY};
    check(in, length == (kind == '_' ? 1 : 2), "a dimension");
    switch (kind) {
    case '_':
        break;
    case 'c':
        dim.kind = DLB_DIM_CONSTANT;
        dim.value = read_word(in, 0, INT64_MAX, "a constant");
        break;
    case 'n':
        dim.kind = DLB_DIM_NAME;
        dim.value = read_word(in, 0, signature->name_count - 1, "a name");
        break;
    case 'p':
        dim.kind = DLB_DIM_PACK;
        dim.value = read_word(in, 0, signature->pack_count - 1, "a pack");
        break;
    case 'e':
        dim.kind = DLB_DIM_EXPRESSION;
        dim.value = out->steps - signature->steps;
        dim.length = read_steps(in, signature->name_count, out->steps);
        out->steps += dim.length;
        break;
    default:
        check(in, false, "the kind of a dimension");
    }
    return dim;
}

/* (dtype, dims, optional, mutated) of an input, (dtype, dims) of a result */
static void read_parameter(reader *in, tables *out, bool is_result,
                           dlb_parameter *parameter) {
    dlb_signature *signature = &out->signature;
    int32_t length = is_result ? 2 : 4;
    read_length(in, length, length, "a parameter");
    parameter->dtype = (int32_t)read_word(in, 0, signature->dtype_count - 1, "a dtype");
    parameter->dim_count = read_length(in, 0, DLB_MAX_NDIM, "dimensions");
    parameter->dims = out->dims;
    parameter->pack = -1;
    for (int32_t i = 0; i < parameter->dim_count && in->fault == NULL; i++) {
        dlb_dim dim = *out->dims++ = read_dim(in, out);
        signature->has_expressions |= !is_result && dim.kind == DLB_DIM_EXPRESSION;
        if (dim.kind != DLB_DIM_PACK)
            continue;
        check(in, parameter->pack < 0, "two packs in a parameter");
        parameter->pack = i;
    }
    if (is_result)
        return;
    parameter->optional = read_word(in, 0, 1, "optional");
    parameter->mutated = read_word(in, 0, 1, "mutated");
    signature->has_mutated |= parameter->mutated;
}

static int32_t read_parameters(reader *in, tables *out, int32_t first, bool is_result) {
    int32_t count = read_length(in, 0, DLB_MOST_TENSORS - first, "parameters");
    for (int32_t i = 0; i < count && in->fault == NULL; i++)
        read_parameter(in, out, is_result, &out->parameters[first + i]);
    return count;
}

static void read_dtypes(reader *in, tables *out) {
    int32_t count = read_length(in, 0, DLB_MAX_DTYPES, "dtypes");
    out->signature.dtype_count = count;
    for (int32_t i = 0; i < count && in->fault == NULL; i++) {
        dlb_dtype_set *set = &out->dtypes[i];
        *set = (dlb_dtype_set){read_length(in, 0, 1000, "a dtype"), out->keys};
        for (int32_t k = 0; k < set->key_count && in->fault == NULL; k++)
            *out->keys++ = (uint32_t)read_word(in, 0, UINT32_MAX - 1, "a dtype");
    }
}

/* (kind, optional, name or -1, dtype or -1, pack or -1, count or -1) */
static void read_scalar(reader *in, dlb_signature *signature,
                        dlb_scalar_parameter *scalar) {
    static const struct {
        const char *name;
        dlb_scalar_kind kind;
    } kinds[] = {{"int", DLB_INT},       {"bool", DLB_INT},   {"dtype", DLB_INT},
                 {"float", DLB_FLOAT},   {"str", DLB_STRING}, {"int[]", DLB_INTS},
                 {"float[]", DLB_FLOATS}};
    read_length(in, 6, 6, "a scalar");
    int64_t name = read_word(in, TUPLE + MAX_WORDS + 1, -1, "the kind of a scalar");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (name == word_of(kinds[i].name)) {
            scalar->kind = kinds[i].kind;
            scalar->is_bool = i == 1;
            scalar->is_dtype = i == 2;
        }
    check(in, scalar->kind != DLB_NONE, "the kind of a scalar");
    scalar->optional = read_word(in, 0, 1, "optional");
    scalar->name =
        (int32_t)read_word(in, -1, signature->name_count - 1, "the name of a scalar");
    bool is_int = scalar->kind == DLB_INT && !scalar->is_bool && !scalar->is_dtype &&
                  !scalar->optional;
    check(in, scalar->name < 0 || is_int, "a scalar that is a dimension");
    scalar->dtype =
        (int32_t)read_word(in, -1, signature->dtype_count - 1, "the dtype of a scalar");
    check(in, scalar->dtype < 0 || scalar->is_dtype, "a scalar that is a dtype");
    signature->has_sizes |= scalar->name >= 0 || scalar->dtype >= 0;
    scalar->pack =
        (int32_t)read_word(in, -1, signature->pack_count - 1, "the pack of a scalar");
    bool is_extents = scalar->kind == DLB_INTS && !scalar->optional;
    check(in, scalar->pack < 0 || is_extents, "a scalar that is a pack");
    signature->has_packs |= scalar->pack >= 0;
    signature->has_sizes |= scalar->pack >= 0;
    scalar->count =
        (int32_t)read_word(in, -1, DLB_MAX_LISTED, "the length of a scalar");
    check(in, scalar->count < 0 || scalar->kind >= DLB_INTS, "the length of a scalar");
}

/* (parameter, dim, name): of an input that must be passed, an expression with the name,
 * all whose other names are known by then. */
static void read_solution(reader *in, const dlb_signature *signature, uint32_t *known,
                          dlb_solution *solution) {
    read_length(in, 3, 3, "a solution");
    solution->parameter =
        (int32_t)read_word(in, 0, signature->input_count - 1, "a solution");
    const dlb_parameter *parameter = &signature->parameters[solution->parameter];
    check(in, signature->input_count > 0 && !parameter->optional, "a solution");
    solution->dim = (int32_t)read_word(in, 0, parameter->dim_count - 1, "a solution");
    solution->name = (int32_t)read_word(in, 0, signature->name_count - 1, "a solution");
    if (in->fault != NULL)
        return;
    const dlb_dim *dim = &parameter->dims[solution->dim];
    check(in, dim->kind == DLB_DIM_EXPRESSION, "a solution");
    dlb_set_add(known, solution->name);
    for (int32_t i = 0; in->fault == NULL && i < dim->length; i++) {
        const dlb_step *step = &signature->steps[dim->value + i];
        check(in, step->operation != 'n' || dlb_set_has(known, step->value),
              "a solution");
    }
}

/* The names that a call has without solutions. */
static void find_known(const dlb_signature *signature, uint32_t *known) {
    for (int32_t i = 0; i < signature->scalar_count; i++)
        if (signature->scalars[i].name >= 0)
            dlb_set_add(known, signature->scalars[i].name);
    for (int32_t i = 0; i < signature->input_count; i++) {
        const dlb_parameter *parameter = &signature->parameters[i];
        for (int32_t k = 0; !parameter->optional && k < parameter->dim_count; k++)
            if (parameter->dims[k].kind == DLB_DIM_NAME)
                dlb_set_add(known, parameter->dims[k].value);
    }
}

static void read_solutions(reader *in, tables *out) {
    dlb_signature *signature = &out->signature;
    int32_t count = read_length(in, 0, DLB_MOST_NAMES, "solutions");
    uint32_t known[DLB_MOST_NAMES / 32] = {0};
    if (in->fault == NULL)
        find_known(signature, known);
    for (int32_t i = 0; i < count && in->fault == NULL; i++)
        read_solution(in, signature, known, &out->solutions[i]);
    signature->solution_count = count;
}

/* (dtypes, number of names, number of packs, inputs, results, scalars, solutions) */
static void read_signature(reader *in, tables *out) {
    dlb_signature *signature = &out->signature;
    read_length(in, 7, 7, "number of items");
    read_dtypes(in, out);
    signature->name_count = (int32_t)read_word(in, 0, DLB_MOST_NAMES, "names");
    signature->pack_count = (int32_t)read_word(in, 0, DLB_MOST_NAMES, "packs");
    signature->input_count = read_parameters(in, out, 0, false);
    signature->result_count = read_parameters(in, out, signature->input_count, true);
    signature->scalar_count = read_length(in, 0, DLB_MAX_SCALARS, "scalars");
    for (int32_t i = 0; i < signature->scalar_count && in->fault == NULL; i++)
        read_scalar(in, signature, &out->scalars[i]);
    read_solutions(in, out);
    signature->is_large =
        signature->input_count + signature->result_count > DLB_MAX_TENSORS ||
        signature->name_count > DLB_MAX_NAMES || signature->pack_count > DLB_MAX_PACKS;
}

dlb_signature *dlb_parse_signature(PyObject *encoded) {
    reader in;
    if (open_reader(&in, encoded) < 0)
        return NULL;
    /* By the words that each has at least: a tuple counts as one. One more is begun
     * where the words end too early. */
    size_t words = (size_t)in.count;
    size_t count[] = {words / 3 + 1, words / 4 + 1, words / 2 + 1, words / 2 + 1,
                      words + 1};
    tables *out =
        calloc(1, sizeof *out + count[0] * sizeof *out->parameters +
                      count[1] * sizeof *out->solutions + count[2] * sizeof *out->dims +
                      count[3] * sizeof *out->steps + count[4] * sizeof *out->keys);
    if (out == NULL) {
        free(in.words);
        return (dlb_signature *)PyErr_NoMemory();
    }
    out->parameters = (dlb_parameter *)(out + 1);
    out->dims = (dlb_dim *)(out->parameters + count[0]);
    out->steps = (dlb_step *)(out->dims + count[2]);
    out->solutions = (dlb_solution *)(out->steps + count[3]);
    out->keys = (uint32_t *)(out->solutions + count[1]);
    out->signature.parameters = out->parameters;
    out->signature.dtypes = out->dtypes;
    out->signature.scalars = out->scalars;
    out->signature.solutions = out->solutions;
    out->signature.steps = out->steps;
    read_signature(&in, out);
    if (close_reader(&in) == 0)
        return &out->signature;
    free(out);
    return NULL;
}
