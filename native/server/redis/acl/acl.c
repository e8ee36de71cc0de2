#include "server/redis/acl/acl.h"

#include <string.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/redis/redis_subsystem.h"

#define STANDARD "default"

struct acl_terms acl_terms(const struct acl *acl) {
    return (struct acl_terms){.commands = acl->commands, .all_channels = acl->server->config.acl_all_channels != 0};
}

/* ---- the list of users ------------------------------------------------------------------------------- */

static int compare(const struct acl_user *user, const void *name, size_t length) {
    size_t common = user->name_length < length ? user->name_length : length;
    int order = common > 0 ? memcmp(user->name, name, common) : 0;
    return order != 0 ? order : (user->name_length > length) - (user->name_length < length);
}

/* Where the user stands, or would. */
static uint32_t position(const struct acl *acl, const void *name, size_t length) {
    uint32_t low = 0, high = acl->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (compare(acl->users[middle], name, length) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct acl_user *acl_find(const struct acl *acl, const void *name, size_t length) {
    uint32_t at = position(acl, name, length);
    return at < acl->count && compare(acl->users[at], name, length) == 0 ? acl->users[at] : NULL;
}

static bool insert(struct acl *acl, struct acl_user *user) {
    struct acl_user **users = memory_realloc(acl->users, (acl->count + 1) * sizeof *users);
    if (!users) return false;
    acl->users = users;
    uint32_t at = position(acl, user->name, user->name_length);
    memmove(users + at + 1, users + at, (acl->count - at) * sizeof *users);
    users[at] = user;
    acl->count++;
    return true;
}

/* ---- the default user -------------------------------------------------------------------------------- */

static bool lets_strangers_in(const struct acl *acl) {
    return (acl->standard->flags & ACL_USER_NO_PASSWORD) && !(acl->standard->flags & ACL_USER_OFF);
}

bool acl_lets_strangers_in(const struct server *server) {
    return lets_strangers_in(server->redis->acl);
}

void acl_standard_changed(struct acl *acl) {
    if (!lets_strangers_in(acl)) return;
    for (struct client *client = acl->server->clients.head; client; client = client->next) {
        if (client->user != acl->standard) continue;
        client->authenticated = true;
        client_use_limits(client);
    }
}

void acl_welcome(struct client *client) {
    const struct acl *acl = client->server->redis->acl;
    client->user = acl->standard;
    client->authenticated = lets_strangers_in(acl);
    client_use_limits(client);
}

static enum acl_rule apply_text(struct acl *acl, struct acl_user *user, const char *rule) {
    struct acl_terms terms = acl_terms(acl);
    return acl_user_apply(&terms, user, rule, strlen(rule));
}

void acl_follow_config(struct acl *acl) {
    const char *password = acl->server->config.requirepass;
    acl_log_trim(&acl->log, (uint64_t)acl->server->config.acllog_max_len);
    if (strcmp(acl->password, password) == 0) return;
    char rule[sizeof acl->password + 1] = ">";
    memcpy(rule + 1, password, strlen(password) + 1);
    apply_text(acl, acl->standard, "resetpass");
    /* Without memory for it nobody gets in until the next change: better than everybody. */
    apply_text(acl, acl->standard, *password ? rule : "nopass");
    memcpy(acl->password, password, strlen(password) + 1);
    acl_standard_changed(acl);
}

static struct acl_user *new_standard(struct acl *acl) {
    static const char *const rules[] = {"+@all", "~*", "&*", "on", "nopass"};
    struct acl_terms terms = acl_terms(acl);
    struct acl_user *user = acl_user_new(&terms, STANDARD, strlen(STANDARD));
    for (size_t i = 0; user && i < sizeof rules / sizeof *rules; i++) apply_text(acl, user, rules[i]);
    return user;
}

struct acl *acl_new(struct server *server) {
    struct acl *acl = memory_calloc(1, sizeof *acl);
    if (!acl) return NULL;
    acl->server = server;
    acl->commands = acl_commands_new(server->commands);
    if (acl->commands) acl->standard = new_standard(acl);
    if (acl->standard && insert(acl, acl->standard)) return acl;
    acl_user_free(acl->standard);
    memory_free(acl->commands);
    memory_free(acl);
    return NULL;
}

void acl_free(struct acl *acl) {
    if (!acl) return;
    for (uint32_t i = 0; i < acl->count; i++) acl_user_free(acl->users[i]);
    acl_log_clear(&acl->log);
    memory_free(acl->users);
    memory_free(acl->commands);
    memory_free(acl);
}

/* ---- changing users ---------------------------------------------------------------------------------- */

/* A selector may come in several arguments, as in "(+get ~a*)": from the first, which begins with a bracket, to the one that
 * ends with one. Returns how many arguments the rule at `at` takes, or 0 where no bracket ends it. */
static uint32_t rule_arguments(const struct resp_argument *rules, uint32_t count, uint32_t at) {
    const struct resp_argument *first = &rules[at];
    if (first->length == 0 || first->data[0] != '(') return 1;
    for (uint32_t i = at; i < count; i++)
        if (rules[i].length > 0 && rules[i].data[rules[i].length - 1] == ')') return i - at + 1;
    return 0;
}

static bool apply_rules(const struct acl *acl, struct acl_user *user, const struct resp_argument *rules, uint32_t count,
                        struct text *why) {
    struct acl_terms terms = acl_terms(acl);
    for (uint32_t i = 0, taken; i < count; i += taken) {
        taken = rule_arguments(rules, count, i);
        if (taken == 0) {
            text_append(why, "Unmatched parenthesis in acl selector starting at '%.*s'.", (int)rules[i].length,
                        (const char *)rules[i].data);
            return false;
        }
        struct text joined = {0};
        for (uint32_t j = i; j < i + taken; j++) {
            if (j > i) text_append(&joined, " ");
            text_append_bytes(&joined, rules[j].data, rules[j].length);
        }
        enum acl_rule result = joined.failed
                                   ? ACL_RULE_NO_MEMORY
                                   : acl_user_apply(&terms, user, joined.data ? joined.data : "", joined.length);
        if (result != ACL_RULE_FINE)
            text_append(why, "Error in ACL SETUSER modifier '%s': %s", joined.data ? joined.data : "",
                        acl_rule_sentence(result));
        text_free(&joined);
        if (result != ACL_RULE_FINE) return false;
    }
    return true;
}

bool acl_set_user(struct acl *acl, const char *name, size_t length, const struct resp_argument *rules, uint32_t count,
                  struct text *why) {
    struct acl_terms terms = acl_terms(acl);
    struct acl_user *user = acl_find(acl, name, length);
    struct acl_user *changed = user ? acl_user_copy(user) : acl_user_new(&terms, name, length);
    if (!changed) {
        text_append(why, "no memory for the user");
        return false;
    }
    if (!apply_rules(acl, changed, rules, count, why)) {
        acl_user_free(changed);
        return false;
    }
    if (user) {
        acl_user_take(user, changed);
        if (user == acl->standard) acl_standard_changed(acl);
        return true;
    }
    if (insert(acl, changed)) return true;
    acl_user_free(changed);
    text_append(why, "no memory for the user");
    return false;
}

static void close_clients_of(const struct acl *acl, const struct acl_user *user, struct client *asking) {
    for (struct client *client = acl->server->clients.head; client; client = client->next) {
        if (client->user != user) continue;
        client->user = acl->standard;
        client->authenticated = false;
        if (client == asking)
            client->close_after_reply = true;
        else
            client_close(client);
    }
}

bool acl_remove_user(struct acl *acl, const void *name, size_t length, struct client *asking) {
    struct acl_user *user = acl_find(acl, name, length);
    if (!user || user == acl->standard) return false;
    uint32_t at = position(acl, name, length);
    memmove(acl->users + at, acl->users + at + 1, (acl->count - at - 1) * sizeof *acl->users);
    acl->count--;
    close_clients_of(acl, user, asking);
    acl_user_free(user);
    return true;
}

/* ---- logging in -------------------------------------------------------------------------------------- */

bool acl_log_in(struct client *client, const struct resp_argument *name, const struct resp_argument *password) {
    struct acl *acl = client->server->redis->acl;
    struct acl_user *user = name ? acl_find(acl, name->data, name->length) : acl->standard;
    bool passes = user && !(user->flags & ACL_USER_OFF) &&
                  ((user->flags & ACL_USER_NO_PASSWORD) || acl_user_knows(user, password->data, password->length));
    if (!passes) {
        struct text given = {0};
        if (name)
            text_append_bytes(&given, name->data, name->length);
        else
            text_append(&given, STANDARD);
        acl_log_add(client, ACL_DENIED_LOGIN, client->transaction ? "multi" : "toplevel", client->argv[0].data,
                    client->argv[0].length, given.data ? given.data : "");
        text_free(&given);
        return false;
    }
    client->user = user;
    client->authenticated = true;
    client_use_limits(client);
    return true;
}
