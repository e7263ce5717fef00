// run: check=1 all=1san device=0
/* Options of this and of older versions of the headers. */
#include "base/options.h"
#include "support/test.h"

/* Options of a library that has had two versions. */
typedef struct grown {
    size_t size;
    unsigned first;
    float factor;
    size_t later; /* since the second version */
} grown;

#define GROWN_INIT                                                                                 \
    { sizeof(grown), 1, 2.0f, 3 }

static moert_status take(const void *given, grown *taken) {
    return MOERT_OPTIONS_TAKE(grown, GROWN_INIT, taken, given);
}

TEST(test_options_of_this_version_are_taken_whole) {
    const grown given = {sizeof given, 5, 6.0f, 7};
    grown taken;
    ASSERT_OK(take(&given, &taken));
    assert_memory_equal(&taken, &given, sizeof given);
}

TEST(test_older_options_get_the_defaults_of_later_fields) {
    const grown given = {offsetof(grown, later), 5, 6.0f, 7};
    grown taken;
    ASSERT_OK(take(&given, &taken));
    assert_true(taken.size == sizeof taken && taken.first == 5 && taken.factor == 6.0f);
    assert_int_equal(taken.later, 3);
}

TEST(test_other_sizes_are_refused) {
    const size_t sizes[] = {0, sizeof(size_t), sizeof(grown) - 1, sizeof(grown) + 8, SIZE_MAX};
    grown taken;
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++) {
        const grown given = {sizes[i], 5, 6.0f, 7};
        ASSERT_FAILS(take(&given, &taken), MOERT_ERROR_USAGE, titled("size is %zu", sizes[i]));
    }
    ASSERT_FAILS(take(NULL, &taken), MOERT_ERROR_USAGE, "grown is NULL; start from GROWN_INIT");
}

TESTS(NULL, NULL)
