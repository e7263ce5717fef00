// run: np=1 sanitize=1
/* Choosing, opening and adopting devices, buffers and launches. Programs are in test_program.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/phase.h"
#include "device/internal.h"
#include "support/test.h"

/* A kernel for buffers to go through: x[n] += x[n]. */
static moert_status twice(moert_buffer *x, size_t n) {
    moert_buffer *copy;
    MOERT_TRY(moert_buffer_create(moert_buffer_device(x), n * sizeof(float), &copy));
    moert_status status = moert_buffer_copy(x, 0, copy, 0, n * sizeof(float));
    if (status == MOERT_OK)
        status = MOERT_RUN(moert_buffer_device(x), "elementwise", "add", ((moert_grid){1, 1, 1}),
                           MOERT_ARG(copy), MOERT_ARG(x), MOERT_ARG(n));
    moert_buffer_destroy(copy);
    return status;
}

/* ---- choosing ---- */

static void test_the_list_tells_what_a_device_is(void **state) {
    (void)state;
    moert_device_info *list = NULL;
    size_t count = 0;
    ASSERT_OK(moert_device_list(&list, &count));
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        assert_true(strlen(list[i].name) > 0 && strlen(list[i].platform_name) > 0);
        assert_true(list[i].compute_units > 0 && list[i].largest_bytes > 0);
        assert_true(list[i].global_bytes >= list[i].largest_bytes);
        assert_false(list[i].is_cpu && list[i].is_gpu);
    }
    free(list);
}

static void test_a_device_opens_by_place_by_name_and_by_kind(void **state) {
    (void)state;
    const moert_device_info *info = moert_device_describe(test_device);
    char place[24], part[8] = "";
    snprintf(place, sizeof place, "%d:%d", info->platform, info->index);
    memcpy(part, info->name, sizeof part - 1);
    const char *selectors[] = {place, part, info->is_gpu ? "gpu" : "cpu", "auto"};
    for (size_t i = 0; i < sizeof selectors / sizeof *selectors; i++) {
        moert_device *device = NULL;
        /* a local rank beyond the number of devices wraps around; a strange GPU is no error */
        ASSERT_OK(moert_device_open(selectors[i], "ffff:ff:1f.7", 1000003, &device));
        assert_string_equal(moert_device_name(device), moert_device_describe(device)->name);
        ASSERT_OK(moert_device_finish(device));
        moert_device_close(device);
    }
    moert_device_close(NULL);
}

static void test_a_selector_without_a_match_lists_what_there_is(void **state) {
    (void)state;
    moert_device *device = NULL;
    moert_device_info *list;
    size_t count;
    const char *const selectors[] = {"nosuch", "99:0", "0:99"};
    ASSERT_OK(moert_device_list(&list, &count));
    for (size_t i = 0; i < 3; i++) {
        char text[200];
        snprintf(text, sizeof text, "MOERT_DEVICE=%s matches no OpenCL device; there are: %d:%d %s",
                 selectors[i], list[0].platform, list[0].index, list[0].name);
        ASSERT_FAILS(moert_device_open(selectors[i], NULL, 0, &device), MOERT_ERROR_USAGE, text);
    }
    assert_null(device);
    free(list);
}

/* ---- objects of the caller ---- */

typedef struct objects {
    cl_device_id id;
    cl_context context, other;
    cl_command_queue queue;
} objects;

