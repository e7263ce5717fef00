/*
 * libFuzzer target: no description and no buffers of an op (moert/ops.h) crash the library. Checks,
 * in addition to the sanitizers, that
 *   - a refusal has a message that names the op or the group, and changes no output argument and no
 *   buffer; - descriptions and buffers that are legal by construction are executed;
 *   - guards around the buffers keep their bytes;
 *   - the device still computes afterwards.
 *
 *   make fuzz RUNS=1000000
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz_op.h"

#include "device/device.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
const char *__asan_default_options(void);
const char *__lsan_default_suppressions(void);
const char *__ubsan_default_options(void);

/* Legal but absurd sizes must fail with ERROR_MEMORY. */
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=256:print_suppressions=0:detect_odr_"
           "violation=0";
}

const char *__ubsan_default_options(void) {
    return "print_stacktrace=1";
}

/* PoCL and LLVM keep some memory until the process ends. */
const char *__lsan_default_suppressions(void) {
    return "leak:libpocl\nleak:libOpenCL\nleak:libLLVM\nleak:libstdc++\nleak:libhwloc\n";
}

static moert_device *device, *other_device;
static char last_text[1024]; /* message of the last call that failed */

static struct { size_t runs, created, legal, executed, refused, large, recorded; } counts;

void fuzz_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fuzz_op: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

static void report(void) {
    fprintf(stderr,
            "fuzz_op: %zu runs create %zu ops, of which %zu are legal by construction: %zu "
            "execute, %zu have buffers that are refused, %zu too large ones, %zu are replayed\n",
            counts.runs, counts.created, counts.legal, counts.executed, counts.refused,
            counts.large, counts.recorded);
}

/* ---- checks of every call ---- */

/* Checks that a call returned a status that the header lists, and that its message names the op, a
 * group or a struct. Returns the status. */
static moert_status judge(const char *call, moert_status status) {
    const char *const text = moert_last_error();
    bool named = strncmp(text, "op: ", 4) == 0 || strncmp(text, "group ", 6) == 0 ||
                 strncmp(text, "moert_op_", 9) == 0;
    if (status == MOERT_OK)
        return status;
    for (moert_op_kind kind = 0; kind < MOERT_OP_KINDS; kind++) {
        const char *const name = moert_op_kind_name(kind);
        named = named || (strncmp(text, name, strlen(name)) == 0 && text[strlen(name)] == ':');
    }
    if (status != MOERT_ERROR_USAGE && status != MOERT_ERROR_UNSUPPORTED &&
        status != MOERT_ERROR_MEMORY)
        fuzz_fail("%s fails with %s: %s", call, moert_status_name(status), text);
    if (text[0] == '\0' || (!named && status != MOERT_ERROR_MEMORY))
        fuzz_fail("%s: %s has the message '%s'", call, moert_status_name(status), text);
    snprintf(last_text, sizeof last_text, "%s", text);
    moert_error_set(""); /* cleared, so that the next failure must set a new message */
    return status;
}

#define JUDGE(call) judge(#call, (call))

/* Checks that a GEMM with one product computes 2 x 3; alternates between the two backends. */
static void prove_device(void) {
    moert_op_options options = MOERT_OP_OPTIONS_INIT;
    moert_op_buffers of = MOERT_OP_BUFFERS_INIT;
    const uint32_t end = 1;
    const float x = 2.0f, weight = 3.0f;
    float y = 0.0f;
    moert_buffer **const buffers[] = {&of.ends, &of.x, &of.weight, &of.y};
    const void *const values[] = {&end, &x, &weight, &y};
    options.groups = options.rows = options.n = options.k = 1;
    options.backend = counts.runs % 2 == 0 ? "reference" : "portable";
    for (size_t i = 0; i < 4; i++)
        if (moert_buffer_create(device, 4, buffers[i]) != MOERT_OK ||
            moert_buffer_write(*buffers[i], 0, values[i], 4) != MOERT_OK)
            fuzz_fail("the device has no buffer: %s", moert_last_error());
    if (moert_op_once(device, &options, &of) != MOERT_OK ||
        moert_buffer_read(of.y, 0, &y, 4) != MOERT_OK || y != x * weight)
        fuzz_fail("the device computes %g for 2 x 3: %s", (double)y, moert_last_error());
    for (size_t i = 0; i < 4; i++)
        moert_buffer_destroy(*buffers[i]);
}

