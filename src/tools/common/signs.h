/*
 * Signs of long activities (base/progress.h) on stderr. On a terminal, a line shows the activity
 * that has lasted for more than two seconds, and its time. In a file, lines tell it after 2, 10, 30
 * and 60 seconds, then every minute:
 *
 *   ... compiling kernels: 12 so far, 10 s
 *   ... evaluating: 8 of 32, 30 s
 */
#pragma once

/* Starts a thread that writes signs. Without a thread, there are no signs. */
void moert_signs_begin(void);
/* Ends the thread, if it was started. */
void moert_signs_end(void);
