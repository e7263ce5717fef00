/* Finds the OpenCL devices of all platforms and opens one. */
#include "device/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/internal.h"
#include "device/pocl/pocl.h"
#include "device/program.h"
#include "device/queue.h"

#ifndef CL_DEVICE_PCI_BUS_INFO_KHR
#define CL_DEVICE_PCI_BUS_INFO_KHR 0x410F
#endif

#ifndef CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV
#define CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV 0x4000
#define CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV 0x4001
#endif

enum { MAX_PLATFORMS = 32, MAX_DEVICES = 64 };

typedef struct device_table {
    moert_device_info info[MAX_DEVICES];
    cl_device_id id[MAX_DEVICES];
    size_t count;
} device_table;

/* OpenCL does not report the instructions of a CPU device, so these functions test the CPU on which
 * they run. */
static bool cpu_has_bf16_dot(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

/* Intel's CPUs take two cycles for vdpbf16ps. On Intel's CPUs, two fma in place of one vdpbf16ps
 * were up to a quarter faster with many rows (bench/results/cpu/bf16-intel-2026-11-22.txt). At the
 * time of this measurement, every GEMM still widened its bf16 pairs itself. */
static bool cpu_bf16_dot_pays(void) {
#if defined(__x86_64__)
    return !__builtin_cpu_is("intel");
#else
    return false;
#endif
}

/* Linux grants the AMX registers, 8 KiB per thread, to processes that request them. The grant
 * includes threads that already exist. */
bool moert_cpu_has_tiles(void) {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, LEAF = 7, BF16 = 1 << 22, TILE = 1 << 24 };
    unsigned a, b, c, d = 0;
    if (__get_cpuid_count(LEAF, 0, &a, &b, &c, &d) == 0 || (d & BF16) == 0 || (d & TILE) == 0)
        return false;
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0)
        return true;
    MOERT_DEBUG("the Linux kernel does not let this process use AMX: %s", strerror(errno));
    return false;
#else
    return false;
#endif
}

/* Finds instructions that need assembly; PoCL is the only driver for CPUs that accepts assembly. */
static void find_instructions(moert_device_info *info) {
    info->has_bf16_dot = cpu_has_bf16_dot();
    info->bf16_dot_pays = info->has_bf16_dot && cpu_bf16_dot_pays();
    info->has_tiles =
        !info->gpu_form && moert_config_get()->bf16 != MOERT_BF16_WIDENED && moert_cpu_has_tiles();
}

/* Fills `info` from the driver. */
static moert_status query(cl_platform_id platform, int platform_index, cl_device_id id, int index,
                          moert_device_info *info) {
    *info = (moert_device_info){.platform = platform_index, .index = index};
    cl_device_type type = 0;
    cl_uint vector_floats = 0; /* 1: the hardware's lanes hold work-items, not elements of a
                                  vector */
    char extensions[8192] = "";
    const struct {
        cl_device_info key;
        size_t bytes;
        void *value;
    } fields[] = {
        {CL_DEVICE_TYPE, sizeof type, &type},
        {CL_DEVICE_GLOBAL_MEM_SIZE, sizeof info->global_bytes, &info->global_bytes},
        {CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof info->piece_bytes, &info->piece_bytes},
        {CL_DEVICE_LOCAL_MEM_SIZE, sizeof info->local_bytes, &info->local_bytes},
        {CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof vector_floats, &vector_floats},
        {CL_DEVICE_MAX_COMPUTE_UNITS, sizeof info->compute_units, &info->compute_units},
        {CL_DEVICE_NAME, sizeof info->name, info->name},
        {CL_DEVICE_VENDOR, sizeof info->vendor, info->vendor},
        {CL_DRIVER_VERSION, sizeof info->driver, info->driver},
        {CL_DEVICE_VERSION, sizeof info->version, info->version},
        {CL_DEVICE_EXTENSIONS, sizeof extensions, extensions},
    };
    for (size_t i = 0; i < MOERT_COUNT(fields); i++)
        MOERT_CL(NULL, clGetDeviceInfo(id, fields[i].key, fields[i].bytes, fields[i].value, NULL));
    if (platform != NULL)
        MOERT_CL(NULL, clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof info->platform_name,
                                         info->platform_name, NULL));
    info->is_cpu = (type & CL_DEVICE_TYPE_CPU) != 0;
    info->is_gpu = (type & CL_DEVICE_TYPE_GPU) != 0;
    info->is_pocl = strcmp(info->platform_name, "Portable Computing Language") == 0;
    info->piece_bytes -= info->piece_bytes % MOERT_BUFFER_TAIL_BYTES + MOERT_BUFFER_TAIL_BYTES;
    info->has_fp64 = strstr(extensions, "cl_khr_fp64") != NULL;
    info->imports_files = strstr(extensions, "cl_khr_external_memory_opaque_fd") != NULL;
    info->gpu_form = moert_config_get()->form != MOERT_FORM_AUTO
                         ? moert_config_get()->form == MOERT_FORM_GPU
                         : !info->is_cpu || vector_floats == 1;
    info->is_simulator = strcmp(info->platform_name, "Oclgrind") == 0;
    info->largest_bytes = info->is_cpu && !info->is_simulator
                              ? moert_max(info->piece_bytes, moert_memory_total())
                              : info->piece_bytes;
    if (info->is_pocl && info->is_cpu)
        find_instructions(info);
    cl_uint major, minor;
    if (strstr(extensions, "cl_nv_device_attribute_query") != NULL &&
        clGetDeviceInfo(id, CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV, sizeof major, &major, NULL) ==
            CL_SUCCESS &&
        clGetDeviceInfo(id, CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV, sizeof minor, &minor, NULL) ==
            CL_SUCCESS)
        info->nvidia = 10 * major + minor;
    cl_uint bus[4]; /* domain, bus, device, function */
    if (strstr(extensions, "cl_khr_pci_bus_info") != NULL &&
        clGetDeviceInfo(id, CL_DEVICE_PCI_BUS_INFO_KHR, sizeof bus, bus, NULL) == CL_SUCCESS)
        snprintf(info->pci, sizeof info->pci, "%04x:%02x:%02x.%x", bus[0], bus[1], bus[2], bus[3]);
    return MOERT_OK;
}

