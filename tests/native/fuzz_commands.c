/* fuzz_commands: whatever commands clients send, in whatever pieces, the server answers well-formed replies and stays
 * whole. An input is read as a list of steps: which of three clients does what with which words. A server meets some
 * hundred inputs, each with clients of its own and an empty store. */
#include <ctype.h>

#include "server/command/command_table.h"
#include "server_stage.h"
#include "store/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PEERS 3
#define STEPS 32
#define MOST_ARGUMENTS 8u
#define INPUTS_PER_SERVER 32
#define TURNS 400 /* of the loop, for each step; what takes longer is looked at again after the next step */

/* Words that mean something to some command; a byte of the input chooses one. */
static const char *const words[] = {
    "a",
    "b",
    "c",
    "{a}d",
    "t",
    "w",
    "",
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "10",
    "100",
    "-100",
    "1000",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1.5",
    "-0.0",
    "inf",
    "-inf",
    "nan",
    "1e308",
    "(1",
    "(-inf",
    "[a",
    "[b",
    "(a",
    "-",
    "+",
    "*",
    "?",
    "[a-c]*",
    "hello",
    "x y",
    "NX",
    "XX",
    "GT",
    "LT",
    "CH",
    "INCR",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "KEEPTTL",
    "PERSIST",
    "GET",
    "SET",
    "ASC",
    "DESC",
    "LIMIT",
    "BY",
    "ALPHA",
    "STORE",
    "WITHSCORES",
    "WITHVALUES",
    "WEIGHTS",
    "AGGREGATE",
    "SUM",
    "MIN",
    "MAX",
    "BYSCORE",
    "BYLEX",
    "REV",
    "COUNT",
    "MATCH",
    "TYPE",
    "string",
    "list",
    "hash",
    "set",
    "zset",
    "LEFT",
    "RIGHT",
    "BEFORE",
    "AFTER",
    "RANK",
    "MAXLEN",
    "LEN",
    "IDX",
    "MINMATCHLEN",
    "WITHMATCHLEN",
    "float32",
    "bfloat16",
    "UNTIL",
    "HEADERS",
    "BIT",
    "BYTE",
    "AND",
    "OR",
    "XOR",
    "NOT",
    "OVERFLOW",
    "WRAP",
    "SAT",
    "FAIL",
    "INCRBY",
    "u8",
    "i16",
    "u63",
    "i64",
    "#1",
    "ENCODING",
    "FREQ",
    "IDLETIME",
    "REFCOUNT",
    "HELP",
    "ASYNC",
    "SYNC",
    "USAGE",
    "SAMPLES",
    "ID",
    "LIST",
    "INFO",
    "KILL",
    "ADDR",
    "USER",
    "default",
    "SKIPME",
    "yes",
    "no",
    "SETNAME",
    "GETNAME",
    "NO-EVICT",
    "ON",
    "OFF",
    "SKIP",
    "UNBLOCK",
    "TIMEOUT",
    "ERROR",
    "CHANNELS",
    "NUMSUB",
    "NUMPAT",
    "LOAD",
    "EXISTS",
    "FLUSH",
    "return redis.call('SET', KEYS[1], ARGV[1])",
    "return {KEYS[1], ARGV[1], 1.5, false, {1, {2}}}",
    "return redis.pcall('INCR', 'a')",
    "return redis.error_reply('E')",
    "DOCS",
    "GETKEYS",
    "LATEST",
    "HISTORY",
    "RESET",
    "LEN",
    "COLUMNS",
    "BLOCK",
    "BETA",
    "obs",
    "NEWER",
    "SETUSER",
    "GETUSER",
    "WHOAMI",
    "CAT",
    "LOG",
    "DRYRUN",
    "GENPASS",
    "DELUSER",
    "USERS",
    ">pass",
    "+@all",
    "-@all",
    "~*",
    "&*",
    "nopass",
    "allkeys",
    "AUTH",
    "maxmemory",
    "maxmemory-policy",
    "allkeys-lru",
    "volatile-lfu",
    "50000",
    "everysec",
    "PAUSE",
    "UNPAUSE",
    "WRITE",
    "ALL",
    "REPLACE",
    "DB",
    "COPY",
    "FIELDS",
    "MAXAGE",
};
#define WORDS (sizeof words / sizeof *words)

/* These end the server, sleep, or touch files. */
static const char *const left_out[] = {"shutdown",     "debug",       "save",           "bgsave",
                                       "bgrewriteaof", "replay.save", "replay.restore", "config"};

