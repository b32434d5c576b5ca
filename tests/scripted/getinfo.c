/* fi_getinfo and the life of struct fi_info: which descriptions of the machine fit the hints. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

static char *copy_text(const char *text)
{
    return text ? strdup(text) : NULL;
}

struct fi_info *fi_dupinfo(const struct fi_info *from)
{
    struct fi_info *info = calloc(1, sizeof *info);
    info->tx_attr = calloc(1, sizeof *info->tx_attr);
    info->rx_attr = calloc(1, sizeof *info->rx_attr);
    info->ep_attr = calloc(1, sizeof *info->ep_attr);
    info->domain_attr = calloc(1, sizeof *info->domain_attr);
    info->fabric_attr = calloc(1, sizeof *info->fabric_attr);
    if (!from)
        return info;
    info->caps = from->caps;
    info->mode = from->mode;
    info->addr_format = from->addr_format;
    *info->tx_attr = *from->tx_attr;
    *info->rx_attr = *from->rx_attr;
    *info->ep_attr = *from->ep_attr;
    *info->domain_attr = *from->domain_attr;
    *info->fabric_attr = *from->fabric_attr;
    info->domain_attr->name = copy_text(from->domain_attr->name);
    info->fabric_attr->name = copy_text(from->fabric_attr->name);
    info->fabric_attr->prov_name = copy_text(from->fabric_attr->prov_name);
    return info;
}

void fi_freeinfo(struct fi_info *info)
{
    while (info) {
        struct fi_info *next = info->next;
        free(info->domain_attr->name);
        free(info->fabric_attr->name);
        free(info->fabric_attr->prov_name);
        free(info->tx_attr);
        free(info->rx_attr);
        free(info->ep_attr);
        free(info->domain_attr);
        free(info->fabric_attr);
        free(info);
        info = next;
    }
}

static int name_fits(const char *wanted, const char *has)
{
    return !wanted || strcmp(wanted, has) == 0;
}

/* "tcp" also means tcp;ofi_rxm, as in libfabric. */
static int provider_fits(const char *wanted, const char *has)
{
    return name_fits(wanted, has) ||
           (!strchr(wanted, ';') && strncmp(wanted, has, strlen(wanted)) == 0 && has[strlen(wanted)] == ';');
}

static uint64_t wanted_mr_mode(const struct description *is, const struct fi_info *hints)
{
    uint64_t mode = is->mr_mode | is->optional_mr_mode;
    uint64_t offered = (uint64_t)(unsigned)hints->domain_attr->mr_mode;
    if (!(hints->caps & FI_HMEM))
        mode &= ~(uint64_t)FI_MR_HMEM;
    return (mode & is->mr_mode) | (mode & is->optional_mr_mode & offered);
}

static int fits(const struct description *is, const struct fi_info *hints)
{
    uint64_t offered = (uint64_t)(unsigned)hints->domain_attr->mr_mode;
    return FI_VERSION_GE(world.machine->version, is->since) &&
           (hints->ep_attr->type == FI_EP_UNSPEC || hints->ep_attr->type == FI_EP_RDM) &&
           provider_fits(hints->fabric_attr->prov_name, is->provider) &&
           name_fits(hints->fabric_attr->name, is->fabric) && !(hints->caps & ~is->caps) &&
           !(is->mode & ~hints->mode) && !(wanted_mr_mode(is, hints) & ~offered) &&
           hints->domain_attr->cq_data_size <= is->immediate_bytes;
}

static struct fi_info *describe(const struct description *is, const char *domain, uint32_t version,
                                const struct fi_info *hints)
{
    struct fi_info *info = fi_dupinfo(NULL);
    info->caps = hints->caps | (is->caps & (FI_LOCAL_COMM | FI_REMOTE_COMM));
    info->mode = is->mode;
    info->addr_format = is->address_format;
    info->tx_attr->size = is->tx_size;
    info->tx_attr->iov_limit = is->iov_limit;
    info->tx_attr->rma_iov_limit = is->rma_iov_limit;
    info->tx_attr->inject_size = is->inject_size;
    info->ep_attr->type = FI_EP_RDM;
    info->ep_attr->max_msg_size = is->max_write_bytes;
    info->domain_attr->name = strdup(domain);
    info->domain_attr->mr_mode = (int)wanted_mr_mode(is, hints);
    info->domain_attr->mr_key_size = is->key_bytes;
    info->domain_attr->cq_data_size = is->immediate_bytes;
    info->fabric_attr->name = strdup(is->fabric);
    info->fabric_attr->prov_name = strdup(is->provider);
    info->fabric_attr->api_version = version;
    return info;
}

int answer(uint32_t version, const char *node, const struct fi_info *hints, struct fi_info **list)
{
    struct in_addr ip;
    struct fi_info **end = list;
    *list = NULL;
    for (size_t i = 0; world.machine->has[i]; i++) {
        const struct description *is = world.machine->has[i];
        if (!fits(is, hints) || (node && is->address_format == FI_SOCKADDR_IN && !inet_aton(node, &ip)))
            continue;
        for (size_t d = 0; is->domains[d]; d++) {
            if (!name_fits(hints->domain_attr->name, is->domains[d]))
                continue;
            *end = describe(is, is->domains[d], version, hints);
            end = &(*end)->next;
        }
    }
    return *list ? 0 : -FI_ENODATA;
}
