// run: check=1 all=1san
/* Choosing, opening and adopting devices, launches, and PTX. Buffers are in test_buffer.c, programs
 * in test_program.c. */
#include <unistd.h>

#include "base/phase.h"
#include "device/internal.h"
#include "device/launch.h"
#include "device/nvidia/ptx.h"
#include "support/opencl.h"
#include "support/test.h"

/* ---- choosing ---- */

TEST(test_the_list_describes_each_device) {
    moert_device_info *list = NULL;
    size_t count = 0;
    ASSERT_OK(moert_device_list(&list, &count));
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        assert_true(strlen(list[i].name) > 0 && strlen(list[i].platform_name) > 0);
        assert_true(list[i].compute_units > 0 && list[i].piece_bytes > 0);
        assert_true(list[i].global_bytes >= list[i].piece_bytes);
        assert_true(list[i].largest_bytes >= list[i].piece_bytes);
        assert_false(list[i].is_cpu && list[i].is_gpu && !list[i].is_simulator);
    }
    free(list);
}

TEST(test_a_device_opens_by_index_by_name_and_by_kind_or_the_message_lists_all) {
    const moert_device_info *info = moert_device_describe(test_device);
    const char *selectors[] = {titled("%d:%d", info->platform, info->index),
                               titled("%.7s", info->name), info->is_gpu ? "gpu" : "cpu", "auto"};
    static const char *const wrong[] = {"nosuch", "99:0", "0:99"};
    moert_device *device = NULL;
    for (size_t i = 0; i < MOERT_COUNT(selectors); i++) {
        /* if there are fewer devices than local ranks, ranks share devices in turn; an unknown PCI
         * address is no error */
        ASSERT_OK(moert_device_open(selectors[i], "ffff:ff:1f.7", 1000003, &device));
        assert_string_equal(moert_device_name(device), moert_device_describe(device)->name);
        ASSERT_OK(moert_device_finish(device));
        moert_device_close(device);
    }
    moert_device_close(device = NULL);
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++) {
        ASSERT_FAILS(moert_device_open(wrong[i], NULL, 0, &device), MOERT_ERROR_USAGE,
                     titled("MOERT_DEVICE=%s matches no OpenCL device; there are: ", wrong[i]));
        assert_non_null(strstr(moert_last_error(),
                               titled("%d:%d %s", info->platform, info->index, info->name)));
    }
    assert_null(device);
}

/* ---- objects of the caller ---- */

TEST(test_an_adopted_device_works_and_leaves_its_objects_alone) {
    const cl_objects caller = make_objects(0);
    for (size_t round = 0; round < 2; round++) {
        moert_device *device;
        moert_buffer *buffer;
        float values[4] = {1, 2, 3, 4}, got[4];
        ASSERT_OK(moert_device_adopt(caller.context, caller.id, caller.queue, &device));
        assert_true(strlen(moert_device_name(device)) > 0);
        assert_true(strlen(moert_device_describe(device)->platform_name) > 0);
        ASSERT_OK(moert_buffer_create(device, sizeof values, &buffer));
        ASSERT_OK(moert_buffer_write(buffer, 0, values, sizeof values));
        ASSERT_OK(run_twice(buffer, 4));
        ASSERT_OK(moert_buffer_read(buffer, 0, got, sizeof got));
        for (size_t i = 0; i < 4; i++)
            assert_true(got[i] == 2.0f * values[i]);
        moert_buffer_destroy(buffer);
        moert_device_close(device);
    }
    /* a driver's threads may hold references to the queue for a moment after a launch */
    cl_uint references = 0;
    for (size_t wait = 0; wait < 1000 && references != 1; wait++) {
        usleep(wait > 0 ? 1000 : 0);
        assert_int_equal(clGetCommandQueueInfo(caller.queue, CL_QUEUE_REFERENCE_COUNT,
                                               sizeof references, &references, NULL),
                         CL_SUCCESS);
    }
    assert_int_equal(references, 1);
}

