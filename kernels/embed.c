/* Build tool that embeds files: embed WHAT DIRECTORY NAME... > WHAT.c writes a C file with two
 * arrays of strings. moert_WHAT_names holds the files' names relative to DIRECTORY, and
 * moert_WHAT_texts their texts. */
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
    if (argc < 3 || chdir(argv[2]) != 0) {
        fprintf(stderr, "embed: cannot change to the directory of the files\n");
        return 1;
    }
    printf("const char *const moert_%s_names[] = {\n", argv[1]);
    for (int i = 3; i < argc; i++)
        printf("    \"%s\",\n", argv[i]);
    printf("    0};\nconst char *const moert_%s_texts[] = {\n", argv[1]);
    for (int i = 3; i < argc; i++)
        if (!put_text(argv[i])) {
            fprintf(stderr, "embed: cannot read %s\n", argv[i]);
            return 1;
        }
    printf("    0};\n");
    return 0;
}
