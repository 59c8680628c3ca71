/* The call, as a kernel in C sees it: its scalars, the stream, a place for an error
 * text. Nothing here needs dlbridge at link time.
 *
 *     #include "dlbridge_kernel.h"
 *
 *     int axpy(void *ctx, DLTensor *args, int n) {
 *         if (n != 3)
 *             return dlb_set_error(ctx, "axpy takes 3 tensors, got %d", n);
 *         double alpha = dlb_get_float(ctx, 0);
 *         ...
 *         return 0;
 *     }
 *
 * `args` are the tensors of the schema in order, the results after them. byte_offset is
 * 0, strides are set, in elements. An optional tensor that was left out has ndim -1.
 * The arrays are valid until the kernel returns. Any status but 0 is a failure.
 *
 * An exception of C++ or a panic of Rust must not leave the kernel: its caller is C,
 * and the process ends. In C++, dlb_guard makes it an error with the exception's text:
 *
 *     extern "C" int axpy(void *ctx, DLTensor *args, int n) noexcept {
 *         return dlb_guard(ctx, [&] {
 *             ...
 *             return 0;
 *         });
 *     }
 *
 * In Rust, std::panic::catch_unwind does; docs/kernels.md has the lines.
 *
 * A library describes its own kernels with DLB_EXPORT, at file scope beside each
 * function, which may be static. dlbridge.load_library("./libmylib.so") makes them
 * operators of every framework, without any Python code for them:
 *
 *     DLB_EXPORT(axpy, "mylib::axpy(x: f32[n], y: f32[n], *, alpha: float) -> f32[n]",
 *                .vjp = "axpy_vjp", .doc = "Return alpha * x + y.");
 */
#ifndef DLBRIDGE_KERNEL_H_
#define DLBRIDGE_KERNEL_H_

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {               /* of a scalar */
               DLB_NONE = 0, /* an optional scalar that was left out */
               DLB_INT = 1,  /* also bool: 0 or 1, and dtype: see dlb_get_dtype */
               DLB_FLOAT = 2,
               DLB_STRING = 3,
               DLB_INTS = 4,  /* a list: see dlb_get_ints */
               DLB_FLOATS = 5 /* see dlb_get_floats */
} dlb_scalar_kind;

typedef struct { /* a list of numbers, of one kind */
    int64_t count;
    const int64_t *ints;
    const double *floats;
} dlb_list;

typedef struct {
    int64_t kind; /* a dlb_scalar_kind */
    union {
        int64_t i;
        double f;
        const char *s; /* UTF-8, ends with 0 */
        const dlb_list *list;
    } value;
} dlb_scalar;

typedef struct {
    size_t size;        /* of this struct, in bytes: fields may be added at its end */
    const char *kernel; /* the name in its schema */
    void *user;         /* what the kernel was wrapped with */
    void *stream;       /* of the device, NULL on the CPU */
    const dlb_scalar *scalars; /* in the order of the schema */
    int64_t scalar_count;
    char *error; /* room for the text of an error */
    size_t error_size;
    const int32_t *counts; /* with lists of tensors: of how many each argument and
                              result is, see dlb_get_tensors; else NULL */
    int64_t count_count;
} dlb_context;

/* Keep the text for the caller and return -1, the status to return. */
static inline int dlb_set_error(void *context, const char *format, ...) {
    dlb_context *call = (dlb_context *)context;
    va_list arguments;
    va_start(arguments, format);
    if (call != NULL && call->error != NULL)
        vsnprintf(call->error, call->error_size, format, arguments);
    va_end(arguments);
    return -1;
}

static inline double dlb_get_float(const void *context, int index) {
    const dlb_scalar *scalar = &((const dlb_context *)context)->scalars[index];
    return scalar->kind == DLB_FLOAT ? scalar->value.f : (double)scalar->value.i;
}

static inline int64_t dlb_get_int(const void *context, int index) {
    const dlb_scalar *scalar = &((const dlb_context *)context)->scalars[index];
    return scalar->kind == DLB_FLOAT ? (int64_t)scalar->value.f : scalar->value.i;
}

