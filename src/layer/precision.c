/* The experts' GEMMs on rounded operands. */
#include "layer/precision.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
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

/* ---- rounding ---- */

static moert_status round_bf16(moert_mesh *mesh, const matrix *source, moert_buffer *target) {
    const size_t n = source->groups.rows * source->columns;
    moert_buffer *codes;
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_CODES, n * sizeof(uint16_t), &codes));
    const moert_cast down = {sizeof down, MOERT_NUMBER_F32, MOERT_NUMBER_BF16,
                             n,           source->values,   codes};
    const moert_cast up = {sizeof up, MOERT_NUMBER_BF16, MOERT_NUMBER_F32, n, codes, target};
    MOERT_TRY(moert_cast_run(&down));
    return moert_cast_run(&up);
}

/* `amax`: of the tensor or the groups, for NVFP4. */
static moert_status round_blocks(moert_mesh *mesh, const matrix *source, const moert_quantizer *how,
                                 moert_buffer *amax, moert_buffer *target) {
    const moert_groups *groups = &source->groups;
    const size_t blocks =
        moert_row_blocks_most(groups->rows, groups->count, moert_format_block(how->format));
    const moert_quantized_shape shape =
        moert_quantized_shape_of(how, groups->rows, source->columns, blocks);
    const size_t scale_bytes =
        shape.scale_lines * shape.scales * moert_format_scale_bytes(how->format);
    moert_quantize op = {.size = sizeof op,
                         .how = *how,
                         .groups = *groups,
                         .columns = source->columns,
                         .x = source->values,
                         .amax = amax};
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_CODES, shape.q_lines * shape.q_bytes, &op.q));
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_SCALES, scale_bytes, &op.scale));
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_GLOBAL, groups->count, &op.global));
    MOERT_TRY(moert_quantize_run(&op));
    op.x = target;
    return moert_dequantize_run(&op);
}

static moert_quantizer quantizer_of(moert_precision precision, moert_axis axis) {
    moert_quantizer how = MOERT_QUANTIZER_INIT;
    how.format = precision == MOERT_PRECISION_NVFP4 ? MOERT_FORMAT_NVFP4 : MOERT_FORMAT_MXFP8_E4M3;
    how.axis = axis;
    return how;
}

/* ---- weights ---- */

/* Copies of weight[L,N,K]: in blocks along K for forward, along N for dgrad; one for both in
 * bf16, which has no blocks. */
static moert_status refresh_weight(moert_layer *layer, int block, size_t n, size_t k) {
    const moert_precision precision = layer->options.precision;
    const moert_block_tensor *weight = &layer->block[block]->tensor[EXPERT_WEIGHT];
    moert_rounded *rounded = &layer->rounded[block];
    moert_mesh *mesh = layer->mesh;
    const size_t experts = layer->local_experts, bytes = weight->elements * sizeof(float);
    matrix source = {{NULL, experts, experts * n}, k, weight->weight};
    moert_buffer *ends, *amax;
    uint32_t *host;
    MOERT_TRY(moert_buffer_reserve(mesh->device, bytes, &rounded->weight[0]));
    if (precision == MOERT_PRECISION_BF16)
        return round_bf16(mesh, &source, rounded->weight[0]);
    MOERT_TRY(moert_buffer_reserve(mesh->device, bytes, &rounded->weight[1]));
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_ENDS, experts * sizeof *host, &ends));
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_AMAX, experts, &amax));
    MOERT_TRY(moert_alloc(&host, experts, sizeof *host));
    for (size_t e = 0; e < experts; e++)
        host[e] = (uint32_t)((e + 1) * n);
    moert_status status = moert_buffer_write(ends, 0, host, experts * sizeof *host);
    free(host);
    MOERT_TRY(status);
    source.groups.ends = ends;
    for (int turned = 0; turned < 2; turned++) {
        moert_quantizer how = quantizer_of(precision, turned ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW);
        how.group_scales = precision == MOERT_PRECISION_NVFP4;
        if (how.group_scales)
            MOERT_TRY(moert_quantize_amax(&(moert_quantize){.size = sizeof(moert_quantize),
                                                            .how = how,
                                                            .groups = source.groups,
                                                            .columns = k,
                                                            .x = source.values,
                                                            .amax = amax}));
        MOERT_TRY(round_blocks(mesh, &source, &how, amax, rounded->weight[turned]));
    }
    return MOERT_OK;
}

moert_status moert_precision_refresh(moert_layer *layer) {
    const size_t hidden = layer->options.hidden, width = layer->options.intermediate;
    if (layer->options.precision == MOERT_PRECISION_F32 || !layer->weights_changed)
        return MOERT_OK;
    MOERT_TRY(refresh_weight(layer, BLOCK_EXPERT_IN, 2 * width, hidden));
    MOERT_TRY(refresh_weight(layer, BLOCK_EXPERT_OUT, hidden, width));
    layer->weights_changed = false;
    return MOERT_OK;
}

void moert_precision_free(moert_layer *layer) {
    for (int i = 0; i < BLOCKS; i++)
        for (int turned = 0; turned < 2; turned++)
            moert_buffer_destroy(layer->rounded[i].weight[turned]);
}

/* ---- activations ---- */

enum { GATHERS = 2 }; /* of x and h, or of dy and dv */

void moert_precision_begin(moert_layer *layer) {
    layer->gathers = layer->options.precision == MOERT_PRECISION_NVFP4 ? GATHERS : 0;
}

/* *amax = the largest of all ranks', NaN if any has one; if any brings a failure, all fail, and
 * this was the pass's last gather. Collective. */
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

moert_status moert_precision_settle(moert_layer *layer, moert_status status) {
    float nothing = 0.0f;
    return status != MOERT_OK && layer->gathers > 0 ? gather(layer, status, &nothing) : status;
}

