#include "server/core/output_limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/core/client.h"
#include "server/core/config.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"

static const char *const class_names[OUTPUT_CLASSES] = {"normal", "slave", "pubsub"};

/* The next word of `*text`, which moves on; false: there is none, or it is too long. */
static bool next_word(const char **text, char word[64]) {
    *text += strspn(*text, " ");
    size_t length = strcspn(*text, " ");
    if (length == 0 || length >= 64) return false;
    memcpy(word, *text, length);
    word[length] = '\0';
    *text += length;
    return true;
}

static int class_named(const char *name) {
    if (strcasecmp(name, "replica") == 0) return OUTPUT_REPLICA;
    for (int i = 0; i < OUTPUT_CLASSES; i++)
        if (strcasecmp(class_names[i], name) == 0) return i;
    return -1;
}

static bool parse_seconds(const char *text, int64_t *seconds) {
    char *end;
    *seconds = strtoll(text, &end, 10);
    return *text != '\0' && *end == '\0' && *seconds >= 0;
}

int output_limits_parse(struct output_limit limits[OUTPUT_CLASSES], const char *text, struct error *error) {
    struct output_limit parsed[OUTPUT_CLASSES];
    memcpy(parsed, limits, sizeof parsed);
    if (config_parse_bytes(text, &parsed[OUTPUT_NORMAL].hard_bytes)) {
        memcpy(limits, parsed, sizeof parsed);
        return 0;
    }
    char name[64], hard[64], soft[64], seconds[64];
    while (next_word(&text, name)) {
        struct output_limit limit;
        if (!next_word(&text, hard) || !next_word(&text, soft) || !next_word(&text, seconds))
            return error_set(error, ERROR_GENERIC, "Wrong number of arguments in buffer limit configuration.");
        int class = class_named(name);
        if (class < 0)
            return error_set(error, ERROR_GENERIC, "Invalid client class specified in buffer limit configuration.");
        if (!config_parse_bytes(hard, &limit.hard_bytes) || !config_parse_bytes(soft, &limit.soft_bytes) ||
            !parse_seconds(seconds, &limit.soft_s))
            return error_set(error, ERROR_GENERIC,
                             "Error in hard, soft or soft_seconds setting in buffer limit configuration.");
        parsed[class] = limit;
    }
    if (*text != '\0')
        return error_set(error, ERROR_GENERIC, "Invalid client class specified in buffer limit configuration.");
    memcpy(limits, parsed, sizeof parsed);
    return 0;
}

void output_limits_write(const struct output_limit limits[OUTPUT_CLASSES], char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i < OUTPUT_CLASSES && used < size; i++) {
        int more = snprintf(text + used, size - used, "%s%s %" PRId64 " %" PRId64 " %" PRId64, i > 0 ? " " : "",
                            class_names[i], limits[i].hard_bytes, limits[i].soft_bytes, limits[i].soft_s);
        used += more > 0 ? (size_t)more : 0;
    }
}

size_t output_limits_least(const struct output_limit limits[OUTPUT_CLASSES]) {
    size_t least = SIZE_MAX;
    for (int i = 0; i < OUTPUT_CLASSES; i++) {
        if (limits[i].hard_bytes > 0 && (size_t)limits[i].hard_bytes < least) least = (size_t)limits[i].hard_bytes;
        if (limits[i].soft_bytes > 0 && (size_t)limits[i].soft_bytes < least) least = (size_t)limits[i].soft_bytes;
    }
    return least;
}

/* Of normal clients counts what is held for them alone: what is sent from blobs and tables has bounds of its own. Messages
 * pile up for a subscriber, wherever they lie. */
static size_t waiting_bytes(const struct client *client, enum output_class class) {
    const struct output *output = &client->output;
    bool all = class == OUTPUT_PUBSUB && output->unsent_bytes > output->inline_bytes;
    return all ? output->unsent_bytes : output->inline_bytes;
}

bool output_limit_is_exceeded(struct client *client, size_t more_bytes) {
    if (!client->connection) return false;
    enum output_class class = upcalls.pubsub_is_subscriber(client) ? OUTPUT_PUBSUB : OUTPUT_NORMAL;
    const struct output_limit *limit = &client->server->config.output_limits[class];
    size_t bytes = waiting_bytes(client, class) + more_bytes;
    if (limit->hard_bytes > 0 && bytes > (size_t)limit->hard_bytes) return true;
    if (limit->soft_bytes == 0 || bytes <= (size_t)limit->soft_bytes) {
        client->soft_limit_us = 0;
        return false;
    }
    uint64_t now_us = client->server->now_us;
    if (client->soft_limit_us == 0) client->soft_limit_us = now_us;
    return now_us > client->soft_limit_us + (uint64_t)limit->soft_s * 1000000u;
}
