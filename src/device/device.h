/*
 * Manages one OpenCL device per rank: its choice, its properties, and its use of AMX. The other
 * headers of src/device declare all other functions.
 *
 * Only src/device includes CL/cl.h, apart from the public header for contexts on the caller's
 * OpenCL objects. Headers of src/device that other modules include do not include CL/cl.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "moert/device.h"

typedef struct moert_device_info {
    int platform, index; /* "P:D" */
    bool is_cpu, is_gpu, is_pocl;
    unsigned compute_units;
    size_t global_bytes, local_bytes;
    size_t largest_bytes; /* of a buffer */
    size_t piece_bytes;   /* the most bytes of one allocation; a buffer on a CPU may consist of
                             several allocations */
    bool has_fp64;
    bool imports_files; /* cl_khr_external_memory_opaque_fd */
    bool has_bf16_dot;  /* the CPU has vdpbf16ps (AVX-512 BF16) */
    bool bf16_dot_pays; /* vdpbf16ps is faster than two fma, also if memory is not the limit */
    bool has_tiles;     /* the CPU has AMX with bf16, and GEMMs may use it */
    bool is_simulator;  /* Oclgrind: kernels can access only OpenCL buffers */
    bool gpu_form;      /* kernels in GPU form: 32 work-items per row (kernels/lib/common.h) */
    unsigned nvidia;    /* compute capability, such as 90 for sm_90; 0: not an NVIDIA GPU */
    char name[128], vendor[64], platform_name[128], driver[64], version[128];
    char pci[24]; /* "0000:3b:00.0", or "" if the driver does not report it */
} moert_device_info;

/* Lists the devices of all platforms; the caller frees the list. ERROR_DEVICE if no device
 * exists. */
moert_status moert_device_list(moert_device_info **list, size_t *count);

/*
 * Opens the device that `selector` names (see MOERT_DEVICE). If several devices match, opens the
 * device at `pci` or, without such a device, number `local_rank` modulo the number of matches.
 * Errors: ERROR_USAGE (nothing matches; the message lists all devices), ERROR_DEVICE.
 */
moert_status moert_device_open(const char *selector, const char *pci, unsigned local_rank,
                               moert_device **device);

/* Makes a device from OpenCL objects that the caller owns and keeps alive: a cl_context, a
 * cl_device_id and an in-order cl_command_queue. */
moert_status moert_device_adopt(void *context, void *id, void *queue, moert_device **device);

void moert_device_close(moert_device *device);

const moert_device_info *moert_device_describe(const moert_device *device);

/* Requests AMX from Linux, and returns whether this process's threads may use AMX with bf16. */
bool moert_cpu_has_tiles(void);

/* Whether bf16 GEMMs on the device add in the order of AMX tiles (kernels/gemm/add_amx.h). */
bool moert_device_sums_in_tiles(const moert_device_info *info);

/* Stops the device's GEMMs from using AMX. All ranks call this function when some ranks have no
 * AMX. */
void moert_device_disable_tiles(moert_device *device);

/* Selects a value by the form of the device's kernels. */
static inline size_t moert_by_form(const moert_device *device, size_t cpu, size_t gpu) {
    return moert_device_describe(device)->gpu_form ? gpu : cpu;
}
