/* test_failing_machine: servers with an append-only file on a simulated machine (simulated_machine.h). A seed decides what
 * clients ask for, when the disk does its work, which of its calls fail, and when the process is killed or the power is
 * lost. Whatever happens, the next server starts, and holds what the one before it held at some moment, all of it and no
 * more: at the earliest when the last change was made whose answer promised that it would be kept.
 *
 * The seeds 1 to 150 by default; -first=N -seeds=N for others; -trace tells what happens. A seed that fails is named. In
 * every fourth one allocations fail, too. */
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/log.h"
#include "own_folder.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server_content.h"
#include "simulated_machine.h"

#define CLIENTS 4u
#define MOMENTS 4096u
#define ASKED 2048u
#define MOST_LOST_US 1100000u /* of what was answered, where answers do not wait for the disk */

enum { ALWAYS, EVERYSEC, NO };

/* What the server held after a turn in which that changed. */
static struct content moments[MOMENTS];
static uint32_t moment_count;
static uint64_t changes; /* of what is no table, until the last moment */

/* What a client asked for. */
struct asked {
    uint32_t moment; /* the one after it was done */
    uint64_t answered_us; /* 0: it was not, or it was refused */
};

static struct asked asked[ASKED];
static uint32_t asked_count;

static struct client_of_test {
    struct memory_peer *peer;
    uint32_t waits_for; /* index of what it asked for, and one; 0: nothing */
} clients[CLIENTS];

/* Over all seeds: shared by the processes. */
static struct tally {
    uint64_t starts, kills, losses_of_power, rewrites, disk_calls, disk_failures;
} *tally;

static uint64_t seed;
static int fsync_policy;
static uint32_t memory_is_short; /* one allocation of a turn in so many fails; 0: none does */

/* ---- asking ---------------------------------------------------------------------------------------------------------- */

