#include "server/redis/acl/acl_user.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

#define FUTURE (ACL_COMMANDS - 1) /* the bit of commands to come: only +@all sets it */

const char *acl_rule_sentence(enum acl_rule rule) {
    switch (rule) {
    case ACL_RULE_FINE: break;
    case ACL_RULE_UNKNOWN: return "Unknown command or category name in ACL";
    case ACL_RULE_SYNTAX: return "Syntax error";
    case ACL_RULE_AFTER_ALL_KEYS:
        return "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any "
               "effect. "
               "Try 'resetkeys' to start with an empty list of patterns";
    case ACL_RULE_AFTER_ALL_CHANNELS:
        return "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any "
               "effect. Try 'resetchannels' to start with an empty list of channels";
    case ACL_RULE_NO_SUCH_PASSWORD: return "The password you are trying to remove from the user does not exist";
    case ACL_RULE_BAD_HASH:
        return "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters";
    case ACL_RULE_FIRST_OF_SUBCOMMAND: return "Allowing first-arg of a subcommand is not supported";
    case ACL_RULE_NO_MEMORY: return "no memory";
    }
    return "Wrong format";
}

bool acl_name_is_fine(const char *name, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (name[i] == '\0' || isspace((unsigned char)name[i])) return false;
    return true;
}

static bool is_word(const char *rule, size_t length, const char *word) {
    return strlen(word) == length && strncasecmp(rule, word, length) == 0;
}

static char *copy_bytes(const char *bytes, size_t length) {
    char *copy = memory_alloc(length + 1);
    if (!copy) return NULL;
    if (length > 0) memcpy(copy, bytes, length);
    copy[length] = '\0';
    return copy;
}

/* Room for one item more in an array of `count`; NULL: memory is exhausted, the array stands. */
static void *grown(void *items, uint32_t count, size_t size) {
    return memory_realloc(items, (count + 1) * size);
}

/* ---- patterns ---------------------------------------------------------------------------------------- */

static void patterns_clear(struct acl_patterns *patterns) {
    for (uint32_t i = 0; i < patterns->count; i++) memory_free(patterns->items[i].bytes);
    memory_free(patterns->items);
    *patterns = (struct acl_patterns){0};
}

/* One that is there is not added again, but gains access. */
static enum acl_rule patterns_add(struct acl_patterns *patterns, const char *bytes, size_t length, uint32_t access) {
    if (!acl_name_is_fine(bytes, length)) return ACL_RULE_SYNTAX;
    for (uint32_t i = 0; i < patterns->count; i++) {
        struct acl_pattern *pattern = &patterns->items[i];
        if (pattern->length != length || memcmp(pattern->bytes, bytes, length) != 0) continue;
        pattern->access |= access;
        return ACL_RULE_FINE;
    }
    struct acl_pattern *items = grown(patterns->items, patterns->count, sizeof *items);
    if (!items) return ACL_RULE_NO_MEMORY;
    patterns->items = items;
    char *copy = copy_bytes(bytes, length);
    if (!copy) return ACL_RULE_NO_MEMORY;
    items[patterns->count++] = (struct acl_pattern){copy, length, access};
    return ACL_RULE_FINE;
}

/* ---- commands of a selector -------------------------------------------------------------------------- */

bool acl_selector_has(const struct acl_selector *selector, uint32_t command) {
    return selector->allowed[command / 64] >> (command % 64) & 1;
}

static void set_bit(struct acl_selector *selector, uint32_t command, bool allowed) {
    uint64_t bit = (uint64_t)1 << (command % 64);
    if (allowed) {
        selector->allowed[command / 64] |= bit;
    } else {
        selector->allowed[command / 64] &= ~bit;
        selector->flags &= ~(uint32_t)ACL_ALL_COMMANDS;
    }
}

static void forget_firsts(struct acl_selector *selector, uint32_t command) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < selector->first_count; i++)
        if (command == FUTURE || selector->firsts[i].command == command)
            memory_free(selector->firsts[i].word);
        else
            selector->firsts[kept++] = selector->firsts[i];
    selector->first_count = kept;
}