TEST(test_objects_that_do_not_belong_together_are_refused) {
    moert_device *device = NULL;
    const cl_objects caller = make_objects(0), other = make_objects(0),
                     disorderly = make_objects(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    const struct {
        cl_objects given;
        moert_status status;
        const char *text;
    } rows[] = {
        {{caller.id, NULL, caller.queue}, MOERT_ERROR_USAGE, "needs context, device and queue"},
        {{NULL, caller.context, caller.queue}, MOERT_ERROR_USAGE, "needs context, device and"},
        {{caller.id, caller.context, NULL}, MOERT_ERROR_USAGE, "needs context, device and queue"},
        {{caller.id, other.context, caller.queue}, MOERT_ERROR_MISMATCH, "another OpenCL context"},
        {disorderly, MOERT_ERROR_UNSUPPORTED, "out-of-order"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        ASSERT_FAILS(moert_device_adopt(rows[i].given.context, rows[i].given.id,
                                        rows[i].given.queue, &device),
                     rows[i].status, rows[i].text);
    assert_null(device);
}

/* ---- launches ---- */

TEST(test_a_refused_launch_names_its_error) {
    const moert_grid one = {1, 1, 1};
    float value = 3.0f;
    moert_buffer *x = upload(&value, sizeof value);
    const size_t local = moert_device_describe(test_device)->local_bytes;
    ASSERT_FAILS(MOERT_RUN(test_device, "nosuch", "add", one, MOERT_ARG(x)), MOERT_ERROR_INTERNAL,
                 "nosuch.cl");
    ASSERT_FAILS(MOERT_RUN(test_device, "nn/elementwise", "nosuch", one, MOERT_ARG(x)),
                 MOERT_ERROR_DEVICE, "kernel nosuch of 'nn/elementwise': CL_INVALID_KERNEL_NAME");
    ASSERT_FAILS(MOERT_RUN(test_device, "nn/elementwise", "add", one, MOERT_ARG(x)),
                 MOERT_ERROR_INTERNAL, "kernel add takes 3 arguments, not 1");
    ASSERT_FAILS(MOERT_RUN(test_device, "nn/elementwise", "add", one, MOERT_ARG(x), MOERT_ARG(x),
                           MOERT_ARG(1u)),
                 MOERT_ERROR_INTERNAL,
                 "argument 2 of kernel add (4 bytes) cannot be set: CL_INVALID_ARG_SIZE");
    ASSERT_FAILS(MOERT_RUN(test_device, "nn/elementwise", "add", one, MOERT_ARG(x),
                           moert_argument_local(local), moert_argument_local(4)),
                 MOERT_ERROR_UNSUPPORTED, "of local memory");
    /* an empty grid is no error, even for an unknown program */
    ASSERT_OK(MOERT_RUN(test_device, "nosuch", "add", ((moert_grid){1, 0, 1}), MOERT_ARG(x)));
    ASSERT_OK(run_twice(x, 1));
    download_into(x, &value, sizeof value);
    assert_true(value == 6.0f);
}

/* ---- work that the reserved units join ---- */

/* A piece of work for moert_device_share(); *runs counts how often the piece has run. */
typedef struct piece {
    unsigned number, *runs;
} piece;

/* The first run of a piece finds zeros in `counts` and stores the piece's number. The second run
 * finds that number. */
static moert_status run_piece(const void *work, unsigned units, moert_buffer *counts) {
    const piece *p = work;
    const uint32_t numbers[] = {p->number, p->number}, zeros[2] = {0};
    uint32_t found[2];
    const bool first = ++*p->runs == 1;
    assert_int_equal(units, first ? 5 : 3);
    MOERT_TRY(moert_buffer_read(counts, 0, found, sizeof found));
    assert_memory_equal(found, first ? zeros : numbers, sizeof found);
    assert_int_equal(moert_phase_get(), MOERT_PHASE_WGRAD);
    return moert_buffer_write(counts, 0, numbers, sizeof numbers);
}

static moert_status run_whole(const void *work, unsigned units, moert_buffer *counts) {
    assert_null(counts);
    **(unsigned *const *)work += units;
    return MOERT_OK;
}

TEST(test_shared_work_runs_once_more_on_the_reserved_units) {
    enum { WORKS = MOERT_MOST_SHARED_WORKS, UNITS = 8, SPARED = 3 };
    unsigned left = 0, all = 0, *const past = &left, *const alone = &all;
    moert_device *device = NULL;
    ASSERT_OK(moert_device_open("auto", "", 0, &device));
    device->info.compute_units = UNITS;
    for (unsigned round = 0; round < 2; round++) {
        unsigned runs[WORKS] = {0};
        moert_device_reserve_units(device, SPARED);
        moert_phase_set(MOERT_PHASE_WGRAD);
        for (unsigned i = 0; i < WORKS; i++)
            ASSERT_OK(moert_device_share(device, run_piece, &(piece){i, &runs[i]}, sizeof(piece)));
        /* the device's list of shared work is full, so this piece runs only once */
        ASSERT_OK(moert_device_share(device, run_whole, &past, sizeof past));
        moert_phase_set(MOERT_PHASE_COMBINE);
        if (round == 1) /* no units are reserved, so nothing runs a second time */
            moert_device_reserve_units(device, 0);
        ASSERT_OK(moert_device_run_shared(device));
        assert_int_equal(moert_phase_get(), MOERT_PHASE_COMBINE);
        for (unsigned i = 0; i < WORKS; i++)
            assert_int_equal(runs[i], round == 0 ? 2 : 1);
        moert_device_reserve_units(device, 0);
        ASSERT_OK(moert_device_share(device, run_whole, &alone, sizeof alone));
        ASSERT_OK(moert_device_run_shared(device));
    }
    assert_int_equal(left, 2 * (UNITS - SPARED));
    assert_int_equal(all, 2 * UNITS);
    moert_device_close(device);
}

/* ---- the conversion of PTX for sm_90 to PTX for sm_90a ---- */

static const char ptx[] = ".version 8.4\n.target sm_90, texmode_independent\n"
                          ".shared .align 1024 .b8 gemm_arena[1040];\n"
                          "add.u32 %r1, %r2, %r3;\n"
                          "//@sm_90a setmaxnreg.inc.sync.aligned.u32 232;\n"
                          "{ //@sm_90a wgmma.fence.sync.aligned;\n}\n// a comment stays\n";

TEST(test_marked_instructions_are_enabled_and_all_else_stays) {
    char *got;
    ASSERT_OK(moert_ptx_transform(ptx, 231424, &got));
    assert_string_equal(got, ".version 8.4\n.target sm_90a, texmode_independent\n"
                             ".shared .align 1024 .b8 gemm_arena[231424];\n"
                             "add.u32 %r1, %r2, %r3;\n"
                             "setmaxnreg.inc.sync.aligned.u32 232;\n"
                             "{ wgmma.fence.sync.aligned;\n}\n// a comment stays\n");
    free(got);
}

TEST(test_a_text_of_another_target_or_without_one_arena_is_refused) {
    const char *const rows[][2] = {{titled(".target sm_80%s", strchr(ptx, ',')), "sm_90"},
                                   {titled(".target sm_90a%s", strchr(ptx, ',')), "sm_90"},
                                   {titled(".target sm_100%s", strchr(ptx, ',')), "sm_90"},
                                   {".target sm_90\n", "arena"},
                                   {titled("%s%s", ptx, strstr(ptx, ".shared")), "arena"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        char *got;
        ASSERT_FAILS(moert_ptx_transform(rows[i][0], 231424, &got), MOERT_ERROR_DEVICE, rows[i][1]);
    }
}

TESTS(open_test_device, close_test_device)
