/* moert-preflight: before a job starts, checks that its ranks agree in software and settings, and
 * are equally fast. */
#include <stdio.h>

#include "base/memory.h"
#include "io/durable.h"
#include "io/json.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/preflight/preflight.h"

static double slow, seconds, stress;
static const char *json_path;

static const moert_option options[] = {
    {"slow", MOERT_OPTION_FLOAT, &slow, "0.6", "0.01..1",
     "fraction of the median rate below which a rank or a link is slow"},
    {"seconds", MOERT_OPTION_FLOAT, &seconds, "4", "0.1..600",
     "time to measure the links inside of nodes, and again for those between nodes"},
    {"stress", MOERT_OPTION_FLOAT, &stress, "1", "0..86400",
     "seconds in which each rank computes the same GEMM again and compares the bits"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, "FILE",
     "file for the whole report, as one JSON object"},
};

static const moert_column columns[] = {
    {"rank", "rank", MOERT_COLUMN_COUNT},
    {"host", "host", MOERT_COLUMN_TEXT},
    {"cores", "cores", MOERT_COLUMN_COUNT},
    {"memory", "memory", MOERT_COLUMN_BYTES},
    {"shm", "/dev/shm", MOERT_COLUMN_BYTES},
    {"skew_s", "clock s", MOERT_COLUMN_REAL},
#define RATE_COLUMN(field, title, unit) {#field, title " " unit, MOERT_COLUMN_REAL},
    MOERT_RATE_TABLE(RATE_COLUMN)
#undef RATE_COLUMN
        {"inside_gbps", "node GB/s", MOERT_COLUMN_REAL},
    {"inside_us", "us", MOERT_COLUMN_REAL},
    {"between_gbps", "net GB/s", MOERT_COLUMN_REAL},
    {"between_us", "us", MOERT_COLUMN_REAL},
};

/* ---- JSON ---- */

static json_t *rank_row(size_t r, const moert_preflight_rank *rank) {
    json_t *row =
        json_pack("{sI ss sI sI sb sb sI sI sI sI sf sf sf sf sf}", "rank", (json_int_t)r, "host",
                  rank->host, "node", (json_int_t)rank->node, "cores", (json_int_t)rank->cores,
                  "shared", rank->shared, "watched", rank->watched, "memory",
                  (json_int_t)rank->memory_bytes, "shm", (json_int_t)rank->shm_bytes, "runs",
                  (json_int_t)rank->runs, "wrong_runs", (json_int_t)rank->wrong_runs, "skew_s",
                  rank->skew_s, "inside_gbps", rank->inside, "inside_us", rank->inside_us,
                  "between_gbps", rank->between, "between_us", rank->between_us);
#define PUT_TEXT(field, differs, hint) json_object_set_new(row, #field, json_string(rank->field));
    MOERT_PREFLIGHT_TEXTS(PUT_TEXT)
#undef PUT_TEXT
#define PUT_RATE(field, title, unit) json_object_set_new(row, #field, json_real(rank->rates.field));
    MOERT_RATE_TABLE(PUT_RATE)
#undef PUT_RATE
    return row;
}

static json_t *link_rows(const moert_preflight *all) {
    json_t *rows = json_array();
    for (size_t a = 0; a < all->ranks; a++)
        for (size_t b = a + 1; b < all->ranks; b++) {
            const moert_link *link = &all->links[a * all->ranks + b];
            if (link->gbps > 0.0)
                json_array_append_new(rows, json_pack("{sI sI sb sf sf}", "a", (json_int_t)a, "b",
                                                      (json_int_t)b, "inside",
                                                      all->rank[a].node == all->rank[b].node, "us",
                                                      link->us, "gbps", link->gbps));
        }
    return rows;
}

static moert_status make_report(const moert_preflight *all, json_t *findings, json_t **report) {
    json_t *ranks = json_array();
    for (size_t r = 0; r < all->ranks; r++)
        json_array_append_new(ranks, rank_row(r, &all->rank[r]));
    *report =
        json_pack("{so so sO}", "ranks", ranks, "links", link_rows(all), "findings", findings);
    if (*report == NULL || json_array_size(ranks) != all->ranks)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the report");
    return MOERT_OK;
}

/* ---- text ---- */

/* Prints the bandwidths in GB/s between the first ranks of the nodes, if there are 3 to MOST_NODES
 * nodes. */