/* With a container go its subcommands. */
static void set_command(const struct acl_commands *commands, struct acl_selector *selector, const struct acl_item *item,
                        bool allowed) {
    uint32_t number = (uint32_t)(item - commands->items);
    forget_firsts(selector, number);
    for (uint32_t i = 0; i <= item->subcommands; i++) set_bit(selector, number + i, allowed);
}

static void set_all_commands(struct acl_selector *selector, bool allowed) {
    memset(selector->allowed, allowed ? 0xff : 0, sizeof selector->allowed);
    selector->flags = allowed ? selector->flags | ACL_ALL_COMMANDS : selector->flags & ~(uint32_t)ACL_ALL_COMMANDS;
    forget_firsts(selector, FUTURE);
}

static enum acl_rule set_category(const struct acl_commands *commands, struct acl_selector *selector, const char *name,
                                  size_t length, bool allowed) {
    uint32_t category = acl_category_named(name, length);
    if (category == 0) return ACL_RULE_UNKNOWN;
    for (uint32_t i = 0; i < commands->count; i++)
        if (commands->items[i].categories & category) set_command(commands, selector, &commands->items[i], allowed);
    return ACL_RULE_FINE;
}

static enum acl_rule add_first(struct acl_selector *selector, uint32_t command, const char *word, size_t length) {
    for (uint32_t i = 0; i < selector->first_count; i++)
        if (selector->firsts[i].command == command && is_word(word, length, selector->firsts[i].word))
            return ACL_RULE_FINE;
    struct acl_first *firsts = grown(selector->firsts, selector->first_count, sizeof *firsts);
    if (!firsts) return ACL_RULE_NO_MEMORY;
    selector->firsts = firsts;
    char *copy = copy_bytes(word, length);
    if (!copy) return ACL_RULE_NO_MEMORY;
    firsts[selector->first_count++] = (struct acl_first){command, copy};
    return ACL_RULE_FINE;
}

static enum acl_rule allow_command(const struct acl_commands *commands, struct acl_selector *selector, const char *name,
                                   size_t length) {
    const char *mark = memrchr(name, '|', length);
    const struct acl_item *item = acl_commands_find(commands, name, mark ? (size_t)(mark - name) : length);
    if (!item) return ACL_RULE_UNKNOWN;
    if (mark) {
        size_t word = length - (size_t)(mark - name) - 1;
        if (item->is_subcommand) return ACL_RULE_FIRST_OF_SUBCOMMAND;
        if (word == 0) return ACL_RULE_SYNTAX;
        if (item->subcommands == 0) return add_first(selector, (uint32_t)(item - commands->items), mark + 1, word);
        item = acl_commands_find(commands, name, length);
        if (!item) return ACL_RULE_UNKNOWN;
    }
    set_command(commands, selector, item, true);
    return ACL_RULE_FINE;
}

static enum acl_rule deny_command(const struct acl_commands *commands, struct acl_selector *selector, const char *name,
                                  size_t length) {
    const struct acl_item *item = acl_commands_find(commands, name, length);
    if (!item) return ACL_RULE_UNKNOWN;
    set_command(commands, selector, item, false);
    return ACL_RULE_FINE;
}

/* "~pattern", "%R~pattern", "%W~pattern", "%RW~pattern" */
static enum acl_rule add_keys(struct acl_selector *selector, const char *rule, size_t length) {
    if (selector->flags & ACL_ALL_KEYS) return ACL_RULE_AFTER_ALL_KEYS;
    uint32_t access = rule[0] == '~' ? KEY_READ | KEY_WRITE : 0;
    size_t at = 1;
    while (rule[0] == '%' && at < length) {
        int letter = toupper((unsigned char)rule[at++]);
        if (letter == '~') break;
        uint32_t right = letter == 'R' ? KEY_READ : letter == 'W' ? KEY_WRITE : 0;
        if (right == 0 || (access & right)) return ACL_RULE_SYNTAX;
        access |= right;
    }
    if (access == 0) return ACL_RULE_SYNTAX;
    return patterns_add(&selector->keys, rule + at, length - at, access);
}

static enum acl_rule add_channels(struct acl_selector *selector, const char *rule, size_t length) {
    if (selector->flags & ACL_ALL_CHANNELS) return ACL_RULE_AFTER_ALL_CHANNELS;
    return patterns_add(&selector->channels, rule + 1, length - 1, 0);
}

