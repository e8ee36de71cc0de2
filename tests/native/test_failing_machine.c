/* test_failing_machine: servers with an append-only file on a simulated machine (simulated_machine.h). A seed decides what
 * clients ask for, when the disk does its work, which of its calls fail, and when the process is killed or the power is
 * lost. Whatever happens, the next server starts, and holds what the one before it held at some moment, all of it and no
 * more: at the earliest when the last change was made whose answer promised that it would be kept.
 *
 * Files are damaged, too, and calls fail during starts: then a start may be refused, but what comes of the next one is the
 * same. In every fourth seed allocations fail.
 *
 * The seeds 1 to 150 by default; -first=N -seeds=N for others, -jobs=N at a time; -trace tells what happens. A seed that
 * does not hold is named; after ten of them no other is begun. With -progress=FILE, an absolute path, a run that was
 * interrupted goes on where it was. */
#include <stdatomic.h>

#include "base/log.h"
#include "many_seeds.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "simulated_requests.h"

#define CLIENTS 4u
#define MOMENTS 4096u
#define ASKED 2048u
#define MOST_LOST_US 1100000u /* of what was answered, where answers do not wait for the disk */

enum { ALWAYS, EVERYSEC, NO };

/* What the server held after a turn in which that changed. */
static struct content moments[MOMENTS];
static uint32_t moment_count;
static uint64_t changes, counters; /* of what is no table, and of tables, until the last moment */

/* What a client asked for. */
struct asked {
    uint32_t moment; /* the one after it was done */
    uint64_t answered_us; /* 0: it was not, or it was refused */
};

static struct asked asked[ASKED];
static uint32_t asked_count;

static struct client_of_test clients[CLIENTS];

/* Over all seeds: shared by the processes. */
static struct tally {
    atomic_uint_fast64_t starts, kills, losses_of_power, damages, rewrites, disk_calls, disk_failures;
} *tally;

static void tally_add(atomic_uint_fast64_t *sum, uint64_t more) {
    atomic_fetch_add(sum, more);
}

static int fsync_policy;
static uint64_t broken_us; /* since when the log has lacked a change for which there was no memory; 0: it is whole */
static uint32_t memory_is_short; /* one allocation of a turn in so many fails; 0: none does */

/* ---- asking ---------------------------------------------------------------------------------------------------------- */

static void ask(struct client_of_test *client) {
    if (asked_count == ASKED) return;
    if (!client->peer) client->peer = connect_peer();
    memory_peer_forget_received(client->peer);
    if (one_in(8))
        send_transaction(client);
    else if (one_in(40))
        send_words(client->peer, "BGREWRITEAOF");
    else if (one_in(2))
        send_to_table(client);
    else
        send_to_store(client->peer);
    asked[asked_count] = (struct asked){.moment = UINT32_MAX};
    client->waits_for = ++asked_count;
    char line[16];
    sprintf(line, "ECHO %05u", asked_count);
    send_words(client->peer, line);
}

/* ---- turns ----------------------------------------------------------------------------------------------------------- */

static void note_moment(void) {
    struct content content;
    uint64_t counters_now = sum_of_tables(sum_of_counters);
    if (moment_count > 0 && changes == server->store->changes && counters == counters_now) return;
    changes = server->store->changes;
    counters = counters_now;
    take_content(&content);
    if (moment_count > 0 && memcmp(&content, &moments[moment_count - 1], sizeof content) == 0) return;
    CHECK(moment_count < MOMENTS);
    moments[moment_count++] = content;
}

/* Looking takes memory, too, of which there is enough. */
static void take_moment(void) {
    uint32_t failure = memory_failure;
    memory_failure = 0;
    note_moment();
    memory_failure = failure;
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
            if (promises && !disk->is_gone) question->answered_us = machine_us;
            client->waits_for = 0;
        }
    }
}

/* No start would cut the end of an increment that another follows: all of it is on the disk. */
static void check_earlier_increments(void) {
    const struct append_manifest *manifest = &server->durability->append_log->manifest;
    char name[NAME_MAX + 1];
    for (uint64_t i = 0; i + 1 < manifest->count && !disk->is_gone; i++) {
        append_increment_name(manifest, manifest->first + i, name);
        const struct name *found = *find_name(&disk->names_now, name);
        CHECK(found && is_on_disk(&disk->files[found->file]));
    }
}

/* What happens once the disk is gone does not make it whole any more. */
static void look_at_log(void) {
    if (disk->is_gone) return;
    bool is_broken = server->durability->append_log->broken;
    broken_us = !is_broken ? 0 : broken_us ? broken_us : machine_us;
}

