/* fuzz_commands: whatever commands clients send, in whatever pieces and however the server's files are damaged, it answers
 * well-formed replies, shows nobody what they may not see, tells in INFO what there is, has after a restart what its
 * append-only file had to keep, and ends with as much memory as it began with.
 *
 * An input is a row of steps of four bytes: who does what, and a seed for how. The first step chooses the server's settings.
 * Requests are made by command_grammar.h from the lines of command_lines.h. Before the first input every command is asked
 * until it has answered without an error once, so that one whose syntax is not known here does not go unnoticed. With
 * FUZZ_TRACE in the environment requests and replies are printed. */
#include "command_stage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
void fuzz_report(void);
/* Inputs are cut and joined at multiples of this. */
extern const size_t fuzz_unit;
const size_t fuzz_unit = 4;

#define MOST_STEPS 300u

/* ---- steps ----------------------------------------------------------------------------------------------------------- */

static void send_some(struct maker *maker, uint32_t number, uint32_t count) {
    struct peer *peer = find_peer(number);
    for (; peer && count > 0; count--) {
        make_request(maker, &made);
        send_made(number, peer);
    }
}

static void send_transaction(struct maker *maker, uint32_t number) {
    struct peer *peer = find_peer(number);
    if (!peer) return;
    send_kept(peer);
    send_line(number, "multi");
    send_some(maker, number, 1 + below(maker, 6));
    send_line(number, "exec");
}

/* The begin of a request; the rest goes with the next. */
static void send_part(struct maker *maker, uint32_t number) {
    struct peer *peer = find_peer(number);
    if (!peer) return;
    make_request(maker, &made);
    if (!may_be_sent(number, peer)) return;
    size_t length = write_wire(&made), part = below(maker, (uint32_t)length);
    memory_peer_send(peer->connection, wire, part);
    peer->sent++;
    peer->kept_length = length - part;
    peer->kept = malloc(peer->kept_length);
    CHECK(peer->kept);
    memcpy(peer->kept, wire + part, peer->kept_length);
}

/* A request some of whose bytes are others, or that is in words of one line. */
static void send_junk(struct maker *maker, uint32_t number) {
    struct peer *peer = is_of_a_user(number) ? NULL : find_peer(number);
    if (!peer) return;
    make_request(maker, &made);
    send_kept(peer);
    peer->counts = false;
    if (asks_to_follow(&made)) peer->follows = true;
    if (one_in(maker, 3)) {
        for (uint32_t i = 0; i < made.count; i++) {
            size_t length;
            const uint8_t *word = request_word(&made, i, &length);
            memory_peer_send(peer->connection, word, length);
            memory_peer_send(peer->connection, i + 1 < made.count ? " " : "\r\n", i + 1 < made.count ? 1 : 2);
        }
        return;
    }
    size_t length = write_wire(&made);
    for (uint32_t turns = 1 + below(maker, 4); turns > 0; turns--)
        wire[below(maker, (uint32_t)length)] = (uint8_t)(one_in(maker, 2) ? below(maker, 256) : '0' + below(maker, 10));
    request_clear(&made);
    memory_peer_send(peer->connection, wire, one_in(maker, 4) ? below(maker, (uint32_t)length) : length);
}

static void change_window(struct maker *maker, uint32_t number) {
    static const size_t windows[] = {0, 1, 10, 100, 5000, SIZE_MAX, SIZE_MAX, SIZE_MAX};
    struct peer *peer = find_peer(number);
    if (!peer) return;
    size_t window = windows[below(maker, 8)];
    peer->is_narrow = window != SIZE_MAX;
    memory_peer_open_window(peer->connection, window);
}

static void leave(struct maker *maker, uint32_t number) {
    struct peer *peer = &peers[number];
    if (!peer->connection) return;
    if (one_in(maker, 3)) {
        memory_peer_finish(peer->connection);
        peer->counts = false;
    } else {
        memory_peer_vanish(peer->connection);
    }
}

