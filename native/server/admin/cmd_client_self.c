/* cmd_client_self: what a client changes or asks about itself: its name, its replies, its library. */
#include <string.h>

#include "server/admin/admin_subsystem.h"
#include "server/admin/cmd_client.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/redis/keys/keyspace.h"

void client_reply(struct client *client) {
    if (client->deny_blocking) { /* EXEC has said how many replies there will be */
        reply_error(client, "ERR CLIENT REPLY cannot be run in a transaction: send it before MULTI or after EXEC");
        return;
    }
    const struct resp_argument *mode = &client->argv[2];
    if (argument_is(mode, "on")) {
        client->reply_mode = CLIENT_REPLY_ON;
        reply_status(client, "OK");
    } else if (argument_is(mode, "off")) {
        client->reply_mode = CLIENT_REPLY_OFF;
    } else if (argument_is(mode, "skip")) {
        if (client->reply_mode != CLIENT_REPLY_OFF) client->reply_mode = CLIENT_REPLY_SKIP_NEXT;
    } else {
        reply_syntax_error(client);
    }
}

/* CLIENT SETINFO LIB-NAME|LIB-VER value: what a library says of itself, shown in CLIENT LIST. */
void client_setinfo(struct client *client) {
    const struct resp_argument *attribute = &client->argv[2];
    const struct resp_argument *value = &client->argv[3];
    char *to = argument_is(attribute, "lib-name")  ? client->library_name
               : argument_is(attribute, "lib-ver") ? client->library_version
                                                   : NULL;
    if (!to) {
        reply_error(client, "ERR Unrecognized option '%.*s'",
                    attribute->data && attribute->length < 128 ? (int)attribute->length : 0,
                    (const char *)attribute->data);
        return;
    }
    bool fits = value->data && value->length < sizeof client->library_name;
    for (size_t i = 0; fits && i < value->length; i++) fits = value->data[i] >= '!' && value->data[i] <= '~';
    if (!fits) {
        reply_error(client, "ERR lib-name and lib-ver take at most %zu printable characters without spaces",
                    sizeof client->library_name - 1);
        return;
    }
    memcpy(to, value->data, value->length);
    to[value->length] = '\0';
    reply_status(client, "OK");
}

static void set_flag(struct client *client, bool *flag) {
    if (argument_is(&client->argv[2], "on"))
        *flag = true;
    else if (argument_is(&client->argv[2], "off"))
        *flag = false;
    else {
        reply_syntax_error(client);
        return;
    }
    reply_status(client, "OK");
}

void client_id(struct client *client) {
    reply_integer(client, (int64_t)client->id);
}

void client_getname(struct client *client) {
    if (client->name)
        reply_bulk_string(client, client->name);
    else
        reply_null(client);
}

void client_setname(struct client *client) {
    if (client_set_name(client, &client->argv[2])) reply_status(client, "OK");
}

void client_no_evict(struct client *client) {
    set_flag(client, &client->no_evict);
}

void client_no_touch(struct client *client) {
    set_flag(client, &client->no_touch);
}
