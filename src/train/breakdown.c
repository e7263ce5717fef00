/* The breakdown of a training step. */
#include "train/breakdown.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "gemm/gemm.h"
#include "io/durable.h"
#include "io/json.h"

uint64_t moert_breakdown_from(uint64_t first, uint64_t end) {
    const uint64_t left = end > first ? end - first : 1;
    return first + moert_min(MOERT_BREAKDOWN_SKIPS, left - 1);
}

static moert_status measure(moert_device *device, bool bf16, moert_roof *roof) {
    const size_t peak = moert_device_peak_bytes(device);
    *roof = (moert_roof){0};
    moert_status status = moert_roof_measure(device, roof);
    if (status == MOERT_OK && bf16)
        status = moert_gemm_peak(device, &roof->bf16_gflops);
    moert_device_set_peak(device, peak);
    return status;
}

moert_status moert_peaks_measure(moert_device *device, moert_comm *world, bool bf16,
                                 moert_roof *roof) {
    return moert_comm_agree(world, measure(device, bf16, roof));
}

moert_status moert_breakdown_start(moert_device *device, moert_comm *world, bool bf16,
                                   uint64_t first, uint64_t end, moert_breakdown *breakdown) {
    *breakdown = (moert_breakdown){.from = moert_breakdown_from(first, end)};
    MOERT_TRY(moert_comm_agree(world, moert_profile_enable(device)));
    return moert_peaks_measure(device, world, bf16, &breakdown->roof);
}

/* ---- sums ---- */

/* Totals of an operation per step. */
typedef struct sums {
    double calls, ns, flops, bf16_flops, bytes;
} sums;

typedef struct totals {
    sums row[MOERT_OPERATIONS], host, gemm, step, in_flight;
    moert_roof roof;
    uint64_t steps;
    size_t ranks;
} totals;

/* A rank's message to the others. */
typedef struct message {
    moert_profile profile;
    moert_roof roof;
} message;

static void add(sums *to, sums x) {
    to->calls += x.calls;
    to->ns += x.ns;
    to->flops += x.flops;
    to->bf16_flops += x.bf16_flops;
    to->bytes += x.bytes;
}

static bool is_wait(size_t operation) {
    return operation == MOERT_OPERATION_WAIT || operation == MOERT_OPERATION_EXCHANGE_WAIT;
}

double moert_breakdown_fit(double *ns, double wall_ns) {
    double busy = 0.0, waits = 0.0;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        *(is_wait(i) ? &waits : &busy) += ns[i];
    const double room = wall_ns > busy ? wall_ns - busy : 0.0;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        if (is_wait(i) && waits > room)
            ns[i] *= room / waits;
    return waits < room ? room - waits : 0.0;
}

/* Adds a rank's profile times `part`, which is 1 / (ranks * steps). */
static void add_rank(totals *t, const moert_profile *profile, double part) {
    double ns[MOERT_OPERATIONS];
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        ns[i] = (double)profile->row[i].ns;
    t->host.ns += moert_breakdown_fit(ns, (double)profile->wall_ns) * part;
    t->step.ns += (double)profile->wall_ns * part;
    t->in_flight.ns += (double)profile->message_ns * part;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++) {
        const moert_profile_row *row = &profile->row[i];
        add(&t->row[i], (sums){(double)row->calls * part, ns[i] * part, row->flops * part,
                               row->bf16_flops * part, row->bytes * part});
    }
}

static moert_status sum_up(const moert_device *device, moert_comm *world,
                           const moert_breakdown *breakdown, totals *t) {
    const message mine = {*moert_profile_get(device), breakdown->roof};
    message *all;
    *t = (totals){.steps = breakdown->steps, .ranks = moert_comm_size(world)};
    const double ranks = (double)t->ranks, part = 1.0 / (ranks * (double)t->steps);
    MOERT_TRY(moert_alloc(&all, t->ranks, sizeof *all));
    moert_status status = moert_comm_allgather(world, &mine, sizeof mine, all);
    for (size_t r = 0; status == MOERT_OK && r < t->ranks; r++) {
        t->roof.gflops += all[r].roof.gflops / ranks;
        t->roof.gbps += all[r].roof.gbps / ranks;
        t->roof.bf16_gflops += all[r].roof.bf16_gflops / ranks;
        add_rank(t, &all[r].profile, part);
    }
    free(all);
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        if (moert_operation_is_gemm((moert_operation)i))
            add(&t->gemm, t->row[i]);
    return status;
}

/* ---- the table ---- */

/* A line of the table. A rate is work over time, and -1 if either is 0. */
typedef struct line {
    const char *name;
    double calls, ms, share, gflops, peak_share, gbps, copy_share;
} line;

static double rate(double work, double ns) {
    return work > 0.0 && ns > 0.0 ? work / ns : -1.0;
}

/* The time that the work would take at the peaks. */
static double least_ns(const totals *t, const sums *row) {
    const double bf16 = t->roof.bf16_gflops > 0.0 ? t->roof.bf16_gflops : t->roof.gflops;
    return (row->flops - row->bf16_flops) / t->roof.gflops + row->bf16_flops / bf16;
}

static line line_of(const totals *t, const char *name, const sums *row) {
    line made = {.name = name, .calls = row->calls, .ms = row->ns * 1e-6};
    made.share = t->step.ns > 0.0 ? row->ns / t->step.ns : 0.0;
    made.gflops = rate(row->flops, row->ns);
    made.peak_share = made.gflops < 0.0 ? -1.0 : least_ns(t, row) / row->ns;
    made.gbps = rate(row->bytes, row->ns);
    made.copy_share = made.gbps < 0.0 ? -1.0 : made.gbps / t->roof.gbps;
    return made;
}

