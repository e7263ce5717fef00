// run: check=1 night=1
/*
 * TransformerEngine's tables of token permutations. On one rank, dispatch is TransformerEngine's
 * permute, and combine is its unpermute (with or without probabilities). The backward of dispatch
 * is a combine; the backward of combine is a dispatch. Rows are compared exactly, in float32, which
 * represents all values of the narrower dtypes. CAPPED shapes limit the number of rows as
 * TransformerEngine's num_out_tokens does.
 */
#include "support/exchange/suite.h"
#include "support/suite.h"

static const struct {
    size_t tokens, experts, width, topk;
    pattern choice;
    bool slow;
} rows[] = {
    {4096, 7, 1280, 1, RANDOM, false},  {4096, 7, 1280, 2, CAPPED, false},
    {4096, 16, 80, 5, RANDOM, false},   {4096, 16, 128, 8, CAPPED, false},
    {4096, 8, 256, 6, RANDOM, false},   {4096, 64, 256, 2, RANDOM, false},
    {4096, 256, 64, 8, RANDOM, false},  {4096, 512, 64, 8, CAPPED, false},
    {0, 7, 1280, 2, RANDOM, false},     {1, 512, 9216, 8, RANDOM, false},
    {4096, 7, 4096, 2, RANDOM, true},   {4096, 16, 4096, 5, CAPPED, true},
    {4096, 7, 9216, 1, CAPPED, true},   {4096, 64, 7168, 6, RANDOM, true},
    {4096, 256, 7168, 8, RANDOM, true}, {4096, 512, 9216, 8, RANDOM, true},
};

EXCHANGE_TEST(test_tokens_go_to_their_experts_and_back, BY_LOCAL) {
    moert_exchange *exchange = open_exchange(state);
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const shape c = {.name = titled("row %zu", i),
                         .experts = rows[i].experts,
                         .topk = rows[i].topk,
                         .width = rows[i].width,
                         .tokens = {rows[i].tokens},
                         .choice = rows[i].choice};
        if (!suite_skips(rows[i].slow))
            run_shape(exchange, c, (trip){.chunks = 0});
    }
}

EXCHANGE_TESTS
