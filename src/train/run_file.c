/* The observer that writes OUT/run.json: the program, the ranks' devices, and the progress of the
 * run (run_file.h). */
#include "train/run_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/text.h"
#include "device/device.h"
#include "io/durable.h"
#include "io/families.h"
#include "io/json.h"
#include "train/internal.h"

enum { LIMIT_BYTES = 1 << 26, DIGITS = 15 };

typedef struct run_file {
    char *path;
    /* rank 0 has the content of run.json; `session` is the last element of root.sessions */
    json_t *root, *session;
    bool written, idle; /* idle: a resumed run without a step to do leaves run.json as it is */
} run_file;

/* The host and the device of a rank. */
typedef struct place {
    char host[256], device[256], driver[256];
} place;

static bool wanted(const moert_trainer *t) {
    return t->options->out != NULL && t->options->record != NULL && t->options->replay.end == 0;
}

static void close(void *self) {
    run_file *f = self;
    json_decref(f->root);
    free(f->path);
}

static json_t *utc_now(void) {
    const time_t now = time(NULL);
    struct tm parts;
    char text[32] = "";
    if (gmtime_r(&now, &parts) != NULL)
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return json_string(text);
}

/* ---- the ranks' hosts and devices ---- */

static json_t *describe_model(const moert_trainer *t) {
    const moert_model_config *c = moert_model_describe(t->model);
    const moert_model_tensor *tensor = moert_model_tensors(t->model);
    size_t parameters = 0;
    for (size_t i = 0; i < moert_model_tensor_count(t->model); i++)
        parameters += tensor[i].elements;
    return json_pack("{ss sI sI sI sI sI}", "model_type", moert_family_of(c->family)->model_type,
                     "parameters", (json_int_t)parameters, "layers", (json_int_t)c->layers,
                     "hidden", (json_int_t)c->hidden, "experts", (json_int_t)c->router.experts,
                     "topk", (json_int_t)c->router.topk);
}

/* *ranks = the hosts and devices of all ranks. Collective. */
static moert_status list_places(const moert_trainer *t, json_t **ranks) {
    const moert_device_info *device = moert_device_describe(moert_model_mesh(t->model)->device);
    const size_t count = moert_comm_size(t->world);
    place own, *all;
    *ranks = json_array();
    snprintf(own.host, sizeof own.host, "%s", moert_comm_host(t->world, moert_comm_rank(t->world)));
    snprintf(own.device, sizeof own.device, "%s", device->name);
    snprintf(own.driver, sizeof own.driver, "%s %s", device->platform_name, device->driver);
    MOERT_TRY(moert_comm_agree(t->world, MOERT_NEW_ARRAY(&all, count)));
    const moert_status status = moert_comm_allgather(t->world, &own, sizeof own, all);
    for (size_t r = 0; r < count && status == MOERT_OK; r++)
        json_array_append_new(*ranks, json_pack("{ss ss ss}", "host", all[r].host, "device",
                                                all[r].device, "driver", all[r].driver));
    free(all);
    return status;
}

/* Reads run.json of the run that this run resumes. NULL if there is no readable run.json. */
static json_t *read_older(const run_file *f, const moert_trainer *t) {
    json_t *older;
    bool there = false;
    if (t->state.step == 0 || moert_file_exists(&there, "%s", f->path) != MOERT_OK || !there)
        return NULL;
    return moert_json_read(f->path, "it", LIMIT_BYTES, &older) == MOERT_OK ? older : NULL;
}

/* The held-out losses so far, or null if some of them belong to steps that this run computes
 * again. */
static json_t *older_losses(const moert_trainer *t, const json_t *older) {
    json_t *losses = json_object_get(older, "held_out");
    const json_int_t best = json_integer_value(json_object_get(losses, "best_step")),
                     last = json_integer_value(json_object_get(losses, "last_step"));
    const json_int_t step = (json_int_t)t->state.step;
    return json_is_object(losses) && best <= step && last <= step ? json_incref(losses)
                                                                  : json_null();
}

