/* Rounds the operands of the experts' GEMMs. */
#include "layer/rounding.h"

#include <math.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "device/buffer.h"
#include "moert/quantize.h"

/* A float32 matrix [groups.rows, columns] without gaps. */
typedef struct matrix {
    moert_groups groups;
    size_t columns;
    moert_buffer *values;
} matrix;

static moert_status reserve_bytes(moert_mesh *mesh, moert_scratch which, size_t bytes,
                                  moert_buffer **buffer) {
    return moert_mesh_scratch(mesh, which, moert_ceil_div(bytes, sizeof(float)), buffer);
}

/* ---- quantizing ---- */

static moert_quantizer quantizer_of(moert_format format, moert_axis axis) {
    moert_quantizer how = MOERT_QUANTIZER_INIT;
    how.format = format;
    how.axis = axis;
    return how;
}

static moert_quantize quantize_of(const matrix *source, const moert_quantizer *how,
                                  moert_buffer *amax) {
    return (moert_quantize){.size = sizeof(moert_quantize),
                            .how = *how,
                            .groups = source->groups,
                            .columns = source->columns,
                            .x = source->values,
                            .amax = amax};
}

/* The bytes of payload and scales of a matrix. */
static size_t payload_bytes(const matrix *source, const moert_quantizer *how, size_t *scale_bytes) {
    const moert_groups *groups = &source->groups;
    const moert_quantized_shape shape = moert_quantized_shape_of(
        how, groups->rows, source->columns,
        moert_row_blocks_most(groups->rows, groups->count, moert_format_block(how->format)));
    *scale_bytes = shape.scale_lines * shape.scales * moert_format_scale_bytes(how->format);
    return shape.q_lines * shape.q_bytes;
}

void moert_round_scratch(const moert_layer_sizes *s, size_t floats[MOERT_SCRATCHES]) {
    const moert_layer_options *o = s->options;
    const matrix matrices[] = {{{NULL, s->local, s->rows}, o->hidden, NULL},
                               {{NULL, s->local, s->rows}, o->intermediate, NULL},
                               {{NULL, s->local, s->rows}, 2 * o->intermediate, NULL},
                               {{NULL, s->local, s->local * 2 * o->intermediate}, o->hidden, NULL},
                               {{NULL, s->local, s->local * o->hidden}, o->intermediate, NULL}};
    for (size_t i = 0; s->choices->quantizes && i < 2 * MOERT_COUNT(matrices); i++) {
        const moert_quantizer how =
            quantizer_of(s->choices->format, i % 2 == 0 ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN);
        size_t scale_bytes;
        const size_t bytes = payload_bytes(&matrices[i / 2], &how, &scale_bytes);
        moert_scratch_need(floats, MOERT_SCRATCH_WIRE, moert_ceil_div(bytes, sizeof(float)));
        moert_scratch_need(floats, MOERT_SCRATCH_SCALES,
                           moert_ceil_div(scale_bytes, sizeof(float)));
        moert_scratch_need(floats, MOERT_SCRATCH_GLOBAL, s->local);
        moert_scratch_need(floats, MOERT_SCRATCH_ENDS, s->local);
    }
    if (s->choices->global_scales)
        moert_scratch_need(floats, MOERT_SCRATCH_AMAX, moert_max(s->local, 1));
}

/* Quantizes a matrix to scratch buffers. NVFP4 needs `amax`, of the tensor or of each group. */
static moert_status quantize(moert_mesh *mesh, const matrix *source, const moert_quantizer *how,
                             moert_buffer *amax, moert_quantize *op) {
    size_t scale_bytes;
    const size_t bytes = payload_bytes(source, how, &scale_bytes);
    *op = quantize_of(source, how, amax);
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_WIRE, bytes, &op->q));
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_SCALES, scale_bytes, &op->scale));
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_GLOBAL, source->groups.count, &op->global));
    return moert_quantize_run(op);
}

/* ---- weights ---- */

/* Quantizes weight[L,N,K] for forward or dgrad. Prepacks the values or, where that gains nothing,
 * dequantizes them to a float32 copy. */
static moert_status refresh_use(moert_layer *layer, int block, moert_panels_use use,
                                const matrix *source, size_t n) {
    const moert_layer_choices *c = &layer->choices;
    const size_t experts = layer->local_experts;
    moert_rounded *rounded = &layer->rounded[block];
    moert_mesh *mesh = layer->mesh;
    moert_buffer *amax = NULL;
    moert_quantize op;
    moert_quantizer how =
        quantizer_of(c->format, use == MOERT_PANELS_DGRAD ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW);
    how.group_scales = c->global_scales;
    if (c->global_scales) {
        MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_AMAX, experts, &amax));
        const moert_quantize measured = quantize_of(source, &how, amax);
        MOERT_TRY(moert_quantize_amax(&measured));
    }
    MOERT_TRY(quantize(mesh, source, &how, amax, &op));
    const moert_panels_shape shape = {experts, n, source->columns, use, c->operand};
    if (rounded->panels[use] == NULL)
        MOERT_TRY(moert_panels_create(mesh->device, &shape, &rounded->panels[use]));
    if (rounded->panels[use] != NULL)
        return moert_panels_fill_quantized(
            rounded->panels[use],
            &(moert_quantized){.format = how.format,
                               .axis = how.axis,
                               .q = op.q,
                               .scale = op.scale,
                               .global = c->global_scales ? op.global : NULL});
    const size_t bytes = experts * n * source->columns * sizeof(float);
    MOERT_TRY(moert_buffer_reserve(mesh->device, bytes, &rounded->weight[use]));
    op.x = rounded->weight[use];
    return moert_dequantize_run(&op);
}