enum { LINES = MOERT_OPERATIONS + 1 };

/* Makes the lines of all operations with calls, and of the host. Returns their number. */
static size_t make_lines(const totals *t, line lines[LINES]) {
    size_t count = 0;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        if (t->row[i].calls > 0.0)
            lines[count++] = line_of(t, moert_operation_text((moert_operation)i), &t->row[i]);
    lines[count++] = line_of(t, "host", &t->host);
    return count;
}

/* Prints a number, or "-" if it is negative. */
static void put_number(FILE *file, int width, int digits, double value, const char *unit) {
    if (value < 0.0)
        fprintf(file, " %*s", width, "-");
    else
        fprintf(file, " %*.*f%s", width - (int)strlen(unit), digits, value, unit);
}

static void put_line(FILE *file, const line *l) {
    fprintf(file, "  %-23s", l->name);
    put_number(file, 7, 1, l->calls > 0.0 ? l->calls : -1.0, "");
    put_number(file, 10, 3, l->ms, "");
    put_number(file, 8, 1, l->share * 100.0, " %");
    put_number(file, 9, 1, l->gflops, "");
    put_number(file, 8, 1, l->peak_share < 0.0 ? -1.0 : l->peak_share * 100.0, " %");
    put_number(file, 8, 1, l->gbps, "");
    put_number(file, 8, 1, l->copy_share < 0.0 ? -1.0 : l->copy_share * 100.0, " %");
    fputc('\n', file);
}

static void print(FILE *file, const totals *t) {
    line lines[LINES];
    const size_t count = make_lines(t, lines);
    const line step = line_of(t, "step", &t->step), gemm = line_of(t, "", &t->gemm);
    fprintf(file, "\nprofile of %llu step%s, means of %zu rank%s; at best %.1f GFLOP/s (FMA), ",
            (unsigned long long)t->steps, t->steps > 1 ? "s" : "", t->ranks,
            t->ranks > 1 ? "s" : "", t->roof.gflops);
    if (t->roof.bf16_gflops > 0.0)
        fprintf(file, "%.1f GFLOP/s (GEMM in bf16), ", t->roof.bf16_gflops);
    fprintf(file, "%.1f GB/s (copy)\n  %-23s %7s %10s %8s %9s %8s %8s %8s\n", t->roof.gbps,
            "operation", "calls", "ms/step", "share", "GFLOP/s", "of peak", "GB/s", "of copy");
    for (size_t i = 0; i < count; i++)
        put_line(file, &lines[i]);
    put_line(file, &step);
    fprintf(file, "  GEMM: %.1f %% of the step", gemm.share * 100.0);
    if (gemm.gflops >= 0.0)
        fprintf(file, ", at %.1f GFLOP/s, %.1f %% of the peak", gemm.gflops,
                gemm.peak_share * 100.0);
    if (t->in_flight.ns > 0.0)
        fprintf(file,
                "\n  rows in flight: %.3f ms a step; waits for them, late ranks and plans: %.3f ms",
                t->in_flight.ns * 1e-6, t->row[MOERT_OPERATION_EXCHANGE_WAIT].ns * 1e-6);
    fputs("\n\n", file);
    fflush(file);
}

/* ---- JSON ---- */

static json_t *number(double value) {
    return value < 0.0 ? json_null() : json_real(value);
}

static json_t *json_of(const line *l) {
    json_t *row = json_object();
    json_object_set_new(row, "name", json_string(l->name));
    json_object_set_new(row, "calls", json_real(l->calls));
    json_object_set_new(row, "ms_per_step", json_real(l->ms));
    json_object_set_new(row, "share", json_real(l->share));
    json_object_set_new(row, "gflops", number(l->gflops));
    json_object_set_new(row, "peak_share", number(l->peak_share));
    json_object_set_new(row, "gbps", number(l->gbps));
    json_object_set_new(row, "copy_share", number(l->copy_share));
    return row;
}

static moert_status write_json(const char *path, const totals *t) {
    line lines[LINES];
    const size_t count = make_lines(t, lines);
    json_t *root = json_object(), *rows = json_array();
    json_object_set_new(root, "steps", json_integer((json_int_t)t->steps));
    json_object_set_new(root, "ranks", json_integer((json_int_t)t->ranks));
    json_object_set_new(root, "fma_peak_gflops", json_real(t->roof.gflops));
    json_object_set_new(root, "bf16_peak_gflops",
                        number(t->roof.bf16_gflops > 0.0 ? t->roof.bf16_gflops : -1.0));
    json_object_set_new(root, "copy_roof_gbps", json_real(t->roof.gbps));
    json_object_set_new(root, "ms_per_step", json_real(t->step.ns * 1e-6));
    json_object_set_new(root, "gemm_share", json_real(line_of(t, "", &t->gemm).share));
    json_object_set_new(root, "flight_ms_per_step", json_real(t->in_flight.ns * 1e-6));
    for (size_t i = 0; i < count; i++)
        json_array_append_new(rows, json_of(&lines[i]));
    json_object_set_new(root, "rows", rows);
    const moert_status status =
        moert_json_write(path, root, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(root);
    return status;
}

moert_status moert_breakdown_report(const moert_device *device, moert_comm *world,
                                    const moert_breakdown *breakdown, FILE *console,
                                    const char *path) {
    moert_status status = MOERT_OK;
    totals t;
    if (breakdown->steps == 0)
        return MOERT_OK;
    MOERT_TRY(sum_up(device, world, breakdown, &t));
    if (moert_comm_rank(world) == 0) {
        print(console, &t);
        if (path != NULL)
            status = write_json(path, &t);
    }
    return moert_comm_agree(world, status);
}
