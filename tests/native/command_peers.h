/* command_peers: the clients that send requests and what is known of each; and what every reply is held against. */
#ifndef REPLAY_TESTS_COMMAND_PEERS_H
#define REPLAY_TESTS_COMMAND_PEERS_H

#include "command_grammar.h"
#include "command_lines.h"
#include "command_scripts.h"
#include "command_tables.h"
#include "server/core/command_table.h"
#include "server_content.h"

#define PEERS 8u
#define TURNS 400 /* of the loop, for each step; what takes longer is looked at again after the next step */
#define SECRET "CANARYcanary0815" /* the values of what is named private */

/* What a peer is, by its number. */
enum { PLAIN, UNIX, UNIX_RESP3, LOCAL, ABSTRACT, CONFINED, CONFINED_RESP3, MUTE };

/* One client, and what is known of it. */
struct peer {
    struct memory_peer *connection; /* NULL: none yet */
    uint64_t sent, received; /* requests, replies */
    size_t looked_at; /* of the bytes that are here: whole replies */
    bool counts; /* there is a reply for each request */
    bool follows; /* it is sent changes, which are no replies */
    bool is_narrow; /* it takes so many bytes, and no more until it is told to */
    uint8_t *kept; /* of what it sends, a part that is not sent yet */
    size_t kept_length;
};

static struct peer peers[PEERS];
static struct request made, spare;
static uint8_t wire[REQUEST_BYTES + 32 * REQUEST_WORDS];

/* ---- the choice of a line -------------------------------------------------------------------------------------------- */

struct family {
    const char *const *lines;
    uint32_t count, weight;
};

#define FAMILY(lines, weight) {lines, sizeof(lines) / sizeof *(lines), weight}
static const struct family families[] = {FAMILY(replay_lines, 45), FAMILY(script_lines, 10), FAMILY(store_lines, 30),
                                         FAMILY(server_lines, 15)};
#define FAMILIES (sizeof families / sizeof *families)

static const char *choose_line(struct maker *maker) {
    uint32_t place = below(maker, 100);
    const struct family *family = families;
    for (; place >= family->weight; family++) place -= family->weight;
    return family->lines[below(maker, family->count)];
}

/* A request for this command by its row alone. */
static void make_from_row(struct maker *maker, const struct command *command) {
    const char *bar = strchr(command->name, '|');
    if (bar) put_bytes(maker, command->name, (size_t)(bar - command->name));
    put(maker, bar ? bar + 1 : command->name);
    uint32_t least = (uint32_t)abs(command->arity);
    struct key_range keys = command_key_range(command);
    for (uint32_t i = maker->out->count; i < least; i++) {
        bool is_key = keys.first > 0 && i >= (uint32_t)keys.first && (keys.last < 0 || i <= (uint32_t)keys.last) &&
                      (i - (uint32_t)keys.first) % (uint32_t)keys.step == 0;
        if (is_key)
            make_any_key(maker);
        else
            make_value(maker);
    }
}

static const struct command_entry *entry_of(const struct request *request) {
    struct resp_argument argv[2] = {{0}};
    uint32_t count = request->count < 2 ? request->count : 2;
    for (uint32_t i = 0; i < count; i++) argv[i].data = request_word(request, i, &argv[i].length);
    return count > 0 ? command_table_find_request(server->commands, count, argv) : NULL;
}

static bool is_never_sent(const struct request *request) {
    for (size_t i = 0; i < sizeof exempt / sizeof *exempt; i++)
        if (!exempt[i].is_sent && request_word_is(request, 0, exempt[i].name)) return true;
    return false;
}

static void make_from_line(struct maker *maker, const char *line) {
    maker->count = 1;
    run_sequence(maker, line, true);
}

