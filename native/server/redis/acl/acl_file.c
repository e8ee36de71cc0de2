/* acl_file: the file of users: a line "user NAME RULES…" for each, which ACL SAVE writes and ACL LOAD reads. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/write.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/redis/acl/acl.h"

#define FILE_MOST_BYTES (64u << 20)

/* ---- reading ----------------------------------------------------------------------------------------- */

/* The whole file, ended by a zero byte, for memory_free. NULL: `why` is told. */
static char *read_whole(const char *path, size_t *length, struct text *why) {
    int number = open(path, O_RDONLY | O_CLOEXEC);
    char *bytes = NULL;
    size_t capacity = 4096;
    ssize_t got = -1;
    *length = 0;
    if (number >= 0) bytes = memory_alloc(capacity);
    while (bytes) {
        got = read(number, bytes + *length, capacity - *length - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        *length += (size_t)got;
        if (*length + 1 < capacity) continue;
        capacity *= 2;
        char *larger = capacity <= FILE_MOST_BYTES ? memory_realloc(bytes, capacity) : NULL;
        if (!larger) {
            errno = capacity <= FILE_MOST_BYTES ? ENOMEM : EFBIG;
            got = -1;
            break;
        }
        bytes = larger;
    }
    if (bytes && got == 0) {
        bytes[*length] = '\0';
        close(number);
        return bytes;
    }
    text_append(why, "Error loading ACLs, opening file '%s': %s", path, strerror(errno));
    if (number >= 0) close(number);
    memory_free(bytes);
    return NULL;
}

struct line_words {
    struct resp_argument *items;
    uint32_t count, capacity;
};

/* Cuts a line at its spaces; words point into it. False: memory is exhausted. */
static bool split(struct line_words *words, const char *line, size_t length) {
    words->count = 0;
    for (size_t at = 0; at < length;) {
        size_t begin = at;
        while (at < length && !isspace((unsigned char)line[at])) at++;
        if (at > begin) {
            struct resp_argument *items = memory_grow(words->items, words->count, &words->capacity, 16, sizeof *items);
            if (!items) return false;
            words->items = items;
            words->items[words->count++] = (struct resp_argument){(const uint8_t *)line + begin, at - begin, NULL};
        }
        while (at < length && isspace((unsigned char)line[at])) at++;
    }
    return true;
}

static bool word_is(const struct resp_argument *word, const char *text) {
    return word->length == strlen(text) && memcmp(word->data, text, word->length) == 0;
}

/* One line into the set that is being read. What is wrong goes to `why`, and reading goes on, so that all is told. */
static void read_line(struct acl *set, const char *path, unsigned number, const struct line_words *words,
                      bool *has_standard, struct text *why) {
    if (words->count < 2 || !word_is(&words->items[0], "user")) {
        text_append(why, "%s:%u should start with user keyword followed by the username. ", path, number);
        return;
    }
    const struct resp_argument *name = &words->items[1];
    struct acl_user *user = acl_find(set, name->data, name->length);
    if (user && (user != set->standard || *has_standard)) {
        text_append(why, "WARNING: Duplicate user '%.*s' found on line %u. ", (int)name->length,
                    (const char *)name->data, number);
        return;
    }
    if (user) {
        /* The default user is made anew from its line. */
        struct acl_terms terms = acl_terms(set);
        acl_user_apply(&terms, user, "reset", 5);
        user->flags = ACL_USER_OFF;
        *has_standard = true;
    }
    struct text wrong = {0};
    if (!acl_set_user(set, (const char *)name->data, name->length, words->items + 2, words->count - 2, &wrong))
        text_append(why, "%s:%u: %s. ", path, number, wrong.data ? wrong.data : "no memory");
    text_free(&wrong);
}

static bool read_lines(struct acl *set, const char *path, const char *bytes, size_t length, struct text *why) {
    struct line_words words = {0};
    unsigned number = 1;
    bool has_standard = false;
    for (size_t at = 0; at < length; number++) {
        const char *end = memchr(bytes + at, '\n', length - at);
        size_t line = end ? (size_t)(end - (bytes + at)) : length - at;
        if (!split(&words, bytes + at, line))
            text_append(why, "no memory for line %u. ", number);
        else if (words.count > 0)
            read_line(set, path, number, &words, &has_standard, why);
        at += line + 1;
    }
    memory_free(words.items);
    return why->length == 0 && !why->failed;
}

/* The default user stays where clients point to it and takes its new rights; the others go, with their connections. */
static void adopt(struct acl *acl, struct acl *set, struct client *asking) {
    while (acl->count > 1) {
        const struct acl_user *user = acl->users[acl->users[0] == acl->standard ? 1 : 0];
        acl_remove_user(acl, user->name, user->name_length, asking);
    }
    struct acl_user **users = acl->users;
    acl->users = set->users;
    acl->count = set->count;
    for (uint32_t i = 0; i < acl->count; i++) {
        if (acl->users[i] != set->standard) continue;
        acl->users[i] = acl->standard;
        acl_user_take(acl->standard, set->standard);
    }
    set->users = users;
    set->count = 0;
    set->standard = NULL;
    acl_standard_changed(acl);
}

bool acl_load(struct acl *acl, const char *path, struct client *asking, struct text *why) {
    size_t length;
    char *bytes = read_whole(path, &length, why);
    if (!bytes) return false;
    struct acl *set = acl_new(acl->server);
    bool fine = set && read_lines(set, path, bytes, length, why);
    if (fine) adopt(acl, set, asking);
    if (!set) text_append(why, "no memory. ");
    if (!fine)
        text_append(why, "WARNING: ACL errors detected, no change to the previously active ACL rules was performed");
    acl_free(set);
    memory_free(bytes);
    return fine;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

/* A name that is not on the disk with its folder may be the old file's again after a failure of the machine. */
static bool sync_folder_of(const char *path) {
    struct text folder = {0};
    const char *slash = strrchr(path, '/');
    text_append(&folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    int number = folder.failed ? -1 : open(folder.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = number >= 0 && fsync(number) == 0;
    int kept = errno;
    if (number >= 0) close(number);
    text_free(&folder);
    errno = kept;
    return synced;
}

/* To a file beside it, which then takes its place: whoever reads sees the old users or the new ones, never half of them.
 * Only the owner may read it: it holds hashes of passwords. */
bool acl_save(const struct acl *acl, const char *path, struct text *why) {
    struct text lines = {0}, beside = {0};
    for (uint32_t i = 0; i < acl->count; i++) {
        text_append(&lines, "user %s ", acl->users[i]->name);
        acl_describe_user(acl->commands, acl->users[i], &lines);
        text_append(&lines, "\n");
    }
    text_append(&beside, "%s.tmp-%ld", path, (long)getpid());
    bool saved = false;
    if (lines.failed || beside.failed) {
        text_append(why, "no memory for the file of users");
    } else {
        int number = open(beside.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        bool renamed = number >= 0 && write_all(number, lines.data, lines.length) == 0 && fsync(number) == 0 &&
                       rename(beside.data, path) == 0;
        saved = renamed && sync_folder_of(path);
        if (!saved) text_append(why, "cannot write %s: %s", path, strerror(errno));
        if (number >= 0) close(number);
        if (number >= 0 && !renamed) unlink(beside.data);
    }
    text_free(&lines);
    text_free(&beside);
    return saved;
}
