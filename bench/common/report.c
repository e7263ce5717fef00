/* Collects and writes the rows of a bench; reads the machine's name. */
#include "bench/common/report.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "io/json.h"

moert_status bench_rows_add(bench_rows *rows, json_t *row, size_t wrong) {
    if (row == NULL || json_array_append_new(rows->json, row) != 0)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the rows");
    rows->wrong += wrong;
    return MOERT_OK;
}

moert_status bench_rows_write(const bench_rows *rows, const char *path) {
    return moert_json_write(path, rows->json, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
}

moert_status bench_rows_end(bench_rows *rows, moert_context *context, const char *path,
                            const char *what, moert_status status) {
    if (status == MOERT_OK && path != NULL && moert_context_rank(context) == 0)
        status = bench_rows_write(rows, path);
    if (status == MOERT_OK && rows->wrong > 0)
        status = MOERT_FAIL(ERROR_NUMERIC, "%zu %s are wrong", rows->wrong, what);
    json_decref(rows->json);
    return moert_comm_agree(moert_context_comm(context), status);
}

void bench_report_machine(char *text, size_t bytes) {
    char line[256], *value;
    struct utsname system = {0};
    uname(&system);
    /* for processors whose lines name no model, such as AArch64's */
    snprintf(text, bytes, "%s, %s", system.nodename, system.machine);
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "model name", 10) == 0 && (value = strchr(line, ':')) != NULL) {
            value[strcspn(value, "\n")] = '\0';
            snprintf(text, bytes, "%s, %s", system.nodename, value + 2);
            break;
        }
    if (file != NULL)
        fclose(file);
}

const char *bench_report_commit(void) {
    return MOERT_COMMIT;
}
