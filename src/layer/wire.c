/* Conversion of rows to and from MXFP8 and bf16 for the exchange, and of results to bf16. */
#include "layer/wire.h"

#include "base/memory.h"
#include "device/buffer.h"
#include "moert/quantize.h"

enum { BF16_PER_FLOAT = sizeof(float) / sizeof(uint16_t) };

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

moert_status moert_wire_pack(moert_pass *pass, const moert_buffer *rows, const moert_buffer *bf16,
                             const moert_buffer **wire_rows) {
    moert_layer *layer = pass->layer;
    const moert_hop *hop = &layer->choices.forth;
    const size_t tokens = pass->batch.tokens;
    const moert_buffer *given = pass->batch.type == MOERT_DTYPE_BF16 ? rows : bf16;
    moert_buffer *payload;
    *wire_rows = rows;
    if (hop->encoding == MOERT_DISPATCH_F32)
        return MOERT_OK;
    if (hop->encoding == MOERT_DISPATCH_BF16 && given != NULL) {
        *wire_rows = given;
        return MOERT_OK;
    }
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_PACKED, &payload));
    *wire_rows = payload;
    if (hop->encoding == MOERT_DISPATCH_BF16)
        return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16,
                                            tokens * layer->options.hidden, rows, payload});
    const moert_quantize op = quantize_of(layer, tokens, hop->width, (moert_buffer *)rows, payload);
    return moert_quantize_run(&op);
}

moert_status moert_wire_target(moert_pass *pass) {
    pass->back.target = pass->result;
    return pass->batch.type == MOERT_DTYPE_F32
               ? MOERT_OK
               : moert_pass_scratch(pass, MOERT_USE_RESULT, &pass->back.target);
}

moert_status moert_wire_round(const moert_pass *pass) {
    if (pass->batch.type == MOERT_DTYPE_F32)
        return MOERT_OK;
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = MOERT_DTYPE_F32,
                                        .to = pass->batch.type,
                                        .n = pass->batch.tokens * pass->layer->options.hidden,
                                        .source = pass->back.target,
                                        .target = pass->result});
}

moert_status moert_wire_unpack(moert_pass *pass, const moert_window *window, moert_matrix *rows) {
    moert_layer *layer = pass->layer;
    const moert_layer_choices *c = &layer->choices;
    const size_t received = pass->plan->plan->rows, hidden = layer->options.hidden,
                 width = moert_window_stride(window);
    moert_buffer *const arrived = moert_window_rows(window);
    const bool bf16 = c->received == MOERT_DTYPE_BF16;
    *rows = (moert_matrix){
        .buffer = arrived, .type = c->received, .stride = bf16 ? width * BF16_PER_FLOAT : width};
    if (bf16 || c->forth.encoding == MOERT_DISPATCH_F32)
        return MOERT_OK;
    moert_quantize op = quantize_of(layer, received, width, NULL, arrived);
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_UNPACKED, &op.x));
    *rows = (moert_matrix){.buffer = op.x, .stride = hidden};
    if (c->forth.encoding == MOERT_DISPATCH_MXFP8)
        return moert_dequantize_run(&op);
    const moert_buffer *payload = arrived;
    if (width * BF16_PER_FLOAT > hidden) { /* the window's rows have gaps */
        moert_buffer *dense;
        MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_GAPLESS_BF16, &dense));
        MOERT_TRY(moert_buffer_copy_rows(arrived, width * sizeof(float), dense,
                                         hidden * sizeof(uint16_t), received));
        payload = dense;
    }
    return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_BF16, MOERT_DTYPE_F32,
                                        received * hidden, payload, op.x});
}

/* Whether ranks push the experts' results to the tokens' ranks (moert_exchange_pushes). Ranks do
 * not push if tokens are so uneven that the largest number of slots of a rank exceeds twice the
 * largest number of rows. The result is the same on all ranks. */
static bool pushes(const moert_pass *pass) {
    const moert_layer *layer = pass->layer;
    const moert_exchange_plan *plan = pass->plan;
    return moert_exchange_pushes(layer->mesh->exchange,
                                 layer->choices.pushes &&
                                     plan->largest_slots <= 2 * plan->plan->largest_rows);
}

moert_status moert_wire_back(moert_pass *pass, bool forward) {
    moert_layer *layer = pass->layer;
    moert_transfer *back = &pass->back;
    const bool rounds = layer->choices.back.encoding == MOERT_DISPATCH_BF16;
    *back = (moert_transfer){.plan = pass->plan,
                             .slot_window = forward && pushes(pass) ? pass->prob : NULL};
    MOERT_TRY(moert_mesh_window(layer->mesh, rounds ? MOERT_WINDOW_BF16 : MOERT_WINDOW_OUT,
                                layer->options.hidden, &back->window));
    return back->slot_window != NULL ? moert_window_reserve_slots(back->window, pass->plan)
                                     : moert_window_reserve(back->window, pass->plan->plan);
}

moert_status moert_wire_choose_output(moert_pass *pass, bool forward, moert_result *result) {
    const moert_transfer *back = &pass->back;
    moert_layer *layer = pass->layer;
    moert_mesh *mesh = layer->mesh;
    const moert_storing *gemm = forward ? &layer->choices.y : &layer->choices.dx;
    const bool bf16 = layer->choices.back.encoding == MOERT_DISPATCH_BF16,
               sent = back->slot_window != NULL;
    const size_t stride = moert_window_stride(back->window) * (bf16 ? BF16_PER_FLOAT : 1);
    moert_buffer **buffer = &result->rows.buffer;
    *result = (moert_result){.rows = {.buffer = moert_window_rows(back->window), .stride = stride}};
    if (!bf16 && !sent)
        return MOERT_OK;
    const bool scatters = gemm->scatters && sent && !moert_exchange_sums(mesh->exchange) &&
                          layer->probe == NULL && !moert_pass_fp8(pass);
    if (!scatters && !gemm->rounds)
        return moert_pass_scratch(pass, MOERT_USE_Y_F32, buffer);
    /* the GEMM rounds its result and stores it to this rank's window, to the windows of all ranks
     * (scatter), or to scratch, from where it is sent */
    result->rows.type = MOERT_DTYPE_BF16;
    if (scatters)
        return moert_exchange_push(mesh->exchange, back, &result->places);
    return sent ? moert_pass_scratch(pass, MOERT_USE_Y_PUSHED, buffer) : MOERT_OK;
}

moert_status moert_wire_return(moert_pass *pass, const moert_result *result) {
    moert_transfer *back = &pass->back;
    moert_mesh *mesh = pass->layer->mesh;
    const size_t floats = pass->plan->plan->rows * moert_window_stride(back->window);
    const bool bf16 = pass->layer->choices.back.encoding == MOERT_DISPATCH_BF16,
               sent = back->slot_window != NULL;
    moert_buffer *rows = result->rows.buffer, *target = moert_window_rows(back->window);
    if (result->places != NULL)
        return MOERT_OK;
    if (bf16 && result->rows.type == MOERT_DTYPE_F32) {
        if (sent)
            MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_Y_BF16, &target));
        MOERT_TRY(
            moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16,
                                         floats * BF16_PER_FLOAT, rows, target}));
        rows = target;
    }
    return sent ? moert_exchange_push_rows(mesh->exchange, back, rows) : MOERT_OK;
}
