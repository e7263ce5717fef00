/* Build tool: writes a C file with the names, relative to DIRECTORY, and the texts of kernel files:
 * embed DIRECTORY NAME... > kernels.c */
#include <stdio.h>
#include <unistd.h>

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

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) != 0) {
        fprintf(stderr, "embed: cannot change to the directory of the kernels\n");
        return 1;
    }
    printf("const char *const moert_embedded_names[] = {\n");
    for (int i = 2; i < argc; i++)
        printf("    \"%s\",\n", argv[i]);
    printf("    0};\nconst char *const moert_embedded_texts[] = {\n");
    for (int i = 2; i < argc; i++)
        if (!put_text(argv[i])) {
            fprintf(stderr, "embed: cannot read %s\n", argv[i]);
            return 1;
        }
    printf("    0};\n");
    return 0;
}
