/* library_set: libraries by name, and all of their functions by name, in whatever case that is written. */
#include <ctype.h>
#include <string.h>

#include "base/list.h"
#include "base/memory.h"
#include "server/redis/script/library.h"

struct lower {
    char most[256]; /* names that are not longer */
    char *text;
    size_t length;
    uint32_t hash;
};

/* For lower_free. False: memory is exhausted. */
static bool lower_case(struct lower *lower, const void *name, size_t length) {
    lower->text = length <= sizeof lower->most ? lower->most : memory_alloc(length);
    if (!lower->text) return false;
    for (size_t i = 0; i < length; i++) lower->text[i] = (char)tolower(((const uint8_t *)name)[i]);
    lower->length = length;
    lower->hash = dict_hash(lower->text, length);
    return true;
}

static void lower_free(struct lower *lower) {
    if (lower->text != lower->most) memory_free(lower->text);
}

static struct dict_entry *find_library(struct library_set *set, const void *name, size_t length) {
    return dict_find(&set->libraries, dict_hash(name, length), name, length);
}

static struct dict_entry *find_function(struct library_set *set, const void *name, size_t length) {
    struct lower lower;
    if (!lower_case(&lower, name, length)) return NULL;
    struct dict_entry *entry = dict_find(&set->functions, lower.hash, lower.text, lower.length);
    lower_free(&lower);
    return entry;
}

struct library *library_set_find(struct library_set *set, const void *name, size_t length) {
    const struct dict_entry *entry = find_library(set, name, length);
    return entry ? entry->value : NULL;
}

struct function *library_set_function(struct library_set *set, const void *name, size_t length) {
    const struct dict_entry *entry = find_function(set, name, length);
    return entry ? entry->value : NULL;
}

static bool is_named_as(const struct library *one, const struct library *other) {
    return one->name_length == other->name_length && memcmp(one->name, other->name, one->name_length) == 0;
}

int library_set_check(struct library_set *set, const struct library *library, struct library_set *instead,
                      struct error *error) {
    for (const struct function *function = library->functions; function; function = function->next) {
        const struct function *other = library_set_function(set, function->name, function->name_length);
        if (!other || is_named_as(other->library, library)) continue;
        if (instead && library_set_find(instead, other->library->name, other->library->name_length)) continue;
        return error_set(error, ERROR_GENERIC, "Function %.*s already exists", 200, function->name);
    }
    return 0;
}

static void drop_entry(struct dict *dict, struct dict_entry *entry) {
    if (!entry) return;
    dict_unlink(dict, entry);
    dict_entry_free(entry);
}

static bool add_function(struct library_set *set, struct function *function) {
    struct lower lower;
    if (!lower_case(&lower, function->name, function->name_length)) return false;
    struct dict_entry *entry = dict_add(&set->functions, lower.hash, lower.text, lower.length);
    lower_free(&lower);
    if (entry) entry->value = function;
    return entry != NULL;
}

static size_t bytes_of(const struct library *library) {
    size_t bytes = sizeof *library + library->name_length + library->code->length;
    for (const struct function *function = library->functions; function; function = function->next)
        bytes += sizeof *function + function->name_length + function->description_length;
    return bytes;
}

static void drop_functions(struct library_set *set, const struct library *library) {
    for (const struct function *function = library->functions; function; function = function->next) {
        struct dict_entry *entry = find_function(set, function->name, function->name_length);
        if (entry && entry->value == function) drop_entry(&set->functions, entry);
    }
}

int library_set_add(struct library_set *set, struct library *library, struct error *error) {
    struct dict_entry *entry =
        dict_add(&set->libraries, dict_hash(library->name, library->name_length), library->name, library->name_length);
    bool added = entry != NULL;
    for (struct function *function = library->functions; function && added; function = function->next)
        added = add_function(set, function);
    if (!added) {
        drop_functions(set, library);
        drop_entry(&set->libraries, entry);
        return error_set(error, ERROR_GENERIC, "no memory for a library");
    }
    entry->value = library;
    LIST_APPEND(set->oldest, set->newest, library, next, previous);
    set->bytes += bytes_of(library);
    return 0;
}

void library_set_remove(struct library_set *set, struct library *library) {
    drop_functions(set, library);
    drop_entry(&set->libraries, find_library(set, library->name, library->name_length));
    LIST_REMOVE(set->oldest, set->newest, library, next, previous);
    set->bytes -= bytes_of(library);
}

void library_set_clear(struct library_set *set, struct script_engine *engine) {
    while (set->oldest) {
        struct library *library = set->oldest;
        library_set_remove(set, library);
        library_free(engine, library);
    }
    dict_clear(&set->libraries, NULL, NULL);
    dict_clear(&set->functions, NULL, NULL);
}
