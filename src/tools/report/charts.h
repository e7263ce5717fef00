/* The figures of a report, as SVG whose widths follow the page's; numbers lie beside them as
 * text. */
#pragma once

#include "tools/report/markup.h"
#include "tools/report/verdict.h"

/* Curves over the steps: the loss, with held-out ones as dots, or tokens per second. */
void moert_chart_loss(moert_markup *m, const moert_run_record *record);
void moert_chart_speed(moert_markup *m, const moert_run_record *record);

/* A bar for each rank's mean step, in the classes of MOERT_TIME_TABLE, with a legend; the verdict's
 * late rank is marked. */
void moert_chart_times(moert_markup *m, const moert_run_record *record,
                       const moert_verdict *verdict);

/* values[ranks,ranks] as a heat map; `name` titles it, `row` and `column` say of which rank. */
typedef struct moert_matrix_text {
    const char *name, *row, *column, *unit;
} moert_matrix_text;
void moert_chart_matrix(moert_markup *m, const moert_run_record *record, const double *values,
                        const moert_matrix_text *text);

/* How wide that is, in CSS pixels, where there is room. */
double moert_matrix_width(size_t ranks);

/* Each layer's rows by expert, hot ones framed. */
void moert_chart_load(moert_markup *m, const moert_run_record *record);
