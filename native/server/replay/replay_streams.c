/* replay_streams: a connection's streams at a table, in pages by number; and the closed ones that still hold steps. */
#include "server/replay/replay_streams.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"

#define PAGES 256u
#define PAGE_STREAMS (REPLAY_STREAM_NUMBERS / PAGES)
#define STEPS_BETWEEN_LOOKS 256u /* at the clock, while steps are given back */

struct stream_page {
    uint32_t count;
    struct stream *stream[PAGE_STREAMS];
};

/* The streams of one client at one table. */
struct replay_streams {
    struct client *client;
    struct replay_entry *entry;                  /* retained */
    struct replay_streams *next_of_client;
    struct replay_streams *next_of_entry;
    uint32_t count;
    struct stream_page *page[PAGES];
};

/* A closed stream whose steps are not given back yet; its table is retained. */
struct closed_stream {
    struct replay_entry *entry;
    struct stream *stream;
};

static uint32_t number_at(const struct resp_argument *argument, uint32_t i) {
    uint32_t number;
    memcpy(&number, argument->data + i * sizeof number, sizeof number);
    return number;
}

int replay_streams_check(const struct resp_argument *argument, uint32_t n, struct error *error) {
    if (argument->length != n * sizeof(uint32_t) || !argument->data) {
        return error_set(error, ERROR_BADSHAPE,
                         "expected the numbers of %" PRIu32 " streams as uint32, %zu bytes, got %zu bytes", n,
                         n * sizeof(uint32_t), argument->length);
    }
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++) largest = number_at(argument, i) > largest ? number_at(argument, i) : largest;
    if (largest < REPLAY_STREAM_NUMBERS) return 0;
    for (uint32_t i = 0; i < n; i++) {
        if (number_at(argument, i) >= REPLAY_STREAM_NUMBERS) {
            return error_set(error, ERROR_LIMIT,
                             "expected numbers of streams from 0 to %u, got %" PRIu32 " at index %" PRIu32,
                             REPLAY_STREAM_NUMBERS - 1, number_at(argument, i), i);
        }
    }
    return 0;
}

/* ---- closed streams ------------------------------------------------------------------------------------------------ */

/* Without memory to remember it by, the stream goes at once. */
static void close_stream(struct replay_entry *entry, struct stream *stream) {
    struct replay_registry *registry = entry->registry;
    struct closed_stream *closed =
        memory_grow(registry->closed, registry->closed_count, &registry->closed_room, 64, sizeof *closed);
    if (!closed) {
        table_stream_free(entry->table, stream);
        return;
    }
    registry->closed = closed;
    replay_entry_retain(entry);
    registry->closed[registry->closed_count++] = (struct closed_stream){entry, stream};
}

bool replay_streams_step(struct replay_registry *registry, uint64_t until_us) {
    while (registry->closed_count) {
        struct closed_stream closed = registry->closed[registry->closed_count - 1];
        if (!table_stream_free_some(closed.entry->table, closed.stream, STEPS_BETWEEN_LOOKS)) {
            registry->closed_count--;
            replay_entry_release(closed.entry);
        }
        if (clock_monotonic_us() >= until_us) return registry->closed_count > 0;
    }
    return false;
}

/* ---- open ones ----------------------------------------------------------------------------------------------------- */

static struct replay_streams *streams_of(const struct client *client, const struct replay_entry *entry) {
    const struct table *owner = table_owner_of_steps(entry->table);
    struct replay_streams *streams = client->streams;
    while (streams && streams->entry->table != owner) streams = streams->next_of_client;
    return streams;
}

static struct replay_streams *make_streams(struct client *client, struct replay_entry *entry) {
    struct replay_streams *streams = streams_of(client, entry);
    if (!streams && (streams = memory_calloc(1, sizeof *streams))) {
        streams->client = client;
        streams->entry = entry;
        replay_entry_retain(entry);
        streams->next_of_client = client->streams;
        client->streams = streams;
        streams->next_of_entry = entry->streams;
        entry->streams = streams;
    }
    return streams;
}

static void unlink_from_entry(struct replay_streams *streams) {
    struct replay_streams **link = &streams->entry->streams;
    while (*link != streams) link = &(*link)->next_of_entry;
    *link = streams->next_of_entry;
}

static void unlink_from_client(struct replay_streams *streams) {
    struct replay_streams **link = &streams->client->streams;
    while (*link != streams) link = &(*link)->next_of_client;
    *link = streams->next_of_client;
}

/* Closes all that are open, and forgets the set, which has been unlinked. */
static void free_streams(struct replay_streams *streams) {
    streams->client->stream_count -= streams->count;
    for (uint32_t i = 0; i < PAGES; i++) {
        struct stream_page *page = streams->page[i];
        for (uint32_t j = 0; page && page->count && j < PAGE_STREAMS; j++) {
            if (page->stream[j]) {
                close_stream(streams->entry, page->stream[j]);
                page->count--;
            }
        }
        memory_free(page);
    }
    replay_entry_release(streams->entry);
    memory_free(streams);
}

