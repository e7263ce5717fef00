// run: check=1 all=1,1gpu
/* kernels/programs.txt: which programs a line lists, and that the device's driver builds all
 * programs that are listed for the device's form. tests/e2e/kernels.sh compiles programs for other
 * forms. */
#include "support/programs.h"

#include "base/memory.h"
#include "device/program.h"
#include "support/suite.h"
#include "support/test.h"

TEST(test_a_line_takes_a_program_with_all_of_its_defines_in_any_order) {
    assert_true(programs_take("exchange/plan"));
    assert_true(programs_take("gemm/gpu -DBF16=0 -DLINES=64 -DDEPTH=16"));
    assert_true(programs_take("gemm/gpu -DDEPTH=16 -DLINES=64 -DBF16=1"));
    assert_true(programs_take("nn/bias") && programs_take("nn/bias -DALIGNED"));
    assert_true(programs_take("gemm/gemm -DBF16=1 -DDOT=1 -DLINES=13 -DWIDTH=3 -DQUANTIZED=0"));
    assert_true(programs_take("attention/stats -DVALUE_SIZE=128"));
    assert_true(programs_take("attention/gpu -DHEAD_SIZE=80 -DVALUE_SIZE=48 -DOWN=64"));
}

TEST(test_no_line_takes_other_defines_values_or_families) {
    static const char *const refused[] = {
        "exchange/plan -DALIGNED",
        "gemm/gpu -DBF16=0 -DLINES=64",
        "gemm/gpu -DBF16=0 -DLINES=64 -DDEPTH=8",
        "gemm/gpu -DBF16=0 -DLINES=64 -DDEPTH=16 -DALIGNED",
        "gemm/gpu -DBF16 -DLINES=64 -DDEPTH=16",
        "nn/bias -DALIGNED=1",
        "gemm/gemm -DBF16=0 -DDOT=1 -DLINES=8 -DWIDTH=2 -DQUANTIZED=0",
        "gemm/gemm -DBF16=0 -DDOT=0 -DLINES=17 -DWIDTH=2 -DQUANTIZED=0",
        "gemm/gemm -DBF16=0 -DDOT=0 -DLINES=x -DWIDTH=2 -DQUANTIZED=0",
        "attention/stats -DVALUE_SIZE=",
        "attention/gpu -DHEAD_SIZE=80x -DVALUE_SIZE=48 -DOWN=64",
        "nosuch",
    };
    for (size_t i = 0; i < MOERT_COUNT(refused); i++)
        if (programs_take(refused[i]))
            fail_msg("taken: %s", refused[i]);
    assert_true(programs_have_family("exchange/plan -DALIGNED"));
    assert_false(programs_have_family("nosuch"));
}

static size_t listed, built;

/* Builds a program by requesting a kernel that the program does not have. */
static void build(const char *spec) {
    static const struct {
        const char *part;
        int gpu; /* 0: only the GPU form has programs with this part; 1: no form has any */
    } other_forms[] = {{"/nvidia/", 1}, {"/gpu ", 0}, {"_gpu ", 0}, {" -DALIGNED", 0}};
    const moert_device_info *info = moert_device_describe(test_device);
    moert_kernel *kernel;
    listed++;
    for (size_t i = 0; i < MOERT_COUNT(other_forms); i++)
        if (strstr(spec, other_forms[i].part) != NULL && other_forms[i].gpu >= info->gpu_form)
            return;
    if (suite_skips(true) && listed % 64 != 0)
        return;
    assert_int_not_equal(moert_program_kernel(test_device, spec, "no_kernel", &kernel), MOERT_OK);
    if (strstr(moert_last_error(), "kernel no_kernel of") == NULL)
        fail_msg("%s: %s", spec, moert_last_error());
    built++;
}

TEST(test_every_listed_program_is_taken_and_builds) {
    programs_each(build);
    print_message("# %zu of %zu programs built\n", built, listed);
    assert_true(built > 0);
}

TESTS(open_test_device, close_test_device)
