/* test_failing_network: two servers with an append-only file each, one a replica of the other, on simulated machines
 * (simulated_machine.h) and over a simulated network (simulated_network.h). A seed decides what clients ask for; in which
 * pieces the bytes between the servers arrive, how late, when connections break and when nothing is carried; when a process
 * is killed or the power is lost; and when a server is promoted, by REPLICAOF NO ONE or by FAILOVER. Whatever happens:
 *
 *   - A replica at an offset of a history holds what the primary of that history held at that offset. Nothing is missing, and
 *     nothing is there twice. Between two known offsets it holds what was held at one of them.
 *   - A promoted replica has all that WAIT 1 counted it for, and after FAILOVER all that the primary had.
 *   - A primary that has heard of a newer one changes nothing, and with `always` still knows of it after a restart.
 *   - A server that starts again holds what it held at some moment; with `always`, all that its answers promised.
 *   - In the end, when nothing goes wrong any more, the replica catches up and holds the same as the primary, and WAIT 1
 *     counts it.
 *
 * At each server at most one request that changes something is under way, so that the offset behind each change is known.
 * The arguments are those of test_failing_machine. */
#include "base/log.h"
#include "replicated_content.h"

static uint32_t steps_left; /* of this seed */
static int64_t backlog_bytes;

/* ---- starts and ends ------------------------------------------------------------------------------------------------- */

static void configure(struct server_config *config) {
    config->appendonly = 1;
    config->appendfsync = fsync_policy;
    config->log_level = tracing ? LOG_NOTICE : LOG_ERROR;
    config->auto_aof_rewrite_min_size = 20000;
    config->port = port_of(host);
    config->protected_mode = 0; /* clients of the test come from nowhere */
    config->replication.backlog_bytes = backlog_bytes;
    config->replication.timeout_s = 6;
    config->replication.ping_period_s = 2;
    if (life->follows)
        sprintf(config->replication.follows, "127.0.0.1 %u", port_of(&hosts[other_than(port_of(host) - 1)]));
}

static bool was_held(const struct content *now) {
    for (uint32_t i = life->moment_count; i > life->promised; i--)
        if (is_same(&life->moments[i - 1], now)) return true;
    for (uint32_t i = record_count; i > 0 && life->has_followed; i--)
        if (is_same(&records[i - 1].content, now)) return true;
    return false;
}

static void check_start(void) {
    struct content now;
    take_content(&now);
    CHECK(was_held(&now));
    CHECK(server->place.newest_epoch >= life->promised_epoch);
    life->moments[0] = now;
    life->moment_count = 1;
    life->changes = UINT64_MAX;
    life->promised = 0;
    life->was_replica = life->has_followed = server->place.is_replica;
}

static void start(uint32_t number) {
    static struct transport_operations as_kernel;
    struct text said = {0};
    struct error error = {0};
    go_to(number);
    disk_begin();
    open_server(false, configure);
    as_kernel = *transport->operations;
    as_kernel.name = "kernel"; /* the one that servers connect over */
    transport->operations = &as_kernel;
    int result = append_log_start(server->durability->append_log, &said, &error);
    if (tracing) fprintf(stderr, "port %u starts: %s %s\n", port_of(host), error.message, said.data ? said.data : "");
    CHECK(result == 0);
    text_free(&said);
    host->server = server;
    host->transport = transport;
    check_start();
    network_return(host);
    tally_add(&tally->starts, 1);
}

/* Of the host whose process has ended. */
static void bury(bool is_amid_turn) {
    bool is_kill = disk->end_then == DISK_KILLED;
    const struct replication_subsystem *replication = server->replication;
    if (tracing) fprintf(stderr, "port %u: %s\n", port_of(host), is_kill ? "kill" : "loss of power");
    tally_add(&tally->partial, replication->partial);
    tally_add(&tally->full, replication->full);
    tally_add(is_kill ? &tally->kills : &tally->losses_of_power, 1);
    life->follows = server->place.is_replica != one_in(10);
    network_leave(host, is_kill, is_amid_turn);
    memset(life->askers, 0, sizeof life->askers);
    life->orders = NULL;
    life->is_ordered = false;
    close_server();
    host->server = NULL;
    host->transport = NULL;
}

/* At once, or in the middle of what the disk does next. */
static void end(uint32_t number) {
    if (!lives_on(number)) return;
    go_to(number);
    disk->end_then = one_in(2) ? DISK_KILLED : DISK_WITHOUT_POWER;
    if (one_in(2)) {
        disk->ends_in = 1 + below(8);
        return;
    }
    disk_end(disk->end_then);
    bury(false);
}

