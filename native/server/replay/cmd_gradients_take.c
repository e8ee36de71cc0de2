/* cmd_gradients_take: GRAD.TAKE: the oldest gradients, or their weighted sum, now or once enough wait. They stay until
 * GRAD.PUBLISH or GRAD.DROP names them, so a learner that dies loses none. */
#include <inttypes.h>
#include <math.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_subsystem.h"

static const char usage[] = "syntax error; expected [UNTIL version staleness] [BLOCK ms] [HEADERS | SUM and a weight "
                            "for each of the n gradients]";

enum take_what { TAKE_VECTORS, TAKE_HEADERS, TAKE_SUM };

/* What is asked for, across a wait. */
struct take {
    struct gradients_entry *entry; /* NULL: there is no such key */
    uint32_t n;
    enum take_what what;
    bool blocks, has_rule;
    int64_t block_ms, version;
    double staleness;
};

/* ---- arguments ------------------------------------------------------------------------------------------------------ */

static int parse_rule(const struct resp_argument *arguments, struct take *take, struct error *error) {
    if (!argument_int64(&arguments[0], &take->version) || take->version < 0 ||
        !argument_double(&arguments[1], &take->staleness) || take->staleness < 0)
        return error_set(
            error, ERROR_GENERIC,
            "expected UNTIL with the current version, an integer >= 0, and the mean staleness to wait for, "
            "a number >= 0 or inf");
    take->has_rule = true;
    return 0;
}

static int parse_block(const struct resp_argument *argument, struct take *take, struct error *error) {
    if (!argument_int64(argument, &take->block_ms) || take->block_ms < 0 || take->block_ms > INT64_MAX / 1000000)
        return error_set(error, ERROR_GENERIC, "expected BLOCK with milliseconds, an integer >= 0 (0 = wait for ever)");
    take->blocks = true;
    return 0;
}

/* The n arguments behind SUM, into `weights` where that is not NULL. */
static int parse_weights(const struct client *client, uint32_t n, double *weights, struct error *error) {
    for (uint32_t i = 0; i < n; i++) {
        double weight;
        if (!argument_double(&client->argv[client->argc - n + i], &weight) || !isfinite(weight))
            return error_set(error, ERROR_GENERIC,
                             "expected weights that are finite numbers; number %" PRIu32 " is not", i + 1);
        if (weights) weights[i] = weight;
    }
    return 0;
}

/* The option at `at` and what belongs to it. Returns the place behind it, 0 with `error` set. */
static uint32_t parse_option(const struct client *client, uint32_t at, struct take *take, struct error *error) {
    const struct resp_argument *option = &client->argv[at];
    uint32_t left = client->argc - at - 1;
    if (argument_is(option, "until") && left >= 2) return parse_rule(option + 1, take, error) ? 0 : at + 3;
    if (argument_is(option, "block") && left >= 1) return parse_block(option + 1, take, error) ? 0 : at + 2;
    if (argument_is(option, "headers") && take->what == TAKE_VECTORS) {
        take->what = TAKE_HEADERS;
        return at + 1;
    }
    if (argument_is(option, "sum") && take->what == TAKE_VECTORS && left == take->n) {
        take->what = TAKE_SUM;
        return parse_weights(client, take->n, NULL, error) ? 0 : client->argc;
    }
    error_set(error, ERROR_GENERIC, "%s", usage);
    return 0;
}

static int parse(const struct client *client, struct take *take, struct error *error) {
    int64_t n;
    if (!argument_int64(&client->argv[2], &n) || n < 1)
        return error_set(error, ERROR_GENERIC, "expected a number of gradients, an integer of at least 1");
    if (n > GRADIENT_MOST_WAITING)
        return error_set(error, ERROR_LIMIT, "expected at most %u gradients, got %" PRId64, GRADIENT_MOST_WAITING, n);
    take->n = (uint32_t)n;
    for (uint32_t at = 3; at < client->argc;) {
        at = parse_option(client, at, take, error);
        if (at == 0) return -1;
    }
    if (take->has_rule && take->what == TAKE_SUM)
        return error_set(error, ERROR_GENERIC,
                         "expected UNTIL or SUM, not both: weights follow from the versions that UNTIL answers");
    return 0;
}

/* ---- what waits ----------------------------------------------------------------------------------------------------- */

static uint32_t waiting_of(const struct take *take) {
    return take->entry && take->entry->queue ? take->entry->queue->waiting.count : 0;
}

/* Whether as many wait as are wanted; otherwise the reason to wait. */
static bool has_enough(const struct take *take, struct error *error) {
    uint32_t waiting = waiting_of(take);
    if (waiting == 0) return error_because(error, ERROR_TIMEOUT, "no gradient waits");
    if (take->what == TAKE_SUM && waiting < take->n)
        return error_because(error, ERROR_TIMEOUT, "%" PRIu32 " gradients wait, a sum of %" PRIu32 " is wanted",
                             waiting, take->n);
    if (!take->has_rule || waiting >= take->n) return true;
    double staleness = gradient_queue_staleness(take->entry->queue, take->version);
    if (staleness <= take->staleness) return true;
    return error_because(error, ERROR_TIMEOUT,
                         "%" PRIu32 " gradients wait, of mean staleness %g; %" PRIu32
                         ", or a staleness of at most %g, are "
                         "wanted",
                         waiting, staleness, take->n, take->staleness);
}

