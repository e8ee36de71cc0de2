/* topology: reading one from a request's arguments, and telling of it. */
#include "server/cluster/topology.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/command.h"

#define SHARD_WORDS 7u
#define TLS_WORDS 3u
#define REPLICA_WORDS 6u
#define MOVE_WORDS 3u
#define STATE_WORDS 2u /* LEAVING number, GONE number */
#define UNOWNED (-1)

/* What an error shows of an argument. */
static int shown(const struct resp_argument *argument) {
    return argument->data ? argument->length < 64 ? (int)argument->length : 64 : 0;
}

#define SHOWN(argument) shown(argument), (const char *)(argument)->data

/* ---- words ----------------------------------------------------------------------------------------------------------- */

static bool take_number(const struct resp_argument *argument, int64_t least, int64_t most, int64_t *number) {
    return argument_int64(argument, number) && *number >= least && *number <= most;
}

static bool take_id(const struct resp_argument *argument, char id[SHARD_ID_BYTES + 1]) {
    if (argument->length != SHARD_ID_BYTES) return false;
    for (size_t i = 0; i < SHARD_ID_BYTES; i++)
        if (!strchr("0123456789abcdef", argument->data[i]) || argument->data[i] == '\0') return false;
    memcpy(id, argument->data, SHARD_ID_BYTES);
    id[SHARD_ID_BYTES] = '\0';
    return true;
}

/* What stands in replies, lines and JSON as it is: no blanks, quotes, backslashes, nor characters that do not print. */
static bool take_plain(const struct resp_argument *argument, char *text, size_t size) {
    if (argument->length >= size) return false;
    for (size_t i = 0; i < argument->length; i++)
        if (argument->data[i] <= ' ' || argument->data[i] > '~' || strchr("\"\\,@", argument->data[i])) return false;
    if (argument->length > 0) memcpy(text, argument->data, argument->length);
    text[argument->length] = '\0';
    return true;
}

/* "17" or "0-100": takes it off the front of `text`. */
static bool take_run(const char **text, const char *end, struct slot_run *run) {
    int numbers[2], count = 0;
    const char *at = *text;
    do {
        const char *from = at;
        int number = 0;
        while (at < end && *at >= '0' && *at <= '9' && number < CLUSTER_SLOTS) number = 10 * number + (*at++ - '0');
        if (at == from || number >= CLUSTER_SLOTS) return false;
        numbers[count++] = number;
    } while (count < 2 && at < end && *at == '-' && at++);
    *run = (struct slot_run){numbers[0], numbers[count - 1]};
    *text = at;
    return run->first <= run->last;
}

/* Gives the slots of "0-100,200" their place in `into`. */
static int take_slots(const struct resp_argument *argument, int16_t into[CLUSTER_SLOTS], int16_t place,
                      struct error *error) {
    const char *at = (const char *)argument->data, *end = argument->length > 0 ? at + argument->length : at;
    while (at < end) {
        struct slot_run run;
        if (!take_run(&at, end, &run) || (at < end && (*at != ',' || ++at == end)))
            return error_set(error, ERROR_GENERIC, "slots are ranges within 0-16383, such as 0-100,200, got '%.*s'",
                             SHOWN(argument));
        for (int slot = run.first; slot <= run.last; slot++) {
            if (into[slot] != UNOWNED)
                return error_set(error, ERROR_GENERIC, "slot %d is given twice: each has one shard, and moves once",
                                 slot);
            into[slot] = place;
        }
    }
    return 0;
}

/* ---- shards and moves ------------------------------------------------------------------------------------------------ */

static int find_shard(const struct topology *topology, int64_t number) {
    for (int i = 0; i < topology->shard_count; i++)
        if (topology->shards[i].number == number) return i;
    return -1;
}