static void set_scope(struct acl_selector *selector, struct acl_patterns *patterns, uint32_t flag, bool all) {
    selector->flags = all ? selector->flags | flag : selector->flags & ~flag;
    patterns_clear(patterns);
}

enum acl_rule acl_selector_apply(const struct acl_commands *commands, struct acl_selector *selector, const char *rule,
                                 size_t length) {
    if (length == 0) return ACL_RULE_SYNTAX;
    if (is_word(rule, length, "allkeys") || is_word(rule, length, "~*"))
        set_scope(selector, &selector->keys, ACL_ALL_KEYS, true);
    else if (is_word(rule, length, "resetkeys"))
        set_scope(selector, &selector->keys, ACL_ALL_KEYS, false);
    else if (is_word(rule, length, "allchannels") || is_word(rule, length, "&*"))
        set_scope(selector, &selector->channels, ACL_ALL_CHANNELS, true);
    else if (is_word(rule, length, "resetchannels"))
        set_scope(selector, &selector->channels, ACL_ALL_CHANNELS, false);
    else if (is_word(rule, length, "allcommands") || is_word(rule, length, "+@all"))
        set_all_commands(selector, true);
    else if (is_word(rule, length, "nocommands") || is_word(rule, length, "-@all"))
        set_all_commands(selector, false);
    else if (rule[0] == '~' || rule[0] == '%')
        return add_keys(selector, rule, length);
    else if (rule[0] == '&')
        return add_channels(selector, rule, length);
    else if ((rule[0] == '+' || rule[0] == '-') && length > 1 && rule[1] == '@')
        return set_category(commands, selector, rule + 2, length - 2, rule[0] == '+');
    else if (rule[0] == '+')
        return allow_command(commands, selector, rule + 1, length - 1);
    else if (rule[0] == '-')
        return deny_command(commands, selector, rule + 1, length - 1);
    else
        return ACL_RULE_SYNTAX;
    return ACL_RULE_FINE;
}

/* ---- selectors --------------------------------------------------------------------------------------- */

static void selector_free(struct acl_selector *selector) {
    if (!selector) return;
    patterns_clear(&selector->keys);
    patterns_clear(&selector->channels);
    forget_firsts(selector, FUTURE);
    memory_free(selector->firsts);
    memory_free(selector);
}

static struct acl_selector *selector_new(const struct acl_terms *terms) {
    struct acl_selector *selector = memory_calloc(1, sizeof *selector);
    if (selector && terms->all_channels) selector->flags |= ACL_ALL_CHANNELS;
    return selector;
}

static bool patterns_copy(struct acl_patterns *to, const struct acl_patterns *from) {
    for (uint32_t i = 0; i < from->count; i++) {
        const struct acl_pattern *pattern = &from->items[i];
        if (patterns_add(to, pattern->bytes, pattern->length, pattern->access) != ACL_RULE_FINE) return false;
    }
    return true;
}

static struct acl_selector *selector_copy(const struct acl_selector *selector) {
    struct acl_selector *copy = memory_calloc(1, sizeof *copy);
    if (!copy) return NULL;
    copy->flags = selector->flags;
    memcpy(copy->allowed, selector->allowed, sizeof copy->allowed);
    bool whole = patterns_copy(&copy->keys, &selector->keys) && patterns_copy(&copy->channels, &selector->channels);
    for (uint32_t i = 0; whole && i < selector->first_count; i++) {
        const struct acl_first *first = &selector->firsts[i];
        whole = add_first(copy, first->command, first->word, strlen(first->word)) == ACL_RULE_FINE;
    }
    if (whole) return copy;
    selector_free(copy);
    return NULL;
}

/* Takes the selector, which may be NULL for want of memory. */
static enum acl_rule add_selector(struct acl_user *user, struct acl_selector *selector) {
    struct acl_selector **selectors = grown(user->selectors, user->selector_count, sizeof *selectors);
    if (selectors) user->selectors = selectors;
    if (!selectors || !selector) {
        selector_free(selector);
        return ACL_RULE_NO_MEMORY;
    }
    selectors[user->selector_count++] = selector;
    return ACL_RULE_FINE;
}

