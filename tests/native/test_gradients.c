/* test_gradients: weighted sums on every path, queues of gradients and what they remember, GRAD.* over the server. */
#include <math.h>
#include <stdarg.h>

#include "base/cpu.h"
#include "base/random.h"
#include "base/weighted_sum_kernel.h"
#include "replay/gradient_queue.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server_stage.h"

/* ---- sums ------------------------------------------------------------------------------------------------------------ */

static void a_sum_is_what_it_is_by_hand(void) {
    const float a[3] = {1, -2, 3}, b[3] = {10, 20, 0.5f};
    const void *vectors[2] = {a, b};
    const double weights[2] = {0.5, 0.25};
    float out[3];
    weighted_sum(VECTOR_FLOAT32, vectors, weights, 2, 0, 3, out);
    CHECK(out[0] == 3 && out[1] == 4 && out[2] == 1.625f);
    /* 1 + 2^-8 lies between two bfloat16 (1 and 1 + 2^-7) and goes to the even one; 1 + 3·2^-8 to 1 + 2^-6. */
    const uint16_t one[2] = {0x3f80, 0x3f80}, small[2] = {0x3b80, 0x3b80};
    const void *narrow[2] = {one, small};
    const double even[2] = {1, 1}, odd[2] = {1, 3};
    uint16_t bits[2];
    weighted_sum(VECTOR_BFLOAT16, narrow, even, 2, 0, 2, bits);
    CHECK(bits[0] == 0x3f80);
    weighted_sum(VECTOR_BFLOAT16, narrow, odd, 2, 0, 2, bits);
    CHECK(bits[1] == 0x3f82);
}

static void sums_are_rounded_once(void) {
    /* In float32 1e8 + 1 − 1e8 would be 0. */
    const float large[1] = {1e8f}, small[1] = {1};
    const void *vectors[3] = {large, small, large};
    const double weights[3] = {1, 1, -1};
    float out[1];
    weighted_sum(VECTOR_FLOAT32, vectors, weights, 3, 0, 1, out);
    CHECK(out[0] == 1);
}

static void what_is_no_number_stays_so_and_zeros_keep_their_sign(void) {
    const uint16_t odd[4] = {0x7fc1, 0x7f80, 0xff80, 0x8000};
    const void *vectors[1] = {odd};
    const double weight[1] = {1};
    uint16_t out[4];
    weighted_sum(VECTOR_BFLOAT16, vectors, weight, 1, 0, 4, out);
    CHECK((out[0] & 0x7fff) > 0x7f80 && out[1] == 0x7f80 && out[2] == 0xff80 && out[3] == 0x8000);
    const float nan_first[2] = {NAN, -0.0f};
    const void *floats[1] = {nan_first};
    float sum[2];
    weighted_sum(VECTOR_FLOAT32, floats, weight, 1, 0, 2, sum);
    CHECK(isnan(sum[0]) && sum[1] == 0 && signbit(sum[1]));
}

static void every_path_and_every_cut_gives_the_same_bits(void) {
    enum { N = 2500, COUNT = 5 };
    static float x[COUNT][N], expected[N], out[N];
    struct random_state random;
    random_seed(&random, 3);
    const void *vectors[COUNT];
    double weights[COUNT];
    for (int k = 0; k < COUNT; k++) {
        for (int i = 0; i < N; i++) x[k][i] = (float)(exp2(20 * random_unit(&random) - 10) - 1);
        vectors[k] = x[k];
        weights[k] = 2 * random_unit(&random) - 1;
    }
    for (enum vector_type type = VECTOR_FLOAT32; type < VECTOR_TYPES; type++) {
        size_t n = type == VECTOR_FLOAT32 ? N : 2 * N, element = vector_type_bytes(type);
        weighted_sum_scalar(type, vectors, weights, COUNT, 0, n, expected);
        static weighted_sum_kernel *const kernels[] = {weighted_sum,
#if CPU_X86
                                                       weighted_sum_avx2, weighted_sum_avx512
#endif
        };
        static const enum cpu_simd needs[] = {CPU_SCALAR, CPU_AVX2, CPU_AVX512};
        for (size_t kernel = 0; kernel < sizeof kernels / sizeof *kernels; kernel++) {
            if (!cpu_simd_supported(needs[kernel])) continue;
            memset(out, 0, sizeof out);
            for (size_t at = 0, length = 1; at < n; at += length, length = length * 2 + 1)
                kernels[kernel](type, vectors, weights, COUNT, at, n - at < length ? n - at : length, out);
            CHECK(memcmp(out, expected, n * element) == 0);
        }
    }
}

