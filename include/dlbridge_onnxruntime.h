/* The kernels of a library as custom operators of ONNX Runtime, without Python.
 *
 *     #include "dlbridge_kernel.h"
 *     #include "dlbridge_onnxruntime.h"
 *
 * In one source file of a library whose kernels DLB_EXPORT describes, wherever these
 * are: it then exports RegisterCustomOps, which a session calls that is given the
 * library by RegisterCustomOpsLibrary (in C and C++) or register_custom_ops_library (in
 * Python). A kernel "mylib::rope" is the operator "rope" of the domain "mylib", version
 * 1:
 *
 *     inputs      the tensors of its schema, "" for an optional one that is left out
 *     outputs     its results, then copies of what it writes in place
 *     attributes  its scalars and lists of numbers; a float may also be an int or text,
 *                 "0.1", and floats of a list ints or one text, "0.1, 2"
 *
 * It is what dlbridge.register_onnxruntime makes of the library in Python. Nodes run on
 * the CPU. Functions with a C signature for an .abi need dlbridge to be called: a model
 * with a node of one is refused, and says so.
 *
 * No headers of the runtime are needed and nothing is linked: it hands over a table of
 * functions, to which its releases only append. 1.21 and later have what is used.
 */
#ifndef DLBRIDGE_ONNXRUNTIME_H_
#define DLBRIDGE_ONNXRUNTIME_H_

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "dlbridge_kernel.h"

#ifndef DLB_LISTED_
#error "dlbridge_onnxruntime.h needs GCC or Clang, and ELF, as DLB_EXPORT does"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the part of ONNX Runtime's C API that operators need ----
 *
 * All handles are opaque; a status is NULL on success. */

enum {
    DLB_ORT_VERSION = 21,       /* of the table, and of what describes an operator */
    DLB_ORT_SHAPE_VERSION = 24, /* of a table with one function more */
    DLB_ORT_SHAPE_PLACE = 414,
    DLB_ORT_LAST_VERSION = 1000, /* of a domain of ours */
    DLB_ORT_FAIL = 1,
    DLB_ORT_INVALID_ARGUMENT = 2,
    DLB_ORT_REQUIRED = 0,
    DLB_ORT_OPTIONAL = 1,
    DLB_ORT_VARIADIC = 2
};

typedef struct {
    const void *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} dlb_ort_base;

/* Result, name, place in the table, arguments. */
#define DLB_ORT_FUNCTIONS_(X)                                                          \
    X(void *, CreateStatus, 0, (int code, const char *text))                           \
    X(void *, CreateCustomOpDomain, 26, (const char *name, void **domain))             \
    X(void *, CustomOpDomain_Add, 27, (void *domain, const void *op))                  \
    X(void *, AddCustomOpDomain, 28, (void *options, void *domain))                    \
    X(void *, GetTensorMutableData, 51, (const void *value, void **data))              \
    X(void *, CreateTensorTypeAndShapeInfo, 57, (void **info))                         \
    X(void *, SetTensorElementType, 58, (void *info, int type))                        \
    X(void *, SetDimensions, 59, (void *info, const int64_t *dims, size_t count))      \
    X(void *, GetTensorElementType, 60, (void *info, int *type))                       \
    X(void *, GetDimensionsCount, 61, (void *info, size_t *count))                     \
    X(void *, GetDimensions, 62, (void *info, int64_t *dims, size_t count))            \
    X(void *, GetSymbolicDimensions, 63,                                               \
      (void *info, const char **names, size_t count))                                  \
    X(void *, GetTensorTypeAndShape, 65, (const void *value, void **info))             \
    X(void *, KernelInfoGetAttribute_float, 85,                                        \
      (const void *info, const char *name, float *value))                              \
    X(void *, KernelInfoGetAttribute_int64, 86,                                        \
      (const void *info, const char *name, int64_t *value))                            \
    X(void *, KernelInfoGetAttribute_string, 87,                                       \
      (const void *info, const char *name, char *text, size_t *size))                  \
    X(void *, KernelContext_GetInputCount, 88, (const void *context, size_t *count))   \
    X(void *, KernelContext_GetInput, 90,                                              \
      (const void *context, size_t index, const void **value))                         \
    X(void *, KernelContext_GetOutput, 91,                                             \
      (void *context, size_t index, const int64_t *dims, size_t count, void **value))  \
    X(void, ReleaseStatus, 93, (void *))                                               \
    X(void, ReleaseTensorTypeAndShapeInfo, 99, (void *info))                           \
    X(void *, KernelInfoGetAttributeArray_float, 162,                                  \
      (const void *info, const char *name, float *values, size_t *count))              \
    X(void *, KernelInfoGetAttributeArray_int64, 163,                                  \
      (const void *info, const char *name, int64_t *values, size_t *count))            \
    X(void *, ShapeInferContext_GetInputTypeShape, 268,                                \
      (const void *context, size_t index, void **info))                                \
    X(void *, ShapeInferContext_SetOutputTypeShape, 270,                               \
      (const void *context, size_t index, const void *info))                           \
    X(void *, SetSymbolicDimensions, 271,                                              \
      (void *info, const char **names, size_t count))

typedef struct {
#define DLB_ORT_DECLARE_(result, name, place, arguments) result(*name) arguments;
    DLB_ORT_FUNCTIONS_(DLB_ORT_DECLARE_)
#undef DLB_ORT_DECLARE_
    /* The shape where the value itself has it; NULL before version 24. */
    void *(*get_shape)(const void *value, int *type, const int64_t **dims,
                       size_t *count);
} dlb_ort_api;

typedef void (*dlb_ort_function)(void);

static inline void dlb_ort_read_table(const void *table, const void *newer,
                                      dlb_ort_api *api) {
    const dlb_ort_function *functions = (const dlb_ort_function *)table;
#define DLB_ORT_READ_(result, name, place, arguments)                                  \
    api->name = (result(*) arguments)functions[place];
    DLB_ORT_FUNCTIONS_(DLB_ORT_READ_)
#undef DLB_ORT_READ_
    api->get_shape = NULL;
    if (newer != NULL)
        api->get_shape = (void *(*)(const void *, int *, const int64_t **, size_t *))(
            (const dlb_ort_function *)newer)[DLB_ORT_SHAPE_PLACE];
}

static inline int dlb_ort_is_ok(const dlb_ort_api *api, void *answer) {
    if (answer != NULL)
        api->ReleaseStatus(answer);
    return answer == NULL;
}

typedef struct dlb_ort_op dlb_ort_op;

/* OrtCustomOp of version 21: what the runtime asks of an operator. */
typedef struct {
    uint32_t version;
    void *(*create)(const dlb_ort_op *, const void *api, const void *info);
    const char *(*get_name)(const dlb_ort_op *);
    const char *(*get_provider)(const dlb_ort_op *);
    int (*get_input_type)(const dlb_ort_op *, size_t);
    size_t (*get_input_count)(const dlb_ort_op *);
    int (*get_output_type)(const dlb_ort_op *, size_t);
    size_t (*get_output_count)(const dlb_ort_op *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*get_input_need)(const dlb_ort_op *, size_t);
    int (*get_output_need)(const dlb_ort_op *, size_t);
    int (*get_input_memory)(const dlb_ort_op *, size_t);
    int (*get_input_arity)(const dlb_ort_op *);
    int (*are_inputs_alike)(const dlb_ort_op *);
    int (*get_output_arity)(const dlb_ort_op *);
    int (*are_outputs_alike)(const dlb_ort_op *);
    void *(*create_checked)(const dlb_ort_op *, const void *, const void *, void **);
    void *(*compute_checked)(void *, void *);
    void *(*infer)(const dlb_ort_op *, const void *);
    int (*get_start)(const dlb_ort_op *);
    int (*get_end)(const dlb_ort_op *);
    size_t (*get_in_place)(int **, int **);
    void (*free_in_place)(int *, int *);
    size_t (*get_aliases)(int **, int **);
    void (*free_aliases)(int *, int *);
} dlb_ort_callbacks;

/* ---- element types ---- */

typedef struct {
    const char *short_name, *name, *other;
    uint8_t number, code, bits; /* of the runtime; of DLPack */
} dlb_ort_type;

enum { DLB_ORT_ALL_TYPES = 19, DLB_ORT_SETS = 5 };

static const dlb_ort_type dlb_ort_types[DLB_ORT_ALL_TYPES] = {
    {"f32", "float32", "single", 1, kDLFloat, 32},
    {"u8", "uint8", "", 2, kDLUInt, 8},
    {"i8", "int8", "", 3, kDLInt, 8},
    {"u16", "uint16", "", 4, kDLUInt, 16},
    {"i16", "int16", "short", 5, kDLInt, 16},
    {"i32", "int32", "", 6, kDLInt, 32},
    {"i64", "int64", "long", 7, kDLInt, 64},
    {"bool", "bool", "", 9, kDLBool, 8},
    {"f16", "float16", "half", 10, kDLFloat, 16},
    {"f64", "float64", "double", 11, kDLFloat, 64},
    {"u32", "uint32", "", 12, kDLUInt, 32},
    {"u64", "uint64", "", 13, kDLUInt, 64},
    {"bf16", "bfloat16", "bfloat", 16, kDLBfloat, 16},
    {"f8e4m3fn", "float8_e4m3fn", "", 17, 10, 8},
    {"f8e4m3fnuz", "float8_e4m3fnuz", "", 18, 11, 8},
    {"f8e5m2", "float8_e5m2", "", 19, 12, 8},
    {"f8e5m2fnuz", "float8_e5m2fnuz", "", 20, 13, 8},
    {"f8e8m0fnu", "float8_e8m0fnu", "", 24, 14, 8},
    {"", "", "", 0, 0, 0}, /* of a model that says no type */
};

#define DLB_ORT_BIT_(i) (UINT32_C(1) << (i))
#define DLB_ORT_FLOATS_                                                                \
    (DLB_ORT_BIT_(0) | DLB_ORT_BIT_(8) | DLB_ORT_BIT_(9) | DLB_ORT_BIT_(12))
#define DLB_ORT_INTS_                                                                  \
    (DLB_ORT_BIT_(2) | DLB_ORT_BIT_(4) | DLB_ORT_BIT_(5) | DLB_ORT_BIT_(6))
#define DLB_ORT_UINTS_                                                                 \
    (DLB_ORT_BIT_(1) | DLB_ORT_BIT_(3) | DLB_ORT_BIT_(10) | DLB_ORT_BIT_(11))

/* Sets with a name of their own; the runtime has no complex numbers. */
static const struct {
    const char *name;
    uint32_t types, others;
} dlb_ort_sets[DLB_ORT_SETS] = {
    {"float", DLB_ORT_FLOATS_, 0},
    {"int", DLB_ORT_INTS_, 0},
    {"uint", DLB_ORT_UINTS_, 0},
    {"number", DLB_ORT_FLOATS_ | DLB_ORT_INTS_ | DLB_ORT_UINTS_, 1},
    {"any", DLB_ORT_BIT_(DLB_ORT_ALL_TYPES - 1) - 1, UINT32_MAX},
};

/* ---- a schema, as it is read from its text ---- */

enum {
    DLB_ORT_TENSORS = 32,
    DLB_ORT_SCALARS = 16,
    DLB_ORT_LISTS = 8,   /* scalars that are lists of numbers */
    DLB_ORT_LISTED = 64, /* numbers in one of them */
    DLB_ORT_NAMES = 32,
    DLB_ORT_PACKS = 4,
    DLB_ORT_DTYPES = 16,
    DLB_ORT_NDIM = 254,
    DLB_ORT_OPERANDS = 16,
    DLB_ORT_NESTED = 32,
    DLB_ORT_OVERLOADS = 1000,
    DLB_ORT_POINTERS = 8,
    DLB_ORT_ROOM = 1024, /* extents and strides of all tensors of a call */
    DLB_ORT_TEXT = 512
};

typedef struct {
    const char *start;
    size_t size;
} dlb_ort_word;

typedef enum {
    DLB_ORT_CONSTANT,
    DLB_ORT_NAME,
    DLB_ORT_ANY,
    DLB_ORT_PACK,
    DLB_ORT_EXPRESSION
} dlb_ort_kind;

typedef struct {
    dlb_ort_kind kind;
    int64_t value;     /* an extent; which name or pack */
    int first, length; /* of the steps of an expression */
} dlb_ort_dim;

typedef struct { /* in postfix: 'c' an extent, 'n' a name, + - * / */
    char operation;
    int64_t value;
} dlb_ort_step;

typedef struct {
    dlb_ort_word name, text; /* text: of its type */
    int dtype, first, count; /* its dimensions */
    int pack;                /* which of them is a pack, or -1 */
    int is_optional, is_mutated;
} dlb_ort_tensor;

typedef struct { /* a list of numbers */
    dlb_list list;
    int64_t ints[DLB_ORT_LISTED];
    double floats[DLB_ORT_LISTED];
} dlb_ort_list;

typedef struct {
    char *name;
    dlb_scalar_kind kind;
    int is_required;
    int size;         /* which name of a dimension it determines, or -1 */
    int pack;         /* the same of a list and a pack */
    int length;       /* how many numbers a list must have, or -1 */
    dlb_scalar value; /* the default; DLB_NONE where there is none */
} dlb_ort_scalar;

