/* TMA's tensor maps, encoded by NVIDIA's driver library, which is opened when the first is made. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "device/internal.h"

/* Of the CUDA driver API, declared here so that nothing of it is needed to build. */
enum { TYPE_UINT8 = 0, TYPE_FLOAT16 = 6, TYPE_BFLOAT16 = 9 };
enum { SWIZZLE_128_BYTES = 3, PROMOTION_256_BYTES = 3 };
typedef int encode_tiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                         const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                         int interleave, int swizzle, int promotion, int fill);

static struct {
    const char *pci; /* of the GPU */
    encode_tiled *encode;
    int (*set_current)(void *context);
    void *context;
    const char *missing; /* why there is none of it */
} driver;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        driver.missing = "libcuda.so.1 cannot be opened";
        return;
    }
    int (*initialise)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*find)(int *, const char *) =
        (int (*)(int *, const char *))dlsym(library, "cuDeviceGetByPCIBusId");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
    driver.set_current = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
    driver.encode = (encode_tiled *)dlsym(library, "cuTensorMapEncodeTiled");
    int device = 0;
    if (initialise == NULL || find == NULL || retain == NULL || driver.set_current == NULL ||
        driver.encode == NULL)
        driver.missing = "libcuda.so.1 is older than CUDA 12";
    else if (initialise(0) != 0 || find(&device, driver.pci) != 0 ||
             retain(&driver.context, device) != 0)
        driver.missing = "CUDA has no context on the GPU";
}

moert_status moert_tensor_map_ready(const moert_device *device) {
    driver.pci = device->info.pci;
    pthread_once(&opened, open_driver);
    if (driver.missing != NULL)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "no tensor maps for TMA: %s", driver.missing);
    return MOERT_OK;
}

moert_status moert_tensor_map_make(moert_buffer *buffer, const moert_tensor_layout *tensor,
                                   moert_tensor_map *map) {
    const uint32_t bytes = tensor->bytes ? 1 : 2;
    const int type = tensor->bytes ? TYPE_UINT8 : tensor->f16 ? TYPE_FLOAT16 : TYPE_BFLOAT16;
    const uint64_t sizes[] = {tensor->columns, tensor->rows, tensor->groups};
    const uint64_t strides[] = {tensor->stride * bytes, tensor->rows * tensor->stride * bytes};
    const uint32_t box[] = {128 / bytes, tensor->box_rows, 1}, steps[] = {1, 1, 1};
    uint64_t address;
    MOERT_TRY(moert_tensor_map_ready(buffer->device));
    MOERT_TRY(moert_buffer_address(buffer, &address));
    int code = driver.set_current(driver.context);
    if (code == 0)
        code = driver.encode(map, type, 3, (void *)(uintptr_t)address, sizes, strides, box, steps,
                             0, SWIZZLE_128_BYTES, PROMOTION_256_BYTES, 0);
    if (code != 0)
        return MOERT_FAIL(ERROR_DEVICE,
                          "cuTensorMapEncodeTiled: error %d for [%zu, %zu, %zu] at stride %zu, "
                          "address %#llx",
                          code, tensor->groups, tensor->rows, tensor->columns, tensor->stride,
                          (unsigned long long)address);
    return MOERT_OK;
}
