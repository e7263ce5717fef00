/* Declarations that the files of fuzz_files share. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Ends the process with a message, which libFuzzer reports as a finding. */
void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* The input, and the path of the file to which it is written. */
extern const uint8_t *fuzz_input;
extern size_t fuzz_input_bytes;
extern char fuzz_path[128];

/* notes.c: receives the input as a datagram, as the watchdog of a job on three hosts does. */
moert_status read_notes(void);

/* hosts.c: reads the input as a hosts file, as the launch scripts do. */
moert_status read_hosts(void);
