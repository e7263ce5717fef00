/* Computes losses of held-out and test data. */
#include "train/evaluate.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "base/progress.h"
#include "base/text.h"

/* The losses of each source in the last evaluation of held-out or of test data. */
typedef struct sources {
    moert_scalar *number; /* [count] */
    char **name;          /* [parts] */
    size_t count;
} sources;

struct moert_evaluation {
    moert_evaluation_options options;
    moert_comm *world;
    size_t parts; /* number of sources in the blend, or 0 */
    /* this rank's part of the sequences that the model computes at a time */
    int32_t *input, *target, *positions;
    sources of[MOERT_USES];
};

/* The key of a source's loss in the metrics, such as "heldout_loss/corpus/books". */
static moert_status make_name(moert_use use, const char *source, char **name) {
    char *encoded;
    MOERT_TRY(moert_text_encode(source, &encoded));
    const moert_status status =
        moert_text_path(name, "%s_loss%s%s", use == MOERT_TEST ? "test" : "heldout",
                        encoded[0] == '/' ? "" : "/", encoded);
    free(encoded);
    return status;
}

static moert_status name_sources(moert_evaluation *e, moert_use use) {
    sources *to = &e->of[use];
    MOERT_TRY(moert_alloc(&to->number, e->parts, sizeof *to->number));
    MOERT_TRY(moert_alloc(&to->name, e->parts, sizeof *to->name));
    for (size_t i = 0; i < e->parts; i++) {
        const moert_data_info part = moert_data_describe(moert_data_part(e->options.data, i));
        MOERT_TRY(make_name(use, part.name, &to->name[i]));
    }
    return MOERT_OK;
}

static moert_status create(moert_evaluation *e) {
    const moert_evaluation_options *o = &e->options;
    const size_t room = moert_ceil_div(o->at_once, moert_comm_size(e->world)) * o->length;
    MOERT_TRY(moert_alloc(&e->input, room, sizeof *e->input));
    MOERT_TRY(moert_alloc(&e->target, room, sizeof *e->target));
    MOERT_TRY(moert_alloc(&e->positions, room, sizeof *e->positions));
    MOERT_TRY(name_sources(e, MOERT_HELD_OUT));
    return name_sources(e, MOERT_TEST);
}

moert_status moert_evaluation_create(const moert_evaluation_options *options,
                                     moert_evaluation **evaluation) {
    moert_evaluation *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->options = *options;
    made->world = moert_model_mesh(moert_run_model(options->run))->world;
    made->parts = moert_data_describe(options->data).parts;
    const moert_status status = create(made);
    if (status == MOERT_OK)
        *evaluation = made;
    else
        moert_evaluation_destroy(made);
    return status;
}

void moert_evaluation_destroy(moert_evaluation *evaluation) {
    if (evaluation == NULL)
        return;
    for (size_t use = 0; use < MOERT_USES; use++) {
        sources *of = &evaluation->of[use];
        for (size_t i = 0; of->name != NULL && i < evaluation->parts; i++)
            free(of->name[i]);
        MOERT_FREE(of->number, of->name);
    }
    MOERT_FREE(evaluation->input, evaluation->target, evaluation->positions, evaluation);
}

/* The sum of the cross-entropies of some sequences, and the number of their targets. */
typedef struct sum {
    double loss;
    uint64_t targets;
} sum;

/* Sequences [first, first + count) of the `total` held-out or test sequences of a source. */
typedef struct some {
    const moert_data *data;
    moert_use use;
    size_t first, count, total;
} some;

/* Reads this rank's part of the sequences. *targets = the number of unmasked targets in this
 * part. */
static moert_status read(moert_evaluation *e, const some *from, uint64_t *targets) {
    const moert_evaluation_options *o = &e->options;
    size_t first, count;
    moert_model_partition(from->count, moert_comm_rank(e->world), moert_comm_size(e->world), &first,
                          &count);
    *targets = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t at = i * o->length;
        const moert_kept_draw draw = {from->use, from->first + first + i, from->total};
        MOERT_TRY(moert_data_kept_sequence(from->data, draw, o->length, e->input + at,
                                           e->target + at, e->positions + at));
    }
    for (size_t i = 0; i < count * o->length; i++)
        *targets += e->target[i] >= 0;
    return MOERT_OK;
}

/* Computes the losses of some sequences at once, and adds them to the sum. */
static moert_status add(moert_evaluation *e, const some *from, sum *to) {
    const moert_evaluation_options *o = &e->options;
    const bool divided = moert_data_describe(from->data).divided;
    moert_model_result result;
    uint64_t targets;
    moert_phase_set(MOERT_PHASE_DATA);
    MOERT_TRY(moert_comm_agree(e->world, read(e, from, &targets)));
    const moert_model_batch batch = {.total_sequences = from->count,
                                     .length = o->length,
                                     .input = e->input,
                                     .target = e->target,
                                     .positions = divided ? e->positions : NULL,
                                     .forward_only = true,
                                     .targets = 1}; /* makes the loss a sum over targets */
    MOERT_TRY(moert_run_forward(o->run, &batch));
    MOERT_TRY(moert_run_loss(o->run, &o->losses, 0.0, &result));
    MOERT_TRY(moert_comm_sum(e->world, &targets));
    to->loss += result.cross_entropy;
    to->targets += targets;
    return MOERT_OK;
}

/* Adds the losses of `total` sequences of a source. */
static moert_status add_source(moert_evaluation *e, const moert_data *data, moert_use use,
                               size_t total, sum *to) {
    const size_t most = e->options.at_once;
    for (size_t first = 0; first < total; first += most) {
        const some next = {data, use, first, moert_min(most, total - first), total};
        MOERT_TRY(add(e, &next, to));
        moert_progress_add(next.count);
    }
    return MOERT_OK;
}

static moert_status add_blend(moert_evaluation *e, moert_use use, sum *to) {
    const moert_evaluation_options *o = &e->options;
    sources *of = &e->of[use];
    of->count = 0;
    for (size_t i = 0; i < e->parts; i++) {
        const size_t total = moert_data_part_count(o->data, i, o->sequences);
        sum part = {0};
        MOERT_TRY(add_source(e, moert_data_part(o->data, i), use, total, &part));
        if (part.targets > 0)
            of->number[of->count++] = (moert_scalar){of->name[i], part.loss / (double)part.targets};
        to->loss += part.loss;
        to->targets += part.targets;
    }
    return MOERT_OK;
}

moert_status moert_evaluation_run(moert_evaluation *evaluation, moert_use use, double *loss) {
    const moert_evaluation_options *o = &evaluation->options;
    sum all = {0};
    moert_model_repeat(moert_run_model(o->run),
                       /* no prepacked weights, since copies of all weights would need much
                        * memory */
                       true);
    moert_progress_begin("evaluating sequences", o->sequences);
    const moert_status status = evaluation->parts > 0
                                    ? add_blend(evaluation, use, &all)
                                    : add_source(evaluation, o->data, use, o->sequences, &all);
    moert_progress_end();
    moert_model_repeat(moert_run_model(o->run), false);
    MOERT_TRY(status);
    if (all.targets == 0)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "none of the %zu tokens of the %s data counts as a target; check the "
                          "masks",
                          o->sequences * o->length, use == MOERT_TEST ? "test" : "held-out");
    *loss = all.loss / (double)all.targets;
    return MOERT_OK;
}

size_t moert_evaluation_list(const moert_evaluation *evaluation, moert_use use,
                             const moert_scalar **numbers) {
    *numbers = evaluation->of[use].number;
    return evaluation->of[use].count;
}
