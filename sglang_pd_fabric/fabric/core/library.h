/* libfabric, opened at run time.
 *
 * Only these functions are exported by libfabric.so.1; all else is inline calls through the operation
 * tables of the objects, so a core compiled against 1.17 headers drives every later library. We ask
 * for the older of the two versions, so that no struct is longer than the headers say. */
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

/* The version to hand to getinfo. */
uint32_t spf_library_api_version(const spf_library *library);
/* Text of a negative return code. */
const char *spf_library_text(const spf_library *library, int code);
/* Hints for an RDM endpoint that writes with an immediate; NULL without memory. Free with freeinfo. */
struct fi_info *spf_library_hints(const spf_library *library, uint64_t mr_mode);

#endif
