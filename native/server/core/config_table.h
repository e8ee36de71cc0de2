/* config_table: what is known of a setting beside its value: a row of the table that is in config.c. */
#ifndef REPLAY_SERVER_CONFIG_TABLE_H
#define REPLAY_SERVER_CONFIG_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum setting_kind {
    SETTING_NUMBER,
    SETTING_BYTES,
    SETTING_OCTAL,
    SETTING_FLAG,   /* yes or no */
    SETTING_CHOICE, /* one of some words */
    SETTING_EVENTS, /* letters of notify-keyspace-events */
    SETTING_TEXT,
    SETTING_OUTPUT_LIMITS,
    SETTING_FIXED,
};

struct setting {
    const char *name;
    enum setting_kind kind;
    bool live;             /* may be changed while the server runs */
    size_t offset, size;   /* in struct server_config; size: of text */
    int64_t minimum, maximum;
    const char *fixed;     /* what Redis clients ask for and cannot change here */
    const char *const *choices; /* the words, ended by NULL; the field holds the place of one */
    bool no_effect;        /* accepted for compatibility: checked, kept and shown, and nothing follows from it */
    bool by_command;       /* not CONFIG SET but a command of its own changes it, and CONFIG REWRITE writes it */
};

const struct setting *config_setting(size_t index);

#endif
