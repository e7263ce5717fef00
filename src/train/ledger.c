/* Records times, waits, bytes and rows of every rank's profiled steps. */
#include "train/ledger.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "comm/arrivals.h"
#include "io/durable.h"
#include "io/json.h"
#include "train/breakdown.h"

#define STEPS_NAME "profile-steps.jsonl"
#define RANKS_NAME "profile-ranks.json"

/* The times of a rank in a step, in ns. */
typedef struct account {
    double step, waited, host, operation[MOERT_OPERATIONS];
} account;

/* One rank's waits for and bytes to another, as means over the steps. */
typedef struct pair {
    double waited_ns, dispatched_bytes, combined_bytes;
} pair;

struct moert_ledger {
    const moert_run *run;
    moert_model *model;
    moert_comm *world;
    char *steps_path, *ranks_path;
    FILE *file; /* rank 0: the open file `steps_path` */
    size_t steps, ranks, layers, experts;
    moert_profile before;       /* the profile when the step began */
    account *accounts;          /* [R] times in the last step */
    double *waited_ns;          /* [R] */
    uint64_t *bytes;            /* [2,EP] storage of `tally` */
    moert_exchange_tally tally; /* bytes to the ranks of the EP group */
    moert_mesh_place *places;   /* [R] */
    uint64_t *step_rows, *rows; /* [layers,E] rows of experts in the last step; in all steps */
};

/* ---- begin and end ---- */

moert_status moert_ledger_clear(const char *out) {
    static const char *const names[] = {"profile.json", STEPS_NAME, RANKS_NAME};
    for (size_t i = 0; i < MOERT_COUNT(names); i++)
        MOERT_TRY(moert_remove_in(out, names[i]));
    return MOERT_OK;
}

static moert_status prepare(moert_ledger *l, const char *out) {
    const size_t group = moert_comm_size(moert_model_mesh(l->model)->experts);
    MOERT_TRY(MOERT_NEW_ARRAY(&l->accounts, l->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&l->waited_ns, l->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&l->bytes, 2 * group));
    MOERT_TRY(MOERT_NEW_ARRAY(&l->places, l->ranks));
    moert_mesh_places(l->world, group, l->places);
    MOERT_TRY(MOERT_NEW_ARRAY(&l->step_rows, l->layers * l->experts));
    MOERT_TRY(MOERT_NEW_ARRAY(&l->rows, l->layers * l->experts));
    l->tally = (moert_exchange_tally){l->bytes, l->bytes + group};
    MOERT_TRY(moert_text_path(&l->steps_path, "%s/%s", out, STEPS_NAME));
    MOERT_TRY(moert_text_path(&l->ranks_path, "%s/%s", out, RANKS_NAME));
    if (moert_comm_rank(l->world) != 0)
        return MOERT_OK;
    l->file = fopen(l->steps_path, "w");
    return l->file != NULL
               ? MOERT_OK
               : MOERT_FAIL(ERROR_IO, "cannot write %s: %s", l->steps_path, strerror(errno));
}

moert_status moert_ledger_open(moert_run *run, const char *out, moert_ledger **ledger) {
    moert_model *model = moert_run_model(run);
    const moert_model_config *config = moert_model_describe(model);
    moert_comm *world = moert_model_mesh(model)->world;
    moert_ledger *made;
    moert_status status;
    MOERT_TRY(moert_comm_agree(world, MOERT_NEW(&made)));
    made->run = run;
    made->model = model;
    made->world = world;
    made->ranks = moert_comm_size(world);
    made->layers = moert_model_moe_layers(model);
    made->experts = config->router.experts;
    MOERT_TRY_OR(fail, moert_comm_agree(world, prepare(made, out)));
    MOERT_TRY_OR(fail, moert_arrivals_enable(world));
    *ledger = made;
    return MOERT_OK;
fail:
    moert_ledger_destroy(made);
    return status;
}

void moert_ledger_destroy(moert_ledger *l) {
    if (l == NULL)
        return;
    moert_exchange_count_into(moert_model_mesh(l->model)->exchange, NULL);
    if (l->file != NULL)
        fclose(l->file);
    MOERT_FREE(l->rows, l->step_rows, l->places, l->bytes, l->waited_ns, l->accounts, l->ranks_path,
               l->steps_path, l);
}

/* ---- a step ---- */