static moert_status describe(run_file *f, const moert_trainer *t, json_t *ranks) {
    json_t *older = read_older(f, t), *sessions = json_object_get(older, "sessions");
    sessions = json_is_array(sessions) ? json_incref(sessions) : json_array();
    moert_status status = moert_json_parse(f->path, "the record", t->options->record,
                                           strlen(t->options->record), &f->session);
    if (status == MOERT_OK) {
        json_object_update_new(
            f->session, json_pack("{so sn sI ss sO}", "begun", utc_now(), "ended", "from_step",
                                  (json_int_t)t->state.step, "exchange",
                                  moert_mesh_engine(moert_model_mesh(t->model)), "ranks", ranks));
        json_array_append_new(sessions, f->session);
        f->root = json_pack("{si ss sI sI sI so ss ss so sO}", "format", MOERT_RUN_FILE_FORMAT,
                            "status", "running", "step", (json_int_t)t->state.step, "of",
                            (json_int_t)t->options->steps, "tokens", (json_int_t)0, "model",
                            describe_model(t), "data", t->state.data, "split", t->state.split,
                            "held_out", older_losses(t, older), "sessions", sessions);
    }
    json_decref(sessions);
    json_decref(older);
    return status;
}

/* ---- the run's progress ---- */

static void note_loss(run_file *f, const moert_trainer *t) {
    json_t *losses = json_object_get(f->root, "held_out");
    const double loss = t->row.heldout_loss;
    const json_int_t step = (json_int_t)t->state.step;
    if (!t->row.has_heldout)
        return;
    if (!json_is_object(losses)) {
        losses = json_object();
        json_object_set_new(f->root, "held_out", losses);
    }
    const json_t *best = json_object_get(losses, "best");
    json_object_set_new(losses, "last", json_real(loss));
    json_object_set_new(losses, "last_step", json_integer(step));
    if (best == NULL || loss < json_number_value(best)) {
        json_object_set_new(losses, "best", json_real(loss));
        json_object_set_new(losses, "best_step", json_integer(step));
    }
}

static moert_status write_file(const run_file *f, const moert_trainer *t, const char *status) {
    const moert_trainer_options *o = t->options;
    const uint64_t tokens = moert_batch_before(&o->batch, t->state.step) * o->length;
    json_object_set_new(f->root, "status", json_string(status));
    json_object_set_new(f->root, "step", json_integer((json_int_t)t->state.step));
    json_object_set_new(f->root, "tokens", json_integer((json_int_t)tokens));
    return moert_json_write(f->path, f->root,
                            JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(DIGITS));
}

/* Rank 0 writes the last step's held-out loss and the run's progress. Collective. */
static moert_status update(run_file *f, const moert_trainer *t, const char *status) {
    if (t->first)
        note_loss(f, t);
    f->written = true;
    return moert_comm_agree(t->world, t->first ? write_file(f, t, status) : MOERT_OK);
}

/* ---- the observer of OUT/run.json ---- */

static moert_status open(void *self, moert_trainer *t) {
    run_file *f = self;
    return moert_comm_agree(t->world,
                            moert_text_path(&f->path, "%s/" MOERT_RUN_FILE, t->options->out));
}

static moert_status start(void *self, moert_trainer *t) {
    run_file *f = self;
    json_t *ranks;
    f->idle = t->state.step > 0 && t->state.step >= t->end;
    if (f->idle)
        return MOERT_OK;
    moert_status status = list_places(t, &ranks);
    if (status == MOERT_OK && t->first)
        status = describe(f, t, ranks);
    json_decref(ranks);
    return moert_comm_agree(t->world, status);
}

/* Writes the file after the first step and after each held-out loss. So a run that fails in its
 * first step leaves no file. */
static moert_status between(void *self, moert_trainer *t) {
    run_file *f = self;
    return t->row.has_heldout || !f->written ? update(f, t, "running") : MOERT_OK;
}

static moert_status end(void *self, moert_trainer *t) {
    run_file *f = self;
    if (f->idle)
        return MOERT_OK;
    if (t->first)
        json_object_set_new(f->session, "ended", utc_now());
    return update(f, t, t->state.step < t->end ? "interrupted" : "ended");
}

const moert_observer moert_observer_run_file = {
    wanted,
    sizeof(run_file),
    open,
    close,
    {[MOERT_EVENT_START] = start, [MOERT_EVENT_BETWEEN] = between, [MOERT_EVENT_END] = end}};
