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
#define SERVED_MODE (FI_CONTEXT | FI_CONTEXT2) /* a ledger record begins with room for the provider's context */
#define SERVED_MR_MODE (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM)
#define IMMEDIATE_BYTES 4

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

uint32_t spf_library_api_version(const spf_library *library, uint32_t wanted)
{
    uint32_t runtime = library->version();
    wanted = wanted ? wanted : spf_header_version();
    return FI_VERSION_LT(runtime, wanted) ? runtime : wanted;
}

const char *spf_library_text(const spf_library *library, int code)
{
    return library->strerror(code < 0 ? -code : code);
}

/* Hints for an RDM endpoint that writes with an immediate; NULL without memory. FI_LOCAL_COMM and
 * FI_REMOTE_COMM stay out: shm refuses the one, others may refuse the other. */
static struct fi_info *new_hints(const spf_library *library, uint64_t caps, uint64_t mr_mode)
{
    struct fi_info *hints = library->dupinfo(NULL);
    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_RMA | caps;
    hints->mode = SERVED_MODE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = (int)mr_mode;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->cq_data_size = IMMEDIATE_BYTES;
    return hints;
}

static int same(const char *name, const char *wanted)
{
    return !wanted || (name && strcmp(name, wanted) == 0);
}

/* The first entry that is what was asked for: not every provider looks at every hint. exactly: one
 * that has the provider's own name, where others (tcp;ofi_rxm for tcp) would do. */
static const struct fi_info *pick(const struct fi_info *list, const spf_profile *profile,
                                  const char *domain, int exactly)
{
    for (; list; list = list->next)
        if (same(list->fabric_attr->prov_name, exactly ? profile->provider : NULL) &&
            same(list->fabric_attr->name, profile->fabric) && same(list->domain_attr->name, domain))
            return list;
    return NULL;
}

int spf_library_find(const spf_library *library, const spf_profile *profile,
                     const spf_nic_config *config, struct fi_info **out)
{
    struct fi_info *hints = new_hints(library, profile->caps, profile->mr_mode);
    if (!hints)
        return -ENOMEM;
    hints->fabric_attr->prov_name = strdup(profile->provider);
    if (profile->fabric)
        hints->fabric_attr->name = strdup(profile->fabric);
    if (config->domain)
        hints->domain_attr->name = strdup(config->domain);
    struct fi_info *list = NULL;
    int rc = library->getinfo(spf_library_api_version(library, profile->api_version), config->source,
                              NULL, config->source ? FI_SOURCE : 0, hints, &list);
    library->freeinfo(hints);
    if (rc)
        return rc;
    const struct fi_info *found = pick(list, profile, config->domain, 1);
    found = found ? found : pick(list, profile, config->domain, 0);
    *out = found ? library->dupinfo(found) : NULL;
    library->freeinfo(list);
    return *out ? 0 : (found ? -ENOMEM : -FI_ENODATA);
}

int spf_library_providers(const spf_library *library, char *text, size_t room, spf_error *err)
{
    struct fi_info *hints = new_hints(library, 0, SERVED_MR_MODE);
    struct fi_info *list = NULL;
    if (!hints)
        return spf_fail(err, ENOMEM, "out of memory");
    int rc = library->getinfo(spf_library_api_version(library, 0), NULL, NULL, 0, hints, &list);
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
