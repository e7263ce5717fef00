/* Compiles programs that only NVIDIA runs: to PTX, and to kernels without bodies (driver.h). */
#include "driver.h"

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t bytes = 0;
    if (file == NULL || getdelim(&text, &bytes, '\0', file) < 0)
        return NULL;
    fclose(file);
    return text;
}

/* Writes one kernel without a body, with the parameter sizes of the PTX and the work-group size of
 * the source. `at` points after ".entry ". */
static void write_empty(FILE *to, const char *at, const char *source) {
    static const struct {
        const char *ptx, *type;
    } types[] = {{".u64 .ptr .global", "global uchar *"},
                 {".u8", "uchar"},
                 {".u16", "ushort"},
                 {".u32", "uint"},
                 {".u64", "ulong"},
                 {".f32", "float"}};
    const int length = (int)strcspn(at, "(");
    char *head = format_text("void %.*s(", length, at);
    const char *shape = NULL, *own = strstr(source, head), *comma = "";
    for (const char *next = source; (next = strstr(next, "reqd_work_group_size(")) != NULL; next++)
        shape = next < own ? next : shape;
    fprintf(to, "kernel __attribute__((%.*s))) %s", (int)strcspn(shape, ")"), shape, head);
    const char *end = strstr(at, "\n)");
    for (int i = 0; (at = strstr(at, ".param ")) != NULL && at < end; i++, comma = ", ") {
        unsigned bytes;
        at += strlen(".param ");
        if (sscanf(at, ".align %*u .b8 %*[^[][%u]", &bytes) == 1)
            fprintf(to, "%sstruct { uchar b[%u]; } p%d", comma, bytes, i);
        for (size_t t = 0; t < MOERT_COUNT(types); t++)
            if (strncmp(at, types[t].ptx, strlen(types[t].ptx)) == 0) {
                fprintf(to, "%s%s p%d", comma, types[t].type, i);
                break;
            }
    }
    fputs(") {}\n", to);
    free(head);
}

bool compile(program *p, const char *options) {
    const uint64_t hash = hash_of(options) ^ 31 * hash_of(p->source);
    char *path = format_text("%s/%016" PRIx64, getenv("CALLS_DIRECTORY"), hash);
    char *source = format_text("%s.cl", path), *plain = format_text("%s.i", path);
    char *ptx = format_text("%s.ptx", path), *clang = NULL, *text = NULL, *stub = NULL;
    char own[64] = "";
    const char *kept = strstr(options, "-cl-nv-maxrregcount=");
    const int before = kept != NULL ? (int)(kept - options) : (int)strlen(options);
    snprintf(own, sizeof own, "%.*s", kept != NULL ? (int)strcspn(kept, " ") : 0, kept);
    const char *after = options + before + strlen(own);
    size_t bytes;
    FILE *file = fopen(source, "wb");
    fputs(p->source, file);
    fclose(file);
    clang = format_text(
        "what='env -u LD_PRELOAD clang --target=nvptx64-nvidia-nvcl -x cl %.*s %s -Xclang "
        "-finclude-default-header -Xclang -target-cpu -Xclang sm_80 -Xclang -target-feature "
        "-Xclang +ptx70 %s'; [ -e %s ] || { $what -E -o %s && $what -O2 -S -o %s; }",
        before, options, after, source, ptx, plain, ptx);
    const bool done = system(clang) == 0 && (text = read_text(ptx)) != NULL;
    char *target = done ? strstr(text, ".target sm_80") : NULL;
    if (target != NULL) {
        memcpy(target, ".target sm_90", strlen(".target sm_90"));
        p->ptx = format_text("// program %u\n%s", p->number, text);
        free(source);
        source = read_text(plain);
        file = open_memstream(&stub, &bytes);
        for (const char *at = text; (at = strstr(at, ".entry ")) != NULL;)
            write_empty(file, at += strlen(".entry "), source);
        fclose(file);
        p->stub = stub;
        say("program %u: %s; PTX %016" PRIx64 "\n", p->number, options, hash_of(text));
    }
    free(text);
    free(clang);
    free(ptx);
    free(plain);
    free(source);
    free(path);
    return target != NULL;
}
