/* Computes and prints the breakdown of a training step's time. */
#include "train/breakdown.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "gemm/gemm.h"
#include "io/json.h"

uint64_t moert_breakdown_from(uint64_t first, uint64_t end) {
    const uint64_t left = end > first ? end - first : 1;
    return first + moert_min(MOERT_BREAKDOWN_SKIPS, left - 1);
}

moert_status moert_peaks_measure(moert_device *device, moert_comm *world, bool bf16,
                                 moert_roof *roof) {
    const size_t peak = moert_device_peak_bytes(device);
    *roof = (moert_roof){0};
    moert_status status = moert_roof_measure(device, roof);
    if (status == MOERT_OK && bf16)
        status = moert_gemm_peak(device, &roof->bf16_gflops);
    moert_device_set_peak(device, peak);
    return moert_comm_agree(world, status);
}

moert_status moert_breakdown_start(moert_device *device, moert_comm *world, bool bf16,
                                   uint64_t first, uint64_t end, moert_breakdown *breakdown) {
    *breakdown = (moert_breakdown){.from = moert_breakdown_from(first, end)};
    MOERT_TRY(moert_comm_agree(world, moert_profile_enable(device)));
    return moert_peaks_measure(device, world, bf16, &breakdown->roof);
}

/* ---- means ---- */

/* Means over the ranks. */
typedef struct means {
    moert_profile profile; /* profile of one step */
    moert_roof roof;
    moert_profile_row gemm, step;
    uint64_t steps;
    size_t ranks;
} means;

/* The values that a rank sends to all other ranks. */
typedef struct message {
    moert_profile profile;
    moert_roof roof;
} message;

static moert_status take_means(const moert_device *device, moert_comm *world,
                               const moert_breakdown *breakdown, means *m) {
    const size_t ranks = moert_comm_size(world);
    const double part = 1.0 / (double)ranks;
    message mine = {.roof = breakdown->roof}, *all;
    moert_profile_add(&mine.profile, moert_profile_get(device), 1.0 / (double)breakdown->steps);
    MOERT_TRY(moert_alloc(&all, ranks, sizeof *all));
    const moert_status status = moert_comm_allgather(world, &mine, sizeof mine, all);
    *m = (means){.steps = breakdown->steps, .ranks = ranks};
    for (size_t r = 0; status == MOERT_OK && r < ranks; r++) {
        m->roof.gflops += all[r].roof.gflops * part;
        m->roof.gbps += all[r].roof.gbps * part;
        m->roof.bf16_gflops += all[r].roof.bf16_gflops * part;
        moert_profile_add(&m->profile, &all[r].profile, part);
    }
    free(all);
    m->step.ns = m->profile.wall_ns;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++) {
        const moert_profile_row *row = &m->profile.row[i];
        if (!moert_operation_is_gemm((moert_operation)i))
            continue;
        m->gemm.ns += row->ns;
        m->gemm.flops += row->flops;
        m->gemm.bf16_flops += row->bf16_flops;
    }
    return status;
}

/* ---- lines ---- */

/* X(name in the JSON, title in the table, width, digits, unit, factor from the value in the JSON to
 * the value in the table) */
#define COLUMN_TABLE(X)                                                                            \
    X(calls, "calls", 7, 1, "", 1.0)                                                               \
    X(ms_per_step, "ms/step", 10, 3, "", 1.0)                                                      \
    X(share, "share", 8, 1, " %", 100.0)                                                           \
    X(gflops, "GFLOP/s", 9, 1, "", 1.0)                                                            \
    X(peak_share, "of peak", 8, 1, " %", 100.0)                                                    \
    X(gbps, "GB/s", 8, 1, "", 1.0)                                                                 \
    X(copy_share, "of copy", 8, 1, " %", 100.0)

/* A line of the table. A rate is work divided by time, or -1 if work or time is 0. */
typedef struct line {
    const char *name;
#define COLUMN_FIELD(name, ...) double name;
    COLUMN_TABLE(COLUMN_FIELD)
#undef COLUMN_FIELD
} line;

static line line_of(const means *m, const char *name, const moert_profile_row *row) {
    const double bf16_gflops = m->roof.bf16_gflops > 0.0 ? m->roof.bf16_gflops : m->roof.gflops;
    const double least_ns =
        (row->flops - row->bf16_flops) / m->roof.gflops + row->bf16_flops / bf16_gflops;
    const bool computes = row->flops > 0.0 && row->ns > 0.0;
    const bool moves = row->bytes > 0.0 && row->ns > 0.0;
    return (line){name,
                  row->calls,
                  row->ns * 1e-6,
                  m->step.ns > 0.0 ? row->ns / m->step.ns : 0.0,
                  computes ? row->flops / row->ns : -1.0,
                  computes ? least_ns / row->ns : -1.0,
                  moves ? row->bytes / row->ns : -1.0,
                  moves ? row->bytes / row->ns / m->roof.gbps : -1.0};
}

