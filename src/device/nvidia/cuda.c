/* Opens NVIDIA's driver library, and names its errors. */
#include "device/nvidia/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "device/internal.h"

static struct {
    const char *pci;     /* of the GPU */
    const char *missing; /* why the library cannot be used, or NULL */
    moert_cuda cuda;
} driver;
static pthread_once_t opened = PTHREAD_ONCE_INIT;
const moert_cuda *moert_cuda_substitute;

static void open_driver(void) {
    moert_cuda *cuda = &driver.cuda;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        driver.missing = "libcuda.so.1 cannot be opened";
        return;
    }
#define LOAD(field, symbol, parameters) *(void **)(void *)&cuda->field = dlsym(library, symbol);
    MOERT_CUDA_TABLE(LOAD)
#undef LOAD
    if (cuda->initialise == NULL || cuda->find == NULL || cuda->retain == NULL ||
        cuda->set_current == NULL)
        driver.missing = "libcuda.so.1 is not NVIDIA's";
    else if (cuda->initialise(0) != 0 || cuda->find(&cuda->device, driver.pci) != 0 ||
             cuda->retain(&cuda->context, cuda->device) != 0)
        driver.missing = "CUDA has no context on the GPU";
}

moert_status moert_cuda_open(const moert_device *device, const moert_cuda **cuda) {
    if (moert_cuda_substitute != NULL) {
        *cuda = moert_cuda_substitute;
        return MOERT_OK;
    }
    driver.pci = device->info.pci;
    pthread_once(&opened, open_driver);
    if (driver.missing != NULL)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s", driver.missing);
    MOERT_CUDA(&driver.cuda, set_current, (driver.cuda.context));
    *cuda = &driver.cuda;
    return MOERT_OK;
}

moert_status moert_cuda_fail(const moert_cuda *cuda, int code, const char *field,
                             const char *function, int line) {
    enum { OUT_OF_MEMORY = 2 };
    const char *name = NULL, *symbol = "";
#define FIND(wanted, text, parameters) symbol = strcmp(field, #wanted) == 0 ? (text) : symbol;
    MOERT_CUDA_TABLE(FIND)
#undef FIND
    if (cuda->name_error != NULL)
        cuda->name_error(code, &name);
    return moert_error_record(code == OUT_OF_MEMORY ? MOERT_ERROR_MEMORY : MOERT_ERROR_DEVICE,
                              function, line, "%s: %s (error %d of CUDA)", symbol,
                              name != NULL ? name : "unknown", code);
}
