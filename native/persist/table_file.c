#include "persist/table_file.h"

#include <string.h>

#include "base/clock.h"
#include "persist/snapshot_file.h"
#include "persist/snapshot_reader.h"

struct snapshot *table_file_save(struct table *table, const char *folder, const char *name, struct error *error) {
    if (!snapshot_name_is_valid(name)) {
        error_set(error, ERROR_GENERIC,
                  "expected the name of a file that begins with a letter, a digit or _, got '%.80s'", name);
        return NULL;
    }
    struct snapshot_options options = {.folder = folder, .name = name};
    return snapshot_begin(&options, &table, 1, error);
}

int table_file_step(struct snapshot *snapshot, uint64_t budget_us, struct error *error) {
    switch (snapshot_step(snapshot, clock_monotonic_us() + budget_us, error)) {
    case SNAPSHOT_DONE: return 0;
    case SNAPSHOT_COPYING: return 1;
    case SNAPSHOT_WRITING: return 2;
    default: return -1;
    }
}

struct table *table_file_load(const char *path, const char *name, struct error *error) {
    struct snapshot_content content;
    if (snapshot_read_file(path, &content, NULL, error)) return NULL;
    struct table *found = NULL;
    for (uint32_t i = 0; i < content.count && !found; i++) {
        if (strcmp(table_config(content.tables[i])->name, name)) continue;
        found = content.tables[i];
        content.tables[i] = content.tables[--content.count];
    }
    if (found && *table_config(found)->steps_of) {
        error_set(error, ERROR_BADSCHEMA,
                  "the snapshot %s has table '%s' with the steps of table '%s'; a server reads both", path, name,
                  table_config(found)->steps_of);
        table_free(found);
        found = NULL;
    } else if (!found)
        error_set(error, ERROR_NOTABLE, "the snapshot %s has no table '%s'", path, name);
    snapshot_content_free(&content);
    return found;
}
