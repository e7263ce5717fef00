/* Loads the topology of this machine, or one from a description, including GPUs. Describes the
 * topology in a line of text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "topology/internal.h"

moert_status moert_topology_list(hwloc_const_bitmap_t set, char *text, size_t bytes) {
    int length = hwloc_bitmap_list_snprintf(text, bytes, set);
    if (length < 0 || (size_t)length >= bytes)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "the list of logical processors takes %d characters, the limit is %zu",
                          length, bytes - 1);
    return MOERT_OK;
}

hwloc_obj_t moert_topology_next_core(const moert_topology *topology, hwloc_const_bitmap_t set,
                                     hwloc_obj_t previous) {
    hwloc_obj_t core = previous;
    do
        core = hwloc_get_next_obj_by_type(topology->tree, topology->core_type, core);
    while (core != NULL && !hwloc_bitmap_intersects(core->cpuset, set));
    return core;
}

size_t moert_topology_count_cores(const moert_topology *topology, hwloc_const_bitmap_t set) {
    size_t count = 0;
    hwloc_obj_t core = NULL;
    while ((core = moert_topology_next_core(topology, set, core)) != NULL)
        count++;
    return count;
}

static moert_status bad_description(const char *text, int code) {
    return MOERT_FAIL(ERROR_USAGE,
                      "MOERT_TOPOLOGY='%s' is neither a synthetic hwloc topology, such as "
                      "'pack:2 core:4 pu:2', nor a readable hwloc file *.xml (%s)",
                      text, strerror(code));
}

/* Whether a path is no regular file: hwloc would wait for the writer of a pipe. */
static bool is_special(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

static moert_status load(moert_topology *topology, const char *text) {
    bool described = text != NULL && text[0] != '\0';
    if (hwloc_topology_init(&topology->tree) != 0)
        return MOERT_FAIL(ERROR_TOPOLOGY, "hwloc cannot start: %s", strerror(errno));
    /*
     * Keep PCI devices only. For OS devices, hwloc's plugins would start OpenCL, and thus PoCL's
     * workers, before the rank is bound.
     */
    hwloc_topology_set_type_filter(topology->tree, HWLOC_OBJ_PCI_DEVICE,
                                   HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (described) {
        const bool is_file = moert_text_ends_with(text, ".xml");
        if (is_file && is_special(text))
            return bad_description(text, EINVAL);
        int code = is_file ? hwloc_topology_set_xml(topology->tree, text)
                           : hwloc_topology_set_synthetic(topology->tree, text);
        if (code != 0)
            return bad_description(text, errno);
    }
    if (hwloc_topology_load(topology->tree) != 0)
        return described ? bad_description(text, errno)
                         : MOERT_FAIL(ERROR_TOPOLOGY, "hwloc cannot read this machine: %s",
                                      strerror(errno));
    topology->here = !described && hwloc_topology_is_thissystem(topology->tree) != 0;
    topology->core_type = hwloc_get_nbobjs_by_type(topology->tree, HWLOC_OBJ_CORE) > 0
                              ? HWLOC_OBJ_CORE
                              : HWLOC_OBJ_PU;
    return MOERT_OK;
}

/* usable = the processors that the machine allows, minus those that the process's mask excludes. */
static moert_status find_usable(moert_topology *topology) {
    hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(topology->tree);
    MOERT_TRY(moert_topology_bitmap(&topology->usable));
    if (!topology->here) {
        hwloc_bitmap_copy(topology->usable, allowed);
    } else if (hwloc_get_cpubind(topology->tree, topology->usable, HWLOC_CPUBIND_PROCESS) != 0) {
        MOERT_WARN("the processor mask of this process cannot be read (%s); taking all processors",
                   strerror(errno));
        hwloc_bitmap_copy(topology->usable, allowed);
    }
    hwloc_bitmap_and(topology->usable, topology->usable, allowed);
    topology->masked = !hwloc_bitmap_isequal(topology->usable, allowed);
    if (hwloc_bitmap_iszero(topology->usable))
        return MOERT_FAIL(ERROR_TOPOLOGY, "no processor is allowed to this process");
    return MOERT_OK;
}

/* ---- GPUs ---- */

enum {
    VENDOR_AMD = 0x1002,
    VENDOR_NVIDIA = 0x10de,
    VENDOR_INTEL = 0x8086,
    BASE_CLASS_DISPLAY = 0x03, /* VGA 0x0300, 3D 0x0302, other 0x0380 */
    CLASS_ACCELERATOR = 0x1200 /* some data centre GPUs of AMD */
};

/* Whether a PCI device is a GPU. The test of the vendor excludes display chips of server boards;
 * the test of bus 0 excludes Intel's integrated GPUs. */
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
                         moert_gpu_location *gpu) {
    const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
    snprintf(gpu->pci, sizeof gpu->pci, "%04x:%02x:%02x.%x", (unsigned)pci->domain,
             (unsigned)pci->bus, (unsigned)pci->dev, (unsigned)pci->func);
    MOERT_TRY(moert_topology_bitmap(&gpu->near));
    hwloc_obj_t parent = hwloc_get_non_io_ancestor_obj(topology->tree, device);
    if (parent != NULL)
        hwloc_bitmap_and(gpu->near, parent->cpuset, topology->usable);
    if (hwloc_bitmap_iszero(gpu->near))
        hwloc_bitmap_copy(gpu->near, topology->usable);
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

/* Fills the GPU fields from the loaded tree. */
static moert_status find_gpus(moert_topology *topology) {
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

/* ---- the whole topology ---- */

moert_status moert_topology_create(const char *synthetic, moert_topology **topology) {
    moert_status status;
    moert_topology *made;
    MOERT_TRY(MOERT_NEW(&made));
    MOERT_TRY_OR(destroy, load(made, synthetic));
    MOERT_TRY_OR(destroy, find_usable(made));
    MOERT_TRY_OR(destroy, find_gpus(made));
    *topology = made;
    return MOERT_OK;

destroy:
    moert_topology_destroy(made);
    return status;
}

void moert_topology_destroy(moert_topology *topology) {
    if (topology == NULL)
        return;
    for (size_t i = 0; i < topology->gpu_count; i++)
        hwloc_bitmap_free(topology->gpus[i].near);
    free(topology->gpus);
    hwloc_bitmap_free(topology->usable);
    if (topology->tree != NULL)
        hwloc_topology_destroy(topology->tree);
    free(topology);
}

void moert_topology_describe(const moert_topology *topology, char *text, size_t bytes) {
    hwloc_topology_t tree = topology->tree;
    const struct {
        size_t count;
        const char *name;
        bool shown;
    } parts[] = {
        {(size_t)hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_PACKAGE), "package", true},
        {(size_t)hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_NUMANODE), "NUMA node", true},
        {(size_t)hwloc_get_nbobjs_by_type(tree, topology->core_type), "core", true},
        {(size_t)hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_PU), "thread", true},
        {topology->gpu_count, "GPU", true},
        {moert_topology_count_cores(topology, topology->usable), "core", topology->masked},
    };
    size_t used = 0, count = MOERT_COUNT(parts);
    for (size_t i = 0; i < count && parts[i].shown && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%zu %s%s%s", i > 0 ? ", " : "",
                                 parts[i].count, parts[i].name, parts[i].count == 1 ? "" : "s",
                                 i + 1 == count ? " in the mask" : "");
}

moert_status moert_topology_mask_text(const moert_topology *topology, char *text, size_t bytes) {
    return moert_topology_list(topology->usable, text, bytes);
}
