/* Finds the GPUs among the PCI devices, and the processors near each. */
#include <stdio.h>

#include "base/memory.h"
#include "topology/internal.h"

enum {
    VENDOR_AMD = 0x1002,
    VENDOR_NVIDIA = 0x10de,
    VENDOR_INTEL = 0x8086,
    BASE_CLASS_DISPLAY = 0x03, /* VGA 0x0300, 3D 0x0302, other 0x0380 */
    CLASS_ACCELERATOR = 0x1200 /* some data centre GPUs of AMD */
};

/* Display chips of server boards have other vendors; the integrated GPUs of Intel sit on bus 0. */
static bool is_gpu(const struct hwloc_pcidev_attr_s *pci) {
    bool class_fits =
        pci->class_id >> 8 == BASE_CLASS_DISPLAY || pci->class_id == CLASS_ACCELERATOR;
    bool vendor_fits = pci->vendor_id == VENDOR_NVIDIA || pci->vendor_id == VENDOR_AMD ||
                       (pci->vendor_id == VENDOR_INTEL && pci->bus != 0);
    return class_fits && vendor_fits;
}

moert_status moert_topology_bitmap(hwloc_bitmap_t *set) {
    *set = hwloc_bitmap_alloc();
    return *set != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "no memory for a processor set");
}

static moert_status fill(const moert_topology *topology, hwloc_obj_t device,
                         moert_gpu_place *place) {
    const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
    snprintf(place->pci, sizeof place->pci, "%04x:%02x:%02x.%x", (unsigned)pci->domain,
             (unsigned)pci->bus, (unsigned)pci->dev, (unsigned)pci->func);
    MOERT_TRY(moert_topology_bitmap(&place->near));
    hwloc_obj_t parent = hwloc_get_non_io_ancestor_obj(topology->tree, device);
    if (parent != NULL)
        hwloc_bitmap_and(place->near, parent->cpuset, topology->usable);
    if (hwloc_bitmap_iszero(place->near))
        hwloc_bitmap_copy(place->near, topology->usable);
    return MOERT_OK;
}

static bool apart(const moert_topology *topology) {
    for (size_t a = 0; a < topology->gpu_count; a++) {
        for (size_t b = 0; b < a; b++) {
            hwloc_bitmap_t first = topology->gpus[a].near, second = topology->gpus[b].near;
            if (!hwloc_bitmap_isequal(first, second) && hwloc_bitmap_intersects(first, second))
                return false;
        }
    }
    return true;
}

moert_status moert_topology_find_gpus(moert_topology *topology) {
    size_t count = 0;
    hwloc_obj_t device = NULL;
    while ((device = hwloc_get_next_pcidev(topology->tree, device)) != NULL)
        count += is_gpu(&device->attr->pcidev);
    MOERT_TRY(MOERT_NEW_ARRAY(&topology->gpus, count));
    while ((device = hwloc_get_next_pcidev(topology->tree, device)) != NULL) {
        if (!is_gpu(&device->attr->pcidev))
            continue;
        MOERT_TRY(fill(topology, device, &topology->gpus[topology->gpu_count]));
        topology->gpu_count++;
    }
    topology->gpus_apart = apart(topology);
    return MOERT_OK;
}
