/* The DLPack 1.3 ABI, the only place in dlbridge where its structs are written down.
 *
 * The layouts and values are those of the public standard (github.com/dmlc/dlpack); the
 * words are ours. Both the C compiler and cffi read this file: keep preprocessor use to
 * plain guards and
 * `#define NAME integer`, one declaration after another, so that cffi can parse it.
 */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 3

/* Bits of DLManagedTensorVersioned.flags: the consumer must not write; the producer
 * made a copy to export; one sub-byte element takes a whole byte. */
#define DLPACK_FLAG_BITMASK_READ_ONLY 1
#define DLPACK_FLAG_BITMASK_IS_COPIED 2
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED 4

typedef struct {
    uint32_t major; /* another major: another struct, call nothing but the deleter */
    uint32_t minor;
} DLPackVersion;

typedef enum {
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3,
    kDLOpenCL = 4,
    kDLVulkan = 7,
    kDLMetal = 8,
    kDLVPI = 9,
    kDLROCM = 10,
    kDLROCMHost = 11,
    kDLExtDev = 12,
    kDLCUDAManaged = 13,
    kDLOneAPI = 14,
    kDLWebGPU = 15,
    kDLHexagon = 16,
    kDLMAIA = 17,
    kDLTrn = 18,
    kDLTPU = 19,
    kDLTPUHost = 20,
    kDLAscend = 21
} DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef enum {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLOpaqueHandle = 3,
    kDLBfloat = 4,
    kDLComplex = 5,
    kDLBool = 6,
    kDLFloat8_e3m4 = 7,
    kDLFloat8_e4m3 = 8,
    kDLFloat8_e4m3b11fnuz = 9,
    kDLFloat8_e4m3fn = 10,
    kDLFloat8_e4m3fnuz = 11,
    kDLFloat8_e5m2 = 12,
    kDLFloat8_e5m2fnuz = 13,
    kDLFloat8_e8m0fnu = 14,
    kDLFloat6_e2m3fn = 15,
    kDLFloat6_e3m2fn = 16,
    kDLFloat4_e2m1fn = 17,
    kDLBcomplex = 18
} DLDataTypeCode;

typedef struct {
    uint8_t code;   /* a DLDataTypeCode */
    uint8_t bits;   /* of one lane */
    uint16_t lanes; /* 1 for a scalar type */
} DLDataType;

/* A strided view of memory that somebody else owns. Element (i0, i1, ...) is at
 * data + byte_offset + (i0 * strides[0] + i1 * strides[1] + ...) elements. */
typedef struct {
    void *data; /* opaque on devices that do not use addresses; may be NULL without
                   elements */
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL (before 1.2): compact row-major */
    uint64_t byte_offset;
} DLTensor;

/* A DLTensor with its release, as exchanged before 1.0 (capsule "dltensor"). */
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(
        struct DLManagedTensor *self); /* may be NULL; any thread, without the GIL */
} DLManagedTensor;

/* The same since 1.0 (capsule "dltensor_versioned"). */
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* The functions of the C exchange table (since 1.2). 0 is success; -1 leaves a Python
 * exception set, but for the allocator, which reports through set_error. None waits for
 * a stream. */
typedef int (*DLPackManagedTensorAllocator)(
    DLTensor *prototype, DLManagedTensorVersioned **out, void *error_ctx,
    void (*set_error)(void *error_ctx, const char *kind, const char *message));
typedef int (*DLPackManagedTensorFromPyObjectNoSync)(void *py_object,
                                                     DLManagedTensorVersioned **out);
typedef int (*DLPackManagedTensorToPyObjectNoSync)(DLManagedTensorVersioned *tensor,
                                                   void **out_py_object);
typedef int (*DLPackDLTensorFromPyObjectNoSync)(void *py_object, DLTensor *out);
typedef int (*DLPackCurrentWorkStream)(DLDeviceType device_type, int32_t device_id,
                                       void **out_stream);

typedef struct DLPackExchangeAPIHeader {
    DLPackVersion version;
    struct DLPackExchangeAPIHeader *prev_api; /* an older table, or NULL */
} DLPackExchangeAPIHeader;

/* type(x).__dlpack_c_exchange_api__ is a capsule "dlpack_exchange_api" of this; it
 * lives as long as the process. */
typedef struct DLPackExchangeAPI {
    DLPackExchangeAPIHeader header;
    DLPackManagedTensorAllocator managed_tensor_allocator;
    DLPackManagedTensorFromPyObjectNoSync managed_tensor_from_py_object_no_sync;
    DLPackManagedTensorToPyObjectNoSync
        managed_tensor_to_py_object_no_sync; /* steals tensor */
    DLPackDLTensorFromPyObjectNoSync
        dltensor_from_py_object_no_sync; /* borrows; may be NULL */
    DLPackCurrentWorkStream current_work_stream;
} DLPackExchangeAPI;

#ifdef __cplusplus
}
#endif

#endif /* DLPACK_DLPACK_H_ */
