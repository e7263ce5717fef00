/* Declarations that the files of fuzz_files share. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Ends the process with a message, as a finding. */
void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* notes.c: receives `bytes` from the network as the watchdog of a job on three hosts does. */
moert_status fuzz_notes(const uint8_t *bytes, size_t count);

/* hosts.c: reads a file of hosts as the launch scripts do. */
moert_status fuzz_hosts(const char *path);
