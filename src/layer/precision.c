/* The experts' GEMMs on rounded operands. */
#include "layer/precision.h"

#include <math.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "layer/clones.h"
#include "layer/operand.h"
#include "layer/wire.h"
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

/* ---- recipes ---- */

/* Whether the precision has scales per block. bf16 has none: its GEMMs round the weights, and
 * moert_prepacks prepacks them when that pays. */
static bool has_blocks(const moert_layer *layer) {
    return layer->options.precision >= MOERT_PRECISION_MXFP8;
}

/* The operands' dtype. bf16 represents an E4M3 value times a power of two exactly, unless the
 * result is below 2^-126. NVFP4 needs float32, since its global scales are not powers of two. */
static moert_dtype operand_type(const moert_layer *layer) {
    const moert_precision precision = layer->options.precision;
    return precision == MOERT_PRECISION_BF16 || precision == MOERT_PRECISION_MXFP8
               ? MOERT_DTYPE_BF16
               : MOERT_DTYPE_F32;
}

moert_dtype moert_precision_h_type(const moert_layer *layer) {
    return layer->options.precision == MOERT_PRECISION_BF16 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
}

moert_dtype moert_precision_between(const moert_device *device, const moert_layer_options *options,
                                    size_t experts) {
    const bool rounds = options->precision == MOERT_PRECISION_BF16 && !options->expert_biases;
    return moert_operand_between(device, rounds ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32, experts,
                                 options->hidden, options->intermediate);
}

moert_dtype moert_precision_v_type(const moert_layer *layer) {
    return moert_precision_between(layer->mesh->device, &layer->options, layer->local_experts);
}

moert_dtype moert_precision_dv_type(const moert_layer *layer) {
    if (layer->options.expert_biases)
        return MOERT_DTYPE_F32;
    return layer->options.deferred_wgrad ? moert_precision_v_type(layer)
                                         : moert_precision_h_type(layer);
}

static moert_quantizer quantizer_of(moert_precision precision, moert_axis axis) {
    moert_quantizer how = MOERT_QUANTIZER_INIT;
    how.format = precision == MOERT_PRECISION_NVFP4 ? MOERT_FORMAT_NVFP4 : MOERT_FORMAT_MXFP8_E4M3;
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

/* Quantizes a matrix to scratch buffers. NVFP4 needs `amax`, of the tensor or of each group. */
static moert_status quantize(moert_mesh *mesh, const matrix *source, const moert_quantizer *how,
                             moert_buffer *amax, moert_quantize *op) {
    const moert_groups *groups = &source->groups;
    const size_t blocks =
        moert_row_blocks_most(groups->rows, groups->count, moert_format_block(how->format));
    const moert_quantized_shape shape =
        moert_quantized_shape_of(how, groups->rows, source->columns, blocks);
    const size_t scale_bytes =
        shape.scale_lines * shape.scales * moert_format_scale_bytes(how->format);
    *op = quantize_of(source, how, amax);
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_WIRE, shape.q_lines * shape.q_bytes, &op->q));
    MOERT_TRY(reserve_bytes(mesh, MOERT_SCRATCH_SCALES, scale_bytes, &op->scale));
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_GLOBAL, groups->count, &op->global));
    return moert_quantize_run(op);
}

/* ---- weights ---- */

/* Quantizes weight[L,N,K] for a use, and prepacks its values or, where that gains nothing,
 * dequantizes them to a float32 copy. */
