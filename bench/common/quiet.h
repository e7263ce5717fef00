/*
 * Whether other programs had the cores: a contender that divides its work evenly loses more to them
 * than one that does not, so that ratios taken on a busy machine mislead.
 */
#pragma once

#include <stdbool.h>

/* Seconds for which threads of this process were ready to run and had no core, so far (Linux counts
 * them); with or without the calling thread. 0 when that is not known. */
double bench_waited_seconds(bool caller_too);

void bench_sleep(double seconds);