/* ---- turns ----------------------------------------------------------------------------------------------------------- */

/* Returns how long the host's loop would sleep now. */
static uint64_t turn(uint32_t number) {
    go_to(number);
    if (!server) return UINT64_MAX;
    bool was_fenced = server_is_fenced(server) && !is_amid_request();
    uint32_t before = life->moment_count;
    uint64_t wait_us = disk->is_gone ? UINT64_MAX : server_step(server);
    if (!disk->is_gone && transport->operations->poll(transport, 0) > 0) wait_us = 0;
    look();
    CHECK(!was_fenced || !server_is_fenced(server) || life->moment_count == before);
    if (was_fenced) tally_add(&tally->fenced, 1);
    if (disk->is_gone) {
        bury(true);
        return UINT64_MAX;
    }
    look_at_answers();
    return wait_us;
}

static void pass_time(uint64_t us) {
    for (uint64_t until_us = machine_us + us; machine_us < until_us;) {
        uint64_t wait_us = until_us - machine_us;
        for (uint32_t i = 0; i < HOSTS; i++) {
            uint64_t host_us = turn(i);
            if (host_us < wait_us) wait_us = host_us;
        }
        uint64_t network_us = network_carry();
        machine_us += network_us < wait_us ? network_us : wait_us;
        if (one_in(2)) machine_work();
    }
}

/* ---- who is the primary ---------------------------------------------------------------------------------------------- */

/* The one whose epoch is newer; of two that are not fenced, or are. */
static uint32_t newer_host(void) {
    bool is_first =
        is_primary(0) == is_primary(1) ? hosts[0].server->place.epoch >= hosts[1].server->place.epoch : is_primary(0);
    return is_first ? 0 : 1;
}

/* As a supervisor does that may be slow, or at fault. */
static void arrange(void) {
    if (!lives_on(0) || !lives_on(1)) return;
    uint32_t newer = newer_host(), older = other_than(newer);
    if (is_replica(0) && is_replica(1)) {
        go_to(newer);
        order_promotion();
    } else if (!is_replica(0) && !is_replica(1)) {
        go_to(older);
        if (one_in(2))
            order_fence(hosts[newer].server);
        else
            order_to_follow(newer);
    } else if (!is_primary(0) && !is_primary(1)) {
        go_to(is_replica(0) ? 1 : 0);
        order_promotion();
    }
}

static void promote_replica(uint32_t number) {
    if (!is_replica(number)) return;
    go_to(number);
    order_promotion();
}

static void fail_over(uint32_t number) {
    if (!is_primary(number) || !is_replica(other_than(number))) return;
    go_to(number);
    order_failover(other_than(number));
}

static void happen(void) {
    uint32_t number = below(HOSTS);
    switch (below(90)) {
    case 0: end(number); break;
    case 1: network.cut_until_us = machine_us + below(one_in(4) ? 12000000 : 300000); break;
    case 2:
    case 3: network_break(); break;
    case 4:
        if (one_in(2)) promote_replica(number);
        break;
    case 5: fail_over(number); break;
    case 6:
    case 7:
        if (!hosts[number].server) start(number);
        break;
    case 8:
    case 9:
    case 10: arrange(); break;
    default: break;
    }
}

static void run_steps(void) {
    for (; steps_left > 0; steps_left--) {
        happen();
        for (uint32_t i = 0; i < HOSTS; i++) {
            if (!is_primary(i) || one_in(4)) continue;
            go_to(i);
            ask_someone();
        }
        pass_time(1 + below(one_in(20) ? 700000 : 5000));
    }
}

/* ---- the end of a seed ----------------------------------------------------------------------------------------------- */

static bool fails_over(uint32_t number) {
    return hosts[number].server->replication->failover.state != FAILOVER_NONE;
}

static bool has_caught_up(uint32_t replica, uint32_t primary) {
    const struct replication_subsystem *to = hosts[replica].server->replication,
                                       *from = hosts[primary].server->replication;
    return to->link.state == LINK_UP && strcmp(to->id, from->id) == 0 &&
           change_stream_end(&to->stream) == change_stream_end(&from->stream) && !to->link.client->is_resting &&
           !hosts[replica].server->exclusive.on;
}

static void catch_up(uint32_t replica, uint32_t primary) {
    for (uint32_t tries = 0; !has_caught_up(replica, primary); tries++) {
        CHECK(tries < 600);
        pass_time(1 + below(500000));
    }
    CHECK(is_same(&lives[replica].moments[lives[replica].moment_count - 1],
                  &lives[primary].moments[lives[primary].moment_count - 1]));
}