/* Some request: mostly of a line, now and then of some command's row, and not always right. */
static void make_request(struct maker *maker, struct request *out) {
    maker->out = out;
    request_clear(out);
    if (one_in(maker, 40)) {
        const struct command_entry *entry =
            command_table_at(server->commands, below(maker, (uint32_t)command_table_count(server->commands)));
        make_from_row(maker, entry->command);
    } else {
        make_from_line(maker, choose_line(maker));
    }
    if (one_in(maker, 10) && out->count > 1) make_mistake(maker, &spare, 1 + below(maker, out->count - 1));
    if (is_never_sent(out)) {
        request_clear(out);
        put(maker, "ping");
    }
}

/* ---- replies --------------------------------------------------------------------------------------------------------- */

struct scan {
    const uint8_t *at, *end;
};

static void see_number(int64_t number) {
    if (number > 2) seen.numbers[seen.number_count++ % SEEN_NUMBERS] = number;
}

static bool looks_like_id(uint64_t id) {
    return id >> 56 == 0 && id >> 32 != 0 && (id >> 32) < 1u << 20 && (uint32_t)id < 1u << 20;
}

/* Ids, cursors, hashes of scripts and nonces are told by their looks. */
static void see_bulk(const uint8_t *bytes, size_t length) {
    for (size_t i = 0; length % 8 == 0 && length <= 8 * MOST_ITEMS && i < length; i += 8) {
        uint64_t id;
        memcpy(&id, bytes + i, 8);
        if (!looks_like_id(id)) break;
        seen.ids[seen.id_count++ % SEEN_IDS] = id;
    }
    if ((length == 40 || length == 32) && strspn((const char *)bytes, "0123456789abcdef") == length) {
        char *word = length == 32 ? seen.nonce : seen.words[seen.word_count++ % SEEN_WORDS];
        memcpy(word, bytes, length);
        word[length] = '\0';
    } else if (length > 0 && length < 19 && strspn((const char *)bytes, "0123456789") == length) {
        see_number(strtoll((const char *)bytes, NULL, 10));
    }
}

/* Steps over one reply. False: it is not all there yet. Replies end in \r\n, so that what is read as text ends. */
static bool step_over(struct scan *scan, int depth) {
    CHECK(depth < 64);
    if (scan->at == scan->end) return false;
    const uint8_t *end = memmem(scan->at, (size_t)(scan->end - scan->at), "\r\n", 2);
    if (!end) return false;
    char kind = (char)*scan->at;
    CHECK(strchr("+-:$*_,#=%~>(|", kind));
    /* A line may be empty, and what is blank behind it is not the server's to tell. */
    long long size = isspace(scan->at[1]) ? 0 : strtoll((const char *)scan->at + 1, NULL, 10);
    scan->at = end + 2;
    if (kind == ':') see_number(size);
    if (kind == '$' || kind == '=') {
        CHECK(size >= -1);
        if (size < 0) return true;
        if (scan->end - scan->at < size + 2) return false;
        CHECK(memcmp(scan->at + size, "\r\n", 2) == 0);
        see_bulk(scan->at, (size_t)size);
        scan->at += size + 2;
    } else if (strchr("*%~>|", kind)) {
        CHECK(size >= -1);
        long long parts = kind == '%' || kind == '|' ? 2 * size : size;
        if (kind == '|') parts++; /* the reply that the attributes are of */
        for (long long i = 0; i < parts; i++)
            if (!step_over(scan, depth + 1)) return false;
    }
    return true;
}

static void trace_request(uint32_t number) {
    fprintf(stderr, "%u>", number);
    for (uint32_t i = 0; i < made.count; i++) {
        size_t length;
        const uint8_t *word = request_word(&made, i, &length);
        fprintf(stderr, length > 0 ? " " : " \"\"");
        trace_bytes(word, length);
    }
    fprintf(stderr, "\n");
}

static void trace_reply(uint32_t number, const uint8_t *bytes, size_t length) {
    fprintf(stderr, "%u< ", number);
    trace_bytes(bytes, length);
    fprintf(stderr, "\n");
}