typedef struct {
    dlb_ort_word name; /* of a variable that has one */
    uint32_t types;    /* bit i: dlb_ort_types[i] */
    uint32_t others;   /* a sum over those that the runtime does not have */
} dlb_ort_dtype;

typedef struct {
    const dlb_export *described;
    char *space, *name, *qualified; /* "space::name" */
    char why[DLB_ORT_TEXT];         /* why no node of it can run; "" where one can */
    int input_count, result_count, scalar_count, dtype_count, name_count, pack_count;
    int dim_count, step_count;
    dlb_ort_tensor tensors[DLB_ORT_TENSORS];
    dlb_ort_scalar scalars[DLB_ORT_SCALARS];
    dlb_ort_dtype dtypes[DLB_ORT_DTYPES];
    dlb_ort_word names[DLB_ORT_NAMES], packs[DLB_ORT_PACKS];
    dlb_ort_dim
        *dims; /* as many as the text has characters at most; so are the steps */
    dlb_ort_step *steps;
    int has_optional, output_count;
    int version;   /* of the domain that the operator is of */
    int has_types; /* 0: what it takes is not known, or nothing that the runtime has */
} dlb_ort_operator;

/* Kinds of words: 'a' a name, '0' a number, '"' a string, ';' ::, '>' ->, '/' //,
 * '.' the ellipsis, 0 the end; other signs are themselves. */
typedef struct {
    const char *begin, *next;
    char kind;
    dlb_ort_word word;
    dlb_ort_operator *made;
    int operands, nested;
    int lists[2]; /* whether `int[]` and `float[]` are lists here, and no tensors */
    int list_count;
} dlb_ort_reader;

static inline int dlb_ort_is(dlb_ort_word word, const char *text) {
    return word.size == strlen(text) && memcmp(word.start, text, word.size) == 0;
}

static inline int dlb_ort_same(dlb_ort_word one, dlb_ort_word other) {
    return one.size == other.size && one.size > 0 &&
           memcmp(one.start, other.start, one.size) == 0;
}

static inline char *dlb_ort_copy(dlb_ort_word word) {
    char *copied = (char *)calloc(1, word.size + 1);
    if (copied != NULL)
        memcpy(copied, word.start, word.size);
    return copied;
}

/* After this all words are the end. */
static inline void dlb_ort_refuse(dlb_ort_reader *in, const char *why) {
    if (in->made->why[0] == 0)
        snprintf(in->made->why, sizeof in->made->why, "its schema: %s (column %d)", why,
                 (int)(in->word.start - in->begin) + 1);
    in->kind = 0;
    in->word.size = 0;
    in->next = in->begin + strlen(in->begin);
}

static inline int dlb_ort_is_digit(char c) {
    return c >= '0' && c <= '9';
}

static inline int dlb_ort_is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static inline const char *dlb_ort_skip_digits(const char *at) {
    while (dlb_ort_is_digit(*at))
        at++;
    return at;
}

static inline const char *dlb_ort_skip_number(const char *at) {
    at = dlb_ort_skip_digits(at);
    if (*at == '.' && at[1] != '.')
        at = dlb_ort_skip_digits(at + 1);
    if (*at == 'e' || *at == 'E') {
        const char *digits = at + (at[1] == '+' || at[1] == '-' ? 2 : 1);
        if (dlb_ort_is_digit(*digits))
            at = dlb_ort_skip_digits(digits);
    }
    return at;
}

static inline const char *dlb_ort_skip_string(const char *at) {
    char quote = *at++;
    while (*at != 0 && *at != quote && *at != '\n')
        at += *at == '\\' && at[1] != 0 ? 2 : 1;
    return *at == quote ? at + 1 : NULL;
}

static inline void dlb_ort_advance(dlb_ort_reader *in) {
    const char *at = in->next;
    while (*at == ' ' || (*at >= '\t' && *at <= '\r'))
        at++;
    in->word.start = at;
    in->kind = *at;
    if (dlb_ort_is_letter(*at)) {
        in->kind = 'a';
        while (dlb_ort_is_letter(*at) || dlb_ort_is_digit(*at))
            at++;
    } else if (dlb_ort_is_digit(*at) || (*at == '.' && dlb_ort_is_digit(at[1]))) {
        in->kind = '0';
        at = dlb_ort_skip_number(at);
    } else if (*at == '"' || *at == '\'') {
        in->kind = '"';
        at = dlb_ort_skip_string(at);
        if (at == NULL) {
            dlb_ort_refuse(in, "a string without an end");
            return;
        }
    } else if (strncmp(at, "...", 3) == 0) {
        at += 3;
    } else if (strncmp(at, "::", 2) == 0) {
        in->kind = ';';
        at += 2;
    } else if (strncmp(at, "->", 2) == 0) {
        in->kind = '>';
        at += 2;
    } else if (strncmp(at, "//", 2) == 0) {
        at += 2;
    } else if (*at != 0 && strchr("()[],:=?!|*+-", *at) != NULL) {
        at += 1;
    } else if (*at == '<') {
        dlb_ort_refuse(in, "the kernel says the size of a result, and the runtime asks "
                           "for the shapes of outputs before it runs");
        return;
    } else if (*at != 0) {
        dlb_ort_refuse(in, "a character that means nothing there");
        return;
    }
    in->word.size = (size_t)(at - in->word.start);
    in->next = at;
}

static inline int dlb_ort_accept(dlb_ort_reader *in, char kind) {
    if (in->kind != kind)
        return 0;
    dlb_ort_advance(in);
    return 1;
}

static inline void dlb_ort_expect(dlb_ort_reader *in, char kind, const char *what) {
    if (!dlb_ort_accept(in, kind))
        dlb_ort_refuse(in, what);
}

static inline dlb_ort_word dlb_ort_take_name(dlb_ort_reader *in) {
    dlb_ort_word word = in->word;
    dlb_ort_expect(in, 'a', "a name is expected");
    return word;
}

/* The kind of the word after this one. */
static inline char dlb_ort_peek(const dlb_ort_reader *in) {
    dlb_ort_operator none;
    dlb_ort_reader ahead = *in;
    none.why[0] = 0;
    ahead.made = &none;
    dlb_ort_advance(&ahead);
    return ahead.kind;
}

/* ---- dimensions ---- */

/* Floor division, as in Python. 0: no value. */
static inline int dlb_ort_operate(char operation, int64_t a, int64_t b, int64_t *to) {
    if (operation == '+')
        return !__builtin_add_overflow(a, b, to);
    if (operation == '-')
        return !__builtin_sub_overflow(a, b, to);
    if (operation == '*')
        return !__builtin_mul_overflow(a, b, to);
    if (b == 0 || (a == INT64_MIN && b == -1))
        return 0;
    *to = a / b - (a % b != 0 && (a < 0) != (b < 0));
    return 1;
}

static inline int dlb_ort_evaluate(const dlb_ort_step *steps, int length,
                                   const int64_t *names, int64_t *value) {
    int64_t stack[DLB_ORT_OPERANDS + 1] = {0};
    int depth = 0;
    for (int i = 0; i < length; i++) {
        if (steps[i].operation == 'c')
            stack[depth++] = steps[i].value;
        else if (steps[i].operation == 'n')
            stack[depth++] = names[steps[i].value];
        else if (depth--, !dlb_ort_operate(steps[i].operation, stack[depth - 1],
                                           stack[depth], &stack[depth - 1]))
            return 0;
    }
    *value = stack[0];
    return 1;
}

static inline int dlb_ort_find(dlb_ort_reader *in, dlb_ort_word *words, int *count,
                               int most, dlb_ort_word word) {
    for (int i = 0; i < *count; i++)
        if (dlb_ort_same(words[i], word))
            return i;
    if (*count == most) {
        dlb_ort_refuse(in, "too many names");
        return 0;
    }
    words[*count] = word;
    return (*count)++;
}

static inline int64_t dlb_ort_read_integer(dlb_ort_reader *in) {
    int64_t value = 0;
    for (size_t i = 0; i < in->word.size; i++) {
        char c = in->word.start[i];
        if (!dlb_ort_is_digit(c) || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, c - '0', &value)) {
            dlb_ort_refuse(in, "an integer of at most 63 bits is expected");
            return 0;
        }
    }
    return value;
}

static inline void dlb_ort_add_step(dlb_ort_reader *in, char operation, int64_t value) {
    dlb_ort_step *step = &in->made->steps[in->made->step_count++];
    step->operation = operation;
    step->value = value;
}

static void dlb_ort_read_sum(dlb_ort_reader *in);

#define DLB_ORT_NO_LISTS "an operator of ONNX Runtime takes no lists of tensors here"

static inline void dlb_ort_read_operand(dlb_ort_reader *in) {
    dlb_ort_operator *made = in->made;
    if (in->kind == '(') {
        dlb_ort_advance(in);
        if (++in->nested > DLB_ORT_NESTED)
            dlb_ort_refuse(in, "too many parentheses in one another");
        else
            dlb_ort_read_sum(in);
        in->nested--;
        dlb_ort_expect(in, ')', "')' is expected");
        return;
    }
    if (++in->operands > DLB_ORT_OPERANDS) {
        dlb_ort_refuse(in, "this expression is too long");
    } else if (in->kind == '0') {
        dlb_ort_add_step(in, 'c', dlb_ort_read_integer(in));
        dlb_ort_advance(in);
    } else if (in->kind == 'a') {
        int name =
            dlb_ort_find(in, made->names, &made->name_count, DLB_ORT_NAMES, in->word);
        dlb_ort_add_step(in, 'n', name);
        dlb_ort_advance(in);
    } else {
        dlb_ort_refuse(in,
                       in->kind == '?' ? DLB_ORT_NO_LISTS : "a dimension is expected");
    }
}

static inline void dlb_ort_read_product(dlb_ort_reader *in) {
    dlb_ort_read_operand(in);
    while (in->kind == '*' || in->kind == '/') {
        char operation = in->kind;
        dlb_ort_advance(in);
        dlb_ort_read_operand(in);
        dlb_ort_add_step(in, operation, 0);
    }
}

static void dlb_ort_read_sum(dlb_ort_reader *in) {
    dlb_ort_read_product(in);
    while (in->kind == '+' || in->kind == '-') {
        char operation = in->kind;
        dlb_ort_advance(in);
        dlb_ort_read_product(in);
        dlb_ort_add_step(in, operation, 0);
    }
}

static inline void dlb_ort_read_expression(dlb_ort_reader *in, dlb_ort_dim *dim) {
    dlb_ort_operator *made = in->made;
    dim->first = made->step_count;
    in->operands = in->nested = 0;
    dlb_ort_read_sum(in);
    if (made->why[0] != 0)
        return;
    const dlb_ort_step *steps = made->steps + dim->first;
    int has_names = 0;
    dim->length = made->step_count - dim->first;
    for (int i = 0; i < dim->length; i++)
        has_names |= steps[i].operation == 'n';
    dim->kind = DLB_ORT_EXPRESSION;
    if (!has_names) {
        dim->kind = DLB_ORT_CONSTANT;
        if (!dlb_ort_evaluate(steps, dim->length, NULL, &dim->value) || dim->value < 0)
            dlb_ort_refuse(in, "this dimension is no extent");
    } else if (dim->length == 1) {
        dim->kind = DLB_ORT_NAME;
        dim->value = steps[0].value;
    }
}

static inline void dlb_ort_read_dim(dlb_ort_reader *in, dlb_ort_dim *dim) {
    dlb_ort_operator *made = in->made;
    dlb_ort_word word = in->word;
    if (in->kind == '.' || in->kind == '*') {
        dlb_ort_advance(in);
        if (*word.start == '*')
            word = dlb_ort_take_name(in);
        dim->kind = DLB_ORT_PACK;
        dim->value =
            dlb_ort_find(in, made->packs, &made->pack_count, DLB_ORT_PACKS, word);
    } else if (dlb_ort_is(word, "_")) {
        dlb_ort_advance(in);
        dim->kind = DLB_ORT_ANY;
    } else {
        dlb_ort_read_expression(in, dim);
    }
}

static inline void dlb_ort_read_dims(dlb_ort_reader *in, dlb_ort_tensor *tensor) {
    dlb_ort_operator *made = in->made;
    tensor->first = made->dim_count;
    while (in->kind != ']' && in->kind != 0) {
        dlb_ort_dim *dim = &made->dims[made->dim_count];
        dlb_ort_read_dim(in, dim);
        if (dim->kind == DLB_ORT_PACK && tensor->pack >= 0)
            dlb_ort_refuse(in, "a second pack");
        else if (dim->kind == DLB_ORT_PACK)
            tensor->pack = made->dim_count - tensor->first;
        if (++made->dim_count - tensor->first > DLB_ORT_NDIM)
            dlb_ort_refuse(in, "too many dimensions");
        if (in->kind != ']')
            dlb_ort_expect(in, ',', "',' or ']' is expected");
    }
    tensor->count = made->dim_count - tensor->first;
    dlb_ort_expect(in, ']', "']' is expected");
}

/* ---- tensors ---- */

