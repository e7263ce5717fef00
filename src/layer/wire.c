/* Conversion of rows to and from MXFP8 and bf16 for the exchange, and of results to bf16. */
#include "layer/wire.h"

#include "base/memory.h"
#include "layer/precision.h"
#include "moert/quantize.h"

enum {
    BF16_PER_FLOAT = sizeof(float) / sizeof(uint16_t),
    GRAIN = 8, /* GEMMs that scatter their results need N and K to be multiples of this */
};

size_t moert_wire_bytes(const moert_layer_options *options) {
    const moert_quantizer how = MOERT_QUANTIZER_INIT;
    if (options->dispatch == MOERT_DISPATCH_F32)
        return options->hidden * sizeof(float);
    if (options->dispatch == MOERT_DISPATCH_BF16)
        return options->hidden * sizeof(uint16_t);
    const moert_quantized_shape shape = moert_quantized_shape_of(&how, 1, options->hidden, 0);
    return shape.q_bytes + shape.scales;
}

size_t moert_wire_width(const moert_layer_options *options) {
    return moert_ceil_div(moert_wire_bytes(options), sizeof(float));
}

size_t moert_wire_back_width(const moert_layer_options *options) {
    return options->combine == MOERT_COMBINE_BF16 ? options->hidden / BF16_PER_FLOAT
                                                  : options->hidden;
}

bool moert_wire_takes_chunks(const moert_layer_options *options) {
    const bool plain =
        options->dispatch == MOERT_DISPATCH_F32 && options->precision == MOERT_PRECISION_F32;
    return options->combine == MOERT_COMBINE_F32 && (plain || moert_precision_takes_wire(options));
}

/* A conversion between x[rows,H] and q[rows, payload and scales], with rows of `width` floats
 * in q. */
static moert_quantize quantize_of(const moert_layer *layer, size_t rows, size_t width,
                                  moert_buffer *x, moert_buffer *q) {
    return (moert_quantize){.size = sizeof(moert_quantize),
                            .how = MOERT_QUANTIZER_INIT,
                            .groups = {.rows = rows},
                            .columns = layer->options.hidden,
                            .x = x,
                            .q = q,
                            .row_bytes = width * sizeof(float)};
}

moert_status moert_wire_pack(moert_pass *pass, const moert_buffer *rows,
                             const moert_buffer **wire_rows) {
    moert_layer *layer = pass->layer;
    const size_t tokens = pass->batch.tokens, width = moert_wire_width(&layer->options);
    const moert_buffer *given = pass->batch.type == MOERT_DTYPE_BF16 ? rows : layer->bf16;
    moert_buffer *payload;
    *wire_rows = rows;
    layer->bf16 = NULL;
    if (layer->options.dispatch == MOERT_DISPATCH_F32)
        return MOERT_OK;
    if (layer->options.dispatch == MOERT_DISPATCH_BF16 && given != NULL) {
        *wire_rows = given;
        return MOERT_OK;
    }
    MOERT_TRY(moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_WIRE, tokens * width, &payload));
    *wire_rows = payload;
    if (layer->options.dispatch == MOERT_DISPATCH_BF16)
        return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16,
                                            tokens * layer->options.hidden, rows, payload});
    const moert_quantize op = quantize_of(layer, tokens, width, (moert_buffer *)rows, payload);
    return moert_quantize_run(&op);
}

static size_t token_elements(const moert_pass *pass) {
    return pass->batch.tokens * pass->layer->options.hidden;
}

moert_status moert_wire_target(const moert_pass *pass, moert_buffer *result,
                               moert_buffer **target) {
    *target = result;
    return pass->batch.type == MOERT_DTYPE_F32
               ? MOERT_OK
               : moert_mesh_scratch(pass->layer->mesh, MOERT_SCRATCH_TOKENS, token_elements(pass),
                                    target);
}

moert_status moert_wire_round(const moert_pass *pass, moert_buffer *target, moert_buffer *result) {
    if (pass->batch.type == MOERT_DTYPE_F32)
        return MOERT_OK;
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = MOERT_DTYPE_F32,
                                        .to = pass->batch.type,
                                        .n = token_elements(pass),
                                        .source = target,
                                        .target = result});
}

moert_status moert_wire_unpack(moert_pass *pass, const moert_window *window, moert_buffer **rows,
                               size_t *stride) {
    moert_layer *layer = pass->layer;
    const moert_layer_options *o = &layer->options;
    const size_t received = pass->plan->plan->rows, hidden = o->hidden;
    *rows = moert_window_rows(window);
    *stride = moert_window_stride(window);
    if (o->dispatch == MOERT_DISPATCH_F32)
        return MOERT_OK;
    const size_t width = *stride;
    if (moert_precision_takes_wire(o)) {
        *stride = width * BF16_PER_FLOAT;
        return MOERT_OK;
    }
    moert_quantize op = quantize_of(layer, received, width, NULL, *rows);
    MOERT_TRY(moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_DENSE, received * hidden, &op.x));
    *rows = op.x;
    *stride = hidden;
    if (o->dispatch != MOERT_DISPATCH_BF16)
        return moert_dequantize_run(&op);
    const moert_buffer *payload = op.q;
    if (width * BF16_PER_FLOAT > hidden) { /* the window's rows have gaps */
        moert_buffer *dense;
        MOERT_TRY(moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_WIRE,
                                     received * hidden / BF16_PER_FLOAT, &dense));
        MOERT_TRY(moert_buffer_copy_rows(op.q, width * sizeof(float), dense,
                                         hidden * sizeof(uint16_t), received));
        payload = dense;
    }
    return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_BF16, MOERT_DTYPE_F32,
                                        received * hidden, payload, op.x});
}