void moert_ledger_begin(moert_ledger *l) {
    if (l == NULL)
        return;
    l->before = *moert_profile_get(moert_model_mesh(l->model)->device);
    memset(l->step_rows, 0, l->layers * l->experts * sizeof *l->step_rows);
    moert_exchange_count_into(moert_model_mesh(l->model)->exchange, &l->tally);
    moert_arrivals_begin();
}

void moert_ledger_count(moert_ledger *l) {
    for (size_t i = 0; l != NULL && i < l->layers * l->experts; i++)
        l->step_rows[i] += moert_run_expert_counts(l->run)[i];
}

/* The times of this rank's step: the growth of its profile, and its waits for other ranks. */
static account take_account(const moert_ledger *l, double waited_ns) {
    const moert_profile *after = moert_profile_get(moert_model_mesh(l->model)->device);
    account made = {.step = (double)(after->wall_ns - l->before.wall_ns)};
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        made.operation[i] = (double)(after->row[i].ns - l->before.row[i].ns);
    made.host = moert_breakdown_fit(made.operation, made.step);
    const double messages =
        made.operation[MOERT_OPERATION_WAIT] + made.operation[MOERT_OPERATION_EXCHANGE_WAIT];
    made.waited = waited_ns < messages ? waited_ns : messages;
    return made;
}

/* A JSON array of `count` numbers times `unit`, which lie `stride` bytes apart from `first` on. */
static json_t *numbers(const double *first, size_t stride, size_t count, double unit) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, (const char *)first + i * stride, sizeof value);
        json_array_append_new(array, json_real(value * unit));
    }
    return array;
}

/* A JSON array [R] of one operation's times in ms; `first` is the field of the first rank. NULL if
 * all are 0. */
static json_t *times(const moert_ledger *l, const double *first) {
    double sum = 0.0;
    for (size_t r = 0; r < l->ranks; r++)
        sum += first[r * (sizeof *l->accounts / sizeof *first)];
    return sum > 0.0 ? numbers(first, sizeof *l->accounts, l->ranks, 1e-6) : NULL;
}

static json_t *operations(const moert_ledger *l) {
    json_t *object = json_object();
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        json_object_set_new(object, moert_operation_text((moert_operation)i),
                            times(l, &l->accounts->operation[i]));
    json_object_set_new(object, "host", times(l, &l->accounts->host));
    return object;
}

static json_t *row_bounds(const moert_ledger *l) {
    json_t *min = json_array(), *mean = json_array(), *max = json_array();
    for (size_t i = 0; i < l->layers; i++) {
        const uint64_t *rows = l->step_rows + i * l->experts;
        uint64_t least = rows[0], most = rows[0], sum = 0;
        for (size_t e = 0; e < l->experts; e++) {
            least = rows[e] < least ? rows[e] : least;
            most = rows[e] > most ? rows[e] : most;
            sum += rows[e];
        }
        json_array_append_new(min, json_integer((json_int_t)least));
        json_array_append_new(mean, json_real((double)sum / (double)l->experts));
        json_array_append_new(max, json_integer((json_int_t)most));
    }
    return json_pack("{so so so}", "min", min, "mean", mean, "max", max);
}

enum { FLAGS = JSON_COMPACT | JSON_REAL_PRECISION(6) };

static moert_status write_step(const moert_ledger *l, uint64_t step) {
    json_t *line =
        json_pack("{sI so* so* so so}", "step", (json_int_t)step, "step_ms",
                  times(l, &l->accounts->step), "waited_ms", times(l, &l->accounts->waited),
                  "operations", operations(l), "rows", row_bounds(l));
    char *text;
    const moert_status status = moert_json_text(l->steps_path, line, FLAGS, &text);
    json_decref(line);
    MOERT_TRY(status);
    const bool failed = fprintf(l->file, "%s\n", text) < 0;
    free(text);
    if (failed || fflush(l->file) != 0)
        return MOERT_FAIL(ERROR_IO, "cannot write %s: %s", l->steps_path, strerror(errno));
    return MOERT_OK;
}

