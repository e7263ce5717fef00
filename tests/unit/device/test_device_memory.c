// run: check=1
/*
 * The message says that memory ran out, whichever OpenCL call reports this. This program replaces
 * calls of the OpenCL loader and strdup() of the C library; one of them fails at a time.
 */
#include <dlfcn.h>

#include "device/internal.h"
#include "support/files.h"
#include "support/test.h"

static const char *failing; /* the name of the call that fails, or NULL */
static cl_int code_of_failure = CL_OUT_OF_HOST_MEMORY;

static bool fails(const char *name) {
    return failing != NULL && strcmp(failing, name) == 0;
}

#define NO_OBJECT (*code = code_of_failure, NULL)
/* X(type of the result, name, parameters, arguments, result of a failure) */
#define CALLS(X)                                                                                   \
    X(cl_int, clGetPlatformIDs, (cl_uint a, cl_platform_id * b, cl_uint * c), (a, b, c),           \
      code_of_failure)                                                                             \
    X(cl_int, clGetDeviceIDs,                                                                      \
      (cl_platform_id a, cl_device_type b, cl_uint c, cl_device_id * d, cl_uint * e),              \
      (a, b, c, d, e), code_of_failure)                                                            \
    X(cl_int, clBuildProgram,                                                                      \
      (cl_program a, cl_uint b, const cl_device_id *c, const char *d,                              \
       void (*e)(cl_program, void *), void *f),                                                    \
      (a, b, c, d, e, f), code_of_failure)                                                         \
    X(cl_int, clSetKernelArg, (cl_kernel a, cl_uint b, size_t c, const void *d), (a, b, c, d),     \
      code_of_failure)                                                                             \
    X(cl_context, clCreateContext,                                                                 \
      (const cl_context_properties *a, cl_uint b, const cl_device_id *c,                           \
       void (*d)(const char *, const void *, size_t, void *), void *e, cl_int *code),              \
      (a, b, c, d, e, code), NO_OBJECT)                                                            \
    X(cl_program, clCreateProgramWithSource,                                                       \
      (cl_context a, cl_uint b, const char **c, const size_t *d, cl_int *code),                    \
      (a, b, c, d, code), NO_OBJECT)                                                               \
    X(cl_kernel, clCreateKernel, (cl_program a, const char *b, cl_int *code), (a, b, code),        \
      NO_OBJECT)                                                                                   \
    X(cl_mem, clCreateBuffer, (cl_context a, cl_mem_flags b, size_t c, void *d, cl_int *code),     \
      (a, b, c, d, code), NO_OBJECT)

#define DEFINE(type, name, parameters, arguments, failure)                                         \
    type name parameters {                                                                         \
        type(*call) parameters = (type(*) parameters)(uintptr_t)dlsym(RTLD_NEXT, #name);           \
        return fails(#name) ? failure : call arguments;                                            \
    }
CALLS(DEFINE)

/* Fails only for copies of the kernel's name "add". */
char *strdup(const char *text) {
    const bool failed = fails("strdup") && strcmp(text, "add") == 0;
    char *copy = failed ? NULL : malloc(strlen(text) + 1);
    return copy != NULL ? strcpy(copy, text) : NULL;
}

/* Opens a device and runs a kernel on it. */
static moert_status open_and_run(void) {
    moert_device *device;
    moert_buffer *x = NULL;
    moert_status status;
    MOERT_TRY(moert_device_open("auto", NULL, 0, &device));
    MOERT_TRY_OR(close, moert_buffer_create(device, 4 * sizeof(float), &x));
    status = run_twice(x, 4);
close:
    moert_buffer_destroy(x);
    moert_device_close(device);
    return status;
}

TEST(test_a_lack_of_memory_is_called_that) {
#define NAME(type, name, parameters, arguments, failure) #name,
    static const char *const names[] = {CALLS(NAME) "strdup"};
    set_variable("MOERT_CACHE_DIR", "off"); /* builds from source */
    ASSERT_OK(open_and_run());
    for (size_t i = 0; i < MOERT_COUNT(names); i++) {
        failing = names[i];
        const moert_status status = open_and_run();
        failing = NULL;
        if (status != MOERT_ERROR_MEMORY)
            fail_msg("%s: %s", names[i], moert_last_error());
    }
}

TEST(test_drivers_have_several_codes_for_a_lack_of_device_memory) {
    static const cl_int codes[] = {CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES};
    for (size_t i = 0; i < MOERT_COUNT(codes); i++) {
        failing = "clCreateBuffer";
        code_of_failure = codes[i];
        const moert_status status = open_and_run();
        failing = NULL;
        code_of_failure = CL_OUT_OF_HOST_MEMORY;
        ASSERT_FAILS(status, MOERT_ERROR_MEMORY, "has no room for a buffer of 16 bytes");
    }
}

/* PoCL's libraries need more memory than the test lets this process map. */
TEST(test_a_driver_that_cannot_be_loaded_for_lack_of_memory) {
    moert_device *device;
    failing = "clGetPlatformIDs";
    code_of_failure = -1001; /* the loader's error code if it cannot load a driver */
    limit_memory(1 << 20);
    const moert_status status = moert_device_open("auto", NULL, 0, &device);
    limit_memory(RLIM_INFINITY);
    failing = NULL;
    code_of_failure = CL_OUT_OF_HOST_MEMORY;
    ASSERT_FAILS(status, MOERT_ERROR_MEMORY, "is ulimit -v set?");
}

TEST(test_a_buffer_without_memory_is_refused) {
    enum { BYTES = 256 << 20 };
    moert_device *device;
    moert_buffer *buffer = NULL;
    ASSERT_OK(moert_device_open("cpu", NULL, 0, &device));
    limit_memory(BYTES / 2);
    const moert_status status = moert_buffer_create(device, BYTES, &buffer);
    limit_memory(RLIM_INFINITY);
    ASSERT_FAILS(status, MOERT_ERROR_MEMORY, "no room for a buffer of 268435456 bytes");
    moert_device_close(device);
}

TESTS(NULL, NULL)
