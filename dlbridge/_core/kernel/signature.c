/* A compiled schema against tensors: dims and dtypes are bound, or do not fit. */
#include "kernel/kernel.h"

#include <string.h>

#define BIT(i) (UINT32_C(1) << (i))
#define STACK_SIZE 16 /* signature_parse.c refuses programs that need more */

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
        if (step->operation == 'n' && !(bindings->has_name & BIT(step->value)))
            return VALUE_UNKNOWN;
    return dlb_steps_run(steps, dim->length, bindings->names, value) ? VALUE_KNOWN
                                                                     : VALUE_INVALID;
}

/* ---- tensors against parameters ---- */

static inline bool match_dtype(const dlb_signature *signature, int32_t index,
                               uint32_t key, dlb_bindings *bindings) {
    if (bindings->has_dtype & BIT(index))
        return bindings->dtypes[index] == key;
    const dlb_dtype_set *set = &signature->dtypes[index];
    int32_t i = 0;
    while (i < set->key_count && set->keys[i] != key)
        i++;
    if (i == set->key_count && i > 0)
        return false;
    bindings->has_dtype |= BIT(index);
    bindings->dtypes[index] = key;
    return true;
}

static inline bool match_name(int64_t index, int64_t extent, dlb_bindings *bindings) {
    if (bindings->has_name & BIT(index))
        return bindings->names[index] == extent;
    bindings->has_name |= BIT(index);
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
    if (!(bindings->has_pack & BIT(index))) {
        bindings->has_pack |= BIT(index);
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

/* The tensor has as many dimensions as `match` demands. An expression whose names only
 * a left out tensor would have bound says nothing. */
static bool match_expressions(const dlb_signature *signature,
                              const dlb_parameter *parameter, const DLTensor *tensor,
                              const dlb_bindings *bindings) {
    for (int32_t i = 0; i < parameter->dim_count; i++) {
        const dlb_dim *dim = &parameter->dims[i];
        bool after_pack = parameter->pack >= 0 && i > parameter->pack;
        int32_t place = after_pack ? tensor->ndim - (parameter->dim_count - i) : i;
        int64_t value = -1;
        if (dim->kind == DLB_DIM_EXPRESSION &&
            evaluate(signature, dim, bindings, &value) != VALUE_UNKNOWN &&
            value != tensor->shape[place])
            return false;
    }
    return true;
}

/* False: one is negative. */
static bool bind_sizes(const dlb_signature *signature, const dlb_scalar *scalars,
                       dlb_bindings *bindings) {
    for (int32_t i = 0; i < signature->scalar_count; i++) {
        int32_t name = signature->scalars[i].name;
        if (name < 0)
            continue;
        if (scalars[i].value.i < 0)
            return false;
        bindings->has_name |= BIT(name);
        bindings->names[name] = scalars[i].value.i;
    }
    return true;
}

int dlb_signature_bind(const dlb_signature *signature, const DLTensor *inputs,
                       const dlb_scalar *scalars, dlb_bindings *bindings) {
    bindings->has_name = bindings->has_dtype = bindings->has_pack = 0;
    if (signature->has_sizes && !bind_sizes(signature, scalars, bindings))
        return DLB_MAX_TENSORS;
    for (int32_t i = 0; i < signature->input_count; i++)
        if (!match(signature, &signature->parameters[i], &inputs[i], bindings))
            return i;
    for (int32_t i = 0; signature->has_expressions && i < signature->input_count; i++)
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
    if (bindings->has_dtype & BIT(index))
        key = bindings->dtypes[index];
    *dtype = (DLDataType){(uint8_t)key, (uint8_t)(key >> 8), (uint16_t)(key >> 16)};
    return key != 0;
}

/* -1: not determined, or no extent. */
static int64_t find_extent(const dlb_signature *signature, const dlb_dim *dim,
                           const dlb_bindings *bindings) {
    int64_t value = -1;
    if (dim->kind == DLB_DIM_CONSTANT)
        value = dim->value;
    else if (dim->kind == DLB_DIM_NAME && (bindings->has_name & BIT(dim->value)))
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
    int32_t ndim = 0;
    if (!find_dtype(signature, parameter->dtype, bindings, dtype))
        return -1;
    for (int32_t i = 0; i < parameter->dim_count; i++) {
        const dlb_dim *dim = &parameter->dims[i];
        bool is_pack = dim->kind == DLB_DIM_PACK;
        if (is_pack && !(bindings->has_pack & BIT(dim->value)))
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
    return ndim;
}
