/*
 * The backends of the grouped GEMM and the GLU. Each backend has a directory and a row of
 * MOERT_BACKEND_TABLE (base/config.h). This header declares a moert_backend_<name> for each row.
 * src/gemm/gemm.c and glu.c check the arguments before they call a backend.
 */
#pragma once

#include "base/config.h"
#include "device/check.h"
#include "gemm/gemm.h"
#include "gemm/tuning/tuning.h"

/* How a backend prepacks weights. */
typedef struct moert_prepacker {
    /* Sets the tile from `choices` or, if `choices` is NULL, from the tuning rows. Returns the
     * bytes of the panels; 0 if prepacking does not pay. */
    size_t (*plan)(const moert_device *device, const moert_choices *choices, moert_panels *panels);
    /* Fills the panels from a weight of `type`, F32 or BF16. */
    moert_status (*fill)(moert_panels *panels, const moert_buffer *weight, moert_dtype type);
    size_t pays_at; /* which GEMM after a change of the weight prepacks the weight: 1 = the first */
    bool any_use;   /* the same panels serve all GEMMs that use the weight */
    bool in_order;  /* bf16 panels hold the rounded weight in the weight's own order */
} moert_prepacker;

typedef struct moert_backend {
    const char *name;
    /* Returns NULL if the backend computes this GEMM on this device. Otherwise returns a text for
     * messages, which names the requirement, such as "stacked weights". With `gemm` NULL the
     * function checks only the device, and `device` may be NULL. The function does not read
     * contents of buffers; strides must not be 0. */
    const char *(*supports)(const moert_device *device, const moert_gemm *gemm);
    const moert_prepacker *prepacker; /* NULL: the backend does not prepack weights */
    moert_status (*run)(const moert_gemm *gemm);
    moert_status (*glu)(const moert_glu *glu, bool backward);
    /* Computes moert_gemm_split_bytes. NULL: the backend does not split operands. */
    size_t (*split_bytes)(const moert_device *device, const moert_gemm *gemm);
    /* `reserve` allocates the workspace of a GEMM, and `release` frees it. `reserve` only tests
     * which of the GEMM's buffers are NULL. */
    moert_status (*reserve)(moert_device *device, const moert_gemm *gemm, moert_workspace *work);
    void (*release)(moert_workspace *work);
    /* Whether the backend's wgrad writes `rounded` itself. If the wgrad does not write `rounded`,
     * or if `rounds` is NULL, the caller casts `weight`. */
    bool (*rounds)(const moert_device *device, const moert_gemm *gemm);
    bool records;        /* run() with a workspace only launches kernels, so an op can record it */
    moert_dtype decoded; /* dtype to which the caller dequantizes operands that run() does not
                            decode */
    bool coarse_fp8;     /* sums of FP8 operands keep fewer bits than float32 */
} moert_backend;

/* Where the buffers of a workspace come from. ALLOCATED: from the device. COUNTED: the buffers are
 * NULL, and only their bytes are counted. ARENA: the buffers are views of a buffer of the
 * caller. */
typedef enum moert_workspace_from {
    MOERT_WORKSPACE_ALLOCATED,
    MOERT_WORKSPACE_COUNTED,
    MOERT_WORKSPACE_ARENA
} moert_workspace_from;

struct moert_workspace {
    void *state; /* owned by the backend */
    size_t bytes;
    moert_workspace_from from;
    const moert_buffer *arena;
};
/* Creates a buffer of `count` elements of `bytes` bytes and adds its size to work->bytes. */
moert_status moert_workspace_add(moert_device *device, size_t count, size_t bytes,
                                 moert_workspace *work, moert_buffer **buffer);

#define MOERT_BACKEND_DECLARE(NAME, name) extern const moert_backend moert_backend_##name;
MOERT_BACKEND_TABLE(MOERT_BACKEND_DECLARE)
#undef MOERT_BACKEND_DECLARE

/* The backend in use on a device: that of MOERT_BACKEND or, with auto, the last backend of the
 * table that supports the device. */
const moert_backend *moert_backend_get(const moert_device *device);

/* Like moert_gemm_run, but with `backend`, or with `portable` if `backend` does not support the
 * GEMM. */
moert_status moert_gemm_run_by(const moert_backend *backend, const moert_gemm *gemm);

/* The backend that MOERT_BACKEND=auto chooses. */
const moert_backend *moert_backend_automatic(const moert_device *device);

/* Backend number `index` of the table; NULL past the last backend. */
const moert_backend *moert_backend_at(size_t index);

/* The products that one step of a chain adds: one product, a pair of products of bf16 values in
 * order, or 16 such pairs in the order of kernels/gemm/add_amx.h. Kernels get this value as DOT. As
 * a unit of the reduction, a dot is one value (MOERT_DOT_SCALAR) or one pair of values. */
typedef enum moert_dot { MOERT_DOT_SCALAR, MOERT_DOT_PAIR, MOERT_DOT_TILE } moert_dot;
moert_dot moert_dot_of(const moert_device *device, moert_dtype type);
/* The same for a prepacked weight whose GEMMs have few rows, so that they wait for memory: a pair
 * takes half of the memory of two values. Pairs and values give the same bits. */
moert_dot moert_dot_of_few_rows(const moert_device *device, moert_dtype type);

/* The name of a GEMM's kind, such as "gemm_forward"; with a GLU "glu" or "dglu". */
const char *moert_gemm_name(const moert_gemm *gemm);

/* Whether `gemm` needs no workspace: no gathered rows, a float32 result, and no epilogue except a
 * float32 bias and a forward GLU. */
#define MOERT_PLAIN_GEMMS "results in f32 and no epilogue but a bias, without a workspace"
bool moert_gemm_is_plain(const moert_gemm *gemm);
/* Whether the epilogue has more than a float32 bias and a GLU. */
bool moert_gemm_has_epilogue(const moert_gemm *gemm);

struct moert_panels {
    moert_panels_shape shape;
    const moert_prepacker *prepacker;
    moert_choices tile; /* choices for any number of rows; tile.width is the panels' width */
    bool few_rows;      /* the panels are for GEMMs with few rows in each group */
    moert_dot dot;
    moert_buffer *buffer; /* of all panels */
};

/* The dot of the prepacked weight or, without a prepacked weight, moert_dot_of(device, type of the
 * operands). */
moert_dot moert_gemm_dot(const moert_gemm *gemm, const moert_device *device);
