/* The test device and the guarded buffers of test.h. */
#include "base/config.h"
#include "base/dtype.h"
#include "device/device.h"
#include "device/launch.h"
#include "support/opencl.h"
#include "support/test.h"

enum { GUARD_BYTES = 128, GUARD_VALUE = 0xA5 };

moert_device *test_device;
static bool had_hopper; /* whether the device that was opened last is a Hopper GPU */

int open_test_device(void **state) {
    (void)state;
    /* each local rank takes its own GPU */
    const unsigned number = (unsigned)launched_as("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID");
    if (moert_device_open(moert_config_get()->device, "", number, &test_device) != MOERT_OK) {
        print_error("%s\n", moert_last_error());
        return -1;
    }
    had_hopper = moert_device_describe(test_device)->nvidia == 90;
    return 0;
}

int close_test_device(void **state) {
    (void)state;
    moert_device_close(test_device);
    test_device = NULL;
    return 0;
}

/* The cl_device_id of the test device, even if no fixture has opened the device. The test device
 * need not be the first device of the first platform, which may be Oclgrind's simulator. */
static void *device_id(void) {
    const bool opened = test_device != NULL;
    if (!opened && open_test_device(NULL) != 0)
        return NULL;
    void *id = moert_device_id(test_device);
    if (!opened)
        close_test_device(NULL);
    return id;
}

cl_objects make_objects(cl_command_queue_properties properties) {
    const cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, properties, 0};
    cl_objects made = {.id = device_id()};
    cl_int code;
    made.context = clCreateContext(NULL, 1, &made.id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    owned(made.context, clReleaseContext);
    made.queue = clCreateCommandQueueWithProperties(made.context, made.id, list, &code);
    assert_int_equal(code, CL_SUCCESS);
    owned(made.queue, clReleaseCommandQueue);
    return made;
}

static bool says(bool has, const char *what, const char *otherwise) {
    if (!has)
        print_message("# no tensor cores of %s: %s\n", what, otherwise);
    return has;
}

bool has_hopper(const char *otherwise) {
    return says(moert_device_describe(test_device)->nvidia == 90, "Hopper's", otherwise);
}

bool has_tensor_cores(const char *otherwise) {
    return says(moert_device_describe(test_device)->nvidia >= 80, "NVIDIA's", otherwise);
}

int run_tensor_forms(const char *file) {
    int failed = run_file(file, open_test_device, close_test_device);
    if (had_hopper && moert_config_get()->tensor != MOERT_TENSOR_MMA) {
        set_variable("MOERT_TENSOR", "mma");
        failed += run_file(file, open_test_device, close_test_device);
    }
    return failed;
}

moert_buffer *owned_buffer(moert_buffer *buffer) {
    return owned(buffer, moert_buffer_destroy);
}

moert_buffer *test_buffer(size_t bytes) {
    moert_buffer *buffer = NULL;
    ASSERT_OK(moert_buffer_create(test_device, bytes, &buffer));
    return owned_buffer(buffer);
}

moert_buffer *upload(const void *source, size_t bytes) {
    moert_buffer *buffer = test_buffer(bytes + GUARD_BYTES);
    unsigned char *guarded = malloc(bytes + GUARD_BYTES);
    assert_non_null(guarded);
    if (bytes > 0)
        memcpy(guarded, source, bytes);
    memset(guarded + bytes, GUARD_VALUE, GUARD_BYTES);
    /* one write: at a second write, Oclgrind 21.10 forgets which bytes the first one initialised */
    const moert_status status = moert_buffer_write(buffer, 0, guarded, bytes + GUARD_BYTES);
    free(guarded);
    ASSERT_OK(status);
    return buffer;
}

moert_buffer *upload_floats(const float *source, size_t n) {
    return upload(source, n * sizeof *source);
}

moert_buffer *upload_doubles(const double *source, size_t n) {
    return upload_floats(to_floats(source, n), n);
}

moert_buffer *unset_floats(size_t n) {
    float *unset = test_alloc(n * sizeof *unset);
    for (size_t i = 0; i < n; i++)
        unset[i] = NAN;
    return upload_floats(unset, n);
}

void download_into(const moert_buffer *buffer, void *target, size_t bytes) {
    unsigned char guard[GUARD_BYTES];
    ASSERT_OK(moert_buffer_read(buffer, 0, target, bytes));
    ASSERT_OK(moert_buffer_read(buffer, bytes, guard, sizeof guard));
    for (size_t i = 0; i < sizeof guard; i++)
        if (guard[i] != GUARD_VALUE)
            fail_msg("byte %zu past the end of a buffer of %zu bytes was written", i, bytes);
}

void *download(const moert_buffer *buffer, size_t bytes) {
    void *memory = test_alloc(bytes);
    download_into(buffer, memory, bytes);
    return memory;
}

float *download_floats(const moert_buffer *buffer, size_t n) {
    return download(buffer, n * sizeof(float));
}

float round_to(moert_dtype type, double value) {
    const float single = (float)value;
    return type == MOERT_DTYPE_F32 ? single
                                   : moert_dtype_decode(type, moert_dtype_encode(type, single));
}

void round_all(float *values, size_t n, moert_dtype type) {
    for (size_t i = 0; i < n; i++)
        values[i] = round_to(type, values[i]);
}

moert_buffer *upload_as(const float *values, size_t count, moert_dtype type) {
    if (type == MOERT_DTYPE_F32)
        return upload_floats(values, count);
    uint16_t *encoded = test_alloc(count * sizeof *encoded);
    for (size_t i = 0; i < count; i++)
        encoded[i] = (uint16_t)moert_dtype_encode(type, values[i]);
    return upload(encoded, count * sizeof *encoded);
}

void download_as(const moert_buffer *buffer, float *values, size_t count, moert_dtype type) {
    if (type == MOERT_DTYPE_F32) {
        download_into(buffer, values, count * sizeof *values);
        return;
    }
    uint16_t *encoded = download(buffer, count * sizeof *encoded);
    for (size_t i = 0; i < count; i++)
        values[i] = moert_dtype_decode(type, encoded[i]);
}

moert_buffer *unset_bf16(size_t n) {
    uint16_t *values = test_alloc(n * sizeof *values);
    memset(values, 0xFF, n * sizeof *values);
    return upload(values, n * sizeof *values);
}

void assert_bf16(const char *what, const moert_buffer *bf16, const float *floats, size_t n) {
    uint16_t *got = download(bf16, n * sizeof *got);
    for (size_t i = 0; i < n; i++)
        if (got[i] != moert_dtype_encode(MOERT_DTYPE_BF16, floats[i]))
            fail_msg("%s %zu is %04x, not %a in bf16", what, i, got[i], (double)floats[i]);
}

moert_status run_twice(moert_buffer *x, size_t n) {
    moert_buffer *copy;
    MOERT_TRY(moert_buffer_create(moert_buffer_device(x), n * sizeof(float), &copy));
    moert_status status = moert_buffer_copy(x, 0, copy, 0, n * sizeof(float));
    if (status == MOERT_OK)
        status = MOERT_RUN(moert_buffer_device(x), "nn/elementwise", "add", ((moert_grid){1, 1, 1}),
                           MOERT_ARG(copy), MOERT_ARG(x), MOERT_ARG(n));
    moert_buffer_destroy(copy);
    return status;
}