/* ---- queues ---------------------------------------------------------------------------------------------------------- */

static const uint64_t hash_key[2] = {1, 2};

static int push_of(struct gradient_queue *queue, const char *name, int64_t version, size_t elements,
                   struct error *error) {
    struct blob *blob = blob_new(elements * sizeof(float));
    memset(blob->data, 0, blob->length);
    int result = gradient_queue_push(queue, name, strlen(name), version, VECTOR_FLOAT32, blob, error);
    blob_release(blob);
    return result;
}

static void a_name_counts_once_while_it_waits_and_afterwards(void) {
    struct error error;
    struct gradient_queue *queue = gradient_queue_new(hash_key);
    CHECK(push_of(queue, "a", 1, 4, &error) == 1 && push_of(queue, "a", 2, 4, &error) == 0);
    CHECK(push_of(queue, "b", 5, 3, &error) == -1 && error.code == ERROR_BADSHAPE);
    CHECK(push_of(queue, "b", 5, 4, &error) == 1 && queue->waiting.count == 2);
    CHECK(gradient_queue_staleness(queue, 7) == 4 && gradient_queue_staleness(queue, 3) == 1);
    gradient_queue_finish(queue, gradient_queue_find(queue, "a", 1), GRADIENT_APPLIED);
    gradient_queue_finish(queue, gradient_queue_find(queue, "b", 1), GRADIENT_DROPPED);
    CHECK(push_of(queue, "a", 1, 4, &error) == 0 && push_of(queue, "b", 1, 9, &error) == 0);
    CHECK(push_of(queue, "c", 1, 9, &error) == 1); /* the queue was empty: another length is welcome */
    CHECK(queue->counters.applied == 1 && queue->counters.dropped == 1 && queue->counters.duplicates == 3);
    gradient_queue_free(queue);
}

static void names_are_forgotten_oldest_first_and_what_waits_is_bounded(void) {
    struct error error;
    struct gradient_queue *queue = gradient_queue_new(hash_key);
    char name[32];
    const uint32_t all = 3 * GRADIENT_MOST_REMEMBERED;
    for (uint32_t i = 0; i < all; i++) {
        sprintf(name, "learner-%u", i);
        CHECK(push_of(queue, name, i, 1, &error) == 1);
        gradient_queue_finish(queue, queue->waiting.head, GRADIENT_APPLIED);
    }
    CHECK(queue->finished.count == GRADIENT_MOST_REMEMBERED);
    CHECK(queue->counters.forgotten == all - GRADIENT_MOST_REMEMBERED);
    for (uint32_t i = 0; i < all; i++) {
        size_t length = (size_t)sprintf(name, "learner-%u", i);
        CHECK((gradient_queue_find(queue, name, length) != NULL) == (i >= all - GRADIENT_MOST_REMEMBERED));
    }
    for (uint32_t i = 0; i < GRADIENT_MOST_WAITING; i++) {
        sprintf(name, "more-%u", i);
        CHECK(push_of(queue, name, i, 1, &error) == 1);
    }
    CHECK(push_of(queue, "one too many", 0, 1, &error) == -1 && error.code == ERROR_LIMIT);
    gradient_queue_finish(queue, queue->waiting.tail, GRADIENT_DROPPED);
    CHECK(push_of(queue, "one too many", 0, 1, &error) == 1);
    gradient_queue_free(queue);
}

