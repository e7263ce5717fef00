/* The style of a report: light and dark, wide and narrow, on paper. */
#ifndef MOERT_TOOLS_REPORT_STYLE_H
#define MOERT_TOOLS_REPORT_STYLE_H

/* CSS, without a character that XML would have to escape. */
extern const char moert_report_style[];

#endif
