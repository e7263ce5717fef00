/*
 * Any ranks and devices: rows go through host buffers and MPI_Alltoallv.
 *
 * A rank sends its rows sorted by (destination rank, destination row), the plan's slot_position. So
 * what a rank receives from one peer is, expert by expert, one run of consecutive rows of its
 * window. Combine sends the same runs back; they arrive in slot_position order, and the combine
 * kernel of the other engines sums them from there: the same bits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "exchange/internal.h"

/* Host memory that grows as needed and is kept. */
typedef struct moert_block {
    float *data;
    size_t floats;
} moert_block;

/* Packed rows on their way, and in the device's layout. */
typedef struct moert_mail {
    moert_block send, receive, image;
} moert_mail;

typedef struct moert_stage {
    moert_mail rows, slots;
    moert_buffer *arrived; /* combine: the packed rows at the window's stride, on the device */
} moert_stage;

static moert_status reserve_block(moert_block *block, size_t floats) {
    if (block->data != NULL && block->floats >= floats)
        return MOERT_OK;
    float *data;
    MOERT_TRY(moert_alloc(&data, floats + floats / 4, sizeof *data));
    free(block->data);
    *block = (moert_block){data, floats + floats / 4};
    return MOERT_OK;
}

static size_t total(const size_t *rows, size_t ranks) {
    size_t sum = 0;
    for (size_t r = 0; r < ranks; r++)
        sum += rows[r];
    return sum;
}

static moert_status reserve_mail(moert_mail *mail, size_t send_rows, size_t receive_rows,
                                 size_t image_rows, size_t width, size_t stride) {
    MOERT_TRY(reserve_block(&mail->send, send_rows * width));
    MOERT_TRY(reserve_block(&mail->receive, receive_rows * width));
    return reserve_block(&mail->image, image_rows * stride);
}

/* Copies rows of `width` floats between layouts; `pad` zeroes the rest of each target row. */
static void copy_rows(float *target, size_t target_stride, const float *source,
                      size_t source_stride, size_t width, size_t rows, bool pad) {
    for (size_t i = 0; i < rows; i++) {
        memcpy(target + i * target_stride, source + i * source_stride, width * sizeof *target);
        if (pad)
            memset(target + i * target_stride + width, 0, (target_stride - width) * sizeof *target);
    }
}

/* Walks the runs of received rows, `packed` [M,width], against the window's `image` [M,stride]. */
static void copy_runs(const moert_plan *plan, float *packed, float *image, size_t width,
                      size_t stride, bool to_image) {
    for (size_t r = 0; r < plan->ranks; r++) {
        for (size_t i = 0; i < plan->local_experts; i++) {
            const uint64_t *counts = plan->counts + plan->first_expert + i;
            size_t row = i > 0 ? plan->ends[i - 1] : 0, rows = counts[r * plan->experts];
            for (size_t lower = 0; lower < r; lower++)
                row += counts[lower * plan->experts];
            if (to_image)
                copy_rows(image + row * stride, stride, packed, width, width, rows, true);
            else
                copy_rows(packed, width, image + row * stride, stride, width, rows, false);
            packed += rows * width;
        }
    }
}

/* ---- dispatch ---- */

/* Packs source[T * K / slots_per_row, width], of which slot s takes row s / slots_per_row. */
static moert_status pack_source(const moert_plan *plan, const moert_buffer *source,
                                size_t slots_per_row, const moert_window *window,
                                moert_mail *mail) {
    size_t slots = plan->tokens * plan->topk, width = window->width;
    size_t rows = slots_per_row > 0 ? slots / slots_per_row : 0;
    MOERT_TRY(reserve_mail(mail, total(plan->send_rows, plan->ranks), plan->rows,
                           moert_max(moert_max(rows, plan->rows), 1), width, window->stride));
    if (rows > 0)
        MOERT_TRY(moert_buffer_read(source, 0, mail->image.data, rows * width * sizeof(float)));
    for (size_t s = 0; s < slots; s++)
        if (plan->slot_rank[s] != MOERT_PLAN_DROPPED)
            memcpy(mail->send.data + plan->slot_position[s] * width,
                   mail->image.data + s / slots_per_row * width, width * sizeof(float));
    return MOERT_OK;
}

static moert_status place_received(const moert_plan *plan, const moert_window *window,
                                   moert_mail *mail) {
    copy_runs(plan, mail->receive.data, mail->image.data, window->width, window->stride, true);
    return moert_buffer_write(window->storage.rows, 0, mail->image.data,
                              plan->rows * window->stride * sizeof(float));
}

/* Packed rows of `width` floats to their owners. */
static moert_status send_mail(moert_exchange *exchange, const moert_plan *plan,
                              const moert_mail *mail, size_t width) {
    moert_exchange_count(exchange, plan, width);
    return moert_comm_alltoallv(exchange->comm, mail->send.data, plan->send_rows,
                                mail->receive.data, plan->receive_rows, width * sizeof(float));
}

