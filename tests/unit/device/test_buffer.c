// run: check=1 all=1san
/* Buffers: their ranges, copies and fills, views, pieces, and memory of the caller. */
#include "device/internal.h"
#include "support/test.h"

TEST(test_a_buffer_of_no_bytes_is_legal) {
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
    unsigned char source[256], got[256];
    for (size_t i = 0; i < 256; i++)
        source[i] = (unsigned char)i;
    moert_buffer *from = upload(source, 256), *to = upload(source, 256);
    ASSERT_OK(moert_buffer_copy(from, 17, to, 101, 55));
    ASSERT_OK(moert_buffer_clear(to, 3, 9));
    download_into(to, got, 256);
    for (size_t i = 0; i < 256; i++)
        assert_int_equal(got[i], i >= 3 && i < 12 ? 0 : i >= 101 && i < 156 ? i - 101 + 17 : i);
}

/* Tests ranges around offset 2 GiB, where some drivers' own commands fail. Untouched pages cost no
 * memory. */
TEST(test_copies_and_fills_of_large_buffers_keep_to_their_range) {
    enum { N = 70000, EDGE = 3 };
    const size_t first = ((size_t)1 << 31) - 4 * (N / 2), bytes = first + 4 * (N + 8);
    static uint32_t ones[N + 8], got[N + 8];
    if (moert_device_describe(test_device)->largest_bytes < bytes) {
        print_message("# skipped: no buffer of %zu bytes\n", bytes);
        return;
    }
    memset(ones, 0xff, sizeof ones);
    moert_buffer *buffer = test_buffer(bytes), *other = test_buffer(sizeof ones);
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
}

TEST(test_a_view_is_a_part_of_its_parent) {
    unsigned char source[1100], got[88];
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (unsigned char)(i * 7);
    moert_buffer *parent = test_buffer(sizeof source), *view = NULL;
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
}

TEST(test_a_view_of_a_view_is_a_part_of_the_whole) {
    unsigned char source[1600], got[64];
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (unsigned char)(i * 7);
    moert_buffer *parent = test_buffer(sizeof source), *view = NULL, *inner = NULL;
    ASSERT_OK(moert_buffer_write(parent, 0, source, sizeof source));
    ASSERT_OK(moert_buffer_view(parent, 512, 1024, &view));
    ASSERT_FAILS(moert_buffer_view(view, 512, 513, &inner), MOERT_ERROR_USAGE, "1024 bytes");
    ASSERT_OK(moert_buffer_view(view, 512, 64, &inner));
    moert_buffer_destroy(view);
    ASSERT_OK(moert_buffer_read(inner, 0, got, sizeof got));
    assert_memory_equal(got, source + 1024, sizeof got);
    moert_buffer_destroy(inner);
}

/* Creates a buffer that is larger than one allocation may be, so that it consists of several. */
enum { PIECE_BYTES = 4096, PIECES = 3 };
static moert_buffer *create_pieces(size_t bytes) {
    moert_buffer *buffer = NULL;
    const size_t piece_bytes = test_device->info.piece_bytes;
    test_device->info.piece_bytes = PIECE_BYTES;
    ASSERT_OK(moert_buffer_create(test_device, bytes, &buffer));
    test_device->info.piece_bytes = piece_bytes;
    return buffer;
}

