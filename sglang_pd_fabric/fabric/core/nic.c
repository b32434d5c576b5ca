#include "nic.h"

#include <errno.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "error.h"
#include "library.h"

#define DEFAULT_QUEUE_ENTRIES 8192

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

static int open_queues(struct spf_nic *nic, const struct opening *with)
{
    const spf_profile *profile = with->profile;
    size_t tx_size = nic->info->tx_attr->size;
    size_t entries = profile->queue_entries ? profile->queue_entries : DEFAULT_QUEUE_ENTRIES;
    struct fi_cq_attr attr = {
        .size = tx_size > entries ? tx_size : entries,
        .format = FI_CQ_FORMAT_DATA,
        .wait_obj = profile->wait_fd ? FI_WAIT_FD : FI_WAIT_NONE,
    };
    int rc = fi_cq_open(nic->domain, &attr, &nic->cq, NULL);
    if (rc)
        return fail(with, "fi_cq_open", rc);
    if (profile->wait_fd) {
        rc = fi_control(&nic->cq->fid, FI_GETWAIT, &nic->wait_fd);
        if (rc)
            return fail(with, "fi_control FI_GETWAIT", rc);
    }
    if (profile->event_queue) {
        struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_NONE };
        rc = fi_eq_open(nic->fabric, &eq_attr, &nic->eq, NULL);
        if (rc)
            return fail(with, "fi_eq_open", rc);
    }
    return 0;
}

static int set_option(struct spf_nic *nic, const spf_option *option)
{
    uint8_t one = (uint8_t)option->value;
    uint32_t four = (uint32_t)option->value;
    uint64_t eight = option->value;
    const void *value = option->bytes == 1 ? (void *)&one : option->bytes == 4 ? (void *)&four : (void *)&eight;
    if (!FI_CHECK_OP(nic->ep->ops, struct fi_ops_ep, setopt))
        return -FI_ENOSYS;
    return fi_setopt(&nic->ep->fid, FI_OPT_ENDPOINT, option->number, value, option->bytes);
}

/* Options make things better, and no option makes them wrong: one that this library, or this device, does
 * not have is left out and shows in nic->options. */
static int set_options(struct spf_nic *nic, const struct opening *with)
{
    for (uint32_t i = 0; i < with->profile->option_count; i++) {
        const spf_option *option = &with->profile->options[i];
        int rc = set_option(nic, option);
        if (rc == 0)
            nic->options |= 1u << i;
        else if (rc != -FI_ENOPROTOOPT && rc != -FI_EOPNOTSUPP && rc != -FI_ENOSYS) {
            char call[64];
            snprintf(call, sizeof call, "fi_setopt %d", option->number);
            return fail(with, call, rc);
        }
    }
    return 0;
}

static int bind_endpoint(struct spf_nic *nic, const struct opening *with)
{
    int rc = fi_ep_bind(nic->ep, &nic->cq->fid, FI_TRANSMIT | FI_RECV);
    if (rc)
        return fail(with, "fi_ep_bind to the completion queue", rc);
    rc = fi_ep_bind(nic->ep, &nic->av->fid, 0);
    if (rc)
        return fail(with, "fi_ep_bind to the address vector", rc);
    rc = nic->eq ? fi_ep_bind(nic->ep, &nic->eq->fid, 0) : 0;
    if (rc)
        return fail(with, "fi_ep_bind to the event queue", rc);
    return 0;
}

/* What only an enabled endpoint knows. */
static int is_emulated(const struct spf_nic *nic, int option)
{
    bool emulated = false;
    size_t bytes = sizeof emulated;
    if (!option || !FI_CHECK_OP(nic->ep->ops, struct fi_ops_ep, getopt) ||
        fi_getopt(&nic->ep->fid, FI_OPT_ENDPOINT, option, &emulated, &bytes))
        return -1;
    return emulated;
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
    rc = bind_endpoint(nic, with);
    rc = rc ? rc : set_options(nic, with);
    if (rc)
        return rc;
    rc = fi_enable(nic->ep);
    if (rc)
        return fail(with, "fi_enable", rc);
    nic->emulated = is_emulated(nic, with->profile->emulation);
    nic->address_bytes = sizeof nic->address;
    rc = fi_getname(&nic->ep->fid, nic->address, &nic->address_bytes);
    if (rc)
        return fail(with, "fi_getname", rc);
    return 0;
}

/* libfabric promises the first two; a provider that broke them would write to wrong places. */
static int check_info(const struct spf_nic *nic, const struct opening *with)
{
    const struct fi_domain_attr *domain = nic->info->domain_attr;
    if (domain->cq_data_size < 4)
        return spf_fail(with->err, ENOTSUP, "provider %s carries no 32-bit immediate", with->profile->provider);
    if ((uint64_t)(unsigned)domain->mr_mode & ~(with->profile->mr_mode | FI_MR_HMEM))
        return spf_fail(with->err, ENOTSUP, "provider %s wants registration mode %#x, of which we serve %#llx",
                        with->profile->provider, (unsigned)domain->mr_mode,
                        (unsigned long long)with->profile->mr_mode);
    return 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return b && b < a ? b : a;
}

