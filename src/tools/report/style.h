/* The style of a report: light and dark, wide and narrow, on paper. */
#pragma once

/* CSS, without a character that XML would have to escape. */
extern const char moert_report_style[];