static inline void dlb_ort_add_types(dlb_ort_dtype *dtype, dlb_ort_word word) {
    for (int i = 0; i < DLB_ORT_SETS; i++)
        if (dlb_ort_is(word, dlb_ort_sets[i].name)) {
            dtype->types |= dlb_ort_sets[i].types;
            dtype->others |= dlb_ort_sets[i].others;
            return;
        }
    for (int i = 0; i < DLB_ORT_ALL_TYPES - 1; i++)
        if (dlb_ort_is(word, dlb_ort_types[i].short_name) ||
            dlb_ort_is(word, dlb_ort_types[i].name) ||
            dlb_ort_is(word, dlb_ort_types[i].other)) {
            dtype->types |= DLB_ORT_BIT_(i);
            return;
        }
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < word.size; i++)
        sum = (sum ^ (unsigned char)word.start[i]) * 16777619u;
    dtype->others += sum;
}

/* The place of a dtype: that of the same set before, or a new one. */
static inline int dlb_ort_keep_dtype(dlb_ort_reader *in, const dlb_ort_dtype *read) {
    dlb_ort_operator *made = in->made;
    for (int i = 0; read->name.size == 0 && i < made->dtype_count; i++)
        if (made->dtypes[i].name.size == 0 && made->dtypes[i].types == read->types &&
            made->dtypes[i].others == read->others)
            return i;
    if (made->dtype_count == DLB_ORT_DTYPES) {
        dlb_ort_refuse(in, "too many dtypes");
        return 0;
    }
    made->dtypes[made->dtype_count] = *read;
    return made->dtype_count++;
}

/* The dtype variable: that of a name, of the same set before, or a new one. */
static inline int dlb_ort_read_dtype(dlb_ort_reader *in) {
    dlb_ort_operator *made = in->made;
    dlb_ort_dtype read;
    dlb_ort_word first = dlb_ort_take_name(in);
    int is_defined = dlb_ort_accept(in, '=');
    memset(&read, 0, sizeof read);
    if (is_defined)
        read.name = first;
    for (int i = 0; !is_defined && in->kind != '|' && i < made->dtype_count; i++)
        if (dlb_ort_same(made->dtypes[i].name, first))
            return i;
    dlb_ort_add_types(&read, is_defined ? dlb_ort_take_name(in) : first);
    while (dlb_ort_accept(in, '|'))
        dlb_ort_add_types(&read, dlb_ort_take_name(in));
    return dlb_ort_keep_dtype(in, &read);
}

/* The dtype of a result that is a number: a node gives a tensor without dimensions. */
static inline int dlb_ort_read_number_type(dlb_ort_reader *in) {
    dlb_ort_dtype read;
    dlb_ort_word word = dlb_ort_take_name(in);
    memset(&read, 0, sizeof read);
    if (!dlb_ort_is(word, "bool")) {
        word.start = dlb_ort_is(word, "int") ? "i64" : "f64";
        word.size = 3;
    }
    dlb_ort_add_types(&read, word);
    return dlb_ort_keep_dtype(in, &read);
}

static inline int dlb_ort_is_number_type(dlb_ort_reader *in) {
    char after = dlb_ort_peek(in);
    return after != '[' && after != '=' && after != '|' &&
           (dlb_ort_is(in->word, "int") || dlb_ort_is(in->word, "float") ||
            dlb_ort_is(in->word, "bool"));
}

static inline void dlb_ort_read_like(dlb_ort_reader *in, dlb_ort_tensor *tensor) {
    dlb_ort_operator *made = in->made;
    dlb_ort_advance(in);
    for (int i = 0; i < made->input_count; i++)
        if (dlb_ort_same(made->tensors[i].name, in->word)) {
            const dlb_ort_tensor *other = &made->tensors[i];
            tensor->dtype = other->dtype;
            tensor->first = other->first;
            tensor->count = other->count;
            tensor->pack = other->pack;
            dlb_ort_advance(in);
            return;
        }
    dlb_ort_refuse(in, "no tensor before it has this name");
}

/* Returns a place for the next tensor, or NULL. */
static inline dlb_ort_tensor *dlb_ort_read_tensor(dlb_ort_reader *in,
                                                  dlb_ort_word name) {
    dlb_ort_operator *made = in->made;
    int place = made->input_count + made->result_count;
    if (place == DLB_ORT_TENSORS) {
        dlb_ort_refuse(in, "too many tensors");
        return NULL;
    }
    dlb_ort_tensor *tensor = &made->tensors[place];
    const char *start = in->word.start;
    tensor->name = name;
    tensor->pack = -1;
    if (dlb_ort_is(in->word, "like") && dlb_ort_peek(in) == 'a') {
        dlb_ort_read_like(in, tensor);
    } else if (dlb_ort_is_number_type(in)) {
        tensor->dtype = dlb_ort_read_number_type(in);
    } else {
        tensor->dtype = dlb_ort_read_dtype(in);
        dlb_ort_expect(in, '[', "'[' is expected");
        dlb_ort_read_dims(in, tensor);
        if (in->kind == '[')
            dlb_ort_refuse(in, DLB_ORT_NO_LISTS);
    }
    const char *end = in->word.start; /* of what comes next, which is read already */
    while (end > start && strchr(" \t\r\n\f\v", end[-1]) != NULL)
        end--;
    tensor->text.start = start;
    tensor->text.size = (size_t)(end - start);
    return tensor;
}

/* ---- scalars ---- */

static inline char *dlb_ort_read_string(dlb_ort_reader *in) {
    static const char escapes[] = "n\nt\tr\rb\bf\fa\av\v0\0\\\\''\"\"";
    char *text = (char *)calloc(1, in->word.size), *to = text;
    const char *at = in->word.start + 1, *end = in->word.start + in->word.size - 1;
    while (text != NULL && at < end) {
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        size_t i = 0;
        while (i < sizeof escapes - 1 && (i % 2 != 0 || escapes[i] != at[1]))
            i++;
        if (i == sizeof escapes - 1) {
            dlb_ort_refuse(in, "an escape that is not known here");
            break;
        }
        *to++ = escapes[i + 1];
        at += 2;
    }
    return text;
}

static inline void dlb_ort_read_number(dlb_ort_reader *in, const char *sign,
                                       dlb_scalar_kind kind, dlb_scalar *value) {
    char text[DLB_ORT_TEXT], *end;
    snprintf(text, sizeof text, "%s%.*s", sign, (int)in->word.size, in->word.start);
    value->kind = kind;
    errno = 0;
    if (kind == DLB_FLOAT)
        value->value.f = strtod(text, &end);
    else
        value->value.i = strtoll(text, &end, 10);
    if (*end != 0 || kind == DLB_STRING || (kind == DLB_INT && errno != 0)) {
        value->kind = DLB_NONE;
        dlb_ort_refuse(in, "this number is none of this kind");
    }
}

static inline void dlb_ort_read_default(dlb_ort_reader *in, dlb_scalar_kind kind,
                                        int is_bool, dlb_scalar *value) {
    const char *sign = dlb_ort_accept(in, '-') ? "-" : "";
    dlb_ort_word word = in->word;
    if (kind != DLB_NONE && !is_bool &&
        (in->kind == '0' || dlb_ort_is(word, "inf") || dlb_ort_is(word, "nan"))) {
        dlb_ort_read_number(in, sign, kind, value);
    } else if (in->kind == '"' && kind == DLB_STRING) {
        value->kind = DLB_STRING;
        value->value.s = dlb_ort_read_string(in);
    } else if (is_bool && *sign == 0 &&
               (dlb_ort_is(word, "True") || dlb_ort_is(word, "False"))) {
        value->kind = DLB_INT;
        value->value.i = dlb_ort_is(word, "True");
    } else if (*sign != 0 || !dlb_ort_is(word, "None")) {
        dlb_ort_refuse(in, "a literal of its kind is expected");
    }
    dlb_ort_advance(in);
}

static inline int dlb_ort_read_scalar(dlb_ort_reader *in, dlb_ort_word name,
                                      dlb_scalar_kind kind, int is_bool) {
    dlb_ort_operator *made = in->made;
    if (made->scalar_count == DLB_ORT_SCALARS) {
        dlb_ort_refuse(in, "too many scalars");
        return 0;
    }
    dlb_ort_scalar *scalar = &made->scalars[made->scalar_count++];
    scalar->name = dlb_ort_copy(name);
    scalar->kind = kind;
    scalar->length = -1;
    dlb_ort_advance(in);
    scalar->is_required = !dlb_ort_accept(in, '?');
    if (!dlb_ort_accept(in, '='))
        return 1;
    if (scalar->is_required && dlb_ort_is(in->word, "None"))
        dlb_ort_refuse(in, "only an optional argument can be None");
    dlb_ort_read_default(in, kind, is_bool, &scalar->value);
    return 1;
}

/* ---- lists of numbers ---- */

static const char *const dlb_ort_list_sets[2] = {"int", "float"};

static inline dlb_ort_list *dlb_ort_make_list(dlb_scalar_kind kind, dlb_scalar *value) {
    dlb_ort_list *made = (dlb_ort_list *)calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    made->list.ints = kind == DLB_INTS ? made->ints : NULL;
    made->list.floats = kind == DLB_FLOATS ? made->floats : NULL;
    value->kind = kind;
    value->value.list = &made->list;
    return made;
}

/* At "[": 1 where `[]` or `[2]` is there, as after the word of a list, and no further
 * "[" behind it, 2 otherwise. */
static inline int dlb_ort_use_of_brackets(dlb_ort_reader ahead) {
    dlb_ort_advance(&ahead);
    if (ahead.kind == '0' && strspn(ahead.word.start, "0123456789") >= ahead.word.size)
        dlb_ort_advance(&ahead);
    return ahead.kind == ']' && dlb_ort_peek(&ahead) != '[' ? 1 : 2;
}

/* Find which words mean lists: those that no type of a tensor must have. */
static inline void dlb_ort_find_lists(dlb_ort_reader *in) {
    dlb_ort_operator none;
    dlb_ort_reader ahead = *in;
    char before = 0, last = 0; /* the words before this one */
    int are_results = 0;
    none.why[0] = 0;
    ahead.made = &none;
    in->lists[0] = in->lists[1] = 1;
    for (; ahead.kind != 0; before = last, last = ahead.kind, dlb_ort_advance(&ahead)) {
        int is_type = last == ':' || last == '>' || last == '(' || last == ',';
        are_results |= ahead.kind == '>';
        for (int k = 0; is_type && k < 2; k++) {
            dlb_ort_reader type = ahead;
            if (!dlb_ort_is(ahead.word, dlb_ort_list_sets[k]) ||
                dlb_ort_peek(&ahead) != '[')
                continue;
            dlb_ort_advance(&type);
            if (dlb_ort_use_of_brackets(type) != 1 || before == '!' || are_results)
                in->lists[k] = 0;
        }
    }
}

static inline void dlb_ort_read_numbers(dlb_ort_reader *in, dlb_ort_scalar *scalar) {
    dlb_ort_list *list = dlb_ort_make_list(scalar->kind, &scalar->value);
    if (list == NULL)
        dlb_ort_refuse(in, "out of memory");
    dlb_ort_expect(in, '[', "'[' is expected");
    while (list != NULL && in->kind != ']' && in->kind != 0) {
        dlb_scalar number;
        int64_t place = list->list.count;
        number.kind = DLB_NONE;
        if (place == DLB_ORT_LISTED) {
            dlb_ort_refuse(in, "too many numbers");
            return;
        }
        dlb_ort_read_default(in, scalar->kind == DLB_INTS ? DLB_INT : DLB_FLOAT, 0,
                             &number);
        if (number.kind == DLB_INT)
            list->ints[place] = number.value.i;
        else if (number.kind == DLB_FLOAT)
            list->floats[place] = number.value.f;
        else
            dlb_ort_refuse(in, "a number is expected");
        list->list.count = place + 1;
        if (in->kind != ']')
            dlb_ort_expect(in, ',', "',' or ']' is expected");
    }
    dlb_ort_expect(in, ']', "']' is expected");
    if (list != NULL && scalar->length >= 0 && list->list.count != scalar->length)
        dlb_ort_refuse(in, "the default has another number of elements");
}

static inline void dlb_ort_read_list(dlb_ort_reader *in, dlb_ort_word name,
                                     dlb_scalar_kind kind) {
    dlb_ort_operator *made = in->made;
    if (made->scalar_count == DLB_ORT_SCALARS || in->list_count == DLB_ORT_LISTS) {
        dlb_ort_refuse(in, "too many scalars");
        return;
    }
    in->list_count++;
    dlb_ort_scalar *scalar = &made->scalars[made->scalar_count++];
    scalar->name = dlb_ort_copy(name);
    scalar->kind = kind;
    scalar->length = -1;
    dlb_ort_advance(in);
    dlb_ort_expect(in, '[', "'[' is expected");
    if (in->kind == '0') {
        int64_t length = dlb_ort_read_integer(in);
        if (length > DLB_ORT_LISTED)
            dlb_ort_refuse(in, "too many numbers");
        scalar->length = (int)length;
        dlb_ort_advance(in);
    }
    dlb_ort_expect(in, ']', "']' is expected");
    scalar->is_required = !dlb_ort_accept(in, '?');
    if (!dlb_ort_accept(in, '='))
        return;
    if (!scalar->is_required && dlb_ort_is(in->word, "None"))
        dlb_ort_advance(in);
    else if (in->kind == '[')
        dlb_ort_read_numbers(in, scalar);
    else
        dlb_ort_refuse(in, "the default of a list stands in brackets");
}

