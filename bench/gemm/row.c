/* Prints and writes the rows of bench_gemm. */
#include "bench/gemm/row.h"

#include <stdio.h>

double bench_row_ratio(const bench_row *row) {
    return row->rival_gflops > 0.0 ? row->gflops / row->rival_gflops : 0.0;
}

bool bench_row_disturbed(const bench_row *row) {
    return row->waited > 0.05;
}

bool bench_row_holds(const bench_row *row) {
    return row->goal > 0.0 && bench_row_ratio(row) >= row->goal && !bench_row_disturbed(row);
}

/* Prints a number right-aligned, or a dash if it is unknown (0). */
static void put(int width, int digits, double value) {
    if (value > 0.0)
        printf(" %*.*f", width, digits, value);
    else
        printf(" %*s", width, "-");
}

void bench_report_titles(void) {
    printf("#%-5s %-5s %3s %4s %5s %5s %-8s %8s %5s %7s %6s %13s %7s %5s  %s\n", "op", "dtype", "E",
           "M", "N", "K", "groups", "GFLOP/s", "peak%", "rival", "ratio", "p10-p90", "waited%",
           "wrong", "goal");
    fflush(stdout);
}

static void put_shape(const bench_row *row) {
    printf("%-6s %-5s %3zu %4zu %5zu %5zu %-8s", bench_op_name(row->op),
           moert_dtype_name(row->type), row->shape.experts, row->shape.rows, row->shape.n,
           row->shape.k, row->ragged ? "ragged" : "balanced");
}

void bench_report_backend(const bench_row *row, bool first) {
    if (first)
        put_shape(row);
    printf("  %9s %8.1f %5zu", row->backend, row->gflops, row->wrong);
    fflush(stdout);
}

void bench_report_row(const bench_row *row) {
    char spread[32];
    snprintf(spread, sizeof spread, "%.1f-%.1f", row->p10, row->p90);
    put_shape(row);
    printf(" %8.1f", row->gflops);
    put(5, 1, row->peak > 0.0 ? 100.0 * row->gflops / row->peak : 0.0);
    put(7, 1, row->rival_gflops);
    put(6, 2, bench_row_ratio(row));
    printf(" %13s %7.1f %5zu", spread, 100.0 * row->waited, row->wrong);
    if (row->goal > 0.0 && row->rival_gflops > 0.0)
        printf("  %.2f %s", row->goal,
               bench_row_disturbed(row) ? "disturbed"
               : bench_row_holds(row)   ? "holds"
                                        : "missed");
    printf("\n");
    fflush(stdout);
}

/* A JSON number, or null if it is unknown (0). */
static json_t *number(double value) {
    return value > 0.0 ? json_real(value) : json_null();
}

moert_status bench_report_add(bench_rows *rows, const bench_row *row) {
    const double ratio = bench_row_ratio(row);
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:s?, s:s, s:f, s:f, s:f, s:f, s:o, s:s?, s:o, s:o, "
        "s:o, s:I}",
        "op", bench_op_name(row->op), "dtype", moert_dtype_name(row->type), "E",
        (json_int_t)row->shape.experts, "M", (json_int_t)row->shape.rows, "N",
        (json_int_t)row->shape.n, "K", (json_int_t)row->shape.k, "groups",
        row->ragged ? "ragged" : "balanced", "model", row->shape.model, "backend", row->backend,
        "gflops", row->gflops, "p10", row->p10, "p90", row->p90, "waited", row->waited, "peak",
        number(row->peak), "rival", row->rival, "rival_gflops", number(row->rival_gflops), "ratio",
        number(ratio), "goal", number(row->goal), "wrong", (json_int_t)row->wrong);
    return bench_rows_add(rows, object, row->wrong);
}