moert_status moert_precision_tell_replicas(moert_layer *layer, moert_status status) {
    const bool alone = moert_comm_size(layer->mesh->replicas) == 1;
    return alone ? status : moert_precision_settle(layer, status);
}

/* *amax = that of this rank's rows. */
static moert_status measure(moert_mesh *mesh, const matrix *rows, float *amax) {
    moert_buffer *buffer;
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_AMAX, 1, &buffer));
    MOERT_TRY(moert_quantize_amax(
        &(moert_quantize){.size = sizeof(moert_quantize),
                          .how = quantizer_of(MOERT_PRECISION_NVFP4, MOERT_AXIS_ROW),
                          .groups = rows->groups,
                          .columns = rows->columns,
                          .x = rows->values,
                          .amax = buffer}));
    return moert_buffer_read(buffer, 0, amax, sizeof *amax);
}

/* One operand of a GEMM, and where its rounded rows go. */
typedef struct operand {
    moert_buffer **values; /* replaced by the rounded rows ... */
    size_t *stride;        /* ... and 0 */
    size_t columns;
    float *amax;
    bool measured; /* amax is known */
    moert_scratch target;
} operand;

static operand operand_x(moert_layer *layer, int block, moert_gemm *gemm) {
    return (operand){&gemm->x, &gemm->ldx,
                     gemm->k,  &layer->rounded[block].amax_x,
                     false,    MOERT_SCRATCH_ROUNDED_X};
}

static operand operand_y(moert_layer *layer, int block, moert_gemm *gemm) {
    return (operand){&gemm->y, &gemm->ldy,
                     gemm->n,  &layer->rounded[block].amax_y,
                     false,    MOERT_SCRATCH_ROUNDED_Y};
}

static moert_status round_operand(moert_layer *layer, const moert_groups *groups, moert_axis axis,
                                  const operand *o) {
    const moert_precision precision = layer->options.precision;
    moert_mesh *mesh = layer->mesh;
    matrix rows = {*groups, o->columns, *o->values};
    moert_buffer *target, *amax = NULL;
    MOERT_TRY(moert_mesh_scratch(mesh, o->target, groups->rows * o->columns, &target));
    if (*o->stride > o->columns) { /* rows of a window */
        MOERT_TRY(
            moert_mesh_scratch(mesh, MOERT_SCRATCH_DENSE, groups->rows * o->columns, &rows.values));
        MOERT_TRY(moert_buffer_copy_rows(*o->values, *o->stride * sizeof(float), rows.values,
                                         o->columns * sizeof(float), groups->rows));
    }
    if (precision == MOERT_PRECISION_NVFP4) {
        if (!o->measured) {
            MOERT_TRY(measure(mesh, &rows, o->amax));
            MOERT_TRY(gather(layer, MOERT_OK, o->amax));
        }
        MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_AMAX, 1, &amax));
        MOERT_TRY(moert_buffer_write(amax, 0, o->amax, sizeof *o->amax));
    }
    *o->values = target;
    *o->stride = 0;
    if (precision == MOERT_PRECISION_BF16)
        return round_bf16(mesh, &rows, target);
    const moert_quantizer how = quantizer_of(precision, axis);
    return round_blocks(mesh, &rows, &how, amax, target);
}

/* ---- GEMMs ---- */

/* The factors of a forward product, rounded. */
static moert_status round_forward(moert_layer *layer, int block, moert_gemm *gemm) {
    if (layer->options.precision == MOERT_PRECISION_F32)
        return MOERT_OK;
    const operand x = operand_x(layer, block, gemm);
    MOERT_TRY(round_operand(layer, &gemm->groups, MOERT_AXIS_ROW, &x));
    gemm->weight = layer->rounded[block].weight[0];
    return MOERT_OK;
}

moert_status moert_precision_forward(moert_layer *layer, int block, const moert_gemm *gemm) {
    moert_gemm rounded = *gemm;
    MOERT_TRY(round_forward(layer, block, &rounded));
    return moert_gemm_forward(&rounded);
}

moert_status moert_precision_forward_glu(moert_layer *layer, int block,
                                         const moert_gemm_glu *fused) {
    moert_gemm_glu rounded = *fused;
    MOERT_TRY(round_forward(layer, block, &rounded.gemm));
    return moert_gemm_glu_forward(&rounded);
}

moert_status moert_precision_dgrad(moert_layer *layer, int block, const moert_gemm *gemm) {
    if (layer->options.precision == MOERT_PRECISION_F32)
        return moert_gemm_dgrad(gemm);
    const bool blocks = layer->options.precision != MOERT_PRECISION_BF16;
    moert_gemm rounded = *gemm;
    const operand y = operand_y(layer, block, &rounded);
    MOERT_TRY(round_operand(layer, &gemm->groups, MOERT_AXIS_ROW, &y));
    rounded.weight = layer->rounded[block].weight[blocks ? 1 : 0];
    return moert_gemm_dgrad(&rounded);
}

moert_status moert_precision_wgrad(moert_layer *layer, int block, const moert_gemm *gemm) {
    if (layer->options.precision == MOERT_PRECISION_F32)
        return moert_gemm_wgrad(gemm);
    moert_gemm rounded = *gemm;
    operand x = operand_x(layer, block, &rounded), y = operand_y(layer, block, &rounded);
    x.measured = y.measured = true;
    MOERT_TRY(round_operand(layer, &gemm->groups, MOERT_AXIS_COLUMN, &x));
    MOERT_TRY(round_operand(layer, &gemm->groups, MOERT_AXIS_COLUMN, &y));
    return moert_gemm_wgrad(&rounded);
}
