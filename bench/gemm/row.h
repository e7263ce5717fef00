/* The rows of bench_gemm, as aligned columns and as JSON. */
#pragma once

#include "bench/common/report.h"
#include "bench/gemm/gemm.h"

typedef struct bench_row {
    bench_shape shape;
    moert_op_kind op;
    moert_dtype type;
    bool ragged;
    const char *backend, *rival; /* rival: its description, or NULL */
    double gflops, p10, p90;     /* median and spread over the samples */
    double peak, rival_gflops;   /* 0 = unknown */
    double waited;               /* fraction of the time for which a thread lacked a core */
    double goal;                 /* the ratio to reach; 0 = none */
    size_t wrong;
} bench_row;

double bench_row_ratio(const bench_row *row); /* of the medians; 0 without a rival */
/* Other programs took so much of the cores that the ratio means little. */
bool bench_row_disturbed(const bench_row *row);
bool bench_row_holds(const bench_row *row); /* whether the ratio reaches its goal, undisturbed */

void bench_report_titles(void);
void bench_report_row(const bench_row *row);
/* Prints the result of one backend in a line of several; with `first`, also the shape before it. */
void bench_report_backend(const bench_row *row, bool first);
moert_status bench_report_add(bench_rows *rows, const bench_row *row);