static objects make_objects(cl_command_queue_properties properties) {
    objects made = {0};
    cl_platform_id platform;
    cl_int code;
    const cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, properties, 0};
    assert_int_equal(clGetPlatformIDs(1, &platform, NULL), CL_SUCCESS);
    assert_int_equal(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &made.id, NULL), CL_SUCCESS);
    made.context = clCreateContext(NULL, 1, &made.id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    made.other = clCreateContext(NULL, 1, &made.id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    made.queue = clCreateCommandQueueWithProperties(made.context, made.id, list, &code);
    assert_int_equal(code, CL_SUCCESS);
    return made;
}

static void free_objects(objects *made) {
    assert_int_equal(clReleaseCommandQueue(made->queue), CL_SUCCESS);
    assert_int_equal(clReleaseContext(made->context), CL_SUCCESS);
    assert_int_equal(clReleaseContext(made->other), CL_SUCCESS);
}

/* Those of the queue; a driver's threads may hold some for a moment after a launch. */
static cl_uint references_of(cl_command_queue queue) {
    cl_uint references = 0;
    for (size_t wait = 0; wait < 1000 && references != 1; wait++) {
        usleep(wait > 0 ? 1000 : 0);
        assert_int_equal(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof references,
                                               &references, NULL),
                         CL_SUCCESS);
    }
    return references;
}

static void test_an_adopted_device_works_and_leaves_its_objects_alone(void **state) {
    (void)state;
    objects caller = make_objects(0);
    for (size_t round = 0; round < 2; round++) {
        moert_device *device;
        moert_buffer *buffer;
        float values[4] = {1, 2, 3, 4}, got[4];
        ASSERT_OK(moert_device_adopt(caller.context, caller.id, caller.queue, &device));
        assert_true(strlen(moert_device_name(device)) > 0);
        assert_true(strlen(moert_device_describe(device)->platform_name) > 0);
        ASSERT_OK(moert_buffer_create(device, sizeof values, &buffer));
        ASSERT_OK(moert_buffer_write(buffer, 0, values, sizeof values));
        ASSERT_OK(twice(buffer, 4));
        ASSERT_OK(moert_buffer_read(buffer, 0, got, sizeof got));
        for (size_t i = 0; i < 4; i++)
            assert_true(got[i] == 2.0f * values[i]);
        moert_buffer_destroy(buffer);
        moert_device_close(device);
    }
    assert_int_equal(references_of(caller.queue), 1);
    free_objects(&caller);
}

static void test_objects_that_do_not_belong_together_are_refused(void **state) {
    (void)state;
    moert_device *device = NULL;
    objects caller = make_objects(0),
            disorderly = make_objects(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    ASSERT_FAILS(moert_device_adopt(NULL, caller.id, caller.queue, &device), MOERT_ERROR_USAGE,
                 "needs context, device and queue");
    ASSERT_FAILS(moert_device_adopt(caller.context, NULL, caller.queue, &device), MOERT_ERROR_USAGE,
                 "needs context, device and queue");
    ASSERT_FAILS(moert_device_adopt(caller.context, caller.id, NULL, &device), MOERT_ERROR_USAGE,
                 "needs context, device and queue");
    ASSERT_FAILS(moert_device_adopt(caller.other, caller.id, caller.queue, &device),
                 MOERT_ERROR_MISMATCH, "another OpenCL context");
    ASSERT_FAILS(moert_device_adopt(disorderly.context, disorderly.id, disorderly.queue, &device),
                 MOERT_ERROR_UNSUPPORTED, "out-of-order");
    assert_null(device);
    free_objects(&caller);
    free_objects(&disorderly);
}

/* ---- buffers ---- */

static void test_a_buffer_of_no_bytes_is_legal(void **state) {
    (void)state;
    moert_buffer *empty, *view;
    void *memory;
    ASSERT_OK(moert_buffer_create(test_device, 0, &empty));
    assert_int_equal(moert_buffer_bytes(empty), 0);
    assert_ptr_equal(moert_buffer_device(empty), test_device);
    ASSERT_OK(moert_buffer_write(empty, 0, NULL, 0));
    ASSERT_OK(moert_buffer_read(empty, 0, NULL, 0));
    ASSERT_OK(moert_buffer_copy(empty, 0, empty, 0, 0));
    ASSERT_OK(moert_buffer_clear(empty, 0, 0));
    ASSERT_OK(moert_buffer_map(empty, &memory));
    ASSERT_OK(moert_buffer_unmap(empty, memory));
    ASSERT_OK(moert_buffer_view(empty, 0, 0, &view));
    moert_buffer_destroy(view);
    moert_buffer_destroy(empty);
    moert_buffer_destroy(NULL);
}

static void test_ranges_outside_a_buffer_are_refused(void **state) {
    (void)state;
    static const size_t ranges[][2] = {{0, 101}, {100, 1},       {101, 0},
                                       {1, 100}, {50, SIZE_MAX}, {SIZE_MAX, 1}};
    moert_buffer *buffer, *large;
    unsigned char bytes[128] = {0};
    ASSERT_OK(moert_buffer_create(test_device, 100, &buffer));
    ASSERT_OK(moert_buffer_create(test_device, 1000, &large));
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const size_t offset = ranges[i][0], count = ranges[i][1];
        const moert_status all[] = {moert_buffer_write(buffer, offset, bytes, count),
                                    moert_buffer_read(buffer, offset, bytes, count),
                                    moert_buffer_clear(buffer, offset, count),
                                    moert_buffer_copy(buffer, offset, large, 0, count),
                                    moert_buffer_copy(large, 0, buffer, offset, count)};
        for (size_t call = 0; call < 5; call++)
            ASSERT_FAILS(all[call], MOERT_ERROR_USAGE, "outside a buffer of");
    }
    ASSERT_OK(moert_buffer_write(buffer, 100, bytes, 0));
    ASSERT_OK(moert_buffer_write(buffer, 0, bytes, 100));
    moert_buffer_destroy(buffer);
    moert_buffer_destroy(large);
}

