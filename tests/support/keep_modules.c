/*
 * Keeps plug-ins loaded until the process ends: the leak checker names their blocks by module
 * (lsan.supp), which it cannot do after MPI or PoCL have unloaded them.
 */
#include <dlfcn.h>

__attribute__((visibility("default"))) int dlclose(void *handle) {
    (void)handle;
    return 0;
}