static void send_words(struct memory_peer *peer, const char *line) {
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
static void send_table(struct memory_peer *peer, const char *table, bool is_new) {
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

static uint32_t fill_priorities(double priorities[8], uint32_t n) {
    for (uint32_t i = 0; i < n; i++) priorities[i] = one_in(8) ? 0 : random_unit(&chance);
    return n * (uint32_t)sizeof *priorities;
}

static void send_items(struct memory_peer *peer, const char *table) {
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
static uint32_t find_ids(const char *name, uint64_t ids[8]) {
    const struct replay_entry *entry = server->replay->tables->entries;
    while (entry && strcmp(entry->table->config.name, name) != 0) entry = entry->next;
    uint32_t n = 0, passed = below(12);
    if (!entry) return 0;
    const struct table *table = entry->table;
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE && n < 1 + seed % 4;
         slot = table->items.slot[slot].newer)
        if (passed == 0 || passed-- == 0) ids[n++] = table_id(table, slot);
    return n;
}

static void send_changes(struct memory_peer *peer, const char *table, bool deletes) {
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

static void send_to_table(struct memory_peer *peer) {
    const char *table = one_in(3) ? "u" : "t";
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

static void send_to_store(struct memory_peer *peer) {
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
        "WEIGHTS.PUBLISH w%u * bytes%u",
        "WEIGHTS.DEL w%u",
        "PEXPIRE k%u 1%u",
        "SETBIT k%u %u 1",
    };
    char line[128];
    const char *form = lines[below(sizeof lines / sizeof *lines)];
    snprintf(line, sizeof line, form, below(3), below(100));
    send_words(peer, line);
}

/* Keys and tables change together. */
static void send_transaction(struct memory_peer *peer) {
    send_words(peer, "MULTI");
    for (uint32_t i = 1 + below(4); i > 0; i--)
        if (one_in(2))
            send_to_store(peer);
        else
            send_to_table(peer);
    send_words(peer, "EXEC");
}

static void ask(struct client_of_test *client) {
    if (asked_count == ASKED) return;
    if (!client->peer) client->peer = connect_peer();
    memory_peer_forget_received(client->peer);
    if (one_in(8))
        send_transaction(client->peer);
    else if (one_in(40))
        send_words(client->peer, "BGREWRITEAOF");
    else if (one_in(2))
        send_to_table(client->peer);
    else
        send_to_store(client->peer);
    asked[asked_count] = (struct asked){.moment = UINT32_MAX};
    client->waits_for = ++asked_count;
    char line[16];
    sprintf(line, "ECHO %05u", asked_count);
    send_words(client->peer, line);
}

/* ---- turns ----------------------------------------------------------------------------------------------------------- */

static void take_moment(void) {
    struct content content;
    if (moment_count > 0 && changes == server->store->changes && moments[moment_count - 1].tables == sum_of_tables())
        return;
    changes = server->store->changes;
    take_content(&content);
    if (moment_count > 0 && memcmp(&content, &moments[moment_count - 1], sizeof content) == 0) return;
    CHECK(moment_count < MOMENTS);
    moments[moment_count++] = content;
}

/* The end of every answer, since ECHO is asked for behind it. */
static size_t write_end(char end[32], uint32_t question) {
    return (size_t)sprintf(end, "$5\r\n%05u\r\n", question);
}

static bool is_answered(const struct client_of_test *client, bool *promises) {
    char end[32];
    size_t length, end_length = write_end(end, client->waits_for);
    const uint8_t *bytes = memory_peer_received(client->peer, &length);
    if (length < end_length || memcmp(bytes + length - end_length, end, end_length) != 0) return false;
    bool refused = memmem(bytes, length, "-MISCONF", 8) || memmem(bytes, length, "-EXECABORT", 10);
    bool begins = memmem(bytes, length, "+Background", 11); /* a rewrite: that tells nothing of what is there */
    *promises = bytes[0] != '-' && !refused && !begins;
    return true;
}

static void look_at_answers(void) {
    bool promises;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct client_of_test *client = &clients[i];
        if (client->waits_for == 0) continue;
        struct asked *question = &asked[client->waits_for - 1];
        if (question->moment == UINT32_MAX) question->moment = moment_count - 1;
        if (memory_peer_is_closed(client->peer)) {
            *client = (struct client_of_test){0};
        } else if (is_answered(client, &promises)) {
            if (promises && !disk_is_gone) question->answered_us = machine_us;
            client->waits_for = 0;
        }
    }
}

/* Returns how long the loop would sleep now. */
static uint64_t turn(void) {
    uint64_t wait_us = server_step(server);
    if (transport->operations->poll(transport, 0) > 0) wait_us = 0;
    take_moment();
    look_at_answers();
    return wait_us;
}

/* The disk may be at work or not, but the loop turns when it wants to. */
static void pass_time(uint64_t us) {
    for (uint64_t until_us = machine_us + us; machine_us < until_us;) {
        uint64_t wait_us = turn(), left_us = until_us - machine_us;
        machine_us += wait_us < left_us ? wait_us : left_us;
        if (one_in(4)) machine_work();
    }
}

static void run_steps(uint32_t steps) {
    for (; steps > 0 && !disk_is_gone; steps--) {
        struct client_of_test *client = &clients[below(CLIENTS)];
        if (client->waits_for == 0) ask(client);
        memory_failure = memory_is_short;
        turn();
        if (one_in(2)) machine_work();
        memory_failure = 0;
        pass_time(one_in(20) ? below(700000) : below(5000));
    }
}

/* ---- starts and ends ------------------------------------------------------------------------------------------------- */

static void configure(struct server_config *config) {
    config->appendonly = 1;
    config->appendfsync = fsync_policy;
    config->log_level = LOG_ERROR;
    config->auto_aof_rewrite_min_size = 20000;
}

/* The disk does not fail meanwhile: what a start does where files cannot be read is another matter. */
static void start(void) {
    struct text said = {0};
    struct error error = {0};
    uint32_t failure = disk_failure;
    disk_failure = 0;
    open_server(false, configure);
    int result = append_log_start(server->durability->append_log, &said, &error);
    if (tracing) fprintf(stderr, "start: %s %s\n", result ? error.message : "", said.data ? said.data : "");
    CHECK(result == 0);
    text_free(&said);
    disk_failure = failure;
    tally->starts++;
}

/* The earliest moment that the next server may be at. */
static uint32_t promised_moment(void) {
    uint64_t until_us = disk_failed_us && fsync_policy != ALWAYS ? disk_failed_us : disk_ended_us;
    uint32_t promised = 0;
    for (uint32_t i = 0; i < asked_count; i++) {
        const struct asked *question = &asked[i];
        bool kept =
            question->answered_us > 0 && (fsync_policy == ALWAYS || question->answered_us + MOST_LOST_US <= until_us);
        if (kept && question->moment > promised) promised = question->moment;
    }
    return promised;
}

static void check_moment(uint32_t promised) {
    struct content now;
    take_content(&now);
    uint32_t found = moment_count;
    while (found > 0 && memcmp(&now, &moments[found - 1], sizeof now) != 0) found--;
    if (tracing || found <= promised)
        fprintf(stderr, "moment %u of %u, promised: %u\n", found, moment_count, promised + 1);
    CHECK(found > promised);
    moments[0] = now;
    changes = server->store->changes;
    moment_count = 1;
    asked_count = 0;
}

/* At once, or in the middle of what the disk does next. */
static void end_the_process(bool is_kill) {
    disk_end_then = is_kill ? DISK_KILLED : DISK_WITHOUT_POWER;
    if (one_in(2)) {
        disk_ends_in = 1 + below(12);
        for (uint32_t tries = 0; tries < 40 && !disk_is_gone; tries++) run_steps(5);
    }
    if (!disk_is_gone) disk_end(disk_end_then);
}

static void end(void) {
    bool is_kill = one_in(2);
    end_the_process(is_kill);
    uint32_t promised = fsync_policy != NO ? promised_moment() : 0;
    if (tracing) fprintf(stderr, "%s, fsync %d\n", is_kill ? "kill" : "loss of power", fsync_policy);
    tally->rewrites += server->durability->append_log->rewrites;
    memset(clients, 0, sizeof clients);
    close_server();
    disk_begin();
    machine_us += below(3000000);
    start();
    check_moment(promised);
    *(is_kill ? &tally->kills : &tally->losses_of_power) += 1;
}

static void run_seed(void) {
    random_seed(&chance, seed);
    machine_us = 1000000;
    fsync_policy = (int)below(3);
    disk_failure = one_in(2) ? 0 : 2 + below(200);
    memory_is_short = one_in(4) ? 20 + below(2000) : 0;
    moment_count = asked_count = 0;
    start();
    take_moment();
    for (uint32_t lives = 1 + below(4); lives > 0; lives--) {
        run_steps(below(200));
        end();
    }
    tally->disk_calls += disk_calls;
    tally->disk_failures += disk_failures;
}

/* In a process of its own, so that it goes the same way whatever ran before it. */
static bool seed_holds(void) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run_seed();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    remove_simulated_files();
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static const char *value_of(const char *argument, const char *name) {
    size_t length = strlen(name);
    return strncmp(argument, name, length) == 0 ? argument + length : NULL;
}

int main(int argc, char **argv) {
    uint64_t first = 1, seeds = 150, failed = 0;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = value_of(argv[i], "-first="))) first = strtoull(value, NULL, 10);
        if ((value = value_of(argv[i], "-seeds="))) seeds = strtoull(value, NULL, 10);
        if (strcmp(argv[i], "-trace") == 0) tracing = true;
    }
    enter_own_folder();
    CHECK(mkdir(DISK_FOLDER, 0700) == 0);
    tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(tally != MAP_FAILED);
    for (seed = first; seed < first + seeds; seed++) {
        if (seed_holds()) continue;
        fprintf(stderr, "seed %llu does not hold\n", (unsigned long long)seed);
        failed++;
    }
    printf(
        "%llu starts after %llu kills and %llu losses of power; %llu rewrites; %llu of %llu calls of the disk failed\n",
        (unsigned long long)tally->starts, (unsigned long long)tally->kills, (unsigned long long)tally->losses_of_power,
        (unsigned long long)tally->rewrites, (unsigned long long)tally->disk_failures,
        (unsigned long long)tally->disk_calls);
    CHECK(failed == 0 && tally->kills > 0 && tally->losses_of_power > 0);
    return 0;
}
