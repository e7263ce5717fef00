/* Helpers for open files. */
#include "base/files.h"

#include <unistd.h>

void moert_close_files(int *files, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (files[i] >= 0)
            close(files[i]);
        files[i] = -1;
    }
}
