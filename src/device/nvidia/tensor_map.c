/* Tensor maps of TMA, which NVIDIA's driver library encodes. */
#include "device/nvidia/tensor_map.h"

#include "device/buffer.h"
#include "device/internal.h"
#include "device/nvidia/cuda.h"

/* Values of enums of the CUDA driver API. */
enum { TYPE_UINT8 = 0, TYPE_FLOAT16 = 6, TYPE_BFLOAT16 = 9 };
enum { SWIZZLE_32_BYTES = 1, SWIZZLE_64_BYTES, SWIZZLE_128_BYTES, PROMOTION_256_BYTES = 3 };

static moert_status open_encoder(const moert_device *device, const moert_cuda **cuda) {
    if (moert_cuda_open(device, cuda) != MOERT_OK)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "cannot make tensor maps for TMA: %s",
                          moert_last_error());
    if ((*cuda)->encode_tiled == NULL)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "cannot make tensor maps for TMA: libcuda.so.1 is older than CUDA 12");
    return MOERT_OK;
}

moert_status moert_tensor_map_ready(const moert_device *device) {
    const moert_cuda *cuda;
    return open_encoder(device, &cuda);
}

/* The dimensions of a map and of its boxes, innermost first. */
enum { MOST_RANK = 5 };
typedef struct dimensions {
    uint32_t rank;
    uint64_t sizes[MOST_RANK];       /* elements */
    uint64_t strides[MOST_RANK - 1]; /* strides in bytes of all dimensions but the innermost */
    uint32_t box[MOST_RANK];
} dimensions;

static dimensions dimensions_of(const moert_tensor_layout *t) {
    const uint32_t bytes = t->bytes ? 1 : 2,
                   columns = (t->box_bytes > 0 ? t->box_bytes : 128) / bytes;
    const uint64_t row = t->stride * bytes;
    if (t->run == 0)
        return (dimensions){.rank = 3,
                            .sizes = {t->columns, t->rows, t->groups},
                            .strides = {row, t->rows * row},
                            .box = {columns, t->box_rows, 1}};
    const size_t runs = t->rows / (2 * t->run);
    const uint32_t across = runs > 1 ? t->box_rows / (uint32_t)t->run : 1;
    return (dimensions){
        .rank = 5,
        .sizes = {t->columns, t->run, 2, runs, t->groups},
        .strides = {row, t->run * row, 2 * t->run * row, t->rows * row},
        .box = {columns, t->box_rows / across, 1, across, 1},
    };
}

moert_status moert_tensor_map_make(moert_buffer *buffer, const moert_tensor_layout *tensor,
                                   moert_tensor_map *map) {
    const dimensions d = dimensions_of(tensor);
    const uint32_t steps[MOST_RANK] = {1, 1, 1, 1, 1};
    const int type = tensor->bytes ? TYPE_UINT8 : tensor->f16 ? TYPE_FLOAT16 : TYPE_BFLOAT16;
    const int swizzle = tensor->box_bytes == 32   ? SWIZZLE_32_BYTES
                        : tensor->box_bytes == 64 ? SWIZZLE_64_BYTES
                                                  : SWIZZLE_128_BYTES;
    const moert_cuda *cuda;
    uint64_t address;
    MOERT_TRY(open_encoder(buffer->device, &cuda));
    MOERT_TRY(moert_buffer_address(buffer, &address));
    address += tensor->first * (tensor->bytes ? 1 : 2);
    const int code =
        cuda->encode_tiled(map, type, d.rank, (void *)(uintptr_t)address, d.sizes, d.strides, d.box,
                           steps, 0, swizzle, PROMOTION_256_BYTES, 0);
    if (code != 0)
        return MOERT_FAIL(ERROR_DEVICE,
                          "cuTensorMapEncodeTiled returned error %d for a tensor [%zu, %zu, %zu] "
                          "with stride %zu and runs of %zu rows at address %#llx",
                          code, tensor->groups, tensor->rows, tensor->columns, tensor->stride,
                          tensor->run, (unsigned long long)address);
    return MOERT_OK;
}