/* ---- one input ---- */

static void replay(moert_op *op, const fuzz_buffers *buffers) {
    moert_op_recording *recording = NULL;
    if (JUDGE(moert_op_record(op, &buffers->of, &recording)) != MOERT_OK) {
        if (recording != NULL)
            fuzz_fail("a recording that failed was returned");
        return;
    }
    counts.recorded++;
    for (size_t i = 0; i < 2; i++)
        if (JUDGE(moert_op_replay(recording)) != MOERT_OK)
            fuzz_fail("a recording cannot be replayed: %s", last_text);
    moert_op_recording_destroy(recording);
}

/* Executes the op; checks that a refusal changes no buffer. */
static void execute(moert_op *op, const moert_op_options *options, const fuzz_buffers *buffers,
                    unsigned calls) {
    const uint64_t before = fuzz_buffers_hash();
    const moert_status status = JUDGE(moert_op_execute(op, &buffers->of));
    if (status != MOERT_OK && fuzz_buffers_hash() != before)
        fuzz_fail("a refused execute changed a buffer");
    if (status != MOERT_OK && buffers->sound)
        fuzz_fail("buffers as described are refused: %s", last_text);
    counts.executed += status == MOERT_OK;
    counts.refused += status != MOERT_OK;
    if ((calls & 3) == 1 && JUDGE(moert_op_once(device, options, &buffers->of)) != status)
        fuzz_fail("moert_op_once and moert_op_execute return different statuses");
    if ((calls >> 2 & 3) == 1)
        replay(op, buffers);
    if (moert_device_finish(device) != MOERT_OK)
        fuzz_fail("the device does not finish: %s", moert_last_error());
}

/* Checks the properties of a created op, compiles it if the input says so, and executes it. */
static void use(const fuzz_input *in, moert_op *op, const moert_op_options *options) {
    const unsigned calls = in->calls;
    fuzz_buffers buffers;
    if (moert_op_backend_name(op) == NULL)
        fuzz_fail("an op has no backend");
    if (options->rows > 0 && moert_op_workspace_bytes(op) == 0 &&
        strcmp(moert_op_backend_name(op), "reference") == 0)
        fuzz_fail("an op of the reference backend has no workspace");
    if (calls >> 4 == 1 && JUDGE(moert_op_compile(op)) != MOERT_OK)
        fuzz_fail("an op that was created cannot be compiled: %s", last_text);
    if (fuzz_buffers_make(in, options, op, device, other_device, &buffers))
        execute(op, options, &buffers, calls);
    else
        counts.large++;
    fuzz_buffers_release();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    fuzz_input in = {0};
    moert_op_options options;
    moert_op *op = NULL;
    memcpy(&in, bytes, count < sizeof in ? count : sizeof in);
    const bool legal = fuzz_describe(&in, &options);
    moert_error_set("");
    const moert_status status = JUDGE(moert_op_create(device, &options, &op));
    if ((op != NULL) != (status == MOERT_OK))
        fuzz_fail("moert_op_create gives %s and %p", moert_status_name(status), (void *)op);
    if (legal && op == NULL)
        fuzz_fail("a legal description is refused: %s", last_text);
    counts.runs++;
    counts.created += status == MOERT_OK;
    counts.legal += status == MOERT_OK && legal;
    if (op != NULL)
        use(&in, op, &options);
    else if (JUDGE(moert_op_once(device, &options, &(moert_op_buffers)MOERT_OP_BUFFERS_INIT)) !=
             status)
        fuzz_fail("moert_op_once and moert_op_create return different statuses");
    moert_op_destroy(op);
    if (counts.runs % 256 == 0)
        prove_device();
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    /* PoCL's device without threads, so that the result of an input does not depend on earlier
     * inputs */
    setenv("POCL_DEVICES", "basic basic", 0);
    setenv("MOERT_LOG", "error", 0);
    if (moert_device_open("cpu", "", 0, &device) != MOERT_OK ||
        moert_device_open("cpu", "", 0, &other_device) != MOERT_OK)
        fuzz_fail("no device: %s", moert_last_error());
    atexit(report);
    return 0;
}