/* Returns how long the loop would sleep now. */
static uint64_t turn(void) {
    uint64_t wait_us = server_step(server);
    if (transport->operations->poll(transport, 0) > 0) wait_us = 0;
    take_moment();
    look_at_answers();
    look_at_log();
    check_earlier_increments();
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
    for (; steps > 0 && !disk->is_gone; steps--) {
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

/* Three of four starts go smoothly. Of the others calls fail, also those that read, or the process ends amid them: they may
 * be refused, and have then changed nothing. */
static bool try_to_start(bool is_smooth) {
    struct text said = {0};
    struct error error = {0};
    uint32_t failure = disk->failure;
    disk->failure = disk->read_failure = is_smooth ? 0 : 2 + below(20);
    disk->ends_in = is_smooth || one_in(2) ? 0 : 1 + below(6);
    disk->end_then = one_in(2) ? DISK_KILLED : DISK_WITHOUT_POWER;
    open_server(false, configure);
    int result = append_log_start(server->durability->append_log, &said, &error);
    if (tracing) fprintf(stderr, "start: %s %s\n", result ? error.message : "", said.data ? said.data : "");
    CHECK(result == 0 || !is_smooth);
    text_free(&said);
    disk->failure = failure;
    disk->read_failure = disk->ends_in = 0;
    disk->failed_us = 0;
    tally_add(&tally->starts, 1);
    return result == 0 && !disk->is_gone;
}

static void start(void) {
    while (!try_to_start(!one_in(4))) {
        close_server();
        if (!disk->is_gone) disk_end(DISK_KILLED);
        disk_begin();
    }
}

/* The earliest moment that the next server may be at. Where answers do not wait for the disk, a log that takes no changes
 * any more, since a call or an allocation has failed, keeps the promises of the time before that. It refuses changes then, and
 * is whole again only once it was rewritten: a rewrite that fails, too, is tried again after ten seconds. */
static uint32_t promised_moment(void) {
    uint64_t until_us = disk->failed_us && fsync_policy != ALWAYS ? disk->failed_us : disk->ended_us;
    if (broken_us && broken_us < until_us) until_us = broken_us;
    uint32_t promised = 0;
    for (uint32_t i = 0; i < asked_count; i++) {
        const struct asked *question = &asked[i];
        bool kept =
            question->answered_us > 0 && (fsync_policy == ALWAYS || question->answered_us + MOST_LOST_US <= until_us);
        if (kept && question->moment > promised) promised = question->moment;
    }
    return promised;
}

/* The last that is like what the server holds; 0: none is. */
static uint32_t find_moment(struct content *now) {
    uint32_t found = moment_count;
    take_content(now);
    while (found > 0 && memcmp(now, &moments[found - 1], sizeof *now) != 0) found--;
    return found;
}

static void check_moment(uint32_t promised) {
    struct content now;
    uint32_t found = find_moment(&now);
    if (tracing || found <= promised)
        fprintf(stderr, "moment %u of %u, promised: %u\n", found, moment_count, promised + 1);
    CHECK(found > promised);
    moments[0] = now;
    changes = server->store->changes;
    counters = sum_of_tables(sum_of_counters);
    moment_count = 1;
    asked_count = 0;
}

/* One bit of what had been brought to the disk is another one now: the start is refused, and says in which file; or that
 * was of no account. */
static void start_damaged(void) {
    uint32_t count = 0;
    for (const struct name *name = disk->names_now; name; name = name->next)
        count += disk->files[name->file].fsynced > 0;
    if (count == 0) return;
    const struct name *name = disk->names_now;
    for (uint32_t left = below(count); left > 0 || disk->files[name->file].fsynced == 0; name = name->next)
        if (disk->files[name->file].fsynced > 0) left--;
    flip_bit(name->name, below((uint32_t)disk->files[name->file].fsynced));
    struct text said = {0};
    struct error error = {0};
    struct content now;
    disk->is_gone = true; /* whatever this start does */
    open_server(false, configure);
    int result = append_log_start(server->durability->append_log, &said, &error);
    if (tracing)
        fprintf(stderr, "start with damage in %s: %s %s\n", name->name, error.message, said.data ? said.data : "");
    CHECK(result == 0 ? find_moment(&now) > 0 : strstr(error.message, name->name) != NULL);
    text_free(&said);
    tally_add(&tally->damages, 1);
    close_server();
    disk_begin();
}

/* At once, or in the middle of what the disk does next. */
static void end_the_process(bool is_kill) {
    disk->end_then = is_kill ? DISK_KILLED : DISK_WITHOUT_POWER;
    if (one_in(2)) {
        disk->ends_in = 1 + below(12);
        for (uint32_t tries = 0; tries < 40 && !disk->is_gone; tries++) run_steps(5);
    }
    if (!disk->is_gone) disk_end(disk->end_then);
}

static void end(void) {
    bool is_kill = one_in(2);
    end_the_process(is_kill);
    uint32_t promised = fsync_policy != NO ? promised_moment() : 0;
    broken_us = 0;
    if (tracing) fprintf(stderr, "%s, fsync %d\n", is_kill ? "kill" : "loss of power", fsync_policy);
    tally_add(&tally->rewrites, server->durability->append_log->rewrites);
    memset(clients, 0, sizeof clients);
    close_server();
    disk_begin();
    machine_us += below(3000000);
    if (one_in(8)) start_damaged();
    start();
    check_moment(promised);
    tally_add(is_kill ? &tally->kills : &tally->losses_of_power, 1);
}

static void run_seed(void) {
    random_seed(&chance, seed);
    machine_us = 1000000;
    fsync_policy = (int)below(3);
    disk->failure = one_in(2) ? 0 : 2 + below(200);
    memory_is_short = one_in(4) ? 20 + below(2000) : 0;
    moment_count = asked_count = 0;
    start();
    take_moment();
    for (uint32_t lives = 1 + below(4); lives > 0; lives--) {
        run_steps(below(200));
        end();
    }
    tally_add(&tally->disk_calls, disk->calls);
    tally_add(&tally->disk_failures, disk->failures);
}

static void say_tally(void) {
    printf(
        "%llu starts after %llu kills and %llu losses of power; %llu with damage; %llu rewrites; %llu of %llu calls of "
        "the disk failed\n",
        (unsigned long long)tally->starts, (unsigned long long)tally->kills, (unsigned long long)tally->losses_of_power,
        (unsigned long long)tally->damages, (unsigned long long)tally->rewrites,
        (unsigned long long)tally->disk_failures, (unsigned long long)tally->disk_calls);
}

int main(int argc, char **argv) {
    prepare_seeds(argc, argv, run_seed);
    tally = share_with_seeds(sizeof *tally);
    bool begins = all.next < all.end;
    run_seeds();
    say_tally();
    say_failed_seeds();
    CHECK(!is_stopped && all.failed == 0 && (!begins || tally->kills + tally->losses_of_power > 0));
    return 0;
}