/* Behind junk a word of a request may be read as a request of its own, such as SYNC. Its answer is a file, behind which no line
 * ends. */
static bool begins_file(const struct peer *peer, const struct scan *scan) {
    size_t length = (size_t)(scan->end - scan->at);
    return !peer->counts && *scan->at == '$' && memmem(scan->at, length < 64 ? length : 64, "\r\nREDIS", 7);
}

static void look_at_replies(uint32_t number, bool quiet) {
    struct peer *peer = &peers[number];
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer->connection, &length);
    if (peer->follows) {
        memory_peer_forget_received(peer->connection);
        return;
    }
    if (number == CONFINED || number == CONFINED_RESP3)
        CHECK(length == 0 || !memmem(bytes, length, SECRET, strlen(SECRET)));
    struct scan scan = {bytes + peer->looked_at, bytes + length};
    while (scan.at < scan.end) {
        const uint8_t *begin = scan.at;
        if (begins_file(peer, &scan)) {
            peer->follows = true;
            memory_peer_forget_received(peer->connection);
            return;
        }
        if (!step_over(&scan, 0)) {
            scan.at = begin;
            break;
        }
        if (tracing) trace_reply(number, begin, (size_t)(scan.at - begin));
        if (*begin == '>') continue;
        peer->received++;
        if (number == MUTE && peer->received > 1) CHECK(*begin == '-');
    }
    CHECK(!peer->counts || peer->received <= peer->sent);
    peer->looked_at = (size_t)(scan.at - bytes);
    bool is_cut = scan.at < scan.end;
    CHECK(!is_cut || !quiet || peer->is_narrow || memory_peer_is_closed(peer->connection) ||
          memory_peer_held(peer->connection) > 0);
    if (is_cut) return;
    memory_peer_forget_received(peer->connection);
    peer->looked_at = 0;
}

/* ---- peers ----------------------------------------------------------------------------------------------------------- */

/* Whether a command is in its midst: it may wait for a time, as a transaction with DEBUG SLEEP does behind its head. */
static bool is_amid_command(void) {
    return server->exclusive.on || server->slices.working.head || server->slices.replying.head;
}

/* The loop's turns until nothing is left to do at once, or there were many. True: all is quiet. */
static bool turn_for_a_while(void) {
    int quiet = 0;
    for (int turns = 0; quiet < 2 && turns < TURNS; turns++) {
        uint64_t wait_us = server_step(server);
        quiet = transport->operations->poll(transport, 0) == 0 && wait_us > 0 ? quiet + 1 : 0;
    }
    return quiet == 2 && !is_amid_command();
}

static void turn_and_look(void) {
    bool quiet = turn_for_a_while();
    for (uint32_t i = 0; i < PEERS; i++)
        if (peers[i].connection) look_at_replies(i, quiet);
}

static size_t write_wire(const struct request *request) {
    size_t length = (size_t)sprintf((char *)wire, "*%u\r\n", request->count);
    for (uint32_t i = 0; i < request->count; i++) {
        size_t size;
        const uint8_t *word = request_word(request, i, &size);
        length += (size_t)sprintf((char *)wire + length, "$%zu\r\n", size);
        memcpy(wire + length, word, size);
        memcpy(wire + length + size, "\r\n", 2);
        length += size + 2;
    }
    return length;
}

static void send_request(struct peer *peer, const struct request *request) {
    memory_peer_send(peer->connection, wire, write_wire(request));
    peer->sent++;
}

static void send_line(uint32_t number, const char *line) {
    struct maker maker = {.out = &made};
    random_seed(&maker.random, 1);
    request_clear(&made);
    make_from_line(&maker, line);
    if (tracing) trace_request(number);
    send_request(&peers[number], &made);
}

static void forget_peer(struct peer *peer) {
    if (peer->connection) memory_peer_forget_received(peer->connection);
    free(peer->kept);
    *peer = (struct peer){0};
}

