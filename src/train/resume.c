/* Where a run begins: at a checkpoint, or anew. */
#include "train/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"

/* The newest checkpoint of a run's folder, to be freed; NULL if it has none. */
static moert_status find_latest(const char *out, char **path) {
    char *folder;
    MOERT_TRY(moert_text_path(&folder, "%s/checkpoints", out));
    const moert_status status = moert_checkpoint_latest(folder, path);
    free(folder);
    return status;
}

/* X(what a message calls it, its value): what the shapes of its tensors do not say. */
#define MODEL_TABLE(X, c)                                                                          \
    X("num_hidden_layers", (c)->layers)                                                            \
    X("tied embeddings", (c)->tied_embeddings)                                                     \
    X("num_attention_heads", (c)->heads)                                                           \
    X("num_key_value_heads", (c)->kv_heads)                                                        \
    X("head_dim", (c)->head_size)                                                                  \
    X("num_experts_per_tok", (c)->router.topk)                                                     \
    X("rms_norm_eps", (c)->norm_epsilon)                                                           \
    X("rope_theta", (c)->rope_theta)                                                               \
    X("normalised routing weights", (c)->router.renormalise)                                       \
    X("routing scale", (c)->router.scale)

/* The model of a checkpoint must be the run's. */
static moert_status check_model(const moert_trainer *t, const char *path) {
    moert_model_config saved;
    const moert_model_config *given = moert_model_describe(t->model);
    MOERT_TRY(moert_model_config_read(path, &saved));
#define MODEL_NAME(what, value)  what,
#define MODEL_VALUE(what, value) (double)(value),
    const char *const names[] = {MODEL_TABLE(MODEL_NAME, given)};
    const double before[] = {MODEL_TABLE(MODEL_VALUE, &saved)};
    const double now[] = {MODEL_TABLE(MODEL_VALUE, given)};
#undef MODEL_VALUE
#undef MODEL_NAME
    moert_model_config_free(&saved);
    for (size_t i = 0; i < MOERT_COUNT(now); i++)
        if (before[i] != now[i])
            return MOERT_FAIL(ERROR_MISMATCH, "%s was made with %s %g, this run has %g", path,
                              names[i], before[i], now[i]);
    return MOERT_OK;
}

static moert_status check_state(const moert_trainer *t, const char *path,
                                const moert_run_state *s) {
    const moert_trainer_options *o = t->options;
    const struct {
        const char *what;
        uint64_t saved, given;
    } rows[] = {{"seed", s->seed, o->seed},
                {"batch", s->batch, o->batch},
                {"sequence length", s->length, o->length}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        if (rows[i].saved != rows[i].given)
            return MOERT_FAIL(ERROR_MISMATCH, "%s was made with %s %llu, this run has %llu", path,
                              rows[i].what, (unsigned long long)rows[i].saved,
                              (unsigned long long)rows[i].given);
    MOERT_TRY(check_model(t, path));
    if (s->data_tokens != t->state.data_tokens && t->first)
        MOERT_WARN("%s was made on data of %llu tokens, this data has %llu", path,
                   (unsigned long long)s->data_tokens, (unsigned long long)t->state.data_tokens);
    return MOERT_OK;
}

/* The checkpoint to start from, to be freed; NULL for a fresh start. Rank 0 looks, all ranks get
 * its answer. */
static moert_status find_checkpoint(moert_trainer *t, char **path) {
    const moert_trainer_options *o = t->options;
    *path = NULL;
    if (o->resume == NULL)
        return MOERT_OK;
    if (strcmp(o->resume, "auto") != 0)
        return moert_text_path(path, "%s", o->resume);
    MOERT_TRY(moert_comm_agree(t->world, t->first ? find_latest(o->out, path) : MOERT_OK));
    uint64_t length = *path != NULL ? strlen(*path) + 1 : 0;
    MOERT_TRY(moert_comm_broadcast(t->world, 0, &length, sizeof length));
    if (length == 0)
        return MOERT_OK;
    if (*path == NULL)
        MOERT_TRY(moert_alloc(path, length, 1));
    return moert_comm_broadcast(t->world, 0, *path, length);
}

/* Whether two checkpoints lie in one folder. */
static bool are_beside(const char *one, const char *other) {
    char *a = moert_text_format("%s/..", one), *b = moert_text_format("%s/..", other);
    const bool beside = a != NULL && b != NULL && moert_same_place(a, b);
    MOERT_FREE(a, b);
    return beside;
}

/* A run would remove the checkpoints of another one in its folder step by step: `from`, where it
 * begins, must be one of them, or NULL and none be there. */
static moert_status check_directory(const moert_trainer *t, const char *from) {
    const char *out = t->options->out;
    char *path = NULL;
    if (out == NULL || t->options->steps == 0)
        return MOERT_OK;
    MOERT_TRY(find_latest(out, &path));
    const moert_status status =
        path == NULL || (from != NULL && are_beside(from, path))
            ? MOERT_OK
            : MOERT_FAIL(ERROR_USAGE,
                         "%s is of an older run; --resume auto goes on with it, another "
                         "--out begins anew",
                         path);
    free(path);
    return status;
}

moert_status moert_trainer_resume(moert_trainer *t) {
    char *path;
    moert_run_state saved;
    MOERT_TRY(find_checkpoint(t, &path));
    moert_status status =
        moert_comm_agree(t->world, t->first ? check_directory(t, path) : MOERT_OK);
    if (status != MOERT_OK || path == NULL)
        goto done;
    MOERT_TRY_OR(done, moert_checkpoint_load(t->optimizer, path, &saved));
    MOERT_TRY_OR(done, moert_comm_agree(t->world, check_state(t, path, &saved)));
    MOERT_INFO("resumed from %s at step %llu", path, (unsigned long long)saved.step);
    if (saved.step >= t->options->steps && t->first)
        MOERT_WARN("%s has done %llu steps already; nothing is left of %zu", path,
                   (unsigned long long)saved.step, t->options->steps);
    t->state = saved;
done:
    free(path);
    return status;
}