/* Whatever is still under way comes to its end. */
static void bring_up(void) {
    network.cut_until_us = network.breaking = 0;
    for (uint32_t i = 0; i < HOSTS; i++) hosts[i].disk->ends_in = 0;
    for (uint32_t i = 0; i < HOSTS; i++) {
        go_to(i);
        if (server && disk->is_gone) bury(false);
        if (!server) start(i);
    }
    pass_time(100000);
    for (uint32_t tries = 0; fails_over(0) || fails_over(1); tries++) {
        CHECK(tries < 200);
        pass_time(1000000);
    }
}

/* Both agree on who is the primary; which is returned. One that was chosen may hear only then of a newer one. */
static uint32_t make_peace(void) {
    uint32_t primary = newer_host(), replica = other_than(primary);
    pass_time(5000000);
    for (uint32_t tries = 0; !is_primary(primary); tries++) {
        CHECK(tries < 3);
        go_to(primary);
        order_promotion();
        pass_time(100000);
    }
    go_to(replica);
    order_to_follow(primary);
    pass_time(100000);
    CHECK(is_replica(replica));
    return primary;
}

static void check_wait(uint32_t primary) {
    struct asker *asker = &lives[primary].askers[0];
    for (uint32_t tries = 0; is_asking(&lives[primary]) || asker->client.waits_for; tries++) {
        CHECK(tries < 400);
        pass_time(10000);
    }
    go_to(primary);
    ask(asker, 60000);
    for (uint32_t tries = 0; asker->client.waits_for; tries++) {
        CHECK(tries < 6100);
        pass_time(10000);
    }
    CHECK(asker->counted == 1);
}

static void end_well(void) {
    bring_up();
    uint32_t primary = make_peace(), replica = other_than(primary);
    catch_up(replica, primary);
    for (uint32_t i = 0; i < 5; i++) {
        check_wait(primary);
        catch_up(replica, primary);
    }
    for (uint32_t i = 0; i < HOSTS; i++) {
        go_to(i);
        tally_add(&tally->partial, server->replication->partial);
        tally_add(&tally->full, server->replication->full);
    }
    tally_add(&tally->breaks, network.breaks);
    tally_add(&tally->bytes, network.bytes);
}

static void make_host(uint32_t number) {
    char name[16];
    sprintf(name, "host%u", number);
    CHECK(mkdir(name, 0700) == 0 || errno == EEXIST);
    int folder = __real_open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(folder >= 0 && fchdir(folder) == 0 && (mkdir(DISK_FOLDER, 0700) == 0 || errno == EEXIST));
    remove_simulated_files();
    disks[number].folder = folder;
    hosts[number].disk = &disks[number];
    CHECK(chdir("..") == 0);
}

static void run_seed(void) {
    random_seed(&chance, seed);
    machine_us = 1000000;
    for (uint32_t i = 0; i < HOSTS; i++) make_host(i);
    disk = NULL; /* no process runs yet */
    fsync_policy = (int64_t)below(3);
    backlog_bytes = one_in(3) ? 1 : 1 << 20;
    network.breaking = one_in(3) ? 0 : 20 + below(400);
    only_keys = one_in(3); /* then a former primary may go on where it was */
    steps_left = 20 + below(400);
    for (uint32_t i = 0; i < HOSTS; i++) {
        lives[i].moment_count = 1; /* of an empty server, which has no sum yet */
        lives[i].follows = i > 0;
        start(i);
    }
    run_steps();
    end_well();
}

static void say_tally(void) {
    printf("%llu starts after %llu kills and %llu losses of power; %llu breaks of connections; %llu full and "
           "%llu partial "
           "synchronisations of %llu bytes; %llu promotions, of them %llu by FAILOVER; %llu turns of fenced servers; "
           "%llu times "
           "a replica was compared with its primary, which WAIT had counted %llu times\n",
           (unsigned long long)tally->starts, (unsigned long long)tally->kills,
           (unsigned long long)tally->losses_of_power, (unsigned long long)tally->breaks,
           (unsigned long long)tally->full, (unsigned long long)tally->partial, (unsigned long long)tally->bytes,
           (unsigned long long)tally->promotions, (unsigned long long)tally->failovers,
           (unsigned long long)tally->fenced, (unsigned long long)tally->checked, (unsigned long long)tally->confirmed);
}

int main(int argc, char **argv) {
    prepare_seeds(argc, argv, run_seed);
    tally = share_with_seeds(sizeof *tally);
    bool begins = all.next < all.end;
    run_seeds();
    say_tally();
    say_failed_seeds();
    CHECK(!is_stopped && all.failed == 0 && (!begins || (tally->full > 0 && tally->checked > 0)));
    return 0;
}
