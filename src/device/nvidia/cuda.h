/*
 * Access to NVIDIA's driver library, which moert opens at the first use. This file declares the
 * used part of the CUDA driver API, so that moert builds without CUDA.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "moert/device.h"

enum { MOERT_CUDA_PINNED = 1, MOERT_CUDA_ON_DEVICE = 1, MOERT_CUDA_FILE = 1 };

/* CUmemAllocationProp, for memory that can be exported to other processes. */
typedef struct moert_cuda_memory {
    int kind, shared_as;    /* MOERT_CUDA_PINNED, MOERT_CUDA_FILE */
    int place, device;      /* MOERT_CUDA_ON_DEVICE, and the number of the device */
    void *windows_metadata; /* NULL */
    unsigned char flags[8]; /* 0 */
} moert_cuda_memory;

/* X(field, symbol, parameters): functions that return 0 or an error code; NULL if the driver is too
 * old to have the function. */
#define MOERT_CUDA_TABLE(X)                                                                        \
    X(initialise, "cuInit", (unsigned flags))                                                      \
    X(find, "cuDeviceGetByPCIBusId", (int *device, const char *pci))                               \
    X(reaches, "cuDeviceCanAccessPeer", (int *can, int device, int peer))                          \
    X(retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                            \
    X(set_current, "cuCtxSetCurrent", (void *context))                                             \
    X(name_error, "cuGetErrorName", (int code, const char **name))                                 \
    X(granularity, "cuMemGetAllocationGranularity",                                                \
      (size_t * bytes, const moert_cuda_memory *memory, int recommended))                          \
    X(create, "cuMemCreate",                                                                       \
      (uint64_t * handle, size_t bytes, const moert_cuda_memory *memory, uint64_t flags))          \
    X(export_as, "cuMemExportToShareableHandle",                                                   \
      (void *file, uint64_t handle, int shared_as, uint64_t flags))                                \
    X(release, "cuMemRelease", (uint64_t handle))                                                  \
    X(encode_tiled, "cuTensorMapEncodeTiled",                                                      \
      (void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,                   \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,        \
       int swizzle, int promotion, int fill))

typedef struct moert_cuda {
#define MOERT_CUDA_FIELD(field, symbol, parameters) int(*field) parameters;
    MOERT_CUDA_TABLE(MOERT_CUDA_FIELD)
#undef MOERT_CUDA_FIELD
    int device;    /* CUDA's number of this process's GPU */
    void *context; /* the primary context of that GPU */
} moert_cuda;

/*
 * Opens the library once, with a context on the GPU of `device`, and makes that context current in
 * this thread. `device` must be the same at every call. The message of ERROR_UNSUPPORTED says why
 * the library cannot be used.
 */
moert_status moert_cuda_open(const moert_device *device, const moert_cuda **cuda);
/* In tests, a replacement of the library; otherwise NULL. */
extern const moert_cuda *moert_cuda_substitute;

/* MOERT_CUDA(cuda, create, (&handle, ...)): returns a failure, with the call and the name of the
 * error. */
#define MOERT_CUDA(cuda, field, arguments)                                                         \
    do {                                                                                           \
        int cuda_code_ = (cuda)->field arguments;                                                  \
        if (cuda_code_ != 0)                                                                       \
            return moert_cuda_fail((cuda), cuda_code_, #field, __func__, __LINE__);                \
    } while (0)
moert_status moert_cuda_fail(const moert_cuda *cuda, int code, const char *field,
                             const char *function, int line);
