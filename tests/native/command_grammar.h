/* command_grammar: requests made from lines of syntax ("set $string $value [NX|XX] [EX $seconds|KEEPTTL]"), by numbers that
 * follow from a seed. A line's words are:
 *
 *     word      itself                       (a|b)     one of them, each of which may be several words or none
 *     $name     a value of that kind         [a|b]     the same, or nothing
 *     {a|b}     one to four of them          #{a}      how many there will be, and then so many
 *     @{a}      as many as the last # or {}
 *
 * Values that mean something to a server only once it has said them (ids, cursors, hashes of scripts) are taken from its
 * replies. */
#ifndef REPLAY_TESTS_COMMAND_GRAMMAR_H
#define REPLAY_TESTS_COMMAND_GRAMMAR_H

#include <ctype.h>

#include "command_values.h"

/* ---- syntax --------------------------------------------------------------------------------------------------------- */

static inline const char *run_sequence(struct maker *maker, const char *at, bool emit);

/* `at` is behind the opening bracket; returns what is behind the closing one. */
static inline const char *run_choice(struct maker *maker, const char *at, bool emit) {
    const char *end = at;
    uint32_t choices = 1;
    while (*(end = run_sequence(maker, end, false)) == '|') {
        choices++;
        end++;
    }
    CHECK(*end);
    for (uint32_t skipped = emit ? below(maker, choices) : 0; skipped > 0; skipped--)
        at = run_sequence(maker, at, false) + 1;
    if (emit) run_sequence(maker, at, true);
    return end + 1;
}

static inline const char *run_repetition(struct maker *maker, const char *at, bool emit, uint32_t count) {
    const char *end = at;
    for (uint32_t i = 0; i < (emit ? count : 1); i++) end = run_choice(maker, at, emit);
    return end;
}

/* `at` is behind the $. */
static inline const char *run_value(struct maker *maker, const char *at, bool emit) {
    size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz");
    for (size_t i = 0; i < sizeof value_kinds / sizeof *value_kinds; i++) {
        if (strlen(value_kinds[i].name) != length || memcmp(value_kinds[i].name, at, length) != 0) continue;
        if (emit) value_kinds[i].make(maker);
        return at + length;
    }
    fprintf(stderr, "no kind of value is called $%.*s\n", (int)length, at);
    exit(1);
}

/* Up to the end of the text, or the bar or the bracket that ends it. */
static inline const char *run_sequence(struct maker *maker, const char *at, bool emit) {
    while (*at && !strchr("|)]}", *at)) {
        if (*at == ' ') {
            at++;
        } else if (*at == '$') {
            at = run_value(maker, at + 1, emit);
        } else if (*at == '(') {
            at = run_choice(maker, at + 1, emit);
        } else if (*at == '[') {
            at = run_choice(maker, at + 1, emit && below(maker, 2));
        } else if (*at == '{' || ((*at == '#' || *at == '@') && at[1] == '{')) {
            if (emit && *at != '@') maker->count = 1 + below(maker, 4);
            uint32_t count = maker->count;
            if (emit && *at == '#') put_number(maker, count);
            at = run_repetition(maker, strchr(at, '{') + 1, emit, count);
            maker->count = count;
        } else {
            size_t length = strcspn(at, " |)]}");
            if (emit) put_bytes(maker, at, length);
            at += length;
        }
    }
    return at;
}

/* ---- mistakes ------------------------------------------------------------------------------------------------------- */

/* The request again with word `place` left out, doubled, cut, or replaced. */
static inline void make_mistake(struct maker *maker, struct request *spare, uint32_t place) {
    struct request *from = maker->out;
    uint32_t kind = below(maker, 5);
    request_clear(spare);
    maker->out = spare;
    for (uint32_t i = 0; i < from->count; i++) {
        size_t length;
        const uint8_t *word = request_word(from, i, &length);
        if (i != place) {
            put_bytes(maker, word, length);
        } else if (kind == 1) {
            put_bytes(maker, word, length);
            put_bytes(maker, word, length);
        } else if (kind == 2 && length > 0) {
            put_bytes(maker, word, one_in(maker, 2) ? length - 1 : below(maker, (uint32_t)length));
        } else if (kind == 3) {
            make_junk(maker);
        } else if (kind == 4 && length > 0) {
            put_bytes(maker, word, length);
            spare->bytes[spare->start[i] + below(maker, (uint32_t)length)] ^= (uint8_t)(1u << below(maker, 8));
        }
    }
    memcpy(from->bytes, spare->bytes, spare->start[spare->count]);
    memcpy(from->start, spare->start, sizeof spare->start);
    from->count = spare->count;
    maker->out = from;
}

#endif
