/*
 * Help for the leak checker. It suppresses leaks by module (lsan.supp), but cannot name the module
 * of a block after MPI or PoCL have unloaded it. So plug-ins stay loaded until the process ends.
 * And it does not see what only thread-local storage points to (tests/run), such as the message of
 * the last error of dlopen in glibc since 2.34. So that message is freed.
 */
#include <dlfcn.h>
#include <stdlib.h>

__attribute__((visibility("default"))) int dlclose(void *handle) {
    (void)handle;
    return 0;
}

/* The first call of dlerror marks the message as read, the second one frees it. */
static void free_last_error(void) {
    dlerror();
    dlerror();
}

__attribute__((constructor)) static void free_last_error_at_end(void) {
    atexit(free_last_error);
}
