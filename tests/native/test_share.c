/* test_share: shared memory over the in-memory transport: leases, gathering in slices, running out of room, letting go of
 * everything, and who may come in through the abstract socket. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "memory_transport.h"
#include "server/core/client.h"
#include "server/replay/replay_subsystem.h"
#include "server_stage.h"

#define ITEM 28224u /* bytes; a batch of 128 takes four slices */
#define BATCH 128u
#define ARENA (8u << 20)

/* ---- the stage --------------------------------------------------------------------------------------- */

static void open_sharing_server(void) {
    open_server(false, NULL);
    strcpy(server->replay->share_socket, "name");
}

/* One turn: what has come is handled, then due work is done. */
static bool turn(void) {
    int handled = transport->operations->poll(transport, 0);
    return server_step(server) == 0 || handled > 0;
}

static struct memory_peer *connect_as(const char *host, bool is_unix, bool is_abstract) {
    struct connection ends = {.is_unix = is_unix, .is_abstract = is_abstract, .local = "127.0.0.1:6379"};
    snprintf(ends.peer, sizeof ends.peer, "%s:50000", host);
    struct memory_peer *peer = memory_peer_connect_as(transport, &ends);
    CHECK(peer);
    return peer;
}

static bool begins(struct memory_peer *peer, const char *request, const char *prefix) {
    say(peer, request);
    settle();
    return received_prefix(peer, prefix);
}

/* A table of 256 items; every byte of item i is i. */
static void fill_table(struct memory_peer *peer) {
    static const char spec[] =
        "\x83\xa8"
        "capacity\xcd\x01\x00\xa9signature\x82\xa3obs\x92\xa5uint8\x91\xcd\x6e\x40\xa4kind\x92\xa5uint8\x90"
        "\xa7sampler\xa7uniform";
    say(peer, "*3\r\n$13\r\nREPLAY.CREATE\r\n$1\r\nt\r\n");
    send_bulk(peer, spec, sizeof spec - 1);
    settle();
    CHECK(received_prefix(peer, "+OK\r\n"));
    uint8_t *obs = malloc(256 * ITEM), kind[256];
    for (int i = 0; i < 256; i++) {
        memset(obs + (size_t)i * ITEM, i, ITEM);
        kind[i] = (uint8_t)i;
    }
    say(peer,
        "*10\r\n$10\r\nREPLAY.ADD\r\n$1\r\nt\r\n$3\r\n256\r\n$0\r\n\r\n$7\r\nCOLUMNS\r\n$1\r\n2\r\n$3\r\nobs\r\n");
    send_bulk(peer, obs, 256 * ITEM);
    say(peer, "$4\r\nkind\r\n");
    send_bulk(peer, kind, 256);
    free(obs);
    settle();
    CHECK(received_prefix(peer, "$2048\r\n"));
}

/* A peer with an arena, mapped as a client maps it. */
static const uint8_t *share_with(struct memory_peer *peer) {
    char request[64];
    sprintf(request, "REPLAY.SHARE %u\r\n", ARENA);
    CHECK(begins(peer, request, ":8388608\r\n") && memory_peer_attached(peer) >= 0);
    const uint8_t *base = mmap(NULL, ARENA, PROT_READ, MAP_SHARED, memory_peer_attached(peer), 0);
    CHECK(base != MAP_FAILED);
    return base;
}

/* What a reply to SAMPLE t 128 SHARED says of the column in shared memory; false: it came over the socket. */
static bool reads_shared(struct memory_peer *peer, const uint8_t *base, uint64_t *lease) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    const char *kind = memmem(bytes, length, "$4\r\nkind\r\n$128\r\n", 16);
    const char *obs = memmem(bytes, length, "$3\r\nobs\r\n*3\r\n", 13);
    CHECK(length > 0 && memcmp(bytes, "*7\r\n", 4) == 0 && kind);
    if (obs) {
        unsigned long long number, offset, size;
        CHECK(sscanf(obs + 13, ":%llu\r\n:%llu\r\n:%llu\r\n", &number, &offset, &size) == 3);
        CHECK(size == BATCH * ITEM && offset + size <= ARENA && length < 10000);
        for (size_t i = 0; i < size; i++) CHECK(base[offset + i] == (uint8_t)kind[16 + i / ITEM]);
        *lease = number;
    } else {
        CHECK(length > BATCH * ITEM);
    }
    memory_peer_forget_received(peer);
    return obs;
}

static uint64_t pinned(struct memory_peer *peer) {
    say(peer, "REPLAY.INFO t\r\n");
    settle();
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    const char *field = memmem(bytes, length, "pinned_slots\r\n:", 15);
    CHECK(field);
    uint64_t value = strtoull(field + 15, NULL, 10);
    memory_peer_forget_received(peer);
    return value;
}

