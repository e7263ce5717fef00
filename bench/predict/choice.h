/* The options of bench_layer and bench_model that describe a layer. */
#pragma once

#include "bench/predict/models.h"
#include "bench/predict/predict.h"
#include "tools/common/options.h"

/* Rows of a table of options. The options set fields of a bench_work, and indices of words in
 * MOERT_*_WORDS. */
/* clang-format off */
#define BENCH_LAYER_OPTIONS(work, model, dispatch, combine)                                        \
    {"model", MOERT_OPTION_CHOICE, &(model), "none", BENCH_MODEL_WORDS,                            \
     "the layer of a released model, instead of the four sizes"},                                  \
    {"tokens", MOERT_OPTION_UINT, &(work).tokens, "1024", "1..1048576", "tokens of each rank, T"}, \
    {"hidden", MOERT_OPTION_UINT, &(work).hidden, "512", "1..65536", "H"},                         \
    {"intermediate", MOERT_OPTION_UINT, &(work).intermediate, "512", "1..65536",                   \
     "of an expert, I"},                                                                           \
    {"experts", MOERT_OPTION_UINT, &(work).experts, "8", "1..4096", "E"},                          \
    {"topk", MOERT_OPTION_UINT, &(work).topk, "2", "1..64", "experts of a token, K"},              \
    {"dispatch", MOERT_OPTION_CHOICE, &(dispatch), "f32", MOERT_DISPATCH_WORDS,                    \
     "of rows to the experts"},                                                                    \
    {"combine", MOERT_OPTION_CHOICE, &(combine), "f32", MOERT_COMBINE_WORDS,                       \
     "of rows back from the experts"},                                                             \
    {"balance", MOERT_OPTION_FLAG, &(work).balanced, NULL, NULL,                                   \
     "place the experts so that the ranks get equal rows, as far as possible"},                    \
    {"clones", MOERT_OPTION_UINT, &(work).clones, "0", "0..1024",                                  \
     "with --balance: each rank has room for so many clones of experts with many rows"}
/* clang-format on */

/* Sets the sizes of the layer to those of the model that --model names, if it names one. Parses
 * `skew`, the text of --skew; NULL: balanced routing. ERROR_USAGE if options contradict each
 * other. */
static inline moert_status bench_layer_choose(bench_work *w, size_t model, const char *skew) {
    bench_model_take(model, &w->hidden, &w->intermediate, &w->experts, &w->topk);
    if (w->topk > w->experts)
        return MOERT_FAIL(ERROR_USAGE, "--topk is %zu, but there are %zu --experts", w->topk,
                          w->experts);
    if (w->balanced && skew == NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "--balance needs --skew: without --skew the load of the experts is even");
    if (w->clones > 0 && !w->balanced)
        return MOERT_FAIL(ERROR_USAGE, "--clones needs --balance, which places them");
    return skew != NULL ? bench_skew_read(skew, &w->skew) : MOERT_OK;
}