static inline DLDataType dlb_get_dtype(const void *context, int index) {
    int64_t key = ((const dlb_context *)context)->scalars[index].value.i;
    DLDataType dtype = {(uint8_t)key, (uint8_t)(key >> 8), (uint16_t)(key >> 16)};
    return dtype;
}

/* The numbers of an `int[]`, and into `count`, which may be NULL, how many there are.
 * NULL: it is no such list, or was left out. */
static inline const int64_t *dlb_get_ints(const void *context, int index,
                                          int64_t *count) {
    const dlb_scalar *scalar = &((const dlb_context *)context)->scalars[index];
    const dlb_list *list = scalar->kind == DLB_INTS ? scalar->value.list : NULL;
    if (count != NULL)
        *count = list != NULL ? list->count : 0;
    return list != NULL ? list->ints : NULL;
}

/* The same of a `float[]`. */
static inline const double *dlb_get_floats(const void *context, int index,
                                           int64_t *count) {
    const dlb_scalar *scalar = &((const dlb_context *)context)->scalars[index];
    const dlb_list *list = scalar->kind == DLB_FLOATS ? scalar->value.list : NULL;
    if (count != NULL)
        *count = list != NULL ? list->count : 0;
    return list != NULL ? list->floats : NULL;
}

/* The tensors of a list, one behind the other, and into `count`, which may be NULL, how
 * many there are. `index` counts the tensor arguments and results of the schema, each
 * list once: in "f(a: f32[n], xs: f32[n][]) -> f32[n]", 0 is a, 1 is xs, 2 the result.
 * An argument that is not a list is one tensor, and an optional result ("? if save")
 * one or none. `tensors` are those that the kernel was called with.
 */
static inline DLTensor *dlb_get_tensors(const void *context, DLTensor *tensors,
                                        int index, int64_t *count) {
    const dlb_context *call = (const dlb_context *)context;
    const int32_t *counts = NULL;
    int64_t first = index, own = 1;
    if (call->size >= offsetof(dlb_context, counts) + sizeof counts)
        counts = call->counts;
    if (counts != NULL) {
        first = 0;
        own = counts[index];
        for (int i = 0; i < index; i++)
            first += counts[i];
    }
    if (count != NULL)
        *count = own;
    return tensors + first;
}

static inline int dlb_is_missing(const DLTensor *tensor) {
    return tensor->ndim < 0;
}

/* ---- exported kernels ---------------------------------------------------------------
 *
 * DLB_EXPORT(function, "schema", .field = value, ...); describes one function. The
 * fields are those of dlb_export from `abi` on, in any order, each at most once. In C
 * it needs C11, in C++ C++17; in both GCC or Clang, for ELF.
 *
 * Each description is found through a pointer of its own in a section of the library,
 * so any number of source files may export kernels. The pointers are exported symbols,
 * dlb_export_<function>, whatever -fvisibility says: --gc-sections keeps them, `nm -D`
 * lists them, and two exports of one name are an error of the linker. A version script
 * must leave dlb_* global. A file that only uses the types defines DLB_NO_EXPORTS
 * before it includes this header: its library then has no table.
 *
 * This layout is read by every later dlbridge. Fields are only ever appended to these
 * structs, which say their own size; what a description leaves out is 0.
 */
