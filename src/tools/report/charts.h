/* The figures of a report, as SVG that scales with the page's width, and their numbers as text. */
#pragma once

#include "tools/report/markup.h"
#include "tools/report/verdict.h"

/* Curves over the steps: the loss, with held-out losses as dots, and tokens per second. */
void moert_chart_loss(moert_markup *m, const moert_run_record *record);
void moert_chart_speed(moert_markup *m, const moert_run_record *record);
/* Of a watched run: the part of the devices' peak. */
void moert_chart_mfu(moert_markup *m, const moert_run_record *record);

/* A bar for each rank's mean step, divided by the classes of MOERT_TIME_TABLE, with a legend. Marks
 * the verdict's late rank. */
void moert_chart_times(moert_markup *m, const moert_run_record *record,
                       const moert_verdict *verdict);

/* values[ranks,ranks] as a heat map: its title, the labels of its axes, and the unit of a value. */
typedef struct moert_matrix_text {
    const char *name, *row, *column, *unit;
} moert_matrix_text;
void moert_chart_matrix(moert_markup *m, const moert_run_record *record, const double *values,
                        const moert_matrix_text *text);

/* The full width of the heat map of moert_chart_matrix, in CSS pixels. */
double moert_matrix_width(size_t ranks);

/* A heat map of each layer's rows by expert, with frames around hot experts. */
void moert_chart_load(moert_markup *m, const moert_run_record *record);