/* Begins of inputs: see take_step. */
const char *const fuzz_seeds[] = {
    "\x10\x20\x02\x80\x81\x11\x21\x03\x80\x87\x88",
    "\x01\x05\x03\x80\x81\x82\xf0*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
    "\x02\x40\x04\x80\x82\x83\x84\xd0\x02\x41\x02\x80\x82\xe0\x00",
    "\xf0MULTI\r\nSET a 1\r\nINCR a\r\nEXEC\r\n",
    "\xf0SET a 1\r\nLPUSH b x y z\r\nHSET c f v\r\nEXPIRE a 100\r\nTTL a\r\n",
    "\xf0SADD a 1 2 x\r\nZADD b 1 x 2 y\r\nSORT a ALPHA\r\nZRANGE b 0 -1 WITHSCORES\r\n",
    "\xf0HELLO 3\r\nSUBSCRIBE a\r\n\xd0\xf0PUBLISH a x\r\n",
    "\xf0"
    "BLPOP a b 0\r\n\xd0\xf0RPUSH a x\r\n",
    "\xf0REPLAY.INFO t\r\nREPLAY.SAMPLE t 1\r\nWEIGHTS.PUBLISH w * x\r\nWEIGHTS.GET w\r\n",
    "\xf0GRAD.PUSH a 1 x float32 helo\r\nGRAD.TAKE a 1 SUM 1\r\nGRAD.PUBLISH a 2 1 x w y\r\n",
    "\xf0GRAD.TAKE a 2 UNTIL 3 1 BLOCK 0\r\n\xd0\xf0GRAD.PUSH a 3 y bfloat16 helo\r\nGRAD.AWAIT a 0 1 y BLOCK "
    "1\r\n\xd0\xf0GRAD.DROP a y\r\n",
    "\xf0REPLAY.AWAIT t SINCE 0\r\nREPLAY.AWAIT t SIZE 900 BLOCK 0\r\n\xd0\xf0REPLAY.DROP t\r\n",
    "\xf0REPLAY.SAMPLE t 900 BLOCK 0\r\n\xd0\xf0REPLAY.CLOSETABLE t why\r\nREPLAY.ADD t 1\r\nREPLAY.OPENTABLE t\r\n",
    "\xf0WATCH a\r\nMULTI\r\nGET a\r\nDISCARD\r\nEVAL \"return redis.call('GET', KEYS[1])\" 1 a\r\n",
    NULL,
};

/* ---- the input, read from its begin -------------------------------------------------------------------------------- */

struct reader {
    const uint8_t *data;
    size_t left;
};

static unsigned next_byte(struct reader *reader) {
    if (reader->left == 0) return 0;
    reader->left--;
    return *reader->data++;
}

static bool is_left_out(const char *name) {
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strcmp(name, left_out[i]) == 0) return true;
    return false;
}

/* A request whose first word is one of those that touch files, sent as raw bytes, must not reach the server either. */
static bool names_left_out(const uint8_t *bytes, size_t length) {
    char lower[256];
    size_t kept = length < sizeof lower - 1 ? length : sizeof lower - 1;
    for (size_t i = 0; i < kept; i++) lower[i] = (char)(bytes[i] ? tolower(bytes[i]) : ' ');
    lower[kept] = '\0';
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strstr(lower, left_out[i])) return true;
    return strstr(lower, "load") != NULL; /* ACL LOAD, and SAVE above */
}

/* ---- replies --------------------------------------------------------------------------------------------------------- */

struct scan {
    const uint8_t *at, *end;
};

static const uint8_t *line_end(const struct scan *scan) {
    const uint8_t *found = memmem(scan->at, (size_t)(scan->end - scan->at), "\r\n", 2);
    return found;
}

/* Steps over one reply. False: it is not all there yet, which is only so for a client that was cut off. */
static bool step_over(struct scan *scan, int depth) {
    CHECK(depth < 64);
    if (scan->at == scan->end) return false;
    const uint8_t *end = line_end(scan);
    if (!end) return false;
    char kind = (char)*scan->at;
    CHECK(strchr("+-:$*_,#=%~>(", kind));
    long long size = strtoll((const char *)scan->at + 1, NULL, 10);
    scan->at = end + 2;
    if (kind == '$' || kind == '=') {
        CHECK(size >= -1);
        if (size < 0) return true;
        if (scan->end - scan->at < size + 2) return false;
        CHECK(memcmp(scan->at + size, "\r\n", 2) == 0);
        scan->at += size + 2;
    } else if (strchr("*%~>", kind)) {
        CHECK(size >= -1);
        for (long long i = 0; i < (kind == '%' ? 2 * size : size); i++)
            if (!step_over(scan, depth + 1)) return false;
    }
    return true;
}

