/* simulated_requests: what clients of the simulated machine ask for, by chance: changes of keys, weights, gradients and tables of
 * every kind, and transactions of them. */
#ifndef REPLAY_TESTS_SIMULATED_REQUESTS_H
#define REPLAY_TESTS_SIMULATED_REQUESTS_H

#include "server_content.h"
#include "simulated_machine.h"

static bool only_keys; /* no tables, weights or gradients */

struct client_of_test {
    struct memory_peer *peer;
    uint32_t waits_for; /* index of what it asked for, and one; 0: nothing */
    uint64_t steps; /* of its stream, about */
};

static inline void send_words(struct memory_peer *peer, const char *line) {
    char copy[256], *rest = copy;
    const char *words[32];
    int count = 0;
    CHECK(strlen(line) < sizeof copy);
    strcpy(copy, line);
    for (char *word; (word = strtok_r(rest, " ", &rest));) words[count++] = word;
    send_arguments(peer, count);
    for (int i = 0; i < count; i++) send_word(peer, words[i]);
    if (tracing) fprintf(stderr, "  %s\n", line);
}

/* {capacity: 24, signature: {x: [uint32, [2]]}, …} */
static inline void send_table(struct memory_peer *peer, const char *table, bool is_new) {
    struct msgpack_writer spec = {0};
    bool limits = one_in(2);
    msgpack_write_map(&spec, is_new ? 5 : 3);
    if (is_new) {
        msgpack_write_string(&spec, "capacity", 8);
        msgpack_write_unsigned(&spec, 24);
        msgpack_write_string(&spec, "signature", 9);
        msgpack_write_map(&spec, 1);
        msgpack_write_string(&spec, "x", 1);
        msgpack_write_array(&spec, 2);
        msgpack_write_string(&spec, "uint32", 6);
        msgpack_write_array(&spec, 1);
        msgpack_write_unsigned(&spec, 2);
    }
    const char *sampler = one_in(2) ? "prioritized" : "uniform", *remover = one_in(2) ? "fifo" : "min_heap";
    msgpack_write_string(&spec, "sampler", 7);
    msgpack_write_string(&spec, sampler, strlen(sampler));
    msgpack_write_string(&spec, "remover", 7);
    msgpack_write_string(&spec, remover, strlen(remover));
    msgpack_write_string(&spec, "max_times_sampled", 17);
    msgpack_write_unsigned(&spec, is_new && limits ? 3 : 0);
    send_arguments(peer, 3);
    send_word(peer, is_new ? "REPLAY.CREATE" : "REPLAY.CONFIG");
    send_word(peer, table);
    send_bulk(peer, spec.data, spec.length);
    memory_free(spec.data);
    if (tracing) fprintf(stderr, "  %s %s\n", is_new ? "create" : "configure", table);
}

static inline uint32_t fill_priorities(double priorities[8], uint32_t n) {
    for (uint32_t i = 0; i < n; i++) priorities[i] = one_in(8) ? 0 : random_unit(&chance);
    return n * (uint32_t)sizeof *priorities;
}

static inline void send_items(struct memory_peer *peer, const char *table) {
    double priorities[8];
    uint32_t n = 1 + below(8), values[16];
    char count[16];
    for (uint32_t i = 0; i < 2 * n; i++) values[i] = below(1u << 31);
    send_arguments(peer, 8);
    send_word(peer, "REPLAY.ADD");
    send_word(peer, table);
    sprintf(count, "%u", n);
    send_word(peer, count);
    send_bulk(peer, priorities, one_in(3) ? 0 : fill_priorities(priorities, n));
    send_word(peer, "COLUMNS");
    send_word(peer, "1");
    send_word(peer, "x");
    send_bulk(peer, values, 8 * n);
    if (tracing) fprintf(stderr, "  add %u to %s\n", n, table);
}

/* Ids of items that are there, oldest first from a random one on. */
static inline uint32_t find_ids(const char *name, uint64_t ids[8]) {
    const struct replay_entry *entry = server->replay->tables->entries;
    while (entry && strcmp(entry->table->config.name, name) != 0) entry = entry->next;
    uint32_t n = 0, passed = below(12), most = 1 + below(4);
    if (!entry) return 0;
    const struct table *table = entry->table;
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE && n < most; slot = table->items.slot[slot].newer)
        if (passed == 0 || passed-- == 0) ids[n++] = table_id(table, slot);
    return n;
}

