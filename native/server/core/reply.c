/* reply: writes replies in the client's version of the protocol. A reply to a client that asked for none (CLIENT
 * REPLY), or that is going away, is dropped here, sources included, so that handlers need not care. */
#include <assert.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/command.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "store/number.h"

static void schedule_write(struct client *client) {
    if (client->in_unsent || !client->connection) return;
    client->in_unsent = true;
    client->unsent_next = client->server->clients.unsent_head;
    client->server->clients.unsent_head = client;
}

static bool is_muted(const struct client *client) {
    return client->closing || client->output_failed || client->reply_mode == CLIENT_REPLY_OFF ||
           client->reply_mode == CLIENT_REPLY_SKIP || client->reply_mode == CLIENT_REPLY_SKIP_NEXT;
}

/* A client that cannot be given its whole reply is closed: half a reply would put it out of step. */
static void fail_output(struct client *client) {
    client->output_failed = true;
}

static void check_limit(struct client *client, size_t more) {
    struct server *server = client->server;
    const struct output *output = &client->output;
    size_t most = output->inline_bytes > output->unsent_bytes ? output->inline_bytes : output->unsent_bytes;
    if (most + more <= server->least_output_limit && client->soft_limit_us == 0) return;
    if (!output_limit_is_exceeded(client, more)) return;
    server->stats.output_limit_closes++;
    client_say_closed(client, CLIENT_OUTPUT_WAITS);
    fail_output(client);
    schedule_write(client);
}

static void append(struct client *client, const void *bytes, size_t length) {
    if (is_muted(client)) return;
    check_limit(client, length);
    if (client->output_failed) return;
    if (!output_append(&client->output, &client->server->output_pool, bytes, length)) fail_output(client);
    schedule_write(client);
}

void client_send(struct client *client, const void *bytes, size_t length) {
    if (client->closing || client->output_failed) return;
    if (!output_append(&client->output, &client->server->output_pool, bytes, length)) fail_output(client);
    schedule_write(client);
}

void client_send_source(struct client *client, struct reply_source *source) {
    if (client->closing || client->output_failed) {
        source->released(source);
        return;
    }
    if (!output_append_source(&client->output, &client->server->output_pool, source)) fail_output(client);
    schedule_write(client);
}

#define HEAD_BYTES 32u /* longest "$…\r\n", and the end of what follows */

/* Writes a decimal number; returns its length. Cheaper than printf, and every reply has one. */
static size_t write_decimal(char *out, int64_t value) {
    char reversed[20];
    size_t digits = 0;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        reversed[digits++] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    size_t length = 0;
    if (value < 0) out[length++] = '-';
    while (digits > 0) out[length++] = reversed[--digits];
    return length;
}

static size_t write_head(char *out, char type, int64_t value) {
    out[0] = type;
    if (value >= 0 && value <= 9) { /* most are */
        out[1] = (char)('0' + value);
        out[2] = '\r';
        out[3] = '\n';
        return 4;
    }
    size_t length = 1 + write_decimal(out + 1, value);
    out[length++] = '\r';
    out[length++] = '\n';
    return length;
}

/* Room for a reply of at most `most` bytes, to be followed by end_small with what it took. NULL: none is sent. */
static uint8_t *begin_small(struct client *client, size_t most) {
    if (is_muted(client)) return NULL;
    check_limit(client, most);
    if (client->output_failed) return NULL;
    uint8_t *out = output_reserve(&client->output, &client->server->output_pool, most);
    if (!out) {
        fail_output(client);
        schedule_write(client);
    }
    return out;
}

static void end_small(struct client *client, size_t length) {
    output_advance(&client->output, length);
    schedule_write(client);
}

static void append_head(struct client *client, char type, int64_t value) {
    uint8_t *out = begin_small(client, HEAD_BYTES);
    if (out) end_small(client, write_head((char *)out, type, value));
}

void reply_status(struct client *client, const char *text) {
    size_t length = strlen(text);
    assert(length <= SEGMENT_SMALL_BYTES - 3);
    uint8_t *out = begin_small(client, length + 3);
    if (!out) return;
    out[0] = '+';
    memcpy(out + 1, text, length);
    memcpy(out + 1 + length, "\r\n", 2);
    end_small(client, length + 3);
}

void reply_raw(struct client *client, const void *bytes, size_t length) {
    append(client, bytes, length);
}

void reply_count_error(struct server *server, const char *line, size_t length) {
    server->stats.errors++;
    error_stats_count(&server->error_stats, line, length);
}