/* `argv` begins with SHARD. */
static int take_shard(struct topology *topology, const struct resp_argument *argv, struct error *error) {
    struct shard *shard = &topology->shards[topology->shard_count];
    int64_t number, port;
    if (!take_number(&argv[1], 0, SHARDS_MOST - 1, &number))
        return error_set(error, ERROR_GENERIC, "a shard's number is 0 to 255, got '%.*s'", SHOWN(&argv[1]));
    int before = topology->shard_count > 0 ? (int)shard[-1].number : -1;
    if (number <= before)
        return error_set(error, ERROR_GENERIC, "shards come in the order of their numbers, each once: %d, then %d",
                         before, (int)number);
    shard->number = (unsigned)number;
    shard->first_slot = CLUSTER_SLOTS;
    shard->last_slot = -1;
    if (!take_id(&argv[2], shard->id))
        return error_set(error, ERROR_GENERIC, "a shard's id is 40 lower-case hexadecimal digits, got '%.*s'",
                         SHOWN(&argv[2]));
    if (!take_plain(&argv[3], shard->host, sizeof shard->host) || shard->host[0] == '\0')
        return error_set(error, ERROR_GENERIC, "a shard's host is a name or an address, got '%.*s'", SHOWN(&argv[3]));
    if (!take_number(&argv[4], 1, 65535, &port))
        return error_set(error, ERROR_GENERIC, "a shard's port is 1 to 65535, got '%.*s'", SHOWN(&argv[4]));
    shard->port = (int)port;
    if (!take_plain(&argv[5], shard->unix_path, sizeof shard->unix_path))
        return error_set(error, ERROR_GENERIC,
                         "a shard's unix socket is a path of up to %zu letters without blanks, or nothing, got '%.*s'",
                         sizeof shard->unix_path - 1, SHOWN(&argv[5]));
    if (take_slots(&argv[6], topology->owner, (int16_t)topology->shard_count, error) < 0) return -1;
    topology->shard_count++;
    return 0;
}

/* `argv` begins with TLS. */
static int take_tls(struct topology *topology, const struct resp_argument *argv, struct error *error) {
    int64_t number, port;
    int place = take_number(&argv[1], 0, SHARDS_MOST - 1, &number) ? find_shard(topology, number) : -1;
    if (place < 0)
        return error_set(error, ERROR_GENERIC, "one of the shards serves TLS, by its number, got '%.*s'",
                         SHOWN(&argv[1]));
    if (!take_number(&argv[2], 1, 65535, &port))
        return error_set(error, ERROR_GENERIC, "a shard's port for TLS is 1 to 65535, got '%.*s'", SHOWN(&argv[2]));
    if (topology->shards[place].tls_port)
        return error_set(error, ERROR_GENERIC, "the port for TLS of shard %d is given twice", (int)number);
    topology->shards[place].tls_port = (int)port;
    return 0;
}

/* `argv` begins with REPLICA. */
static int take_replica(struct topology *topology, const struct resp_argument *argv, struct error *error) {
    int64_t number, port, tls_port;
    int place = take_number(&argv[1], 0, SHARDS_MOST - 1, &number) ? find_shard(topology, number) : -1;
    if (place < 0)
        return error_set(error, ERROR_GENERIC, "a replica is of one of the shards, by its number, got '%.*s'",
                         SHOWN(&argv[1]));
    if (topology->replica_count == (int)SHARD_REPLICAS_MOST)
        return error_set(error, ERROR_GENERIC, "there are more than %u replicas", SHARD_REPLICAS_MOST);
    struct shard_replica *replica = &topology->replicas[topology->replica_count];
    replica->place = place;
    if (!take_id(&argv[2], replica->id))
        return error_set(error, ERROR_GENERIC, "a replica's id is 40 lower-case hexadecimal digits, got '%.*s'",
                         SHOWN(&argv[2]));
    if (!take_plain(&argv[3], replica->host, sizeof replica->host) || replica->host[0] == '\0')
        return error_set(error, ERROR_GENERIC, "a replica's host is a name or an address, got '%.*s'", SHOWN(&argv[3]));
    if (!take_number(&argv[4], 1, 65535, &port) || !take_number(&argv[5], 0, 65535, &tls_port))
        return error_set(error, ERROR_GENERIC,
                         "a replica's ports are 1 to 65535, and 0 where it has none for TLS, got '%.*s' and '%.*s'",
                         SHOWN(&argv[4]), SHOWN(&argv[5]));
    replica->port = (int)port;
    replica->tls_port = (int)tls_port;
    topology->replica_count++;
    return 0;
}

/* `argv` begins with MOVE. */
static int take_move(struct topology *topology, const struct resp_argument *argv, struct error *error) {
    int64_t number;
    int place = take_number(&argv[2], 0, SHARDS_MOST - 1, &number) ? find_shard(topology, number) : -1;
    if (place < 0)
        return error_set(error, ERROR_GENERIC, "slots move to one of the shards by its number, got '%.*s'",
                         SHOWN(&argv[2]));
    return take_slots(&argv[1], topology->target, (int16_t)place, error);
}