/* ---- leases ------------------------------------------------------------------------------------------ */

static void leases_lie_apart_and_leave_room_when_given_back(void) {
    open_sharing_server();
    struct memory_peer *peer = connect_as("p", true, false);
    munmap((void *)(uintptr_t)share_with(peer), ARENA);
    struct client *client = server->clients.head;
    struct random_state random;
    random_seed(&random, 7);
    uint64_t held[SHARE_LEASES];
    size_t count = 0, without_room = 0;
    for (int step = 0; step < 20000; step++) {
        if (random_below(&random, 100) < 55) {
            size_t length = 1 + random_below(&random, random_below(&random, 2) ? 20000 : 2 << 20);
            const struct share_lease *lease = share_begin(client, length);
            if (!lease) {
                without_room++;
                continue;
            }
            CHECK(lease->length >= length);
            held[count++] = lease->number;
        } else if (count > 0) {
            size_t which = random_below(&random, count);
            CHECK(share_end(client, held[which]) && !share_end(client, held[which]));
            held[which] = held[--count];
        }
        const struct share *share = client->share;
        CHECK(share->count == count && server->replay->shares.leases == count);
        for (uint32_t i = 0; i < share->count; i++) {
            const struct share_lease *lease = &share->leases[i];
            CHECK(lease->offset + lease->length <= (i + 1 < count ? lease[1].offset : share->bytes));
        }
    }
    CHECK(without_room > 100);
    while (count > 0) CHECK(share_end(client, held[--count]));
    CHECK(share_begin(client, ARENA) && !share_begin(client, 1));
    close_server();
}

static void what_is_shared_is_bounded(void) {
    open_sharing_server();
    server->config.shared_memory_limit_bytes = 3 * (int64_t)ARENA;
    server->config.shared_memory_client_limit_bytes = 2 * ARENA;
    struct memory_peer *first = connect_as("p", true, false), *second = connect_as("p", true, false);
    CHECK(begins(first, "REPLAY.SHARE 100000000000\r\n", ":16777216\r\n"));
    CHECK(begins(first, "REPLAY.SHARE\r\n", "-EXISTS "));
    CHECK(begins(second, "REPLAY.SHARE\r\n", "-LIMIT ") && begins(second, "REPLAY.SHARE 0\r\n", "-ERR "));
    CHECK(memory_peer_attached(second) < 0 && begins(second, "REPLAY.SHARE 1\r\n", ":1048576\r\n"));
    memory_peer_vanish(first);
    settle();
    CHECK(server->replay->shares.bytes == 1 << 20 && server->replay->shares.arenas == 1);
    memory_peer_vanish(second);
    settle();
    CHECK(server->replay->shares.bytes == 0 && server->replay->shares.arenas == 0);
    close_server();
}

static void a_client_can_only_read_what_is_shared(void) {
    open_sharing_server();
    struct memory_peer *peer = connect_as("p", true, false);
    munmap((void *)(uintptr_t)share_with(peer), ARENA);
    int descriptor = memory_peer_attached(peer);
    CHECK(mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) == MAP_FAILED);
    CHECK(pwrite(descriptor, "x", 1, 0) < 0 && ftruncate(descriptor, 0) < 0 && ftruncate(descriptor, 2 * ARENA) < 0);
    void *readable = mmap(NULL, ARENA, PROT_READ, MAP_SHARED, descriptor, 0);
    CHECK(readable != MAP_FAILED && mprotect(readable, ARENA, PROT_READ | PROT_WRITE) < 0);
    munmap(readable, ARENA);
    close_server();
}

/* ---- gathering --------------------------------------------------------------------------------------- */

static void a_batch_is_gathered_in_slices_while_others_are_answered(void) {
    open_sharing_server();
    struct memory_peer *learner = connect_as("p", true, false), *other = connect_as("p", true, false);
    fill_table(other);
    const uint8_t *base = share_with(learner);
    uint64_t lease = 0;
    for (int round = 0; round < 20; round++) {
        say(learner, "REPLAY.SAMPLE t 128 SHARED\r\n");
        size_t length = 0;
        int turns = 0;
        for (; memory_peer_received(learner, &length), length == 0; turns++) {
            say(other, "PING\r\n");
            turn();
            CHECK(received_prefix(other, "+PONG\r\n") && turns < 1000);
        }
        CHECK(turns >= (int)(BATCH * ITEM / LIMIT_TURN_SHARE_BYTES) && reads_shared(learner, base, &lease));
        CHECK(pinned(other) == 0 && server->replay->shares.leases == 1);
        char release[64];
        sprintf(release, "REPLAY.RELEASE %llu 99999\r\n", (unsigned long long)lease);
        CHECK(begins(learner, release, ":1\r\n"));
    }
    CHECK(begins(learner, "REPLAY.RELEASE x\r\n", "-ERR ") && server->replay->shares.batches == 20);
    munmap((void *)(uintptr_t)base, ARENA);
    close_server();
}

