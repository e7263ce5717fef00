/* Messages and the barrier of the node engine (see node.h). */
#include <stdatomic.h>

#include "base/phase.h"
#include "exchange/node/node.h"

size_t moert_node_packed_bytes(const moert_packed_sizes *s) {
    const size_t wide = moert_window_stride_of(moert_max(s->forth, s->back));
    return moert_staging_room(s->rows * wide * sizeof(float)) +
           moert_staging_room(s->slots * sizeof(float)) +
           moert_staging_room(s->slots * (wide + MOERT_SLOT_STRIDE) * sizeof(float));
}

moert_status moert_node_message_reserve(moert_device *device, size_t rows_out, size_t rows_in,
                                        size_t width, moert_node_message *message) {
    MOERT_TRY(moert_staging_reserve(device, rows_out * width * sizeof(float), &message->out));
    return moert_staging_reserve(device, rows_in * width * sizeof(float), &message->in);
}

void moert_node_message_free(moert_node_message *message) {
    moert_staging_destroy(message->out);
    moert_staging_destroy(message->in);
    moert_buffer_destroy(message->addresses);
}

moert_status moert_node_post(moert_exchange *exchange, int tag, const moert_node_rows *rows,
                             size_t row_bytes) {
    const moert_node *node = exchange->state;
    const moert_mail_rows from = {rows->out, row_bytes, row_bytes};
    const moert_mail_rows to = {rows->in, row_bytes, row_bytes};
    moert_mail_run sent = {0, 0}, received = {0, 0};
    for (size_t r = 0; r < exchange->relay_map->ranks; r++) {
        received = (moert_mail_run){received.first + received.count, rows->receive[r]};
        sent = (moert_mail_run){sent.first + sent.count, rows->send[r]};
        MOERT_TRY(moert_mail_post_apart(node->mail, (moert_mail_address){false, r, tag, 0}, &to,
                                        received));
        MOERT_TRY(
            moert_mail_post_apart(node->mail, (moert_mail_address){true, r, tag, 0}, &from, sent));
    }
    return MOERT_OK;
}

moert_status moert_node_message_post(moert_exchange *exchange, int tag,
                                     const moert_node_message *message, const size_t *send_rows,
                                     const size_t *receive_rows, size_t width) {
    const moert_node_rows rows = {moert_staging_host(message->out), moert_staging_host(message->in),
                                  send_rows, receive_rows};
    return moert_node_post(exchange, tag, &rows, width * sizeof(float));
}

moert_status moert_node_await(moert_exchange *exchange) {
    const moert_node *node = exchange->state;
    moert_phase_wait_begin();
    const moert_status status = moert_mail_await_all(node->mail);
    moert_phase_wait_end();
    return status;
}

moert_status moert_node_barrier(moert_comm *comm, moert_status status) {
    atomic_thread_fence(memory_order_seq_cst);
    MOERT_TRY(moert_comm_agree(comm, status));
    atomic_thread_fence(memory_order_seq_cst);
    return MOERT_OK;
}

moert_status moert_node_message_pack(moert_exchange *exchange, const moert_relay *relay,
                                     const moert_buffer *source, size_t width,
                                     moert_node_message *message) {
    MOERT_TRY(moert_node_message_reserve(exchange->device, relay->rows_out, relay->rows_in, width,
                                         message));
    return moert_kernel_gather(exchange->device,
                               &(moert_gather){.window = source,
                                               .from = relay->source.buffer,
                                               .rows = relay->rows_out,
                                               .width = width,
                                               .stride = width,
                                               .packed = moert_staging_buffer(message->out)});
}