static moert_status dispatch_staged(moert_exchange *exchange, const moert_move *move,
                                    moert_status status) {
    moert_stage *stage = exchange->state;
    const moert_plan *plan = move->plan->plan;
    const bool slots = move->slots != NULL;
    if (status == MOERT_OK)
        status = pack_source(plan, move->source, plan->topk, move->window, &stage->rows);
    if (status == MOERT_OK && slots)
        status = pack_source(plan, move->slot_source, 1, move->slots, &stage->slots);
    MOERT_TRY(moert_comm_agree(exchange->comm, status));
    MOERT_TRY(send_mail(exchange, plan, &stage->rows, move->window->width));
    if (slots)
        MOERT_TRY(send_mail(exchange, plan, &stage->slots, move->slots->width));
    status = place_received(plan, move->window, &stage->rows);
    if (status == MOERT_OK && slots)
        status = place_received(plan, move->slots, &stage->slots);
    return moert_comm_agree(exchange->comm, status);
}

/* ---- combine ---- */

/* Packs the window's rows for the ranks that they came from. */
static moert_status pack_window(const moert_plan *plan, const moert_window *window,
                                moert_mail *mail) {
    size_t back = total(plan->send_rows, plan->ranks);
    MOERT_TRY(reserve_mail(mail, plan->rows, back, moert_max(moert_max(back, plan->rows), 1),
                           window->width, window->stride));
    if (plan->rows > 0)
        MOERT_TRY(moert_buffer_read(window->storage.rows, 0, mail->image.data,
                                    plan->rows * window->stride * sizeof(float)));
    copy_runs(plan, mail->send.data, mail->image.data, window->width, window->stride, false);
    return MOERT_OK;
}

/* The rows that came back, summed by the kernel. */
static moert_status sum_received(moert_exchange *exchange, const moert_move *move) {
    moert_stage *stage = exchange->state;
    const moert_window *window = move->window;
    const moert_plan *plan = move->plan->plan;
    size_t rows = total(plan->send_rows, plan->ranks);
    size_t bytes = rows * window->stride * sizeof(float);
    copy_rows(stage->rows.image.data, window->stride, stage->rows.receive.data, window->width,
              window->width, rows, true);
    MOERT_TRY(moert_buffer_reserve(exchange->device, bytes, &stage->arrived));
    MOERT_TRY(moert_buffer_write(stage->arrived, 0, stage->rows.image.data, bytes));
    return moert_kernel_combine_rows(exchange, move, false, stage->arrived, move->plan->packed);
}

static moert_status place_slots(const moert_move *move, moert_mail *mail) {
    const moert_plan *plan = move->plan->plan;
    size_t slots = plan->tokens * plan->topk;
    MOERT_TRY(reserve_block(&mail->image, slots));
    for (size_t s = 0; s < slots; s++)
        mail->image.data[s] = plan->slot_rank[s] != MOERT_PLAN_DROPPED
                                  ? mail->receive.data[plan->slot_position[s]]
                                  : 0.0f;
    return moert_buffer_write(move->slot_target, 0, mail->image.data, slots * sizeof(float));
}

static moert_status combine_staged(moert_exchange *exchange, const moert_move *move,
                                   moert_status status) {
    moert_stage *stage = exchange->state;
    const moert_plan *plan = move->plan->plan;
    const bool slots = move->slots != NULL;
    if (status == MOERT_OK)
        status = pack_window(plan, move->window, &stage->rows);
    if (status == MOERT_OK && slots)
        status = pack_window(plan, move->slots, &stage->slots);
    MOERT_TRY(moert_comm_agree(exchange->comm, status));
    MOERT_TRY(moert_comm_alltoallv(exchange->comm, stage->rows.send.data, plan->receive_rows,
                                   stage->rows.receive.data, plan->send_rows,
                                   move->window->width * sizeof(float)));
    if (slots)
        MOERT_TRY(moert_comm_alltoallv(exchange->comm, stage->slots.send.data, plan->receive_rows,
                                       stage->slots.receive.data, plan->send_rows, sizeof(float)));
    status = sum_received(exchange, move);
    if (status == MOERT_OK && slots)
        status = place_slots(move, &stage->slots);
    return moert_comm_agree(exchange->comm, status);
}

/* ---- the engine ---- */

static void open_staged(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_stage *stage = NULL;
    if (MOERT_NEW(&stage) != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    moert_exchange_share_reason(exchange->comm, reason);
    exchange->state = stage;
    if (reason[0] != '\0')
        free(stage);
}

static void free_mail(moert_mail *mail) {
    free(mail->send.data);
    free(mail->receive.data);
    free(mail->image.data);
}

static void close_staged(moert_exchange *exchange) {
    moert_stage *stage = exchange->state;
    free_mail(&stage->rows);
    free_mail(&stage->slots);
    moert_buffer_destroy(stage->arrived);
    free(stage);
}

static moert_status allocate_staged(const moert_window *window, size_t rows,
                                    moert_storage *storage) {
    return moert_buffer_create(window->exchange->device, rows * window->stride * sizeof(float),
                               &storage->rows);
}

const moert_engine moert_engine_staged = {
    .name = "staged",
    .packs = true,
    .open = open_staged,
    .close = close_staged,
    .allocate = allocate_staged,
    .dispatch = dispatch_staged,
    .combine = combine_staged,
};