static void print_matrix(const moert_preflight *all) {
    enum { MOST_NODES = 16 };
    size_t first[MOST_NODES], nodes = 0;
    for (size_t r = 0; r < all->ranks; r++)
        if (all->rank[r].node == nodes) {
            if (nodes == MOST_NODES)
                return;
            first[nodes++] = r;
        }
    if (nodes < 3)
        return;
    printf("\nGB/s each way between the first ranks of nodes\n");
    for (size_t a = 0; a < nodes; a++) {
        printf("  %-16s", all->rank[first[a]].host);
        for (size_t b = 0; b < nodes; b++)
            printf(a == b ? "       -" : " %7.3g",
                   all->links[first[a] * all->ranks + first[b]].gbps);
        printf("\n");
    }
}

/* Prints the findings. Adds the number of findings that are not just notes to *wrong. */
static void print_findings(const json_t *findings, size_t *wrong) {
    size_t i;
    json_t *finding;
    json_array_foreach(findings, i, finding) {
        const bool is_wrong = json_is_true(json_object_get(finding, "wrong"));
        *wrong += is_wrong;
        printf("%s%s: %s\n        (%s)\n", i == 0 ? "\n" : "", is_wrong ? "WRONG" : "note",
               json_string_value(json_object_get(finding, "text")),
               json_string_value(json_object_get(finding, "hint")));
    }
}

static moert_status print(const moert_preflight *all, const json_t *report, size_t *wrong) {
    const moert_preflight_rank *rank = all->rank;
    size_t nodes = 0;
    for (size_t r = 0; r < all->ranks; r++)
        nodes = rank[r].node >= nodes ? rank[r].node + 1 : nodes;
    printf("moert %s, %s\n%s, %s\n\n", rank->commit, rank->mpi, rank->device, rank->driver);
    MOERT_TRY(
        moert_table_print(stdout, json_object_get(report, "ranks"), columns, MOERT_COUNT(columns)));
    print_matrix(all);
    print_findings(json_object_get(report, "findings"), wrong);
    printf("\npreflight: %zu rank%s on %zu node%s: ", all->ranks, all->ranks > 1 ? "s" : "", nodes,
           nodes > 1 ? "s" : "");
    if (*wrong > 0)
        printf("%zu thing%s wrong\n", *wrong, *wrong > 1 ? "s are" : " is");
    else
        printf("ready\n");
    return MOERT_OK;
}

/* ---- gathering and printing ---- */

static moert_status tell(moert_preflight *all) {
    json_t *findings = NULL, *report = NULL;
    size_t wrong = 0;
    moert_status status;
    MOERT_TRY(moert_preflight_judge(all, slow, &findings));
    MOERT_TRY_OR(done, make_report(all, findings, &report));
    MOERT_TRY_OR(done, print(all, report, &wrong));
    if (json_path != NULL)
        MOERT_TRY_OR(done, moert_json_write(json_path, report, JSON_INDENT(1)));
    status = moert_program_flush();
    if (status == MOERT_OK && wrong > 0)
        status = MOERT_FAIL(ERROR_MISMATCH, "%zu finding%s above", wrong, wrong > 1 ? "s" : "");
done:
    json_decref(report);
    json_decref(findings);
    return status;
}

static moert_status run(moert_context *context) {
    moert_comm *world = moert_context_comm(context);
    moert_preflight all = {0};
    moert_status status = moert_preflight_gather(context, MOERT_COMMIT, stress, seconds, &all);
    if (status == MOERT_OK)
        status = moert_comm_agree(world, moert_comm_rank(world) == 0 ? tell(&all) : MOERT_OK);
    moert_preflight_free(&all);
    return status;
}

int main(int argc, char **argv) {
    const moert_program program = {
        .synopsis = "mpirun -n R moert-preflight [OPTION...]",
        .about =
            "Checks the ranks of a job before it starts: equal builds, libraries, devices and "
            "settings;\n"
            "clocks, memory, watchdog; rates of devices and of the links between ranks; devices "
            "that "
            "compute\n"
            "other bits. Names the ranks and links that differ or are slow, and then exits with 1.",
        .options = options,
        .option_count = MOERT_COUNT(options),
        .run = run,
        .any_variables = true,
    };
    return moert_program_main(&program, argc, argv);
}
