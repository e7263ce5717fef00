// run: check=1 all=1san
/* Buffers: their ranges, copies and fills, views, pieces, and memory of the caller. */
#include "device/buffer.h"
#include "device/internal.h"
#include "device/nvidia/import.h"
#include "device/staging.h"
#include "support/test.h"

TEST(test_a_buffer_of_no_bytes_is_legal) {
    moert_buffer *empty = test_buffer(0), *view;
    void *memory;
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
    moert_buffer_destroy(NULL);
}

/* bytes[n] that do not repeat, so that bytes from another place show. */
static unsigned char *pattern(size_t n) {
    unsigned char *bytes = test_alloc(n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)((uint32_t)i * 2654435761u >> 24);
    return bytes;
}

static moert_buffer *make_view(moert_buffer *parent, size_t offset, size_t bytes) {
    moert_buffer *view = NULL;
    ASSERT_OK(moert_buffer_view(parent, offset, bytes, &view));
    assert_int_equal(moert_buffer_bytes(view), bytes);
    return owned_buffer(view);
}

static void assert_content(const moert_buffer *buffer, size_t offset, const void *want,
                           size_t bytes) {
    void *got = test_alloc(bytes);
    ASSERT_OK(moert_buffer_read(buffer, offset, got, bytes));
    assert_memory_equal(got, want, bytes);
}