static inline void send_changes(struct memory_peer *peer, const char *table, bool deletes) {
    uint64_t ids[8] = {12345};
    double priorities[8];
    uint32_t n = find_ids(table, ids);
    if (n == 0) n = 1;
    send_arguments(peer, deletes ? 3 : 4);
    send_word(peer, deletes ? "REPLAY.DEL" : "REPLAY.UPDATE");
    send_word(peer, table);
    send_bulk(peer, ids, n * sizeof *ids);
    if (!deletes) send_bulk(peer, priorities, fill_priorities(priorities, n));
    if (tracing) fprintf(stderr, "  %s %u of %s\n", deletes ? "delete" : "update", n, table);
}

/* Of windows of steps, which are compressed; of texts. */
static inline void send_other_table(struct memory_peer *peer, const char *table) {
    struct msgpack_writer spec = {0};
    if (*table == 'w') {
        write_windows(&spec, 24, 200, 2, one_in(2) ? "lz4" : "none", 0);
    } else {
        msgpack_write_map(&spec, 2);
        write_text(&spec, "capacity");
        msgpack_write_unsigned(&spec, 24);
        write_text(&spec, "signature");
        msgpack_write_map(&spec, 1);
        write_text(&spec, "text");
        msgpack_write_array(&spec, 2);
        write_text(&spec, "int32");
        msgpack_write_array(&spec, 1);
        msgpack_write_nil(&spec);
    }
    if (tracing) fprintf(stderr, "  create %s\n", table);
    send_spec_of(peer, table, "REPLAY.CREATE", &spec);
}

/* A column of n values, behind the words before it. */
static inline void send_column(struct memory_peer *peer, const char *name, const void *values, size_t length) {
    send_word(peer, "COLUMNS");
    send_word(peer, "1");
    send_word(peer, name);
    send_bulk(peer, values, length);
}

static inline void send_texts(struct memory_peer *peer) {
    struct {
        int64_t offsets[4];
        int32_t rows[3 * 300];
    } texts = {.offsets = {0}};
    for (uint32_t i = 0; i < 3; i++) texts.offsets[i + 1] = texts.offsets[i] + below(one_in(4) ? 300 : 10);
    for (int64_t i = 0; i < texts.offsets[3]; i++) texts.rows[i] = (int32_t)below(one_in(2) ? 3 : 1u << 30);
    send_arguments(peer, 8);
    send_word(peer, "REPLAY.ADD");
    send_word(peer, "r");
    send_word(peer, "3");
    send_word(peer, "");
    send_column(peer, "text", &texts, sizeof texts.offsets + (size_t)texts.offsets[3] * sizeof texts.rows[0]);
    if (tracing) fprintf(stderr, "  add %lld words of texts\n", (long long)texts.offsets[3]);
}

static inline void send_steps(struct client_of_test *client) {
    uint8_t frames[4 * 200] = {0};
    uint32_t n = 1 + below(4), streams[4] = {0};
    char count[16];
    for (size_t i = 0; i < sizeof frames; i += 1 + below(60)) frames[i] = (uint8_t)below(256);
    send_arguments(client->peer, 9);
    send_word(client->peer, "REPLAY.APPEND");
    send_word(client->peer, "w");
    sprintf(count, "%u", n);
    send_word(client->peer, count);
    send_bulk(client->peer, streams, n * sizeof *streams);
    send_bulk(client->peer, one_in(8) ? "\2\2\2\2" : "\0\0\0\0", n);
    send_column(client->peer, "frame", frames, (size_t)n * 200);
    client->steps += n;
    if (tracing) fprintf(stderr, "  append %u steps\n", n);
}

static inline void send_windows(struct client_of_test *client) {
    uint32_t stream = 0;
    uint64_t back = below(10), step = client->steps > back ? client->steps - back : 0;
    uint8_t reward = (uint8_t)below(256);
    send_arguments(client->peer, 10);
    send_word(client->peer, "REPLAY.ITEM");
    send_word(client->peer, "w");
    send_word(client->peer, "1");
    send_bulk(client->peer, &stream, sizeof stream);
    send_bulk(client->peer, &step, sizeof step);
    send_word(client->peer, "");
    send_column(client->peer, "reward", &reward, sizeof reward);
    if (tracing) fprintf(stderr, "  item at %llu\n", (unsigned long long)step);
}

