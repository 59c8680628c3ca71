/* What a handler of XLA's typed FFI sees, declared again: only the fields that are read
 * here. They stand at the heads of XLA's structs and have not moved from jaxlib 0.4.31
 * on, so one binary serves all of these; everything behind them may change.
 *
 * Ownership. All of it belongs to XLA and is valid until the handler returns. An error
 * that the handler returns belongs to XLA.
 */
#ifndef DLBRIDGE_CORE_XLA_ABI_H_
#define DLBRIDGE_CORE_XLA_ABI_H_

#include <stddef.h>
#include <stdint.h>

typedef struct dlb_xla_extension {
    size_t size;
    int type;
    struct dlb_xla_extension *next;
} dlb_xla_extension;

enum { DLB_XLA_METADATA = 1 }; /* of dlb_xla_extension.type */

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    int major, minor;
} dlb_xla_version;

typedef enum { /* the codes of absl::Status */
               DLB_XLA_INVALID_ARGUMENT = 3,
               DLB_XLA_NOT_FOUND = 5,
               DLB_XLA_RESOURCE_EXHAUSTED = 8,
               DLB_XLA_INTERNAL = 13,
} dlb_xla_code;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    const char *message; /* copied */
    int code;
} dlb_xla_error_arguments;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    void *context;
    void *stream; /* filled in */
} dlb_xla_stream_arguments;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    void *context;
    int32_t ordinal; /* filled in */
} dlb_xla_device_arguments;

typedef struct {
    size_t size; /* up to the last function that this XLA has */
    dlb_xla_extension *extensions;
    dlb_xla_version version;
    const void *internal;
    void *(*create_error)(dlb_xla_error_arguments *);
    void (*read_error)(void *);
    void (*destroy_error)(void *);
    void *(*register_handler)(void *);
    void *(*get_stream)(dlb_xla_stream_arguments *); /* returns an error, or NULL */
    void *not_read[12];
    void *(*get_device)(dlb_xla_device_arguments *); /* since 2025: see `size` */
} dlb_xla_api;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    int dtype; /* a number of xla::PrimitiveType */
    void *data;
    int64_t rank;
    int64_t *dims;
} dlb_xla_buffer;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    int64_t count;
    int *types;
    dlb_xla_buffer **buffers;
} dlb_xla_buffers;

typedef struct {
    const char *data;
    size_t length;
} dlb_xla_span;

typedef struct {
    int dtype;
    void *value;
} dlb_xla_scalar;

enum { DLB_XLA_SCALAR = 3, DLB_XLA_STRING = 4 }; /* of dlb_xla_attributes.types */

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    int64_t count;
    int *types;
    dlb_xla_span **names; /* sorted */
    void **values;        /* dlb_xla_span or dlb_xla_scalar, by type */
} dlb_xla_attributes;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    const dlb_xla_api *api;
    void *context;
    int stage;
    dlb_xla_buffers arguments, results;
    dlb_xla_attributes attributes;
} dlb_xla_call;

typedef struct { /* what XLA asks of a handler before it is used */
    size_t size;
    dlb_xla_version version;
    uint32_t traits;
} dlb_xla_metadata;

typedef struct {
    dlb_xla_extension base;
    dlb_xla_metadata *metadata;
} dlb_xla_metadata_query;

enum { /* numbers of xla::PrimitiveType */
       DLB_XLA_PRED = 1,
       DLB_XLA_S8 = 2,
       DLB_XLA_S16 = 3,
       DLB_XLA_S32 = 4,
       DLB_XLA_S64 = 5,
       DLB_XLA_U8 = 6,
       DLB_XLA_U16 = 7,
       DLB_XLA_U32 = 8,
       DLB_XLA_U64 = 9,
       DLB_XLA_F16 = 10,
       DLB_XLA_F32 = 11,
       DLB_XLA_F64 = 12,
       DLB_XLA_C64 = 15,
       DLB_XLA_BF16 = 16,
       DLB_XLA_C128 = 18,
       DLB_XLA_F8E5M2 = 19,
       DLB_XLA_F8E4M3FN = 20,
       DLB_XLA_S4 = 21,
       DLB_XLA_U4 = 22,
       DLB_XLA_F8E4M3B11FNUZ = 23,
       DLB_XLA_F8E5M2FNUZ = 24,
       DLB_XLA_F8E4M3FNUZ = 25,
       DLB_XLA_S2 = 26,
       DLB_XLA_U2 = 27,
       DLB_XLA_F8E4M3 = 28,
       DLB_XLA_F8E3M4 = 29,
       DLB_XLA_S1 = 30,
       DLB_XLA_U1 = 31,
       DLB_XLA_F4E2M1FN = 32,
       DLB_XLA_F8E8M0FNU = 33,
};

#endif /* DLBRIDGE_CORE_XLA_ABI_H_ */
