/* cmd_gradients: GRAD.*: pushes gradients, publishes the weights that were made of them, and tells their state. */
#include <inttypes.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_rows.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "store/store.h"

#define PUBLISH_MOST_KEYS 16u /* of weights, in one GRAD.PUBLISH */

static struct gradient_queue *queue_of(const struct client *client, const struct resp_argument *key) {
    const struct gradients_entry *entry =
        gradients_registry_find(client->server->replay->gradients, key->data, key->length);
    return entry ? entry->queue : NULL;
}

static void wake(struct client *client, const struct resp_argument *key) {
    struct gradients_entry *entry = gradients_registry_find(client->server->replay->gradients, key->data, key->length);
    client->server->store->changes++;
    if (entry) wait_queue_wake(client->server, &entry->takers);
}

/* ---- PUSH ----------------------------------------------------------------------------------------------------------- */

struct push {
    int64_t version;
    enum vector_type type;
};

static int check_name(const struct resp_argument *name, struct error *error) {
    if (name->length >= 1 && name->length <= GRADIENT_NAME_BYTES) return 0;
    return error_set(error, ERROR_LIMIT, "expected a gradient's name of 1 to %u bytes, got %zu", GRADIENT_NAME_BYTES,
                     name->length);
}

static int parse_push(const struct client *client, struct push *push, struct error *error) {
    const struct resp_argument *blob = &client->argv[5];
    if (!argument_int64(&client->argv[2], &push->version) || push->version < 0)
        return error_set(error, ERROR_GENERIC,
                         "expected the version of the weights that the gradient was computed at, an integer >= 0");
    if (check_name(&client->argv[3], error)) return -1;
    if (argument_is(&client->argv[4], "float32"))
        push->type = VECTOR_FLOAT32;
    else if (argument_is(&client->argv[4], "bfloat16"))
        push->type = VECTOR_BFLOAT16;
    else
        return error_set(error, ERROR_BADSHAPE, "expected the dtype float32 or bfloat16");
    if (blob->length > 0 && blob->length % vector_type_bytes(push->type) == 0) return 0;
    return error_set(error, ERROR_BADSHAPE, "expected a vector of one or more %s, %zu bytes each, got %zu bytes",
                     vector_type_name(push->type), vector_type_bytes(push->type), blob->length);
}

static void push_command(struct client *client) {
    const struct resp_argument *key = &client->argv[1], *name = &client->argv[3];
    struct push push;
    struct error error;
    if (parse_push(client, &push, &error)) {
        reply_failure(client, &error);
        return;
    }
    /* The blob comes first: a queue that was made for a push that fails would stay, empty, and in no file. */
    struct blob *blob = argument_blob(&client->argv[5]);
    if (!blob) {
        reply_error(client, "ERR out of memory for a gradient of %zu bytes", client->argv[5].length);
        return;
    }
    struct gradients_entry *entry =
        gradients_registry_open(client->server->replay->gradients, key->data, key->length, &error);
    int pushed = -1;
    if (entry)
        pushed = gradient_queue_push(entry->queue, name->data, name->length, push.version, push.type, blob, &error);
    blob_release(blob);
    if (pushed < 0) {
        reply_failure(client, &error);
        return;
    }
    if (pushed) wake(client, key);
    reply_integer(client, pushed);
}

/* ---- PUBLISH -------------------------------------------------------------------------------------------------------- */

/* GRAD.PUBLISH key version n name … weights_key blob …: the place of the first weights key; 0: the arguments make no
 * sense. While they come not all need be there. */
static uint32_t weights_place(uint32_t argc, const struct resp_argument *argv) {
    int64_t n;
    if (argc < 4 || !argument_int64(&argv[3], &n) || n < 0 || n > GRADIENT_MOST_WAITING) return 0;
    return 4 + (uint32_t)n;
}

static int publish_keys(uint32_t argc, const struct resp_argument *argv, struct key_place *places, int max) {
    uint32_t first = weights_place(argc, argv);
    int count = 0;
    if (first == 0 || argc < 2) return -1;
    if (max > 0) places[0] = (struct key_place){1, KEY_WRITE};
    count++;
    for (uint32_t at = first; at < argc; at += 2, count++)
        if (count < max) places[count] = (struct key_place){at, KEY_WRITE};
    return count;
}

