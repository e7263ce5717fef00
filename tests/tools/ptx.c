/* ptx FILE ARENA_BYTES: turns PTX of another compiler into PTX for sm_90a, as the library does with
 * the PTX of NVIDIA's driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "device/nvidia/ptx.h"

/* Reads PTX from a file, and replaces its version and target by those of NVIDIA's OpenCL
 * compiler. */
static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    static char text[8 << 20];
    if (file == NULL)
        return NULL;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *version = strstr(text, ".version"), *target = strstr(text, ".target");
    const char *rest = target != NULL ? strchr(target, '\n') : NULL;
    if (version == NULL || rest == NULL)
        return NULL;
    return moert_text_format(".version 8.3\n.target sm_90\n%s", rest + 1);
}

int main(int argc, char **argv) {
    char *text = argc == 3 ? read_text(argv[1]) : NULL, *transformed;
    if (text == NULL || moert_ptx_transform(text, strtoul(argv[2], NULL, 10), &transformed) != 0) {
        fprintf(stderr, "usage: ptx FILE ARENA_BYTES\n");
        return 1;
    }
    fputs(transformed, stdout);
    free(transformed);
    free(text);
    return 0;
}