typedef struct {
    size_t size;        /* of this struct, in bytes */
    const char *symbol; /* the function's name, by which .vjp and .jvp refer to it */
    void (*function)(void); /* as it is called: see `abi` */
    int64_t is_dltensors;   /* 1: its type is int(void *, DLTensor *, int) */
    const char *schema;     /* "namespace::name(x: f32[n]) -> f32[n]" */

    /* As dlbridge.wrap has them; all are text but `align`. */
    const char *abi;    /* "dltensors" if it has that type, "pointers", a C signature */
    const char *vjp;    /* its gradient: another exported function */
    const char *jvp;    /* the same forwards */
    const char *batch;  /* "sequential", "broadcast" */
    const char *layout; /* "contiguous", "strided" */
    const char *overlap;  /* "forbid", "allow" */
    const char *gil;      /* "auto", "release", "hold" */
    const char *cost;     /* an expression over the dimensions, "n * m" */
    const char *stream;   /* "current", "default" */
    const char *platform; /* "cpu", "cuda": of several functions of one operator */
    const char *doc;      /* for people who use it */
    int64_t align;        /* bytes that data pointers must be multiples of */
    const char *autocast; /* the dtype in torch.autocast: "float16", "promote", ... */
    const char *sharding; /* dimensions along which a call may be split, "b, m" */
    int64_t version;      /* of the operator, from 1; 0 is 1: see docs/kernels.md */
} dlb_export;

#define DLB_LIBRARY_MAGIC 0x6567646972626c64 /* "dlbridge" in little-endian bytes */
#define DLB_LIBRARY_VERSION 1

typedef struct {
    uint64_t magic;
    uint32_t version;         /* a reader of another version must not read on */
    uint32_t size;            /* of this struct, in bytes */
    const void *const *begin; /* pointers to descriptions */
    const void *const *end;
} dlb_library;

#if defined(__GNUC__) && defined(__ELF__) && !defined(DLB_NO_EXPORTS)
extern __attribute__((weak, visibility("hidden")))
const void *const __start_dlb_exports[];
extern __attribute__((weak, visibility("hidden")))
const void *const __stop_dlb_exports[];

extern const dlb_library dlb_kernels;

#define DLB_VISIBLE_ __attribute__((visibility("default"), used))
#define DLB_LISTED_ __attribute__((visibility("default"), used, section("dlb_exports")))
#ifdef __cplusplus
#define DLB_CONST_ extern const /* without extern it would be the file's own */
#else
#define DLB_CONST_ const
#endif

/* The one of its library: every file that includes this header brings the same. */
__attribute__((weak)) DLB_VISIBLE_ DLB_CONST_ dlb_library dlb_kernels = {
    DLB_LIBRARY_MAGIC, DLB_LIBRARY_VERSION, sizeof(dlb_library), __start_dlb_exports,
    __stop_dlb_exports};
#endif

#if defined(DLB_LISTED_) && !defined(__cplusplus)
#define DLB_EXPORT(name, ...)                                                          \
    static const dlb_export dlb_described_##name = {                                   \
        .size = sizeof(dlb_export),                                                    \
        .symbol = #name,                                                               \
        .function = (void (*)(void))name,                                              \
        .is_dltensors =                                                                \
            _Generic(&name, int (*)(void *, DLTensor *, int): 1, default: 0),          \
        .schema = __VA_ARGS__};                                                        \
    extern const void *const dlb_export_##name;                                        \
    DLB_LISTED_ const void *const dlb_export_##name = &dlb_described_##name
#endif

#ifdef __cplusplus
}

#include <exception>

/* The status that `body()` returns, or -1 with the text of the exception that it
 * throws. Without a context (NULL, as in a function that takes none) the text is lost.
 */
template <typename Body> inline int dlb_guard(void *context, Body &&body) noexcept {
    try {
        return body();
    } catch (const std::exception &failure) {
        return dlb_set_error(context, "%s", failure.what());
    } catch (...) {
        return dlb_set_error(context, "an exception that is no std::exception");
    }
}

#if defined(DLB_LISTED_) && __cplusplus >= 201703L
#include <type_traits>

/* A dlb_export whose function has its own type: a cast would be no constant. */
template <typename Function> struct dlb_export_of {
    size_t size;
    const char *symbol;
    Function *function;
    int64_t is_dltensors;
    const char *schema;
    const char *abi, *vjp, *jvp, *batch, *layout, *overlap, *gil, *cost, *stream;
    const char *platform, *doc;
    int64_t align;
    const char *autocast, *sharding;
    int64_t version;
};

