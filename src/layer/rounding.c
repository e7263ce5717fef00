/* Rounds the operands of the experts' GEMMs. */
#include "layer/rounding.h"

#include <math.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "device/buffer.h"
#include "moert/quantize.h"
#include "quant/fake_quantize.h"

/* Fills in the operands' format. */
static moert_quantizer quantizer_of(const moert_layer_choices *choices, moert_axis axis) {
    moert_quantizer how = MOERT_QUANTIZER_INIT;
    how.format = choices->format;
    how.axis = axis;
    return how;
}

/* ---- weights ---- */

/* A weight[L,N,K], and its two copies: for forward, and for dgrad. */
typedef struct copies {
    moert_quantizer how;
    moert_groups groups; /* of N rows each */
    size_t n, k;
    moert_buffer *weight, *global;
    moert_panels_use use[2];
    moert_panels *panels[2]; /* NULL: the copy is float32 */
} copies;

/* The bytes of payload and scales of a quantized weight. */
static size_t payload_bytes(const moert_quantizer *how, size_t experts, size_t n, size_t k,
                            size_t *scale_bytes) {
    const size_t blocks =
        moert_row_blocks_most(experts * n, experts, moert_format_block(how->format));
    const moert_quantized_shape shape = moert_quantized_shape_of(how, experts * n, k, blocks);
    *scale_bytes = shape.scale_lines * shape.scales * moert_format_scale_bytes(how->format);
    return shape.q_lines * shape.q_bytes;
}

void moert_round_scratch(const moert_layer_sizes *s, size_t floats[MOERT_SCRATCHES]) {
    const size_t h = s->options->hidden, i = s->options->intermediate;
    const size_t shapes[][2] = {{2 * i, h}, {h, i}};
    if (!s->choices->quantizes)
        return;
    for (size_t w = 0; w < 2 * MOERT_COUNT(shapes); w++) {
        const moert_quantizer how =
            quantizer_of(s->choices, w % 2 == 0 ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN);
        const size_t *shape = shapes[w / 2];
        size_t scale_bytes;
        const size_t bytes = payload_bytes(&how, s->local, shape[0], shape[1], &scale_bytes);
        moert_scratch_need(floats, MOERT_SCRATCH_WIRE, moert_ceil_div(bytes, sizeof(float)));
        moert_scratch_need(floats, MOERT_SCRATCH_SCALES,
                           moert_ceil_div(scale_bytes, sizeof(float)));
    }
    moert_scratch_need(floats, MOERT_SCRATCH_ENDS, s->local);
    if (s->choices->global_scales) {
        moert_scratch_need(floats, MOERT_SCRATCH_GLOBAL, moert_max(s->local, 1));
        moert_scratch_need(floats, MOERT_SCRATCH_AMAX, moert_max(s->local, 1));
    }
}

static moert_status reserve_bytes(moert_mesh *mesh, moert_scratch which, size_t bytes,
                                  moert_buffer **buffer) {
    return moert_mesh_scratch(mesh, which, moert_ceil_div(bytes, sizeof(float)), buffer);
}

/* Computes NVFP4's global scales, one for each expert. */
static moert_status take_globals(moert_mesh *mesh, copies *c) {
    moert_fake_quantize op = {.how = c->how, .groups = c->groups, .columns = c->k, .x = c->weight};
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_AMAX, c->groups.count, &op.amax));
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_GLOBAL, c->groups.count, &c->global));
    MOERT_TRY(moert_fake_quantize_amax(&op));
    return moert_power_globals_run(&(moert_power_globals){c->groups.count, op.amax, c->global});
}

/* Makes copy i by payload and scales: prepacks them, or dequantizes them to float32. */
static moert_status quantize_copy(moert_layer *layer, moert_rounded *rounded, const copies *c,
                                  size_t i) {
    moert_mesh *mesh = layer->mesh;
    const size_t experts = c->groups.count;
    size_t scale_bytes;
    moert_quantize op = {.size = sizeof op,
                         .how = c->how,
                         .groups = c->groups,
                         .columns = c->k,
                         .x = c->weight,
                         .global = c->global};
    op.how.axis = c->use[i] == MOERT_PANELS_DGRAD ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW;
    const size_t bytes = payload_bytes(&op.how, experts, c->n, c->k, &scale_bytes);
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_WIRE, bytes, &op.q));
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_SCALES, scale_bytes, &op.scale));
    MOERT_TRY(moert_quantize_run(&op));
    if (c->panels[i] != NULL)
        return moert_panels_fill_quantized(c->panels[i], &(moert_quantized){.format = op.how.format,
                                                                            .axis = op.how.axis,
                                                                            .q = op.q,
                                                                            .scale = op.scale,
                                                                            .global = op.global});
    MOERT_TRY(moert_buffer_reserve(mesh->device, experts * c->n * c->k * sizeof(float),
                                   &rounded->weight[c->use[i]]));
    op.x = rounded->weight[c->use[i]];
    return moert_dequantize_run(&op);
}

