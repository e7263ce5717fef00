/* The page of a run: one file without scripts, with everything in it. */
#pragma once

#include "tools/report/trace.h"
#include "tools/report/verdict.h"

/* The page as text, to be freed: XHTML that browsers take as HTML, too. `name` is the run's;
 * a trace may be NULL. Errors: ERROR_MEMORY. */
moert_status moert_report_page(const char *name, const moert_run_record *record,
                               const moert_verdict *verdict, const moert_trace_step *trace,
                               char **page);

/* Its style, light and dark, wide and narrow, on paper: CSS, without a character that XML would have
 * to escape. */
extern const char moert_report_style[];