template <typename Function>
constexpr dlb_export_of<Function> dlb_describe(Function *function, const char *symbol) {
    static_assert(sizeof(dlb_export_of<Function>) == sizeof(dlb_export),
                  "a description has the layout of a dlb_export");
    static_assert(
        std::is_function<Function>::value,
        "DLB_EXPORT takes a function; of a pointer to one, or of a lambda, write "
        "a function that calls it");
    dlb_export_of<Function> made = {};
    made.size = sizeof made;
    made.symbol = symbol;
    made.function = function;
    made.is_dltensors =
        std::is_convertible<Function *, int (*)(void *, DLTensor *, int)>::value;
    return made;
}

/* Designators are C++20, so each `.field = value` becomes an assignment of its own. */
#define DLB_SET_1_(set) made set
#define DLB_SET_2_(set, ...) made set, DLB_SET_1_(__VA_ARGS__)
#define DLB_SET_3_(set, ...) made set, DLB_SET_2_(__VA_ARGS__)
#define DLB_SET_4_(set, ...) made set, DLB_SET_3_(__VA_ARGS__)
#define DLB_SET_5_(set, ...) made set, DLB_SET_4_(__VA_ARGS__)
#define DLB_SET_6_(set, ...) made set, DLB_SET_5_(__VA_ARGS__)
#define DLB_SET_7_(set, ...) made set, DLB_SET_6_(__VA_ARGS__)
#define DLB_SET_8_(set, ...) made set, DLB_SET_7_(__VA_ARGS__)
#define DLB_SET_9_(set, ...) made set, DLB_SET_8_(__VA_ARGS__)
#define DLB_SET_10_(set, ...) made set, DLB_SET_9_(__VA_ARGS__)
#define DLB_SET_11_(set, ...) made set, DLB_SET_10_(__VA_ARGS__)
#define DLB_SET_12_(set, ...) made set, DLB_SET_11_(__VA_ARGS__)
#define DLB_SET_13_(set, ...) made set, DLB_SET_12_(__VA_ARGS__)
#define DLB_SET_14_(set, ...) made set, DLB_SET_13_(__VA_ARGS__)
#define DLB_SET_15_(set, ...) made set, DLB_SET_14_(__VA_ARGS__)
#define DLB_SET_16_(set, ...) made set, DLB_SET_15_(__VA_ARGS__)
#define DLB_NTH_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, nth, ...) nth
#define DLB_SETTER_(...)                                                               \
    DLB_NTH_(__VA_ARGS__, DLB_SET_16_, DLB_SET_15_, DLB_SET_14_, DLB_SET_13_,          \
             DLB_SET_12_, DLB_SET_11_, DLB_SET_10_, DLB_SET_9_, DLB_SET_8_,            \
             DLB_SET_7_, DLB_SET_6_, DLB_SET_5_, DLB_SET_4_, DLB_SET_3_, DLB_SET_2_,   \
             DLB_SET_1_, )
#define DLB_APPLY_(setter, ...) setter(__VA_ARGS__)

#define DLB_EXPORT(name, ...)                                                          \
    static constexpr auto dlb_described_##name = [] {                                  \
        auto made = dlb_describe(&name, #name);                                        \
        DLB_APPLY_(DLB_SETTER_(__VA_ARGS__), .schema = __VA_ARGS__);                   \
        return made;                                                                   \
    }();                                                                               \
    extern "C" DLB_LISTED_ const void *const dlb_export_##name = &dlb_described_##name
#endif
#endif

#if !defined(DLB_EXPORT) && defined(__cplusplus)
#define DLB_EXPORT(name, ...)                                                          \
    static_assert(sizeof #name == 0, "DLB_EXPORT needs C++17, GCC or Clang, and ELF")
#elif !defined(DLB_EXPORT)
#define DLB_EXPORT(name, ...)                                                          \
    _Static_assert(sizeof #name == 0, "DLB_EXPORT needs GCC or Clang, and ELF")
#endif

#endif /* DLBRIDGE_KERNEL_H_ */
