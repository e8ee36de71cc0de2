/* test_cluster: slots of keys, and topologies that are read from a request. */
#include "base/crc16.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "server/cluster/topology.h"

#define WORDS_MOST 64
#define ID_A "00000000000000000000000000000000000000aa"
#define ID_B "00000000000000000000000000000000000000bb"
#define ID_C "00000000000000000000000000000000000000cc"
#define ID_D "00000000000000000000000000000000000000dd"

static struct resp_argument words[WORDS_MOST];
static char bytes[4096];
static struct error error;

/* The words of a line, "''" for an empty one. */
static uint32_t split(const char *line) {
    uint32_t count = 0;
    snprintf(bytes, sizeof bytes, "%s", line);
    for (char *word = strtok(bytes, " "); word && count < WORDS_MOST; word = strtok(NULL, " "))
        words[count++] =
            (struct resp_argument){.data = (uint8_t *)word, .length = strcmp(word, "''") == 0 ? 0 : strlen(word)};
    return count;
}

static struct topology *read_line(const char *line) {
    return topology_parse(split(line), words, &error);
}

static int slot(const char *key) {
    return slot_of_key(key, strlen(key));
}

/* ---- slots ----------------------------------------------------------------------------------------------------------- */

static void the_checksum_is_xmodems(void) {
    CHECK(crc16("123456789", 9) == 0x31c3);
    CHECK(crc16("", 0) == 0);
    CHECK(crc16("A", 1) == 0x58e5);
}

static void only_what_stands_in_the_first_braces_counts(void) {
    CHECK(slot("123456789") == 0x31c3 % CLUSTER_SLOTS);
    CHECK(slot("foo") == 12182);
    CHECK(slot("{user1000}.following") == slot("user1000") && slot("x{user1000}y") == slot("user1000"));
    CHECK(slot("foo{}{bar}") == crc16("foo{}{bar}", 10) % CLUSTER_SLOTS);
    CHECK(slot("foo{{bar}}zap") == slot("{bar"));
    CHECK(slot("foo{bar}{zap}") == slot("bar"));
    CHECK(slot("}{foo") == crc16("}{foo", 5) % CLUSTER_SLOTS);
    CHECK(slot("") == 0 && slot_of_key(NULL, 0) == 0);
    CHECK(slot_of_key("a{\0}b", 5) == slot_of_key("\0", 1));
}

/* ---- topologies ------------------------------------------------------------------------------------------------------ */

#define TWO "SHARD 3 " ID_A " h1 1 '' 0-99,200 SHARD 7 " ID_B " ::1 65535 /tmp/b 100-199,201-16383"

static void a_whole_topology_gives_each_slot_its_shard(void) {
    struct topology *topology = read_line("5 7 " TWO " TLS 7 9 MOVE 0-9 7 MOVE 16383 3");
    CHECK(topology && topology->version == 5 && topology->shard_count == 2 && topology->myself == 1);
    CHECK(topology->owner[0] == 0 && topology->owner[100] == 1 && topology->owner[200] == 0);
    CHECK(topology->target[9] == 1 && topology->target[10] == 0 && topology->target[16383] == 0);
    struct text text = {0};
    topology_write_json(topology, &text);
    CHECK(
        strcmp(text.data,
               "{\"version\": 5, \"shards\": [{\"shard\": 3, \"id\": \"" ID_A
               "\", \"host\": \"h1\", \"port\": 1, \"tls_port\": 0, \"unix\": \"\", \"slots\": [[0, 99], [200, 200]], "
               "\"replicas\": []}, "
               "{\"shard\": 7, \"id\": \"" ID_B "\", \"host\": \"::1\", \"port\": 65535, \"tls_port\": 9, \"unix\": "
               "\"/tmp/b\", \"slots\": [[100, 199], [201, 16383]], \"replicas\": []}], "
               "\"moves\": [{\"slots\": [0, 9], \"from\": 3, "
               "\"to\": 7}, "
               "{\"slots\": [16383, 16383], \"from\": 7, \"to\": 3}], \"leaving\": [], \"gone\": []}") == 0);
    text_free(&text);
    struct topology *other = read_line("5 7 " TWO " TLS 7 9 MOVE 0-9 7"),
                    *third = read_line("5 7 " TWO " TLS 7 8 MOVE 0-9 7 MOVE 16383 3");
    CHECK(topology_equals(topology, topology) && !topology_equals(topology, other) &&
          !topology_equals(topology, third));
    CHECK(topology->shards[0].tls_port == 0 && topology->shards[1].tls_port == 9);
    topology_free(other);
    topology_free(third);
    topology_free(topology);
}