/* An error is one line: whatever a client's own bytes brought into it must not end it early. */
static void append_error_line(struct client *client, const char *code, const char *message, bool counts) {
    char line[1024];
    int printed = snprintf(line, sizeof line - 2, "-%s%s%s", code, *code ? " " : "", message);
    size_t length = printed < 0 ? 0 : (size_t)printed;
    if (length > sizeof line - 3) length = sizeof line - 3;
    for (size_t i = 0; i < length; i++)
        if (line[i] == '\r' || line[i] == '\n') line[i] = ' ';
    line[length++] = '\r';
    line[length++] = '\n';
    client->error_replied = true;
    if (counts) reply_count_error(client->server, line + 1, length - 3);
    append(client, line, length);
}

void reply_error(struct client *client, const char *format, ...) {
    char message[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    append_error_line(client, "", message, true);
}

void reply_error_again(struct client *client, const char *message) {
    append_error_line(client, "", message, false);
}

void reply_failure(struct client *client, const struct error *error) {
    assert(error->code != ERROR_NONE);
    append_error_line(client, error_code_name(error->code), error->message, true);
}

void reply_syntax_error(struct client *client) {
    reply_error(client, "ERR syntax error");
}

void reply_arity_error(struct client *client) {
    reply_error(client, "ERR wrong number of arguments for '%s' command", client->command ? client->command->name : "");
}

void reply_integer(struct client *client, int64_t value) {
    append_head(client, ':', value);
}

void reply_double(struct client *client, double value) {
    char line[NUMBER_DOUBLE_TEXT + 3];
    size_t length = number_format_double(value, line + 1);
    if (client->resp == 2) {
        reply_bulk(client, line + 1, length);
        return;
    }
    line[0] = ',';
    memcpy(line + 1 + length, "\r\n", 2);
    append(client, line, length + 3);
}

void reply_boolean(struct client *client, bool value) {
    if (client->resp == 2)
        reply_integer(client, value ? 1 : 0);
    else
        append(client, value ? "#t\r\n" : "#f\r\n", 4);
}

void reply_null(struct client *client) {
    if (client->resp == 2)
        append(client, "$-1\r\n", 5);
    else
        append(client, "_\r\n", 3);
}

void reply_null_array(struct client *client) {
    if (client->resp == 2)
        append(client, "*-1\r\n", 5);
    else
        append(client, "_\r\n", 3);
}

void reply_bulk(struct client *client, const void *data, size_t length) {
    if (length + HEAD_BYTES > SEGMENT_SMALL_BYTES) {
        append_head(client, '$', (int64_t)length);
        append(client, data, length);
        append(client, "\r\n", 2);
        return;
    }
    uint8_t *out = begin_small(client, length + HEAD_BYTES);
    if (!out) return;
    size_t used = write_head((char *)out, '$', (int64_t)length);
    if (length) memcpy(out + used, data, length);
    used += length;
    out[used++] = '\r';
    out[used++] = '\n';
    end_small(client, used);
}

void reply_bulk_string(struct client *client, const char *text) {
    reply_bulk(client, text, strlen(text));
}

void reply_bulk_format(struct client *client, const char *format, ...) {
    struct text text = {0};
    va_list arguments;
    va_start(arguments, format);
    char small[256];
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(small, sizeof small, format, arguments);
    if (length >= 0 && (size_t)length < sizeof small) {
        reply_bulk(client, small, (size_t)length);
    } else if (length >= 0) {
        text_append_formatted(&text, format, again);
        reply_bulk(client, text.data ? text.data : "", text.length);
    }
    va_end(again);
    va_end(arguments);
    text_free(&text);
}

void reply_verbatim_as(struct client *client, const char *format, size_t format_length, const char *text,
                       size_t length) {
    if (client->resp == 2) {
        reply_bulk(client, text, length);
        return;
    }
    append_head(client, '=', (int64_t)length + 4);
    for (size_t i = 0; i < 3; i++) append(client, i < format_length ? format + i : " ", 1);
    append(client, ":", 1);
    append(client, text, length);
    append(client, "\r\n", 2);
}

void reply_verbatim(struct client *client, const char *text, size_t length) {
    reply_verbatim_as(client, "txt", 3, text, length);
}

void reply_bulk_text(struct client *client, struct text *text) {
    if (text->failed)
        reply_error(client, "OOM no memory for the reply");
    else
        reply_bulk(client, text->data, text->length);
    text_free(text);
}

void reply_verbatim_text(struct client *client, struct text *text) {
    if (text->failed)
        reply_error(client, "OOM no memory for the reply");
    else
        reply_verbatim(client, text->data ? text->data : "", text->length);
    text_free(text);
}

void reply_line(struct client *client, char type, const char *text, size_t length) {
    append(client, &type, 1);
    for (size_t at = 0; at < length;) {
        size_t end = at;
        while (end < length && text[end] != '\r' && text[end] != '\n') end++;
        append(client, text + at, end - at);
        if (end < length) append(client, " ", 1);
        at = end + 1;
    }
    append(client, "\r\n", 2);
}

void reply_array(struct client *client, size_t count) {
    append_head(client, '*', (int64_t)count);
}

void reply_map(struct client *client, size_t pairs) {
    append_head(client, client->resp == 2 ? '*' : '%', (int64_t)(client->resp == 2 ? 2 * pairs : pairs));
}

void reply_set(struct client *client, size_t count) {
    append_head(client, client->resp == 2 ? '*' : '~', (int64_t)count);
}

void reply_push(struct client *client, size_t count) {
    append_head(client, client->resp == 2 ? '*' : '>', (int64_t)count);
}

void reply_blob(struct client *client, struct blob *blob) {
    if (is_muted(client)) return;
    append_head(client, '$', (int64_t)blob->length);
    if (!output_append_blob(&client->output, &client->server->output_pool, blob)) fail_output(client);
    append(client, "\r\n", 2);
}

void reply_source(struct client *client, struct reply_source *source) {
    if (!is_muted(client)) append_head(client, '$', (int64_t)source->length_bytes);
    if (is_muted(client)) {
        source->released(source);
        return;
    }
    if (!output_append_source(&client->output, &client->server->output_pool, source)) fail_output(client);
    append(client, "\r\n", 2);
}

/* The mark is the empty segment that the head will be written to; 0 when nothing will be sent anyway. */
size_t reply_array_deferred(struct client *client) {
    if (is_muted(client)) return 0;
    struct segment *segment = output_append_deferred(&client->output, &client->server->output_pool);
    if (!segment) fail_output(client);
    schedule_write(client);
    return (size_t)(uintptr_t)segment;
}

static void set_deferred_head(struct client *client, size_t mark, char type, size_t count) {
    if (mark == 0) return;
    char head[32];
    size_t length = write_head(head, type, (int64_t)count);
    output_fill_deferred(&client->output, (struct segment *)(uintptr_t)mark, head, length);
}

void reply_set_array_length(struct client *client, size_t mark, size_t count) {
    set_deferred_head(client, mark, '*', count);
}

void reply_set_map_length(struct client *client, size_t mark, size_t pairs) {
    if (client->resp == 2)
        set_deferred_head(client, mark, '*', 2 * pairs);
    else
        set_deferred_head(client, mark, '%', pairs);
}

void reply_set_set_length(struct client *client, size_t mark, size_t count) {
    set_deferred_head(client, mark, client->resp == 2 ? '*' : '~', count);
}

bool reply_is_wanted(const struct client *client) {
    return !is_muted(client);
}

/* ---- subcommands ------------------------------------------------------------------------------------- */

/* The container's name in capitals: what stands before the bar. */
static void container_name(const struct client *client, char *name, size_t size) {
    const char *full = client->command->name;
    size_t length = 0;
    for (; full[length] != '\0' && full[length] != '|' && length < size - 1; length++)
        name[length] = (char)toupper((unsigned char)full[length]);
    name[length] = '\0';
}

static int shown_length(const struct resp_argument *word) {
    return word->length < 128 ? (int)word->length : 128;
}

void reply_unknown_subcommand(struct client *client) {
    const struct resp_argument *word = &client->argv[1];
    char name[64];
    container_name(client, name, sizeof name);
    reply_error(client, "ERR unknown subcommand '%.*s'. Try %s HELP.", shown_length(word), (const char *)word->data,
                name);
}

void reply_subcommand_syntax_error(struct client *client) {
    const struct resp_argument *word = &client->argv[1];
    char name[64];
    container_name(client, name, sizeof name);
    reply_error(client, "ERR unknown subcommand or wrong number of arguments for '%.*s'. Try %s HELP.",
                shown_length(word), (const char *)word->data, name);
}

void reply_help_on(struct client *client, const struct command *rows) {
    char line[512];
    container_name(client, line, sizeof line);
    size_t prefix = strlen(line) + 1, count = 3;
    snprintf(line + prefix - 1, sizeof line - prefix, " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    size_t mark = reply_array_deferred(client);
    reply_status(client, line);
    for (; rows->name; rows++) {
        const char *name = rows->name + prefix;
        if (strcmp(name, "help") == 0) continue;
        int length =
            snprintf(line, sizeof line, "%s%s%s", name, rows->usage ? " " : "", rows->usage ? rows->usage : "");
        assert(length > 0 && (size_t)length < sizeof line);
        for (size_t i = 0; i < strlen(name); i++) line[i] = (char)toupper((unsigned char)line[i]);
        reply_line(client, '+', line, (size_t)length);
        snprintf(line, sizeof line, "    %s", rows->summary);
        reply_status(client, line);
        count += 2;
    }
    reply_status(client, "HELP");
    reply_status(client, "    Prints this help.");
    reply_set_array_length(client, mark, count);
}

void reply_help(struct client *client) {
    reply_help_on(client, client->entry->container->command->subcommands);
}