static void take_step(const uint8_t *step) {
    struct maker maker = {.out = &made};
    uint32_t number = step[0] & 7, kind = step[0] >> 3;
    random_seed(&maker.random, (uint64_t)step[0] << 24 | (uint64_t)step[1] << 16 | (uint64_t)step[2] << 8 | step[3]);
    maker.names_private = number == CONFINED || number == CONFINED_RESP3;
    switch (kind) {
    default: send_some(&maker, number, kind < 12 ? 1 : 2 + below(&maker, 6)); break;
    case 23: send_transaction(&maker, number); break;
    case 24: send_part(&maker, number); break;
    case 25:
        if (find_peer(number)) memory_peer_cut_input(peers[number].connection, 1 + below(&maker, 40));
        break;
    case 26: change_window(&maker, number); break;
    case 27: leave(&maker, number); break;
    case 28: damage_file(&maker); break;
    case 29: send_junk(&maker, number); break;
    case 30:
        for (uint32_t i = 0; i < PEERS; i++)
            if (peers[i].connection && !memory_peer_is_closed(peers[i].connection) && one_in(&maker, 2))
                memory_peer_release(peers[i].connection, memory_peer_held(peers[i].connection));
        usleep(below(&maker, 400));
        break;
    case 31:
        if (number == 0) restart();
        break;
    }
    turn_and_look();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memset(&seen, 0, sizeof seen);
    open_stage(size > 0 ? data[0] : 0);
    for (size_t at = fuzz_unit; at + fuzz_unit <= size && at / fuzz_unit < MOST_STEPS; at += fuzz_unit)
        take_step(data + at);
    close_stage();
    remove_files(folder);
    return 0;
}

/* ---- every command --------------------------------------------------------------------------------------------------- */

static bool is_exempt(const char *name) {
    for (size_t i = 0; i < sizeof exempt / sizeof *exempt; i++)
        if (strcmp(exempt[i].name, name) == 0) return true;
    return strncmp(name, "cluster|", 8) == 0; /* refused, each by its own row */
}

/* One round over all lines: of commands that have not been answered yet each, of the others some. */
static void call_the_roll(uint32_t round) {
    static const uint32_t callers[] = {PLAIN, UNIX_RESP3, LOCAL};
    struct maker maker = {.out = &made};
    random_seed(&maker.random, round);
    for (uint32_t i = 0; i < PEERS && round % 3 == 0; i++)
        if (peers[i].connection) memory_peer_vanish(peers[i].connection);
    turn_and_look();
    run_own("config set maxmemory 0 maxclients 100 shared-memory-limit 1gb latency-monitor-threshold 1");
    for (size_t f = 0; f < FAMILIES; f++) {
        for (uint32_t line = 0; line < families[f].count; line++) {
            request_clear(&made);
            make_from_line(&maker, families[f].lines[line]);
            const struct command_entry *entry = entry_of(&made);
            if (!entry) fprintf(stderr, "no such command: %s\n", families[f].lines[line]);
            CHECK(entry);
            bool proves = strcmp(entry->command->name, "replay.prove") == 0;
            uint32_t number = proves ? ABSTRACT : callers[round % 3];
            struct peer *peer = find_peer(number);
            if (is_never_sent(&made) || !peer || (is_answered(entry) && round % 5 != 0 && !one_in(&maker, 12)))
                continue;
            send_made(number, peer);
            turn_and_look();
            is_answered(entry);
        }
    }
}

/* Commands that no line names, by their rows; and how many were never answered, which `say` tells of. */
static uint32_t ask_by_rows(uint32_t round, bool say) {
    struct maker maker = {.out = &made};
    uint32_t missing = 0;
    random_seed(&maker.random, round);
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        const struct command_entry *container = command_table_at(server->commands, i);
        for (size_t part = 0; part < (container->subcommand_count ? container->subcommand_count : 1); part++) {
            const struct command_entry *entry = container->subcommand_count ? &container->subcommands[part] : container;
            if (is_answered(entry) || is_exempt(entry->command->name)) continue;
            missing++;
            if (say) fprintf(stderr, "%s was never answered without an error\n", entry->command->name);
            struct peer *peer = find_peer(PLAIN);
            request_clear(&made);
            make_from_row(&maker, entry->command);
            if (peer) send_made(PLAIN, peer);
            turn_and_look();
            is_answered(entry);
        }
    }
    return missing;
}

#define ROUNDS 1500u /* the rarest is answered in one of a hundred */

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    name_folder();
    tracing = getenv("FUZZ_TRACE");
    open_stage(2);
    uint32_t round = 0;
    do call_the_roll(round);
    while (ask_by_rows(round, round + 1 == ROUNDS) > 0 && ++round < ROUNDS);
    printf("every command was answered after %u rounds\n", round + 1);
    CHECK(round < ROUNDS);
    close_stage();
    remove_files(folder);
    return 0;
}

void fuzz_report(void) {
    printf("%llu commands in %llu servers; %u commands of the table were answered without an error\n",
           (unsigned long long)commands_run, (unsigned long long)servers_run, answered_count);
    printf("%llu restarts over their files, %llu held against what there was before\n", (unsigned long long)restarts,
           (unsigned long long)restarts_compared);
}
