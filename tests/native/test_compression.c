/* Tests of what compressed steps stand on: the pool of blocks, the codecs, and what is refused of a client's blocks. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "replay/block_pool.h"
#include "replay/codec.h"
#include "replay/table_state.h"

static struct error error;

/* ---- the pool of blocks -------------------------------------------------------------------------------------------- */

#define HELD 400u

static void blocks_keep_apart_and_chunks_serve_again(void) {
    struct block_pool pool;
    struct random_state random;
    uint8_t *block[HELD] = {0};
    size_t size[HELD];
    random_seed(&random, 1);
    CHECK(block_pool_init(&pool, &(struct block_sizes){64, 20000, 8, 64u << 10}, HELD * 20000, NULL) == 0);
    for (int round = 0; round < 40000; round++) {
        uint32_t i = (uint32_t)random_below(&random, HELD);
        if (block[i]) {
            for (size_t k = 0; k < size[i]; k++) CHECK(block[i][k] == (uint8_t)i);
            block_pool_give(&pool, block[i]);
            block[i] = NULL;
        } else {
            /* Each phase has sizes of its own, so that chunks must change their class. */
            size[i] = 1 + random_below(&random, round < 20000 ? 900 : 20000);
            block[i] = block_pool_take(&pool, size[i]);
            CHECK(block[i] && block_pool_size(&pool, size[i]) >= size[i]);
            CHECK(size[i] < 256 || block_pool_size(&pool, size[i]) <= size[i] + size[i] / 8 + 16);
            memset(block[i], (int)i, size[i]);
        }
    }
    for (uint32_t i = 0; i < HELD; i++)
        if (block[i]) block_pool_give(&pool, block[i]);
    uint32_t fresh = pool.fresh;
    for (uint32_t i = 0; i < fresh; i++) CHECK(pool.chunk[i].used == 0);
    for (uint32_t i = 0; i < HELD; i++) CHECK((block[i] = block_pool_take(&pool, 20000)));
    CHECK(pool.fresh <= fresh + HELD / 3); /* most of it in chunks that other classes had */
    block_pool_free(&pool);
}

static void a_pool_that_is_used_up_says_so(void) {
    struct block_pool pool;
    uint32_t taken = 0;
    uint8_t *block, *last = NULL;
    CHECK(block_pool_init(&pool, &(struct block_sizes){64, 1000, 8, 64u << 10}, 100 * 1000, NULL) == 0);
    while ((block = block_pool_take(&pool, 1000))) {
        last = block;
        taken++;
    }
    CHECK(taken >= 100 && taken < 5000);
    block_pool_give(&pool, last);
    CHECK(block_pool_take(&pool, 1000) == last && !block_pool_take(&pool, 990));
    block_pool_free(&pool);
}

/* ---- codecs -------------------------------------------------------------------------------------------------------- */

static void what_is_encoded_is_decoded(enum step_codec kind) {
    struct codec *codec = codec_new(kind);
    struct random_state random;
    uint8_t step[5000], block[5000], again[5000];
    random_seed(&random, 3);
    CHECK(codec);
    for (size_t length = 1; length <= sizeof step; length += 1 + length / 7) {
        for (int noisy = 0; noisy < 2; noisy++) {
            for (size_t i = 0; i < length; i++)
                step[i] = noisy ? (uint8_t)random_below(&random, 256) : (uint8_t)(i / 200);
            size_t size = codec_encode(codec, step, length, block);
            CHECK(size <= length && (noisy || length < 300 || size < length / 4));
            CHECK(!noisy || size == length);
            memset(again, 255, sizeof again);
            CHECK(codec_is_block(codec, block, size, again, length));
            CHECK(kind != CODEC_LZ4 || (again[0] == 255 && again[length - 1] == 255)); /* no step was made */
            CHECK(codec_decode(codec, block, size, again, length) && memcmp(step, again, length) == 0);
            CHECK(!codec_decode(codec, block, size, again, length + 1));
            CHECK(length < 2 || size == length || !codec_decode(codec, block, size, again, length - 1));
        }
    }
    codec_free(codec);
}

/* What the four bits of a token have no room for; returns those. */
static uint8_t put_length(uint8_t *bytes, size_t *size, size_t length) {
    if (length < 15) return (uint8_t)length;
    for (length -= 15; length >= 255; length -= 255) bytes[(*size)++] = 255;
    bytes[(*size)++] = (uint8_t)length;
    return 15;
}

/* Sequences of LZ4 until they make `least` bytes, which a step's end may come too close to; returns how many they make. */
static size_t put_sequences(struct random_state *random, uint8_t *bytes, size_t *size, size_t least) {
    for (size_t made = 0;;) {
        bool is_last = made >= least;
        size_t literals = random_below(random, is_last ? 20 : random_below(random, 8) ? 8 : 300), token = (*size)++;
        bytes[token] = (uint8_t)(put_length(bytes, size, literals) << 4);
        for (size_t i = 0; i < literals; i++) bytes[(*size)++] = (uint8_t)(1 + random_below(random, 255));
        made += literals;
        if (is_last) return made;
        size_t distance = 1 + random_below(random, made + (made == 0 || random_below(random, 30) == 0));
        size_t match = 4 + random_below(random, random_below(random, 8) ? 20 : 700);
        bytes[(*size)++] = (uint8_t)distance;
        bytes[(*size)++] = (uint8_t)(distance >> 8);
        bytes[token] |= put_length(bytes, size, match - 4);
        made += match;
    }
}