static moert_status refresh_use(moert_layer *layer, int block, moert_prepacked_use use,
                                const matrix *source, size_t n) {
    const moert_precision precision = layer->options.precision;
    const bool nvfp4 = precision == MOERT_PRECISION_NVFP4;
    const size_t experts = layer->local_experts;
    moert_rounded *rounded = &layer->rounded[block];
    moert_mesh *mesh = layer->mesh;
    moert_buffer *amax = NULL;
    moert_quantize op;
    moert_quantizer how =
        quantizer_of(precision, use == MOERT_PREPACKED_DGRAD ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW);
    how.group_scales = nvfp4;
    if (nvfp4) {
        MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_AMAX, experts, &amax));
        const moert_quantize measured = quantize_of(source, &how, amax);
        MOERT_TRY(moert_quantize_amax(&measured));
    }
    MOERT_TRY(quantize(mesh, source, &how, amax, &op));
    const moert_prepacked_shape shape = {experts, n, source->columns, use, operand_type(layer)};
    if (rounded->prepacked[use] == NULL)
        MOERT_TRY(moert_prepacked_create(mesh->device, &shape, &rounded->prepacked[use]));
    if (rounded->prepacked[use] != NULL)
        return moert_prepacked_fill_quantized(
            rounded->prepacked[use], &(moert_quantized){.format = how.format,
                                                        .axis = how.axis,
                                                        .q = op.q,
                                                        .scale = op.scale,
                                                        .global = nvfp4 ? op.global : NULL});
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
    const moert_gemm forward = {.gated = block == BLOCK_EXPERT_IN, .glu.form = layer->options.glu};
    MOERT_TRY(refresh_use(layer, block, moert_prepacked_use_of(&forward), &source, n));
    return refresh_use(layer, block, MOERT_PREPACKED_DGRAD, &source, n);
}

moert_status moert_precision_refresh(moert_layer *layer) {
    const size_t hidden = layer->options.hidden, width = layer->options.intermediate;
    if (!has_blocks(layer) || !layer->weights_changed)
        return MOERT_OK;
    MOERT_TRY(refresh_weight(layer, BLOCK_EXPERT_IN, 2 * width, hidden));
    MOERT_TRY(refresh_weight(layer, BLOCK_EXPERT_OUT, hidden, width));
    layer->weights_changed = false;
    return MOERT_OK;
}

void moert_precision_free(moert_layer *layer) {
    for (int i = 0; i < BLOCKS; i++)
        for (size_t use = 0; use < MOERT_PREPACKED_USES; use++) {
            moert_prepacked_destroy(layer->rounded[i].prepacked[use]);
            moert_buffer_destroy(layer->rounded[i].weight[use]);
        }
}

/* ---- activations ---- */

enum { GATHERS = 2 }; /* per pass: the amax of x and of h, or of dy and of dv */

void moert_precision_begin(moert_layer *layer) {
    layer->gathers = layer->options.precision == MOERT_PRECISION_NVFP4 ? GATHERS : 0;
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

moert_status moert_precision_settle(moert_layer *layer, moert_status status) {
    float nothing = 0.0f;
    return status != MOERT_OK && layer->gathers > 0 ? gather(layer, status, &nothing) : status;
}

moert_status moert_precision_tell_replicas(moert_layer *layer, moert_status status) {
    return moert_comm_size(layer->mesh->replicas) == 1 ? status
                                                       : moert_precision_settle(layer, status);
}

/* One operand of a GEMM and the scratch buffer of its rounded rows. */
typedef struct operand {
    moert_buffer **values; /* a field of the GEMM; rounding sets it to the rounded rows */
    size_t *stride;        /* a field of the GEMM; rounding sets it to 0 (dense) */
    size_t columns;
    float *amax;
    bool measured; /* `amax` is known already */
    bool rounded;  /* the rows are rounded already */
    moert_scratch target;
} operand;

/* Operand x or y of a GEMM. Rows that dispatch delivered, h and dv may be bf16 already. */
static operand operand_of(moert_pass *pass, int block, bool y, moert_gemm *gemm) {
    moert_layer *layer = pass->layer;
    const bool received = block == (y ? BLOCK_EXPERT_OUT : BLOCK_EXPERT_IN);
    const moert_dtype own = y ? moert_precision_dv_type(layer) : moert_precision_h_type(layer);
    return (operand){.values = y ? &gemm->y : &gemm->x,
                     .stride = y ? &gemm->ldy : &gemm->ldx,
                     .columns = y ? gemm->n : gemm->k,
                     .amax = &pass->amax[block][y],
                     .measured = gemm->kind == MOERT_GEMM_WGRAD ||
                                 (gemm->kind == MOERT_GEMM_FORWARD && pass->again),
                     .rounded = received ? moert_precision_takes_wire(&layer->options)
                                         : own != MOERT_DTYPE_F32,
                     .target = y ? MOERT_SCRATCH_ROUNDED_Y : MOERT_SCRATCH_ROUNDED_X};
}

/* Sets rows->values to rows without gaps: copies rows of a window that has gaps to scratch. */
static moert_status close_gaps(moert_mesh *mesh, const operand *o, matrix *rows) {
    const size_t row_bytes = o->columns * sizeof(float), count = rows->groups.rows;
    if (*o->stride <= o->columns)
        return MOERT_OK;
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_DENSE, count * o->columns, &rows->values));
    return moert_buffer_copy_rows(*o->values, *o->stride * sizeof(float), rows->values, row_bytes,
                                  count);
}