TEST(test_ranges_outside_a_buffer_are_refused) {
    static const size_t ranges[][2] = {{0, 101}, {100, 1},       {101, 0},
                                       {1, 100}, {50, SIZE_MAX}, {SIZE_MAX, 1}};
    moert_buffer *buffer = test_buffer(100), *large = test_buffer(1000);
    unsigned char bytes[128] = {0};
    for (size_t i = 0; i < MOERT_COUNT(ranges); i++) {
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
}

TEST(test_a_buffer_above_the_largest_allocation_is_refused) {
    moert_buffer *buffer = NULL;
    const size_t largest = moert_device_describe(test_device)->largest_bytes;
    ASSERT_FAILS(moert_buffer_create(test_device, largest + 1, &buffer), MOERT_ERROR_MEMORY,
                 "exceeds the largest allocation");
    ASSERT_FAILS(moert_buffer_create(test_device, SIZE_MAX, &buffer), MOERT_ERROR_MEMORY,
                 "18446744073709551615 bytes");
    assert_null(buffer);
    const moert_status status = moert_buffer_create(test_device, largest, &buffer);
    /* the size is legal, but the device may lack the memory */
    assert_true(status == MOERT_OK || status == MOERT_ERROR_MEMORY);
    moert_buffer_destroy(buffer);
}

TEST(test_copies_and_fills_keep_to_their_range) {
    const unsigned char *source = pattern(256);
    unsigned char *want = pattern(256);
    moert_buffer *from = upload(source, 256), *to = upload(source, 256);
    ASSERT_OK(moert_buffer_copy(from, 17, to, 101, 55));
    ASSERT_OK(moert_buffer_clear(to, 3, 9));
    memcpy(want + 101, source + 17, 55);
    memset(want + 3, 0, 9);
    assert_memory_equal(download(to, 256), want, 256);
}

/* Tests ranges around offset 2 GiB, where some drivers' own commands fail. Untouched pages cost no
 * memory. */
TEST(test_copies_and_fills_of_large_buffers_keep_to_their_range) {
    enum { N = 70000, EDGE = 3, BYTES = 4 * (N + 8) };
    const size_t first = ((size_t)1 << 31) - 4 * (N / 2);
    static unsigned char want[BYTES];
    if (moert_device_describe(test_device)->largest_bytes < first + BYTES) {
        print_message("# skipped: no buffer of %zu bytes\n", first + BYTES);
        return;
    }
    memset(want, 0xff, sizeof want);
    moert_buffer *buffer = test_buffer(first + BYTES), *other = test_buffer(BYTES);
    ASSERT_OK(moert_buffer_write(buffer, first, want, BYTES));
    ASSERT_OK(moert_buffer_clear(buffer, first + 4 * EDGE, 4 * (N - EDGE)));
    ASSERT_OK(moert_buffer_copy(buffer, first, other, 0, BYTES));
    memset(want + 4 * EDGE, 0, 4 * (N - EDGE));
    assert_content(other, 0, want, BYTES);
    ASSERT_OK(moert_buffer_copy(other, 0, buffer, first + 4, BYTES - 4));
    memmove(want + 4, want, BYTES - 4);
    assert_content(buffer, first, want, BYTES);
}

TEST(test_a_view_is_a_part_of_its_parent_or_of_another_view) {
    enum { BYTES = 1600 };
    unsigned char *source = pattern(BYTES);
    moert_buffer *parent = upload(source, BYTES), *view = NULL, *none = NULL, *inner;
    ASSERT_OK(moert_buffer_view(parent, 512, 1024, &view));
    ASSERT_FAILS(moert_buffer_view(parent, 256, 8, &none), MOERT_ERROR_USAGE, "multiple of 512");
    ASSERT_FAILS(moert_buffer_view(view, 512, 513, &none), MOERT_ERROR_USAGE, "[512, +513)");
    ASSERT_FAILS(moert_buffer_view(view, 1536, 0, &none), MOERT_ERROR_USAGE, "1024 bytes");
    ASSERT_FAILS(moert_buffer_view(view, 512, SIZE_MAX, &none), MOERT_ERROR_USAGE, "[512, +");
    assert_null(none);
    inner = make_view(view, 512, 76);
    moert_buffer_destroy(view);
    assert_content(inner, 0, source + 1024, 76);
    ASSERT_OK(moert_buffer_clear(inner, 1, 2));
    source[1025] = source[1026] = 0;
    assert_content(parent, 0, source, BYTES);
    ASSERT_FAILS(moert_buffer_write(inner, 70, source, 7), MOERT_ERROR_USAGE, "76 bytes");
}

/* A buffer consists of several allocations if it is larger than the device's largest allocation. */
TEST(test_a_buffer_of_several_pieces_is_used_as_one) {
    enum { PIECE = 4096, BYTES = 3 * PIECE - MOERT_BUFFER_TAIL_BYTES, WIDTH = 40, STRIDE = 48 };
    enum { ROWS = BYTES / STRIDE };
    if (!test_device->info.is_cpu)
        SKIP("only on CPUs has a buffer several allocations");
    const size_t piece_bytes = test_device->info.piece_bytes;
    test_device->info.piece_bytes = PIECE;
    moert_buffer *buffer = test_buffer(BYTES), *other = test_buffer(BYTES), *view;
    test_device->info.piece_bytes = piece_bytes;
    unsigned char *source = pattern(BYTES), *mapped;
    assert_int_equal(buffer->piece_count, 3);
    ASSERT_OK(moert_buffer_write(buffer, 0, source, BYTES));
    assert_content(buffer, 0, source, BYTES);
    assert_content(buffer, PIECE - 1, source + PIECE - 1, PIECE + 2);
    ASSERT_OK(moert_buffer_copy(buffer, 4, other, 0, BYTES - 4));
    assert_content(other, 0, source + 4, BYTES - 4);
    ASSERT_OK(moert_buffer_copy_rows(buffer, STRIDE, other, WIDTH, ROWS));
    for (size_t row = 0; row < ROWS; row++)
        assert_content(other, row * WIDTH, source + row * STRIDE, WIDTH);
    ASSERT_OK(moert_buffer_clear(buffer, PIECE - 8, PIECE + 16));
    memset(source + PIECE - 8, 0, PIECE + 16);
    ASSERT_OK(moert_buffer_map(buffer, &mapped));
    assert_memory_equal(mapped, source, BYTES);
    ASSERT_OK(moert_buffer_unmap(buffer, mapped));
    ASSERT_FAILS(moert_buffer_write(buffer, BYTES - 3, source, 4), MOERT_ERROR_USAGE, "outside");
    ASSERT_FAILS(moert_buffer_clear(buffer, 1, 2), MOERT_ERROR_UNSUPPORTED, "3 pieces");
    view = make_view(buffer, PIECE - 512, PIECE + 1024);
    assert_true(moert_buffers_overlap(view, buffer) && !moert_buffers_overlap(view, other));
    unsigned char *replaced = pattern(PIECE + 2048) + 1024;
    ASSERT_OK(moert_buffer_write(other, 0, replaced, PIECE + 1024));
    ASSERT_OK(moert_buffer_copy(other, 0, view, 0, PIECE + 1024));
    assert_content(buffer, PIECE - 512, replaced, PIECE + 1024);
    view = make_view(buffer, PIECE, 512); /* in one piece */
    assert_true(view->pieces == NULL && moert_buffers_overlap(view, buffer));
}

TEST(test_memory_of_cpus_is_not_exported) {
    if (moert_device_describe(test_device)->nvidia == 0)
        ASSERT_FAILS(moert_export_ready(test_device), MOERT_ERROR_UNSUPPORTED,
                     "cl_khr_external_memory_opaque_fd");
}

static void assert_success(cl_int code) {
    assert_int_equal(code, CL_SUCCESS);
}

/* moert's kernel waits for a write in another queue, which waits for the gate. */
TEST(test_memory_and_events_of_opencl_go_in_and_out) {
    enum { COUNT = 256 };
    float *values = random_floats(COUNT, 1.0f, 1), got[COUNT];
    cl_int code[3];
    cl_context context = moert_device_context(test_device);
    cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof got, NULL, &code[0]);
    cl_command_queue other =
        clCreateCommandQueue(context, moert_device_id(test_device), 0, &code[1]);
    cl_event gate = clCreateUserEvent(context, &code[2]), written, last;
    for (size_t i = 0; i < MOERT_COUNT(code); i++)
        assert_success(code[i]);
    moert_buffer *buffer;
    void *done;
    ASSERT_OK(moert_buffer_adopt(test_device, memory, &buffer));
    assert_ptr_equal(moert_buffer_memory(buffer), memory);
    assert_int_equal(moert_buffer_bytes(buffer), sizeof got);
    assert_success(clReleaseMemObject(memory)); /* the buffer has retained `memory` */
    assert_success(
        clEnqueueWriteBuffer(other, memory, CL_FALSE, 0, sizeof got, values, 1, &gate, &written));
    assert_success(clFlush(other));
    ASSERT_OK(moert_device_await_event(test_device, written));
    ASSERT_OK(run_twice(buffer, COUNT));
    ASSERT_OK(moert_device_record_event(test_device, &done));
    last = done;
    assert_success(clSetUserEventStatus(gate, CL_COMPLETE));
    assert_success(clEnqueueReadBuffer(other, memory, CL_TRUE, 0, sizeof got, got, 1, &last, NULL));
    for (size_t i = 0; i < COUNT; i++)
        assert_true(got[i] == 2.0f * values[i]);
    clReleaseEvent(last);
    clReleaseEvent(written);
    clReleaseEvent(gate);
    clReleaseCommandQueue(other);
    moert_buffer_destroy(buffer);
    assert_non_null(moert_device_queue(test_device));
    ASSERT_FAILS(moert_buffer_adopt(test_device, NULL, &buffer), MOERT_ERROR_USAGE,
                 "memory is NULL");
}