static void test_a_buffer_above_the_largest_allocation_is_refused(void **state) {
    (void)state;
    moert_buffer *buffer = NULL;
    const size_t largest = moert_device_describe(test_device)->largest_bytes;
    ASSERT_FAILS(moert_buffer_create(test_device, largest + 1, &buffer), MOERT_ERROR_MEMORY,
                 "exceeds the largest allocation");
    ASSERT_FAILS(moert_buffer_create(test_device, SIZE_MAX, &buffer), MOERT_ERROR_MEMORY,
                 "18446744073709551615 bytes");
    assert_null(buffer);
    const moert_status status = moert_buffer_create(test_device, largest, &buffer);
    assert_true(status == MOERT_OK || status == MOERT_ERROR_MEMORY); /* no larger than it may be */
    moert_buffer_destroy(buffer);
}

static void test_copies_and_fills_keep_to_their_range(void **state) {
    (void)state;
    unsigned char source[256], got[256];
    for (size_t i = 0; i < 256; i++)
        source[i] = (unsigned char)i;
    moert_buffer *from = upload(source, 256), *to = upload(source, 256);
    ASSERT_OK(moert_buffer_copy(from, 17, to, 101, 55));
    ASSERT_OK(moert_buffer_clear(to, 3, 9));
    download_into(to, got, 256);
    for (size_t i = 0; i < 256; i++)
        assert_int_equal(got[i], i >= 3 && i < 12 ? 0 : i >= 101 && i < 156 ? i - 101 + 17 : i);
    moert_buffer_destroy(from);
    moert_buffer_destroy(to);
}

