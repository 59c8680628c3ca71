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
               DLB_INT = 1,  /* also bool: 0 or 1 */
               DLB_FLOAT = 2,
               DLB_STRING = 3
} dlb_scalar_kind;

typedef struct {
    int64_t kind; /* a dlb_scalar_kind */
    union {
        int64_t i;
        double f;
        const char *s; /* UTF-8, ends with 0 */
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

static inline int dlb_is_missing(const DLTensor *tensor) {
    return tensor->ndim < 0;
}

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
#endif

#endif /* DLBRIDGE_KERNEL_H_ */
