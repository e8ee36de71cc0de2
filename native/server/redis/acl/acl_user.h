/* acl_user: one user's passwords and rights, and the rules (those of ACL SETUSER) that change them. */
#ifndef REPLAY_SERVER_ACL_USER_H
#define REPLAY_SERVER_ACL_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"
#include "base/text.h"
#include "server/redis/acl/acl_commands.h"

enum acl_selector_flags {
    ACL_ALL_KEYS = 1 << 0,
    ACL_ALL_CHANNELS = 1 << 1,
    ACL_ALL_COMMANDS = 1 << 2,
};

enum acl_user_flags {
    ACL_USER_ON = 1 << 0,
    ACL_USER_OFF = 1 << 1,
    ACL_USER_NO_PASSWORD = 1 << 2,
    ACL_USER_SKIP_SANITIZE = 1 << 3, /* of payloads of RESTORE: kept and shown, nothing depends on them */
    ACL_USER_SANITIZE = 1 << 4,
};

struct acl_pattern {
    char *bytes;
    size_t length;
    uint32_t access; /* of keys: of enum key_access */
};

struct acl_patterns {
    struct acl_pattern *items;
    uint32_t count;
};

/* A first argument with which a command may be run that may not be run otherwise. */
struct acl_first {
    uint32_t command; /* its number */
    char *word;
};

/* A set of rights: a command runs where one selector of the user's allows all of it. */
struct acl_selector {
    uint32_t flags;
    uint64_t allowed[ACL_COMMANDS / 64];
    struct acl_patterns keys, channels;
    struct acl_first *firsts;
    uint32_t first_count;
};

struct acl_user {
    char *name;
    size_t name_length;
    uint32_t flags;
    bool unrestricted; /* the first selector allows everything */
    char (*hashes)[SHA256_HEX_BYTES + 1];
    uint32_t hash_count;
    struct acl_selector **selectors; /* the first is the user's own */
    uint32_t selector_count;
};

/* What rules are read with. */
struct acl_terms {
    const struct acl_commands *commands;
    bool all_channels; /* for new users and selectors */
};

enum acl_rule {
    ACL_RULE_FINE,
    ACL_RULE_UNKNOWN,       /* command or category */
    ACL_RULE_SYNTAX,
    ACL_RULE_AFTER_ALL_KEYS,
    ACL_RULE_AFTER_ALL_CHANNELS,
    ACL_RULE_NO_SUCH_PASSWORD,
    ACL_RULE_BAD_HASH,
    ACL_RULE_FIRST_OF_SUBCOMMAND,
    ACL_RULE_NO_MEMORY,
};

const char *acl_rule_sentence(enum acl_rule rule);

/* Without rights, off. NULL: memory is exhausted. */
struct acl_user *acl_user_new(const struct acl_terms *terms, const char *name, size_t length);
void acl_user_free(struct acl_user *user);
/* A user of the same name and rights. NULL: memory is exhausted. */
struct acl_user *acl_user_copy(const struct acl_user *user);
/* Gives `to` what `from` has, but for the name; `from` is freed. */
void acl_user_take(struct acl_user *to, struct acl_user *from);

/* Applies one rule. Where it fails the user may have changed in part: apply rules to a copy. */
enum acl_rule acl_user_apply(const struct acl_terms *terms, struct acl_user *user, const char *rule, size_t length);
enum acl_rule acl_selector_apply(const struct acl_commands *commands, struct acl_selector *selector, const char *rule,
                                 size_t length);

bool acl_selector_has(const struct acl_selector *selector, uint32_t command);
bool acl_user_knows(const struct acl_user *user, const void *password, size_t length);
/* Names hold neither white space nor zero bytes, nor do patterns. */
bool acl_name_is_fine(const char *name, size_t length);

/* As rules that make it again: acl_describe.c. */
void acl_describe_commands(const struct acl_commands *commands, const struct acl_selector *selector, struct text *out);
void acl_describe_keys(const struct acl_selector *selector, struct text *out);
void acl_describe_channels(const struct acl_selector *selector, struct text *out);
void acl_describe_user(const struct acl_commands *commands, const struct acl_user *user, struct text *out);

#endif
