/* libfabric, opened at run time.
 *
 * Only these functions are exported by libfabric.so.1; all else is inline calls through the operation
 * tables of the objects, so a core compiled against 1.17 headers drives every later library. Structs
 * only ever grow at their end: those that the library allocates may be longer than our headers say, and
 * those that it fills for us have room to spare (errors of completion queues). So a profile may ask for
 * an interface newer than the headers, which efa needs: below 1.18 it emulates remote writes. */
#ifndef SPF_LIBRARY_H
#define SPF_LIBRARY_H

#include <rdma/fabric.h>

#include "api.h"

struct spf_library {
    void *handle;
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int code);
    uint32_t (*version)(void);
};

/* The version to hand to getinfo: what the profile asks for (0: the headers' own), or the library's
 * where that is older. */
uint32_t spf_library_api_version(const spf_library *library, uint32_t wanted);
/* Text of a negative return code. */
const char *spf_library_text(const spf_library *library, int code);
/* Finds the endpoint to open: RDM, remote writes, a 32-bit immediate, as the profile says. *out is the
 * caller's, to be freed with freeinfo. 0 or a negative errno, without a text. */
int spf_library_find(const spf_library *library, const spf_profile *profile,
                     const spf_nic_config *config, struct fi_info **out);

#endif