static inline void dlb_ort_read_parameter(dlb_ort_reader *in) {
    static const char *const kinds[] = {"int", "bool", "float", "str"};
    static const dlb_scalar_kind numbers[] = {DLB_INT, DLB_INT, DLB_FLOAT, DLB_STRING};
    dlb_ort_operator *made = in->made;
    dlb_ort_word name = dlb_ort_take_name(in);
    int is_mutated = dlb_ort_accept(in, '!');
    dlb_ort_expect(in, ':', "':' is expected");
    char after = dlb_ort_peek(in);
    int is_scalar = after != '[' && after != '|';
    for (int k = 0; after == '[' && !is_mutated && k < 2; k++)
        if (in->lists[k] && dlb_ort_is(in->word, dlb_ort_list_sets[k])) {
            dlb_ort_read_list(in, name, k == 0 ? DLB_INTS : DLB_FLOATS);
            return;
        }
    for (int i = 0; is_scalar && i < 4; i++)
        if (dlb_ort_is(in->word, kinds[i])) {
            dlb_ort_read_scalar(in, name, numbers[i], i == 1);
            return;
        }
    if (is_scalar && dlb_ort_is(in->word, "dtype")) {
        dlb_ort_refuse(in, "an argument is a dtype, and in ONNX no attribute says the "
                           "dtype of a result");
        return;
    }
    dlb_ort_tensor *tensor = dlb_ort_read_tensor(in, name);
    if (tensor == NULL)
        return;
    tensor->is_mutated = is_mutated;
    tensor->is_optional = dlb_ort_accept(in, '?');
    if (dlb_ort_accept(in, '=')) {
        dlb_scalar none;
        dlb_ort_read_default(in, DLB_NONE, 0, &none);
    }
    made->has_optional |= tensor->is_optional;
    made->input_count++;
}

static inline void dlb_ort_end_item(dlb_ort_reader *in) {
    if (in->kind != ')')
        dlb_ort_expect(in, ',', "',' or ')' is expected");
}

static inline void dlb_ort_read_results(dlb_ort_reader *in) {
    dlb_ort_word none = {"", 0};
    if (!dlb_ort_accept(in, '(')) {
        in->made->result_count += dlb_ort_read_tensor(in, none) != NULL;
        return;
    }
    while (in->kind != ')' && in->kind != 0) {
        dlb_ort_word name = none;
        if (dlb_ort_peek(in) == ':') {
            name = dlb_ort_take_name(in);
            dlb_ort_advance(in);
        }
        in->made->result_count += dlb_ort_read_tensor(in, name) != NULL;
        dlb_ort_end_item(in);
    }
    dlb_ort_expect(in, ')', "')' is expected");
}

/* 0: not even its name can be read. */
static inline int dlb_ort_read_schema(dlb_ort_operator *made, const char *text) {
    dlb_ort_reader reader, *in = &reader;
    memset(in, 0, sizeof reader);
    in->begin = in->next = in->word.start = text;
    in->made = made;
    made->dims = (dlb_ort_dim *)calloc(strlen(text) + 1, sizeof *made->dims);
    made->steps = (dlb_ort_step *)calloc(2 * strlen(text) + 2, sizeof *made->steps);
    if (made->dims == NULL || made->steps == NULL)
        return 0;
    dlb_ort_advance(in);
    made->space = dlb_ort_copy(dlb_ort_take_name(in));
    dlb_ort_expect(in, ';', "'::' is expected");
    made->name = dlb_ort_copy(dlb_ort_take_name(in));
    if (made->space == NULL || made->name == NULL || made->why[0] != 0)
        return 0;
    size_t room = strlen(made->space) + strlen(made->name) + 3;
    made->qualified = (char *)malloc(room);
    if (made->qualified == NULL)
        return 0;
    snprintf(made->qualified, room, "%s::%s", made->space, made->name);
    dlb_ort_find_lists(in);
    dlb_ort_expect(in, '(', "'(' is expected");
    while (in->kind != ')' && in->kind != 0) {
        if (!dlb_ort_accept(in, '*'))
            dlb_ort_read_parameter(in);
        dlb_ort_end_item(in);
    }
    dlb_ort_expect(in, ')', "')' is expected");
    if (dlb_ort_accept(in, '>'))
        dlb_ort_read_results(in);
    if (in->kind != 0)
        dlb_ort_refuse(in, "the end is expected");
    return 1;
}

/* ---- an operator of a description ---- */

static inline int dlb_ort_is_text(const char *text, const char *other) {
    return text != NULL && strcmp(text, other) == 0;
}

static inline void dlb_ort_say_why(dlb_ort_operator *made, const char *why) {
    if (made->why[0] == 0)
        snprintf(made->why, sizeof made->why, "%s", why);
}

static inline void dlb_ort_check_types(dlb_ort_operator *made) {
    int overloads = 1;
    made->output_count = made->result_count;
    for (int i = 0; i < made->input_count; i++) {
        made->output_count += made->tensors[i].is_mutated;
        if (made->tensors[i].is_mutated && made->tensors[i].is_optional)
            dlb_ort_say_why(made,
                            "it writes a tensor that may be left out, which would be "
                            "an output without a type");
    }
    if (made->output_count == 0)
        dlb_ort_say_why(made, "it has no results: a model would leave its nodes out");
    for (int i = 0; i < made->dtype_count && made->why[0] == 0; i++) {
        overloads *= __builtin_popcount(made->dtypes[i].types);
        if (overloads == 0)
            dlb_ort_say_why(made,
                            "it has a tensor of a dtype that ONNX Runtime does not "
                            "have");
        if (overloads > DLB_ORT_OVERLOADS)
            dlb_ort_say_why(made, "it takes more than 1000 combinations of dtypes");
    }
    made->has_types = made->why[0] == 0;
}

static inline void dlb_ort_check_abi(dlb_ort_operator *made) {
    const dlb_export *described = made->described;
    int is_pointers = dlb_ort_is_text(described->abi, "pointers");
    int count = made->input_count + made->result_count;
    if (!described->is_dltensors && !is_pointers)
        dlb_ort_say_why(made,
                        "only dlbridge calls its C signature; without it, functions "
                        "of int(void *, DLTensor *, int) are called");
    if (is_pointers && (made->scalar_count > 0 || count > DLB_ORT_POINTERS))
        dlb_ort_say_why(made,
                        "with .abi = \"pointers\" it has at most 8 tensors and no "
                        "scalars");
}

/* Scalars that have the name of a dimension are that, and lists that of a pack. */
static inline void dlb_ort_find_sizes(dlb_ort_operator *made) {
    for (int i = 0; i < made->scalar_count; i++) {
        dlb_ort_scalar *scalar = &made->scalars[i];
        int is_list = scalar->kind == DLB_INTS;
        const dlb_ort_word *words = is_list ? made->packs : made->names;
        int count = is_list ? made->pack_count : made->name_count, found = -1;
        for (int k = 0; scalar->name != NULL && k < count; k++)
            if (dlb_ort_is(words[k], scalar->name))
                found = k;
        scalar->size = is_list ? -1 : found;
        scalar->pack = is_list ? found : -1;
    }
}

static inline void dlb_ort_free(dlb_ort_operator *made) {
    if (made == NULL)
        return;
    for (int i = 0; i < made->scalar_count; i++) {
        const dlb_scalar *value = &made->scalars[i].value;
        free(made->scalars[i].name);
        if (value->kind == DLB_STRING)
            free((void *)(uintptr_t)value->value.s);
        if (value->kind == DLB_INTS || value->kind == DLB_FLOATS)
            free((void *)(uintptr_t)value->value.list); /* the first of dlb_ort_list */
    }
    free(made->dims);
    free(made->steps);
    free(made->space);
    free(made->name);
    free(made->qualified);
    free(made);
}

/* Descriptions compiled with an older header have no such field. */
static inline void dlb_ort_read_version(dlb_ort_operator *made) {
    const dlb_export *described = made->described;
    int64_t version = 0;
    if (described->size >= offsetof(dlb_export, version) + sizeof version)
        version = described->version;
    made->version = 1;
    if (version < 0 || version > DLB_ORT_LAST_VERSION)
        dlb_ort_say_why(made, "its .version is not from 1 to 1000");
    else if (version > 0)
        made->version = (int)version;
}

/* NULL: out of memory, or it has no name. */
static inline dlb_ort_operator *dlb_ort_make(const dlb_export *described) {
    dlb_ort_operator *made = (dlb_ort_operator *)calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    made->described = described;
    if (described->schema == NULL || !dlb_ort_read_schema(made, described->schema)) {
        dlb_ort_free(made);
        return NULL;
    }
    dlb_ort_find_sizes(made);
    dlb_ort_check_types(made);
    dlb_ort_check_abi(made);
    dlb_ort_read_version(made);
    return made;
}

struct dlb_ort_op {
    dlb_ort_callbacks callbacks; /* first: the runtime has a pointer to it */
    const dlb_ort_operator *kernel;
    const dlb_ort_api *api;
    uint8_t inputs[DLB_ORT_TENSORS], outputs[DLB_ORT_TENSORS]; /* of dlb_ort_types */
};

/* ---- a node: the values of its attributes ---- */

typedef struct {
    const dlb_ort_op *op;
    dlb_scalar scalars[DLB_ORT_SCALARS];
    char *texts[DLB_ORT_SCALARS];
    dlb_ort_list *lists[DLB_ORT_SCALARS];
} dlb_ort_node;

typedef enum {
    DLB_ORT_ABSENT,
    DLB_ORT_READ,
    DLB_ORT_OTHER_KIND,
    DLB_ORT_OTHER_LENGTH,
    DLB_ORT_NO_MEMORY
} dlb_ort_reading;

/* The caller frees the text; NULL where it is not read. */
static inline dlb_ort_reading dlb_ort_read_text(const dlb_ort_api *api,
                                                const void *info, const char *name,
                                                char **text) {
    size_t size = 0;
    *text = NULL;
    if (!dlb_ort_is_ok(api,
                       api->KernelInfoGetAttribute_string(info, name, NULL, &size)))
        return DLB_ORT_ABSENT;
    *text = (char *)calloc(1, size + 1);
    if (*text == NULL)
        return DLB_ORT_NO_MEMORY;
    if (dlb_ort_is_ok(api,
                      api->KernelInfoGetAttribute_string(info, name, *text, &size)))
        return DLB_ORT_READ;
    free(*text);
    *text = NULL;
    return DLB_ORT_ABSENT;
}

static inline dlb_ort_reading dlb_ort_fits(int is_of_its_kind) {
    return is_of_its_kind ? DLB_ORT_READ : DLB_ORT_OTHER_KIND;
}

/* An integer is a float as well, and so is text: no attribute of ONNX holds a float64.
 */
static inline dlb_ort_reading dlb_ort_read_attribute(const dlb_ort_api *api,
                                                     const void *info,
                                                     const dlb_ort_scalar *scalar,
                                                     dlb_scalar *value, char **text) {
    int64_t integer;
    float number;
    *value = scalar->value;
    if (dlb_ort_is_ok(
            api, api->KernelInfoGetAttribute_int64(info, scalar->name, &integer))) {
        value->kind = scalar->kind;
        value->value.i = integer;
        if (scalar->kind == DLB_FLOAT)
            value->value.f = (double)integer;
        return dlb_ort_fits(scalar->kind != DLB_STRING);
    }
    if (dlb_ort_is_ok(api,
                      api->KernelInfoGetAttribute_float(info, scalar->name, &number))) {
        value->kind = DLB_FLOAT;
        value->value.f = (double)number;
        return dlb_ort_fits(scalar->kind == DLB_FLOAT);
    }
    dlb_ort_reading found = dlb_ort_read_text(api, info, scalar->name, text);
    if (found != DLB_ORT_READ)
        return found;
    value->kind = scalar->kind;
    if (scalar->kind == DLB_FLOAT) {
        char *end;
        value->value.f = strtod(*text, &end);
        return dlb_ort_fits(**text != 0 && *end == 0);
    }
    value->value.s = *text;
    return dlb_ort_fits(scalar->kind == DLB_STRING);
}

/* "0.1, inf, -2.5": a list of which no attribute of ONNX holds each number. */
static inline dlb_ort_reading dlb_ort_read_doubles(const char *text,
                                                   dlb_ort_list *list) {
    char *end;
    for (int64_t i = 0; i < DLB_ORT_LISTED; i++) {
        list->floats[i] = strtod(text, &end);
        list->list.count = i + 1;
        if (end == text || (*end != 0 && *end != ','))
            return DLB_ORT_OTHER_KIND;
        if (*end == 0)
            return DLB_ORT_READ;
        text = end + 1;
    }
    return DLB_ORT_OTHER_KIND;
}

