/* The part of the CUDA driver's C interface that dlbridge calls, under NVIDIA's own
 * names. The library is opened at run time (driver.c); nothing here needs a CUDA
 * toolkit. cffi parses this file, and Python reaches the functions as
 * `dlbridge.cuda.driver()`. */
#ifndef DLBRIDGE_CORE_CUDA_DRIVER_H_
#define DLBRIDGE_CORE_CUDA_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

typedef int CUresult; /* 0 is success */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef void (*CUhostFn)(void *user_data);

#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define CUDA_ERROR_NOT_INITIALIZED 3
#define CUDA_ERROR_DEINITIALIZED 4
#define CUDA_ERROR_NO_DEVICE 100
#define CUDA_ERROR_INVALID_DEVICE 101
#define CUDA_ERROR_INVALID_CONTEXT 201
#define CUDA_ERROR_CONTAINED 226
#define CUDA_ERROR_INVALID_HANDLE 400
#define CUDA_ERROR_NOT_READY 600
#define CUDA_ERROR_ILLEGAL_ADDRESS 700
#define CUDA_ERROR_LAUNCH_TIMEOUT 702
#define CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED 704
#define CUDA_ERROR_ASSERT 710
#define CUDA_ERROR_HARDWARE_STACK_ERROR 714
#define CUDA_ERROR_ILLEGAL_INSTRUCTION 715
#define CUDA_ERROR_MISALIGNED_ADDRESS 716
#define CUDA_ERROR_INVALID_ADDRESS_SPACE 717
#define CUDA_ERROR_INVALID_PC 718
#define CUDA_ERROR_LAUNCH_FAILED 719
#define CUDA_ERROR_TENSOR_MEMORY_LEAK 721
#define CUDA_ERROR_NOT_SUPPORTED 801
#define CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED 900
#define CUDA_ERROR_STREAM_CAPTURE_INVALIDATED 901
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION 905
#define CUDA_ERROR_STREAM_CAPTURE_IMPLICIT 906

#define CU_EVENT_DISABLE_TIMING 2
#define CU_EVENT_INTERPROCESS 4
#define CU_STREAM_NON_BLOCKING 1
#define CU_STREAM_CAPTURE_STATUS_NONE 0
#define CU_STREAM_CAPTURE_STATUS_ACTIVE 1
#define CU_STREAM_CAPTURE_STATUS_INVALIDATED 2
#define CU_STREAM_CAPTURE_MODE_RELAXED 2
#define CU_MEMORYTYPE_HOST 1
#define CU_MEMORYTYPE_DEVICE 2
#define CU_MEMORYTYPE_UNIFIED 4
#define CU_MEM_ATTACH_GLOBAL 1
#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_POINTER_ATTRIBUTE_MEMORY_TYPE 2
#define CU_POINTER_ATTRIBUTE_IS_MANAGED 8
#define CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL 9
#define CU_POINTER_ATTRIBUTE_RANGE_START_ADDR 11
#define CU_POINTER_ATTRIBUTE_RANGE_SIZE 12
#define CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS 1
#define CU_DEVICE_ATTRIBUTE_MAX_PITCH 11
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR 75
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR 76
#define CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED 115
#define CU_MEMPOOL_ATTR_RELEASE_THRESHOLD 4
#define CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES 1
#define CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES 8

typedef struct {
    char reserved[64];
} CUipcMemHandle;

typedef struct {
    char reserved[64];
} CUipcEventHandle;

typedef struct {
    char bytes[16];
} CUuuid;