/* "(rule rule …)" */
static enum acl_rule parse_selector(const struct acl_terms *terms, struct acl_user *user, const char *rules,
                                    size_t length) {
    struct acl_selector *selector = selector_new(terms);
    enum acl_rule result = selector ? ACL_RULE_FINE : ACL_RULE_NO_MEMORY;
    const char *at = rules + 1, *end = rules + length - 1;
    while (result == ACL_RULE_FINE && at < end) {
        const char *begin = at;
        while (at < end && !isspace((unsigned char)*at)) at++;
        if (at > begin) result = acl_selector_apply(terms->commands, selector, begin, (size_t)(at - begin));
        while (at < end && isspace((unsigned char)*at)) at++;
    }
    if (result == ACL_RULE_FINE) return add_selector(user, selector);
    selector_free(selector);
    return result;
}

static void clear_selectors(struct acl_user *user) {
    while (user->selector_count > 1) selector_free(user->selectors[--user->selector_count]);
}

/* ---- passwords --------------------------------------------------------------------------------------- */

static bool is_hash(const char *text, size_t length) {
    if (length != SHA256_HEX_BYTES) return false;
    for (size_t i = 0; i < length; i++)
        if (!(text[i] >= '0' && text[i] <= '9') && !(text[i] >= 'a' && text[i] <= 'f')) return false;
    return true;
}

static void clear_passwords(struct acl_user *user) {
    memory_free(user->hashes);
    user->hashes = NULL;
    user->hash_count = 0;
    user->flags &= ~(uint32_t)ACL_USER_NO_PASSWORD;
}

/* ">password" and "#hash" add, "<password" and "!hash" remove. */
static enum acl_rule change_password(struct acl_user *user, const char *rule, size_t length) {
    char hash[SHA256_HEX_BYTES + 1] = "";
    if (rule[0] == '>' || rule[0] == '<')
        sha256_hex(rule + 1, length - 1, hash);
    else if (is_hash(rule + 1, length - 1))
        memcpy(hash, rule + 1, SHA256_HEX_BYTES);
    else
        return ACL_RULE_BAD_HASH;
    uint32_t at = 0;
    while (at < user->hash_count && strcmp(user->hashes[at], hash) != 0) at++;
    if (rule[0] == '<' || rule[0] == '!') {
        if (at == user->hash_count) return ACL_RULE_NO_SUCH_PASSWORD;
        memmove(user->hashes[at], user->hashes[at + 1], (user->hash_count - at - 1) * sizeof *user->hashes);
        user->hash_count--;
        return ACL_RULE_FINE;
    }
    if (at == user->hash_count) {
        char (*hashes)[SHA256_HEX_BYTES + 1] = grown(user->hashes, user->hash_count, sizeof *hashes);
        if (!hashes) return ACL_RULE_NO_MEMORY;
        user->hashes = hashes;
        memcpy(hashes[user->hash_count++], hash, sizeof hash);
    }
    user->flags &= ~(uint32_t)ACL_USER_NO_PASSWORD;
    return ACL_RULE_FINE;
}

bool acl_user_knows(const struct acl_user *user, const void *password, size_t length) {
    char hash[SHA256_HEX_BYTES + 1];
    sha256_hex(password, length, hash);
    bool known = false;
    for (uint32_t i = 0; i < user->hash_count; i++) {
        unsigned difference = 0; /* takes as long whatever they have in common */
        for (size_t j = 0; j < SHA256_HEX_BYTES; j++) difference |= (unsigned)(user->hashes[i][j] ^ hash[j]);
        known |= difference == 0;
    }
    return known;
}

/* ---- users ------------------------------------------------------------------------------------------- */

static void settle(struct acl_user *user) {
    const uint32_t all = ACL_ALL_KEYS | ACL_ALL_CHANNELS | ACL_ALL_COMMANDS;
    user->unrestricted = (user->selectors[0]->flags & all) == all;
}

static void switch_flag(struct acl_user *user, uint32_t on, uint32_t off) {
    user->flags = (user->flags & ~off) | on;
}

