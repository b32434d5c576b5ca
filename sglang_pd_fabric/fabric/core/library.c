#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

#define OLDEST FI_VERSION(1, 17)

static int resolve(void *handle, const char *name, void *slot, const char *path, spf_error *err)
{
    void *symbol = dlsym(handle, name);
    if (!symbol)
        return spf_fail(err, ENOSYS, "%s is not a libfabric: it has no %s", path, name);
    memcpy(slot, &symbol, sizeof symbol); /* ISO C has no cast from object to function pointer */
    return 0;
}

int spf_library_open(const char *path, spf_library **out, spf_error *err)
{
    spf_library *library = calloc(1, sizeof *library);
    if (!library)
        return spf_fail(err, ENOMEM, "out of memory");
    library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library->handle) {
        const char *reason = dlerror();
        free(library);
        return spf_fail(err, ENOENT, "cannot open %s: %s", path, reason ? reason : "unknown");
    }
    int rc = resolve(library->handle, "fi_getinfo", &library->getinfo, path, err);
    rc = rc ? rc : resolve(library->handle, "fi_freeinfo", &library->freeinfo, path, err);
    rc = rc ? rc : resolve(library->handle, "fi_dupinfo", &library->dupinfo, path, err);
    rc = rc ? rc : resolve(library->handle, "fi_fabric", &library->fabric, path, err);
    rc = rc ? rc : resolve(library->handle, "fi_strerror", &library->strerror, path, err);
    rc = rc ? rc : resolve(library->handle, "fi_version", &library->version, path, err);
    if (!rc && FI_VERSION_LT(library->version(), OLDEST))
        rc = spf_fail(err, ENOTSUP, "%s is libfabric %u.%u; 1.17 is the oldest that works", path,
                      FI_MAJOR(library->version()), FI_MINOR(library->version()));
    if (rc) {
        dlclose(library->handle);
        free(library);
        return rc;
    }
    *out = library;
    return 0;
}

void spf_library_close(spf_library *library)
{
    /* libfabric stays mapped: its providers leave threads and exit handlers behind. */
    free(library);
}

uint32_t spf_library_version(const spf_library *library)
{
    return library->version();
}

uint32_t spf_header_version(void)
{
    return FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
}

uint32_t spf_library_api_version(const spf_library *library)
{
    uint32_t runtime = library->version();
    return FI_VERSION_LT(runtime, spf_header_version()) ? runtime : spf_header_version();
}

const char *spf_library_text(const spf_library *library, int code)
{
    return library->strerror(code < 0 ? -code : code);
}

struct fi_info *spf_library_hints(const spf_library *library, uint64_t mr_mode)
{
    struct fi_info *hints = library->dupinfo(NULL);
    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2; /* ledger.h leaves room for the provider's context */
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = (int)mr_mode;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->cq_data_size = 4;
    return hints;
}

int spf_library_providers(const spf_library *library, char *text, size_t room, spf_error *err)
{
    uint64_t all = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    struct fi_info *hints = spf_library_hints(library, all);
    struct fi_info *list = NULL;
    if (!hints)
        return spf_fail(err, ENOMEM, "out of memory");
    int rc = library->getinfo(spf_library_api_version(library), NULL, NULL, 0, hints, &list);
    library->freeinfo(hints);
    size_t used = 0;
    if (room)
        text[0] = '\0';
    if (rc == -FI_ENODATA)
        return 0;
    if (rc)
        return spf_fail(err, rc, "fi_getinfo: %s", spf_library_text(library, rc));
    for (struct fi_info *info = list; info; info = info->next) {
        int n = snprintf(text + used, room - used, "%s\t%s\t%s\n", info->fabric_attr->prov_name,
                         info->fabric_attr->name ? info->fabric_attr->name : "",
                         info->domain_attr->name ? info->domain_attr->name : "");
        if (n < 0 || (size_t)n >= room - used) {
            rc = spf_fail(err, ENOBUFS, "the list of providers does not fit %zu bytes", room);
            break;
        }
        used += (size_t)n;
    }
    library->freeinfo(list);
    return rc;
}
