/* Build tool: turns kernel files into one C file with their names and texts. embed FILE... >
 * kernels.c */
#include <stdio.h>
#include <string.h>

static int put_text(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return 0;
    int column = 0;
    printf("    (const char[]){");
    for (int byte; (byte = fgetc(file)) != EOF; column++)
        printf("%s%d,", column % 24 == 0 ? "\n    " : "", byte);
    printf("0},\n");
    fclose(file);
    return 1;
}

int main(int count, char **paths) {
    printf("const char *const moert_embedded_names[] = {\n");
    for (int i = 1; i < count; i++) {
        const char *slash = strrchr(paths[i], '/');
        printf("    \"%s\",\n", slash != NULL ? slash + 1 : paths[i]);
    }
    printf("    0};\nconst char *const moert_embedded_texts[] = {\n");
    for (int i = 1; i < count; i++)
        if (!put_text(paths[i])) {
            fprintf(stderr, "embed: cannot read %s\n", paths[i]);
            return 1;
        }
    printf("    0};\n");
    return 0;
}