struct publication {
    int64_t version;
    uint32_t first, keys; /* of weights: the place of the first, how many */
    uint32_t names;
    struct gradient_queue *queue;
    struct weights_staged staged[PUBLISH_MOST_KEYS];
};

static int parse_publication(const struct client *client, struct publication *publication, struct error *error) {
    uint32_t first = weights_place(client->argc, client->argv), argc = client->argc;
    if (!argument_int64(&client->argv[2], &publication->version) || publication->version < 0)
        return error_set(error, ERROR_GENERIC, "expected a version, an integer >= 0");
    if (first == 0 || first + 2 > argc || (argc - first) % 2 != 0)
        return error_set(error, ERROR_GENERIC,
                         "syntax error; expected a count of 0 to %u names, so many names, then keys of weights, each "
                         "with its blob",
                         GRADIENT_MOST_WAITING);
    publication->first = first;
    publication->names = first - 4;
    publication->keys = (argc - first) / 2;
    if (publication->keys <= PUBLISH_MOST_KEYS) return 0;
    return error_set(error, ERROR_LIMIT, "expected at most %u keys of weights, got %" PRIu32, PUBLISH_MOST_KEYS,
                     publication->keys);
}

static int no_gradient(const struct resp_argument *name, const struct gradient *gradient, struct error *error) {
    static const char *const states[] = {"is not known", "is named twice", "was applied already",
                                         "was dropped already"};
    return error_set(error, ERROR_NOGRADIENT, "expected names of gradients that wait; '%.*s' %s",
                     name->length < GRADIENT_NAME_BYTES ? (int)name->length : (int)GRADIENT_NAME_BYTES,
                     (const char *)name->data, states[gradient ? gradient->state : GRADIENT_FREE]);
}

static struct gradient *find(const struct gradient_queue *queue, const struct resp_argument *name) {
    if (!queue || name->length > GRADIENT_NAME_BYTES) return NULL;
    return gradient_queue_find(queue, name->data, name->length);
}

/* All names wait, and none is there twice. Marks are set on the way, and taken away again in any case. */
static int check_names(const struct client *client, const struct publication *publication, struct error *error) {
    uint32_t marked = 0;
    int result = 0;
    for (; marked < publication->names && result == 0; marked++) {
        const struct resp_argument *name = &client->argv[4 + marked];
        struct gradient *gradient = find(publication->queue, name);
        if (!gradient || gradient->state != GRADIENT_WAITING || gradient->marked) {
            result = no_gradient(name, gradient, error);
            break;
        }
        gradient->marked = true;
    }
    for (uint32_t i = 0; i < marked; i++) find(publication->queue, &client->argv[4 + i])->marked = false;
    return result;
}

static int check_twice(const struct client *client, const struct publication *publication, uint32_t at,
                       struct error *error) {
    const struct resp_argument *key = &client->argv[at];
    for (uint32_t i = publication->first; i < at; i += 2) {
        const struct resp_argument *other = &client->argv[i];
        if (other->length == key->length && memcmp(other->data, key->data, key->length) == 0)
            return error_set(error, ERROR_GENERIC, "expected each key of weights once");
    }
    return 0;
}

/* Stages the weights; -1: none is staged. */
static int stage(struct client *client, struct publication *publication, struct error *error) {
    struct weights_registry *weights = client->server->replay->weights;
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < publication->keys; i++) {
        uint32_t at = publication->first + 2 * i;
        const struct resp_argument *key = &client->argv[at];
        if (check_twice(client, publication, at, error) ||
            weights_check_version(weights, key, publication->version, error) ||
            weights_stage(weights, key, &client->argv[at + 1], fresh, &publication->staged[i], error)) {
            while (i-- > 0) weights_unstage(&publication->staged[i]);
            return -1;
        }
        fresh += publication->staged[i].is_new;
    }
    return 0;
}

/* Where memory is short only a publication that needs no more of it than it gives back is let through: without one, what
 * waits would never go. */
static bool has_room(const struct client *client, const struct publication *publication) {
    size_t more = 0, less = publication->names ? publication->names * publication->queue->vector_bytes : 0;
    for (uint32_t i = 0; i < publication->keys; i++) {
        const struct weights_staged *staged = &publication->staged[i];
        more += staged->blob->length;
        less += staged->is_new ? 0 : staged->entry->blob->length;
    }
    return more <= less || client->server->loading || !server_memory_exceeded(client->server, 0);
}

