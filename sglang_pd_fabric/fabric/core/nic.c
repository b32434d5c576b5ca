#include "nic.h"

#include <errno.h>
#include <rdma/fi_cm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "error.h"
#include "library.h"

/* What one NIC is opened with. */
struct opening {
    const spf_library *library;
    const spf_profile *profile;
    const spf_nic_config *config;
    spf_error *err;
};

static int fail(const struct opening *with, const char *call, int rc)
{
    const spf_nic_config *config = with->config;
    return spf_fail(with->err, rc, "%s (provider %s%s%s%s%s): %s", call, with->profile->provider,
                    config->domain ? ", domain " : "", config->domain ? config->domain : "",
                    config->source ? ", source " : "", config->source ? config->source : "",
                    spf_library_text(with->library, rc));
}

/* The first entry of the list that has the domain that was asked for: not every provider looks. */
static const struct fi_info *with_domain(const struct fi_info *list, const char *domain)
{
    while (list && domain && (!list->domain_attr->name || strcmp(list->domain_attr->name, domain) != 0))
        list = list->next;
    return list;
}

static int pick_info(struct spf_nic *nic, const struct opening *with)
{
    const spf_library *library = with->library;
    const spf_nic_config *config = with->config;
    struct fi_info *hints = spf_library_hints(library, with->profile->mr_mode);
    if (!hints)
        return spf_fail(with->err, ENOMEM, "out of memory");
    hints->fabric_attr->prov_name = strdup(with->profile->provider);
    if (config->domain)
        hints->domain_attr->name = strdup(config->domain);
    struct fi_info *list = NULL;
    int rc = library->getinfo(spf_library_api_version(library), config->source, NULL,
                              config->source ? FI_SOURCE : 0, hints, &list);
    library->freeinfo(hints);
    const struct fi_info *found = rc ? NULL : with_domain(list, config->domain);
    nic->info = found ? library->dupinfo(found) : NULL;
    if (list)
        library->freeinfo(list);
    if (nic->info)
        return 0;
    return fail(with, "fi_getinfo: no RDM endpoint with remote writes", rc ? rc : -FI_ENODATA);
}

static int open_queue(struct spf_nic *nic, const struct opening *with)
{
    struct fi_cq_attr attr = {
        .size = nic->info->tx_attr->size > 8192 ? nic->info->tx_attr->size : 8192,
        .format = FI_CQ_FORMAT_DATA,
        .wait_obj = with->profile->wait_fd ? FI_WAIT_FD : FI_WAIT_NONE,
    };
    int rc = fi_cq_open(nic->domain, &attr, &nic->cq, NULL);
    if (rc)
        return fail(with, "fi_cq_open", rc);
    if (with->profile->wait_fd) {
        rc = fi_control(&nic->cq->fid, FI_GETWAIT, &nic->wait_fd);
        if (rc)
            return fail(with, "fi_control FI_GETWAIT", rc);
    }
    return 0;
}

static int open_endpoint(struct spf_nic *nic, const struct opening *with)
{
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    int rc = fi_av_open(nic->domain, &av_attr, &nic->av, NULL);
    if (rc)
        return fail(with, "fi_av_open", rc);
    rc = fi_endpoint(nic->domain, nic->info, &nic->ep, NULL);
    if (rc)
        return fail(with, "fi_endpoint", rc);
    rc = fi_ep_bind(nic->ep, &nic->cq->fid, FI_TRANSMIT | FI_RECV);
    if (rc)
        return fail(with, "fi_ep_bind to the completion queue", rc);
    rc = fi_ep_bind(nic->ep, &nic->av->fid, 0);
    if (rc)
        return fail(with, "fi_ep_bind to the address vector", rc);
    rc = fi_enable(nic->ep);
    if (rc)
        return fail(with, "fi_enable", rc);
    nic->address_bytes = sizeof nic->address;
    rc = fi_getname(&nic->ep->fid, nic->address, &nic->address_bytes);
    if (rc)
        return fail(with, "fi_getname", rc);
    return 0;
}