typedef struct {
    size_t srcXInBytes, srcY;
    unsigned int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    unsigned int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    unsigned int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    unsigned int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

/* One pointer for each function; the exported names, with their version, are in
 * driver.c. */
typedef struct {
    CUresult (*cuInit)(unsigned int flags);
    CUresult (*cuDriverGetVersion)(int *version);
    CUresult (*cuGetErrorName)(CUresult error, const char **name);
    CUresult (*cuGetErrorString)(CUresult error, const char **text);
    CUresult (*cuDeviceGetCount)(int *count);
    CUresult (*cuDeviceGet)(CUdevice *device, int ordinal);
    CUresult (*cuDeviceGetName)(char *name, int length, CUdevice device);
    CUresult (*cuDeviceGetUuid)(CUuuid *uuid, CUdevice device);
    CUresult (*cuDeviceGetAttribute)(int *value, int attribute, CUdevice device);
    CUresult (*cuDeviceCanAccessPeer)(int *can, CUdevice device, CUdevice peer);
    CUresult (*cuDeviceGetDefaultMemPool)(CUmemoryPool *pool, CUdevice device);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device);
    CUresult (*cuCtxGetCurrent)(CUcontext *context);
    CUresult (*cuCtxPushCurrent)(CUcontext context);
    CUresult (*cuCtxPopCurrent)(CUcontext *context);
    CUresult (*cuCtxSynchronize)(void);
    CUresult (*cuCtxEnablePeerAccess)(CUcontext peer, unsigned int flags);
    CUresult (*cuMemGetInfo)(size_t *free, size_t *total);
    CUresult (*cuPointerGetAttribute)(void *value, int attribute, CUdeviceptr pointer);
    CUresult (*cuMemAlloc)(CUdeviceptr *pointer, size_t nbytes);
    CUresult (*cuMemFree)(CUdeviceptr pointer);
    CUresult (*cuMemAllocAsync)(CUdeviceptr *pointer, size_t nbytes, CUstream stream);
    CUresult (*cuMemFreeAsync)(CUdeviceptr pointer, CUstream stream);
    CUresult (*cuMemAllocManaged)(CUdeviceptr *pointer, size_t nbytes,
                                  unsigned int flags);
    CUresult (*cuMemHostAlloc)(void **pointer, size_t nbytes, unsigned int flags);
    CUresult (*cuMemFreeHost)(void *pointer);
    CUresult (*cuMemPoolTrimTo)(CUmemoryPool pool, size_t nbytes);
    CUresult (*cuMemPoolSetAttribute)(CUmemoryPool pool, int attribute, void *value);
    CUresult (*cuMemcpyAsync)(CUdeviceptr to, CUdeviceptr from, size_t nbytes,
                              CUstream stream);
    CUresult (*cuMemcpyPeerAsync)(CUdeviceptr to, CUcontext to_context,
                                  CUdeviceptr from, CUcontext from_context,
                                  size_t nbytes, CUstream stream);
    CUresult (*cuMemcpy2DAsync)(const CUDA_MEMCPY2D *copy, CUstream stream);
    CUresult (*cuMemcpy3DAsync)(const CUDA_MEMCPY3D *copy, CUstream stream);
    CUresult (*cuMemsetD8Async)(CUdeviceptr to, unsigned char value, size_t count,
                                CUstream stream);
    CUresult (*cuEventCreate)(CUevent *event, unsigned int flags);
    CUresult (*cuEventDestroy)(CUevent event);
    CUresult (*cuEventRecord)(CUevent event, CUstream stream);
    CUresult (*cuEventQuery)(CUevent event);
    CUresult (*cuEventSynchronize)(CUevent event);
    CUresult (*cuStreamCreate)(CUstream *stream, unsigned int flags);
    CUresult (*cuStreamDestroy)(CUstream stream);
    CUresult (*cuStreamQuery)(CUstream stream);
    CUresult (*cuStreamSynchronize)(CUstream stream);
    CUresult (*cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned int flags);
    CUresult (*cuStreamIsCapturing)(CUstream stream, int *status);
    CUresult (*cuStreamGetCaptureInfo)(CUstream stream, int *status, uint64_t *id,
                                       CUgraph *graph, const CUgraphNode **dependencies,
                                       size_t *dependency_count);
    CUresult (*cuThreadExchangeStreamCaptureMode)(int *mode);
    CUresult (*cuLaunchHostFunc)(CUstream stream, CUhostFn function, void *user_data);
    CUresult (*cuLaunchKernel)(CUfunction function, unsigned int grid_x,
                               unsigned int grid_y, unsigned int grid_z,
                               unsigned int block_x, unsigned int block_y,
                               unsigned int block_z, unsigned int shared_bytes,
                               CUstream stream, void **parameters, void **extra);
    CUresult (*cuModuleLoadData)(CUmodule *module, const void *image);
    CUresult (*cuModuleUnload)(CUmodule module);
    CUresult (*cuModuleGetFunction)(CUfunction *function, CUmodule module,
                                    const char *name);
    CUresult (*cuFuncGetAttribute)(int *value, int attribute, CUfunction function);
    CUresult (*cuFuncSetAttribute)(CUfunction function, int attribute, int value);
    CUresult (*cuIpcGetMemHandle)(CUipcMemHandle *handle, CUdeviceptr pointer);
    CUresult (*cuIpcOpenMemHandle)(CUdeviceptr *pointer, CUipcMemHandle handle,
                                   unsigned int flags);
    CUresult (*cuIpcCloseMemHandle)(CUdeviceptr pointer);
    CUresult (*cuIpcGetEventHandle)(CUipcEventHandle *handle, CUevent event);
    CUresult (*cuIpcOpenEventHandle)(CUevent *event, CUipcEventHandle handle);
    CUresult (*cuFuncGetParamInfo)(CUfunction function, size_t index, size_t *offset,
                                   size_t *size); /* NULL before CUDA 12.4 */
} dlb_cuda_driver;

/* The open driver, or NULL. */
const dlb_cuda_driver *dlb_cuda_get(void);

#endif /* DLBRIDGE_CORE_CUDA_DRIVER_H_ */