/* Whether ranks push the experts' results to the tokens' ranks (moert_exchange_pushes). The GEMM
 * can store them there only if it has bf16 operands and rounds its results. Ranks do not push if
 * tokens are so uneven that the largest number of slots of a rank exceeds twice the largest number
 * of rows. The result is the same on all ranks. */
static bool pushes(const moert_pass *pass) {
    const moert_layer *layer = pass->layer;
    const moert_layer_options *o = &layer->options;
    const moert_exchange_plan *plan = pass->plan;
    const bool gemm_stores =
        o->combine == MOERT_COMBINE_BF16 && !o->expert_biases &&
        (o->hidden | o->intermediate) % GRAIN == 0 &&
        (o->precision == MOERT_PRECISION_BF16 || o->precision == MOERT_PRECISION_MXFP8);
    return moert_exchange_pushes(
        layer->mesh->exchange, gemm_stores && plan->largest_slots <= 2 * plan->plan->largest_rows);
}

moert_status moert_wire_back(moert_pass *pass, bool forward, moert_transfer *back) {
    moert_layer *layer = pass->layer;
    const bool rounds = layer->options.combine == MOERT_COMBINE_BF16;
    *back =
        (moert_transfer){.plan = pass->plan, .cells = forward && pushes(pass) ? pass->prob : NULL};
    MOERT_TRY(moert_mesh_window(layer->mesh, rounds ? MOERT_WINDOW_BF16 : MOERT_WINDOW_OUT,
                                layer->options.hidden, &back->window));
    return back->cells != NULL ? moert_window_reserve_slots(back->window, pass->plan)
                               : moert_window_reserve(back->window, pass->plan->plan);
}

moert_status moert_wire_results(moert_pass *pass, const moert_transfer *back, bool forward,
                                moert_gemm *gemm) {
    moert_layer *layer = pass->layer;
    moert_buffer **rows = forward ? &gemm->y : &gemm->x;
    size_t *stride = forward ? &gemm->ldy : &gemm->ldx;
    *rows = moert_window_rows(back->window);
    *stride = moert_window_stride(back->window);
    const bool bf16 = layer->options.combine == MOERT_COMBINE_BF16, sent = back->cells != NULL;
    if (!bf16 && !sent)
        return MOERT_OK;
    *stride *= bf16 ? BF16_PER_FLOAT : 1;
    /* biases are added after the GEMM */
    const bool biased = forward && layer->options.expert_biases;
    const bool plain = bf16 && !biased, sums = moert_exchange_sums(layer->mesh->exchange);
    const moert_device *device = layer->mesh->device;
    const moert_gemm rounded = moert_precision_operands(layer, gemm);
    const bool scatters =
        plain && sent && !sums && layer->probe == NULL && moert_gemm_scatters(device, &rounded);
    if (!scatters && !(plain && moert_gemm_rounds(device, &rounded)))
        return moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_DENSE,
                                  pass->plan->plan->rows * *stride, rows);
    /* the GEMM rounds its result and stores it to this rank's window, to the windows of all ranks
     * (scatter), or to scratch, from where it is sent */
    gemm->result = MOERT_DTYPE_BF16;
    if (scatters) {
        gemm->scatter.runs = pass->plan->plan->ranks;
        return moert_exchange_push(layer->mesh->exchange, back, &gemm->scatter.places);
    }
    return sent ? moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_ROUNDED_Y,
                                     pass->plan->plan->rows * moert_window_stride(back->window),
                                     rows)
                : MOERT_OK;
}

moert_status moert_wire_return(moert_pass *pass, moert_transfer *back, const moert_gemm *gemm) {
    moert_layer *layer = pass->layer;
    const size_t floats = pass->plan->plan->rows * moert_window_stride(back->window);
    const bool rounded = gemm->result == MOERT_DTYPE_BF16, sent = back->cells != NULL;
    moert_mesh *mesh = layer->mesh;
    moert_buffer *rows = rounded ? gemm->y : mesh->scratch[MOERT_SCRATCH_DENSE];
    moert_buffer *target = moert_window_rows(back->window);
    if (gemm->scatter.places != NULL)
        return MOERT_OK;
    if (layer->options.combine == MOERT_COMBINE_BF16 && !rounded) {
        if (sent)
            MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_WIRE, floats, &target));
        MOERT_TRY(
            moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16,
                                         floats * BF16_PER_FLOAT, rows, target}));
        rows = target;
    }
    return sent ? moert_exchange_push_rows(mesh->exchange, back, rows) : MOERT_OK;
}
