/* The log, and the properties of the device (driver.h). */
#include "driver.h"

#include <stdarg.h>

void *find_real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        fprintf(stderr, "calls: no %s\n", name);
        abort();
    }
    return found;
}

void say(const char *format, ...) {
    static FILE *file;
    va_list list;
    if (file == NULL && (file = fopen(getenv("CALLS_LOG"), "a")) == NULL)
        abort();
    va_start(list, format);
    vfprintf(file, format, list);
    va_end(list);
    fflush(file);
}

char *format_text(const char *format, ...) {
    char *text;
    va_list list;
    va_start(list, format);
    if (vasprintf(&text, format, list) < 0)
        abort();
    va_end(list);
    return text;
}

uint64_t hash_of(const char *text) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    return hash;
}

static unsigned capability(void) {
    return (unsigned)atoi(getenv("CALLS_CAPABILITY"));
}

cl_int answer(const void *value, size_t bytes, size_t room, void *to, size_t *given) {
    if (given != NULL)
        *given = bytes;
    if (to != NULL && room < bytes)
        return CL_INVALID_VALUE;
    if (to != NULL)
        memcpy(to, value, bytes);
    return CL_SUCCESS;
}

cl_int clGetPlatformInfo(cl_platform_id platform, cl_platform_info key, size_t room, void *to,
                         size_t *given) {
    static const char name[] = "NVIDIA CUDA";
    if (key == CL_PLATFORM_NAME)
        return answer(name, sizeof name, room, to, given);
    return REAL(clGetPlatformInfo)(platform, key, room, to, given);
}

cl_int clGetDeviceInfo(cl_device_id device, cl_device_info key, size_t room, void *to,
                       size_t *given) {
    enum { CAPABILITY_MAJOR = 0x4000, CAPABILITY_MINOR = 0x4001, PCI_BUS_INFO = 0x410F };
    const bool hopper = capability() == 90;
    const char *name = hopper ? "NVIDIA H200" : "NVIDIA RTX A6000";
    static const char vendor[] = "NVIDIA Corporation", driver[] = "580.159";
    static const char version[] = "OpenCL 3.0 CUDA";
    static const char extensions[] = "cl_khr_fp64 cl_khr_pci_bus_info cl_nv_device_attribute_query "
                                     "cl_khr_external_memory_opaque_fd";
    const cl_device_type gpu = CL_DEVICE_TYPE_GPU;
    const cl_uint bus[4] = {0, 1, 0, 0}, units = hopper ? 132 : 84;
    const cl_uint parts[2] = {capability() / 10, capability() % 10};
    const cl_ulong local = 49152, all = (hopper ? 140ull : 48ull) << 30, largest = all / 4;
    const struct {
        cl_device_info key;
        const void *value;
        size_t bytes;
    } answers[] = {
        {CL_DEVICE_TYPE, &gpu, sizeof gpu},
        {CL_DEVICE_MAX_COMPUTE_UNITS, &units, sizeof units},
        {CL_DEVICE_LOCAL_MEM_SIZE, &local, sizeof local},
        {CL_DEVICE_GLOBAL_MEM_SIZE, &all, sizeof all},
        {CL_DEVICE_MAX_MEM_ALLOC_SIZE, &largest, sizeof largest},
        {CAPABILITY_MAJOR, &parts[0], sizeof parts[0]},
        {CAPABILITY_MINOR, &parts[1], sizeof parts[1]},
        {PCI_BUS_INFO, bus, sizeof bus},
        {CL_DEVICE_NAME, name, strlen(name) + 1},
        {CL_DEVICE_VENDOR, vendor, sizeof vendor},
        {CL_DRIVER_VERSION, driver, sizeof driver},
        {CL_DEVICE_VERSION, version, sizeof version},
        {CL_DEVICE_EXTENSIONS, extensions, sizeof extensions},
    };
    for (size_t i = 0; i < MOERT_COUNT(answers); i++)
        if (key == answers[i].key)
            return answer(answers[i].value, answers[i].bytes, room, to, given);
    return REAL(clGetDeviceInfo)(device, key, room, to, given);
}