static inline dlb_ort_reading dlb_ort_read_array(const dlb_ort_api *api,
                                                 const void *info,
                                                 const dlb_ort_scalar *scalar,
                                                 size_t ints, size_t floats,
                                                 dlb_ort_list *list) {
    float numbers[DLB_ORT_LISTED];
    const char *name = scalar->name;
    void *answer =
        ints > 0 ? api->KernelInfoGetAttributeArray_int64(info, name, list->ints, &ints)
                 : api->KernelInfoGetAttributeArray_float(info, name, numbers, &floats);
    if (!dlb_ort_is_ok(api, answer) || (ints == 0 && scalar->kind == DLB_INTS))
        return DLB_ORT_OTHER_KIND;
    for (size_t i = 0; i < ints; i++)
        list->floats[i] = (double)list->ints[i];
    for (size_t i = 0; ints == 0 && i < floats; i++)
        list->floats[i] = (double)numbers[i];
    list->list.count = (int64_t)(ints > 0 ? ints : floats);
    return DLB_ORT_READ;
}

/* For the runtime an attribute of a single value is a list without numbers, and so is a
 * list of the other kind. */
static inline dlb_ort_reading dlb_ort_fill_list(const dlb_ort_api *api,
                                                const void *info,
                                                const dlb_ort_scalar *scalar,
                                                dlb_ort_list *list) {
    const char *name = scalar->name;
    size_t ints = 0, floats = 0;
    int64_t integer;
    float number;
    int has_ints = dlb_ort_is_ok(
        api, api->KernelInfoGetAttributeArray_int64(info, name, NULL, &ints));
    int has_floats = dlb_ort_is_ok(
        api, api->KernelInfoGetAttributeArray_float(info, name, NULL, &floats));
    if (ints > DLB_ORT_LISTED || floats > DLB_ORT_LISTED)
        return DLB_ORT_OTHER_LENGTH;
    if (ints + floats > 0)
        return dlb_ort_read_array(api, info, scalar, ints, floats, list);
    char *text;
    dlb_ort_reading found = dlb_ort_read_text(api, info, name, &text);
    if (found == DLB_ORT_READ)
        found = scalar->kind == DLB_FLOATS ? dlb_ort_read_doubles(text, list)
                                           : DLB_ORT_OTHER_KIND;
    free(text);
    if (found != DLB_ORT_ABSENT)
        return found;
    if (dlb_ort_is_ok(api, api->KernelInfoGetAttribute_int64(info, name, &integer)) ||
        dlb_ort_is_ok(api, api->KernelInfoGetAttribute_float(info, name, &number)))
        return DLB_ORT_OTHER_KIND;
    return has_ints || has_floats ? DLB_ORT_READ : DLB_ORT_ABSENT;
}

static inline dlb_ort_reading dlb_ort_read_listed(const dlb_ort_api *api,
                                                  const void *info,
                                                  const dlb_ort_scalar *scalar,
                                                  dlb_scalar *value,
                                                  dlb_ort_list **list) {
    *list = dlb_ort_make_list(scalar->kind, value);
    dlb_ort_reading found =
        *list == NULL ? DLB_ORT_NO_MEMORY : dlb_ort_fill_list(api, info, scalar, *list);
    if (found == DLB_ORT_ABSENT)
        *value = scalar->value;
    else if (found == DLB_ORT_READ && scalar->length >= 0 &&
             (*list)->list.count != scalar->length)
        found = DLB_ORT_OTHER_LENGTH;
    return found;
}

static inline void dlb_ort_destroy(void *state) {
    dlb_ort_node *node = (dlb_ort_node *)state;
    for (int i = 0; i < DLB_ORT_SCALARS; i++) {
        free(node->texts[i]);
        free(node->lists[i]);
    }
    free(node);
}

static inline void *dlb_ort_refuse_attribute(const dlb_ort_op *op,
                                             const dlb_ort_scalar *scalar,
                                             const char *problem) {
    static const char *const kinds[] = {"none",   "int",   "float",
                                        "string", "int[]", "float[]"};
    char text[DLB_ORT_TEXT], length[16] = "";
    if (scalar->length >= 0)
        snprintf(length, sizeof length, " of %d", scalar->length);
    snprintf(text, sizeof text, "%s: attribute '%s' %s; the kernel takes %s %s%s",
             op->kernel->qualified, scalar->name, problem,
             scalar->kind < DLB_INTS ? "a scalar of kind" : "a list,",
             kinds[scalar->kind], length);
    return op->api->CreateStatus(DLB_ORT_INVALID_ARGUMENT, text);
}

static inline void *dlb_ort_read_value(const dlb_ort_op *op, dlb_ort_node *node,
                                       const void *info, int i) {
    const dlb_ort_scalar *scalar = &op->kernel->scalars[i];
    dlb_scalar *value = &node->scalars[i];
    dlb_ort_reading found =
        scalar->kind == DLB_INTS || scalar->kind == DLB_FLOATS
            ? dlb_ort_read_listed(op->api, info, scalar, value, &node->lists[i])
            : dlb_ort_read_attribute(op->api, info, scalar, value, &node->texts[i]);
    if (found == DLB_ORT_NO_MEMORY)
        return op->api->CreateStatus(DLB_ORT_FAIL, "out of memory");
    if (found == DLB_ORT_OTHER_KIND)
        return dlb_ort_refuse_attribute(op, scalar, "is of another kind");
    if (found == DLB_ORT_OTHER_LENGTH)
        return dlb_ort_refuse_attribute(op, scalar, "has another number of elements");
    if (scalar->is_required && value->kind == DLB_NONE)
        return dlb_ort_refuse_attribute(op, scalar, "is missing");
    return NULL;
}

static inline void *dlb_ort_create(const dlb_ort_op *op, const void *table,
                                   const void *info, void **made) {
    const dlb_ort_operator *kernel = op->kernel;
    dlb_ort_node *node = (dlb_ort_node *)calloc(1, sizeof *node);
    void *problem = NULL;
    (void)table;
    if (node == NULL)
        return op->api->CreateStatus(DLB_ORT_FAIL, "out of memory");
    node->op = op;
    for (int i = 0; problem == NULL && i < kernel->scalar_count; i++)
        problem = dlb_ort_read_value(op, node, info, i);
    if (problem != NULL)
        dlb_ort_destroy(node);
    else
        *made = node;
    return problem;
}

static inline void *dlb_ort_create_none(const dlb_ort_op *op, const void *table,
                                        const void *info, void **made) {
    char text[2 * DLB_ORT_TEXT];
    (void)table;
    (void)info;
    (void)made;
    snprintf(text, sizeof text, "%s is no operator of ONNX Runtime: %s",
             op->kernel->qualified, op->kernel->why);
    return op->api->CreateStatus(DLB_ORT_INVALID_ARGUMENT, text);
}

/* ---- a run ---- */

typedef struct {
    uint32_t has_name, has_pack;
    int64_t names[DLB_ORT_NAMES];
    struct {
        int ndim;
        const int64_t *shape;
    } packs[DLB_ORT_PACKS];
} dlb_ort_bindings;

typedef struct {
    const dlb_ort_op *op;
    void *context;
    void *problem; /* the runtime's own */
    int tensor_count, dim_count;
    char error[DLB_ORT_TEXT];
    dlb_ort_bindings bound;
    int copy_count;
    int64_t bytes[DLB_ORT_TENSORS]; /* of what a kernel may read or write */
    void *copies[DLB_ORT_TENSORS];  /* of inputs that lie badly */
    DLTensor tensors[DLB_ORT_TENSORS];
    int64_t dims[DLB_ORT_ROOM + 2 * DLB_ORT_NDIM];
} dlb_ort_call;

/* 0, which all of these functions return for a failure. */
static inline int dlb_ort_fail(dlb_ort_call *call, void *problem) {
    call->problem = problem;
    return 0;
}

static inline int dlb_ort_describe(dlb_ort_call *call, DLTensor *tensor, int type,
                                   int ndim) {
    int64_t *dims = call->dims + call->dim_count;
    if (call->dim_count + 2 * ndim > DLB_ORT_ROOM) {
        snprintf(call->error, sizeof call->error,
                 "the arguments have too many dimensions");
        return 0;
    }
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        dims[ndim + i] = stride;
        stride *= dims[i] > 1 ? dims[i] : 1;
    }
    call->dim_count += 2 * ndim;
    tensor->data = NULL;
    tensor->device.device_type = kDLCPU;
    tensor->device.device_id = 0;
    tensor->ndim = ndim;
    tensor->dtype.code = dlb_ort_types[type].code;
    tensor->dtype.bits = dlb_ort_types[type].bits;
    tensor->dtype.lanes = 1;
    tensor->shape = dims;
    tensor->strides = dims + ndim;
    tensor->byte_offset = 0;
    return 1;
}

static inline int64_t dlb_ort_bytes(const DLTensor *tensor) {
    int64_t bytes = tensor->dtype.bits / 8;
    for (int i = 0; i < tensor->ndim; i++)
        bytes *= tensor->shape[i];
    return bytes;
}

/* Into where the next tensor's extents are. */
static inline int dlb_ort_read_extents(dlb_ort_call *call, const void *value,
                                       size_t *ndim) {
    const dlb_ort_api *api = call->op->api;
    int64_t *dims = call->dims + call->dim_count;
    if (api->get_shape != NULL) {
        const int64_t *found = NULL;
        int type;
        void *answer = api->get_shape(value, &type, &found, ndim);
        if (answer != NULL)
            return dlb_ort_fail(call, answer);
        if (*ndim <= DLB_ORT_NDIM)
            memcpy(dims, found, *ndim * sizeof *dims);
        return 1;
    }
    void *info, *answer = api->GetTensorTypeAndShape(value, &info);
    if (answer != NULL)
        return dlb_ort_fail(call, answer);
    answer = api->GetDimensionsCount(info, ndim);
    if (answer == NULL && *ndim <= DLB_ORT_NDIM)
        answer = api->GetDimensions(info, dims, *ndim);
    api->ReleaseTensorTypeAndShapeInfo(info);
    return answer == NULL ? 1 : dlb_ort_fail(call, answer);
}

static inline int dlb_ort_take_input(dlb_ort_call *call, int index, size_t given) {
    const dlb_ort_api *api = call->op->api;
    DLTensor *tensor = &call->tensors[index];
    const void *value = NULL;
    size_t ndim = 0;
    if ((size_t)index < given) {
        void *answer =
            api->KernelContext_GetInput(call->context, (size_t)index, &value);
        if (answer != NULL)
            return dlb_ort_fail(call, answer);
    }
    if (value == NULL) {
        memset(tensor, 0, sizeof *tensor);
        tensor->ndim = -1;
        tensor->device.device_type = kDLCPU;
        return 1;
    }
    if (!dlb_ort_read_extents(call, value, &ndim))
        return 0;
    if (ndim > DLB_ORT_NDIM)
        ndim = DLB_ORT_ROOM; /* refused in the next line */
    if (!dlb_ort_describe(call, tensor, call->op->inputs[index], (int)ndim))
        return 0;
    void *answer = api->GetTensorMutableData(value, &tensor->data);
    return answer == NULL ? 1 : dlb_ort_fail(call, answer);
}

static inline int dlb_ort_take_inputs(dlb_ort_call *call) {
    const dlb_ort_operator *kernel = call->op->kernel;
    size_t given = (size_t)kernel->input_count;
    if (kernel->has_optional) {
        void *answer =
            call->op->api->KernelContext_GetInputCount(call->context, &given);
        if (answer != NULL)
            return dlb_ort_fail(call, answer);
    }
    for (int i = 0; i < kernel->input_count; i++)
        if (!dlb_ort_take_input(call, i, given))
            return 0;
    call->tensor_count = kernel->input_count;
    return 1;
}

/* ---- inputs against the schema ---- */

static inline int dlb_ort_match_extent(const dlb_ort_dim *dim, int64_t extent,
                                       dlb_ort_bindings *bound) {
    if (dim->kind == DLB_ORT_CONSTANT)
        return dim->value == extent;
    if (dim->kind != DLB_ORT_NAME)
        return 1; /* of expressions names may be bound by tensors to come */
    if (bound->has_name >> dim->value & 1)
        return bound->names[dim->value] == extent;
    bound->has_name |= DLB_ORT_BIT_(dim->value);
    bound->names[dim->value] = extent;
    return 1;
}

static inline int dlb_ort_match_pack(int64_t pack, int ndim, const int64_t *shape,
                                     dlb_ort_bindings *bound) {
    if (!(bound->has_pack >> pack & 1)) {
        bound->has_pack |= DLB_ORT_BIT_(pack);
        bound->packs[pack].ndim = ndim;
        bound->packs[pack].shape = shape;
        return 1;
    }
    return bound->packs[pack].ndim == ndim &&
           memcmp(bound->packs[pack].shape, shape, (size_t)ndim * sizeof *shape) == 0;
}

