/* Build tool: turns the files below a directory into one C file with their names, relative to it,
 * and their texts: embed DIRECTORY NAME... > kernels.c */
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

int main(int count, char **words) {
    if (count < 2 || chdir(words[1]) != 0) {
        fprintf(stderr, "embed: cannot enter the directory of the kernels\n");
        return 1;
    }
    printf("const char *const moert_embedded_names[] = {\n");
    for (int i = 2; i < count; i++)
        printf("    \"%s\",\n", words[i]);
    printf("    0};\nconst char *const moert_embedded_texts[] = {\n");
    for (int i = 2; i < count; i++)
        if (!put_text(words[i])) {
            fprintf(stderr, "embed: cannot read %s\n", words[i]);
            return 1;
        }
    printf("    0};\n");
    return 0;
}