static double sum_of(const double *values, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

moert_status moert_ledger_end(moert_ledger *l, uint64_t step) {
    if (l == NULL)
        return MOERT_OK;
    const double before = sum_of(l->waited_ns, l->ranks);
    moert_exchange_count_into(moert_model_mesh(l->model)->exchange, NULL);
    MOERT_TRY(moert_comm_agree(l->world, moert_arrivals_end(l->waited_ns)));
    const account mine = take_account(l, sum_of(l->waited_ns, l->ranks) - before);
    MOERT_TRY(moert_comm_allgather(l->world, &mine, sizeof mine, l->accounts));
    for (size_t i = 0; i < l->layers * l->experts; i++)
        l->rows[i] += l->step_rows[i];
    l->steps++;
    return moert_comm_agree(l->world, l->file != NULL ? write_step(l, step) : MOERT_OK);
}

/* ---- all steps ---- */

/* Gathers all[R,R] on every rank. */
static moert_status gather_pairs(const moert_ledger *l, pair *all) {
    const size_t rank = moert_comm_rank(l->world);
    const double part = 1.0 / (double)moert_max(l->steps, 1);
    pair *mine = all + rank * l->ranks;
    for (size_t r = 0; r < l->ranks; r++) {
        mine[r].waited_ns = l->waited_ns[r] * part;
        if (l->places[r].group != l->places[rank].group)
            continue;
        const size_t member = l->places[r].member;
        mine[r].dispatched_bytes = (double)l->tally.dispatched_bytes[member] * part;
        mine[r].combined_bytes = (double)l->tally.combined_bytes[member] * part;
    }
    return moert_comm_allgather(l->world, mine, l->ranks * sizeof *mine, all);
}

/* A JSON matrix [R,R] of one field of the pairs times `unit`; `first` is that of the first pair. */
static json_t *matrix(const moert_ledger *l, const double *first, double unit) {
    const size_t row = l->ranks * (sizeof(pair) / sizeof *first);
    json_t *rows = json_array();
    for (size_t from = 0; from < l->ranks; from++)
        json_array_append_new(rows, numbers(first + from * row, sizeof(pair), l->ranks, unit));
    return rows;
}

static json_t *describe_ranks(const moert_ledger *l) {
    json_t *ranks = json_array();
    for (size_t r = 0; r < l->ranks; r++)
        json_array_append_new(ranks, json_pack("{ss sI}", "host", moert_comm_host(l->world, r),
                                               "node", (json_int_t)moert_comm_node(l->world, r)));
    return ranks;
}

static json_t *expert_rows(const moert_ledger *l) {
    json_t *layers = json_array();
    for (size_t i = 0; i < l->layers; i++) {
        json_t *row = json_array();
        for (size_t e = 0; e < l->experts; e++)
            json_array_append_new(row, json_real((double)l->rows[i * l->experts + e] /
                                                 (double)moert_max(l->steps, 1)));
        json_array_append_new(layers, row);
    }
    return layers;
}

static json_t *expert_ranks(const moert_ledger *l) {
    json_t *layers = json_array();
    for (size_t i = 0; i < l->layers; i++) {
        const moert_expert_map *map = moert_model_placement(l->model, i);
        json_t *row = json_array();
        for (size_t e = 0; e < l->experts; e++)
            json_array_append_new(row, json_integer((json_int_t)map->rank[e]));
        json_array_append_new(layers, row);
    }
    return layers;
}

static moert_status write_ranks(const moert_ledger *l, const pair *all) {
    const moert_mesh *mesh = moert_model_mesh(l->model);
    json_t *root = json_pack("{sI ss sI so so so so so so}", "steps", (json_int_t)l->steps,
                             "engine", moert_exchange_engine(mesh->exchange), "group",
                             (json_int_t)moert_comm_size(mesh->experts), "ranks", describe_ranks(l),
                             "waited_ms", matrix(l, &all->waited_ns, 1e-6), "dispatched_bytes",
                             matrix(l, &all->dispatched_bytes, 1.0), "combined_bytes",
                             matrix(l, &all->combined_bytes, 1.0), "expert_rows", expert_rows(l),
                             "expert_ranks", expert_ranks(l));
    const moert_status status = moert_json_write(l->ranks_path, root, FLAGS);
    json_decref(root);
    return status;
}

moert_status moert_ledger_write(moert_ledger *l) {
    pair *all = NULL;
    if (l == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_comm_agree(l->world, moert_alloc(&all, l->ranks * l->ranks, sizeof *all)));
    moert_status status = gather_pairs(l, all);
    if (status == MOERT_OK)
        status = moert_comm_agree(l->world, l->file != NULL ? write_ranks(l, all) : MOERT_OK);
    free(all);
    return status;
}
