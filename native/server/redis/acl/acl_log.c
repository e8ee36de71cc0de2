/* acl_log: refused requests, the latest first. One that is soon repeated is counted, not listed again. */
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/redis/acl/acl.h"
#include "server/redis/redis_subsystem.h"

#define SAME_WITHIN_US 60000000u
#define LOOKED_AT 10u /* entries, for one to count up */

static void entry_free(struct acl_log_entry *entry) {
    memory_free(entry->object);
    memory_free(entry->username);
    memory_free(entry->client);
    memory_free(entry);
}

void acl_log_trim(struct acl_log *log, uint64_t most) {
    struct acl_log_entry **link = &log->head;
    for (uint64_t i = 0; i < most && *link; i++) link = &(*link)->next;
    while (*link) {
        struct acl_log_entry *entry = *link;
        *link = entry->next;
        entry_free(entry);
        log->count--;
    }
}

void acl_log_clear(struct acl_log *log) {
    acl_log_trim(log, 0);
}

static char *copy(const void *bytes, size_t length) {
    char *text = memory_alloc(length + 1);
    if (!text) return NULL;
    if (length > 0) memcpy(text, bytes, length);
    text[length] = '\0';
    return text;
}

static char *describe(const struct client *client) {
    struct text text = {0};
    if (client->connection) upcalls.client_describe(&text, client);
    size_t length = text.length;
    if (length > 0 && text.data[length - 1] == '\n') length--;
    char *described = copy(text.data, length);
    text_free(&text);
    return described;
}

static bool is_same(const struct acl_log_entry *entry, enum acl_verdict reason, const char *context, const void *object,
                    size_t length, const char *username, uint64_t now_us) {
    return entry->reason == reason && strcmp(entry->context, context) == 0 &&
           now_us - entry->updated_us <= SAME_WITHIN_US && entry->object_length == length &&
           (length == 0 || memcmp(entry->object, object, length) == 0) && strcmp(entry->username, username) == 0;
}

/* Takes the entry to count up out of the list; NULL: there is none. */
static struct acl_log_entry *take_same(struct acl_log *log, enum acl_verdict reason, const char *context,
                                       const void *object, size_t length, const char *username, uint64_t now_us) {
    struct acl_log_entry **link = &log->head;
    for (uint32_t i = 0; i < LOOKED_AT && *link; i++, link = &(*link)->next) {
        struct acl_log_entry *entry = *link;
        if (!is_same(entry, reason, context, object, length, username, now_us)) continue;
        *link = entry->next;
        log->count--;
        return entry;
    }
    return NULL;
}

static struct acl_log_entry *new_entry(enum acl_verdict reason, const char *context, const void *object, size_t length,
                                       const char *username) {
    struct acl_log_entry *entry = memory_calloc(1, sizeof *entry);
    if (!entry) return NULL;
    entry->reason = reason;
    entry->context = context;
    entry->object = copy(object, length);
    entry->object_length = length;
    entry->username = copy(username, strlen(username));
    if (entry->object && entry->username) return entry;
    entry_free(entry);
    return NULL;
}

void acl_log_add(struct client *client, enum acl_verdict reason, const char *context, const void *object,
                 size_t object_length, const char *username) {
    struct server *server = client->server;
    struct acl_log *log = &server->redis->acl->log;
    if (!object) object_length = 0;
    if (reason == ACL_DENIED_LOGIN)
        log_event(LOG_WARNING, "login_refused",
                  LOG_FIELDS({"user", .text = username},
                             {"peer", .text = client->connection ? client->connection->peer : ""}),
                  "refused a login as %s from %s", username,
                  client->connection ? client->connection->peer : "a script");
    struct acl_log_entry *entry = take_same(log, reason, context, object, object_length, username, server->now_us);
    if (!entry) entry = new_entry(reason, context, object, object_length, username);
    char *described = entry ? describe(client) : NULL;
    if (!entry) return; /* no memory: the refusal itself still stands */
    memory_free(entry->client);
    entry->client = described;
    entry->count++;
    entry->updated_us = server->now_us;
    entry->next = log->head;
    log->head = entry;
    log->count++;
    acl_log_trim(log, (uint64_t)server->config.acllog_max_len);
}

static const char *reason_name(enum acl_verdict reason) {
    switch (reason) {
    case ACL_DENIED_COMMAND: return "command";
    case ACL_DENIED_KEY: return "key";
    case ACL_DENIED_LOGIN: return "auth";
    case ACL_DENIED_CHANNEL: return "channel";
    case ACL_ALLOWED: break;
    }
    return "unknown";
}

static void reply_entry(struct client *client, const struct acl_log_entry *entry) {
    uint64_t now_us = client->server->now_us;
    reply_map(client, 7);
    reply_bulk_string(client, "count");
    reply_integer(client, (int64_t)entry->count);
    reply_bulk_string(client, "reason");
    reply_bulk_string(client, reason_name(entry->reason));
    reply_bulk_string(client, "context");
    reply_bulk_string(client, entry->context);
    reply_bulk_string(client, "object");
    reply_bulk(client, entry->object, entry->object_length);
    reply_bulk_string(client, "username");
    reply_bulk_string(client, entry->username);
    reply_bulk_string(client, "age-seconds");
    reply_double(client, now_us > entry->updated_us ? (double)((now_us - entry->updated_us) / 1000) / 1000 : 0);
    reply_bulk_string(client, "client-info");
    reply_bulk_string(client, entry->client ? entry->client : "");
}

void acl_log_reply(struct client *client, uint64_t most) {
    const struct acl_log *log = &client->server->redis->acl->log;
    uint64_t left = most < log->count ? most : log->count;
    reply_array(client, left);
    for (const struct acl_log_entry *entry = log->head; entry && left > 0; entry = entry->next, left--)
        reply_entry(client, entry);
}
