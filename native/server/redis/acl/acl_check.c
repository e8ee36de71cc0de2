/* acl_check: whether a user may run a request: the command, its keys, its channels. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/redis/acl/acl.h"
#include "server/redis/redis_subsystem.h"
#include "store/glob.h"

#define PLACES 64

/* The keys of a request, looked up once for all selectors. */
struct keys_found {
    bool known;
    int count; /* −1: memory is exhausted */
    struct key_place *places;
    struct key_place few[PLACES];
};

static void find_keys(struct keys_found *keys, const struct command *command, uint32_t argc,
                      const struct resp_argument *argv) {
    if (keys->known) return;
    keys->known = true;
    keys->places = keys->few;
    keys->count = command_keys(command, argc, argv, keys->few, PLACES);
    if (keys->count < 0) keys->count = 0; /* nonsense: the command will say so and touch nothing */
    if (keys->count <= PLACES) return;
    int count = keys->count;
    keys->places = memory_alloc((size_t)count * sizeof *keys->places);
    keys->count = keys->places ? command_keys(command, argc, argv, keys->places, count) : -1;
}

static void forget_keys(struct keys_found *keys) {
    if (keys->known && keys->places != keys->few) memory_free(keys->places);
}

static bool pattern_matches(const struct acl_pattern *pattern, const struct resp_argument *argument) {
    const uint8_t *bytes = argument->data ? argument->data : (const uint8_t *)"";
    return glob_match((const uint8_t *)pattern->bytes, pattern->length, bytes, argument->data ? argument->length : 0);
}

static bool allows_key(const struct acl_selector *selector, const struct resp_argument *key, uint32_t access) {
    for (uint32_t i = 0; i < selector->keys.count; i++) {
        const struct acl_pattern *pattern = &selector->keys.items[i];
        if ((pattern->access & access) == access && pattern_matches(pattern, key)) return true;
    }
    return false;
}

/* A pattern to subscribe to must be among the user's word for word, since nobody can tell what it will match. */
bool acl_allows_channel(const struct acl_selector *selector, const struct resp_argument *channel, bool is_pattern) {
    for (uint32_t i = 0; i < selector->channels.count; i++) {
        const struct acl_pattern *pattern = &selector->channels.items[i];
        bool same = channel->data && pattern->length == channel->length &&
                    memcmp(pattern->bytes, channel->data, channel->length) == 0;
        if (is_pattern ? same : pattern_matches(pattern, channel)) return true;
    }
    return false;
}

static bool allows_command(const struct acl_selector *selector, uint32_t number, const struct acl_item *item,
                           uint32_t argc, const struct resp_argument *argv) {
    if ((selector->flags & ACL_ALL_COMMANDS) || (item->command->flags & COMMAND_NOAUTH)) return true;
    if (acl_selector_has(selector, number)) return true;
    for (uint32_t i = 0; argc > 1 && i < selector->first_count; i++) {
        const struct acl_first *first = &selector->firsts[i];
        if (first->command == number && argument_is(&argv[1], first->word)) return true;
    }
    return false;
}

static bool allows_channels(const struct acl_selector *selector, const struct command *command, uint32_t argc,
                            const struct resp_argument *argv, uint32_t *at) {
    if (command->channels == CHANNEL_NONE) return true;
    uint32_t end = command->channels != CHANNEL_FIRST || argc < 2 ? argc : 2;
    for (*at = 1; *at < end; (*at)++)
        if (!acl_allows_channel(selector, &argv[*at], command->channels == CHANNEL_PATTERNS)) return false;
    return true;
}

static enum acl_verdict check_selector(const struct acl_selector *selector, uint32_t number,
                                       const struct acl_item *item, uint32_t argc, const struct resp_argument *argv,
                                       struct keys_found *keys, uint32_t *at) {
    if (!allows_command(selector, number, item, argc, argv)) return ACL_DENIED_COMMAND;
    if (!(selector->flags & ACL_ALL_KEYS) &&
        !(item->command->flags & COMMAND_PUBSUB)) { /* shard channels are no keys */
        find_keys(keys, item->command, argc, argv);
        if (keys->count < 0) return ACL_DENIED_KEY;
        for (int i = 0; i < keys->count; i++) {
            *at = keys->places[i].index;
            if (!allows_key(selector, &argv[*at], keys->places[i].access)) return ACL_DENIED_KEY;
        }
    }
    if (!(selector->flags & ACL_ALL_CHANNELS) && !allows_channels(selector, item->command, argc, argv, at))
        return ACL_DENIED_CHANNEL;
    return ACL_ALLOWED;
}

