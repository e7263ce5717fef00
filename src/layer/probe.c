/* Digests of the experts' rows. */
#include "layer/probe.h"

#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "layer/experts.h"
#include "nn/nn.h"

moert_status moert_probe_create(size_t slots, moert_probe **probe) {
    moert_probe *made;
    MOERT_TRY(MOERT_NEW(&made));
    moert_status status;
    MOERT_TRY_OR(fail, moert_alloc(&made->hash, slots * MOERT_PROBE_POINTS, sizeof *made->hash));
    *probe = made;
    return MOERT_OK;
fail:
    free(made);
    return status;
}

void moert_probe_destroy(moert_probe *probe) {
    if (probe == NULL)
        return;
    MOERT_DESTROY(probe->digests, probe->scratch);
    MOERT_FREE(probe->hash, probe);
}

moert_status moert_plant_bit(const moert_plant *plant, moert_buffer *buffer, size_t at,
                             size_t words) {
    uint32_t word;
    if (words == 0)
        return MOERT_OK;
    const size_t offset = (at + plant->word % words) * sizeof word;
    MOERT_TRY(moert_buffer_read(buffer, offset, &word, sizeof word));
    word ^= UINT32_C(1) << plant->bit;
    return moert_buffer_write(buffer, offset, &word, sizeof word);
}

/* Flips the planted bit if its row is in the part. */
static moert_status plant(const moert_pass *pass, moert_probe_point point,
                          const moert_probe_rows *rows, const moert_row_groups *part) {
    const moert_plant *planted = pass->layer->probe->plant[point];
    const size_t total = pass->plan->plan->rows, words = rows->bytes / sizeof(uint32_t);
    const size_t row = planted != NULL && total > 0 ? planted->word % total : total;
    if (row < part->first_row || row >= part->end_row)
        return MOERT_OK;
    const moert_plant in_row = {planted->word / total, planted->bit};
    return moert_plant_bit(&in_row, rows->rows, row * rows->stride, words);
}

/* Makes room for the digests of the pass's rows. */
static moert_status reserve(moert_probe *probe, const moert_pass *pass) {
    const size_t rows = pass->plan->plan->rows;
    if (rows <= probe->room)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_reserve(pass->layer->mesh->device,
                                   rows * MOERT_PROBE_POINTS * sizeof(uint64_t), &probe->digests));
    probe->room = rows;
    return MOERT_OK;
}

moert_status moert_probe_take(const moert_pass *pass, moert_probe_point point,
                              const moert_probe_rows *rows, const moert_row_groups *part) {
    moert_probe *probe = pass->layer->probe;
    if (probe == NULL || probe->closed[point >= MOERT_PROBE_DY])
        return MOERT_OK;
    MOERT_TRY(plant(pass, point, rows, part));
    if (!probe->takes)
        return MOERT_OK;
    MOERT_TRY(reserve(probe, pass));
    return moert_digest_rows(&(moert_digest){.rows = part->end_row - part->first_row,
                                             .bytes = rows->bytes,
                                             .x = rows->rows,
                                             .stride = rows->stride,
                                             .at = part->first_row * rows->stride,
                                             .digest = probe->digests,
                                             .first = point * probe->room + part->first_row});
}

moert_status moert_probe_take_window(const moert_pass *pass, moert_probe_point point,
                                     const moert_window *window, size_t bytes,
                                     const moert_row_groups *part) {
    const moert_probe_rows rows = {moert_window_rows(window), moert_window_stride(window), bytes};
    return moert_probe_take(pass, point, &rows, part);
}

moert_status moert_probe_take_results(const moert_pass *pass, moert_probe_point point,
                                      const moert_matrix *results, const moert_row_groups *part) {
    const size_t bytes = results->type == MOERT_DTYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
    const moert_probe_rows rows = {results->buffer, results->stride * bytes / sizeof(float),
                                   pass->layer->options.hidden * bytes};
    return moert_probe_take(pass, point, &rows, part);
}

moert_status moert_probe_close(const moert_pass *pass, bool forward) {
    moert_probe *probe = pass->layer->probe;
    const moert_plan *plan = pass->plan->plan;
    const size_t slots = pass->layer->local_experts;
    const int first = forward ? 0 : MOERT_PROBE_DY,
              end = forward ? MOERT_PROBE_DY : MOERT_PROBE_POINTS;
    const size_t floats =
        pass->batch.tokens * pass->layer->options.hidden * moert_dtype_bits(pass->batch.type) / 32;
    uint64_t *digest;
    if (probe == NULL || probe->closed[!forward])
        return MOERT_OK;
    probe->closed[!forward] = true;
    if (!probe->takes)
        return MOERT_OK;
    probe->combined[!forward] = 0;
    MOERT_TRY(
        moert_digest_floats(pass->result, 0, floats, &probe->scratch, &probe->combined[!forward]));
    MOERT_TRY(moert_alloc(&digest, plan->rows, sizeof *digest));
    moert_status status = MOERT_OK;
    for (int p = first; p < end && status == MOERT_OK; p++) {
        if (plan->rows > 0)
            status = moert_buffer_read(probe->digests, (size_t)p * probe->room * sizeof *digest,
                                       digest, plan->rows * sizeof *digest);
        for (size_t s = 0; s < slots; s++) {
            const size_t from = s > 0 ? plan->ends[s - 1] : 0;
            const moert_checksum sum =
                moert_checksum_of(digest + from, (plan->ends[s] - from) * sizeof *digest);
            memcpy(&probe->hash[(size_t)p * slots + s], sum.byte, sizeof *probe->hash);
        }
    }
    free(digest);
    return status;
}
