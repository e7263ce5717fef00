/*
 * The backends of the grouped GEMM and the GLU. A backend implements every entry of MOERT_OPS_TABLE
 * as moert_<backend>_<entry>, but nvidia the products only: its other entries are portable's. The
 * arguments have been checked by src/gemm/gemm.c or glu.c before it is called.
 */
#ifndef MOERT_GEMM_BACKEND_H
#define MOERT_GEMM_BACKEND_H

#include "device/backend.h"
#include "device/check.h"
#include "gemm/gemm.h"
#include "gemm/tuning/tuning.h"

/* X(entry, argument): one row per operation; first those that tensor cores can do. */
#define MOERT_PRODUCTS_TABLE(X)                                                                    \
    X(gemm_forward, moert_gemm)                                                                    \
    X(gemm_dgrad, moert_gemm)                                                                      \
    X(gemm_wgrad, moert_gemm)                                                                      \
    X(gemm_glu_forward, moert_gemm_glu)
#define MOERT_OTHERS_TABLE(X)                                                                      \
    X(gemm_bias_grad, moert_gemm)                                                                  \
    X(glu_forward, moert_glu)                                                                      \
    X(glu_backward, moert_glu)
#define MOERT_OPS_TABLE(X) MOERT_PRODUCTS_TABLE(X) MOERT_OTHERS_TABLE(X)

/* X(NAME, name, packing or NULL): one row per backend, MOERT_BACKEND_<NAME> its choice. */
#define MOERT_BACKEND_TABLE(X)                                                                     \
    X(REFERENCE, reference, NULL)                                                                  \
    X(PORTABLE, portable, &moert_portable_packing)                                                 \
    X(NVIDIA, nvidia, &moert_nvidia_packing)

/* How a backend packs weights. */
typedef struct moert_packing {
    /* Chooses the tile and gives the bytes of the panels; 0 if the device gains nothing from
     * them. */
    size_t (*plan)(const moert_device *device, moert_packed *packed);
    /* From the weight or, if it is NULL, from its codes. */
    moert_status (*fill)(const moert_packed *packed, const moert_buffer *weight,
                         const moert_coded *coded);
    size_t pays_at; /* the product since a change of the weight that makes it */
    bool any_use;   /* it serves all uses of the weight */
    bool in_order;  /* panels of bf16 are the weight rounded, in its own order */
    /* Whether products by it can round results to bf16, whose strides are given; NULL: none can. */
    bool (*rounds)(const moert_gemm *gemm);
    /* Whether those can put their lines anywhere; NULL: none can. */
    bool (*scatters)(const moert_device *device, const moert_gemm *gemm);
    /* What products take for parts of factors; NULL: none has any. */
    size_t (*split_bytes)(const moert_device *device, const moert_gemm *gemm);
} moert_packing;
extern const moert_packing moert_portable_packing, moert_nvidia_packing;

/* What a step of a product's chains takes: a number, a pair of bf16 codes, both in order, or 16
 * pairs, as kernels/gemm/amx.h sums them (DOT there). */
typedef enum moert_term { MOERT_TERM_NUMBER, MOERT_TERM_PAIR, MOERT_TERM_TILE } moert_term;
moert_term moert_term_of(const moert_device *device, moert_number type);

struct moert_packed {
    moert_packed_shape shape;
    const moert_packing *packing;
    moert_choices tile; /* for any number of rows; panels are of its width */
    moert_term term;
    moert_buffer *panels;
};

/* By packed weights, as they were packed. */
moert_term moert_gemm_term(const moert_gemm *gemm, const moert_device *device);

typedef struct moert_backend {
    const char *name;
    const moert_packing *packing;
#define MOERT_OPS_MEMBER(entry, argument) moert_status (*entry)(const argument *);
    MOERT_OPS_TABLE(MOERT_OPS_MEMBER)
#undef MOERT_OPS_MEMBER
} moert_backend;

/* The backend in use on a device; NULL will do for an entry that is no product. */
const moert_backend *moert_backend_get(const moert_device *device);

/* Checks a forward product by a weight packed for `use`, and tells a profile of it; *full gets the
 * strides that are 0. */
moert_status moert_check_forward(const moert_gemm *gemm, moert_packed_for use, moert_gemm *full);

/* ERROR_UNSUPPORTED unless the product gives results of the type that it asks for. */
moert_status moert_check_result(const moert_gemm *full);

#define MOERT_OPS_REFERENCE(entry, argument) moert_status moert_reference_##entry(const argument *);
#define MOERT_OPS_PORTABLE(entry, argument)  moert_status moert_portable_##entry(const argument *);
#define MOERT_OPS_NVIDIA(entry, argument)    moert_status moert_nvidia_##entry(const argument *);
MOERT_OPS_TABLE(MOERT_OPS_REFERENCE)
MOERT_OPS_TABLE(MOERT_OPS_PORTABLE)
MOERT_PRODUCTS_TABLE(MOERT_OPS_NVIDIA)
#undef MOERT_OPS_REFERENCE
#undef MOERT_OPS_PORTABLE
#undef MOERT_OPS_NVIDIA

#endif
