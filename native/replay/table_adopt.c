/* table_adopt: settings that are in force go on over those of a snapshot. */
#include "replay/table_adopt.h"

#include <string.h>

#include "base/memory.h"

static const char *flag(bool value) {
    return value ? "True" : "False";
}

static bool differs_in_what_is_kept(const struct table_config *left, const struct table_config *right) {
    return left->durable != right->durable || left->log_priorities != right->log_priorities;
}

/* Whether the settings of `given` can be put over those of a table: what a live table cannot change must not differ.
 * `*differ`: something else does. */
static int compare_but_settings(const struct table *table, const struct table_config *given, bool *differ,
                                struct error *error) {
    struct table_config *mixed = memory_alloc(sizeof *mixed);
    bool same_but_settings = false, same = false;
    if (!mixed) return error_set(error, ERROR_GENERIC, "out of memory for a table's spec");
    *mixed = *table_config(table);
    table_config_take_changeable(mixed, given);
    mixed->seed = given->seed; /* of a table made anew; this one goes on with its random state */
    int failed = table_config_compare(mixed, given, &same_but_settings, error);
    mixed->seed = table_config(table)->seed;
    failed = failed || table_config_compare(mixed, table_config(table), &same, error);
    memory_free(mixed);
    if (failed) return -1;
    *differ = !same;
    if (!same_but_settings && differs_in_what_is_kept(table_config(table), given))
        return error_set(error, ERROR_EXISTS,
                         "table '%s' has durable=%s and log_priorities=%s, and was given durable=%s and "
                         "log_priorities=%s, which a live table cannot change; give it the former, or drop it first",
                         given->name, flag(table_config(table)->durable), flag(table_config(table)->log_priorities),
                         flag(given->durable), flag(given->log_priorities));
    return same_but_settings ? 0
                             : error_set(error, ERROR_EXISTS,
                                         "table '%s' of the snapshot differs from the one here in more than can be "
                                         "changed in a live table; give it the same signature and capacity, or drop it "
                                         "first",
                                         given->name);
}

int table_adopt(struct table *table, const struct table_config *given, bool *changed, struct error *error) {
    uint8_t *settings;
    size_t length;
    if (compare_but_settings(table, given, changed, error)) return -1;
    if (!*changed) return 0;
    if (table_config_write_changeable(given, &settings, &length, error)) return -1;
    int failed = table_begin_configure(table, settings, length, error);
    memory_free(settings);
    return failed;
}
