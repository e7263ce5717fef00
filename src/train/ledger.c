/* Records times, waits, bytes and rows of every rank's profiled steps. */
#include "train/ledger.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "comm/arrivals.h"
#include "io/durable.h"
#include "io/json.h"
#include "device/profile/profile.h"

#define STEPS_NAME "profile-steps.jsonl"
#define RANKS_NAME "profile-ranks.json"

/* The times of a rank in a step, in ns. All fields of this struct and the next one are doubles. So
 * a field of consecutive structs can be read as an array of doubles with a stride. */
typedef struct moert_ledger_account {
    double step, waited, operation[MOERT_OPERATIONS];
} account;

/* The time for which a rank waited for another rank, and the bytes that it sent to that other rank,
 * as means over the steps. */
typedef struct pair {
    double waited_ms, dispatched_bytes, combined_bytes;
} pair;

enum { ACCOUNT = sizeof(account) / sizeof(double), PAIR = sizeof(pair) / sizeof(double) };

/* ---- opening and closing the ledger ---- */

moert_status moert_ledger_clear(const char *out) {
    static const char *const names[] = {"profile.json", STEPS_NAME, RANKS_NAME};
    for (size_t i = 0; i < MOERT_COUNT(names); i++)
        MOERT_TRY(moert_remove_in(out, names[i]));
    return MOERT_OK;
}

static moert_status cannot_write(const moert_ledger *l) {
    return MOERT_FAIL(ERROR_IO, "cannot write %s/%s: %s", l->out, STEPS_NAME, strerror(errno));
}

static moert_status prepare(moert_ledger *l) {
    const size_t group = moert_comm_size(moert_model_mesh(l->model)->experts);
    char *path;
    MOERT_TRY(MOERT_NEW_ARRAY(&l->accounts, l->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&l->waited_ns, l->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&l->bytes, 2 * group));
    MOERT_TRY(MOERT_NEW_ARRAY(&l->rows, l->layers * l->experts));
    l->tally = (moert_exchange_tally){l->bytes, l->bytes + group};
    if (moert_comm_rank(l->world) != 0)
        return MOERT_OK;
    MOERT_TRY(moert_text_path(&path, "%s/%s", l->out, STEPS_NAME));
    l->file = fopen(path, "w");
    free(path);
    return l->file != NULL ? MOERT_OK : cannot_write(l);
}

moert_status moert_ledger_open(moert_ledger *l, moert_model *model, const char *out) {
    moert_comm *world = moert_model_mesh(model)->world;
    *l = (moert_ledger){.model = model,
                        .world = world,
                        .out = out,
                        .ranks = moert_comm_size(world),
                        .layers = moert_model_moe_layers(model),
                        .experts = moert_model_describe(model)->router.experts};
    MOERT_TRY(moert_comm_agree(world, prepare(l)));
    return moert_arrivals_enable(world);
}

void moert_ledger_close(moert_ledger *l) {
    if (l->model == NULL)
        return;
    moert_exchange_count_into(moert_model_mesh(l->model)->exchange, NULL);
    if (l->file != NULL)
        fclose(l->file);
    MOERT_FREE(l->rows, l->bytes, l->waited_ns, l->accounts);
}

/* ---- recording a step ---- */

/* A JSON array of `count` numbers, each multiplied by `unit`. */
static json_t *numbers(const double *first, size_t count, size_t stride, double unit) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_real(first[i * stride] * unit));
    return array;
}

/* A JSON array [R] of one field of the accounts, in ms. `first` points to the field in the account
 * of rank 0. NULL if all values are 0. */
static json_t *times(const moert_ledger *l, const double *first) {
    for (size_t r = 0; r < l->ranks; r++)
        if (first[r * ACCOUNT] > 0.0)
            return numbers(first, l->ranks, ACCOUNT, 1e-6);
    return NULL;
}

static json_t *operations(const moert_ledger *l) {
    json_t *object = json_object();
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        json_object_set_new(object, moert_operation_text((moert_operation)i),
                            times(l, &l->accounts->operation[i]));
    return object;
}

static json_t *row_bounds(const moert_ledger *l, const uint64_t *rows) {
    json_t *min = json_array(), *mean = json_array(), *max = json_array();
    for (size_t i = 0; i < l->layers; i++, rows += l->experts) {
        uint64_t least = rows[0], most = rows[0], sum = 0;
        for (size_t e = 0; e < l->experts; e++) {
            least = moert_min(least, rows[e]);
            most = moert_max(most, rows[e]);
            sum += rows[e];
        }
        json_array_append_new(min, json_integer((json_int_t)least));
        json_array_append_new(mean, json_real((double)sum / (double)l->experts));
        json_array_append_new(max, json_integer((json_int_t)most));
    }
    return json_pack("{so so so}", "min", min, "mean", mean, "max", max);
}

enum { FLAGS = JSON_COMPACT | JSON_REAL_PRECISION(6) };

