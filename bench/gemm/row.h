/* The rows of bench_gemm: aligned columns for a reader, the same as JSON for a script. */
#pragma once

#include "bench/common/report.h"
#include "bench/gemm/gemm.h"

typedef struct bench_row {
    bench_shape shape;
    bench_op op;
    moert_dtype type;
    bool ragged;
    const char *backend, *rival; /* rival: what it says of itself, or NULL */
    double gflops, p10, p90;     /* median and spread over the samples */
    double peak, rival_gflops;   /* 0 = not known */
    double waited;               /* share of the time for which a thread lacked a core */
    double goal;                 /* smallest ratio that is asked for; 0 = none */
    size_t wrong;
} bench_row;

double bench_row_ratio(const bench_row *row); /* of the medians; 0 without a rival */
/* Other programs had so much of the cores that the ratio says little. */
bool bench_row_disturbed(const bench_row *row);
bool bench_row_holds(const bench_row *row); /* reaches its goal, undisturbed */

void bench_report_titles(void);
void bench_report_row(const bench_row *row);
/* With several backends in a line: `first` puts the shape before it. */
void bench_report_backend(const bench_row *row, bool first);
moert_status bench_report_add(bench_rows *rows, const bench_row *row);