/* Makes both copies. If both are bf16 in the weight's order, the weight is read only once. */
static moert_status make_copies(moert_layer *layer, moert_rounded *rounded, const copies *c) {
    const moert_fake_quantize both = {.how = c->how,
                                      .groups = c->groups,
                                      .columns = c->k,
                                      .x = c->weight,
                                      .global = c->global,
                                      .along = moert_panels_values(c->panels[0]),
                                      .down = moert_panels_values(c->panels[1])};
    if (both.along != NULL && both.down != NULL)
        return moert_fake_quantize_run(&both);
    for (size_t i = 0; i < MOERT_COUNT(c->use); i++)
        MOERT_TRY(quantize_copy(layer, rounded, c, i));
    return MOERT_OK;
}

static moert_status refresh_weight(moert_layer *layer, int block, size_t n, size_t k) {
    const size_t experts = layer->local_experts;
    const moert_gemm forward = {
        .glu = {.gated = block == BLOCK_EXPERT_IN ? MOERT_GATED : MOERT_UNGATED,
                .form = layer->options.glu}};
    moert_rounded *rounded = &layer->rounded[block];
    moert_mesh *mesh = layer->mesh;
    moert_buffer *ends;
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_ENDS, experts * sizeof(uint32_t), &ends));
    MOERT_TRY(moert_buffer_write_ends(experts, n, ends));
    copies c = {.how = quantizer_of(&layer->choices, MOERT_AXIS_ROW),
                .groups = {ends, experts, experts * n},
                .n = n,
                .k = k,
                .weight = layer->block[block]->tensor[EXPERT_WEIGHT].weight,
                .use = {moert_panels_use_of(&forward), MOERT_PANELS_DGRAD}};
    c.how.group_scales = layer->choices.global_scales;
    for (size_t i = 0; i < MOERT_COUNT(c.use); i++) {
        const moert_panels_shape shape = {experts, n, k, c.use[i], layer->choices.operand};
        moert_panels **panels = &rounded->panels[c.use[i]];
        if (*panels == NULL)
            MOERT_TRY(moert_panels_create(mesh->device, &shape, panels));
        c.panels[i] = *panels;
    }
    if (layer->choices.global_scales)
        MOERT_TRY(take_globals(mesh, &c));
    return make_copies(layer, rounded, &c);
}

moert_status moert_round_weights(moert_layer *layer) {
    const size_t hidden = layer->options.hidden, width = layer->options.intermediate;
    if (!layer->choices.quantizes || !layer->weights_changed)
        return MOERT_OK;
    MOERT_TRY(refresh_weight(layer, BLOCK_EXPERT_IN, 2 * width, hidden));
    MOERT_TRY(refresh_weight(layer, BLOCK_EXPERT_OUT, hidden, width));
    layer->weights_changed = false;
    return MOERT_OK;
}

moert_status moert_round_take_weight(moert_layer *layer, int block, moert_gemm *gemm) {
    const moert_panels_use use = moert_panels_use_of(gemm);
    const moert_rounded *rounded = &layer->rounded[block];
    if (!layer->choices.quantizes)
        return moert_block_take_weight(layer->block[block], EXPERT_WEIGHT, gemm);
    gemm->panels = rounded->panels[use];
    if (gemm->panels == NULL)
        gemm->weight.buffer = rounded->weight[use];
    return MOERT_OK;
}

void moert_round_free(moert_layer *layer) {
    for (int i = 0; i < BLOCKS; i++)
        for (size_t use = 0; use < MOERT_PANELS_USES; use++) {
            moert_panels_destroy(layer->rounded[i].panels[use]);
            moert_buffer_destroy(layer->rounded[i].weight[use]);
        }
}

/* ---- activations ---- */

/* number of gathers in a forward (amax of x, amax of h) or a backward (amax of dy, amax of dv) */
enum { GATHERS = 2 };

void moert_round_begin(moert_layer *layer) {
    layer->gathers =
        layer->choices.global_scales && moert_comm_size(layer->mesh->world) > 1 ? GATHERS : 0;
}

/* *amax = the maximum over all ranks, NaN if any rank has NaN. If `local` is a failure on any rank,
 * the call fails on all ranks and no gather of the pass remains. Collective. */
static moert_status gather(moert_layer *layer, moert_status local, float *amax) {
    moert_mesh *mesh = layer->mesh;
    const moert_amax_report mine = {local, *amax};
    const size_t left = layer->gathers - 1;
    bool failed = false;
    layer->gathers = 0;
    MOERT_TRY(moert_comm_allgather(mesh->world, &mine, sizeof mine, mesh->reports));
    for (size_t r = 0; r < moert_comm_size(mesh->world); r++) {
        const moert_amax_report *report = &mesh->reports[r];
        failed = failed || report->status != MOERT_OK;
        if (isnan(report->amax) || report->amax > *amax)
            *amax = report->amax;
    }
    if (failed)
        return moert_comm_agree(mesh->world, local);
    layer->gathers = left;
    return MOERT_OK;
}