static void unstage(struct publication *publication) {
    for (uint32_t i = 0; i < publication->keys; i++) weights_unstage(&publication->staged[i]);
}

static void publish_command(struct client *client) {
    struct publication publication;
    struct error error;
    publication.queue = queue_of(client, &client->argv[1]);
    if (parse_publication(client, &publication, &error) || stage(client, &publication, &error)) {
        reply_failure(client, &error);
        return;
    }
    if (check_names(client, &publication, &error)) {
        unstage(&publication);
        reply_failure(client, &error);
        return;
    }
    if (!has_room(client, &publication)) {
        unstage(&publication);
        reply_error(client, "OOM command not allowed when used memory > 'maxmemory'.");
        return;
    }
    /* From here on nothing can fail. */
    for (uint32_t i = 0; i < publication.keys; i++)
        weights_install(client->server->replay->weights, &publication.staged[i], publication.version);
    for (uint32_t i = 0; i < publication.names; i++)
        gradient_queue_finish(publication.queue, find(publication.queue, &client->argv[4 + i]), GRADIENT_APPLIED);
    wake(client, &client->argv[1]);
    reply_integer(client, publication.version);
}

/* ---- others --------------------------------------------------------------------------------------------------------- */

static void drop_command(struct client *client) {
    struct gradient_queue *queue = queue_of(client, &client->argv[1]);
    int64_t dropped = 0;
    if (!names_within_or_reply(client, 2, GRADIENT_MOST_WAITING, "names")) return;
    for (uint32_t i = 2; i < client->argc; i++) {
        struct gradient *gradient = find(queue, &client->argv[i]);
        if (!gradient || gradient->state != GRADIENT_WAITING) continue;
        gradient_queue_finish(queue, gradient, GRADIENT_DROPPED);
        dropped++;
    }
    if (dropped) wake(client, &client->argv[1]);
    reply_integer(client, dropped);
}

static void state_command(struct client *client) {
    static const char *const states[] = {NULL, "waiting", "applied", "dropped"};
    const struct gradient_queue *queue = queue_of(client, &client->argv[1]);
    if (!names_within_or_reply(client, 2, GRADIENT_MOST_WAITING + GRADIENT_MOST_REMEMBERED, "names")) return;
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct gradient *gradient = find(queue, &client->argv[i]);
        if (gradient)
            reply_bulk_string(client, states[gradient->state]);
        else
            reply_null(client);
    }
}

static void del_command(struct client *client) {
    int64_t removed = 0;
    if (!names_within_or_reply(client, 1, GRADIENTS_MAX_KEYS, "keys of gradients")) return;
    for (uint32_t i = 1; i < client->argc; i++)
        removed +=
            gradients_registry_remove(client->server->replay->gradients, client->argv[i].data, client->argv[i].length);
    client->server->store->changes += (uint64_t)removed;
    reply_integer(client, removed);
}

static void list_command(struct client *client) {
    const struct gradients_registry *registry = client->server->replay->gradients;
    size_t mark = reply_array_deferred(client), count = 0;
    for (const struct gradients_entry *entry = registry->entries; entry; entry = entry->next) {
        const struct resp_argument key = {.data = (const uint8_t *)entry->key, .length = entry->key_length};
        if (!entry->queue || !upcalls.acl_may_access_key(client, &key, KEY_READ | KEY_WRITE)) continue;
        reply_bulk(client, entry->key, entry->key_length);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

static void info_command(struct client *client) {
    static const struct gradient_queue nothing;
    const struct resp_argument *key = &client->argv[1];
    const struct gradients_entry *entry =
        gradients_registry_find(client->server->replay->gradients, key->data, key->length);
    const struct gradient_queue *queue = entry && entry->queue ? entry->queue : &nothing;
    const struct gradient *oldest = queue->waiting.head, *newest = queue->waiting.tail;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"waiting", queue->waiting.count},
        {"bytes", entry ? (int64_t)gradients_vector_bytes(entry) : 0},
        {"vector_bytes", oldest ? (int64_t)queue->vector_bytes : 0},
        {"oldest_version", oldest ? oldest->version : -1},
        {"newest_version", newest ? newest->version : -1},
        {"pushed", (int64_t)queue->counters.pushed},
        {"duplicates", (int64_t)queue->counters.duplicates},
        {"applied", (int64_t)queue->counters.applied},
        {"dropped", (int64_t)queue->counters.dropped},
        {"remembered", queue->finished.count},
        {"forgotten", (int64_t)queue->counters.forgotten},
        {"takers", gradients_registry_count_takers(client->server->replay->gradients, key->data, key->length)},
    };
    const size_t count = sizeof numbers / sizeof *numbers;
    reply_map(client, count + 1);
    for (size_t i = 0; i < count; i++) {
        reply_bulk_string(client, numbers[i].name);
        reply_integer(client, numbers[i].value);
    }
    reply_bulk_string(client, "dtype");
    reply_bulk_string(client, oldest ? vector_type_name(queue->type) : "");
}