static inline int dlb_ort_match(const dlb_ort_operator *kernel, int index,
                                const DLTensor *tensor, dlb_ort_bindings *bound) {
    const dlb_ort_tensor *described = &kernel->tensors[index];
    const dlb_ort_dim *dims = kernel->dims + described->first;
    int has_pack = described->pack >= 0, at = 0;
    int extra = tensor->ndim - (described->count - has_pack);
    if (tensor->ndim < 0)
        return described->is_optional;
    if (extra < 0 || (!has_pack && extra > 0))
        return 0;
    for (int i = 0; i < described->count; i++) {
        int is_pack = dims[i].kind == DLB_ORT_PACK;
        if (is_pack
                ? !dlb_ort_match_pack(dims[i].value, extra, tensor->shape + at, bound)
                : !dlb_ort_match_extent(&dims[i], tensor->shape[at], bound))
            return 0;
        at += is_pack ? extra : 1;
    }
    return 1;
}

/* Where a dimension of a tensor is that has as many of them as its type demands. */
static inline int dlb_ort_place(const dlb_ort_tensor *described, int ndim, int dim) {
    int is_after = described->pack >= 0 && dim > described->pack;
    return is_after ? ndim - (described->count - dim) : dim;
}

/* How many names of an expression are not known, and one of them. */
static inline int dlb_ort_count_unknown(const dlb_ort_operator *kernel,
                                        const dlb_ort_dim *dim, uint32_t known,
                                        int *name) {
    uint32_t unknown = 0;
    for (int i = 0; i < dim->length; i++) {
        const dlb_ort_step *step = &kernel->steps[dim->first + i];
        if (step->operation == 'n' && !(known >> step->value & 1)) {
            unknown |= DLB_ORT_BIT_(step->value);
            *name = (int)step->value;
        }
    }
    return __builtin_popcount(unknown);
}

/* Whether an expression is one number times the name, plus another. */
static inline int dlb_ort_is_linear(const dlb_ort_operator *kernel,
                                    const dlb_ort_dim *dim, int name) {
    int degrees[DLB_ORT_OPERANDS + 1] = {0}, depth = 0; /* 9: more than 1 */
    for (int i = 0; i < dim->length; i++) {
        const dlb_ort_step *step = &kernel->steps[dim->first + i];
        if (step->operation == 'c' || step->operation == 'n') {
            degrees[depth++] = step->operation == 'n' && step->value == name;
            continue;
        }
        int right = degrees[--depth], left = degrees[depth - 1], sum = left + right;
        if (step->operation == '/')
            sum = sum > 0 ? 9 : 0;
        else if (step->operation != '*')
            sum = left > right ? left : right;
        degrees[depth - 1] = sum > 1 ? 9 : sum;
    }
    return degrees[0] == 1;
}

static inline int dlb_ort_solve(const dlb_ort_operator *kernel, const dlb_ort_dim *dim,
                                int name, int64_t extent, int64_t *names) {
    const dlb_ort_step *steps = kernel->steps + dim->first;
    int64_t base, next, factor, rest, back;
    names[name] = 0;
    if (!dlb_ort_evaluate(steps, dim->length, names, &base))
        return 0;
    names[name] = 1;
    return dlb_ort_evaluate(steps, dim->length, names, &next) &&
           dlb_ort_operate('-', next, base, &factor) &&
           dlb_ort_operate('-', extent, base, &rest) &&
           dlb_ort_operate('/', rest, factor, &names[name]) && names[name] >= 0 &&
           dlb_ort_operate('*', names[name], factor, &back) && back == rest;
}

static inline int dlb_ort_mismatch(dlb_ort_call *call, int index) {
    const dlb_ort_tensor *expected = &call->op->kernel->tensors[index];
    const DLTensor *tensor = &call->tensors[index];
    char got[200] = "none";
    size_t size = 0;
    for (int i = 0; i < tensor->ndim && size < sizeof got; i++)
        size += (size_t)snprintf(got + size, sizeof got - size, "%s%lld",
                                 i == 0 ? "[" : ", ", (long long)tensor->shape[i]);
    if (tensor->ndim == 0)
        size = (size_t)snprintf(got, sizeof got, "[");
    if (tensor->ndim >= 0 && size < sizeof got)
        snprintf(got + size, sizeof got - size, "]");
    snprintf(call->error, sizeof call->error,
             "argument '%.*s': expected %.*s, got the shape %s",
             (int)expected->name.size, expected->name.start, (int)expected->text.size,
             expected->text.start, got);
    return 0;
}

static inline int dlb_ort_is_extent(dlb_ort_call *call, const dlb_ort_scalar *scalar,
                                    int64_t value) {
    if (value < 0)
        snprintf(call->error, sizeof call->error,
                 "attribute '%s' is a dimension: it cannot be %lld", scalar->name,
                 (long long)value);
    return value >= 0;
}

static inline int dlb_ort_bind_pack(dlb_ort_call *call, const dlb_ort_scalar *scalar,
                                    const dlb_list *list) {
    for (int64_t i = 0; i < list->count; i++)
        if (!dlb_ort_is_extent(call, scalar, list->ints[i]))
            return 0;
    return dlb_ort_match_pack(scalar->pack, (int)list->count, list->ints, &call->bound);
}

static inline int dlb_ort_bind_sizes(dlb_ort_call *call, const dlb_ort_node *node) {
    const dlb_ort_operator *kernel = call->op->kernel;
    for (int i = 0; i < kernel->scalar_count; i++) {
        const dlb_ort_scalar *scalar = &kernel->scalars[i];
        const dlb_scalar *value = &node->scalars[i];
        if (scalar->pack >= 0 && value->kind == DLB_INTS &&
            !dlb_ort_bind_pack(call, scalar, value->value.list))
            return 0;
        if (scalar->size < 0)
            continue;
        if (!dlb_ort_is_extent(call, scalar, value->value.i))
            return 0;
        call->bound.has_name |= DLB_ORT_BIT_(scalar->size);
        call->bound.names[scalar->size] = value->value.i;
    }
    return 1;
}

/* 1: a name was solved; 0: none is left to be; -1: a tensor does not fit. */
static inline int dlb_ort_solve_next(dlb_ort_call *call) {
    const dlb_ort_operator *kernel = call->op->kernel;
    dlb_ort_bindings *bound = &call->bound;
    for (int i = 0; i < kernel->input_count; i++) {
        const dlb_ort_tensor *described = &kernel->tensors[i];
        const DLTensor *tensor = &call->tensors[i];
        for (int k = 0; !described->is_optional && k < described->count; k++) {
            const dlb_ort_dim *dim = &kernel->dims[described->first + k];
            int name = 0;
            if (dim->kind != DLB_ORT_EXPRESSION ||
                dlb_ort_count_unknown(kernel, dim, bound->has_name, &name) != 1 ||
                !dlb_ort_is_linear(kernel, dim, name))
                continue;
            int place = dlb_ort_place(described, tensor->ndim, k);
            if (!dlb_ort_solve(kernel, dim, name, tensor->shape[place], bound->names)) {
                dlb_ort_mismatch(call, i);
                return -1;
            }
            bound->has_name |= DLB_ORT_BIT_(name);
            return 1;
        }
    }
    return 0;
}

static inline int dlb_ort_match_expressions(dlb_ort_call *call, int index) {
    const dlb_ort_operator *kernel = call->op->kernel;
    const dlb_ort_tensor *described = &kernel->tensors[index];
    const DLTensor *tensor = &call->tensors[index];
    for (int i = 0; tensor->ndim >= 0 && i < described->count; i++) {
        const dlb_ort_dim *dim = &kernel->dims[described->first + i];
        int64_t value;
        int name;
        if (dim->kind != DLB_ORT_EXPRESSION ||
            dlb_ort_count_unknown(kernel, dim, call->bound.has_name, &name) > 0)
            continue;
        if (!dlb_ort_evaluate(kernel->steps + dim->first, dim->length,
                              call->bound.names, &value) ||
            value != tensor->shape[dlb_ort_place(described, tensor->ndim, i)])
            return dlb_ort_mismatch(call, index);
    }
    return 1;
}

static inline int dlb_ort_bind(dlb_ort_call *call, const dlb_ort_node *node) {
    const dlb_ort_operator *kernel = call->op->kernel;
    int solved;
    call->bound.has_name = call->bound.has_pack = 0;
    if (!dlb_ort_bind_sizes(call, node))
        return 0;
    for (int i = 0; i < kernel->input_count; i++)
        if (!dlb_ort_match(kernel, i, &call->tensors[i], &call->bound))
            return dlb_ort_mismatch(call, i);
    if (kernel->step_count == 0)
        return 1;
    do {
        solved = dlb_ort_solve_next(call);
    } while (solved > 0);
    if (solved < 0)
        return 0;
    for (int i = 0; i < kernel->input_count; i++)
        if (!dlb_ort_match_expressions(call, i))
            return 0;
    return 1;
}

/* ---- results ---- */

static inline int dlb_ort_make_output(dlb_ort_call *call, int output,
                                      const int64_t *dims, int ndim, void **data) {
    const dlb_ort_api *api = call->op->api;
    void *value = NULL;
    void *answer = api->KernelContext_GetOutput(call->context, (size_t)output, dims,
                                                (size_t)ndim, &value);
    if (answer == NULL)
        answer = api->GetTensorMutableData(value, data);
    return answer == NULL ? 1 : dlb_ort_fail(call, answer);
}

/* -1: not determined, or no extent. */
static inline int64_t dlb_ort_extent(const dlb_ort_operator *kernel,
                                     const dlb_ort_dim *dim,
                                     const dlb_ort_bindings *bound) {
    int64_t value = -1;
    int name;
    if (dim->kind == DLB_ORT_CONSTANT)
        return dim->value;
    if (dim->kind == DLB_ORT_NAME)
        return bound->has_name >> dim->value & 1 ? bound->names[dim->value] : -1;
    if (dim->kind == DLB_ORT_EXPRESSION &&
        dlb_ort_count_unknown(kernel, dim, bound->has_name, &name) == 0 &&
        !dlb_ort_evaluate(kernel->steps + dim->first, dim->length, bound->names,
                          &value))
        return -1;
    return value;
}

/* The rank of a result, its extents into `dims`; -1: they are not determined. */
static inline int dlb_ort_result_shape(const dlb_ort_operator *kernel, int result,
                                       const dlb_ort_bindings *bound, int64_t *dims) {
    const dlb_ort_tensor *described = &kernel->tensors[kernel->input_count + result];
    int ndim = 0;
    for (int i = 0; i < described->count; i++) {
        const dlb_ort_dim *dim = &kernel->dims[described->first + i];
        int is_pack = dim->kind == DLB_ORT_PACK;
        if (is_pack && !(bound->has_pack >> dim->value & 1))
            return -1;
        int count = is_pack ? bound->packs[dim->value].ndim : 1;
        if (ndim + count > DLB_ORT_NDIM)
            return -1;
        for (int k = 0; k < count; k++) {
            dims[ndim] = is_pack ? bound->packs[dim->value].shape[k]
                                 : dlb_ort_extent(kernel, dim, bound);
            if (dims[ndim++] < 0)
                return -1;
        }
    }
    return ndim;
}

static inline int dlb_ort_make_result(dlb_ort_call *call, int result) {
    const dlb_ort_operator *kernel = call->op->kernel;
    const dlb_ort_tensor *described = &kernel->tensors[kernel->input_count + result];
    int64_t *dims = call->dims + call->dim_count; /* there is room for any rank */
    int ndim = dlb_ort_result_shape(kernel, result, &call->bound, dims);
    if (ndim < 0) {
        snprintf(call->error, sizeof call->error,
                 "result %d: the shapes of the arguments give no shape for %.*s",
                 result, (int)described->text.size, described->text.start);
        return 0;
    }
    DLTensor *tensor = &call->tensors[call->tensor_count++];
    return dlb_ort_describe(call, tensor, call->op->outputs[result], ndim) &&
           dlb_ort_make_output(call, result, dims, ndim, &tensor->data);
}

/* Values of a model never change: what a kernel writes in place is an output, which
 * begins as a copy of the input. */
static inline int dlb_ort_make_outputs(dlb_ort_call *call) {
    const dlb_ort_operator *kernel = call->op->kernel;
    int next = kernel->result_count;
    for (int i = 0; i < kernel->result_count; i++)
        if (!dlb_ort_make_result(call, i))
            return 0;
    for (int i = 0; i < kernel->input_count; i++) {
        DLTensor *tensor = &call->tensors[i];
        void *data = NULL;
        if (!kernel->tensors[i].is_mutated)
            continue;
        if (!dlb_ort_make_output(call, next++, tensor->shape, tensor->ndim, &data))
            return 0;
        if (dlb_ort_bytes(tensor) > 0)
            memcpy(data, tensor->data, (size_t)dlb_ort_bytes(tensor));
        tensor->data = data;
    }
    return 1;
}

/* An application may have bound memory that lies badly, or is shared. */
static inline int dlb_ort_align(dlb_ort_call *call, int index) {
    DLTensor *tensor = &call->tensors[index];
    uintptr_t align = (uintptr_t)call->op->kernel->described->align, start;
    size_t bytes = (size_t)call->bytes[index];
    if (align <= 1 || (uintptr_t)tensor->data % align == 0)
        return 1;
    int is_read = index < call->op->kernel->input_count &&
                  !call->op->kernel->tensors[index].is_mutated;
    void *copy = is_read ? malloc(bytes + align) : NULL;
    if (copy == NULL) {
        snprintf(call->error, sizeof call->error,
                 "the memory of tensor %d must be aligned to %d bytes", index,
                 (int)align);
        return 0;
    }
    call->copies[call->copy_count++] = copy;
    start = ((uintptr_t)copy + align - 1) / align * align;
    memcpy((char *)copy + (start - (uintptr_t)copy), tensor->data, bytes);
    tensor->data = (char *)copy + (start - (uintptr_t)copy);
    return 1;
}