/* Whether a block that nothing was made of is one. It is decoded later, and that must not fail. */
static bool judge(struct codec *codec, const uint8_t *block, size_t size, uint8_t *step, size_t length) {
    bool is_block = codec_is_block(codec, block, size, step, length);
    bool is_decoded = codec_decode(codec, block, size, step, length);
    CHECK(is_block == is_decoded);
    return is_block;
}

static void blocks_are_judged_as_they_are_decoded(void) {
    struct codec *codec = codec_new(CODEC_LZ4);
    struct random_state random;
    uint32_t taken = 0, refused = 0;
    random_seed(&random, 11);
    for (int round = 0; round < 100000; round++) {
        uint8_t bytes[2000];
        size_t size = 0, made = put_sequences(&random, bytes, &size, 110 + random_below(&random, 300));
        for (size_t length = made - 1; length <= made + 1; length++) {
            uint8_t *block = malloc(size), *step = malloc(length);
            memcpy(block, bytes, size);
            *(judge(codec, block, size, step, length) ? &taken : &refused) += 1;
            free(block);
            free(step);
        }
    }
    CHECK(taken > 10000 && refused > 10000);
    codec_free(codec);
}

/* Blocks come from clients: whatever they hold, nothing beyond the step is written. The sanitizer watches the edges. */
static void damaged_blocks_do_no_harm(enum step_codec kind) {
    struct codec *codec = codec_new(kind);
    struct random_state random;
    random_seed(&random, 5);
    for (int round = 0; round < 20000; round++) {
        size_t length = CODEC_LEAST_STEP_BYTES + random_below(&random, 500);
        uint8_t *step = malloc(length), *block = malloc(length), *again = malloc(length);
        for (size_t i = 0; i < length; i++) step[i] = (uint8_t)(i / 16 * random_below(&random, 2));
        size_t size = codec_encode(codec, step, length, block);
        size_t given = random_below(&random, 4) ? size : random_below(&random, size + 1);
        uint8_t *damaged = malloc(given ? given : 1);
        memcpy(damaged, block, given);
        for (uint64_t i = random_below(&random, 4); i-- > 0 && given;)
            damaged[random_below(&random, given)] = (uint8_t)random_below(&random, 256);
        judge(codec, damaged, given, again, length);
        free(damaged);
        free(step);
        free(block);
        free(again);
    }
    codec_free(codec);
}

/* ---- tables -------------------------------------------------------------------------------------------------------- */

static struct table *compressed_table(enum step_codec codec, uint64_t max_bytes) {
    struct table_config config = {.capacity = 1000,
                                  .columns = 3,
                                  .sampler = SELECTOR_UNIFORM,
                                  .remover = SELECTOR_FIFO,
                                  .max_staleness = -1,
                                  .seed = 7};
    config.min_size_to_sample = 1;
    config.codec = codec;
    config.max_bytes = max_bytes;
    strcpy(config.name, "t");
    config.column[0] = (struct column){
        .name = "frame", .kind = COLUMN_STEP, .type = COLUMN_UINT8, .item_bytes = 1000, .in_steps = true};
    config.column[1] = (struct column){
        .name = "obs", .kind = COLUMN_WINDOW, .type = COLUMN_UINT8, .item_bytes = 2000, .source = 0, .length = 2};
    config.column[2] = (struct column){.name = "x", .type = COLUMN_INT64, .item_bytes = 8};
    struct table *table = table_new(&config, &error);
    CHECK(table);
    return table;
}

static void blocks_that_are_none_are_refused(enum step_codec kind) {
    struct table *table = compressed_table(kind, 0);
    struct codec *codec = codec_new(kind);
    struct reservation *reservation = table_reserve_steps(table, 2, &error);
    uint8_t steps[2000] = {1, 2, 3}, blocks[2000];
    uint32_t sizes[2];
    size_t length = codec_encode_steps(codec, steps, 2, 1000, sizes, blocks);
    CHECK(length < 400);
    CHECK(reservation_fill_coded(reservation, 0, sizes, blocks, length - 1, CLOCK_NEVER, &error) == -1);
    CHECK(error.code == ERROR_BADSHAPE && strstr(error.message, "bytes of blocks"));
    const uint32_t large[2] = {1001, 10};
    CHECK(reservation_fill_coded(reservation, 0, large, blocks, 1011, CLOCK_NEVER, &error) == -1);
    CHECK(strstr(error.message, "got one of 1001 bytes at index 0"));
    blocks[sizes[0]] ^= 0x80;
    blocks[sizes[0] + 1] ^= 0x55;
    CHECK(reservation_fill_coded(reservation, 0, sizes, blocks, length, CLOCK_NEVER, &error) == 0);
    struct stream *stream = table_stream_new(table, 8, &error);
    CHECK(table_append(table, reservation, (struct stream *[]){stream, stream}, NULL, &error) == -1);
    CHECK(error.code == ERROR_BADSHAPE && strstr(error.message, "at index 1 that is none"));
    CHECK(stream_steps(stream) == 0);
    reservation_release(reservation);
    CHECK(table->steps->occupied == 0 && table->steps->reserved == 0);
    for (uint32_t i = 0; i < table->steps->coded.pool.fresh; i++) CHECK(table->steps->coded.pool.chunk[i].used == 0);
    codec_free(codec);
    table_free(table);
}

