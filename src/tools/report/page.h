/* The page of a run: page.html, a self-contained file. The page's script draws the run's record,
 * which the file contains. */
#pragma once

#include "tools/report/trace.h"
#include "tools/report/verdict.h"

/* *page = the text of the page, which the caller frees. `name`: the run's name. `trace`: the result
 * of moert_trace_step_read, or NULL. Errors: ERROR_MEMORY. */
moert_status moert_report_page(const char *name, const moert_run_record *record,
                               const moert_verdict *verdict, const moert_verdict *comparison,
                               json_t *trace, char **page);
