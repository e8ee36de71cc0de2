/* test_command_rows: every command's row is whole and agrees with itself, and what a row calls secret is shown nowhere. */
#include "server/core/command_table.h"
#include "server/core/secret_arguments.h"
#include "server_stage.h"

static void for_each_row(void (*check)(const struct command *command)) {
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        const struct command_entry *entry = command_table_at(server->commands, i);
        check(entry->command);
        for (size_t part = 0; part < entry->subcommand_count; part++) check(entry->subcommands[part].command);
    }
}

/* ---- rows that agree with themselves --------------------------------------------------------------------------------- */

static void check_keys(const struct command *command) {
    const struct key_specification *keys = command->keys;
    for (size_t i = 0; keys && keys[i].flags; i++) {
        CHECK(keys[i].find == KEY_UNKNOWN || (keys[i].index != 0 && keys[i].numbers[1] > 0));
        CHECK(keys[i].find != KEY_UNKNOWN || (command->flags & COMMAND_MOVABLEKEYS));
        CHECK(keys[i].find != KEY_COUNTED || (command->flags & COMMAND_MOVABLEKEYS));
        CHECK(!(keys[i].access & KEY_WRITE) || !(command->flags & COMMAND_READONLY));
    }
    CHECK(!command->find_keys || keys);
}

static void check_row(const struct command *command) {
    CHECK(command->handler && command->arity != 0);
    CHECK(command->group && command->group->name && command->summary && command->summary[0] != '\0');
    CHECK(!(command->flags & COMMAND_WRITE) || !(command->flags & COMMAND_READONLY));
    CHECK(!command->event || (command->flags & COMMAND_WRITE));
    CHECK(command->channels == CHANNEL_NONE || (command->flags & COMMAND_PUBSUB));
    check_keys(command);
}

static void every_row_is_whole_and_agrees_with_itself(void) {
    open_server(false, NULL);
    for_each_row(check_row);
    close_server();
}

/* ---- secrets --------------------------------------------------------------------------------------------------------- */

/* A request of each command that takes secrets: the words with SECRET in them are what it must not show. */
#define SECRET "hidden-word"
static const struct example {
    const char *command, *request;
} examples[] = {
    {"auth", "AUTH " SECRET},
    {"auth", "AUTH someone " SECRET},
    {"hello", "HELLO 3 AUTH default " SECRET " SETNAME auth"},
    {"hello", "HELLO 2 SETNAME auth AUTH default " SECRET},
    {"acl|setuser", "ACL SETUSER someone on >" SECRET " <" SECRET},
    {"config|set", "CONFIG SET maxmemory 0 requirepass " SECRET},
    {"migrate", "MIGRATE host 1 key 0 10 COPY AUTH " SECRET},
    {"migrate", "MIGRATE host 1 key 0 10 AUTH2 " SECRET " other-" SECRET},
    {"replay.prove", "REPLAY.PROVE " SECRET},
};
#define EXAMPLES (sizeof examples / sizeof *examples)

/* Strangers may send these too, but they take nothing. */
static bool takes_nothing(const struct command *command) {
    return command->arity == 1 || strcmp(command->name, "quit") == 0;
}

static void check_that_secrets_have_an_example(const struct command *command) {
    bool has_example = false;
    for (size_t i = 0; i < EXAMPLES; i++) has_example |= strcmp(examples[i].command, command->name) == 0;
    CHECK(has_example == (command->is_secret != NULL));
    /* Who has not logged in yet sends what it logs in with. */
    CHECK(!(command->flags & COMMAND_NOAUTH) || takes_nothing(command) || command->is_secret);
}

static void log_everything(struct server_config *config) {
    config->slowlog_log_slower_than = 0;
}

/* Asks for everything that a server remembers of requests. */
static void ask_for_traces(struct memory_peer *peer) {
    say(peer, "SLOWLOG GET -1\r\nACL LOG\r\nCLIENT LIST\r\nINFO everything\r\n");
    settle();
}

static void show_example(const struct example *example, const char *before, const char *after) {
    open_server(false, log_everything);
    struct memory_peer *monitor = connect_peer(), *speaker = connect_peer();
    CHECK(answers(monitor, "MONITOR\r\n", "+OK\r\n"));
    char request[256];
    snprintf(request, sizeof request, "%s%s\r\n%s", before, example->request, after);
    say(speaker, request);
    settle();
    CHECK(!has_received(monitor, SECRET));
    memory_peer_forget_received(monitor);
    struct memory_peer *reader = connect_peer();
    say(reader, "AUTH " SECRET "\r\n");
    settle();
    memory_peer_forget_received(reader);
    ask_for_traces(reader);
    CHECK(has_received(reader, "(redacted)") && !has_received(reader, SECRET));
    close_server();
}

static void what_a_row_calls_secret_is_shown_nowhere(void) {
    for (size_t i = 0; i < EXAMPLES; i++) {
        show_example(&examples[i], "", "");
        show_example(&examples[i], "MULTI\r\n", "EXEC\r\n");
        show_example(&examples[i], "RESET\r\n", "NOSUCH\r\n");
    }
}

static void every_row_with_a_secret_is_tried(void) {
    open_server(false, NULL);
    for_each_row(check_that_secrets_have_an_example);
    for (size_t i = 0; i < EXAMPLES; i++) {
        struct resp_argument words[16];
        char text[256];
        uint32_t count = 0;
        snprintf(text, sizeof text, "%s", examples[i].request);
        for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
            words[count++] = (struct resp_argument){.data = (const uint8_t *)word, .length = strlen(word)};
        const struct command_entry *entry = command_table_find_request(server->commands, count, words);
        CHECK(entry && strcmp(entry->command->name, examples[i].command) == 0);
        for (uint32_t word = 0; word < count; word++) {
            bool is_secret = command_argument_is_secret(entry->command, count, words, word);
            CHECK(is_secret || !strstr((const char *)words[word].data, SECRET));
        }
    }
    close_server();
}

int main(void) {
    RUN(every_row_is_whole_and_agrees_with_itself);
    RUN(every_row_with_a_secret_is_tried);
    RUN(what_a_row_calls_secret_is_shown_nowhere);
    return 0;
}