static inline int dlb_ort_is_apart(dlb_ort_call *call, int written) {
    uintptr_t data = (uintptr_t)call->tensors[written].data;
    for (int i = 0; i < call->tensor_count; i++) {
        uintptr_t begin = (uintptr_t)call->tensors[i].data;
        if (i == written || data >= begin + (uintptr_t)call->bytes[i] ||
            begin >= data + (uintptr_t)call->bytes[written])
            continue;
        snprintf(call->error, sizeof call->error,
                 "tensor %d, which is written, has memory shared with tensor %d",
                 written, i);
        return 0;
    }
    return 1;
}

static inline int dlb_ort_check_memory(dlb_ort_call *call) {
    const dlb_ort_operator *kernel = call->op->kernel;
    int may_overlap = dlb_ort_is_text(kernel->described->overlap, "allow");
    for (int i = 0; i < call->tensor_count; i++) {
        const DLTensor *tensor = &call->tensors[i];
        call->bytes[i] = tensor->ndim < 0 ? 0 : dlb_ort_bytes(tensor);
    }
    for (int i = 0; i < call->tensor_count; i++) {
        int is_written = i >= kernel->input_count || kernel->tensors[i].is_mutated;
        if (call->bytes[i] == 0)
            continue;
        if (is_written && !may_overlap && !dlb_ort_is_apart(call, i))
            return 0;
        if (!dlb_ort_align(call, i))
            return 0;
    }
    return 1;
}

/* ---- the call ---- */

static inline int dlb_ort_call_pointers(void (*function)(void), DLTensor *t,
                                        int count) {
    typedef DLTensor *p;
    switch (count) {
    case 1:
        return ((int (*)(p))function)(t);
    case 2:
        return ((int (*)(p, p))function)(t, t + 1);
    case 3:
        return ((int (*)(p, p, p))function)(t, t + 1, t + 2);
    case 4:
        return ((int (*)(p, p, p, p))function)(t, t + 1, t + 2, t + 3);
    case 5:
        return ((int (*)(p, p, p, p, p))function)(t, t + 1, t + 2, t + 3, t + 4);
    case 6:
        return ((int (*)(p, p, p, p, p, p))function)(t, t + 1, t + 2, t + 3, t + 4,
                                                     t + 5);
    case 7:
        return ((int (*)(p, p, p, p, p, p, p))function)(t, t + 1, t + 2, t + 3, t + 4,
                                                        t + 5, t + 6);
    default:
        return ((int (*)(p, p, p, p, p, p, p, p))function)(t, t + 1, t + 2, t + 3,
                                                           t + 4, t + 5, t + 6, t + 7);
    }
}

static inline int dlb_ort_invoke(dlb_ort_call *call, const dlb_ort_node *node) {
    const dlb_ort_operator *kernel = call->op->kernel;
    void (*function)(void) = kernel->described->function;
    dlb_context context;
    int status;
    memset(&context, 0, sizeof context);
    context.size = sizeof context;
    context.kernel = kernel->qualified;
    context.scalars = node->scalars;
    context.scalar_count = kernel->scalar_count;
    context.error = call->error;
    context.error_size = sizeof call->error;
    if (kernel->described->is_dltensors)
        status = ((int (*)(void *, DLTensor *, int))function)(&context, call->tensors,
                                                              call->tensor_count);
    else
        status = dlb_ort_call_pointers(function, call->tensors, call->tensor_count);
    if (status != 0 && call->error[0] == 0)
        snprintf(call->error, sizeof call->error, "the kernel returned status %d",
                 status);
    return status == 0;
}

static inline void *dlb_ort_run(void *state, void *context) {
    const dlb_ort_node *node = (const dlb_ort_node *)state;
    const dlb_ort_operator *kernel = node->op->kernel;
    dlb_ort_call call; /* large: each part is set when it is used */
    call.op = node->op;
    call.context = context;
    call.problem = NULL;
    call.tensor_count = call.dim_count = call.copy_count = 0;
    call.error[0] = 0;
    int is_ready = dlb_ort_take_inputs(&call) && dlb_ort_bind(&call, node) &&
                   dlb_ort_make_outputs(&call) && dlb_ort_check_memory(&call);
    int is_done = is_ready && dlb_ort_invoke(&call, node);
    while (call.copy_count > 0)
        free(call.copies[--call.copy_count]);
    if (is_done)
        return NULL;
    if (call.problem != NULL)
        return call.problem;
    char text[2 * DLB_ORT_TEXT];
    snprintf(text, sizeof text, "%s: %s", kernel->qualified, call.error);
    return node->op->api->CreateStatus(
        is_ready ? DLB_ORT_FAIL : DLB_ORT_INVALID_ARGUMENT, text);
}

/* ---- the shapes of results, as far as a model knows those of the inputs ---- */

/* An extent: a number, or a name of the model, or neither. */
typedef struct {
    int64_t value;      /* -1: unknown */
    const char *symbol; /* where it is known by name only; else NULL */
} dlb_ort_size;

typedef struct {
    int ndim; /* -1: unknown */
    dlb_ort_size sizes[DLB_ORT_NDIM];
} dlb_ort_shape;

typedef struct {
    const dlb_ort_op *op;
    const void *context;
    dlb_ort_size names[DLB_ORT_NAMES];
    dlb_ort_shape packs[DLB_ORT_PACKS], shape; /* shape: the one that was read last */
    int types[DLB_ORT_DTYPES], type;           /* the runtime's numbers; 0: unknown */
} dlb_ort_inference;

static inline int dlb_ort_is_known(dlb_ort_size size) {
    return size.value >= 0 || size.symbol != NULL;
}

static inline void dlb_ort_read_shape(dlb_ort_inference *in, int input) {
    const dlb_ort_api *api = in->op->api;
    int64_t dims[DLB_ORT_NDIM];
    const char *symbols[DLB_ORT_NDIM];
    void *info = NULL;
    size_t ndim = 0;
    in->shape.ndim = -1;
    in->type = 0;
    if (!dlb_ort_is_ok(api, api->ShapeInferContext_GetInputTypeShape(
                                in->context, (size_t)input, &info)) ||
        info == NULL ||
        !dlb_ort_is_ok(api, api->GetTensorElementType(info, &in->type)) ||
        !dlb_ort_is_ok(api, api->GetDimensionsCount(info, &ndim)) ||
        ndim > DLB_ORT_NDIM ||
        !dlb_ort_is_ok(api, api->GetDimensions(info, dims, ndim)) ||
        !dlb_ort_is_ok(api, api->GetSymbolicDimensions(info, symbols, ndim)))
        return;
    for (size_t i = 0; i < ndim; i++) {
        int is_named = dims[i] < 0 && symbols[i] != NULL && symbols[i][0] != 0;
        in->shape.sizes[i].value = dims[i];
        in->shape.sizes[i].symbol = is_named ? symbols[i] : NULL;
    }
    in->shape.ndim = (int)ndim;
}

/* How many dimensions its pack has, or -1 where what was read says nothing: a scalar
 * has as many dimensions as what the model knows nothing of. */
static inline int dlb_ort_extra(const dlb_ort_inference *in,
                                const dlb_ort_tensor *described) {
    int has_pack = described->pack >= 0;
    int extra = in->shape.ndim - (described->count - has_pack);
    return in->shape.ndim <= 0 || (!has_pack && extra > 0) ? -1 : extra;
}

static inline void dlb_ort_infer_input(dlb_ort_inference *in,
                                       const dlb_ort_tensor *described) {
    int extra = dlb_ort_extra(in, described), at = 0;
    if (in->type != 0)
        in->types[described->dtype] = in->type;
    for (int i = 0; extra >= 0 && i < described->count; i++) {
        const dlb_ort_dim *dim = &in->op->kernel->dims[described->first + i];
        const dlb_ort_size *sizes = in->shape.sizes + at;
        if (dim->kind == DLB_ORT_PACK) {
            dlb_ort_shape *pack = &in->packs[dim->value];
            if (pack->ndim < 0) {
                pack->ndim = extra;
                memcpy(pack->sizes, sizes, (size_t)extra * sizeof *sizes);
            }
            at += extra;
            continue;
        }
        if (dim->kind == DLB_ORT_NAME &&
            (!dlb_ort_is_known(in->names[dim->value]) || sizes->value >= 0))
            in->names[dim->value] = *sizes;
        at++;
    }
}

static inline uint32_t dlb_ort_known_names(const dlb_ort_inference *in,
                                           int64_t *values) {
    uint32_t known = 0;
    for (int i = 0; i < in->op->kernel->name_count; i++) {
        values[i] = in->names[i].value;
        known |= values[i] >= 0 ? DLB_ORT_BIT_(i) : 0;
    }
    return known;
}

/* Names that only expressions determine, where all numbers are known. 0: none. */
static inline int dlb_ort_infer_name(dlb_ort_inference *in) {
    const dlb_ort_operator *kernel = in->op->kernel;
    int64_t values[DLB_ORT_NAMES];
    uint32_t known = dlb_ort_known_names(in, values);
    for (int i = 0; i < kernel->input_count; i++) {
        const dlb_ort_tensor *described = &kernel->tensors[i];
        dlb_ort_read_shape(in, i);
        for (int k = 0; dlb_ort_extra(in, described) >= 0 && k < described->count;
             k++) {
            const dlb_ort_dim *dim = &kernel->dims[described->first + k];
            int place = dlb_ort_place(described, in->shape.ndim, k), name = 0;
            int64_t extent = in->shape.sizes[place].value;
            if (dim->kind == DLB_ORT_EXPRESSION && extent >= 0 &&
                dlb_ort_count_unknown(kernel, dim, known, &name) == 1 &&
                in->names[name].symbol == NULL &&
                dlb_ort_is_linear(kernel, dim, name) &&
                dlb_ort_solve(kernel, dim, name, extent, values)) {
                in->names[name].value = values[name];
                return 1;
            }
        }
    }
    return 0;
}

static inline dlb_ort_size dlb_ort_infer_size(const dlb_ort_inference *in,
                                              const dlb_ort_dim *dim) {
    const dlb_ort_operator *kernel = in->op->kernel;
    dlb_ort_size size = {-1, NULL};
    int64_t values[DLB_ORT_NAMES];
    int name;
    if (dim->kind == DLB_ORT_CONSTANT)
        size.value = dim->value;
    else if (dim->kind == DLB_ORT_NAME)
        size = in->names[dim->value];
    else if (dim->kind == DLB_ORT_EXPRESSION &&
             dlb_ort_count_unknown(kernel, dim, dlb_ort_known_names(in, values),
                                   &name) == 0 &&
             !dlb_ort_evaluate(kernel->steps + dim->first, dim->length, values,
                               &size.value))
        size.value = -1;
    return size;
}

/* 0: not known in each dimension. What is not known has no name that others lack. */
static inline int dlb_ort_infer_result(dlb_ort_inference *in,
                                       const dlb_ort_tensor *described) {
    dlb_ort_shape *shape = &in->shape;
    shape->ndim = 0;
    for (int i = 0; i < described->count; i++) {
        const dlb_ort_dim *dim = &in->op->kernel->dims[described->first + i];
        int is_pack = dim->kind == DLB_ORT_PACK;
        int count = is_pack ? in->packs[dim->value].ndim : 1;
        if (count < 0 || shape->ndim + count > DLB_ORT_NDIM)
            return 0;
        for (int k = 0; k < count; k++) {
            dlb_ort_size size =
                is_pack ? in->packs[dim->value].sizes[k] : dlb_ort_infer_size(in, dim);
            if (!dlb_ort_is_known(size))
                return 0;
            shape->sizes[shape->ndim++] = size;
        }
    }
    return 1;
}

static inline void dlb_ort_set_shape(dlb_ort_inference *in, int output, int type) {
    const dlb_ort_api *api = in->op->api;
    int64_t dims[DLB_ORT_NDIM];
    const char *symbols[DLB_ORT_NDIM];
    void *info = NULL;
    size_t ndim = (size_t)in->shape.ndim;
    for (size_t i = 0; i < ndim; i++) {
        dims[i] = in->shape.sizes[i].value;
        symbols[i] = dims[i] < 0 ? in->shape.sizes[i].symbol : "";
    }
    if (!dlb_ort_is_ok(api, api->CreateTensorTypeAndShapeInfo(&info)))
        return;
    if (dlb_ort_is_ok(api, api->SetTensorElementType(info, type)) &&
        dlb_ort_is_ok(api, api->SetDimensions(info, dims, ndim)) &&
        dlb_ort_is_ok(api, api->SetSymbolicDimensions(info, symbols, ndim)))
        (void)dlb_ort_is_ok(api, api->ShapeInferContext_SetOutputTypeShape(
                                     in->context, (size_t)output, info));
    api->ReleaseTensorTypeAndShapeInfo(info);
}