static moert_status write_step(const moert_ledger *l, uint64_t step, const uint64_t *rows) {
    json_t *line =
        json_pack("{sI so* so* so so}", "step", (json_int_t)step, "step_ms",
                  times(l, &l->accounts->step), "waited_ms", times(l, &l->accounts->waited),
                  "operations", operations(l), "rows", row_bounds(l, rows));
    char *text;
    const moert_status status = moert_json_text(STEPS_NAME, line, FLAGS, &text);
    json_decref(line);
    MOERT_TRY(status);
    const bool written = fprintf(l->file, "%s\n", text) >= 0 && fflush(l->file) == 0;
    free(text);
    return written ? MOERT_OK : cannot_write(l);
}

static double sum_of(const double *values, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

void moert_ledger_begin(moert_ledger *l) {
    moert_exchange_count_into(moert_model_mesh(l->model)->exchange, &l->tally);
    moert_arrivals_begin();
}

moert_status moert_ledger_end(moert_ledger *l, uint64_t step, const uint64_t *rows) {
    const moert_mesh *mesh = moert_model_mesh(l->model);
    const moert_profile *profile = moert_profile_last(mesh->device);
    const double before = sum_of(l->waited_ns, l->ranks);
    account mine = {.step = profile->wall_ns};
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        mine.operation[i] = profile->row[i].ns;
    moert_exchange_count_into(mesh->exchange, NULL);
    MOERT_TRY(moert_comm_agree(l->world, moert_arrivals_end(l->waited_ns)));
    mine.waited =
        fmin(sum_of(l->waited_ns, l->ranks) - before,
             mine.operation[MOERT_OPERATION_WAIT] + mine.operation[MOERT_OPERATION_EXCHANGE_WAIT]);
    MOERT_TRY(moert_comm_allgather(l->world, &mine, sizeof mine, l->accounts));
    for (size_t i = 0; i < l->layers * l->experts; i++)
        l->rows[i] += (double)rows[i];
    l->steps++;
    return moert_comm_agree(l->world, l->file != NULL ? write_step(l, step, rows) : MOERT_OK);
}

/* ---- writing the means over all steps ---- */

/* Gives every rank the pairs of all ranks, all[R,R], and the places of all ranks in the mesh,
 * places[R]. */
static moert_status gather_pairs(const moert_ledger *l, moert_mesh_place *places, pair *all) {
    const size_t rank = moert_comm_rank(l->world);
    const double part = 1.0 / (double)moert_max(l->steps, 1);
    pair *mine = all + rank * l->ranks;
    moert_mesh_places(l->world, moert_comm_size(moert_model_mesh(l->model)->experts), places);
    for (size_t r = 0; r < l->ranks; r++) {
        mine[r].waited_ms = l->waited_ns[r] * 1e-6 * part;
        if (places[r].group != places[rank].group)
            continue;
        const size_t member = places[r].member;
        mine[r].dispatched_bytes = (double)l->tally.dispatched_bytes[member] * part;
        mine[r].combined_bytes = (double)l->tally.combined_bytes[member] * part;
    }
    return moert_comm_allgather(l->world, mine, l->ranks * sizeof *mine, all);
}

/* A JSON matrix of numbers, each multiplied by `unit`. */
static json_t *matrix(const double *first, size_t rows, size_t columns, size_t stride,
                      double unit) {
    json_t *array = json_array();
    for (size_t r = 0; r < rows; r++)
        json_array_append_new(array, numbers(first + r * columns * stride, columns, stride, unit));
    return array;
}

static json_t *describe_ranks(const moert_ledger *l) {
    json_t *ranks = json_array();
    for (size_t r = 0; r < l->ranks; r++)
        json_array_append_new(ranks, json_pack("{ss sI}", "host", moert_comm_host(l->world, r),
                                               "node", (json_int_t)moert_comm_node(l->world, r)));
    return ranks;
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
    const size_t n = l->ranks;
    json_t *root = json_pack(
        "{sI ss sI so so so so so so}", "steps", (json_int_t)l->steps, "engine",
        moert_exchange_engine(mesh->exchange), "group", (json_int_t)moert_comm_size(mesh->experts),
        "ranks", describe_ranks(l), "waited_ms", matrix(&all->waited_ms, n, n, PAIR, 1.0),
        "dispatched_bytes", matrix(&all->dispatched_bytes, n, n, PAIR, 1.0), "combined_bytes",
        matrix(&all->combined_bytes, n, n, PAIR, 1.0), "expert_rows",
        matrix(l->rows, l->layers, l->experts, 1, 1.0 / (double)moert_max(l->steps, 1)),
        "expert_ranks", expert_ranks(l));
    return moert_json_write_new(l->out, RANKS_NAME, root, FLAGS);
}

moert_status moert_ledger_write(moert_ledger *l) {
    moert_mesh_place *places = NULL;
    pair *all = NULL;
    moert_status status = MOERT_NEW_ARRAY(&places, l->ranks);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&all, l->ranks * l->ranks);
    MOERT_TRY_OR(done, moert_comm_agree(l->world, status));
    MOERT_TRY_OR(done, gather_pairs(l, places, all));
    status = moert_comm_agree(l->world, l->file != NULL ? write_ranks(l, all) : MOERT_OK);
done:
    MOERT_FREE(all, places);
    return status;
}
