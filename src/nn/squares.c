/* Sums of squares in a fixed order. */
#include <stdio.h>
#include <stdlib.h>

#include "args/nn.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

/* A span in the layout of kernels/nn/squares.cl: offset and length in floats, and the index of the
 * span's first chunk. */
typedef struct span_row {
    uint64_t begin, length, chunk;
} span_row;

/* Consecutive spans of one buffer, which one launch sums. */
typedef struct stretch {
    moert_elements x;  /* values of the first span */
    size_t first, end; /* spans [first, end) */
    size_t chunk;      /* number of the first chunk */
    size_t elements;   /* floats of all spans */
    size_t sizes;      /* bitwise or of all offsets and lengths, for MOERT_PROGRAM */
} stretch;

struct moert_squares {
    moert_device *device;
    size_t count, chunks, stretches, sum_bytes; /* bytes of a sum: double, or float on devices
                                                   without fp64 */
    stretch *stretch;                           /* [stretches] */
    moert_buffer *table;                        /* span_row [count + 1]; the last row holds the end
                                                   of the chunks */
    moert_buffer *chunk_sums, *sums;
    void *host_sums; /* room for chunk_sums or sums */
};

/* Fills the stretches and the table. */
static void lay_out(moert_squares *squares, const moert_square_span *span, span_row *table) {
    stretch *at = NULL;
    for (size_t i = 0; i < squares->count; i++) {
        const moert_elements *x = &span[i].x;
        if (at == NULL || at->x.buffer != x->buffer) {
            at = &squares->stretch[squares->stretches++];
            *at = (stretch){.x = *x, .first = i, .chunk = squares->chunks};
        }
        at->end = i + 1;
        at->elements += span[i].length;
        at->sizes |= x->at | span[i].length;
        table[i] = (span_row){x->at, span[i].length, squares->chunks};
        squares->chunks += moert_ceil_div(span[i].length, MOERT_SQUARES_CHUNK);
    }
    table[squares->count].chunk = squares->chunks;
}

static moert_status create_buffers(moert_squares *squares, const span_row *table) {
    const size_t bytes = squares->sum_bytes, rows = squares->count + 1;
    MOERT_TRY(moert_buffer_create(squares->device, rows * sizeof *table, &squares->table));
    MOERT_TRY(moert_buffer_create(squares->device, squares->chunks * bytes, &squares->chunk_sums));
    MOERT_TRY(moert_buffer_create(squares->device, squares->count * bytes, &squares->sums));
    return moert_buffer_write(squares->table, 0, table, rows * sizeof *table);
}

moert_status moert_squares_create(moert_device *device, const moert_square_span *span, size_t count,
                                  moert_squares **squares) {
    const bool wide = moert_device_describe(device)->has_fp64;
    moert_squares *made;
    span_row *table = NULL;
    moert_status status;
    int narrow;
    MOERT_TRY(moert_to_int(count, "tensors of a sum of squares", &narrow));
    MOERT_TRY(MOERT_NEW(&made));
    made->device = device;
    made->count = count;
    made->sum_bytes = wide ? sizeof(double) : sizeof(float);
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->stretch, count));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&table, count + 1));
    lay_out(made, span, table);
    MOERT_TRY_OR(fail,
                 moert_alloc(&made->host_sums, moert_max(count, made->chunks), made->sum_bytes));
    MOERT_TRY_OR(fail, create_buffers(made, table));
    free(table);
    *squares = made;
    return MOERT_OK;
fail:
    free(table);
    moert_squares_destroy(made);
    return status;
}

void moert_squares_destroy(moert_squares *squares) {
    if (squares == NULL)
        return;
    moert_buffer_destroy(squares->sums);
    moert_buffer_destroy(squares->chunk_sums);
    moert_buffer_destroy(squares->table);
    free(squares->host_sums);
    free(squares->stretch);
    free(squares);
}

/* Sums the chunks of [first, end) that belong to a stretch. */
static moert_status sum_stretch(const moert_squares *squares, size_t index, size_t first,
                                size_t end) {
    const stretch *at = &squares->stretch[index];
    const size_t last = index + 1 < squares->stretches ? at[1].chunk : squares->chunks;
    first = moert_max(first, at->chunk);
    end = moert_min(end, last);
    if (first >= end)
        return MOERT_OK;
    const double fraction = (double)(end - first) / (double)(last - at->chunk);
    const bool bf16 = at->x.type == MOERT_DTYPE_BF16;
    char program[64];
    snprintf(program, sizeof program, "%s -DBF16=%d",
             MOERT_PROGRAM(squares->device, "nn/squares", at->sizes), bf16);
    moert_profile_work(squares->device, "nn/squares", 0.0,
                       (double)(bf16 ? sizeof(uint16_t) : sizeof(float)) * fraction *
                           (double)at->elements);
    return MOERT_RUN(squares->device, program, "sum_squares", ((moert_grid){end - first, 1, 1}),
                     MOERT_ARG(at->x.buffer), MOERT_ARG(squares->table),
                     MOERT_ARG(squares->chunk_sums),
                     MOERT_ARGS(moert_squares_args, .first_tensor = (unsigned)at->first,
                                .last = (unsigned)at->end, .first_block = first));
}

size_t moert_squares_chunks(const moert_squares *squares) {
    return squares->chunks;
}

moert_status moert_squares_sum_chunks(moert_squares *squares, size_t first, size_t end) {
    for (size_t i = 0; i < squares->stretches; i++)
        MOERT_TRY(sum_stretch(squares, i, first, end));
    return MOERT_OK;
}

/* out[count] = device sums. */
static moert_status read_sums(moert_squares *squares, const moert_buffer *sums, size_t count,
                              double *out) {
    MOERT_TRY(moert_buffer_read(sums, 0, squares->host_sums, count * squares->sum_bytes));
    for (size_t i = 0; i < count; i++)
        out[i] = squares->sum_bytes == sizeof(double)
                     ? ((const double *)squares->host_sums)[i]
                     : (double)((const float *)squares->host_sums)[i];
    return MOERT_OK;
}

moert_status moert_squares_get_chunks(moert_squares *squares, double *sum) {
    return read_sums(squares, squares->chunk_sums, squares->chunks, sum);
}

moert_status moert_squares_set_chunks(moert_squares *squares, const double *sum) {
    for (size_t i = 0; i < squares->chunks; i++)
        if (squares->sum_bytes == sizeof(double))
            ((double *)squares->host_sums)[i] = sum[i];
        else
            ((float *)squares->host_sums)[i] = (float)sum[i];
    return moert_buffer_write(squares->chunk_sums, 0, squares->host_sums,
                              squares->chunks * squares->sum_bytes);
}

moert_status moert_squares_join(moert_squares *squares, double *sum) {
    MOERT_TRY(MOERT_RUN(squares->device, "nn/squares -DBF16=0", "sum_blocks",
                        ((moert_grid){squares->count, 1, 1}), MOERT_ARG(squares->table),
                        MOERT_ARG(squares->chunk_sums), MOERT_ARG(squares->sums)));
    return read_sums(squares, squares->sums, squares->count, sum);
}

moert_status moert_squares_sum(moert_squares *squares, double *sum) {
    MOERT_TRY(moert_squares_sum_chunks(squares, 0, squares->chunks));
    return moert_squares_join(squares, sum);
}