enum acl_verdict acl_check(const struct acl *acl, const struct acl_user *user, const struct acl_item *item,
                           uint32_t argc, const struct resp_argument *argv, uint32_t *at) {
    *at = 0;
    if (!user || user->unrestricted) return ACL_ALLOWED;
    struct keys_found keys = {0};
    enum acl_verdict worst = ACL_DENIED_COMMAND;
    for (uint32_t i = 0; i < user->selector_count; i++) {
        uint32_t place = 0;
        enum acl_verdict verdict = check_selector(user->selectors[i], (uint32_t)(item - acl->commands->items), item,
                                                  argc, argv, &keys, &place);
        if (verdict == ACL_ALLOWED) {
            worst = ACL_ALLOWED;
            break;
        }
        if (verdict > worst || (verdict == worst && place > *at)) {
            worst = verdict;
            *at = place;
        }
    }
    forget_keys(&keys);
    return worst;
}

static bool reads_every_key(const struct acl_selector *selector) {
    if (selector->flags & ACL_ALL_KEYS) return true;
    for (uint32_t i = 0; i < selector->keys.count; i++) {
        const struct acl_pattern *pattern = &selector->keys.items[i];
        if ((pattern->access & KEY_READ) && pattern->length == 1 && pattern->bytes[0] == '*') return true;
    }
    return false;
}

bool acl_may_read_every_key(const struct client *client) {
    const struct acl_user *user = client->user;
    if (!user || user->unrestricted) return true;
    uint32_t number = client->entry->acl_id;
    const struct acl_item *item = &client->server->redis->acl->commands->items[number];
    struct keys_found keys = {0};
    bool found = false;
    for (uint32_t i = 0; i < user->selector_count && !found; i++) {
        const struct acl_selector *selector = user->selectors[i];
        uint32_t at;
        found = reads_every_key(selector) &&
                check_selector(selector, number, item, client->argc, client->argv, &keys, &at) == ACL_ALLOWED;
    }
    forget_keys(&keys);
    return found;
}

bool acl_may_access_key(const struct client *client, const struct resp_argument *key, uint32_t access) {
    const struct acl_user *user = client->user;
    if (!user || user->unrestricted) return true;
    uint32_t number = client->entry->acl_id;
    const struct acl_item *item = &client->server->redis->acl->commands->items[number];
    for (uint32_t i = 0; i < user->selector_count; i++) {
        const struct acl_selector *selector = user->selectors[i];
        if (!allows_command(selector, number, item, 1, key)) continue;
        if (selector->flags & ACL_ALL_KEYS) return true;
        for (uint32_t bit = 1; bit <= access; bit <<= 1)
            if ((access & bit) && allows_key(selector, key, bit)) return true;
    }
    return false;
}

const char *acl_verdict_sentence(enum acl_verdict verdict) {
    switch (verdict) {
    case ACL_DENIED_COMMAND: return "can't run this command or subcommand";
    case ACL_DENIED_KEY: return "can't access at least one of the keys mentioned in the command arguments";
    case ACL_DENIED_CHANNEL: return "can't publish to the channel mentioned in the command";
    case ACL_ALLOWED:
    case ACL_DENIED_LOGIN: break;
    }
    return "lacking the permissions for the command";
}

const char *acl_refusal(struct client *client, const struct command_entry *entry, char *message, size_t size) {
    if (!client->user || client->user->unrestricted) return NULL;
    const struct acl *acl = client->server->redis->acl;
    const struct acl_item *item = acl_commands_of_request(acl->commands, entry, client->argc, client->argv);
    uint32_t at;
    enum acl_verdict verdict = acl_check(acl, client->user, item, client->argc, client->argv, &at);
    if (verdict == ACL_ALLOWED) return NULL;
    const char *context = !client->connection                            ? "lua"
                          : client->transaction || client->deny_blocking ? "multi"
                                                                         : "toplevel";
    if (verdict == ACL_DENIED_COMMAND) {
        acl_log_add(client, verdict, context, item->name, strlen(item->name), client->user->name);
        snprintf(message, size, "NOPERM this user has no permissions to run the '%s' command", item->name);
    } else {
        acl_log_add(client, verdict, context, client->argv[at].data, client->argv[at].length, client->user->name);
        snprintf(message, size, "NOPERM this user has no permissions to access one of the %s used as arguments",
                 verdict == ACL_DENIED_KEY ? "keys" : "channels");
    }
    return message;
}

enum acl_verdict acl_denial(struct client *client, const struct command_entry *entry) {
    char message[256];
    if (!acl_refusal(client, entry, message, sizeof message)) return ACL_ALLOWED;
    const struct acl *acl = client->server->redis->acl;
    const struct acl_item *item = acl_commands_of_request(acl->commands, entry, client->argc, client->argv);
    uint32_t at;
    return acl_check(acl, client->user, item, client->argc, client->argv, &at);
}

bool acl_may_become_allowed(const struct client *client, const struct command_entry *entry, uint32_t argc,
                            const struct resp_argument *argv) {
    if (!client->user || client->user->unrestricted) return true;
    const struct acl *acl = client->server->redis->acl;
    uint32_t at;
    return acl_check(acl, client->user, acl_commands_of_request(acl->commands, entry, argc, argv), argc, argv, &at) ==
           ACL_ALLOWED;
}