/* If memory runs out, the OpenCL loader cannot load a driver, and reports that there is no
 * driver. */
static moert_status check_memory(cl_int code) {
    enum { DRIVER_BYTES = 256 << 20 }; /* PoCL's libraries map about this many bytes */
    void *probe = mmap(NULL, DRIVER_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe != MAP_FAILED)
        munmap(probe, DRIVER_BYTES);
    if (probe != MAP_FAILED && moert_cl_status(code) != MOERT_ERROR_MEMORY)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_MEMORY, "no memory to load an OpenCL driver (%s; is ulimit -v set?)",
                      moert_cl_error_name(code));
}

static moert_status no_platform(cl_int code) {
    MOERT_TRY(check_memory(code));
    return MOERT_FAIL(ERROR_DEVICE,
                      "no OpenCL platform found (%s); install one, such as the package "
                      "pocl-opencl-icd, or check OCL_ICD_VENDORS",
                      moert_cl_error_name(code));
}

static moert_status list_devices(device_table *table) {
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint platform_count = 0;
    table->count = 0;
    cl_int code = clGetPlatformIDs(MAX_PLATFORMS, platforms, &platform_count);
    if (code != CL_SUCCESS || platform_count == 0)
        return no_platform(code);
    for (cl_uint p = 0; p < platform_count && p < MAX_PLATFORMS; p++) {
        cl_device_id ids[MAX_DEVICES];
        cl_uint count = 0;
        const cl_int failed =
            clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MAX_DEVICES, ids, &count);
        if (failed != CL_SUCCESS) { /* continues, since other platforms may have devices */
            code = failed;
            continue;
        }
        for (cl_uint d = 0; d < count && table->count < MAX_DEVICES; d++) {
            MOERT_TRY(query(platforms[p], (int)p, ids[d], (int)d, &table->info[table->count]));
            table->id[table->count++] = ids[d];
        }
    }
    if (table->count > 0)
        return MOERT_OK;
    MOERT_TRY(check_memory(code));
    return MOERT_FAIL(ERROR_DEVICE, "%u OpenCL platforms, but none has a device (%s)%s",
                      platform_count, moert_cl_error_name(code), moert_pocl_problem());
}

static moert_status find_all(device_table *table) {
    moert_pocl_set_directory();
    const moert_status status = list_devices(table);
    moert_pocl_unset_directory();
    return status;
}

moert_status moert_device_list(moert_device_info **list, size_t *count) {
    device_table table;
    MOERT_TRY(find_all(&table));
    MOERT_TRY(MOERT_NEW_ARRAY(list, table.count));
    memcpy(*list, table.info, table.count * sizeof **list);
    *count = table.count;
    return MOERT_OK;
}

static bool matches(const moert_device_info *info, const char *selector) {
    char position[24];
    snprintf(position, sizeof position, "%d:%d", info->platform, info->index);
    if (strcmp(selector, "cpu") == 0)
        return info->is_cpu && !info->is_simulator;
    if (strcmp(selector, "gpu") == 0)
        return info->is_gpu && !info->is_simulator; /* Oclgrind's device is of every type */
    return strcmp(selector, position) == 0 || strcasestr(info->name, selector) != NULL ||
           strcasestr(info->platform_name, selector) != NULL;
}

/* The index of the matching device at `pci`, or else of match number local_rank modulo the number
 * of matches. All CPU devices are the same cores under different drivers. Only the first CPU device
 * counts, so that the ranks of a host have equal devices. table->count if no device matches. */
static size_t choose(const device_table *table, const char *selector, const char *pci,
                     unsigned local_rank) {
    size_t found[MAX_DEVICES], count = 0;
    bool has_cpu = false;
    for (size_t i = 0; i < table->count; i++) {
        if (!matches(&table->info[i], selector) || (has_cpu && table->info[i].is_cpu))
            continue;
        has_cpu = has_cpu || table->info[i].is_cpu;
        if (pci != NULL && pci[0] != '\0' && strcmp(pci, table->info[i].pci) == 0)
            return i;
        found[count++] = i;
    }
    return count > 0 ? found[local_rank % count] : table->count;
}

