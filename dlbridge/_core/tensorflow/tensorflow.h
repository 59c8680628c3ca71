/* The part of TensorFlow's C API that one op needs, declared again: no headers of
 * TensorFlow, and no link to it. The addresses come from the library that Python has
 * loaded, so one binary serves every release with these functions.
 */
#ifndef DLBRIDGE_CORE_TENSORFLOW_TENSORFLOW_H_
#define DLBRIDGE_CORE_TENSORFLOW_TENSORFLOW_H_

#include "kernel/python.h"

/* All handles are opaque: TF_Status, TF_Tensor, TF_OpKernelContext and so on. */
typedef void *dlb_tf_handle;
typedef void (*dlb_tf_infer)(dlb_tf_handle context, dlb_tf_handle status);
typedef void *(*dlb_tf_create)(dlb_tf_handle construction);
typedef void (*dlb_tf_compute)(void *state, dlb_tf_handle context);
typedef void (*dlb_tf_delete)(void *state);

#define DLB_TENSORFLOW_FUNCTIONS(X)                                                    \
    X(dlb_tf_handle, NewStatus, (void))                                                \
    X(void, DeleteStatus, (dlb_tf_handle))                                             \
    X(int, GetCode, (dlb_tf_handle))                                                   \
    X(const char *, Message, (dlb_tf_handle))                                          \
    X(void, SetStatus, (dlb_tf_handle, int code, const char *text))                    \
    X(dlb_tf_handle, NewOpDefinitionBuilder, (const char *name))                       \
    X(void, OpDefinitionBuilderAddInput, (dlb_tf_handle, const char *))                \
    X(void, OpDefinitionBuilderAddOutput, (dlb_tf_handle, const char *))               \
    X(void, OpDefinitionBuilderAddAttr, (dlb_tf_handle, const char *))                 \
    X(void, OpDefinitionBuilderSetIsStateful, (dlb_tf_handle, bool))                   \
    X(void, OpDefinitionBuilderSetShapeInferenceFunction,                              \
      (dlb_tf_handle, dlb_tf_infer))                                                   \
    X(void, RegisterOpDefinition, (dlb_tf_handle, dlb_tf_handle status))               \
    X(dlb_tf_handle, NewKernelBuilder,                                                 \
      (const char *op, const char *device, dlb_tf_create, dlb_tf_compute,              \
       dlb_tf_delete))                                                                 \
    X(void, RegisterKernelBuilder,                                                     \
      (const char *name, dlb_tf_handle, dlb_tf_handle status))                         \
    X(void, ShapeInferenceContextSetUnknownShape, (dlb_tf_handle, dlb_tf_handle))      \
    X(void, OpKernelConstruction_GetAttrSize,                                          \
      (dlb_tf_handle, const char *name, int32_t *items, int32_t *bytes,                \
       dlb_tf_handle status))                                                          \
    X(void, OpKernelConstruction_GetAttrString,                                        \
      (dlb_tf_handle, const char *name, char *value, size_t room,                      \
       dlb_tf_handle status))                                                          \
    X(void, OpKernelConstruction_GetAttrTypeList,                                      \
      (dlb_tf_handle, const char *name, int *values, int room, dlb_tf_handle status))  \
    X(void, OpKernelConstruction_Failure, (dlb_tf_handle, dlb_tf_handle status))       \
    X(void, OpKernelContext_Failure, (dlb_tf_handle, dlb_tf_handle status))            \
    X(void, GetInput,                                                                  \
      (dlb_tf_handle, int index, dlb_tf_handle *tensor, dlb_tf_handle status))         \
    X(dlb_tf_handle, AllocateOutput,                                                   \
      (dlb_tf_handle, int index, int dtype, const int64_t *shape, int ndim,            \
       size_t bytes, dlb_tf_handle status))                                            \
    X(dlb_tf_handle, ForwardInputOrAllocateOutput,                                     \
      (dlb_tf_handle, const int *candidates, int candidate_count, int index,           \
       const int64_t *shape, int ndim, int *forwarded, dlb_tf_handle status))          \
    X(void *, TensorData, (dlb_tf_handle))                                             \
    X(int, NumDims, (dlb_tf_handle))                                                   \
    X(int64_t, Dim, (dlb_tf_handle, int))                                              \
    X(int, TensorType, (dlb_tf_handle))                                                \
    X(void, DeleteTensor, (dlb_tf_handle))

typedef struct {
#define DLB_DECLARE(result, name, arguments) result(*name) arguments;
    DLB_TENSORFLOW_FUNCTIONS(DLB_DECLARE)
#undef DLB_DECLARE
} dlb_tensorflow_api;

extern dlb_tensorflow_api dlb_tf;

/* The codes of TF_Code that we use. */
enum {
    DLB_TF_OK = 0,
    DLB_TF_UNKNOWN = 2,
    DLB_TF_INVALID_ARGUMENT = 3,
    DLB_TF_NOT_FOUND = 5,
    DLB_TF_RESOURCE_EXHAUSTED = 8,
    DLB_TF_INTERNAL = 13,
};

#define DLB_TF_DTYPES 64 /* more than TF_DataType has numbers */

/* What a number of TF_DataType is in DLPack; bits 0: nothing that a kernel can take. */
extern DLDataType dlb_tf_dtypes[DLB_TF_DTYPES];

/* ---- python.c ---- */
extern PyMethodDef dlb_tensorflow_functions[];

/* ---- op.c ---- */

/* Register the ops, once in a process; room for `size` bytes of error text. */
int dlb_tf_register(char *error, size_t size);
/* The error of an op that fails on this thread also goes here, until this is called
 * with what it returned. */
dlb_error *dlb_tf_listen(dlb_error *error);

#endif /* DLBRIDGE_CORE_TENSORFLOW_TENSORFLOW_H_ */