static struct stream *get(const struct replay_streams *streams, uint32_t number) {
    const struct stream_page *page = streams ? streams->page[number / PAGE_STREAMS] : NULL;
    return page ? page->stream[number % PAGE_STREAMS] : NULL;
}

static void forget(struct replay_streams *streams, uint32_t number) {
    struct stream_page **page = &streams->page[number / PAGE_STREAMS];
    (*page)->stream[number % PAGE_STREAMS] = NULL;
    if (--(*page)->count == 0) {
        memory_free(*page);
        *page = NULL;
    }
    streams->client->stream_count--;
    streams->count--;
}

static void free_if_empty(struct replay_streams *streams) {
    if (streams->count == 0) {
        unlink_from_client(streams);
        unlink_from_entry(streams);
        free_streams(streams);
    }
}

static struct stream *open_one(struct replay_streams *streams, uint32_t number, uint32_t history, struct error *error) {
    struct client *client = streams->client;
    if (client->stream_count == REPLAY_CLIENT_STREAMS) {
        error_set(error, ERROR_LIMIT,
                  "this connection has %u streams open, the most there may be; close some with REPLAY.CLOSE",
                  REPLAY_CLIENT_STREAMS);
        return NULL;
    }
    struct stream_page **page = &streams->page[number / PAGE_STREAMS];
    if (!*page && !(*page = memory_calloc(1, sizeof **page))) {
        error_set(error, ERROR_GENERIC, "out of memory for a stream");
        return NULL;
    }
    struct stream *stream = table_stream_new(streams->entry->table, history, error);
    if (stream) {
        (*page)->stream[number % PAGE_STREAMS] = stream;
        (*page)->count++;
        client->stream_count++;
        streams->count++;
    } else if ((*page)->count == 0) {
        memory_free(*page);
        *page = NULL;
    }
    return stream;
}

int replay_streams_find(const struct client *client, const struct replay_entry *entry,
                        const struct resp_argument *argument, uint32_t n, struct stream **streams,
                        struct error *error) {
    const struct replay_streams *open = streams_of(client, entry);
    for (uint32_t i = 0; i < n; i++) {
        streams[i] = get(open, number_at(argument, i));
        if (!streams[i]) {
            return error_set(error, ERROR_GENERIC,
                             "stream %" PRIu32 " is not open on this connection; REPLAY.APPEND its steps first",
                             number_at(argument, i));
        }
    }
    return 0;
}

int replay_streams_open(struct client *client, struct replay_entry *entry, const struct resp_argument *argument,
                        uint32_t n, uint32_t history, struct stream **streams, struct error *error) {
    struct replay_streams *open = make_streams(client, entry);
    if (!open) return error_set(error, ERROR_GENERIC, "out of memory for a connection's streams");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = number_at(argument, i);
        streams[i] = get(open, number);
        if (!streams[i] && !(streams[i] = open_one(open, number, history, error))) {
            replay_streams_close_empty(client, entry);
            return -1;
        }
    }
    return 0;
}

void replay_streams_close_empty(struct client *client, struct replay_entry *entry) {
    struct replay_streams *open = streams_of(client, entry);
    for (uint32_t number = 0; open && number < REPLAY_STREAM_NUMBERS; number++) {
        struct stream *stream = get(open, number);
        if (stream) table_stream_expect_nothing(stream);
        if (stream && stream_steps(stream) == 0) {
            forget(open, number);
            table_stream_free(entry->table, stream);
        }
        if (!open->page[number / PAGE_STREAMS]) number |= PAGE_STREAMS - 1; /* on to the next page */
    }
    if (open) free_if_empty(open);
}

uint32_t replay_streams_close(struct client *client, struct replay_entry *entry, const struct resp_argument *argument,
                              uint32_t n) {
    struct replay_streams *open = streams_of(client, entry);
    uint32_t closed = 0;
    for (uint32_t i = 0; open && i < n; i++) {
        struct stream *stream = get(open, number_at(argument, i));
        if (stream) {
            forget(open, number_at(argument, i));
            close_stream(open->entry, stream);
            closed++;
        }
    }
    if (open) free_if_empty(open);
    return closed;
}

void replay_streams_client_gone(struct client *client) {
    while (client->streams) {
        struct replay_streams *streams = client->streams;
        client->streams = streams->next_of_client;
        unlink_from_entry(streams);
        free_streams(streams);
    }
}

void replay_streams_table_gone(struct replay_entry *entry) {
    while (entry->streams) {
        struct replay_streams *streams = entry->streams;
        entry->streams = streams->next_of_entry;
        unlink_from_client(streams);
        free_streams(streams);
    }
}