void gradients_info(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    struct gradient_counters sum = {0};
    uint64_t keys = 0, waiting = 0, bytes = 0, remembered = 0, takers = server->replay->gradients->absent.length;
    for (const struct gradients_entry *entry = server->replay->gradients->entries; entry; entry = entry->next) {
        takers += entry->takers.length;
        if (!entry->queue) continue;
        const struct gradient_counters *counters = &entry->queue->counters;
        keys++;
        waiting += entry->queue->waiting.count;
        bytes += gradients_vector_bytes(entry);
        remembered += entry->queue->finished.count;
        sum.pushed += counters->pushed;
        sum.duplicates += counters->duplicates;
        sum.applied += counters->applied;
        sum.dropped += counters->dropped;
        sum.forgotten += counters->forgotten;
    }
    text_append(out,
                "# Gradients\r\ngradients_keys:%" PRIu64 "\r\ngradients_waiting:%" PRIu64 "\r\ngradients_bytes:%" PRIu64
                "\r\ngradients_takers:%" PRIu64 "\r\ngradients_pushed:%" PRIu64 "\r\ngradients_duplicates:%" PRIu64
                "\r\ngradients_applied:%" PRIu64 "\r\ngradients_dropped:%" PRIu64 "\r\ngradients_remembered:%" PRIu64
                "\r\ngradients_forgotten:%" PRIu64
                "\r\ngradients_max_keys:%u\r\ngradients_max_waiting:%u\r\ngradients_max_remembered:%u\r\n",
                keys, waiting, bytes, takers, sum.pushed, sum.duplicates, sum.applied, sum.dropped, remembered,
                sum.forgotten, GRADIENTS_MAX_KEYS, GRADIENT_MOST_WAITING, GRADIENT_MOST_REMEMBERED);
}

const struct command commands_gradients[] = {
    {"grad.push", push_command, 6, COMMAND_WRITE | COMMAND_DENYOOM | COMMAND_TIMED, &group_gradients,
     "Adds a gradient under a name; 1, or 0 where that name is known already.", .keys = name_written},
    {"grad.take", gradients_take_command, -3, COMMAND_READONLY | COMMAND_BLOCKING | COMMAND_TIMED, &group_gradients,
     "Returns the oldest gradients, or their weighted sum; they stay until they are published or dropped.",
     .keys = name_read},
    {"grad.await", gradients_await_command, -5, COMMAND_READONLY | COMMAND_BLOCKING, &group_gradients,
     "Waits until at most so many of the named gradients wait, and returns how many do.", .keys = name_known},
    {"grad.publish", publish_command, -6, COMMAND_WRITE | COMMAND_MOVABLEKEYS | COMMAND_TIMED, &group_gradients,
     "Publishes weights and marks the gradients as applied that they were made of: all of it or nothing.",
     .keys = name_written, .find_keys = publish_keys},
    {"grad.drop", drop_command, -3, COMMAND_WRITE, &group_gradients,
     "Takes gradients out without applying them and returns how many waited.", .keys = name_written},
    {"grad.state", state_command, -3, COMMAND_READONLY | COMMAND_FAST, &group_gradients,
     "Says of each name whether it waits, was applied or dropped, or is not known.", .keys = name_read},
    {"grad.info", info_command, 2, COMMAND_READONLY | COMMAND_FAST, &group_gradients,
     "Returns how many gradients wait under a key, their versions and size, and counters.", .keys = name_known},
    {"grad.list", list_command, 1, COMMAND_READONLY, &group_gradients, "Returns all keys that one has any right to."},
    {"grad.del", del_command, -2, COMMAND_WRITE, &group_gradients,
     "Removes keys, what waits there and every name that is remembered, and returns how many there were.",
     .keys = names_written},
    {0},
};
