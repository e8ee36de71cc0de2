/* cmd_client_tracking: CLIENT TRACKING and what belongs to it: which keys a client keeps copies of. */
#include <string.h>

#include "base/memory.h"
#include "server/admin/cmd_client.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/tracking/tracking.h"

/* ---- CLIENT TRACKING ON|OFF [REDIRECT id] [PREFIX prefix …] [BCAST] [OPTIN] [OPTOUT] [NOLOOP] ---------------------------- */

struct tracking_options {
    bool broadcast, opt_in, opt_out, no_loop;
    struct client *target;
    uint32_t prefix_count;
    const struct resp_argument **prefixes; /* room for all arguments */
};

static bool take_redirect(struct client *client, uint32_t index, struct tracking_options *options) {
    int64_t id;
    if (options->target) {
        reply_error(client, "ERR A client can only redirect to a single other client");
        return false;
    }
    if (!integer_argument(client, index, &id)) return false;
    options->target = id > 0 ? server_client_by_id(client->server, (uint64_t)id) : NULL;
    if (options->target) return true;
    reply_error(client, "ERR The client ID you want redirect to does not exist");
    return false;
}

/* False: the error is replied. */
static bool take_options(struct client *client, struct tracking_options *options) {
    for (uint32_t i = 3; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        bool has_value = i + 1 < client->argc;
        if (has_value && argument_is(word, "redirect")) {
            if (!take_redirect(client, ++i, options)) return false;
        } else if (has_value && argument_is(word, "prefix")) {
            options->prefixes[options->prefix_count++] = &client->argv[++i];
        } else if (argument_is(word, "bcast")) {
            options->broadcast = true;
        } else if (argument_is(word, "optin")) {
            options->opt_in = true;
        } else if (argument_is(word, "optout")) {
            options->opt_out = true;
        } else if (argument_is(word, "noloop")) {
            options->no_loop = true;
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* What cannot go together, or not with what the client does already. NULL: it can. */
static const char *contradiction(const struct tracker *now, const struct tracking_options *wanted) {
    if (!wanted->broadcast && wanted->prefix_count > 0) return "ERR PREFIX option requires BCAST mode to be enabled";
    if (now && (now->mode == TRACKING_BROADCAST) != wanted->broadcast)
        return "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling "
               "it "
               "with a different mode.";
    if (wanted->broadcast && (wanted->opt_in || wanted->opt_out))
        return "ERR OPTIN and OPTOUT are not compatible with BCAST";
    if (wanted->opt_in && wanted->opt_out) return "ERR You can't specify both OPTIN mode and OPTOUT mode";
    if (now && ((wanted->opt_in && now->mode == TRACKING_OPTOUT) || (wanted->opt_out && now->mode == TRACKING_OPTIN)))
        return "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling "
               "it "
               "with a different mode.";
    return NULL;
}

static bool overlap(const void *first, size_t first_length, const void *second, size_t second_length) {
    return memcmp(first, second, first_length < second_length ? first_length : second_length) == 0;
}

static int shown(size_t length) {
    return length < 128 ? (int)length : 128;
}

/* A key must not be told of twice. False: the error is replied. */
static bool prefixes_are_apart(struct client *client, const struct tracking_options *options) {
    const struct tracking_membership *had = client->tracker ? client->tracker->prefixes : NULL;
    for (uint32_t i = 0; i < options->prefix_count; i++) {
        const struct resp_argument *prefix = options->prefixes[i];
        for (const struct tracking_membership *each = had; each; each = each->next_of_tracker) {
            const struct dict_entry *other = each->prefix->entry;
            if (!overlap(other->key, other->key_length, prefix->data, prefix->length)) continue;
            reply_error(
                client,
                "ERR Prefix '%.*s' overlaps with an existing prefix '%.*s'. Prefixes for a single client must not "
                "overlap.",
                shown(prefix->length), (const char *)prefix->data, shown(other->key_length), (const char *)other->key);
            return false;
        }
        for (uint32_t j = i + 1; j < options->prefix_count; j++) {
            const struct resp_argument *other = options->prefixes[j];
            if (!overlap(other->data, other->length, prefix->data, prefix->length)) continue;
            reply_error(
                client,
                "ERR Prefix '%.*s' overlaps with another provided prefix '%.*s'. Prefixes for a single client must "
                "not overlap.",
                shown(prefix->length), (const char *)prefix->data, shown(other->length), (const char *)other->data);
            return false;
        }
    }
    return true;
}

static void begin(struct client *client, const struct tracking_options *options) {
    const char *wrong = contradiction(client->tracker, options);
    if (wrong) {
        reply_error(client, "%s", wrong);
        return;
    }
    if (!prefixes_are_apart(client, options)) return;
    struct tracking_wish wish = {
        .mode = options->broadcast ? TRACKING_BROADCAST
                : options->opt_in  ? TRACKING_OPTIN
                : options->opt_out ? TRACKING_OPTOUT
                                   : TRACKING_READ,
        .no_loop = options->no_loop,
        .target = options->target,
        .prefix_count = options->prefix_count,
        .prefixes = options->prefixes,
    };
    if (tracking_begin(client, &wish))
        reply_status(client, "OK");
    else
        reply_out_of_memory(client);
}

void client_tracking(struct client *client) {
    bool on = argument_is(&client->argv[2], "on");
    struct tracking_options options = {.prefixes = memory_alloc(client->argc * sizeof *options.prefixes)};
    if (!options.prefixes) {
        reply_out_of_memory(client);
        return;
    }
    if (take_options(client, &options)) {
        if (on) {
            begin(client, &options);
        } else if (argument_is(&client->argv[2], "off")) {
            tracking_end(client);
            reply_status(client, "OK");
        } else {
            reply_syntax_error(client);
        }
    }
    memory_free(options.prefixes);
}

/* ---- the others -------------------------------------------------------------------------------------------------------- */

/* CLIENT CACHING YES|NO */
void client_caching(struct client *client) {
    struct tracker *tracker = client->tracker;
    const struct resp_argument *answer = &client->argv[2];
    bool yes = argument_is(answer, "yes");
    if (!tracker) {
        reply_error(
            client,
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode "
            "enabled");
    } else if (!yes && !argument_is(answer, "no")) {
        reply_syntax_error(client);
    } else if (yes && tracker->mode != TRACKING_OPTIN) {
        reply_error(client, "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.");
    } else if (!yes && tracker->mode != TRACKING_OPTOUT) {
        reply_error(client, "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.");
    } else {
        tracker->caching = client->entry->container;
        reply_status(client, "OK");
    }
}

void client_getredir(struct client *client) {
    reply_integer(client, client->tracker ? (int64_t)client->tracker->redirect : -1);
}

static void reply_flags(struct client *client, const struct tracker *tracker) {
    const char *words[5];
    size_t count = 0;
    words[count++] = tracker ? "on" : "off";
    if (tracker && tracker->mode == TRACKING_BROADCAST) words[count++] = "bcast";
    if (tracker && tracker->mode == TRACKING_OPTIN) words[count++] = "optin";
    if (tracker && tracker->mode == TRACKING_OPTOUT) words[count++] = "optout";
    if (tracker && tracker->caching) words[count++] = tracker->mode == TRACKING_OPTIN ? "caching-yes" : "caching-no";
    if (tracker && tracker->no_loop) words[count++] = "noloop";
    if (tracker && tracker->redirect_is_broken) words[count++] = "broken_redirect";
    reply_set(client, count);
    for (size_t i = 0; i < count; i++) reply_bulk_string(client, words[i]);
}

void client_trackinginfo(struct client *client) {
    const struct tracker *tracker = client->tracker;
    uint32_t count = 0;
    reply_map(client, 3);
    reply_bulk_string(client, "flags");
    reply_flags(client, tracker);
    reply_bulk_string(client, "redirect");
    client_getredir(client);
    reply_bulk_string(client, "prefixes");
    const struct tracking_membership *prefixes = tracker ? tracker->prefixes : NULL;
    for (const struct tracking_membership *each = prefixes; each; each = each->next_of_tracker) count++;
    reply_array(client, count);
    for (const struct tracking_membership *each = prefixes; each; each = each->next_of_tracker)
        reply_bulk(client, each->prefix->entry->key, each->prefix->entry->key_length);
}
