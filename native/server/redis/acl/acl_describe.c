/* acl_describe: users as the rules that would make them again, for ACL LIST, ACL GETUSER and the file. */
#include <limits.h>
#include <string.h>

#include "server/redis/acl/acl_user.h"

/* ---- commands ---------------------------------------------------------------------------------------- */

static void count_category(const struct acl_commands *commands, const struct acl_selector *selector, size_t category,
                           uint32_t *on, uint32_t *off) {
    *on = *off = 0;
    for (uint32_t i = 0; i < commands->count; i++) {
        if (!(commands->items[i].categories >> category & 1)) continue;
        if (acl_selector_has(selector, i))
            (*on)++;
        else
            (*off)++;
    }
}

static void apply_category(const struct acl_commands *commands, struct acl_selector *selector, char sign,
                           size_t category) {
    char rule[32] = {sign, '@'};
    size_t length = strlen(acl_category_name(category));
    memcpy(rule + 2, acl_category_name(category), length);
    acl_selector_apply(commands, selector, rule, length + 2);
}

/* The category that says most of what is left with the fewest commands wrong; ACL_CATEGORIES: none says more than it gets
 * wrong. */
static size_t best_category(const struct acl_commands *commands, const struct acl_selector *left, bool additive,
                            uint32_t applied) {
    size_t best = ACL_CATEGORIES;
    uint32_t fewest = UINT32_MAX, most = 0;
    for (size_t i = 0; i < ACL_CATEGORIES; i++) {
        uint32_t on, off;
        if (applied >> i & 1) continue;
        count_category(commands, left, i, &on, &off);
        uint32_t wrong = additive ? off : on, right = additive ? on : off;
        if (right <= wrong || wrong > fewest || (wrong == fewest && right <= most)) continue;
        best = i;
        fewest = wrong;
        most = right;
    }
    return best;
}

static void describe_firsts(const struct acl_commands *commands, const struct acl_selector *selector, uint32_t command,
                            struct text *out) {
    for (uint32_t i = 0; i < selector->first_count; i++)
        if (selector->firsts[i].command == command)
            text_append(out, " +%s|%s", commands->items[command].name, selector->firsts[i].word);
}

/* All or nothing, then categories as long as they help, then what they leave wrong, command by command. */
void acl_describe_commands(const struct acl_commands *commands, const struct acl_selector *selector, struct text *out) {
    bool additive = !acl_selector_has(selector, ACL_COMMANDS - 1);
    struct acl_selector made = {0}, left = {0}; /* what the rules so far make; what they have not said yet */
    const char *base = additive ? "-@all" : "+@all";
    acl_selector_apply(commands, &made, base, strlen(base));
    memcpy(left.allowed, selector->allowed, sizeof left.allowed);
    text_append(out, "%s", base);
    uint32_t applied = 0;
    for (;;) {
        size_t best = best_category(commands, &left, additive, applied);
        if (best == ACL_CATEGORIES) break;
        apply_category(commands, &made, additive ? '+' : '-', best);
        apply_category(commands, &left, additive ? '-' : '+', best);
        text_append(out, " %c@%s", additive ? '+' : '-', acl_category_name(best));
        applied |= 1u << best;
    }
    for (uint32_t i = 0; i < commands->count; i++) {
        bool allowed = acl_selector_has(selector, i);
        if (allowed != acl_selector_has(&made, i)) {
            char rule[ACL_NAME_BYTES + 1] = {allowed ? '+' : '-'};
            size_t length = strlen(commands->items[i].name);
            memcpy(rule + 1, commands->items[i].name, length);
            acl_selector_apply(commands, &made, rule, length + 1);
            text_append(out, " %s", rule);
        }
        if (!allowed) describe_firsts(commands, selector, i, out);
    }
}

/* ---- keys, channels, users --------------------------------------------------------------------------- */

static void append_pattern(const char *separator, const char *mark, const struct acl_pattern *pattern,
                           struct text *out) {
    text_append(out, "%s%s", separator, mark);
    text_append_bytes(out, pattern->bytes, pattern->length);
}

void acl_describe_keys(const struct acl_selector *selector, struct text *out) {
    if (selector->flags & ACL_ALL_KEYS) text_append(out, "~*");
    for (uint32_t i = 0; i < selector->keys.count; i++) {
        uint32_t access = selector->keys.items[i].access;
        const char *mark = access == KEY_READ ? "%R~" : access == KEY_WRITE ? "%W~" : "~";
        append_pattern(i > 0 ? " " : "", mark, &selector->keys.items[i], out);
    }
}

void acl_describe_channels(const struct acl_selector *selector, struct text *out) {
    if (selector->flags & ACL_ALL_CHANNELS) text_append(out, "&*");
    for (uint32_t i = 0; i < selector->channels.count; i++)
        append_pattern(i > 0 ? " " : "", "&", &selector->channels.items[i], out);
}

static void describe_selector(const struct acl_commands *commands, const struct acl_selector *selector,
                              struct text *out) {
    if ((selector->flags & ACL_ALL_KEYS) || selector->keys.count > 0) {
        acl_describe_keys(selector, out);
        text_append(out, " ");
    }
    if (!(selector->flags & ACL_ALL_CHANNELS)) text_append(out, "resetchannels ");
    if ((selector->flags & ACL_ALL_CHANNELS) || selector->channels.count > 0) {
        acl_describe_channels(selector, out);
        text_append(out, " ");
    }
    acl_describe_commands(commands, selector, out);
}

void acl_describe_user(const struct acl_commands *commands, const struct acl_user *user, struct text *out) {
    if (user->flags & ACL_USER_ON) text_append(out, "on ");
    if (user->flags & ACL_USER_OFF) text_append(out, "off ");
    if (user->flags & ACL_USER_NO_PASSWORD) text_append(out, "nopass ");
    if (user->flags & ACL_USER_SKIP_SANITIZE) text_append(out, "skip-sanitize-payload ");
    if (user->flags & ACL_USER_SANITIZE) text_append(out, "sanitize-payload ");
    for (uint32_t i = 0; i < user->hash_count; i++) text_append(out, "#%s ", user->hashes[i]);
    for (uint32_t i = 0; i < user->selector_count; i++) {
        if (i > 0) text_append(out, " (");
        describe_selector(commands, user->selectors[i], out);
        if (i > 0) text_append(out, ")");
    }
}
