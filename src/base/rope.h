/*
 * Schemes of rotary positions: which elements of a head rotate, and by which angle per position.
 * nn/nn.h makes the tables of cosines and sines, and rotates. No digit depends on the C library
 * (base/elementary.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "moert/status.h"

typedef enum moert_rope_type {
    MOERT_ROPE_DEFAULT,
    MOERT_ROPE_LINEAR, /* positions divided by `factor` */
    MOERT_ROPE_YARN,   /* Peng et al., 2023 */
    MOERT_ROPE_LLAMA3
} moert_rope_type;

/* Pair i of width / 2 pairs rotates by position * frequency i. Fields that a type does not use are
 * ignored. */
typedef struct moert_rope_scheme {
    moert_rope_type type;
    bool interleaved; /* pairs are elements 2i and 2i + 1; otherwise i and i + width / 2 */
    size_t width;     /* rotated elements of a head, even */
    double theta;
    double factor;                  /* LINEAR, YARN, LLAMA3: longest context / original context */
    size_t original;                /* YARN, LLAMA3: original_max_position_embeddings */
    double attention_factor;        /* YARN: multiplies cos and sin; 0: computed from mscale,
                                       mscale_all_dim */
    double mscale, mscale_all_dim;  /* YARN; 0: not given */
    double beta_fast, beta_slow;    /* YARN; 0 stands for 32 and 1 */
    bool truncate;                  /* YARN: rounds the range of interpolated pairs outwards to
                                       whole pairs */
    double low_factor, high_factor; /* LLAMA3: low_freq_factor, high_freq_factor */
} moert_rope_scheme;

/* Errors: ERROR_USAGE (odd or zero width, theta or another used field out of its range). */
moert_status moert_rope_scheme_check(const moert_rope_scheme *scheme);

/* frequency[width / 2] in radians per position, rounded to float32 where Hugging Face's
 * transformers rounds. */
void moert_rope_frequencies(const moert_rope_scheme *scheme, float *frequency);

/* The factor of all cosines and sines: 1 except for YARN. */
double moert_rope_attention_factor(const moert_rope_scheme *scheme);

/* 0.1 mscale log(factor) + 1, or 1 for a factor up to 1. DeepSeek's models with a rotary type other
 * than DEFAULT multiply attention scores by the square of moert_rope_mscale(factor,
 * mscale_all_dim), unless mscale_all_dim is 0. */
double moert_rope_mscale(double factor, double mscale);