/* However short the slices, they come to an end, and mean the same. */
static void coding_goes_on_where_it_stopped(enum step_codec kind) {
    struct table *table = compressed_table(kind, 0);
    struct reservation *reservation = table_reserve_steps(table, 100, &error);
    struct stream *stream = table_stream_new(table, 128, &error), *streams[100];
    uint8_t *steps = malloc(100 * 1000), obs[2000];
    uint64_t at[2] = {42, 99}, ids[2], x[2] = {1, 2};
    uint32_t slots[2];
    int slices = 0, left;
    for (uint32_t i = 0; i < 100; i++) {
        memset(steps + i * 1000, (int)i, 1000);
        streams[i] = stream;
    }
    reservation_fill(reservation, 0, steps);
    while ((left = reservation_code(reservation, 0, &error)) == 1) /* the deadline has passed each time */
        slices++;
    CHECK(left == 0 && slices == 3); /* 27 values in each but the last */
    CHECK(table_append(table, reservation, streams, NULL, &error) == 0);
    struct reservation *items = table_reserve(table, 2, &error);
    reservation_fill(items, 2, x);
    CHECK(table_resolve(table, items, streams, at, NULL, &error) == 0);
    CHECK(table_commit(table, items, NULL, ids, &error) == 0);
    CHECK(table_get(table, 2, ids, 0, slots, NULL, &error) == 0);
    for (uint32_t i = 0; i < 2; i++) {
        table_gather(table, 1, &slots[i], 1, obs);
        CHECK(obs[0] == at[i] - 1 && obs[999] == at[i] - 1 && obs[1000] == at[i] && obs[1999] == at[i]);
    }
    table_unpin(table, slots, 2);
    free(steps);
    table_free(table);
}

static void compressed_steps_count_as_what_they_take(enum step_codec kind) {
    struct table *table = compressed_table(kind, 20000);
    struct stream *stream = table_stream_new(table, 8, &error);
    CHECK(stream);
    uint64_t id, x = 1;
    for (uint64_t step = 0; step < 500; step++) {
        struct reservation *steps = table_reserve_steps(table, 1, &error);
        uint8_t frame[1000];
        memset(frame, (int)step, sizeof frame);
        reservation_fill(steps, 0, frame);
        CHECK(table_append(table, steps, &stream, NULL, &error) == 0);
        struct reservation *item = table_reserve(table, 1, &error);
        reservation_fill(item, 2, &x);
        CHECK(table_resolve(table, item, &stream, &step, NULL, &error) == 0);
        CHECK(table_commit(table, item, NULL, &id, &error) == 0);
    }
    struct table_info info;
    table_info(table, &info);
    CHECK(info.bytes <= 20000 && info.bytes > 19500);
    CHECK(info.steps > 200 && info.step_bytes == info.bytes - 8 * info.size); /* 20 would fit as they were */
    uint32_t slot;
    uint8_t obs[2000];
    size_t size_bytes;
    CHECK(table_get(table, 1, &id, 0, &slot, NULL, &error) == 0);
    table_gather(table, 1, &slot, 1, obs);
    CHECK(obs[0] == (uint8_t)498 && obs[999] == (uint8_t)498 && obs[1000] == (uint8_t)499);
    CHECK(table_window_step(table, 1, slot, 0, &size_bytes) && size_bytes < 100);
    table_unpin(table, &slot, 1);
    table_free(table);
}

int main(void) {
    static const enum step_codec codecs[] = {CODEC_LZ4, CODEC_ZSTD};
    RUN(blocks_keep_apart_and_chunks_serve_again);
    RUN(a_pool_that_is_used_up_says_so);
    if (codec_available(CODEC_LZ4)) RUN(blocks_are_judged_as_they_are_decoded);
    for (uint32_t i = 0; i < 2; i++) {
        printf("%s: %s\n", codec_name(codecs[i]), codec_available(codecs[i]) ? "in this build" : "not in this build");
        if (codec_available(codecs[i])) {
            what_is_encoded_is_decoded(codecs[i]);
            damaged_blocks_do_no_harm(codecs[i]);
            blocks_that_are_none_are_refused(codecs[i]);
            coding_goes_on_where_it_stopped(codecs[i]);
            compressed_steps_count_as_what_they_take(codecs[i]);
        }
    }
    CHECK(memory_mapped_bytes() == 0 && memory_used_bytes() == 0);
    return 0;
}