TEST(test_wrapped_memory_is_used_as_it_is) {
    enum { N = 1024 };
    float *memory = aligned_alloc(4096, N * sizeof *memory), *mapped;
    moert_buffer *buffer = NULL, *end;
    assert_non_null(memory);
    memset(memory, 0, N * sizeof *memory);
    ASSERT_FAILS(moert_buffer_wrap(test_device, NULL, 4, &buffer), MOERT_ERROR_USAGE, "wrap");
    ASSERT_OK(moert_buffer_wrap(test_device, NULL, 0, &buffer));
    assert_int_equal(moert_buffer_bytes(buffer), 0);
    moert_buffer_destroy(buffer);
    ASSERT_OK(moert_buffer_wrap(test_device, memory, N * sizeof *memory, &buffer));
    ASSERT_OK(moert_buffer_view(buffer, N * sizeof *memory, 0, &end));
    moert_buffer_destroy(end);
    if (moert_device_describe(test_device)->is_cpu)
        memory[7] = 1.5f; /* the device sees this write, since the buffer is not a copy */
    else
        ASSERT_OK(moert_buffer_write(buffer, 7 * sizeof *memory, &(float){1.5f}, sizeof(float)));
    ASSERT_OK(run_twice(buffer, N));
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

TEST(test_reserve_keeps_what_is_large_enough) {
    moert_buffer *buffer = NULL;
    ASSERT_OK(moert_buffer_reserve(test_device, 100, &buffer));
    moert_buffer *first = buffer;
    ASSERT_OK(moert_buffer_reserve(test_device, 100, &buffer));
    ASSERT_OK(moert_buffer_reserve(test_device, 0, &buffer));
    assert_ptr_equal(buffer, first);
    ASSERT_OK(moert_buffer_reserve(test_device, 101, &buffer));
    assert_true(moert_buffer_bytes(buffer) >= 101);
    ASSERT_FAILS(moert_buffer_reserve(test_device, SIZE_MAX, &buffer), MOERT_ERROR_MEMORY, "");
    assert_null(buffer);
}

/* The device counts bytes of memory; the estimate of a run is compared with their peak. */
TEST(test_memory_counts_while_it_exists) {
    enum { BYTES = 10000 };
    const size_t before = test_device->counted_bytes;
    moert_buffer *buffer = NULL, *view = NULL;
    moert_staging *staging = NULL;
    ASSERT_OK(moert_buffer_create(test_device, BYTES, &buffer));
    const size_t of_buffer = test_device->counted_bytes - before;
    assert_in_range(of_buffer, BYTES, BYTES + 4096);
    ASSERT_OK(moert_buffer_view(buffer, 0, BYTES / 2, &view));
    assert_int_equal(test_device->counted_bytes, before + of_buffer);
    ASSERT_OK(moert_staging_create(test_device, BYTES, &staging));
    assert_in_range(test_device->counted_bytes - before - of_buffer, BYTES, 3 * BYTES);
    moert_staging_destroy(staging);
    assert_int_equal(test_device->counted_bytes, before + of_buffer);
    moert_buffer_destroy(view);
    moert_buffer_destroy(buffer);
    assert_int_equal(test_device->counted_bytes, before);
}

TESTS(open_test_device, close_test_device)
