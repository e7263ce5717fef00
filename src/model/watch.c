/* Sums the squares of the residual, and the entropies of the routers. */
#include "model/watch.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "model/internal.h"

struct moert_model_watch {
    moert_run *run;
    size_t columns; /* number of layers + number of MoE layers */
    double *sum;    /* [columns] sums over the step's micro-batches so far */
    double *part;   /* [columns] sums of one micro-batch */
    /* in the step so far: number of tokens without padding; number of elements of one layer's
     * residual */
    double rows, elements;
};

moert_status moert_model_watch_create(moert_run *run, moert_model_watch **watch) {
    moert_model_watch *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->run = run;
    run->watched = true;
    made->columns = run->config->layers + run->model->moe_layers;
    moert_status status;
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->sum, made->columns));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->part, made->columns));
    *watch = made;
    return MOERT_OK;
fail:
    moert_model_watch_destroy(made);
    return status;
}

void moert_model_watch_destroy(moert_model_watch *watch) {
    if (watch == NULL)
        return;
    MOERT_FREE(watch->part, watch->sum, watch);
}

/* Sets the layers' columns of per[sequences, columns] to the sums of squares of the residual. Each
 * pair of a sequence and a layer is one span. */
static moert_status sum_squares(const moert_model_watch *watch, double *per) {
    const moert_run *run = watch->run;
    const size_t layers = run->config->layers, sequences = run->batch.sequences;
    const size_t length = run->length * run->config->hidden;
    moert_square_span *span = NULL;
    moert_squares *squares = NULL;
    double *sum = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_alloc(&span, layers * sequences, sizeof *span));
    MOERT_TRY_OR(done, moert_alloc(&sum, layers * sequences, sizeof *sum));
    for (size_t i = 0; i < layers * sequences; i++)
        span[i] = (moert_square_span){
            {run->layer[i / sequences].out, MOERT_DTYPE_F32, i % sequences * length}, length};
    MOERT_TRY_OR(done, moert_squares_create(run->device, span, layers * sequences, &squares));
    MOERT_TRY_OR(done, moert_squares_sum(squares, sum));
    for (size_t i = 0; i < layers * sequences; i++)
        per[i % sequences * watch->columns + i / sequences] = sum[i];
done:
    moert_squares_destroy(squares);
    MOERT_FREE(sum, span);
    return status;
}

/* Sets the MoE layers' columns of per[sequences, columns] to the sums of the router's entropies. */
static moert_status sum_entropies(const moert_model_watch *watch, double *per) {
    const moert_run *run = watch->run;
    const size_t tokens = run->batch.tokens, count = run->model->moe_layers * tokens;
    float *value;
    MOERT_TRY(moert_alloc(&value, count, sizeof *value));
    const moert_status status =
        moert_buffer_read(run->loss_inputs, moert_model_entropies_at(run) * sizeof *value, value,
                          count * sizeof *value);
    for (size_t i = 0; status == MOERT_OK && i < count; i++)
        per[i % tokens / run->length * watch->columns + run->config->layers + i / tokens] +=
            (double)value[i];
    free(value);
    return status;
}

moert_status moert_model_watch_take(moert_model_watch *watch, bool first) {
    const moert_run *run = watch->run;
    const size_t total = run->batch.total_sequences;
    double *per = NULL;
    moert_phase_set(MOERT_PHASE_LOSS);
    moert_status status = MOERT_NEW_ARRAY(&per, run->batch.sequences * watch->columns);
    if (status == MOERT_OK && run->batch.sequences > 0)
        status = sum_squares(watch, per);
    if (status == MOERT_OK && run->batch.sequences > 0 && run->model->moe_layers > 0)
        status = sum_entropies(watch, per);
    MOERT_TRY_OR(done, moert_comm_agree(run->mesh->world, status));
    MOERT_TRY_OR(done, moert_model_sum_sequences(run, per, watch->columns, watch->part));
    for (size_t i = 0; i < watch->columns; i++)
        watch->sum[i] = (first ? 0.0 : watch->sum[i]) + watch->part[i];
    watch->rows = (first ? 0.0 : watch->rows) + run->rows;
    watch->elements =
        (first ? 0.0 : watch->elements) + (double)(total * run->length * run->config->hidden);
done:
    free(per);
    return status;
}

double moert_model_watch_activation(const moert_model_watch *watch, size_t layer) {
    return sqrt(watch->sum[layer] / watch->elements);
}

double moert_model_watch_entropy(const moert_model_watch *watch, size_t index) {
    return watch->rows > 0.0 ? watch->sum[watch->run->config->layers + index] / watch->rows : 0.0;
}