/* What the profile wants, capped by what the provider can. */
static void set_limits(struct spf_nic *nic, const spf_profile *profile)
{
    const struct fi_tx_attr *tx = nic->info->tx_attr;
    uint64_t segments = smaller(smaller(profile->segments, tx->rma_iov_limit), tx->iov_limit);
    nic->segments = (uint32_t)smaller(segments ? segments : 1, SPF_MAX_SEGMENTS);
    nic->window = (uint32_t)smaller(profile->window, tx->size);
    nic->write_bytes = smaller(profile->write_bytes, nic->info->ep_attr->max_msg_size);
    nic->write_flags = FI_REMOTE_CQ_DATA | FI_COMPLETION | profile->write_flags;
}

static int open_domain(struct spf_nic *nic, const struct opening *with)
{
    int rc = with->library->fabric(nic->info->fabric_attr, &nic->fabric, NULL);
    if (rc)
        return fail(with, "fi_fabric", rc);
    rc = fi_domain(nic->fabric, nic->info, &nic->domain, NULL);
    if (rc)
        return fail(with, "fi_domain", rc);
    return 0;
}

int spf_nic_open(struct spf_nic *nic, const spf_library *library, const spf_profile *profile,
                 const spf_nic_config *config, spf_error *err)
{
    const struct opening with = { library, profile, config, err };
    memset(nic, 0, sizeof *nic);
    nic->wait_fd = -1;
    nic->emulated = -1;
    int rc = spf_library_find(library, profile, config, &nic->info);
    if (rc)
        return fail(&with, profile->caps & FI_HMEM
                               ? "fi_getinfo: no RDM endpoint with remote writes from and to GPU memory"
                               : "fi_getinfo: no RDM endpoint with remote writes", rc);
    rc = check_info(nic, &with);
    rc = rc ? rc : open_domain(nic, &with);
    rc = rc ? rc : open_queues(nic, &with);
    rc = rc ? rc : open_endpoint(nic, &with);
    if (rc) {
        spf_nic_close(nic, library);
        return rc;
    }
    set_limits(nic, profile);
    return 0;
}

int spf_nic_failure(struct spf_nic *nic)
{
    uint32_t event;
    uint8_t room[64];
    struct fi_eq_err_entry error = { 0 };
    if (!nic->eq || fi_eq_read(nic->eq, &event, room, sizeof room, 0) != -FI_EAVAIL)
        return 0;
    if (fi_eq_readerr(nic->eq, &error, 0) < 0 || error.err == 0)
        return -EIO;
    return error.err < 0 ? error.err : -error.err;
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

static void close_queues(struct spf_nic *nic)
{
    spf_nic_disconnect(nic);
    close_fid(nic->av);
    close_fid(nic->cq);
    close_fid(nic->eq);
    nic->av = NULL;
    nic->cq = NULL;
    nic->eq = NULL;
    nic->wait_fd = -1;
    nic->stranded = 0;
}

int spf_nic_reopen(struct spf_nic *nic, const spf_library *library, const spf_profile *profile)
{
    spf_profile here = *profile;
    const spf_nic_config config = { 0 };
    const struct opening with = { library, &here, &config, NULL };
    here.provider = nic->info->fabric_attr->prov_name; /* the strings of the opening are gone */
    close_queues(nic);
    int rc = open_queues(nic, &with);
    rc = rc ? rc : open_endpoint(nic, &with);
    if (rc)
        spf_nic_disconnect(nic);
    return rc;
}

void spf_nic_close(struct spf_nic *nic, const spf_library *library)
{
    close_queues(nic);
    close_fid(nic->domain);
    close_fid(nic->fabric);
    if (nic->info)
        library->freeinfo(nic->info);
    memset(nic, 0, sizeof *nic);
    nic->wait_fd = -1;
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
    if (!nic->ep) {
        *peer = FI_ADDR_NOTAVAIL;
        return 0;
    }
    int rc = fi_av_insert(nic->av, address, 1, peer, 0, NULL);
    if (rc != 1)
        return spf_fail(err, rc < 0 ? rc : EINVAL, "fi_av_insert on %s: %s",
                        nic->info->domain_attr->name,
                        rc < 0 ? spf_library_text(library, rc) : "the address was not taken");
    return 0;
}

int spf_nic_post(struct spf_nic *nic, const struct spf_write *write, fi_addr_t peer,
                 uint32_t immediate, uint64_t flags, void *context)
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
    return (int)fi_writemsg(nic->ep, &message, nic->write_flags | flags);
}
