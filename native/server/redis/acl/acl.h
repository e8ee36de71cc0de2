/* acl: who may do what: the users, how a connection becomes one of them, and what each may run. */
#ifndef REPLAY_SERVER_ACL_H
#define REPLAY_SERVER_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "server/core/command.h"
#include "server/redis/acl/acl_user.h"

struct client;
struct server;

/* What forbids a request; where selectors differ the greatest is told. */
enum acl_verdict { ACL_ALLOWED, ACL_DENIED_COMMAND, ACL_DENIED_KEY, ACL_DENIED_LOGIN, ACL_DENIED_CHANNEL };

struct acl_log_entry {
    struct acl_log_entry *next;
    uint64_t count;
    enum acl_verdict reason;
    const char *context;        /* "toplevel", "multi", "lua" */
    char *object, *username, *client;
    size_t object_length;
    uint64_t updated_us;
};

struct acl_log {
    struct acl_log_entry *head; /* the latest */
    uint32_t count;
};

struct acl {
    struct server *server;
    struct acl_commands *commands;
    struct acl_user **users;    /* by name, in order of their bytes */
    uint32_t count;
    struct acl_user *standard;  /* "default": of every connection that has not logged in as another */
    char password[512];         /* requirepass as it was last given to that user */
    struct acl_log log;
};

/* With the default user alone. NULL: memory is exhausted. */
struct acl *acl_new(struct server *server);
void acl_free(struct acl *acl);

/* See struct upcalls. */
bool acl_lets_strangers_in(const struct server *server);
/* Who came while a password was asked for need not give it any more; a new one asks only those who come later. */
void acl_standard_changed(struct acl *acl);
void acl_welcome(struct client *client);
const char *acl_refusal(struct client *client, const struct command_entry *entry, char *message, size_t size);
bool acl_may_become_allowed(const struct client *client, const struct command_entry *entry, uint32_t argc,
                            const struct resp_argument *argv);
bool acl_may_access_key(const struct client *client, const struct resp_argument *key, uint32_t access);

/* What rules are read with, by the settings now. */
struct acl_terms acl_terms(const struct acl *acl);
/* After a change of settings: gives a new requirepass to the default user. */
void acl_follow_config(struct acl *acl);

/* Closes the user's subscribers to channels that it may no longer listen to; `asking` after its reply. */
void acl_close_subscribers(struct acl *acl, const struct acl_user *user, struct client *asking);
struct acl_user *acl_find(const struct acl *acl, const void *name, size_t length);
/* Makes or changes a user by these rules, by all or by none. False: `why` is told. */
bool acl_set_user(struct acl *acl, const char *name, size_t length, const struct resp_argument *rules, uint32_t count,
                  struct text *why);
/* Removes a user that is not the default one and closes its connections, that of `asking` after its reply. */
bool acl_remove_user(struct acl *acl, const void *name, size_t length, struct client *asking);

/* Makes the client the user of that name (NULL: the default one), if the password is theirs. False is noted in the log. */
bool acl_log_in(struct client *client, const struct resp_argument *name, const struct resp_argument *password);

/* Whether the user may run this; `at` is the argument that is in the way. */
enum acl_verdict acl_check(const struct acl *acl, const struct acl_user *user, const struct acl_item *item,
                           uint32_t argc, const struct resp_argument *argv, uint32_t *at);
/* Whether the rights by which the client may run its request let it read every key: for commands that find keys which
 * their arguments do not name. */
bool acl_may_read_every_key(const struct client *client);
bool acl_allows_channel(const struct acl_selector *selector, const struct resp_argument *channel, bool is_pattern);
/* As acl_refusal, for scripts and transactions, which have words of their own. */
enum acl_verdict acl_denial(struct client *client, const struct command_entry *entry);
/* Who forbids what, in the words of scripts and transactions. */
const char *acl_verdict_sentence(enum acl_verdict verdict);

/* acl_log.c */
void acl_log_add(struct client *client, enum acl_verdict reason, const char *context, const void *object,
                 size_t object_length, const char *username);
void acl_log_clear(struct acl_log *log);
void acl_log_trim(struct acl_log *log, uint64_t most);
void acl_log_reply(struct client *client, uint64_t most);

/* acl_file.c: false: `why` is told, and the users are as they were. */
bool acl_load(struct acl *acl, const char *path, struct client *asking, struct text *why);
bool acl_save(const struct acl *acl, const char *path, struct text *why);

#endif