static void a_shard_may_have_no_slot(void) {
    struct topology *topology = read_line("1 0 SHARD 0 " ID_A " h 1 '' 0-16383 SHARD 255 " ID_B " h 2 '' ''");
    struct slot_run run;
    CHECK(topology && !topology_next_run(topology, 0, 1, &run));
    CHECK(topology_next_run(topology, 0, 0, &run) && run.first == 0 && run.last == 16383);
    topology_free(topology);
}

static void replicas_are_told_with_their_shard(void) {
    struct topology *topology =
                        read_line("5 7 " TWO " TLS 7 9 REPLICA 7 " ID_C " h3 3 4 REPLICA 3 " ID_D " h4 5 0 MOVE 0-9 7"),
                    *elsewhere =
                        read_line("5 7 " TWO " TLS 7 9 REPLICA 7 " ID_C " h3 3 0 REPLICA 3 " ID_D " h4 5 0 MOVE 0-9 7"),
                    *fewer = read_line("5 7 " TWO " TLS 7 9 REPLICA 7 " ID_C " h3 3 4 MOVE 0-9 7");
    CHECK(topology && topology->replica_count == 2 && fewer->replica_count == 1);
    CHECK(topology_next_replica(topology, -1, 0) == 1 && topology_next_replica(topology, 1, 0) == -1);
    CHECK(topology_next_replica(topology, -1, 1) == 0 && topology_next_replica(fewer, -1, 0) == -1);
    CHECK(topology_equals(topology, topology) && !topology_equals(topology, elsewhere) &&
          !topology_equals(topology, fewer));
    struct text text = {0};
    topology_write_json(topology, &text);
    CHECK(strstr(text.data, "\"slots\": [[0, 99], [200, 200]], \"replicas\": [{\"id\": \"" ID_D
                            "\", \"host\": \"h4\", \"port\": 5, \"tls_port\": 0}]}"));
    CHECK(
        strstr(text.data, "\"replicas\": [{\"id\": \"" ID_C "\", \"host\": \"h3\", \"port\": 3, \"tls_port\": 4}]}]"));
    text_free(&text);
    topology_free(topology);
    topology_free(elsewhere);
    topology_free(fewer);
}

/* Ids carry the number of a shard, so that of one that has gone stays taken. */
static void shards_that_leave_and_have_gone_are_told_and_stay_gone(void) {
    struct topology *leaving = read_line("5 7 " TWO " LEAVING 7 GONE 0 GONE 255");
    CHECK(leaving && leaving->shards[1].leaving && !leaving->shards[0].leaving);
    CHECK(leaving->gone[0] && leaving->gone[255] && !leaving->gone[7]);
    struct text text = {0};
    topology_write_json(leaving, &text);
    CHECK(strstr(text.data, "\"moves\": [], \"leaving\": [7], \"gone\": [0, 255]}"));
    text_free(&text);
    struct topology *other = read_line("5 7 " TWO " GONE 0 GONE 255"),
                    *less = read_line("5 7 " TWO " LEAVING 7 GONE 0");
    CHECK(!topology_equals(leaving, other) && !topology_equals(leaving, less));
    CHECK(topology_returned(leaving, other) == -1 && topology_returned(other, less) == 255);
    struct topology *gone = read_line("6 7 SHARD 3 " ID_A " h1 1 '' 0-16383 GONE 7");
    CHECK(gone && gone->myself == TOPOLOGY_GONE && gone->number == 7);
    CHECK(topology_count_slots(gone).own == 0 && topology_count_slots(gone).moving == 0);
    topology_free(leaving);
    topology_free(other);
    topology_free(less);
    topology_free(gone);
}

