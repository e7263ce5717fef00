/* Rounds weights and prepacks the rounded copies. */
#include "layer/rounded.h"

#include "base/memory.h"
#include "device/buffer.h"
#include "moert/recipe.h"
#include "quant/fake_quantize.h"

moert_quantizer moert_rounded_quantizer(uint32_t rounding, uint64_t seed) {
    moert_quantizer how = MOERT_QUANTIZER_INIT;
    how.format = (moert_format)((rounding & MOERT_ROUND_FORMAT) - 1);
    how.axis = rounding & MOERT_ROUND_TILES ? MOERT_AXIS_TILE : MOERT_AXIS_ROW;
    how.rounding =
        rounding & MOERT_ROUND_STOCHASTIC ? MOERT_ROUNDING_STOCHASTIC : MOERT_ROUNDING_NEAREST;
    how.hadamard = (rounding & MOERT_ROUND_HADAMARD) != 0;
    how.seed = seed;
    return how;
}

static size_t elements_of(const moert_rounded_source *source) {
    return source->shape.groups * source->shape.n * source->shape.k;
}

/* Makes the copy of the rounded values, bf16 [G,N,K], for one use: prepacks it or, where that gains
 * nothing, converts it to float32. */
static moert_status make_copy(moert_rounded *rounded, const moert_rounded_source *source,
                              moert_panels_use use, const moert_buffer *values) {
    const size_t n = elements_of(source);
    if (rounded->panels[use] != NULL)
        return moert_panels_fill_as(rounded->panels[use], values, MOERT_DTYPE_BF16);
    MOERT_TRY(moert_buffer_reserve(source->device, n * sizeof(float), &rounded->weight[use]));
    return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_BF16, MOERT_DTYPE_F32, n,
                                        values, rounded->weight[use]});
}

/* Makes both copies. If both are bf16 in the weight's order, the weight is read once. */
static moert_status make_copies(moert_rounded *rounded, const moert_rounded_source *source,
                                const moert_panels_use use[2], moert_fake_quantize *op) {
    const size_t bytes = moert_round_up(elements_of(source) * sizeof(uint16_t), sizeof(float));
    op->along = moert_panels_values(rounded->panels[use[0]]);
    op->down = moert_panels_values(rounded->panels[use[1]]);
    if (op->along != NULL && op->down != NULL)
        return moert_fake_quantize_run(op);
    MOERT_TRY(moert_buffer_reserve(source->device, bytes, source->scratch));
    moert_buffer *const values = *source->scratch;
    for (size_t i = 0; i < 2; i++) {
        op->along = i == 0 ? values : NULL;
        op->down = i == 0 ? NULL : values;
        if (i == 0 ||
            op->how.axis != MOERT_AXIS_TILE) /* both copies of tiles have the same values */
            MOERT_TRY(moert_fake_quantize_run(op));
        MOERT_TRY(make_copy(rounded, source, use[i], values));
    }
    return MOERT_OK;
}

moert_status moert_rounded_fill(moert_rounded *rounded, const moert_rounded_source *source) {
    const moert_panels_use use[2] = {source->shape.use, MOERT_PANELS_DGRAD};
    for (size_t i = 0; i < 2; i++) {
        moert_panels_shape shape = source->shape;
        shape.use = use[i];
        if (rounded->panels[shape.use] == NULL)
            MOERT_TRY(moert_panels_create(source->device, &shape, &rounded->panels[shape.use]));
    }
    moert_fake_quantize op = {
        .how = moert_rounded_quantizer(source->rounding, 0),
        .groups = {source->ends, source->shape.groups, source->shape.groups * source->shape.n},
        .columns = source->shape.k,
        .x = source->weight};
    return make_copies(rounded, source, use, &op);
}

void moert_rounded_take(const moert_rounded *rounded, moert_gemm *gemm) {
    const moert_panels_use use = moert_panels_use_of(gemm);
    gemm->panels = rounded->panels[use];
    if (gemm->panels == NULL)
        gemm->weight.buffer = rounded->weight[use];
}

void moert_rounded_free(moert_rounded *rounded) {
    for (size_t use = 0; use < MOERT_PANELS_USES; use++) {
        moert_panels_destroy(rounded->panels[use]);
        moert_buffer_destroy(rounded->weight[use]);
        rounded->panels[use] = NULL;
        rounded->weight[use] = NULL;
    }
}
