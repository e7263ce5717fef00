/* Prepacked weights: their panels, and when a weight gets them. The backend in use fills panels. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "moert/device.h"
#include "moert/formats.h"

/* ---- panels ---- */

/*
 * The panels of a prepacked weight: a copy in the order in which the device's kernels read the
 * weight, made once and used by many GEMMs. Forward and dgrad read weight[G,N,K] along different
 * dimensions, so each has its own copy; forward with a GLU has a third copy if all gates precede
 * all ups. On tensor cores one copy serves all uses. A copy of type BF16 holds the weight rounded
 * to nearest even.
 *
 * Where prepacking does not pay, or no buffer of the device is large enough,
 * moert_panels_create gives NULL. NULL is legal everywhere; GEMMs then read the weight.
 */
typedef struct moert_panels moert_panels;
typedef enum moert_panels_use {
    MOERT_PANELS_FORWARD,
    MOERT_PANELS_DGRAD,
    MOERT_PANELS_GATED,
    MOERT_PANELS_USES
} moert_panels_use;
typedef struct moert_panels_shape {
    size_t groups, n, k;
    moert_panels_use use;
    moert_dtype type; /* F32 or BF16 */
} moert_panels_shape;
moert_status moert_panels_create(moert_device *device, const moert_panels_shape *shape,
                                 moert_panels **panels);
/* Like moert_panels_create with the given choices, for measurements; NULL: the choices of the
 * tuning rows. ERROR_USAGE if a choice is missing or out of bounds. */
struct moert_choices;
moert_status moert_panels_create_with(moert_device *device, const moert_panels_shape *shape,
                                      const struct moert_choices *choices, moert_panels **panels);
/* Bytes of device memory; 0 where moert_panels_create would give NULL. */
size_t moert_panels_need(const moert_device *device, const moert_panels_shape *shape);
/* Prepacks weight[G,N,K], float32. */
moert_status moert_panels_fill(moert_panels *panels, const moert_buffer *weight);
/* Prepacks weight[G,N,K] of `type`, F32 or BF16. */
moert_status moert_panels_fill_as(moert_panels *panels, const moert_buffer *weight,
                                  moert_dtype type);
/* A block-scaled weight. Its rows form G equal groups. Each group holds a weight [N,K] or, with
 * `transposed`, its transpose [K,N]. Payload and scales lie as in moert/formats.h, with
 * how.transposed false. */
typedef struct moert_quantized {
    moert_format format;
    moert_axis axis;
    bool transposed;
    bool scale_rows; /* with COLUMN blocks: scales [P,N] even if the payload is transposed */
    const moert_buffer *q, *scale;
    const moert_buffer *global; /* NVFP4: float32 [G], or NULL = 1 */
    size_t blocks;              /* with COLUMN blocks: row blocks for which q and scale have room */
} moert_quantized;
/* Whether panels of this shape would hold the weight as bf16 [G,N,K], in its own order. */
bool moert_panels_in_order(const moert_device *device, const moert_panels_shape *shape);
/* The memory of the panels if they hold the weight as bf16 [G,N,K], in its own order; else NULL. A
 * caller may fill this memory. */
moert_buffer *moert_panels_values(const moert_panels *panels);
/* Bytes of device memory; 0 for NULL. */
size_t moert_panels_bytes(const moert_panels *panels);
void moert_panels_destroy(moert_panels *panels);

/* For backends: fills in `panels` except for the memory. Returns the bytes of the memory, or 0
 * where moert_panels_create gives NULL. */
size_t moert_panels_plan(const moert_device *device, const moert_panels_shape *shape,
                         const struct moert_choices *choices, moert_panels *panels);

/* ---- the panels of a weight, made when they pay ---- */

/*
 * The panels of a weight that changes from time to time, for each use. On a CPU, prepacking takes
 * about the time that it saves in one GEMM, so the second GEMM after a change prepacks. A weight
 * with one forward and one dgrad between changes, as in a plain training step, gets no panels.
 * Tensor cores need panels, so with tensor cores the first GEMM prepacks. The first GEMM also
 * prepacks a weight that never changes, for GEMMs with few rows.
 */
struct moert_gemm;
typedef struct moert_weight_cache {
    moert_panels *panels[MOERT_PANELS_USES];
    size_t gemms[MOERT_PANELS_USES]; /* number of GEMMs of each use since the weight changed */
    bool repeats;  /* GEMMs now repeat earlier GEMMs. The repeated GEMMs are not counted in `gemms`,
                     and prepack only for tensor cores */
    bool is_fixed; /* the weight never changes */
} moert_weight_cache;
/* Call moert_weight_cache_changed when the weight has changed; a zeroed struct needs no call. */
void moert_weight_cache_changed(moert_weight_cache *cache);
/* Sets gemm->panels for the next forward or dgrad by gemm->weight; NULL: read the weight. */
moert_status moert_weight_cache_take(moert_weight_cache *cache, struct moert_gemm *gemm);
/* The memory of the panels of weight[n] if these panels hold the weight rounded to bf16, in the
 * weight's order; else NULL. A caller that changes the weight may also write this memory. The
 * caller then calls moert_weight_cache_changed, and after that moert_weight_cache_rounded. */
moert_buffer *moert_weight_cache_copy(const moert_weight_cache *cache, size_t n);
void moert_weight_cache_rounded(moert_weight_cache *cache);
/* Bytes of the panels after `gemms` forwards, of use shape->use, and `gemms` dgrads. */
size_t moert_weight_cache_need(const moert_device *device, const moert_panels_shape *shape,
                               size_t gemms);
void moert_weight_cache_free(moert_weight_cache *cache);