static void what_makes_no_whole_topology_is_refused_with_the_reason(void) {
    static const struct {
        const char *line, *reason;
    } wrong[] = {
        {"0 0", "version"},
        {"-1 0", "version"},
        {"1 256", "0 to 255"},
        {"1 0", "not among the shards"},
        {"1 4 " TWO, "not among the shards"},
        {"1 3 " TWO " MOVE 1", "expected SHARD"},
        {"1 3 " TWO " TLS 4 1", "one of the shards serves TLS"},
        {"1 3 " TWO " TLS 3 0", "port for TLS is 1 to 65535"},
        {"1 3 " TWO " TLS 3 1 TLS 3 2", "of shard 3 is given twice"},
        {"1 3 " TWO " MOVE 1 7 TLS 3 1", "expected SHARD"},
        {"1 3 " TWO " REPLICA 4 " ID_C " h 1 0", "one of the shards, by its number"},
        {"1 3 " TWO " REPLICA 3 short h 1 0", "hexadecimal"},
        {"1 3 " TWO " REPLICA 3 " ID_C " '' 1 0", "a replica's host"},
        {"1 3 " TWO " REPLICA 3 " ID_C " h 0 0", "a replica's ports"},
        {"1 3 " TWO " REPLICA 3 " ID_C " h 1 65536", "a replica's ports"},
        {"1 3 " TWO " REPLICA 3 " ID_A " h 1 0", "the id of another server"},
        {"1 3 " TWO " REPLICA 3 " ID_C " h 1 0 REPLICA 7 " ID_C " h 2 0", "the id of another server"},
        {"1 3 " TWO " REPLICA 3 " ID_C " h 1", "expected SHARD"},
        {"1 3 " TWO " MOVE 1 7 REPLICA 3 " ID_C " h 1 0", "expected SHARD"},
        {"1 3 " TWO " MOVE 1 9", "one of the shards"},
        {"1 3 " TWO " MOVE 1 3 MOVE 0-5 3", "twice"},
        {"1 3 " TWO " rest", "expected SHARD"},
        {"1 3 " TWO " LEAVING 4", "one of the shards leaves"},
        {"1 3 " TWO " GONE 7", "shard 7 has gone"},
        {"1 3 " TWO " GONE 256", "0 to 255"},
        {"1 3 " TWO " GONE 1 LEAVING 3", "expected SHARD"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 0-16382", "slot 16383 has no shard"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 0-16384", "within 0-16383"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 9-8", "within 0-16383"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 0-16383,", "within 0-16383"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 0--1", "within 0-16383"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 99999999999999999999", "within 0-16383"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 0-16383,5", "slot 5 is given twice"},
        {"1 0 SHARD 0 short h 1 '' 0-16383", "hexadecimal"},
        {"1 0 SHARD 0 " ID_A " '' 1 '' 0-16383", "host"},
        {"1 0 SHARD 0 " ID_A " a\"b 1 '' 0-16383", "host"},
        {"1 0 SHARD 0 " ID_A " h 0 '' 0-16383", "port"},
        {"1 0 SHARD 0 " ID_A " h 1 a\\b 0-16383", "socket"},
        {"1 0 SHARD 256 " ID_A " h 1 '' 0-16383", "0 to 255"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 0-1 SHARD 0 " ID_B " h 1 '' 2-16383", "in the order"},
        {"1 0 SHARD 0 " ID_A " h 1 '' 0-1 SHARD 1 " ID_A " h 1 '' 2-16383", "same id"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct topology *topology = read_line(wrong[i].line);
        if (topology || !strstr(error.message, wrong[i].reason)) printf("%s: %s\n", wrong[i].line, error.message);
        CHECK(!topology && strstr(error.message, wrong[i].reason));
    }
}

/* Whatever comes is refused, or is a whole: every slot has one shard, among those that there are. */
static void whatever_is_read_is_whole(void) {
    struct random_state random;
    random_seed(&random, 1);
    static const char letters[] = "0123456789-,' abSHARDMOVE\"\\";
    for (int round = 0; round < 20000; round++) {
        char line[512];
        int length = snprintf(line, sizeof line, "5 7 %s MOVE 0-9 7", TWO);
        for (uint64_t i = random_below(&random, 4); i > 0; i--)
            line[random_below(&random, (uint64_t)length)] = letters[random_below(&random, sizeof letters - 1)];
        struct topology *topology = read_line(line);
        for (int i = 0; topology && i < CLUSTER_SLOTS; i += round % 64 == 0 ? 1 : 97) {
            CHECK(topology->owner[i] >= 0 && topology->owner[i] < topology->shard_count);
            CHECK(topology->target[i] >= 0 && topology->target[i] < topology->shard_count);
        }
        topology_free(topology);
    }
}

int main(void) {
    RUN(the_checksum_is_xmodems);
    RUN(only_what_stands_in_the_first_braces_counts);
    RUN(a_whole_topology_gives_each_slot_its_shard);
    RUN(a_shard_may_have_no_slot);
    RUN(replicas_are_told_with_their_shard);
    RUN(shards_that_leave_and_have_gone_are_told_and_stay_gone);
    RUN(what_makes_no_whole_topology_is_refused_with_the_reason);
    RUN(whatever_is_read_is_whole);
    CHECK(memory_live_bytes() == 0);
    return 0;
}