static moert_status refresh_weight(moert_layer *layer, int block, size_t n, size_t k) {
    const size_t experts = layer->local_experts;
    matrix source = {
        {NULL, experts, experts * n}, k, layer->block[block]->tensor[EXPERT_WEIGHT].weight};
    moert_buffer *ends;
    MOERT_TRY(reserve_bytes(layer->mesh, MOERT_SCRATCH_ENDS, experts * sizeof(uint32_t), &ends));
    MOERT_TRY(moert_buffer_write_ends(experts, n, ends));
    source.groups.ends = ends;
    const moert_gemm forward = {
        .glu = {.gated = block == BLOCK_EXPERT_IN ? MOERT_GATED : MOERT_UNGATED,
                .form = layer->options.glu}};
    MOERT_TRY(refresh_use(layer, block, moert_panels_use_of(&forward), &source, n));
    return refresh_use(layer, block, MOERT_PANELS_DGRAD, &source, n);
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
    layer->gathers = layer->choices.global_scales ? GATHERS : 0;
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

/* *dense = rows without gaps: copies rows of a window that has gaps to scratch. */
static moert_status close_gaps(const moert_pass *pass, const moert_matrix *rows, size_t count,
                               size_t columns, moert_buffer **dense) {
    *dense = rows->buffer;
    if (rows->stride <= columns)
        return MOERT_OK;
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_GAPLESS, dense));
    return moert_buffer_copy_rows(rows->buffer, rows->stride * sizeof(float), *dense,
                                  columns * sizeof(float), count);
}

/* *amax = the largest magnitude of an operand, over the rows of all ranks, in scratch. Measures the
 * amax unless a GEMM has read the same rows before. */
static moert_status take_amax(moert_pass *pass, const moert_gemm *gemm, const matrix *rows,
                              float *value, moert_buffer **amax) {
    moert_layer *layer = pass->layer;
    const bool known = gemm->kind == MOERT_GEMM_WGRAD ||
                       (gemm->kind == MOERT_GEMM_FORWARD && pass->state == PASS_BACKWARD);
    MOERT_TRY(moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_AMAX, 1, amax));
    if (!known) {
        const moert_quantizer plain = quantizer_of(layer->choices.format, MOERT_AXIS_ROW);
        const moert_quantize measured = quantize_of(rows, &plain, *amax);
        MOERT_TRY(moert_quantize_amax(&measured));
        MOERT_TRY(moert_buffer_read(*amax, 0, value, sizeof *value));
        MOERT_TRY(gather(layer, MOERT_OK, value));
    }
    return moert_buffer_write(*amax, 0, value, sizeof *value);
}

moert_status moert_round_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                              moert_matrix *rows) {
    moert_layer *layer = pass->layer;
    const moert_layer_choices *c = &layer->choices;
    matrix values = {
        {gemm->groups.ends, gemm->groups.count, gemm->groups.rows}, y ? gemm->n : gemm->k, NULL};
    const moert_layer_use use = block == BLOCK_EXPERT_IN ? (y ? MOERT_USE_Y_IN : MOERT_USE_X_IN)
                                                         : (y ? MOERT_USE_Y_OUT : MOERT_USE_X_OUT);
    moert_buffer *target, *amax = NULL;
    moert_quantize op;
    if (!c->quantizes && rows->type == c->operand)
        return MOERT_OK;
    MOERT_TRY(moert_pass_scratch(pass, use, &target));
    MOERT_TRY(close_gaps(pass, rows, values.groups.rows, values.columns, &values.values));
    *rows = (moert_matrix){.buffer = target, .type = c->operand};
    if (!c->quantizes)
        return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, c->operand,
                                            values.groups.rows * values.columns, values.values,
                                            target});
    if (c->global_scales)
        MOERT_TRY(take_amax(pass, gemm, &values, &pass->amax[block][y], &amax));
    const moert_quantizer how = quantizer_of(
        c->format, gemm->kind == MOERT_GEMM_WGRAD ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW);
    MOERT_TRY(quantize(layer->mesh, &values, &how, amax, &op));
    op.x = target;
    op.x_type = c->operand;
    return moert_dequantize_run(&op);
}