static moert_status round_operand(moert_layer *layer, const moert_groups *groups, moert_axis axis,
                                  const operand *o) {
    const moert_precision precision = layer->options.precision;
    const moert_dtype type = operand_type(layer);
    const size_t n = groups->rows * o->columns;
    moert_mesh *mesh = layer->mesh;
    matrix rows = {*groups, o->columns, *o->values};
    moert_buffer *target, *amax = NULL;
    moert_quantize op;
    if (o->rounded)
        return MOERT_OK;
    MOERT_TRY(reserve_bytes(mesh, o->target, n * moert_dtype_bits(type) / 8, &target));
    MOERT_TRY(close_gaps(mesh, o, &rows));
    *o->values = target;
    *o->stride = 0;
    if (precision == MOERT_PRECISION_BF16)
        return moert_cast_run(
            &(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, type, n, rows.values, target});
    if (precision == MOERT_PRECISION_NVFP4) {
        MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_AMAX, 1, &amax));
        if (!o->measured) { /* the amax of this rank's rows, then that of all ranks' rows */
            const moert_quantizer plain = quantizer_of(precision, MOERT_AXIS_ROW);
            const moert_quantize measured = quantize_of(&rows, &plain, amax);
            MOERT_TRY(moert_quantize_amax(&measured));
            MOERT_TRY(moert_buffer_read(amax, 0, o->amax, sizeof *o->amax));
            MOERT_TRY(gather(layer, MOERT_OK, o->amax));
        }
        MOERT_TRY(moert_buffer_write(amax, 0, o->amax, sizeof *o->amax));
    }
    const moert_quantizer how = quantizer_of(precision, axis);
    MOERT_TRY(quantize(mesh, &rows, &how, amax, &op));
    op.x = target;
    op.x_type = type;
    return moert_dequantize_run(&op);
}

/* ---- GEMMs ---- */

moert_status moert_precision_gemm(moert_pass *pass, int block, const moert_gemm *gemm) {
    moert_layer *layer = pass->layer;
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD, has_x = gemm->kind != MOERT_GEMM_DGRAD;
    const bool rounds = layer->options.precision != MOERT_PRECISION_F32;
    const moert_axis axis = wgrad ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW;
    const moert_rounded *own = &layer->rounded[block];
    moert_gemm rounded = *gemm;
    const operand x = operand_of(pass, block, false, &rounded),
                  y = operand_of(pass, block, true, &rounded);
    rounded.type = operand_type(layer);
    moert_status status = MOERT_OK;
    if (rounds && has_x)
        status = round_operand(layer, &gemm->groups, axis, &x);
    if (status == MOERT_OK && rounds && (wgrad || !has_x))
        status = round_operand(layer, &gemm->groups, axis, &y);
    if (wgrad)
        return moert_clones_gemm(pass, &rounded, status);
    MOERT_TRY(status);
    if (!has_blocks(layer))
        return moert_block_gemm(layer->block[block], EXPERT_WEIGHT, &rounded);
    rounded.prepacked = own->prepacked[moert_prepacked_use_of(gemm)];
    rounded.weight =
        rounded.prepacked != NULL ? gemm->weight : own->weight[moert_prepacked_use_of(gemm)];
    return moert_gemm_run(&rounded);
}

moert_gemm moert_precision_operands(const moert_layer *layer, const moert_gemm *gemm) {
    moert_gemm rounded = *gemm;
    rounded.type = operand_type(layer);
    return rounded;
}

bool moert_precision_takes_wire(const moert_layer_options *options) {
    return options->dispatch == MOERT_DISPATCH_BF16 && options->precision == MOERT_PRECISION_BF16 &&
           !options->expert_biases;
}
