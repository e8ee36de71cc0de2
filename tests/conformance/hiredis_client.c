/* hiredis_client: what a C program does with hiredis, over a unix socket: plain and binary commands, a pipeline, a
 * transaction, an error, a subscription. Prints "fine" and exits 0 when every reply is as expected. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static redisContext *connect_to(const char *path) {
    redisContext *context = redisConnectUnix(path);
    if (!context || context->err) {
        fprintf(stderr, "cannot connect: %s\n", context ? context->errstr : "no memory");
        exit(1);
    }
    return context;
}

static void expect(redisReply *reply, int type, const char *text, long long number, const char *what) {
    int equal = reply && reply->type == type;
    if (equal && text) equal = strcmp(reply->str, text) == 0;
    if (equal && type == REDIS_REPLY_INTEGER) equal = reply->integer == number;
    if (equal && type == REDIS_REPLY_ARRAY) equal = (long long)reply->elements == number;
    if (!equal) {
        fprintf(stderr, "%s: type %d, text %s, number %lld\n", what, reply ? reply->type : -1,
                reply && reply->str ? reply->str : "-", reply ? reply->integer : 0);
        exit(1);
    }
    freeReplyObject(reply);
}

static void binary_values_come_back(redisContext *context) {
    const char value[] = "a\0b\r\nc";
    size_t length = sizeof value - 1;
    expect(redisCommand(context, "SET %b %b", "k\0y", (size_t)3, value, length), REDIS_REPLY_STATUS, "OK", 0, "SET");
    redisReply *reply = redisCommand(context, "GET %b", "k\0y", (size_t)3);
    if (!reply || reply->type != REDIS_REPLY_STRING || reply->len != length || memcmp(reply->str, value, length) != 0) {
        fprintf(stderr, "GET: not what was set\n");
        exit(1);
    }
    freeReplyObject(reply);
}

static void a_pipeline_is_answered_in_order(redisContext *context) {
    for (int i = 0; i < 1000; i++) redisAppendCommand(context, "INCRBY counter %d", i);
    long long sum = 0;
    for (int i = 0; i < 1000; i++) {
        void *reply = NULL;
        sum += i;
        if (redisGetReply(context, &reply) != REDIS_OK) exit(1);
        expect(reply, REDIS_REPLY_INTEGER, NULL, sum, "INCRBY");
    }
}

static void a_transaction_runs_at_exec(redisContext *context) {
    expect(redisCommand(context, "MULTI"), REDIS_REPLY_STATUS, "OK", 0, "MULTI");
    expect(redisCommand(context, "RPUSH list a b c"), REDIS_REPLY_STATUS, "QUEUED", 0, "RPUSH");
    expect(redisCommand(context, "LRANGE list 0 -1"), REDIS_REPLY_STATUS, "QUEUED", 0, "LRANGE");
    redisReply *reply = redisCommand(context, "EXEC");
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || reply->element[0]->integer != 3 ||
        reply->element[1]->elements != 3 || strcmp(reply->element[1]->element[2]->str, "c") != 0) {
        fprintf(stderr, "EXEC: not what was queued\n");
        exit(1);
    }
    freeReplyObject(reply);
}

static void a_message_reaches_its_subscriber(redisContext *context, const char *path) {
    redisContext *listener = connect_to(path);
    expect(redisCommand(listener, "SUBSCRIBE channel"), REDIS_REPLY_ARRAY, NULL, 3, "SUBSCRIBE");
    expect(redisCommand(context, "PUBLISH channel hello"), REDIS_REPLY_INTEGER, NULL, 1, "PUBLISH");
    redisReply *message = NULL;
    if (redisGetReply(listener, (void **)&message) != REDIS_OK) exit(1);
    if (message->elements != 3 || strcmp(message->element[0]->str, "message") != 0 ||
        strcmp(message->element[2]->str, "hello") != 0) {
        fprintf(stderr, "not the message that was published\n");
        exit(1);
    }
    freeReplyObject(message);
    redisFree(listener);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s UNIX-SOCKET\n", argv[0]);
        return 2;
    }
    redisContext *context = connect_to(argv[1]);
    expect(redisCommand(context, "FLUSHALL"), REDIS_REPLY_STATUS, "OK", 0, "FLUSHALL");
    expect(redisCommand(context, "GET missing"), REDIS_REPLY_NIL, NULL, 0, "GET missing");
    binary_values_come_back(context);
    a_pipeline_is_answered_in_order(context);
    a_transaction_runs_at_exec(context);
    expect(redisCommand(context, "HGET list f"), REDIS_REPLY_ERROR,
           "WRONGTYPE Operation against a key holding the wrong kind of value", 0, "HGET of a list");
    a_message_reaches_its_subscriber(context, argv[1]);
    redisFree(context);
    puts("fine");
    return 0;
}