/* ---- replies -------------------------------------------------------------------------------------------------------- */

static struct gradients_sum *sum_of(const struct client *client, const struct take *take) {
    double *weights = memory_alloc(take->n * sizeof *weights);
    struct error error;
    struct gradients_sum *sum = NULL;
    if (weights && !parse_weights(client, take->n, weights, &error))
        sum = gradients_sum_new(take->entry->queue, take->n, weights);
    memory_free(weights);
    return sum;
}

static void reply_headers(struct client *client, const struct gradient_queue *queue, uint32_t n) {
    const struct gradient *gradient = queue->waiting.head;
    reply_array(client, 4);
    reply_array(client, n);
    for (uint32_t i = 0; i < n; i++, gradient = gradient->next)
        reply_bulk(client, gradient->name, gradient->name_length);
    reply_array(client, n);
    gradient = queue->waiting.head;
    for (uint32_t i = 0; i < n; i++, gradient = gradient->next) reply_integer(client, gradient->version);
    reply_bulk_string(client, vector_type_name(queue->type));
}

static void reply_vectors(struct client *client, const struct gradient_queue *queue, uint32_t n) {
    const struct gradient *gradient = queue->waiting.head;
    reply_array(client, n);
    for (uint32_t i = 0; i < n; i++, gradient = gradient->next) reply_blob(client, gradient->blob);
}

/* A sum has memory of its own until it is sent. A client that reads slowly is not heard meanwhile, but within one
 * transaction it may ask for any number of them. */
static int check_unsent(const struct client *client, struct error *error) {
    size_t unsent = client->output.unsent_source_bytes;
    if (unsent <= (size_t)client->server->config.client_output_backlog_bytes) return 0;
    return error_set(error, ERROR_LIMIT, "%zu bytes wait to be sent to this client already; ask for fewer sums at once",
                     unsent);
}

/* Keys come and go: one that waits on stands with those of its key while that is there. A transaction waits for its next
 * slice alone, where it stands. */
static bool wait_elsewhere(struct client *client) {
    const struct resp_argument *key = &client->argv[1];
    struct wait_queue *queue = gradients_registry_takers(client->server->replay->gradients, key->data, key->length);
    if (!client->blocked || !client_may_block(client) || client->queue == queue) return false;
    client_block_elsewhere(client, queue);
    return true;
}

/* Replies; false when it must wait where it is. Nothing of the request is read once the reply has begun: a client whose reply cannot be
 * held is closed, and its request with it. */
static bool attempt(struct client *client) {
    struct take take = *(const struct take *)client_state(client);
    const struct resp_argument *key = &client->argv[1];
    struct error error;
    take.entry = gradients_registry_find(client->server->replay->gradients, key->data, key->length);
    if (!has_enough(&take, &error)) {
        if (take.blocks) return wait_elsewhere(client);
        reply_failure(client, &error);
        return true;
    }
    if (take.what == TAKE_SUM && check_unsent(client, &error)) {
        reply_failure(client, &error);
        return true;
    }
    const struct gradient_queue *queue = take.entry->queue;
    uint32_t waiting = waiting_of(&take), n = take.n < waiting ? take.n : waiting;
    struct gradients_sum *sum = take.what == TAKE_SUM ? sum_of(client, &take) : NULL;
    if (take.what == TAKE_SUM && !sum) {
        reply_error(client, "ERR out of memory for a sum of %zu bytes", queue->vector_bytes);
        return true;
    }
    reply_headers(client, queue, n);
    if (take.what == TAKE_SUM)
        gradients_sum_reply(client, sum);
    else if (take.what == TAKE_VECTORS)
        reply_vectors(client, queue, n);
    else
        reply_integer(client, (int64_t)queue->vector_bytes);
    return true;
}

static void expired(struct client *client) {
    struct take take = *(const struct take *)client_state(client);
    const struct resp_argument *key = &client->argv[1];
    struct error error;
    take.entry = gradients_registry_find(client->server->replay->gradients, key->data, key->length);
    if (has_enough(&take, &error)) error_set(&error, ERROR_TIMEOUT, "the time was over");
    reply_failure(client, &error);
}

void gradients_take_command(struct client *client) {
    const struct resp_argument *key = &client->argv[1];
    struct take *take = memory_calloc(1, sizeof *take);
    struct error error;
    if (!take) {
        reply_error(client, "ERR out of memory");
        return;
    }
    client_set_state(client, take, client_free_state);
    if (parse(client, take, &error)) {
        reply_failure(client, &error);
        return;
    }
    if (attempt(client)) return;
    uint64_t deadline_us = take->block_ms ? clock_monotonic_us() + (uint64_t)take->block_ms * 1000 : CLOCK_NEVER;
    struct wait_queue *queue = gradients_registry_takers(client->server->replay->gradients, key->data, key->length);
    client_block(client, queue, deadline_us, attempt, expired);
}