TEST(test_a_buffer_of_several_pieces_is_used_as_one) {
    enum { BYTES = PIECES * PIECE_BYTES - MOERT_BUFFER_TAIL_BYTES, WIDTH = 10, STRIDE = 12 };
    enum { ROWS = BYTES / 4 / STRIDE };
    static float source[BYTES / 4], got[BYTES / 4], rows[ROWS * WIDTH];
    if (!test_device->info.is_cpu)
        SKIP("only on CPUs has a buffer several allocations");
    moert_buffer *other = test_buffer(BYTES), *buffer = create_pieces(BYTES), *view;
    float *mapped;
    assert_int_equal(buffer->piece_count, PIECES);
    for (size_t i = 0; i < BYTES / 4; i++)
        source[i] = (float)i;
    ASSERT_OK(moert_buffer_write(buffer, 0, source, BYTES));
    ASSERT_OK(moert_buffer_read(buffer, 0, got, BYTES));
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
    ASSERT_OK(moert_buffer_map(buffer, &mapped));
    for (size_t i = 0; i < BYTES / 4; i++) {
        const bool kept = i < PIECE_BYTES / 4 - 2 || i >= PIECE_BYTES / 2 + 2;
        assert_true(mapped[i] == (kept ? source[i] : 0.0f));
    }
    ASSERT_OK(moert_buffer_unmap(buffer, mapped));
    ASSERT_FAILS(moert_buffer_write(buffer, BYTES - 3, got, 4), MOERT_ERROR_USAGE, "outside");
    ASSERT_FAILS(moert_buffer_clear(buffer, 1, 2), MOERT_ERROR_UNSUPPORTED, "3 pieces");
    ASSERT_OK(moert_buffer_view(buffer, PIECE_BYTES - 512, PIECE_BYTES + 1024, &view));
    assert_true(moert_buffers_overlap(view, buffer) && !moert_buffers_overlap(view, other));
    ASSERT_OK(moert_buffer_copy(other, 0, view, 0, PIECE_BYTES + 1024));
    ASSERT_OK(moert_buffer_read(other, 0, source, PIECE_BYTES + 1024));
    ASSERT_OK(moert_buffer_read(buffer, PIECE_BYTES - 512, got, PIECE_BYTES + 1024));
    assert_memory_equal(got, source, PIECE_BYTES + 1024);
    moert_buffer_destroy(view);
    ASSERT_OK(moert_buffer_view(buffer, PIECE_BYTES, 512, &view)); /* in one piece */
    assert_true(view->pieces == NULL && moert_buffers_overlap(view, buffer));
    moert_buffer_destroy(view);
    moert_buffer_destroy(buffer);
}

TEST(test_memory_of_cpus_is_not_exported) {
    if (moert_device_describe(test_device)->nvidia == 0)
        ASSERT_FAILS(moert_export_ready(test_device), MOERT_ERROR_UNSUPPORTED,
                     "cl_khr_external_memory_opaque_fd");
}

TEST(test_memory_and_events_of_opencl_go_in_and_out) {
    enum { COUNT = 256 };
    float values[COUNT], got[COUNT];
    cl_int code[3];
    cl_context context = moert_device_context(test_device);
    cl_command_queue_properties none = 0;
    for (size_t i = 0; i < COUNT; i++)
        values[i] = (float)i;
    cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof values, NULL, &code[0]);
    cl_command_queue other =
        clCreateCommandQueue(context, moert_device_id(test_device), none, &code[1]);
    cl_event gate = clCreateUserEvent(context, &code[2]);
    assert_true(code[0] == CL_SUCCESS && code[1] == CL_SUCCESS && code[2] == CL_SUCCESS);
    moert_buffer *buffer;
    ASSERT_OK(moert_buffer_adopt(test_device, memory, &buffer));
    assert_ptr_equal(moert_buffer_memory(buffer), memory);
    assert_int_equal(moert_buffer_bytes(buffer), sizeof values);
    assert_int_equal(clReleaseMemObject(memory), CL_SUCCESS); /* the buffer has retained it */
    /* moert's kernel waits for the write in the other queue, which waits for the gate */
    cl_event written;
    void *done;
    assert_int_equal(
        clEnqueueWriteBuffer(other, memory, CL_FALSE, 0, sizeof values, values, 1, &gate, &written),
        CL_SUCCESS);
    assert_int_equal(clFlush(other), CL_SUCCESS);
    ASSERT_OK(moert_device_await_event(test_device, written));
    ASSERT_OK(run_twice(buffer, COUNT));
    ASSERT_OK(moert_device_record_event(test_device, &done));
    cl_event last = done;
    assert_int_equal(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    assert_int_equal(
        clEnqueueReadBuffer(other, memory, CL_TRUE, 0, sizeof got, got, 1, &last, NULL),
        CL_SUCCESS);
    for (size_t i = 0; i < COUNT; i++)
        assert_true(got[i] == 2.0f * (float)i);
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

TESTS(open_test_device, close_test_device)
