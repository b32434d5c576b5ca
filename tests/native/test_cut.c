/* Cutting connections: all to one address, none to another, and in a process that has no descriptor left. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "check.h"
#include "cut.h"

static uint8_t nowhere[sizeof(struct sockaddr_storage)];

struct listener {
    int fd;
    union {
        struct sockaddr_in is;
        uint8_t bytes[sizeof(struct sockaddr_storage)]; /* as libfabric names it */
    } address;
};

static struct listener listener(void)
{
    struct listener new = { .fd = socket(AF_INET, SOCK_STREAM, 0) };
    socklen_t bytes = sizeof new.address.is;
    new.address.is = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    CHECK_EQUAL(bind(new.fd, (struct sockaddr *)&new.address.is, bytes), 0);
    CHECK_EQUAL(listen(new.fd, 16), 0);
    CHECK_EQUAL(getsockname(new.fd, (struct sockaddr *)&new.address.is, &bytes), 0);
    return new;
}

static int connection_to(const struct listener *to)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQUAL(connect(fd, (const struct sockaddr *)&to->address.is, sizeof to->address.is), 0);
    return fd;
}

static int is_connected(int fd)
{
    struct sockaddr_storage other;
    socklen_t bytes = sizeof other;
    return getpeername(fd, (struct sockaddr *)&other, &bytes) == 0;
}

/* With the list of descriptors, and without one. */
static void cuts_what_goes_there(DIR *descriptors)
{
    struct listener one = listener(), other = listener();
    int kept = connection_to(&other), later[2];
    for (int round = 0; round < 2; round++) { /* a connection that the list has not shown before */
        for (int i = 0; i < 2; i++)
            later[i] = connection_to(&one);
        spf_cut_connections(descriptors, nowhere);
        CHECK(is_connected(later[0]) && is_connected(later[1]));
        spf_cut_connections(descriptors, one.address.bytes);
        CHECK(!is_connected(later[0]) && !is_connected(later[1]));
    }
    CHECK(is_connected(kept));
    spf_cut_connections(descriptors, other.address.bytes);
    CHECK(!is_connected(kept));
}

static void every_connection_to_the_address_is_cut_and_no_other(void)
{
    DIR *descriptors = spf_cut_prepare();
    CHECK(descriptors);
    cuts_what_goes_there(descriptors);
    closedir(descriptors);
}

static void without_a_list_of_descriptors_every_number_is_tried(void)
{
    cuts_what_goes_there(NULL);
}

static void with_a_list_that_cannot_be_read_every_number_is_tried(void)
{
    DIR *descriptors = spf_cut_prepare();
    int file = open("/dev/null", O_RDONLY);
    CHECK_EQUAL(dup2(file, dirfd(descriptors)), dirfd(descriptors));
    cuts_what_goes_there(descriptors);
    closedir(descriptors);
}

static void a_process_without_a_free_descriptor_cuts_as_well(void)
{
    DIR *descriptors = spf_cut_prepare();
    struct listener one = listener();
    int fd = connection_to(&one);
    struct rlimit limit;
    CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, limit.rlim_max }), 0);
    CHECK(open("/dev/null", O_RDONLY) < 0 && errno == EMFILE);
    spf_cut_connections(descriptors, one.address.bytes);
    CHECK(!is_connected(fd));
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
    closedir(descriptors);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(every_connection_to_the_address_is_cut_and_no_other),
        CASE(without_a_list_of_descriptors_every_number_is_tried),
        CASE(with_a_list_that_cannot_be_read_every_number_is_tried),
        CASE(a_process_without_a_free_descriptor_cuts_as_well),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