int spf_nic_open(struct spf_nic *nic, const spf_library *library, const spf_profile *profile,
                 const spf_nic_config *config, spf_error *err)
{
    const struct opening with = { library, profile, config, err };
    memset(nic, 0, sizeof *nic);
    nic->wait_fd = -1;
    nic->window = profile->window;
    int rc = pick_info(nic, &with);
    if (rc)
        return rc;
    if (nic->info->domain_attr->cq_data_size < 4) {
        spf_nic_close(nic, library);
        return spf_fail(err, ENOTSUP, "provider %s carries no 32-bit immediate", profile->provider);
    }
    rc = library->fabric(nic->info->fabric_attr, &nic->fabric, NULL);
    if (rc)
        rc = fail(&with, "fi_fabric", rc);
    if (!rc) {
        rc = fi_domain(nic->fabric, nic->info, &nic->domain, NULL);
        if (rc)
            rc = fail(&with, "fi_domain", rc);
    }
    rc = rc ? rc : open_queue(nic, &with);
    rc = rc ? rc : open_endpoint(nic, &with);
    if (rc) {
        spf_nic_close(nic, library);
        return rc;
    }
    uint32_t limit = (uint32_t)nic->info->tx_attr->rma_iov_limit;
    if (nic->info->tx_attr->iov_limit < limit)
        limit = (uint32_t)nic->info->tx_attr->iov_limit;
    if (limit > profile->segments)
        limit = profile->segments;
    nic->segments = limit > SPF_MAX_SEGMENTS ? SPF_MAX_SEGMENTS : (limit ? limit : 1);
    if (nic->info->tx_attr->size && nic->window > nic->info->tx_attr->size)
        nic->window = (uint32_t)nic->info->tx_attr->size;
    return 0;
}

static void close_fid(void *fid)
{
    if (fid)
        fi_close((struct fid *)fid);
}

void spf_nic_disconnect(struct spf_nic *nic)
{
    close_fid(nic->ep);
    nic->ep = NULL;
}

void spf_nic_close(struct spf_nic *nic, const spf_library *library)
{
    spf_nic_disconnect(nic);
    close_fid(nic->av);
    close_fid(nic->cq);
    close_fid(nic->domain);
    close_fid(nic->fabric);
    if (nic->info)
        library->freeinfo(nic->info);
    memset(nic, 0, sizeof *nic);
    nic->wait_fd = -1;
}

int spf_nic_register(struct spf_nic *nic, const spf_library *library, void *address, uint64_t bytes,
                     uint64_t key, struct fid_mr **mr, spf_error *err)
{
    uint64_t access = FI_WRITE | FI_READ | FI_REMOTE_WRITE;
    size_t key_bytes = nic->info->domain_attr->mr_key_size;
    if (key_bytes < sizeof key)
        key &= ((uint64_t)1 << (8 * key_bytes)) - 1;
    int rc = fi_mr_reg(nic->domain, address, bytes, access, 0, key, 0, mr, NULL);
    if (rc)
        return spf_fail(err, rc, "fi_mr_reg of %llu bytes at %p on %s: %s",
                        (unsigned long long)bytes, address, nic->info->domain_attr->name,
                        spf_library_text(library, rc));
    return 0;
}

/* Whether the provider can take the address without harm. It comes from another process, and libfabric
 * trusts it: on tcp one of an unknown family spoils the address vector for all that come later, on shm
 * one without an end is read beyond it. */
static int plausible(const struct spf_nic *nic, const uint8_t *address)
{
    switch (nic->info->addr_format) {
    case FI_SOCKADDR:
    case FI_SOCKADDR_IN:
    case FI_SOCKADDR_IN6:
        return memcmp(address, nic->address, sizeof(sa_family_t)) == 0;
    case FI_ADDR_STR:
        return address[0] && memchr(address, 0, SPF_ADDRESS_BYTES);
    default:
        return 1;
    }
}

int spf_nic_insert(struct spf_nic *nic, const spf_library *library, const uint8_t *address,
                   fi_addr_t *peer, spf_error *err)
{
    if (!plausible(nic, address))
        return spf_fail(err, EINVAL, "the peer's address is none of provider %s",
                        nic->info->fabric_attr->prov_name);
    int rc = fi_av_insert(nic->av, address, 1, peer, 0, NULL);
    if (rc != 1)
        return spf_fail(err, rc < 0 ? rc : EINVAL, "fi_av_insert on %s: %s",
                        nic->info->domain_attr->name,
                        rc < 0 ? spf_library_text(library, rc) : "the address was not taken");
    return 0;
}

int spf_nic_post(struct spf_nic *nic, const struct spf_write *write, fi_addr_t peer,
                 uint32_t immediate, void *context)
{
    struct fi_msg_rma message = {
        .msg_iov = write->local,
        .desc = (void **)write->descriptors,
        .iov_count = write->segments,
        .addr = peer,
        .rma_iov = write->remote,
        .rma_iov_count = write->segments,
        .context = context,
        .data = immediate,
    };
    return (int)fi_writemsg(nic->ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION);
}