/* Logs a peer in as a user who may not do everything; true: it is that user now. */
static bool log_in(uint32_t number, const char *line) {
    send_line(number, line);
    turn_for_a_while();
    size_t length;
    const uint8_t *bytes = memory_peer_received(peers[number].connection, &length);
    bool done = length > 0 && (*bytes == '+' || *bytes == '%');
    if (done) look_at_replies(number, false);
    if (done && peers[number].received == 1) return true;
    memory_peer_vanish(peers[number].connection);
    forget_peer(&peers[number]);
    return false;
}

/* The peer of that number, connected where it is not. NULL: it cannot be. */
static struct peer *find_peer(uint32_t number) {
    static unsigned connections;
    struct peer *peer = &peers[number];
    if (peer->connection && !memory_peer_is_closed(peer->connection)) return peer;
    forget_peer(peer);
    struct connection ends = {.local = "memory:0"};
    sprintf(ends.peer, "memory:%u", ++connections);
    if (number == LOCAL) {
        sprintf(ends.peer, "127.0.0.1:%u", 1024 + connections % 60000);
        strcpy(ends.local, "127.0.0.1:6379");
    }
    ends.is_unix = number == UNIX || number == UNIX_RESP3 || number == ABSTRACT;
    ends.is_abstract = number == ABSTRACT && seen.nonce[0] != '\0'; /* else it could do nothing */
    struct memory_peer *connection = memory_peer_connect_as(transport, &ends);
    if (!connection) return NULL;
    *peer = (struct peer){.connection = connection, .counts = true};
    if (number == UNIX_RESP3) send_line(number, "hello 3");
    if (ends.is_abstract) send_line(number, "replay.prove $nonce");
    if (number == CONFINED && !log_in(number, "auth confined pass")) return NULL;
    if (number == CONFINED_RESP3 && !log_in(number, "hello 3 AUTH confined pass")) return NULL;
    if (number == MUTE && !log_in(number, "auth mute pass")) return NULL;
    return peer;
}

static bool is_of_a_user(uint32_t number) {
    return number == CONFINED || number == CONFINED_RESP3 || number == MUTE;
}

/* What was kept back of earlier requests goes first. */
static void send_kept(struct peer *peer) {
    if (!peer->kept) return;
    memory_peer_send(peer->connection, peer->kept, peer->kept_length);
    free(peer->kept);
    peer->kept = NULL;
}

static bool asks_to_follow(const struct request *request) {
    return request_word_is(request, 0, "sync") || request_word_is(request, 0, "psync");
}

/* Whether what was made may be sent: nobody is let out of being the user that it is looked at as. */
static bool may_be_sent(uint32_t number, struct peer *peer) {
    static const char *const uncounted[] = {"subscribe",    "psubscribe",   "ssubscribe", "unsubscribe",
                                            "punsubscribe", "sunsubscribe", "monitor",    "quit"};
    const struct command_entry *entry = entry_of(&made);
    if (is_of_a_user(number) && entry && (entry->command->flags & COMMAND_NOAUTH)) return false;
    for (size_t i = 0; i < sizeof uncounted / sizeof *uncounted; i++)
        if (request_word_is(&made, 0, uncounted[i])) peer->counts = false;
    if (request_word_is(&made, 0, "client") &&
        (request_word_is(&made, 1, "reply") || request_word_is(&made, 1, "tracking")))
        peer->counts = false;
    if (asks_to_follow(&made)) peer->follows = true;
    if (peer->follows || request_word_is(&made, 0, "replconf")) peer->counts = false;
    /* In a transaction its push stands within the reply of EXEC, as in Redis. */
    if (request_word_is(&made, 0, "debug") && request_word_is(&made, 2, "push")) peer->counts = false;
    if (tracing) trace_request(number);
    send_kept(peer);
    return true;
}

static void send_made(uint32_t number, struct peer *peer) {
    if (may_be_sent(number, peer)) send_request(peer, &made);
}

#endif
