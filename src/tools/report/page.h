/* The page of a run: one self-contained file without scripts. */
#pragma once

#include "tools/report/compare.h"
#include "tools/report/trace.h"
#include "tools/report/verdict.h"

/* *page = the text of the page, which the caller frees: XHTML that browsers also read as HTML.
 * `name` is the run's; `trace` and `comparison` may be NULL. Errors: ERROR_MEMORY. */
moert_status moert_report_page(const char *name, const moert_run_record *record,
                               const moert_verdict *verdict, const moert_comparison *comparison,
                               const moert_trace_step *trace, char **page);

/* The style of the page, as CSS: light and dark, wide and narrow, printed. Contains no character
 * that XML must escape. */
extern const char moert_report_style[];