static void check_replies(struct memory_peer *peer) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    struct scan scan = {bytes, bytes + length};
    bool whole = true;
    while (whole && scan.at < scan.end) whole = step_over(&scan, 0);
    CHECK(whole || memory_peer_is_closed(peer));
    memory_peer_forget_received(peer);
}

/* ---- steps ----------------------------------------------------------------------------------------------------------- */

/* The loop's turns until nothing is left to do at once, or there were many. True: all is quiet. */
static bool turn_for_a_while(void) {
    int quiet = 0;
    for (int turns = 0; quiet < 2 && turns < TURNS; turns++) {
        uint64_t wait_us = server_step(server);
        quiet = transport->operations->poll(transport, 0) == 0 && wait_us > 0 ? quiet + 1 : 0;
    }
    return quiet == 2;
}

static void send_argument(struct memory_peer *peer, struct reader *reader) {
    unsigned choice = next_byte(reader);
    if (choice < 224) {
        send_word(peer, words[choice % WORDS]);
        return;
    }
    size_t length = choice - 224 < reader->left ? choice - 224 : reader->left;
    send_bulk(peer, reader->data, length);
    reader->data += length;
    reader->left -= length;
}

static void send_command(struct memory_peer *peer, unsigned number, struct reader *reader) {
    struct command_entry *entry = command_table_at(server->commands, number % command_table_count(server->commands));
    unsigned count = next_byte(reader) % (MOST_ARGUMENTS + 1);
    if (is_left_out(entry->command->name)) return;
    send_arguments(peer, (int)count + 1);
    send_word(peer, entry->command->name);
    while (count-- > 0) send_argument(peer, reader);
}

static void send_raw(struct memory_peer *peer, struct reader *reader) {
    const uint8_t *end = memchr(reader->data, 0xd0, reader->left);
    size_t length = end ? (size_t)(end - reader->data) : reader->left;
    if (!names_left_out(reader->data, length)) memory_peer_send(peer, reader->data, length);
    reader->data += length;
    reader->left -= length;
}

/* 0 … 0xcf: with the next byte, a command; 0xd0: the next client; 0xe0: input in small pieces; 0xe1: it goes; 0xf0: bytes
 * as they are, up to the next 0xd0. */
static void take_step(struct memory_peer **peers, unsigned *current, struct reader *reader) {
    unsigned kind = next_byte(reader);
    struct memory_peer **peer = &peers[*current];
    if (!*peer || memory_peer_is_closed(*peer)) *peer = memory_peer_connect(transport);
    if (!*peer) return;
    if (kind < 0xd0)
        send_command(*peer, kind << 8 | next_byte(reader), reader);
    else if (kind < 0xe0)
        *current = (*current + 1) % PEERS;
    else if (kind == 0xe0)
        memory_peer_cut_input(*peer, 1 + next_byte(reader) % 16);
    else if (kind == 0xe1)
        memory_peer_vanish(*peer);
    else
        send_raw(*peer, reader);
}

/* One item for the table, which is sampled when it has eight. */
static void add_item(struct memory_peer *peer) {
    static const uint8_t zeros[OBSERVATION];
    static const char *const begin[] = {"REPLAY.ADD", "t", "1", "", "COLUMNS", "1", "obs"};
    send_arguments(peer, 8);
    for (size_t i = 0; i < 7; i++) send_word(peer, begin[i]);
    send_bulk(peer, zeros, OBSERVATION);
}

static void configure(struct server_config *config) {
    config->maxmemory = 256 << 20;
    config->max_bulk_bytes = 1 << 20;
    config->max_request_bytes = 4 << 20;
    strcpy(config->dir, "/nonexistent");
}

static void open_stage(void) {
    open_server(false, configure);
    struct memory_peer *peer = connect_peer();
    send_create_table(peer);
    add_item(peer);
    turn_for_a_while();
    memory_peer_vanish(peer);
}

/* The last client's doing is over, and the store is empty. */
static void clear_stage(struct memory_peer **peers) {
    for (int i = 0; i < PEERS; i++)
        if (peers[i]) memory_peer_vanish(peers[i]);
    turn_for_a_while();
    for (unsigned database = 0; database < STORE_DATABASES; database++) store_flush(server->store, database);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned inputs;
    if (inputs++ % INPUTS_PER_SERVER == 0) {
        if (server) close_server();
        open_stage();
    }
    struct memory_peer *peers[PEERS] = {connect_peer()};
    struct reader reader = {data, size};
    unsigned current = 0;
    for (int step = 0; step < STEPS && reader.left > 0; step++) {
        take_step(peers, &current, &reader);
        bool quiet = turn_for_a_while();
        for (unsigned i = 0; quiet && i < PEERS; i++)
            if (peers[i]) check_replies(peers[i]);
    }
    clear_stage(peers);
    return 0;
}
