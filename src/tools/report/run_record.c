/* Reads the records in a run directory. */
#include "tools/report/run_record.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "device/profile/profile.h"
#include "io/durable.h"
#include "io/json.h"
#include "train/run_file.h"

enum { LIMIT_BYTES = 1 << 30 };

const char *moert_time_text(moert_time time) {
    static const char *const texts[] = {
#define TIME_TEXT(name, text) text,
        MOERT_TIME_TABLE(TIME_TEXT)
#undef TIME_TEXT
    };
    return texts[time];
}

/* A JSON object, with its file and line for error messages. */
typedef struct source {
    const char *path;
    size_t line; /* line of the object; 0 = the file is a single object */
    const json_t *object;
} source;

static moert_status fail_field(const source *from, const char *key, const char *expected) {
    char line[32] = "";
    if (from->line > 0)
        snprintf(line, sizeof line, " line %zu:", from->line);
    if (json_object_get(from->object, key) == NULL)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s:%s there is no \"%s\"; was the file written by another version?",
                          from->path, line, key);
    return MOERT_FAIL(ERROR_FORMAT, "%s:%s the value of \"%s\" %s", from->path, line, key,
                      expected);
}

/* ---- values ---- */

static double number_or_nan(const source *from, const char *key) {
    const json_t *value = json_object_get(from->object, key);
    return json_is_number(value) ? json_number_value(value) : json_is_true(value) ? 1.0 : NAN;
}

/* Reads values[count] from an array. Returns false unless the array has exactly `count` finite
 * numbers. */
static bool read_numbers(const json_t *array, size_t count, double *values) {
    if (json_array_size(array) != count)
        return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_number(value) || !isfinite(json_number_value(value)))
            return false;
        values[i] = json_number_value(value);
    }
    return true;
}

static moert_status read_row(const source *from, const char *key, size_t count, double *values) {
    if (!read_numbers(json_object_get(from->object, key), count, values))
        return fail_field(from, key, "is not an array of a number for each rank");
    return MOERT_OK;
}

/* Reads a new matrix [rows,columns] from the member `key`. */
static moert_status read_matrix(const source *from, const char *key, size_t rows, size_t columns,
                                double **values) {
    const json_t *matrix = json_object_get(from->object, key);
    if (rows == 0 || columns == 0 || json_array_size(matrix) != rows)
        return fail_field(from, key, "is no matrix of the right size");
    MOERT_TRY(moert_alloc(values, rows * columns, sizeof **values));
    for (size_t i = 0; i < rows; i++)
        if (!read_numbers(json_array_get(matrix, i), columns, *values + i * columns))
            return fail_field(from, key, "is no matrix of numbers of the right size");
    return MOERT_OK;
}

/* ---- files ---- */

/* *object = the file's JSON object, for the caller to json_decref; NULL if the file does not
 * exist. */
static moert_status read_object(const char *path, json_t **object) {
    mode_t there;
    *object = NULL;
    MOERT_TRY(moert_file_mode(path, true, &there));
    return there != 0 ? moert_json_read(path, "it", LIMIT_BYTES, object) : MOERT_OK;
}

typedef moert_status take_line(moert_run_record *record, const source *from);

/* Passes each complete line to `take`. Ignores a last line without '\n', because the run is still
 * writing it. */
static moert_status read_lines(const char *path, take_line *take, moert_run_record *record) {
    moert_status status = MOERT_OK;
    char *text, what[32];
    MOERT_TRY(moert_read_text(path, LIMIT_BYTES, &text));
    char *at = text, *end;
    for (size_t line = 1; status == MOERT_OK && (end = strchr(at, '\n')) != NULL; line++) {
        json_t *object;
        snprintf(what, sizeof what, "line %zu", line);
        status = moert_json_parse(path, what, at, (size_t)(end - at), &object);
        if (status == MOERT_OK) {
            status = take(record, &(source){path, line, object});
            json_decref(object);
        }
        at = end + 1;
    }
    free(text);
    return status;
}

/* ---- metrics.jsonl ---- */

static moert_status take_metrics(moert_run_record *record, const source *from) {
    const json_t *loss = json_object_get(from->object, "loss");
    const moert_run_step step = {
#define TAKE(name) .name = number_or_nan(from, #name),
        MOERT_METRIC_TABLE(TAKE)
#undef TAKE
    };
    if (!isfinite(step.step))
        return fail_field(from, "step", "is not a number");
    if (!isfinite(step.loss) && !json_is_null(loss))
        return fail_field(from, "loss", "is neither a number nor null");
    if (!(step.tokens_per_s > 0.0))
        return fail_field(from, "tokens_per_s", "is not a number above 0");
    MOERT_TRY(MOERT_GROW(&record->step, &record->room, record->steps + 1));
    record->step[record->steps++] = step;
    json_decref(record->last_step);
    record->last_step = json_incref((json_t *)from->object);
    return MOERT_OK;
}