/* What the runtime passes may be the first operator of the name, of whatever dtypes. */
static inline void dlb_ort_infer_all(dlb_ort_inference *in) {
    const dlb_ort_operator *kernel = in->op->kernel;
    int next = kernel->result_count;
    memset(in->types, 0, sizeof in->types);
    for (int i = 0; i < DLB_ORT_NAMES; i++) {
        in->names[i].value = -1;
        in->names[i].symbol = NULL;
    }
    for (int i = 0; i < DLB_ORT_PACKS; i++)
        in->packs[i].ndim = -1;
    for (int i = 0; i < kernel->input_count; i++) {
        dlb_ort_read_shape(in, i);
        dlb_ort_infer_input(in, &kernel->tensors[i]);
    }
    while (dlb_ort_infer_name(in))
        continue;
    for (int i = 0; i < kernel->result_count; i++) {
        const dlb_ort_tensor *described = &kernel->tensors[kernel->input_count + i];
        int type = in->types[described->dtype];
        if (type == 0)
            type = dlb_ort_types[in->op->outputs[i]].number;
        if (dlb_ort_infer_result(in, described))
            dlb_ort_set_shape(in, i, type);
    }
    for (int i = 0; i < kernel->input_count; i++) {
        if (!kernel->tensors[i].is_mutated)
            continue;
        dlb_ort_read_shape(in, i);
        int is_whole = in->shape.ndim > 0;
        for (int k = 0; is_whole && k < in->shape.ndim; k++)
            is_whole = dlb_ort_is_known(in->shape.sizes[k]);
        if (is_whole)
            dlb_ort_set_shape(in, next, in->type);
        next++;
    }
}

static inline void *dlb_ort_infer(const dlb_ort_op *op, const void *context) {
    dlb_ort_inference *in = (dlb_ort_inference *)malloc(sizeof *in);
    if (in != NULL) {
        in->op = op;
        in->context = context;
        dlb_ort_infer_all(in);
    }
    free(in);
    return NULL;
}

/* ---- what the runtime asks of an operator ---- */

static inline const char *dlb_ort_get_name(const dlb_ort_op *op) {
    return op->kernel->name;
}

static inline const char *dlb_ort_get_provider(const dlb_ort_op *op) {
    (void)op;
    return NULL; /* the CPU's */
}

/* An operator without types takes anything and gives a float, up to where its node is
 * made and refused. */
static inline int dlb_ort_get_input_type(const dlb_ort_op *op, size_t index) {
    return op->kernel->has_types ? dlb_ort_types[op->inputs[index]].number : 0;
}

static inline size_t dlb_ort_get_input_count(const dlb_ort_op *op) {
    return op->kernel->has_types ? (size_t)op->kernel->input_count : 1;
}

static inline int dlb_ort_get_output_type(const dlb_ort_op *op, size_t index) {
    return op->kernel->has_types ? dlb_ort_types[op->outputs[index]].number : 1;
}

static inline size_t dlb_ort_get_output_count(const dlb_ort_op *op) {
    return op->kernel->has_types ? (size_t)op->kernel->output_count : 1;
}

static inline int dlb_ort_get_input_need(const dlb_ort_op *op, size_t index) {
    if (!op->kernel->has_types)
        return DLB_ORT_VARIADIC;
    return op->kernel->tensors[index].is_optional ? DLB_ORT_OPTIONAL : DLB_ORT_REQUIRED;
}

static inline int dlb_ort_get_output_need(const dlb_ort_op *op, size_t index) {
    (void)index;
    return op->kernel->has_types ? DLB_ORT_REQUIRED : DLB_ORT_VARIADIC;
}

static inline int dlb_ort_get_memory(const dlb_ort_op *op, size_t index) {
    (void)op;
    (void)index;
    return 0; /* where the provider has it */
}

static inline int dlb_ort_return_0(const dlb_ort_op *op) {
    (void)op;
    return 0;
}

/* The version of its domain that the operator is of. */
static inline int dlb_ort_get_start(const dlb_ort_op *op) {
    return op->kernel->version;
}

static inline int dlb_ort_return_last(const dlb_ort_op *op) {
    (void)op;
    return INT_MAX; /* the last version of the operator set that has the operator */
}

static inline void dlb_ort_fill(dlb_ort_op *op) {
    dlb_ort_callbacks *to = &op->callbacks;
    int runs = op->kernel->why[0] == 0;
    to->version = DLB_ORT_VERSION;
    to->get_name = dlb_ort_get_name;
    to->get_provider = dlb_ort_get_provider;
    to->get_input_type = dlb_ort_get_input_type;
    to->get_input_count = dlb_ort_get_input_count;
    to->get_output_type = dlb_ort_get_output_type;
    to->get_output_count = dlb_ort_get_output_count;
    to->destroy = dlb_ort_destroy;
    to->get_input_need = dlb_ort_get_input_need;
    to->get_output_need = dlb_ort_get_output_need;
    to->get_input_memory = dlb_ort_get_memory;
    to->get_input_arity = dlb_ort_return_0;
    to->are_inputs_alike = dlb_ort_return_0;
    to->get_output_arity = dlb_ort_return_0;
    to->are_outputs_alike = dlb_ort_return_0;
    to->create_checked = runs ? dlb_ort_create : dlb_ort_create_none;
    to->compute_checked = dlb_ort_run;
    /* the runtime reads the type of an input that is missing */
    to->infer =
        op->kernel->has_types && !op->kernel->has_optional ? dlb_ort_infer : NULL;
    to->get_start = dlb_ort_get_start;
    to->get_end = dlb_ort_return_last;
}

/* ---- registration ---- */

typedef struct dlb_ort_domain {
    const char *name;
    void *handle;
    struct dlb_ort_domain *next;
} dlb_ort_domain;

/* What was registered with one copy of the runtime; never freed, since sessions refer
 * to it. */
typedef struct dlb_ort_plan {
    const void *table;
    dlb_ort_api api;
    dlb_ort_domain *domains;
    struct dlb_ort_plan *next;
} dlb_ort_plan;

/* The place of the next dtype that a choice says: bit by bit of each set. */
static inline int dlb_ort_next_choice(const dlb_ort_operator *kernel, uint8_t *choice) {
    for (int i = 0; i < kernel->dtype_count; i++) {
        for (int next = choice[i] + 1; next < DLB_ORT_ALL_TYPES; next++)
            if (kernel->dtypes[i].types >> next & 1) {
                choice[i] = (uint8_t)next;
                return 1;
            }
        choice[i] = (uint8_t)__builtin_ctz(kernel->dtypes[i].types);
    }
    return 0;
}

static inline void *dlb_ort_add_op(dlb_ort_plan *plan, void *domain,
                                   const dlb_ort_operator *kernel,
                                   const uint8_t *choice) {
    dlb_ort_op *op = (dlb_ort_op *)calloc(1, sizeof *op);
    if (op == NULL)
        return plan->api.CreateStatus(DLB_ORT_FAIL, "out of memory");
    op->kernel = kernel;
    op->api = &plan->api;
    dlb_ort_fill(op);
    if (kernel->has_types) {
        int next = kernel->result_count;
        for (int i = 0; i < kernel->input_count; i++) {
            op->inputs[i] = choice[kernel->tensors[i].dtype];
            if (kernel->tensors[i].is_mutated)
                op->outputs[next++] = op->inputs[i];
        }
        for (int i = 0; i < kernel->result_count; i++)
            op->outputs[i] = choice[kernel->tensors[kernel->input_count + i].dtype];
    }
    return plan->api.CustomOpDomain_Add(domain, op);
}

/* An operator whose inputs may have several dtypes is one for each combination. */
static inline void *dlb_ort_add_ops(dlb_ort_plan *plan, void *domain,
                                    const dlb_ort_operator *kernel) {
    uint8_t choice[DLB_ORT_DTYPES] = {0};
    void *problem;
    if (!kernel->has_types)
        return dlb_ort_add_op(plan, domain, kernel, choice);
    for (int i = 0; i < kernel->dtype_count; i++)
        choice[i] = (uint8_t)__builtin_ctz(kernel->dtypes[i].types);
    do {
        problem = dlb_ort_add_op(plan, domain, kernel, choice);
    } while (problem == NULL && dlb_ort_next_choice(kernel, choice));
    return problem;
}

static inline void *dlb_ort_find_domain(dlb_ort_plan *plan, const char *name,
                                        void **handle) {
    for (dlb_ort_domain *each = plan->domains; each != NULL; each = each->next)
        if (strcmp(each->name, name) == 0) {
            *handle = each->handle;
            return NULL;
        }
    dlb_ort_domain *made = (dlb_ort_domain *)calloc(1, sizeof *made);
    if (made == NULL)
        return plan->api.CreateStatus(DLB_ORT_FAIL, "out of memory");
    made->name = name;
    made->next = plan->domains;
    plan->domains = made;
    *handle = NULL;
    void *problem = plan->api.CreateCustomOpDomain(name, &made->handle);
    *handle = made->handle;
    return problem;
}

static inline int dlb_ort_is_of_cpu(const dlb_export *described) {
    return described->platform == NULL || described->platform[0] == 0 ||
           strcmp(described->platform, "cpu") == 0;
}

static inline void *dlb_ort_fill_plan(dlb_ort_plan *plan) {
    const void *const *each = __start_dlb_exports;
    for (; each != NULL && each < __stop_dlb_exports; each++) {
        const dlb_export *described = (const dlb_export *)*each;
        char text[DLB_ORT_TEXT];
        void *domain = NULL;
        if (described == NULL || !dlb_ort_is_of_cpu(described))
            continue;
        dlb_ort_operator *kernel = dlb_ort_make(described);
        if (kernel == NULL) {
            snprintf(text, sizeof text, "%s has no schema that begins with a name",
                     described->symbol);
            return plan->api.CreateStatus(DLB_ORT_INVALID_ARGUMENT, text);
        }
        void *problem = dlb_ort_find_domain(plan, kernel->space, &domain);
        if (problem == NULL)
            problem = dlb_ort_add_ops(plan, domain, kernel);
        if (problem != NULL)
            return problem;
    }
    return NULL;
}

static dlb_ort_plan *dlb_ort_plans;
static char dlb_ort_lock; /* held while the list above is read or changed */

/* The plan for a copy of the runtime, made when it first asks. */
static inline void *dlb_ort_find_plan(const void *table, const void *newer,
                                      dlb_ort_plan **found) {
    for (*found = dlb_ort_plans; *found != NULL; *found = (*found)->next)
        if ((*found)->table == table)
            return NULL;
    dlb_ort_plan *made = (dlb_ort_plan *)calloc(1, sizeof *made);
    dlb_ort_api api;
    dlb_ort_read_table(table, newer, &api);
    if (made == NULL)
        return api.CreateStatus(DLB_ORT_FAIL, "out of memory");
    made->table = table;
    made->api = api;
    void *problem = dlb_ort_fill_plan(made);
    if (problem != NULL)
        return problem;
    made->next = dlb_ort_plans;
    *found = dlb_ort_plans = made;
    return NULL;
}

/* Version N of the table came with release 1.N; the runtime prints a message when it is
 * asked for one that it does not have. */
static inline int dlb_ort_has_version(const dlb_ort_base *base, unsigned version) {
    unsigned major = 0, minor = 0;
    return sscanf(base->get_version(), "%u.%u", &major, &minor) == 2 &&
           (major > 1 || minor >= version) && base->get_api(version) != NULL;
}

static inline void *dlb_ort_refuse_runtime(const dlb_ort_base *base) {
    char text[DLB_ORT_TEXT];
    const void *first = base->get_api(1);
    snprintf(
        text, sizeof text,
        "kernels need version 21 of ONNX Runtime's C API, which 1.21 and later have; "
        "this is %s",
        base->get_version());
    if (first == NULL)
        return NULL;
    return ((void *(*)(int, const char *))((const dlb_ort_function *)first)[0])(
        DLB_ORT_INVALID_ARGUMENT, text);
}

DLB_VISIBLE_ void *RegisterCustomOps(void *options, const dlb_ort_base *base);
DLB_VISIBLE_ void *RegisterCustomOps(void *options, const dlb_ort_base *base) {
    dlb_ort_plan *plan = NULL;
    if (!dlb_ort_has_version(base, DLB_ORT_VERSION))
        return dlb_ort_refuse_runtime(base);
    const void *table = base->get_api(DLB_ORT_VERSION), *newer = NULL;
    if (dlb_ort_has_version(base, DLB_ORT_SHAPE_VERSION))
        newer = base->get_api(DLB_ORT_SHAPE_VERSION);
    while (__atomic_test_and_set(&dlb_ort_lock, __ATOMIC_ACQUIRE))
        continue; /* for as long as another thread makes the plan, once */
    void *problem = dlb_ort_find_plan(table, newer, &plan);
    __atomic_clear(&dlb_ort_lock, __ATOMIC_RELEASE);
    for (dlb_ort_domain *each = problem == NULL ? plan->domains : NULL;
         problem == NULL && each != NULL; each = each->next)
        problem = plan->api.AddCustomOpDomain(options, each->handle);
    return problem;
}

#ifdef __cplusplus
}
#endif

#endif /* DLBRIDGE_ONNXRUNTIME_H_ */