static inline void send_to_other_table(struct client_of_test *client) {
    switch (below(12)) {
    case 0: send_other_table(client->peer, "w"); break;
    case 1: send_other_table(client->peer, "r"); break;
    case 2: send_changes(client->peer, "w", one_in(2)); break;
    case 3: send_changes(client->peer, "r", one_in(2)); break;
    case 4: send_words(client->peer, one_in(2) ? "REPLAY.SAMPLE w 2" : "REPLAY.SAMPLE r 2"); break;
    case 5:
        send_words(client->peer, !one_in(4) ? "REPLAY.SAMPLE r 1" : one_in(2) ? "REPLAY.RESET w" : "REPLAY.DROP r");
        break;
    case 6:
    case 7: send_texts(client->peer); break;
    case 8:
    case 9: send_steps(client); break;
    default: send_windows(client);
    }
}

static inline void send_gradients(struct memory_peer *peer) {
    char line[128];
    uint32_t name = below(20), key = below(3);
    switch (below(8)) {
    case 0: sprintf(line, "GRAD.DROP g%u n%u", key, name); break;
    case 1: sprintf(line, one_in(4) ? "GRAD.DEL g%u" : "GRAD.DROP g%u n%u n21", key, name); break;
    case 2:
    case 3:
        sprintf(line, "GRAD.PUBLISH g%u %llu 1 n%u w%u bytes%u", key, (unsigned long long)machine_us, name, below(3),
                name);
        break;
    default: sprintf(line, "GRAD.PUSH g%u %u n%u float32 %08u", key, below(9), name, below(100));
    }
    send_words(peer, line);
}

static inline void send_to_table(struct client_of_test *client) {
    struct memory_peer *peer = client->peer;
    const char *table = one_in(3) ? "u" : "t";
    if (one_in(3)) {
        send_to_other_table(client);
        return;
    }
    char line[64];
    switch (below(16)) {
    case 0: send_table(peer, table, true); break;
    case 1: send_table(peer, table, false); break;
    case 2:
        sprintf(line, "REPLAY.%s %s",
                one_in(2)   ? "RESET"
                : one_in(2) ? "CLOSETABLE"
                : one_in(3) ? "DROP"
                            : "OPENTABLE",
                table);
        send_words(peer, line);
        break;
    case 3: send_changes(peer, table, true); break;
    case 4:
    case 5: send_changes(peer, table, false); break;
    case 6:
    case 7:
    case 8:
        sprintf(line, "REPLAY.SAMPLE %s %u", table, 1 + below(4));
        send_words(peer, line);
        break;
    default: send_items(peer, table);
    }
}

/* Keys, weights and gradients. */
static inline void send_to_store(struct memory_peer *peer) {
    if (!only_keys && one_in(10)) {
        send_gradients(peer);
        return;
    }
    static const char *const lines[] = {
        "SET k%u %u",
        "APPEND k%u %u",
        "INCRBY n%u %u",
        "RPUSH l%u %u",
        "LPOP l%u %u",
        "HSET h%u f %u",
        "SADD s%u %u",
        "SPOP s%u 1",
        "ZADD z%u 1 %u",
        "ZPOPMIN z%u 1",
        "DEL k%u n%u",
        "XADD x%u * f %u",
        "XTRIM x%u MAXLEN ~ %u",
        "SETRANGE k%u 9 %u",
        "RENAME k%u k%u",
        "COPY l%u s%u REPLACE",
        "PEXPIRE k%u 1%u",
        "SETBIT k%u %u 1",
        "WEIGHTS.PUBLISH w%u * bytes%u",
        "WEIGHTS.DEL w%u",
    };
    char line[128];
    const char *form = lines[below(sizeof lines / sizeof *lines - (only_keys ? 2 : 0))];
    snprintf(line, sizeof line, form, below(3), below(100));
    send_words(peer, line);
}

/* Keys and tables change together. */
static inline void send_transaction(struct client_of_test *client) {
    struct memory_peer *peer = client->peer;
    send_words(peer, "MULTI");
    for (uint32_t i = 1 + below(4); i > 0; i--)
        if (only_keys || one_in(2))
            send_to_store(peer);
        else
            send_to_table(client);
    send_words(peer, "EXEC");
}

#endif