moert_status moert_round_join_failed_gather(moert_layer *layer, moert_status status) {
    float nothing = 0.0f;
    return status != MOERT_OK && layer->gathers > 0 ? gather(layer, status, &nothing) : status;
}

moert_status moert_round_join_gather_of_replicas(moert_layer *layer, moert_status status) {
    return moert_comm_size(layer->mesh->replicas) == 1
               ? status
               : moert_round_join_failed_gather(layer, status);
}

/* Raises the amax on the device to the maximum over all ranks. */
static moert_status gather_amax(moert_layer *layer, moert_buffer *amax) {
    float value;
    if (moert_comm_size(layer->mesh->world) == 1)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_read(amax, 0, &value, sizeof value));
    MOERT_TRY(gather(layer, MOERT_OK, &value));
    return moert_buffer_write(amax, 0, &value, sizeof value);
}

/* Sets op->global to NVFP4's global scale of an operand's rows on all ranks. Measures the amax
 * unless a GEMM has read the same rows before. */
static moert_status take_global(moert_pass *pass, const moert_gemm *gemm, moert_fake_quantize *op,
                                moert_buffer *global) {
    const bool known = gemm->kind == MOERT_GEMM_WGRAD ||
                       (gemm->kind == MOERT_GEMM_FORWARD && pass->state == PASS_BACKWARD);
    op->global = global;
    if (known)
        return MOERT_OK;
    MOERT_TRY(moert_mesh_scratch(pass->layer->mesh, MOERT_SCRATCH_AMAX, 1, &op->amax));
    MOERT_TRY(moert_fake_quantize_amax(op));
    MOERT_TRY(gather_amax(pass->layer, op->amax));
    return moert_power_globals_run(&(moert_power_globals){1, op->amax, global});
}

/* Casts float32 rows to the operands' type. Copies rows of a window that has gaps to scratch
 * first. */
static moert_status cast_rows(const moert_pass *pass, const moert_fake_quantize *rows,
                              moert_buffer *target) {
    const moert_buffer *dense = rows->x;
    const size_t count = rows->groups.rows, columns = rows->columns;
    moert_buffer *gapless;
    if (rows->x_stride > columns) {
        MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_GAPLESS, &gapless));
        MOERT_TRY(moert_buffer_copy_rows(dense, rows->x_stride * sizeof(float), gapless,
                                         columns * sizeof(float), count));
        dense = gapless;
    }
    return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32,
                                        pass->layer->choices.operand, count * columns, dense,
                                        target});
}

/* Makes the operand of a quantizing precision. *rows = the operand in scratch. */
static moert_status quantize_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                                  moert_fake_quantize *op, moert_matrix *rows) {
    const moert_layer_choices *c = &pass->layer->choices;
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    moert_buffer *down = NULL;
    if (y && c->keeps_down)
        MOERT_TRY(moert_pass_scratch(
            pass, block == BLOCK_EXPERT_IN ? MOERT_USE_DOWN_IN : MOERT_USE_DOWN_OUT, &down));
    if (wgrad && down != NULL) {
        rows->buffer = down;
        return MOERT_OK;
    }
    op->along = wgrad ? NULL : rows->buffer;
    op->down = wgrad ? rows->buffer : down;
    if (c->global_scales)
        MOERT_TRY(take_global(pass, gemm, op, pass->global[block][y]));
    return moert_fake_quantize_run(op);
}

moert_status moert_round_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                              moert_matrix *rows) {
    const moert_layer_choices *c = &pass->layer->choices;
    const moert_layer_use use = block == BLOCK_EXPERT_IN ? (y ? MOERT_USE_Y_IN : MOERT_USE_X_IN)
                                                         : (y ? MOERT_USE_Y_OUT : MOERT_USE_X_OUT);
    moert_fake_quantize op = {.how = quantizer_of(c, MOERT_AXIS_ROW),
                              .groups = {gemm->groups.ends, gemm->groups.count, gemm->groups.rows},
                              .columns = y ? gemm->n : gemm->k,
                              .x = rows->buffer,
                              .x_type = rows->type,
                              .x_stride = rows->stride};
    moert_buffer *target;
    if (!c->quantizes && rows->type == c->operand)
        return MOERT_OK;
    MOERT_TRY(moert_pass_scratch(pass, use, &target));
    *rows = (moert_matrix){.buffer = target, .type = c->operand};
    return c->quantizes ? quantize_rows(pass, gemm, block, y, &op, rows)
                        : cast_rows(pass, &op, target);
}
