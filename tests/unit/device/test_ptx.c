// run: check=1 all=1san device=0
/* The conversion of PTX for sm_90 to PTX for sm_90a. */
#include "device/nvidia/ptx.h"
#include "support/test.h"

static const char text[] = ".version 8.4\n.target sm_90, texmode_independent\n"
                           ".shared .align 1024 .b8 gemm_arena[1040];\n"
                           "add.u32 %r1, %r2, %r3;\n"
                           "//@sm_90a setmaxnreg.inc.sync.aligned.u32 232;\n"
                           "{ //@sm_90a wgmma.fence.sync.aligned;\n}\n// a comment stays\n";

TEST(test_marked_instructions_are_enabled_and_all_else_stays) {
    char *got;
    ASSERT_OK(moert_ptx_transform(text, 231424, &got));
    assert_string_equal(got, ".version 8.4\n.target sm_90a, texmode_independent\n"
                             ".shared .align 1024 .b8 gemm_arena[231424];\n"
                             "add.u32 %r1, %r2, %r3;\n"
                             "setmaxnreg.inc.sync.aligned.u32 232;\n"
                             "{ wgmma.fence.sync.aligned;\n}\n// a comment stays\n");
    free(got);
}

TEST(test_a_text_of_another_target_is_refused) {
    static const char *const targets[] = {"sm_80", "sm_90a", "sm_100"};
    for (size_t i = 0; i < MOERT_COUNT(targets); i++) {
        char other[sizeof text + 8], *got;
        strcpy(other, ".target ");
        strcat(strcat(other, targets[i]), strchr(text, ','));
        ASSERT_FAILS(moert_ptx_transform(other, 231424, &got), MOERT_ERROR_DEVICE, "sm_90");
    }
}

TEST(test_a_text_without_the_arena_or_with_two_is_refused) {
    char *got, two[2 * sizeof text];
    ASSERT_FAILS(moert_ptx_transform(".target sm_90\n", 231424, &got), MOERT_ERROR_DEVICE, "arena");
    strcpy(two, text);
    strcat(two, strstr(text, ".shared"));
    ASSERT_FAILS(moert_ptx_transform(two, 231424, &got), MOERT_ERROR_DEVICE, "arena");
}

TESTS(NULL, NULL)