/* A hint for the message if an NVIDIA GPU has no OpenCL platform; else "". */
static const char *missing_driver_hint(const device_table *table) {
    for (size_t i = 0; i < table->count; i++)
        if (table->info[i].is_gpu)
            return "";
    if (access("/dev/nvidia0", F_OK) != 0)
        return "";
    return "; there is an NVIDIA GPU, but no OpenCL platform for it: a file "
           "/etc/OpenCL/vendors/nvidia.icd with the line libnvidia-opencl.so.1 makes it visible";
}

static moert_status no_match(const device_table *table, const char *selector) {
    char names[600] = "";
    size_t used = 0;
    for (size_t i = 0; i < table->count && used < sizeof names; i++)
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%d:%d %s", i > 0 ? ", " : "",
                             table->info[i].platform, table->info[i].index, table->info[i].name);
    return MOERT_FAIL(ERROR_USAGE, "MOERT_DEVICE=%s matches no OpenCL device; there are: %s%s%s",
                      selector, names, missing_driver_hint(table), moert_pocl_problem());
}

moert_status moert_device_open(const char *selector, const char *pci, unsigned local_rank,
                               moert_device **device) {
    device_table table;
    MOERT_TRY(find_all(&table));
    const bool automatic = strcmp(selector, "auto") == 0;
    size_t at = choose(&table, automatic ? "gpu" : selector, pci, local_rank);
    if (automatic && at == table.count) {
        const char *hint = missing_driver_hint(&table);
        at = choose(&table, "cpu", pci, local_rank);
        if (at == table.count)
            at = 0; /* takes the first device if there is neither GPU nor CPU */
        if (hint[0] != '\0' && local_rank == 0)
            MOERT_WARN("no GPU is used%s", hint);
    }
    if (at == table.count)
        return no_match(&table, selector);

    moert_status status;
    moert_device *made;
    cl_int code;
    MOERT_TRY(MOERT_NEW(&made));
    made->info = table.info[at];
    made->id = table.id[at];
    made->context = clCreateContext(NULL, 1, &made->id, NULL, NULL, &code);
    if (code != CL_SUCCESS) {
        status = MOERT_CL_FAIL(made, code, "clCreateContext");
        goto free_device;
    }
    MOERT_TRY_OR(release_context, moert_queue_open(made, false));
    MOERT_INFO("device %d:%d %s (%s), %u compute units", made->info.platform, made->info.index,
               made->info.name, made->info.platform_name, made->info.compute_units);
    *device = made;
    return MOERT_OK;

release_context:
    clReleaseContext(made->context);
free_device:
    free(made);
    return status;
}

moert_status moert_device_adopt(void *context, void *id, void *queue, moert_device **device) {
    cl_command_queue_properties properties = 0;
    cl_device_id queue_device = NULL;
    cl_context queue_context = NULL;
    if (context == NULL || id == NULL || queue == NULL)
        return MOERT_FAIL(
            ERROR_USAGE,
            "a context on the caller's OpenCL objects needs context, device and queue");
    MOERT_CL(NULL, clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties,
                                         NULL));
    MOERT_CL(NULL, clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof queue_device, &queue_device,
                                         NULL));
    MOERT_CL(NULL, clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof queue_context,
                                         &queue_context, NULL));
    if (queue_device != id || queue_context != context)
        return MOERT_FAIL(ERROR_MISMATCH, "the queue belongs to another OpenCL context or device");
    if (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "the queue is out-of-order; moert needs an in-order queue");
    moert_device *made;
    MOERT_TRY(MOERT_NEW(&made));
    cl_platform_id platform = NULL;
    clGetDeviceInfo(id, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL);
    moert_status status = query(platform, -1, id, -1, &made->info);
    if (status != MOERT_OK) {
        free(made);
        return status;
    }
    made->context = context;
    made->id = id;
    made->queue = queue;
    made->adopted = true;
    clRetainContext(made->context);
    clRetainCommandQueue(made->queue);
    *device = made;
    return MOERT_OK;
}

void moert_device_close(moert_device *device) {
    if (device == NULL)
        return;
    moert_queue_finish(device);
    moert_shared_work_release(device);
    if (device->hook.release != NULL)
        device->hook.release(device->hook.context);
    moert_program_release_all(device);
    moert_queue_release_other(device);
    clReleaseCommandQueue(device->queue);
    clReleaseContext(device->context);
    free(device);
}

bool moert_device_sums_in_tiles(const moert_device_info *info) {
    const unsigned how = moert_config_get()->bf16;
    return info->is_cpu && !info->gpu_form && how != MOERT_BF16_WIDENED &&
           (how == MOERT_BF16_TILES || info->has_tiles);
}

void moert_device_disable_tiles(moert_device *device) {
    device->info.has_tiles = false;
}

const moert_device_info *moert_device_describe(const moert_device *device) {
    return &device->info;
}

const char *moert_device_name(const moert_device *device) {
    return device->info.name;
}
