/* script_header: what a script says of itself in its first line: "#!lua flags=no-writes,allow-oom". */
#include <string.h>

#include "server/redis/script/script_engine.h"

const struct script_flag script_flag_names[] = {{"no-writes", SCRIPT_NO_WRITES},
                                                {"allow-oom", SCRIPT_ALLOW_OOM},
                                                {"allow-stale", SCRIPT_ALLOW_STALE},
                                                {"no-cluster", SCRIPT_NO_CLUSTER},
                                                {"allow-cross-slot-keys", SCRIPT_CROSS_SLOTS},
                                                {NULL, 0}};

/* One word of "flags=a,b"; false: there is no such flag. */
static bool add_flag(const char *word, size_t length, uint32_t *flags) {
    for (const struct script_flag *known = script_flag_names; known->name; known++) {
        if (strlen(known->name) != length || memcmp(known->name, word, length) != 0) continue;
        *flags |= known->flag;
        return true;
    }
    return false;
}

static int add_flags(const char *words, size_t length, uint32_t *flags, struct error *error) {
    for (size_t at = 0; at < length;) {
        const char *comma = memchr(words + at, ',', length - at);
        size_t word = comma ? (size_t)(comma - words) - at : length - at;
        if (!add_flag(words + at, word, flags))
            return error_set(error, ERROR_GENERIC, "Unexpected flag in script shebang: %.*s",
                             word < 200 ? (int)word : 200, words + at);
        at += word + 1;
    }
    return 0;
}

int script_take_header(struct script_source *source, uint32_t *flags, struct error *error) {
    if (source->length < 2 || memcmp(source->text, "#!", 2) != 0) return 0;
    const char *line = source->text, *end = memchr(line, '\n', source->length);
    if (!end) return error_set(error, ERROR_GENERIC, "Invalid script shebang");
    *flags |= SCRIPT_DECLARED;
    for (const char *at = line; at < end;) {
        const char *blank = memchr(at, ' ', (size_t)(end - at));
        size_t length = (size_t)((blank ? blank : end) - at);
        int shown = length < 200 ? (int)length : 200;
        if (at == line && (length != 5 || memcmp(at, "#!lua", 5) != 0))
            return error_set(error, ERROR_GENERIC, "Unexpected engine in script shebang: %.*s", shown, at);
        if (at != line && length >= 6 && memcmp(at, "flags=", 6) == 0) {
            if (add_flags(at + 6, length - 6, flags, error) < 0) return -1;
        } else if (at != line && length > 0) {
            return error_set(error, ERROR_GENERIC, "Unknown lua shebang option: %.*s", shown, at);
        }
        at += length + 1;
    }
    source->length -= (size_t)(end - line);
    source->text = end;
    return 0;
}

uint32_t script_own_flags(uint32_t command_flags, uint32_t script_flags) {
    if (!(script_flags & SCRIPT_DECLARED)) return command_flags;
    uint32_t flags =
        command_flags & ~(uint32_t)(COMMAND_STALE | COMMAND_DENYOOM | COMMAND_WRITE | COMMAND_MAY_REPLICATE);
    if (script_flags & SCRIPT_NO_WRITES) return flags;
    return flags | COMMAND_WRITE | (script_flags & SCRIPT_ALLOW_OOM ? 0 : COMMAND_DENYOOM);
}