/* ---- profile-steps.jsonl ---- */

moert_time moert_time_of(const char *operation) {
    if (strcmp(operation, "host") == 0)
        return MOERT_TIME_HOST;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++) {
        if (strcmp(operation, moert_operation_text((moert_operation)i)) != 0)
            continue;
        if (moert_operation_is_gemm((moert_operation)i))
            return MOERT_TIME_GEMMS;
        if (i == MOERT_OPERATION_DATA)
            return MOERT_TIME_HOST;
        if (i == MOERT_OPERATION_DISPATCH || i == MOERT_OPERATION_COMBINE)
            return MOERT_TIME_MOVES;
        if (i == MOERT_OPERATION_WAIT || i == MOERT_OPERATION_EXCHANGE_WAIT)
            return MOERT_TIME_MESSAGES;
    }
    return MOERT_TIME_KERNELS;
}

/* Adds the times of a step to the record. The times of messages include waiting for other ranks, so
 * the waiting is subtracted. */
static moert_status add_times(moert_run_record *record, const source *from, double *row) {
    const json_t *operations = json_object_get(from->object, "operations");
    const char *name;
    json_t *value;
    MOERT_TRY(read_row(from, "step_ms", record->ranks, row));
    for (size_t r = 0; r < record->ranks; r++)
        record->rank[r].step_ms += row[r];
    if (!json_is_object(operations))
        return fail_field(from, "operations", "is not an object");
    json_object_foreach((json_t *)operations, name, value) {
        MOERT_TRY(
            read_row(&(source){from->path, from->line, operations}, name, record->ranks, row));
        for (size_t r = 0; r < record->ranks; r++)
            record->rank[r].ms[moert_time_of(name)] += row[r];
    }
    /* a step has no waited_ms if no rank waited for another rank */
    if (json_object_get(from->object, "waited_ms") == NULL)
        return MOERT_OK;
    MOERT_TRY(read_row(from, "waited_ms", record->ranks, row));
    for (size_t r = 0; r < record->ranks; r++) {
        record->rank[r].ms[MOERT_TIME_WAITING] += row[r];
        record->rank[r].ms[MOERT_TIME_MESSAGES] -= row[r];
    }
    return MOERT_OK;
}

static moert_status take_step(moert_run_record *record, const source *from) {
    double *row;
    if (record->profiled_steps++ == 0) {
        record->ranks = json_array_size(json_object_get(from->object, "step_ms"));
        if (record->ranks == 0)
            return fail_field(from, "step_ms", "is not an array of a number for each rank");
        MOERT_TRY(MOERT_NEW_ARRAY(&record->rank, record->ranks));
    }
    MOERT_TRY(moert_alloc(&row, record->ranks, sizeof *row));
    const moert_status status = add_times(record, from, row);
    free(row);
    return status;
}

/* ---- profile-ranks.json ---- */

static moert_status read_names(moert_run_record *record, const source *from) {
    const json_t *ranks = json_object_get(from->object, "ranks");
    if (json_array_size(ranks) != record->ranks)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s has %zu ranks, profile-steps.jsonl in the same directory has %zu: "
                          "they are of different runs",
                          from->path, json_array_size(ranks), record->ranks);
    for (size_t r = 0; r < record->ranks; r++) {
        const json_t *rank = json_array_get(ranks, r);
        const char *host = json_string_value(json_object_get(rank, "host"));
        const json_int_t node = json_integer_value(json_object_get(rank, "node"));
        if (host == NULL || node < 0)
            return fail_field(from, "ranks", "does not give each rank a host and a node");
        record->rank[r].node = (size_t)node;
        record->rank[r].host = host;
    }
    return MOERT_OK;
}

