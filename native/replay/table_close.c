/* table_close: nothing enters a closed table, and samples that wait for items are told that none will. */
#include "replay/table_state.h"

#include <string.h>

int table_close(struct table *table, const char *reason, size_t length, struct error *error) {
    if (length > TABLE_MAX_REASON) {
        return error_set(error, ERROR_LIMIT, "expected a reason of at most %d bytes, got %zu", TABLE_MAX_REASON,
                         length);
    }
    for (size_t i = 0; i < length; i++) {
        if ((uint8_t)reason[i] < ' ' || reason[i] == 127) {
            return error_set(error, ERROR_GENERIC,
                             "expected a reason in one line without control characters, got byte %u at index %zu",
                             (uint8_t)reason[i], i);
        }
    }
    memcpy(table->closed_reason, reason, length);
    table->closed_reason[length] = 0;
    table->closed = true;
    table_journal_tell(table, TABLE_JOURNAL_CLOSE, reason, length);
    return 0;
}

void table_open(struct table *table) {
    table->closed = false;
    table->closed_reason[0] = 0;
    table_journal_tell(table, TABLE_JOURNAL_OPEN, NULL, 0);
}

static int refuse(const struct table *table, const char *but, const char *why, struct error *error) {
    const char *reason = table->closed_reason;
    return error_set(error, ERROR_CLOSED, "table '%s' is closed%s%s; %s%s%s", table->config.name, *reason ? ": " : "",
                     reason, but, *why ? ": " : "", why);
}

int table_check_open(const struct table *table, struct error *error) {
    return table->closed ? refuse(table, "nothing is added to it until it is opened", "", error) : 0;
}

void table_refuse_wait(const struct table *table, struct error *error) {
    if (!table->closed || table->entering || error->code != ERROR_TIMEOUT) return;
    char why[sizeof error->message];
    memcpy(why, error->message, sizeof why);
    refuse(table, "no more items are added for a sample that would wait", why, error);
}