static void without_room_the_batch_comes_over_the_socket(void) {
    open_sharing_server();
    struct memory_peer *learner = connect_as("p", true, false), *other = connect_as("p", true, false);
    fill_table(other);
    uint64_t lease = 0;
    say(learner, "REPLAY.SAMPLE t 128 SHARED\r\n"); /* nothing is shared yet */
    settle();
    CHECK(!reads_shared(learner, NULL, &lease));
    const uint8_t *base = share_with(learner);
    uint64_t leases[2];
    for (int i = 0; i < 4; i++) {
        say(learner, "REPLAY.SAMPLE t 128 SHARED\r\n");
        settle();
        CHECK(reads_shared(learner, base, &leases[i % 2]) == (i < 2)); /* the arena holds two */
    }
    char release[64];
    sprintf(release, "REPLAY.RELEASE %llu\r\n", (unsigned long long)leases[0]);
    CHECK(begins(learner, release, ":1\r\n") && server->replay->shares.refused == 2);
    say(learner,
        "REPLAY.SAMPLE t 128 SHARED\r\nREPLAY.SAMPLE t 1 SHARED\r\nPING\r\n"); /* a small one has no use for it */
    settle();
    size_t length;
    const uint8_t *bytes = memory_peer_received(learner, &length);
    CHECK(length > ITEM && memcmp(bytes + length - 7, "+PONG\r\n", 7) == 0 && server->replay->shares.batches == 3);
    munmap((void *)(uintptr_t)base, ARENA);
    close_server();
}

static void whoever_vanishes_in_mid_gather_gives_everything_back(void) {
    open_sharing_server();
    struct memory_peer *other = connect_as("p", true, false);
    fill_table(other);
    for (int turns = 1; turns < 6; turns++) {
        struct memory_peer *learner = connect_as("p", true, false), *behind = connect_as("p", true, false);
        const uint8_t *base = share_with(learner), *base_behind = share_with(behind);
        uint64_t lease;
        say(learner, "REPLAY.SAMPLE t 128 SHARED\r\n");
        say(behind, "REPLAY.SAMPLE t 128 SHARED\r\n");
        for (int i = 0; i < turns; i++) turn();
        CHECK(server->replay->shares.leases == 2);
        memory_peer_vanish(learner);
        settle();
        CHECK(reads_shared(behind, base_behind, &lease) && server->replay->shares.leases == 1 && pinned(other) == 0);
        memory_peer_vanish(behind);
        settle();
        CHECK(server->replay->shares.bytes == 0 && server->replay->shares.leases == 0 && server->clients.blocked == 0);
        munmap((void *)(uintptr_t)base, ARENA);
        munmap((void *)(uintptr_t)base_behind, ARENA);
    }
    close_server();
}

static void a_gather_cut_short_is_answered_all_the_same(void) {
    open_sharing_server();
    struct memory_peer *learner = connect_as("p", true, false), *other = connect_as("p", true, false);
    fill_table(other);
    const uint8_t *base = share_with(learner);
    uint64_t lease;
    say(learner, "REPLAY.SAMPLE t 128 SHARED\r\nPING\r\n");
    turn();
    CHECK(server->clients.blocked == 1);
    client_expire(server_client_by_id(server, 1)); /* as a server that stops does */
    settle();
    size_t length;
    const uint8_t *bytes = memory_peer_received(learner, &length);
    CHECK(memcmp(bytes + length - 7, "+PONG\r\n", 7) == 0 && !reads_shared(learner, base, &lease));
    CHECK(server->replay->shares.leases == 0);
    say(learner, "REPLAY.SAMPLE t 128 SHARED\r\n"); /* it waits for nobody: there is nothing to cut short */
    turn();
    CHECK(begins(other, "CLIENT UNBLOCK 1\r\n", ":0\r\n") && reads_shared(learner, base, &lease));
    char release[64];
    sprintf(release, "REPLAY.RELEASE %llu\r\n", (unsigned long long)lease);
    CHECK(begins(learner, release, ":1\r\n") && pinned(other) == 0);
    say(learner, "REPLAY.SAMPLE t 128 SHARED\r\n"); /* a table that is dropped meanwhile gives what was drawn from it */
    turn();
    CHECK(begins(other, "REPLAY.DROP t\r\n", "+OK\r\n") && reads_shared(learner, base, &lease));
    munmap((void *)(uintptr_t)base, ARENA);
    close_server();
}

/* ---- who may come in --------------------------------------------------------------------------------- */