static void what_is_remembered_comes_back_from_bytes_and_from_no_others(void) {
    struct error error;
    struct gradient_queue *queue = gradient_queue_new(hash_key), *other = gradient_queue_new(hash_key);
    for (int i = 0; i < 3; i++) {
        char name[8];
        sprintf(name, "g%d", i);
        push_of(queue, name, i, 1, &error);
        gradient_queue_finish(queue, queue->waiting.head, i == 1 ? GRADIENT_DROPPED : GRADIENT_APPLIED);
    }
    struct blob *bytes = gradient_queue_remembered(queue);
    CHECK(bytes && bytes->length == 3 * 4);
    CHECK(gradient_queue_remember(other, bytes, &error) == 0 && other->finished.count == 3);
    CHECK(gradient_queue_find(other, "g1", 2)->state == GRADIENT_DROPPED);
    CHECK(gradient_queue_remember(other, bytes, &error) == -1); /* twice */
    gradient_queue_free(other);
    for (size_t length = 0; length <= bytes->length; length++) {
        for (int change = 0; change < 256; change += 5) {
            other = gradient_queue_new(hash_key);
            struct blob *wrong = blob_new(length);
            memcpy(wrong->data, bytes->data, length);
            if (length) wrong->data[length - 1] = (uint8_t)change;
            int result = gradient_queue_remember(other, wrong, &error);
            CHECK(result == 0 || result == -1);
            blob_release(wrong);
            gradient_queue_free(other);
        }
    }
    blob_release(bytes);
    gradient_queue_free(queue);
}

/* ---- the server ------------------------------------------------------------------------------------------------------ */

#define ELEMENTS 300000u

static bool holding; /* the transport needs bytes until they are released, and says when it has received them then */

static bool told(struct memory_peer *peer, const char *reply) {
    settle();
    if (holding) release_all(peer);
    return received(peer, reply);
}

static bool asked(struct memory_peer *peer, const char *request, const char *reply) {
    say(peer, request);
    return told(peer, reply);
}

static void push_large(struct memory_peer *peer, const char *name, float first) {
    float *vector = malloc(ELEMENTS * sizeof *vector);
    for (uint32_t i = 0; i < ELEMENTS; i++) vector[i] = first + (float)(i % 1000);
    send_arguments(peer, 6);
    send_word(peer, "GRAD.PUSH");
    send_word(peer, "g");
    send_word(peer, "3");
    send_word(peer, name);
    send_word(peer, "float32");
    send_bulk(peer, vector, ELEMENTS * sizeof *vector);
    free(vector);
    CHECK(told(peer, ":1\r\n"));
}

/* The sum goes out slice by slice; meanwhile its gradients leave the queue. */
static void a_sum_outlives_its_gradients(bool hold_writes) {
    holding = hold_writes;
    open_server(hold_writes, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    push_large(peer, "a", 0);
    push_large(peer, "b", 0.5f);
    push_large(peer, "c", 8);
    memory_peer_open_window(peer, 300000); /* it takes so much and no more */
    say(peer, "GRAD.TAKE g 2 SUM 2 -1\r\n");
    settle();
    CHECK(asked(other, "GRAD.PUBLISH g 4 2 a b policy blob\r\n", ":4\r\n"));
    CHECK(asked(other, "GRAD.DEL g\r\n", ":1\r\n"));
    memory_peer_open_window(peer, SIZE_MAX);
    settle();
    if (holding) release_all(peer);
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    static const char head[] = "*4\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n*2\r\n:3\r\n:3\r\n$7\r\nfloat32\r\n$1200000\r\n";
    CHECK(length == strlen(head) + ELEMENTS * sizeof(float) + 2 && memcmp(bytes, head, strlen(head)) == 0);
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        float value;
        memcpy(&value, bytes + strlen(head) + i * sizeof value, sizeof value);
        CHECK(value == (float)(i % 1000) - 0.5f);
    }
    close_server();
}

static void a_sum_outlives_its_gradients_however_bytes_are_released(void) {
    a_sum_outlives_its_gradients(false);
    a_sum_outlives_its_gradients(true);
}