static moert_status read_exchange(const char *path, moert_run_record *record) {
    const size_t ranks = record->ranks;
    if (ranks == 0)
        return MOERT_OK;
    MOERT_TRY(read_object(path, &record->exchange));
    const source from = {path, 0, record->exchange};
    if (record->exchange == NULL)
        return MOERT_OK;
    MOERT_TRY(read_names(record, &from));
    const json_t *rows = json_object_get(from.object, "expert_rows");
    const json_int_t group = json_integer_value(json_object_get(from.object, "group"));
    if (group < 1 || group > (json_int_t)ranks || ranks % (size_t)group != 0)
        return fail_field(&from, "group", "does not divide the number of ranks");
    record->group = (size_t)group;
    if (!json_is_string(json_object_get(from.object, "engine")))
        return fail_field(&from, "engine", "is not a string");
    const size_t layers = record->layers = json_array_size(rows);
    const size_t experts = record->experts = json_array_size(json_array_get(rows, 0));
    MOERT_TRY(read_matrix(&from, "waited_ms", ranks, ranks, &record->waited_ms));
    MOERT_TRY(read_matrix(&from, "dispatched_bytes", ranks, ranks, &record->dispatched_bytes));
    MOERT_TRY(read_matrix(&from, "combined_bytes", ranks, ranks, &record->combined_bytes));
    MOERT_TRY(read_matrix(&from, "expert_rows", layers, experts, &record->expert_rows));
    if (json_object_get(from.object, "expert_ranks") == NULL)
        return MOERT_OK;
    MOERT_TRY(read_matrix(&from, "expert_ranks", layers, experts, &record->expert_ranks));
    for (size_t i = 0; i < layers * experts; i++)
        if (!(record->expert_ranks[i] >= 0.0 && record->expert_ranks[i] < (double)group))
            return fail_field(&from, "expert_ranks", "names a rank outside its group");
    return MOERT_OK;
}

/* ---- the run ---- */

static moert_status read_metrics(const char *path, moert_run_record *record) {
    if (access(path, F_OK) != 0)
        return MOERT_FAIL(ERROR_IO, "%s: %s; a run is the --out directory of moert-train", path,
                          strerror(errno));
    MOERT_TRY(read_lines(path, take_metrics, record));
    if (record->steps == 0)
        return MOERT_FAIL(ERROR_FORMAT, "%s: no step is finished yet", path);
    return MOERT_OK;
}

static moert_status read_steps(const char *path, moert_run_record *record) {
    mode_t there;
    MOERT_TRY(moert_file_mode(path, true, &there));
    if (there == 0)
        return MOERT_OK;
    MOERT_TRY(read_lines(path, take_step, record));
    for (size_t r = 0; r < record->ranks; r++) {
        moert_run_rank *rank = &record->rank[r];
        const double per_step = 1.0 / (double)record->profiled_steps;
        rank->step_ms *= per_step;
        for (size_t i = 0; i < MOERT_TIMES; i++)
            rank->ms[i] = fmax(rank->ms[i] * per_step, 0.0);
    }
    return MOERT_OK;
}

static moert_status read_operations(const char *path, moert_run_record *record) {
    MOERT_TRY(read_object(path, &record->operations));
    const source from = {path, 0, record->operations};
    if (record->operations != NULL && !json_is_array(json_object_get(from.object, "rows")))
        return fail_field(&from, "rows", "is not an array");
    return MOERT_OK;
}

/* Reads run.json. Checks only that the sessions of run.json are well-formed, since the page ignores
 * absent fields. */
static moert_status read_run(const char *path, moert_run_record *record) {
    json_t *session;
    size_t i;
    MOERT_TRY(read_object(path, &record->run));
    const source from = {path, 0, record->run};
    const json_t *sessions = json_object_get(record->run, "sessions");
    if (record->run != NULL && !json_is_array(sessions))
        return fail_field(&from, "sessions", "is not an array");
    json_array_foreach(sessions, i, session) {
        if (!json_is_object(json_object_get(session, "options")))
            return fail_field(&(source){path, 0, session}, "options", "is not an object");
    }
    return MOERT_OK;
}

moert_status moert_run_record_read(const char *run, moert_run_record *record) {
    static const struct {
        const char *name;
        moert_status (*read)(const char *path, moert_run_record *record);
    } files[] = {{"metrics.jsonl", read_metrics},
                 {MOERT_RUN_FILE, read_run},
                 {"profile-steps.jsonl", read_steps},
                 {"profile-ranks.json", read_exchange},
                 {"profile.json", read_operations}};
    moert_status status = MOERT_OK;
    *record = (moert_run_record){0};
    for (size_t i = 0; i < MOERT_COUNT(files) && status == MOERT_OK; i++) {
        char *path;
        MOERT_TRY(moert_text_path(&path, "%s/%s", run, files[i].name));
        status = files[i].read(path, record);
        free(path);
    }
    return status;
}

void moert_run_record_free(moert_run_record *record) {
    json_decref(record->exchange);
    json_decref(record->operations);
    json_decref(record->last_step);
    json_decref(record->run);
    MOERT_FREE(record->expert_ranks, record->expert_rows, record->combined_bytes,
               record->dispatched_bytes, record->waited_ms, record->rank, record->step);
}