/* `argv` begins with LEAVING. */
static int take_leaving(struct topology *topology, const struct resp_argument *argv, struct error *error) {
    int64_t number;
    int place = take_number(&argv[1], 0, SHARDS_MOST - 1, &number) ? find_shard(topology, number) : -1;
    if (place < 0)
        return error_set(error, ERROR_GENERIC, "one of the shards leaves, by its number, got '%.*s'", SHOWN(&argv[1]));
    topology->shards[place].leaving = true;
    return 0;
}

/* `argv` begins with GONE. */
static int take_gone(struct topology *topology, const struct resp_argument *argv, struct error *error) {
    int64_t number;
    if (!take_number(&argv[1], 0, SHARDS_MOST - 1, &number))
        return error_set(error, ERROR_GENERIC, "a shard's number is 0 to 255, got '%.*s'", SHOWN(&argv[1]));
    if (find_shard(topology, number) >= 0)
        return error_set(error, ERROR_GENERIC, "shard %d has gone, and its number is given to no other shard",
                         (int)number);
    topology->gone[number] = true;
    return 0;
}

static int take_parts(struct topology *topology, uint32_t argc, const struct resp_argument *argv, struct error *error) {
    uint32_t at = 0;
    while (argc - at >= SHARD_WORDS && argument_is(&argv[at], "shard")) {
        if (topology->shard_count == (int)SHARDS_MOST)
            return error_set(error, ERROR_GENERIC, "there are more than %u shards", SHARDS_MOST);
        if (take_shard(topology, &argv[at], error) < 0) return -1;
        at += SHARD_WORDS;
    }
    while (argc - at >= TLS_WORDS && argument_is(&argv[at], "tls")) {
        if (take_tls(topology, &argv[at], error) < 0) return -1;
        at += TLS_WORDS;
    }
    while (argc - at >= REPLICA_WORDS && argument_is(&argv[at], "replica")) {
        if (take_replica(topology, &argv[at], error) < 0) return -1;
        at += REPLICA_WORDS;
    }
    while (argc - at >= MOVE_WORDS && argument_is(&argv[at], "move")) {
        if (take_move(topology, &argv[at], error) < 0) return -1;
        at += MOVE_WORDS;
    }
    while (argc - at >= STATE_WORDS && argument_is(&argv[at], "leaving")) {
        if (take_leaving(topology, &argv[at], error) < 0) return -1;
        at += STATE_WORDS;
    }
    while (argc - at >= STATE_WORDS && argument_is(&argv[at], "gone")) {
        if (take_gone(topology, &argv[at], error) < 0) return -1;
        at += STATE_WORDS;
    }
    if (at < argc)
        return error_set(error, ERROR_GENERIC,
                         "expected SHARD number id host port unix slots for each shard, then TLS number port, "
                         "REPLICA number id host port tls_port, MOVE slots number, LEAVING number, GONE number, got "
                         "'%.*s'",
                         SHOWN(&argv[at]));
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------- */

static int complete(struct topology *topology, int64_t number, struct error *error) {
    topology->number = (unsigned)number;
    topology->myself = topology->gone[number] ? TOPOLOGY_GONE : find_shard(topology, number);
    if (topology->myself < 0 && !topology->gone[number])
        return error_set(error, ERROR_GENERIC, "the shard that this is meant for, %d, is not among the shards",
                         (int)number);
    for (int i = 0; i < topology->shard_count; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(topology->shards[i].id, topology->shards[j].id) == 0)
                return error_set(error, ERROR_GENERIC, "shards %u and %u have the same id", topology->shards[j].number,
                                 topology->shards[i].number);
    for (int i = 0; i < topology->replica_count; i++) {
        bool is_taken = false;
        for (int j = 0; j < topology->shard_count; j++)
            is_taken |= strcmp(topology->replicas[i].id, topology->shards[j].id) == 0;
        for (int j = 0; j < i; j++) is_taken |= strcmp(topology->replicas[i].id, topology->replicas[j].id) == 0;
        if (is_taken)
            return error_set(error, ERROR_GENERIC, "a replica of shard %u has the id of another server",
                             topology->shards[topology->replicas[i].place].number);
    }
    for (int slot = 0; slot < CLUSTER_SLOTS; slot++) {
        if (topology->owner[slot] == UNOWNED)
            return error_set(error, ERROR_GENERIC, "slot %d has no shard: all of 0-16383 must have one", slot);
        if (topology->target[slot] == UNOWNED) topology->target[slot] = topology->owner[slot];
        struct shard *owner = &topology->shards[topology->owner[slot]];
        if (slot < owner->first_slot) owner->first_slot = slot;
        owner->last_slot = slot;
    }
    return 0;
}

static int read_into(struct topology *topology, uint32_t argc, const struct resp_argument *argv, struct error *error) {
    int64_t number;
    if (argc < 2 || !take_number(&argv[0], 1, INT64_MAX, &topology->version))
        return error_set(error, ERROR_GENERIC, "a topology's version is a number from 1 on");
    if (!take_number(&argv[1], 0, SHARDS_MOST - 1, &number))
        return error_set(error, ERROR_GENERIC, "a shard's number is 0 to 255, got '%.*s'", SHOWN(&argv[1]));
    if (take_parts(topology, argc - 2, argv + 2, error) < 0) return -1;
    return complete(topology, number, error);
}

struct topology *topology_parse(uint32_t argc, const struct resp_argument *argv, struct error *error) {
    struct topology *topology = memory_calloc(1, sizeof *topology);
    uint32_t most = argc / SHARD_WORDS < SHARDS_MOST ? argc / SHARD_WORDS : SHARDS_MOST;
    uint32_t replicas = argc / REPLICA_WORDS < SHARD_REPLICAS_MOST ? argc / REPLICA_WORDS : SHARD_REPLICAS_MOST;
    if (topology) topology->shards = memory_calloc(most + 1, sizeof *topology->shards);
    if (topology) topology->replicas = memory_calloc(replicas + 1, sizeof *topology->replicas);
    if (!topology || !topology->shards || !topology->replicas) {
        error_set(error, ERROR_LIMIT, "no memory for a topology of %u shards", most);
        topology_free(topology);
        return NULL;
    }
    memset(topology->owner, 0xff, sizeof topology->owner); /* UNOWNED */
    memset(topology->target, 0xff, sizeof topology->target);
    if (read_into(topology, argc, argv, error) == 0) return topology;
    topology_free(topology);
    return NULL;
}

void topology_free(struct topology *topology) {
    if (topology) {
        memory_free(topology->shards);
        memory_free(topology->replicas);
    }
    memory_free(topology);
}

static bool shards_are_equal(const struct shard *one, const struct shard *other) {
    return one->number == other->number && one->port == other->port && one->tls_port == other->tls_port &&
           one->leaving == other->leaving && strcmp(one->id, other->id) == 0 && strcmp(one->host, other->host) == 0 &&
           strcmp(one->unix_path, other->unix_path) == 0;
}

static bool replicas_are_equal(const struct shard_replica *one, const struct shard_replica *other) {
    return one->place == other->place && one->port == other->port && one->tls_port == other->tls_port &&
           strcmp(one->id, other->id) == 0 && strcmp(one->host, other->host) == 0;
}

bool topology_equals(const struct topology *one, const struct topology *other) {
    if (one->version != other->version || one->number != other->number || one->shard_count != other->shard_count ||
        one->replica_count != other->replica_count)
        return false;
    for (int i = 0; i < one->shard_count; i++)
        if (!shards_are_equal(&one->shards[i], &other->shards[i])) return false;
    for (int i = 0; i < one->replica_count; i++)
        if (!replicas_are_equal(&one->replicas[i], &other->replicas[i])) return false;
    return memcmp(one->owner, other->owner, sizeof one->owner) == 0 &&
           memcmp(one->target, other->target, sizeof one->target) == 0 &&
           memcmp(one->gone, other->gone, sizeof one->gone) == 0;
}

int topology_returned(const struct topology *before, const struct topology *after) {
    for (unsigned number = 0; number < SHARDS_MOST; number++)
        if (before->gone[number] && !after->gone[number]) return (int)number;
    return -1;
}

struct slot_counts topology_count_slots(const struct topology *topology) {
    struct slot_counts counts = {0, 0};
    for (int slot = 0; slot < CLUSTER_SLOTS; slot++) {
        bool own = topology->owner[slot] == topology->myself, comes = topology->target[slot] == topology->myself;
        counts.own += own;
        counts.moving += own != comes;
    }
    return counts;
}

bool topology_next_run(const struct topology *topology, int from, int place, struct slot_run *run) {
    const int16_t *owner = topology->owner;
    int at = from, last = place >= 0 ? topology->shards[place].last_slot : CLUSTER_SLOTS - 1;
    if (place >= 0 && at < topology->shards[place].first_slot) at = topology->shards[place].first_slot;
    while (at <= last && place >= 0 && owner[at] != place) at++;
    if (at > last) return false;
    run->first = run->last = at;
    while (run->last < last && owner[run->last + 1] == owner[at]) run->last++;
    return true;
}

bool topology_next_move(const struct topology *topology, int from, struct slot_run *run) {
    const int16_t *owner = topology->owner, *target = topology->target;
    int at = from;
    while (at < CLUSTER_SLOTS && owner[at] == target[at]) at++;
    if (at >= CLUSTER_SLOTS) return false;
    run->first = run->last = at;
    while (run->last + 1 < CLUSTER_SLOTS && owner[run->last + 1] == owner[at] && target[run->last + 1] == target[at])
        run->last++;
    return true;
}

int topology_next_replica(const struct topology *topology, int before, int place) {
    for (int i = before + 1; i < topology->replica_count; i++)
        if (topology->replicas[i].place == place) return i;
    return -1;
}

static void write_replicas(const struct topology *topology, int place, struct text *out) {
    const char *between = "";
    for (int i = -1; (i = topology_next_replica(topology, i, place)) >= 0; between = ", ") {
        const struct shard_replica *replica = &topology->replicas[i];
        text_append(out, "%s{\"id\": \"%s\", \"host\": \"%s\", \"port\": %d, \"tls_port\": %d}", between, replica->id,
                    replica->host, replica->port, replica->tls_port);
    }
}

static void write_shard(const struct topology *topology, int place, struct text *out) {
    const struct shard *shard = &topology->shards[place];
    text_append(out, "%s{\"shard\": %u, \"id\": \"%s\", \"host\": \"%s\", \"port\": %d, \"tls_port\": %d, ",
                place > 0 ? ", " : "", shard->number, shard->id, shard->host, shard->port, shard->tls_port);
    text_append(out, "\"unix\": \"%s\", \"slots\": [", shard->unix_path);
    struct slot_run run = {0, -1};
    for (int count = 0; topology_next_run(topology, run.last + 1, place, &run); count++)
        text_append(out, "%s[%d, %d]", count > 0 ? ", " : "", run.first, run.last);
    text_append(out, "], \"replicas\": [");
    write_replicas(topology, place, out);
    text_append(out, "]}");
}

static void write_moves(const struct topology *topology, struct text *out) {
    struct slot_run run = {0, -1};
    for (int count = 0; topology_next_move(topology, run.last + 1, &run); count++)
        text_append(out, "%s{\"slots\": [%d, %d], \"from\": %u, \"to\": %u}", count > 0 ? ", " : "", run.first,
                    run.last, topology->shards[topology->owner[run.first]].number,
                    topology->shards[topology->target[run.first]].number);
}

static void write_states(const struct topology *topology, struct text *out) {
    int count = 0;
    for (int i = 0; i < topology->shard_count; i++)
        if (topology->shards[i].leaving) text_append(out, "%s%u", count++ > 0 ? ", " : "", topology->shards[i].number);
    text_append(out, "], \"gone\": [");
    count = 0;
    for (unsigned number = 0; number < SHARDS_MOST; number++)
        if (topology->gone[number]) text_append(out, "%s%u", count++ > 0 ? ", " : "", number);
}

void topology_write_json(const struct topology *topology, struct text *out) {
    text_append(out, "{\"version\": %" PRId64 ", \"shards\": [", topology ? topology->version : 0);
    for (int i = 0; topology && i < topology->shard_count; i++) write_shard(topology, i, out);
    text_append(out, "], \"moves\": [");
    if (topology) write_moves(topology, out);
    text_append(out, "], \"leaving\": [");
    if (topology)
        write_states(topology, out);
    else
        text_append(out, "], \"gone\": [");
    text_append(out, "]}");
}
