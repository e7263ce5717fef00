/*
 * Prevents false reports of the leak checker. The checker suppresses leaks by module (lsan.supp),
 * but cannot name a block's module after MPI or PoCL have unloaded the module. So this file keeps
 * plug-ins loaded until the process ends. The checker also does not see blocks to which only
 * thread-local storage points (tests/run), such as the message of dlopen's last error in glibc
 * since 2.34. So this file frees that message.
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