/* Around 2 GiB, where drivers' own commands go wrong; pages that nobody touches cost nothing. */
static void test_copies_and_fills_of_large_buffers_keep_to_their_range(void **state) {
    (void)state;
    enum { N = 70000, EDGE = 3 };
    const size_t first = ((size_t)1 << 31) - 4 * (N / 2), bytes = first + 4 * (N + 8);
    static uint32_t ones[N + 8], got[N + 8];
    moert_buffer *buffer, *other;
    if (moert_device_describe(test_device)->largest_bytes < bytes) {
        print_message("# skipped: no buffer of %zu bytes\n", bytes);
        return;
    }
    memset(ones, 0xff, sizeof ones);
    ASSERT_OK(moert_buffer_create(test_device, bytes, &buffer));
    ASSERT_OK(moert_buffer_create(test_device, sizeof ones, &other));
    ASSERT_OK(moert_buffer_write(buffer, first, ones, sizeof ones));
    ASSERT_OK(moert_buffer_clear(buffer, first + 4 * EDGE, 4 * (N - EDGE)));
    ASSERT_OK(moert_buffer_copy(buffer, first, other, 0, sizeof ones));
    ASSERT_OK(moert_buffer_read(other, 0, got, sizeof got));
    for (size_t i = 0; i < N + 8; i++)
        assert_int_equal(got[i], i >= EDGE && i < N ? 0 : 0xffffffff);
    ASSERT_OK(moert_buffer_copy(other, 0, buffer, first + 4, sizeof ones - 4));
    ASSERT_OK(moert_buffer_read(buffer, first, got, sizeof got));
    for (size_t i = 0; i < N + 8; i++)
        assert_int_equal(got[i], i > EDGE && i <= N ? 0 : 0xffffffff);
    moert_buffer_destroy(other);
    moert_buffer_destroy(buffer);
}

static void test_a_view_is_a_part_of_its_parent(void **state) {
    (void)state;
    unsigned char source[1100], got[88];
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (unsigned char)(i * 7);
    moert_buffer *parent, *view = NULL;
    ASSERT_OK(moert_buffer_create(test_device, sizeof source, &parent));
    ASSERT_OK(moert_buffer_write(parent, 0, source, sizeof source));
    ASSERT_FAILS(moert_buffer_view(parent, 256, 8, &view), MOERT_ERROR_USAGE, "multiple of 512");
    ASSERT_FAILS(moert_buffer_view(parent, 1024, 77, &view), MOERT_ERROR_USAGE, "[1024, +77)");
    ASSERT_FAILS(moert_buffer_view(parent, 1536, 0, &view), MOERT_ERROR_USAGE, "1100 bytes");
    ASSERT_FAILS(moert_buffer_view(parent, 512, SIZE_MAX, &view), MOERT_ERROR_USAGE, "[512, +");
    assert_null(view);
    ASSERT_OK(moert_buffer_view(parent, 1024, 76, &view));
    assert_int_equal(moert_buffer_bytes(view), 76);
    ASSERT_OK(moert_buffer_read(view, 0, got, 76));
    assert_memory_equal(got, source + 1024, 76);
    ASSERT_OK(moert_buffer_clear(view, 1, 2));
    ASSERT_OK(moert_buffer_read(parent, 1024, got, 76));
    assert_true(got[0] == source[1024] && got[1] == 0 && got[2] == 0 && got[3] == source[1027]);
    ASSERT_FAILS(moert_buffer_write(view, 70, got, 7), MOERT_ERROR_USAGE, "76 bytes");
    moert_buffer_destroy(view);
    moert_buffer_destroy(parent);
}

