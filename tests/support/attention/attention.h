/*
 * Attention for tests: inputs and a float64 forward, whose central differences are the oracle of
 * the backward, and a run on the device.
 */
#pragma once

#include "attention/attention.h"
#include "support/test.h"

typedef struct attention_shape {
    size_t sequences, length, heads, kv_heads, head_size;
    size_t value_size, window; /* 0: the default of moert_attention */
    bool sinks;
} attention_shape;

/* The float64 side. attention_oracle_loss() is sum(dout * out) over sequence `counted`. */
typedef struct attention_oracle {
    attention_shape shape;
    double *q, *k, *v, *sinks, *dout; /* inputs, shaped as in moert_attention */
    double *out, *lse;                /* results of the rows computed so far */
    size_t counted;
} attention_oracle;
attention_oracle attention_oracle_create(attention_shape shape);
/* Computes out and lse of query `i` of one head of a sequence. */
void attention_oracle_row(attention_oracle *oracle, size_t sequence, size_t i, size_t head);
double attention_oracle_loss(void *oracle);

/* Results of the device; dsinks is empty without sinks. */
enum {
    ATTENTION_OUT,
    ATTENTION_LSE,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_DSINKS,
    ATTENTION_RESULTS
};
extern const char *const attention_result_names[ATTENTION_RESULTS];
/* The number of elements per token of a result other than DSINKS. An input and its gradient have
 * the same number. */
size_t attention_width(const attention_shape *shape, size_t result);
typedef struct attention_results {
    size_t count[ATTENTION_RESULTS];
    float *value[ATTENTION_RESULTS];
} attention_results;

/* Runs forward and backward, with positions[sequences,length] in documents unless they are NULL.
 * MOERT_DTYPE_BF16 also checks the results that are stored in bf16. */
attention_results attention_on_device(const attention_oracle *oracle, moert_dtype type,
                                      const int32_t *positions);

/* attention_documents() returns a moert_documents without documents. attention_of_one_token()
 * returns a call on one token and one head of 4 elements, whose buffers hold 64 NaN. */
moert_documents *attention_documents(void);
moert_attention attention_of_one_token(void);

/* Checks that all results of two runs have the same bits. */
void attention_same_results(const attention_results *got, const attention_results *want);
