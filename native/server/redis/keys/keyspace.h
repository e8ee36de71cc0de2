/* keyspace: what the commands on the store have in common: finding keys of the right type, and replying strings. */
#ifndef REPLAY_SERVER_KEYSPACE_H
#define REPLAY_SERVER_KEYSPACE_H

#include "server/core/client.h"
#include "server/core/command.h"
#include "server/core/server.h"
#include "store/store.h"
#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_string.h"

/* The key named by argument `index`; NULL if there is none. The read and the write form count as a use of the key
 * (see store/access.h), and the read form counts a hit or a miss. The write form is for
 * whoever changes the value in place, and then calls keyspace_changed; functions that store or remove keys, or change
 * their expiry times, tell of it themselves. */
struct dict_entry *keyspace_find(struct client *client, uint32_t index);
struct dict_entry *keyspace_find_read(struct client *client, uint32_t index);
struct dict_entry *keyspace_find_write(struct client *client, uint32_t index);
/* Counts as a use of the key that keyspace_find found; NULL is allowed. */
void keyspace_use(struct client *client, const struct dict_entry *entry);
void keyspace_changed(struct client *client, const struct dict_entry *entry);

/* True where `entry` is NULL or of the type; replies WRONGTYPE where not. */
bool keyspace_type_is(struct client *client, const struct dict_entry *entry, enum value_type type);

/* Stores the value under the key named by argument `index`. NULL: memory is exhausted; the value is freed, the error
 * replied. `value` may be NULL, which is taken for the same. */
struct dict_entry *keyspace_put(struct client *client, uint32_t index, struct value *value, bool keep_expiry);
void keyspace_remove(struct client *client, struct dict_entry *entry);
/* Exchanges the value of `entry`, keeping its expiry, or stores a new key if `entry` is NULL. As keyspace_put. */
struct dict_entry *keyspace_set(struct client *client, uint32_t index, struct dict_entry *entry, struct value *value);

/* The bytes of the string in `entry` (NULL: a new key under the name in argument `index`), made at least `length` bytes
 * long, zero-padded; what changes them follows at once. NULL: the error is replied, nothing has changed. */
uint8_t *keyspace_writable(struct client *client, uint32_t index, struct dict_entry *entry, size_t length);
/* The same for who may change nothing in the end: the caller tells of the change, unless the key is new. */
uint8_t *keyspace_reserve(struct client *client, uint32_t index, struct dict_entry *entry, size_t length);
/* Whether these, and a copy of `more` bytes into it, are too much for one slice: exclusive_run_change is for that, in whose body they
 * rest. */
bool keyspace_writes_much(const struct dict_entry *entry, size_t length, size_t more);
void keyspace_copy(struct client *client, uint8_t *to, const uint8_t *from, size_t bytes);

/* A string made of argument `index`. NULL: memory is exhausted; nothing is replied. */
struct value *keyspace_string(struct client *client, uint32_t index);

void reply_view(struct client *client, const struct string_view *view);
void reply_string(struct client *client, const struct value *value);
void reply_popped(struct client *client, struct list *list, bool from_head); /* takes the element out */
void reply_out_of_memory(struct client *client); /* the command may have made a part of its changes: that is noted */
void reply_no_such_key(struct client *client);
void reply_not_an_integer(struct client *client);
void reply_empty_bulk(struct client *client);
/* Records that a key expires at this Unix time, whatever the command says of it. */
void keyspace_propagate_expiry(struct client *client, uint32_t index, int64_t at_ms);

/* Strict as INCR's; false: the error is replied. */
bool integer_argument(struct client *client, uint32_t index, int64_t *value);
/* false: "ERR value is not a valid float" is replied. */
bool float_argument(struct client *client, uint32_t index, long double *value);

/* MATCH, COUNT and TYPE of the SCAN family, from argument `first` on. */
struct scan_options {
    const struct resp_argument *pattern; /* NULL: all */
    const struct resp_argument *type;    /* NULL: all */
    int64_t count;
};

/* What a step of a scan came upon. They are collected first, since the cursor stands before them in the reply. */
struct scan_found {
    const struct dict_entry **entries; /* valid until the dict changes */
    size_t count, capacity;
    bool failed; /* memory is exhausted */
};

bool scan_cursor_argument(struct client *client, uint32_t index, uint64_t *cursor); /* false: the error is replied */
bool scan_options_parse(struct client *client, uint32_t first, bool with_type, struct scan_options *options);
bool scan_matches(const struct scan_options *options, const uint8_t *name, size_t length);
/* Looks at about options->count entries, 1,000 at most, collects those whose keys match, and moves the cursor on. False: the
 * error is replied. The caller frees with scan_found_free. */
bool scan_dict(struct client *client, struct dict *dict, const struct scan_options *options, uint64_t *cursor,
               struct scan_found *found);
void scan_found_free(struct scan_found *found);
/* The outer array and the cursor; the array of what was found follows. */
void reply_scan_cursor(struct client *client, uint64_t cursor);

#endif