/* Makes a line for each operation that was called, and one for the host. Returns the number of
 * lines. */
static size_t make_lines(const means *m, line lines[MOERT_OPERATIONS]) {
    size_t count = 0;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        if (m->profile.row[i].calls > 0.0 || i == MOERT_OPERATION_HOST)
            lines[count++] =
                line_of(m, moert_operation_text((moert_operation)i), &m->profile.row[i]);
    return count;
}

/* ---- the table ---- */

/* Prints a number, or "-" if it is negative. */
static void put_number(FILE *file, int width, int digits, double value, const char *unit) {
    if (value < 0.0)
        fprintf(file, " %*s", width, "-");
    else
        fprintf(file, " %*.*f%s", width - (int)strlen(unit), digits, value, unit);
}

static void put_line(FILE *file, line l) {
    /* only operations have a number of calls, not the step and the host */
    l.calls = l.calls > 0.0 ? l.calls : -1.0;
    fprintf(file, "  %-23s", l.name);
#define PUT_NUMBER(name, title, width, digits, unit, factor)                                       \
    put_number(file, width, digits, (l.name) * (factor), unit);
    COLUMN_TABLE(PUT_NUMBER)
#undef PUT_NUMBER
    fputc('\n', file);
}

static void print(FILE *file, const means *m) {
    line lines[MOERT_OPERATIONS];
    const size_t count = make_lines(m, lines);
    const line gemm = line_of(m, "", &m->gemm);
    fprintf(file, "\nprofile of %llu step%s, means of %zu rank%s; at best %.1f GFLOP/s (FMA), ",
            (unsigned long long)m->steps, m->steps > 1 ? "s" : "", m->ranks,
            m->ranks > 1 ? "s" : "", m->roof.gflops);
    if (m->roof.bf16_gflops > 0.0)
        fprintf(file, "%.1f GFLOP/s (GEMM in bf16), ", m->roof.bf16_gflops);
    fprintf(file, "%.1f GB/s (copy)\n  %-23s", m->roof.gbps, "operation");
#define PUT_TITLE(name, title, width, ...) fprintf(file, " %*s", width, title);
    COLUMN_TABLE(PUT_TITLE)
#undef PUT_TITLE
    fputc('\n', file);
    for (size_t i = 0; i < count; i++)
        put_line(file, lines[i]);
    put_line(file, line_of(m, "step", &m->step));
    fprintf(file, "  GEMM: %.1f %% of the step", gemm.share * 100.0);
    if (gemm.gflops >= 0.0)
        fprintf(file, ", at %.1f GFLOP/s, %.1f %% of the peak", gemm.gflops,
                gemm.peak_share * 100.0);
    if (m->profile.message_ns > 0.0)
        fprintf(file,
                "\n  rows in flight: %.3f ms a step; waits for them, late ranks and plans: %.3f ms",
                m->profile.message_ns * 1e-6,
                m->profile.row[MOERT_OPERATION_EXCHANGE_WAIT].ns * 1e-6);
    fputs("\n\n", file);
    fflush(file);
}

/* ---- JSON ---- */

static json_t *number(double value) {
    return value < 0.0 ? json_null() : json_real(value);
}

static moert_status write_json(const char *out, const means *m) {
    line lines[MOERT_OPERATIONS];
    const size_t count = make_lines(m, lines);
    json_t *rows = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *row = json_pack("{ss}", "name", lines[i].name);
#define SET_NUMBER(name, ...) json_object_set_new(row, #name, number(lines[i].name));
        COLUMN_TABLE(SET_NUMBER)
#undef SET_NUMBER
        json_array_append_new(rows, row);
    }
    json_t *root =
        json_pack("{sI sI sf so sf sf sf sf so}", "steps", (json_int_t)m->steps, "ranks",
                  (json_int_t)m->ranks, "fma_peak_gflops", m->roof.gflops, "bf16_peak_gflops",
                  number(m->roof.bf16_gflops > 0.0 ? m->roof.bf16_gflops : -1.0), "copy_roof_gbps",
                  m->roof.gbps, "ms_per_step", m->step.ns * 1e-6, "gemm_share",
                  line_of(m, "", &m->gemm).share, "flight_ms_per_step",
                  m->profile.message_ns * 1e-6, "rows", rows);
    return moert_json_write_new(out, "profile.json", root, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
}

moert_status moert_breakdown_report(const moert_device *device, moert_comm *world,
                                    const moert_breakdown *breakdown, FILE *console,
                                    const char *out) {
    moert_status status = MOERT_OK;
    means m;
    if (breakdown->steps == 0)
        return MOERT_OK;
    MOERT_TRY(take_means(device, world, breakdown, &m));
    if (moert_comm_rank(world) == 0) {
        print(console, &m);
        if (out != NULL)
            status = write_json(out, &m);
    }
    return moert_comm_agree(world, status);
}