static void a_client_that_goes_leaves_no_sum_behind(void) {
    holding = true;
    open_server(true, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    push_large(other, "a", 0);
    size_t before = memory_used_bytes();
    memory_peer_open_window(peer, 1000);
    say(peer, "GRAD.TAKE g 1 SUM 1\r\n");
    settle();
    CHECK(memory_used_bytes() > before + ELEMENTS);
    memory_peer_vanish(peer);
    settle();
    CHECK(memory_used_bytes() < before + ELEMENTS);
    close_server();
}

static void push_small(struct memory_peer *peer, const char *key, const char *name, const char *version) {
    static const float one = 1;
    send_arguments(peer, 6);
    send_word(peer, "GRAD.PUSH");
    send_word(peer, key);
    send_word(peer, version);
    send_word(peer, name);
    send_word(peer, "float32");
    send_bulk(peer, &one, sizeof one);
    settle();
    CHECK(received(peer, ":1\r\n"));
}

static void takers_wait_for_keys_that_come_and_go(void) {
    holding = false;
    open_server(false, NULL);
    struct memory_peer *taker = connect_peer(), *gone = connect_peer(), *pusher = connect_peer();
    say(taker, "GRAD.TAKE g 2 BLOCK 0 SUM 1 1\r\n");
    settle();
    say(gone, "GRAD.TAKE g 1 BLOCK 100000 HEADERS\r\n");
    settle();
    CHECK(server->clients.blocked == 2 && answers(pusher, "GRAD.LIST\r\n", "*0\r\n"));
    push_small(pusher, "g", "a", "1");
    CHECK(received(taker, "")); /* the first wants more, which does not keep the second */
    CHECK(received(gone, "*4\r\n*1\r\n$1\r\na\r\n*1\r\n:1\r\n$7\r\nfloat32\r\n:4\r\n"));
    CHECK(answers(pusher, "GRAD.DEL g\r\n", ":1\r\n") && server->clients.blocked == 1);
    push_small(pusher, "g", "a", "1"); /* it is not known any more */
    memory_peer_vanish(taker);
    settle();
    CHECK(server->clients.blocked == 0);
    say(gone, "GRAD.TAKE h 1 BLOCK 100000\r\n");
    settle();
    server->clients.deadlines.heap[0]->deadline_us = 0;
    settle();
    CHECK(received(gone, "-TIMEOUT no gradient waits\r\n"));
    CHECK(answers(pusher, "MULTI\r\nGRAD.TAKE h 1 BLOCK 0\r\nGRAD.TAKE g 1 HEADERS\r\nEXEC\r\n",
                  "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-TIMEOUT no gradient waits\r\n"
                  "*4\r\n*1\r\n$1\r\na\r\n*1\r\n:1\r\n$7\r\nfloat32\r\n:4\r\n"));
    say(taker = connect_peer(), "GRAD.TAKE never 1 BLOCK 0\r\n");
    settle();
    close_server(); /* with a client that waits */
}

static void who_waits_for_keys_that_are_not_there_makes_none(void) {
    enum { MORE = GRADIENTS_MAX_KEYS + 4 };
    holding = false;
    open_server(false, NULL);
    struct memory_peer *takers[MORE], *pusher = connect_peer();
    char line[64], key[16];
    for (int i = 0; i < MORE; i++) {
        snprintf(line, sizeof line, "GRAD.TAKE k%d %d UNTIL 9 %d BLOCK 100000 HEADERS\r\n", i, i == 1 ? 2 : 1,
                 i == 1 ? 0 : 9);
        say(takers[i] = connect_peer(), line);
        settle();
    }
    CHECK(server->clients.blocked == MORE && server->replay->gradients->queues == 0);
    for (int i = 0; i < (int)GRADIENTS_MAX_KEYS; i++) { /* all keys that there may be, while they wait */
        snprintf(key, sizeof key, "k%d", i);
        push_small(pusher, key, "a", "1");
        if (i != 1) CHECK(received(takers[i], "*4\r\n*1\r\n$1\r\na\r\n*1\r\n:1\r\n$7\r\nfloat32\r\n:4\r\n"));
    }
    CHECK(server->clients.blocked == 5 && server->replay->gradients->queues == GRADIENTS_MAX_KEYS);
    /* The one who wants two waits on with its key, and with those of absent ones when that is taken away. */
    CHECK(server->replay->gradients->absent.length == 4);
    struct client *waits = gradients_registry_find(server->replay->gradients, "k1", 2)->takers.head;
    uint64_t deadline_us = waits->deadline_us;
    CHECK(answers(pusher, "GRAD.DEL k1\r\n", ":1\r\n") && server->replay->gradients->absent.length == 5);
    push_small(pusher, "k1", "b", "1");
    CHECK(received(takers[1], "") && server->replay->gradients->absent.length == 4);
    CHECK(gradients_registry_find(server->replay->gradients, "k1", 2)->takers.head == waits);
    CHECK(waits->deadline_us == deadline_us && deadline_us != CLOCK_NEVER);
    push_small(pusher, "k1", "c", "1");
    CHECK(received(takers[1], "*4\r\n*2\r\n$1\r\nb\r\n$1\r\nc\r\n*2\r\n:1\r\n:1\r\n$7\r\nfloat32\r\n:4\r\n"));
    say(pusher, "GRAD.TAKE k0 2 UNTIL 9 0 BLOCK 100000 HEADERS\r\n");
    settle();
    memory_peer_vanish(takers[MORE - 1]);
    settle();
    CHECK(server->clients.blocked == 4);
    close_server();
}

static void learners_wait_until_theirs_are_in_hand(void) {
    holding = false;
    open_server(false, NULL);
    struct memory_peer *first = connect_peer(), *second = connect_peer(), *other = connect_peer();
    CHECK(answers(first, "GRAD.AWAIT g 0 2 a b BLOCK 0\r\n", ":0\r\n")); /* nothing of that name waits */
    push_small(other, "g", "a", "1");
    push_small(other, "g", "b", "1");
    push_small(other, "g", "c", "1");
    CHECK(answers(first, "GRAD.AWAIT g 2 3 a b c\r\n", "-TIMEOUT 3 of 3 gradients wait, at most 2 are to\r\n"));
    CHECK(answers(first, "GRAD.AWAIT g 2 3 a b\r\n",
                  "-ERR syntax error; expected how many may wait, a count of 1 to "
                  "1024 names, the names, [BLOCK ms]\r\n"));
    say(first, "GRAD.AWAIT g 0 1 a BLOCK 0\r\n");
    settle();
    say(second, "GRAD.AWAIT g 1 2 b c BLOCK 0\r\n");
    settle();
    CHECK(server->clients.blocked == 2 && answers(other, "GRAD.DROP g c\r\n", ":1\r\n"));
    CHECK(received(first, "") && received(second, ":1\r\n")); /* though the first waits still */
    CHECK(answers(other, "GRAD.DEL g\r\n", ":1\r\n") && received(first, ":0\r\n"));
    CHECK(server->clients.blocked == 0);
    close_server();
}

/* However many wait, and however little time a turn has: none is passed over for ever. */
static void each_of_many_who_wait_has_its_turn(void) {
    enum { MANY = 500 };
    holding = false;
    open_server(false, NULL);
    struct memory_peer *peers[MANY], *other = connect_peer();
    char text[64];
    push_small(other, "g", "held", "1");
    for (int i = 0; i < MANY; i++) {
        peers[i] = connect_peer();
        sprintf(text, "GRAD.TAKE g %d BLOCK 0 UNTIL 9 %d HEADERS\r\n", i % 2 ? 3 : 2, 0);
        say(peers[i], text);
        settle();
    }
    CHECK(server->clients.blocked == MANY);
    push_small(other, "g", "second", "1");
    for (int i = 0; i < MANY; i++) {
        size_t length;
        memory_peer_received(peers[i], &length);
        CHECK((length > 0) == (i % 2 == 0));
    }
    CHECK(server->clients.blocked == MANY / 2);
    close_server();
}

struct saved {
    uint8_t key[512];
    size_t length;
    int64_t version;
    struct blob *blob;
};

struct saved_list {
    struct saved items[8];
    uint32_t count;
};

static bool keep_saved(void *context, const void *key, size_t length, int64_t version, struct blob *blob) {
    struct saved_list *list = context;
    struct saved *saved = &list->items[list->count++];
    CHECK(list->count <= 8 && length <= sizeof saved->key);
    *saved = (struct saved){.length = length, .version = version, .blob = blob_retain(blob)};
    memcpy(saved->key, key, length);
    return true;
}

/* Whatever a file says: it is adopted or refused, and what was adopted can be used. */
static void what_was_saved_is_adopted_and_nothing_else_breaks_it(void) {
    struct saved_list list = {.count = 0};
    struct error error;
    holding = false;
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    push_small(peer, "g", "a", "1");
    push_small(peer, "g", "b", "2");
    push_small(peer, "g", "c", "3");
    push_small(peer, "h", "a", "4");
    CHECK(answers(peer, "GRAD.PUBLISH g 9 1 b w x\r\nGRAD.DROP h a\r\n", ":9\r\n:1\r\n"));
    CHECK(gradients_registry_save(server->replay->gradients, keep_saved, &list) && list.count == 4);
    close_server();
    for (int change = -1; change < 256; change += change < 10 ? 1 : 35) {
        for (uint32_t at = 0; at < (change < 0 ? 1 : 12); at++) {
            open_server(false, NULL);
            bool adopted = true;
            for (uint32_t i = 0; i < list.count; i++) {
                struct saved saved = list.items[i];
                if (change >= 0 && at < saved.length) saved.key[at] = (uint8_t)change;
                adopted &=
                    gradients_registry_adopt(server->replay->gradients, saved.key, change % 7 == 6 ? at : saved.length,
                                             saved.version, saved.blob, &error) == 0;
            }
            CHECK(adopted || change >= 0);
            peer = connect_peer();
            if (change < 0)
                CHECK(answers(peer, "GRAD.STATE g a b c\r\nGRAD.STATE h a\r\nGRAD.TAKE g 9 HEADERS\r\n",
                              "*3\r\n$7\r\nwaiting\r\n$7\r\napplied\r\n$7\r\nwaiting\r\n*1\r\n$7\r\ndropped\r\n"
                              "*4\r\n*2\r\n$1\r\na\r\n$1\r\nc\r\n*2\r\n:1\r\n:3\r\n$7\r\nfloat32\r\n:4\r\n"));
            say(peer, "GRAD.TAKE g 1 SUM 1\r\nGRAD.DROP g a b c\r\nGRAD.DEL g h\r\nGRAD.LIST\r\n");
            settle();
            close_server();
        }
    }
    for (uint32_t i = 0; i < list.count; i++) blob_release(list.items[i].blob);
}

static void a_publication_changes_all_or_nothing(void) {
    holding = false;
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    push_small(peer, "g", "a", "1");
    push_small(peer, "g", "b", "1");
    CHECK(answers(peer, "WEIGHTS.PUBLISH second 5 x\r\n", ":5\r\n"));
    static const char *const wrong[] = {
        "GRAD.PUBLISH g 5 1 a first x second y\r\n", /* a version that the second key has */
        "GRAD.PUBLISH g 6 2 a a first x\r\n",        "GRAD.PUBLISH g 6 2 a c first x\r\n",
        "GRAD.PUBLISH g 6 1 a first x first y\r\n",  "GRAD.PUBLISH g 6 1 a first\r\n",
        "GRAD.PUBLISH g 6 1 a first x second\r\n",   "GRAD.PUBLISH g 6 2 a first x\r\n",
        "GRAD.PUBLISH g -1 1 a first x\r\n",         "GRAD.PUBLISH g 6 1025 a first x\r\n",
        "GRAD.PUBLISH g 6 -1 a first x\r\n",         "GRAD.PUBLISH h 6 1 a first x\r\n",
        "GRAD.PUBLISH g 6 0 a first x\r\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        say(peer, wrong[i]);
        settle();
        CHECK(received_prefix(peer, "-"));
    }
    CHECK(answers(peer, "WEIGHTS.LIST\r\nGRAD.STATE g a b\r\n",
                  "*1\r\n$6\r\nsecond\r\n*2\r\n$7\r\nwaiting\r\n$7\r\nwaiting\r\n"));
    CHECK(answers(peer, "GRAD.PUBLISH g 6 1 b first x second y\r\n", ":6\r\n"));
    CHECK(answers(peer, "GRAD.STATE g a b c\r\nWEIGHTS.GET second\r\n",
                  "*3\r\n$7\r\nwaiting\r\n$7\r\napplied\r\n$-1\r\n*2\r\n:6\r\n$1\r\ny\r\n"));
    close_server();
}

int main(void) {
    RUN(a_sum_is_what_it_is_by_hand);
    RUN(sums_are_rounded_once);
    RUN(what_is_no_number_stays_so_and_zeros_keep_their_sign);
    RUN(every_path_and_every_cut_gives_the_same_bits);
    RUN(a_name_counts_once_while_it_waits_and_afterwards);
    RUN(names_are_forgotten_oldest_first_and_what_waits_is_bounded);
    RUN(what_is_remembered_comes_back_from_bytes_and_from_no_others);
    RUN(a_sum_outlives_its_gradients_however_bytes_are_released);
    RUN(a_client_that_goes_leaves_no_sum_behind);
    RUN(takers_wait_for_keys_that_come_and_go);
    RUN(who_waits_for_keys_that_are_not_there_makes_none);
    RUN(learners_wait_until_theirs_are_in_hand);
    RUN(each_of_many_who_wait_has_its_turn);
    RUN(what_was_saved_is_adopted_and_nothing_else_breaks_it);
    RUN(a_publication_changes_all_or_nothing);
    return 0;
}