static void take_nonce(struct memory_peer *peer, char nonce[CLIENT_NONCE_BYTES + 1]) {
    say(peer, "REPLAY.SHARE\r\n");
    settle();
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    CHECK(length > CLIENT_NONCE_BYTES && memcmp(bytes, "*3\r\n$4\r\nname\r\n$40\r\n", 19) == 0);
    memcpy(nonce, bytes + length - 2 - CLIENT_NONCE_BYTES, CLIENT_NONCE_BYTES);
    nonce[CLIENT_NONCE_BYTES] = '\0';
    memory_peer_forget_received(peer);
}

static void the_abstract_socket_wants_a_nonce_that_was_told_to_a_client_of_this_host(void) {
    open_sharing_server();
    struct memory_peer *tcp = connect_as("127.0.0.1", false, false), *near = connect_as("n", true, true);
    char nonce[CLIENT_NONCE_BYTES + 1], request[64];
    CHECK(begins(near, "PING\r\n", "-NOAUTH this socket") && begins(near, "SET a b\r\n", "-NOAUTH "));
    CHECK(begins(near, "REPLAY.SHARE\r\n", "-NOAUTH ") && begins(near, "REPLAY.LIST\r\n", "-NOAUTH "));
    CHECK(begins(near, "REPLAY.PROVE 00000000000000000000000000000000\r\n", "-NOAUTH expected"));
    take_nonce(tcp, nonce);
    CHECK(begins(near, "REPLAY.PROVE 0\r\n", "-NOAUTH ") && begins(near, "REPLAY.PROVE ''\r\n", "-NOAUTH "));
    sprintf(request, "REPLAY.PROVE %s\r\n", nonce);
    nonce[0] = nonce[0] == 'a' ? 'b' : 'a';
    char wrong[64];
    sprintf(wrong, "REPLAY.PROVE %s\r\n", nonce);
    CHECK(begins(near, wrong, "-NOAUTH ") && begins(near, request, "+OK\r\n") && begins(near, "PING\r\n", "+PONG\r\n"));
    struct memory_peer *thief = connect_as("n", true, true);
    CHECK(begins(thief, request, "-NOAUTH ")); /* once only */
    take_nonce(tcp, nonce);
    memory_peer_vanish(tcp);
    settle();
    sprintf(request, "REPLAY.PROVE %s\r\n", nonce);
    CHECK(begins(thief, request, "-NOAUTH "));
    struct memory_peer *far = connect_as("10.0.0.9", false, false);
    CHECK(begins(far, "REPLAY.SHARE\r\n", "-ERR memory can be shared on the same host only"));
    server->config.shared_memory_limit_bytes = 0;
    CHECK(begins(connect_as("127.0.0.1", false, false), "REPLAY.SHARE\r\n", "-ERR this server shares no memory"));
    close_server();
}

static void a_nonce_does_not_replace_the_password(void) {
    open_sharing_server();
    CHECK(begins(connect_as("127.0.0.1", false, false), "CONFIG SET requirepass secret\r\n", "+OK\r\n"));
    struct memory_peer *tcp = connect_as("127.0.0.1", false, false), *near = connect_as("n", true, true);
    char nonce[CLIENT_NONCE_BYTES + 1], request[64];
    CHECK(begins(tcp, "REPLAY.SHARE\r\n", "-NOAUTH ") && begins(tcp, "AUTH secret\r\n", "+OK\r\n"));
    take_nonce(tcp, nonce);
    sprintf(request, "REPLAY.PROVE %s\r\n", nonce);
    CHECK(begins(near, request, "+OK\r\n") && begins(near, "PING\r\n", "-NOAUTH Authentication required"));
    CHECK(begins(near, "AUTH wrong\r\n", "-WRONGPASS ") && begins(near, "AUTH secret\r\n", "+OK\r\n"));
    CHECK(begins(near, "PING\r\n", "+PONG\r\n"));
    close_server();
}

int main(void) {
    size_t before = memory_used_bytes(), mapped_before = memory_mapped_bytes();
    RUN(leases_lie_apart_and_leave_room_when_given_back);
    RUN(what_is_shared_is_bounded);
    RUN(a_client_can_only_read_what_is_shared);
    RUN(a_batch_is_gathered_in_slices_while_others_are_answered);
    RUN(without_room_the_batch_comes_over_the_socket);
    RUN(whoever_vanishes_in_mid_gather_gives_everything_back);
    RUN(a_gather_cut_short_is_answered_all_the_same);
    RUN(the_abstract_socket_wants_a_nonce_that_was_told_to_a_client_of_this_host);
    RUN(a_nonce_does_not_replace_the_password);
    CHECK(memory_used_bytes() == before && memory_mapped_bytes() == mapped_before);
    return 0;
}