static void reset(const struct acl_terms *terms, struct acl_user *user) {
    struct acl_selector *own = user->selectors[0];
    clear_passwords(user);
    set_scope(own, &own->keys, ACL_ALL_KEYS, false);
    set_scope(own, &own->channels, ACL_ALL_CHANNELS, terms->all_channels);
    set_all_commands(own, false);
    clear_selectors(user);
    switch_flag(user, ACL_USER_OFF, ACL_USER_ON);
    switch_flag(user, ACL_USER_SANITIZE, ACL_USER_SKIP_SANITIZE);
}

enum acl_rule acl_user_apply(const struct acl_terms *terms, struct acl_user *user, const char *rule, size_t length) {
    enum acl_rule result = ACL_RULE_FINE;
    if (length == 0) return result;
    if (is_word(rule, length, "on")) {
        switch_flag(user, ACL_USER_ON, ACL_USER_OFF);
    } else if (is_word(rule, length, "off")) {
        switch_flag(user, ACL_USER_OFF, ACL_USER_ON);
    } else if (is_word(rule, length, "skip-sanitize-payload")) {
        switch_flag(user, ACL_USER_SKIP_SANITIZE, ACL_USER_SANITIZE);
    } else if (is_word(rule, length, "sanitize-payload")) {
        switch_flag(user, ACL_USER_SANITIZE, ACL_USER_SKIP_SANITIZE);
    } else if (is_word(rule, length, "nopass")) {
        clear_passwords(user);
        user->flags |= ACL_USER_NO_PASSWORD;
    } else if (is_word(rule, length, "resetpass")) {
        clear_passwords(user);
    } else if (strchr("><#!", rule[0])) {
        result = change_password(user, rule, length);
    } else if (rule[0] == '(' && rule[length - 1] == ')') {
        result = parse_selector(terms, user, rule, length);
    } else if (is_word(rule, length, "clearselectors")) {
        clear_selectors(user);
    } else if (is_word(rule, length, "reset")) {
        reset(terms, user);
    } else {
        result = acl_selector_apply(terms->commands, user->selectors[0], rule, length);
    }
    settle(user);
    return result;
}

struct acl_user *acl_user_new(const struct acl_terms *terms, const char *name, size_t length) {
    struct acl_user *user = memory_calloc(1, sizeof *user);
    if (!user) return NULL;
    user->flags = ACL_USER_OFF;
    user->name = copy_bytes(name, length);
    user->name_length = length;
    if (user->name && add_selector(user, selector_new(terms)) == ACL_RULE_FINE) return user;
    acl_user_free(user);
    return NULL;
}

void acl_user_free(struct acl_user *user) {
    if (!user) return;
    for (uint32_t i = 0; i < user->selector_count; i++) selector_free(user->selectors[i]);
    memory_free(user->selectors);
    memory_free(user->hashes);
    memory_free(user->name);
    memory_free(user);
}

struct acl_user *acl_user_copy(const struct acl_user *user) {
    struct acl_user *copy = memory_calloc(1, sizeof *copy);
    if (!copy) return NULL;
    copy->flags = user->flags;
    copy->name_length = user->name_length;
    copy->name = copy_bytes(user->name, user->name_length);
    bool whole = copy->name;
    for (uint32_t i = 0; whole && i < user->selector_count; i++)
        whole = add_selector(copy, selector_copy(user->selectors[i])) == ACL_RULE_FINE;
    if (whole && user->hash_count > 0) {
        copy->hashes = memory_alloc(user->hash_count * sizeof *copy->hashes);
        whole = copy->hashes;
        if (whole) memcpy(copy->hashes, user->hashes, user->hash_count * sizeof *copy->hashes);
        copy->hash_count = user->hash_count;
    }
    if (whole) {
        settle(copy);
        return copy;
    }
    acl_user_free(copy);
    return NULL;
}

void acl_user_take(struct acl_user *to, struct acl_user *from) {
    struct acl_user before = *to;
    char *name = from->name;
    size_t name_length = from->name_length;
    *to = *from;
    to->name = before.name;
    to->name_length = before.name_length;
    *from = before;
    from->name = name;
    from->name_length = name_length;
    acl_user_free(from);
}