/* As imported memory is, here of views that lie side by side. */
enum { PIECE_BYTES = 4096, PIECES = 3 };
static moert_buffer *join_pieces(const moert_buffer *parent) {
    moert_buffer *buffer = test_alloc(sizeof *buffer);
    cl_int code = CL_SUCCESS;
    *buffer = (moert_buffer){.device = test_device,
                             .bytes = PIECES * PIECE_BYTES - MOERT_BUFFER_TAIL_BYTES,
                             .pieces = test_alloc(PIECES * sizeof(cl_mem)),
                             .piece_count = PIECES,
                             .piece_bytes = PIECE_BYTES};
    for (size_t i = 0; i < PIECES; i++) {
        const cl_buffer_region region = {i * PIECE_BYTES, PIECE_BYTES};
        buffer->pieces[i] = clCreateSubBuffer(parent->memory, CL_MEM_READ_WRITE,
                                              CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
        assert_int_equal(code, CL_SUCCESS);
    }
    buffer->memory = buffer->pieces[0];
    return buffer;
}

static void test_a_buffer_of_several_pieces_is_used_as_one(void **state) {
    (void)state;
    enum { BYTES = PIECES * PIECE_BYTES - MOERT_BUFFER_TAIL_BYTES, WIDTH = 10, STRIDE = 12 };
    enum { ROWS = BYTES / 4 / STRIDE };
    static float source[BYTES / 4], got[BYTES / 4], rows[ROWS * WIDTH];
    moert_buffer *parent, *other, *view = NULL;
    void *mapped;
    for (size_t i = 0; i < BYTES / 4; i++)
        source[i] = (float)i;
    ASSERT_OK(moert_buffer_create(test_device, PIECES * PIECE_BYTES, &parent));
    ASSERT_OK(moert_buffer_create(test_device, BYTES, &other));
    moert_buffer *buffer = join_pieces(parent);

    ASSERT_OK(moert_buffer_write(buffer, 0, source, BYTES));
    ASSERT_OK(moert_buffer_read(parent, 0, got, BYTES));
    assert_memory_equal(got, source, BYTES);
    ASSERT_OK(moert_buffer_read(buffer, PIECE_BYTES - 4, got, PIECE_BYTES + 8));
    assert_memory_equal(got, source + PIECE_BYTES / 4 - 1, PIECE_BYTES + 8);
    ASSERT_OK(moert_buffer_copy(buffer, 4, other, 0, BYTES - 4));
    ASSERT_OK(moert_buffer_read(other, 0, got, BYTES - 4));
    assert_memory_equal(got, source + 1, BYTES - 4);
    ASSERT_OK(moert_buffer_copy_rows(buffer, STRIDE * 4, other, WIDTH * 4, ROWS));
    ASSERT_OK(moert_buffer_read(other, 0, rows, sizeof rows));
    for (size_t i = 0; i < ROWS * WIDTH; i++)
        assert_true(rows[i] == source[i / WIDTH * STRIDE + i % WIDTH]);
    ASSERT_OK(moert_buffer_clear(buffer, PIECE_BYTES - 8, PIECE_BYTES + 16));
    ASSERT_OK(moert_buffer_read(parent, 0, got, BYTES));
    for (size_t i = 0; i < BYTES / 4; i++) {
        const bool kept = i < PIECE_BYTES / 4 - 2 || i >= PIECE_BYTES / 2 + 2;
        assert_true(got[i] == (kept ? source[i] : 0.0f));
    }
    ASSERT_FAILS(moert_buffer_write(buffer, BYTES - 3, got, 4), MOERT_ERROR_USAGE, "outside");
    ASSERT_FAILS(moert_buffer_view(buffer, 512, 8, &view), MOERT_ERROR_UNSUPPORTED, "3 pieces");
    ASSERT_FAILS(moert_buffer_map(buffer, &mapped), MOERT_ERROR_UNSUPPORTED, "3 pieces");
    moert_buffer_destroy(buffer);
    moert_buffer_destroy(other);
    moert_buffer_destroy(parent);
}

static void test_memory_of_cpus_is_not_exported(void **state) {
    (void)state;
    if (moert_device_describe(test_device)->nvidia == 0)
        ASSERT_FAILS(moert_export_ready(test_device), MOERT_ERROR_UNSUPPORTED,
                     "cl_khr_external_memory_opaque_fd");
}

static void test_wrapped_memory_is_used_as_it_is(void **state) {
    (void)state;
    enum { N = 1024 };
    float *memory = aligned_alloc(4096, N * sizeof *memory), *mapped;
    moert_buffer *buffer = NULL, *end;
    assert_non_null(memory);
    memset(memory, 0, N * sizeof *memory);
    ASSERT_FAILS(moert_buffer_wrap(test_device, NULL, 4, &buffer), MOERT_ERROR_USAGE, "wrap");
    ASSERT_FAILS(moert_buffer_wrap(test_device, memory, 0, &buffer), MOERT_ERROR_USAGE, "wrap");
    ASSERT_OK(moert_buffer_wrap(test_device, memory, N * sizeof *memory, &buffer));
    ASSERT_OK(moert_buffer_view(buffer, N * sizeof *memory, 0, &end));
    moert_buffer_destroy(end);
    if (moert_device_describe(test_device)->is_cpu)
        memory[7] = 1.5f; /* no copy: what the host writes now is what the device sees */
    else
        ASSERT_OK(moert_buffer_write(buffer, 7 * sizeof *memory, &(float){1.5f}, sizeof(float)));
    ASSERT_OK(twice(buffer, N));
    ASSERT_OK(moert_buffer_map(buffer, &mapped));
    assert_ptr_equal(mapped, memory);
    assert_true(mapped[7] == 3.0f);
    mapped[8] = 5.0f;
    ASSERT_OK(moert_buffer_unmap(buffer, mapped));
    float value = 0;
    ASSERT_OK(moert_buffer_read(buffer, 8 * sizeof value, &value, sizeof value));
    assert_true(value == 5.0f);
    moert_buffer_destroy(buffer);
    free(memory);
}

static void test_reserve_keeps_what_is_large_enough(void **state) {
    (void)state;
    moert_buffer *buffer = NULL;
    ASSERT_OK(moert_buffer_reserve(test_device, 100, &buffer));
    moert_buffer *first = buffer;
    ASSERT_OK(moert_buffer_reserve(test_device, 100, &buffer));
    ASSERT_OK(moert_buffer_reserve(test_device, 0, &buffer));
    assert_ptr_equal(buffer, first);
    ASSERT_OK(moert_buffer_reserve(test_device, 101, &buffer));
    assert_true(moert_buffer_bytes(buffer) >= 101);
    first = buffer;
    ASSERT_FAILS(moert_buffer_reserve(test_device, SIZE_MAX, &buffer), MOERT_ERROR_MEMORY, "");
    assert_ptr_equal(buffer, first);
    moert_buffer_destroy(buffer);
}

/* ---- launches ---- */

static void test_launches_say_what_is_wrong_with_them(void **state) {
    (void)state;
    const moert_grid one = {1, 1, 1};
    float value = 3.0f;
    moert_buffer *x = upload(&value, sizeof value);
    const size_t local = moert_device_describe(test_device)->local_bytes;
    ASSERT_FAILS(MOERT_RUN(test_device, "nosuch", "add", one, MOERT_ARG(x)), MOERT_ERROR_INTERNAL,
                 "nosuch.cl");
    ASSERT_FAILS(MOERT_RUN(test_device, "elementwise", "nosuch", one, MOERT_ARG(x)),
                 MOERT_ERROR_DEVICE, "kernel nosuch of 'elementwise': CL_INVALID_KERNEL_NAME");
    ASSERT_FAILS(MOERT_RUN(test_device, "elementwise", "add", one, MOERT_ARG(x)),
                 MOERT_ERROR_INTERNAL, "kernel add takes 3 arguments, not 1");
    ASSERT_FAILS(MOERT_RUN(test_device, "elementwise", "add", one, MOERT_ARG(x), MOERT_ARG(x),
                           MOERT_ARG(1u)),
                 MOERT_ERROR_INTERNAL, "argument 2 of kernel add (4 bytes): CL_INVALID_ARG_SIZE");
    ASSERT_FAILS(MOERT_RUN(test_device, "elementwise", "add", one, MOERT_ARG(x),
                           moert_argument_local(local), moert_argument_local(4)),
                 MOERT_ERROR_UNSUPPORTED, "of local memory");
    /* nothing to do is no error, whatever it is */
    ASSERT_OK(MOERT_RUN(test_device, "nosuch", "add", ((moert_grid){1, 0, 1}), MOERT_ARG(x)));
    ASSERT_OK(twice(x, 1));
    download_into(x, &value, sizeof value);
    assert_true(value == 6.0f);
    moert_buffer_destroy(x);
}

/* ---- units spared ---- */

/* What has been shared, and how often it ran. */
typedef struct piece {
    unsigned number, *runs;
} piece;

/* Its first run finds zeros and leaves its number, which the second one finds. */
static moert_status run_piece(const void *work, unsigned units, moert_buffer *counts) {
    const piece *p = work;
    const uint32_t numbers[] = {p->number, p->number};
    uint32_t found[2];
    assert_int_equal(units, p->runs[p->number]++ == 0 ? 5 : 3);
    MOERT_TRY(moert_buffer_read(counts, 0, found, sizeof found));
    for (int i = 0; i < 2; i++)
        assert_int_equal(found[i], p->runs[p->number] == 1 ? 0 : p->number);
    assert_string_equal(moert_phase_name(), "wgrad");
    return moert_buffer_write(counts, 0, numbers, sizeof numbers);
}

static moert_status run_whole(const void *work, unsigned units, moert_buffer *counts) {
    assert_null(counts);
    *((const piece *)work)->runs += units;
    return MOERT_OK;
}

static void test_work_that_is_shared_runs_once_more_on_the_units_spared(void **state) {
    enum { WORKS = MOERT_MOST_SHARES, UNITS = 8, SPARED = 3 };
    unsigned runs[WORKS], left = 0, all = 0;
    const piece past = {0, &left}, alone = {0, &all};
    moert_device *device = NULL;
    (void)state;
    ASSERT_OK(moert_device_open("auto", "", 0, &device));
    device->info.compute_units = UNITS;
    for (unsigned round = 0; round < 2; round++) {
        memset(runs, 0, sizeof runs);
        moert_device_spare(device, SPARED);
        moert_phase_set("wgrad");
        for (unsigned i = 0; i < WORKS; i++) {
            const piece p = {i, runs};
            ASSERT_OK(moert_device_share(device, run_piece, &p, sizeof p));
        }
        ASSERT_OK(moert_device_share(device, run_whole, &past, sizeof past)); /* one too many */
        moert_phase_set("combine");
        if (round == 1) /* nobody joins in */
            moert_device_spare(device, 0);
        ASSERT_OK(moert_device_join_in(device));
        assert_string_equal(moert_phase_name(), "combine");
        for (unsigned i = 0; i < WORKS; i++)
            assert_int_equal(runs[i], round == 0 ? 2 : 1);
        moert_device_spare(device, 0);
        ASSERT_OK(moert_device_share(device, run_whole, &alone, sizeof alone));
        ASSERT_OK(moert_device_join_in(device));
    }
    assert_int_equal(left, 2 * (UNITS - SPARED));
    assert_int_equal(all, 2 * UNITS);
    moert_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_list_tells_what_a_device_is),
        cmocka_unit_test(test_a_device_opens_by_place_by_name_and_by_kind),
        cmocka_unit_test(test_a_selector_without_a_match_lists_what_there_is),
        cmocka_unit_test(test_an_adopted_device_works_and_leaves_its_objects_alone),
        cmocka_unit_test(test_objects_that_do_not_belong_together_are_refused),
        cmocka_unit_test(test_a_buffer_of_no_bytes_is_legal),
        cmocka_unit_test(test_ranges_outside_a_buffer_are_refused),
        cmocka_unit_test(test_a_buffer_above_the_largest_allocation_is_refused),
        cmocka_unit_test(test_copies_and_fills_keep_to_their_range),
        cmocka_unit_test(test_copies_and_fills_of_large_buffers_keep_to_their_range),
        cmocka_unit_test(test_a_view_is_a_part_of_its_parent),
        cmocka_unit_test(test_a_buffer_of_several_pieces_is_used_as_one),
        cmocka_unit_test(test_memory_of_cpus_is_not_exported),
        cmocka_unit_test(test_wrapped_memory_is_used_as_it_is),
        cmocka_unit_test(test_reserve_keeps_what_is_large_enough),
        cmocka_unit_test(test_launches_say_what_is_wrong_with_them),
        cmocka_unit_test(test_work_that_is_shared_runs_once_more_on_the_units_spared),
    };
    return cmocka_run_group_tests_name("device", tests, open_test_device, close_test_device);
}
