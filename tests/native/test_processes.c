/* A sender here and a receiver in another process: either of them ends while bytes are on their way.
 * The receiver is this program once more, driven through its standard input. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "check.h"
#include "engines.h"

#define PAGE (1u << 20)
#define BYTES (64u * PAGE)

struct invitation {
    spf_nic_info nic;
    spf_region_info region;
};

struct receiver {
    pid_t pid;
    int input;
    struct side side; /* what we know of it: no engine, no memory */
    spf_nic_info nic;
};

/* The other process: invites, then works until its input ends. */
static int receive(const char *named)
{
    provider = named;
    open_library();
    struct side side = open_side(BYTES);
    struct invitation invitation = { .region = side.region };
    spf_engine_nic(side.engine, 0, &invitation.nic);
    CHECK(write(STDOUT_FILENO, &invitation, sizeof invitation) == (ssize_t)sizeof invitation);
    char byte;
    CHECK_EQUAL(read(STDIN_FILENO, &byte, 1), 0);
    close_side(&side);
    spf_library_close(library);
    return 0;
}

static struct receiver start_receiver(void)
{
    int input[2], output[2];
    CHECK(pipe(input) == 0 && pipe(output) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(input[0], STDIN_FILENO);
        dup2(output[1], STDOUT_FILENO);
        close(input[0]), close(input[1]), close(output[0]), close(output[1]);
        execl("/proc/self/exe", "receiver", "--receive", provider, NULL);
        _exit(127);
    }
    close(input[0]);
    close(output[1]);
    struct invitation invitation;
    CHECK(read(output[0], &invitation, sizeof invitation) == (ssize_t)sizeof invitation);
    close(output[0]);
    return (struct receiver){ pid, input[1], { .bytes = BYTES, .region = invitation.region }, invitation.nic };
}

/* Lets the receiver close its engine; it must come to a good end. */
static void end_receiver(struct receiver *receiver)
{
    int status = 0;
    close(receiver->input);
    CHECK(waitpid(receiver->pid, &status, 0) == receiver->pid);
    if (status)
        printf("the receiver ended with status %#x\n", (unsigned)status);
    CHECK_EQUAL(status, 0);
}

static void kill_receiver(struct receiver *receiver)
{
    kill(receiver->pid, SIGKILL);
    waitpid(receiver->pid, NULL, 0);
    close(receiver->input);
}

static spf_peer *meet(struct side *from, struct receiver *receiver)
{
    spf_remote_region remote = {
        .base = receiver->side.region.base, .bytes = BYTES, .keys = { receiver->side.region.keys[0] }
    };
    spf_peer *peer = NULL;
    CHECK_EQUAL(spf_peer_add(from->engine, receiver->nic.address, 1, &remote, 1, 0, &peer, NULL), 0);
    return peer;
}

static struct side impatient_side(void)
{
    spf_engine_config config = plain_config();
    config.stall_ns = 500000000u;
    return open_configured_side(BYTES, &config);
}

/* The peer is never removed and other transfers wait behind: closing the engine ends all of it. */
static void a_sender_closes_with_transfers_in_flight(void)
{
    for (uint64_t round = 0; round < 3; round++) {
        struct receiver receiver = start_receiver();
        struct side from = open_side(BYTES);
        spf_peer *peer = meet(&from, &receiver);
        spf_transfer *transfer = send_all(&from, peer, 0, 1, PAGE);
        WAIT_FOR(status_of(transfer).units_done >= round * 4);
        spf_transfer_release(transfer);
        spf_transfer_release(send_all(&from, peer, 1, 1, PAGE));
        close_side(&from);
        end_receiver(&receiver);
    }
}

static void end_in_the_middle(void (*end)(struct receiver *))
{
    struct side from = impatient_side();
    for (uint64_t round = 0; round < 3; round++) {
        struct receiver receiver = start_receiver();
        spf_peer *peer = meet(&from, &receiver);
        spf_transfer *transfer = send_all(&from, peer, 0, 1, PAGE);
        spf_transfer *released = send_all(&from, peer, 1, 1, PAGE);
        spf_transfer_release(released);
        WAIT_FOR(status_of(transfer).units_done >= round * 4);
        end(&receiver);
        WAIT_FOR(status_of(transfer).error || quiet(transfer));
        spf_peer_remove(from.engine, peer);
        WAIT_FOR(quiet(transfer));
        spf_transfer_release(transfer);
    }
    struct receiver receiver = start_receiver();
    spf_peer *peer = meet(&from, &receiver);
    spf_transfer *transfer = send_all(&from, peer, 0, 1, PAGE);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, 0);
    CHECK_EQUAL(status_of(transfer).units_done, BYTES / PAGE);
    spf_transfer_release(transfer);
    end_receiver(&receiver);
    close_side(&from);
}

static void a_receiver_that_closes_ends_the_transfer_and_the_next_one_works(void)
{
    end_in_the_middle(end_receiver);
}

static void a_receiver_that_is_killed_ends_the_transfer_and_the_next_one_works(void)
{
    end_in_the_middle(kill_receiver);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(a_sender_closes_with_transfers_in_flight),
        CASE(a_receiver_that_closes_ends_the_transfer_and_the_next_one_works),
        CASE(a_receiver_that_is_killed_ends_the_transfer_and_the_next_one_works),
    };
    if (argc == 3 && strcmp(argv[1], "--receive") == 0)
        return receive(argv[2]);
    return run_over_providers(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
