/*
 * The backends of the grouped GEMM and the GLU, one directory and one row of MOERT_BACKEND_TABLE
 * (base/config.h) each, which declares moert_backend_<name>. src/gemm/gemm.c and glu.c have checked
 * the arguments before a backend is called.
 */
#pragma once

#include "base/config.h"
#include "device/check.h"
#include "gemm/gemm.h"
#include "gemm/tuning/tuning.h"

/* How a backend packs weights. */
typedef struct moert_prepack {
    /* Chooses the tile and gives the bytes of the panels; 0 if the device gains nothing from
     * them. */
    size_t (*plan)(const moert_device *device, moert_prepacked *prepacked);
    /* From the weight or, if it is NULL, from its codes. */
    moert_status (*fill)(const moert_prepacked *prepacked, const moert_buffer *weight,
                         const moert_quantized *quantized);
    size_t pays_at; /* the product since a change of the weight that makes it */
    bool any_use;   /* it serves all uses of the weight */
    bool in_order;  /* panels of bf16 are the weight rounded, in its own order */
} moert_prepack;

typedef struct moert_backend {
    const char *name;
    /* NULL if it computes this GEMM on this device; else what it takes instead, which completes
     * "the backend takes". A GEMM of NULL asks about the device alone, which may be NULL. Buffers
     * are not looked at; strides are not 0. */
    const char *(*supports)(const moert_device *device, const moert_gemm *gemm);
    const moert_prepack *prepack; /* NULL: it packs no weights */
    moert_status (*run)(const moert_gemm *gemm);
    moert_status (*glu)(const moert_glu *glu, bool backward);
    /* What GEMMs take for parts of operands; NULL: none has any. */
    size_t (*split_bytes)(const moert_device *device, const moert_gemm *gemm);
    /* Makes what a GEMM like this takes beside its buffers, which are not looked at, but for whether
     * there are any; frees it. */
    moert_status (*reserve)(moert_device *device, const moert_gemm *gemm, moert_workspace *work);
    void (*release)(moert_workspace *work);
    bool records;        /* with a workspace, run only launches kernels */
    moert_dtype decoded; /* what it takes for quantized operands that it does not decode itself */
    bool coarse_fp8;     /* its sums of FP8 operands keep fewer bits than float32 */
} moert_backend;

struct moert_workspace {
    void *state; /* the backend's */
    size_t bytes;
};
/* A buffer of the workspace. */
moert_status moert_workspace_add(moert_device *device, size_t count, size_t bytes,
                                 moert_workspace *work, moert_buffer **buffer);

#define MOERT_BACKEND_DECLARE(NAME, name) extern const moert_backend moert_backend_##name;
MOERT_BACKEND_TABLE(MOERT_BACKEND_DECLARE)
#undef MOERT_BACKEND_DECLARE

/* The backend in use on a device: that of MOERT_BACKEND or, with auto, the last of the table that
 * works there. */
const moert_backend *moert_backend_get(const moert_device *device);

/* moert_gemm_run by this backend, or by `portable` where it does not support the GEMM. */
moert_status moert_gemm_run_by(const moert_backend *backend, const moert_gemm *gemm);

/* What MOERT_BACKEND=auto takes. */
const moert_backend *moert_backend_automatic(const moert_device *device);

/* Number `index` of the table; NULL: there is none. */
const moert_backend *moert_backend_at(size_t index);

/* What a step of a product's chains takes: a number, a pair of bf16 codes, both in order, or 16
 * pairs, as kernels/gemm/amx.h sums them (DOT there). */
typedef enum moert_dot { MOERT_DOT_SCALAR, MOERT_DOT_PAIR, MOERT_DOT_TILE } moert_dot;
moert_dot moert_dot_of(const moert_device *device, moert_dtype type);

/* "gemm_forward", or "glu" and "dglu" of gated ones. */
const char *moert_gemm_name(const moert_gemm *gemm);

/* Whether nothing of `gemm` needs a workspace: rows as they lie, types of the layer, no epilogue
 * but the bias. */
#define MOERT_PLAIN_GEMMS "results in f32 and no epilogue but a bias, without a workspace"
bool moert_gemm_is_plain(const moert_gemm *gemm);
/* But for a bias and its type. */
bool moert_epilogue_is_empty(const moert_epilogue *epilogue);

struct moert_prepacked {
    moert_prepacked_shape shape;
    const moert_prepack *prepack;
    moert_choices tile; /* for any number of rows; panels are of its width */
    moert_dot term;
    moert_buffer *panels;
};

/* `prepacked` as moert_prepacked_create makes it, without panels; returns their bytes, 0 as there. */
size_t moert_prepacked_plan(const moert_device *device, const moert_prepacked_shape *shape,
                            moert_prepacked *prepacked);

/* By prepacked weights, as they were prepacked. */
moert_dot moert_gemm_dot(const moert_gemm *gemm, const moert_device *device);

/* Checks a GLU, and fills in its strides and run. */
moert_status moert_check_glu(const moert_glu *glu, bool backward, moert_glu *full);
