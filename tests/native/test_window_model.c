/* test_window_model: random appends, items, draws and removals on a table with windows, and on plain arrays that keep whole
 * streams; compared after each. Once without compression, once with each codec of the build. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "replay/codec.h"
#include "replay/table_state.h"

#define FRAME_BYTES 600u
#define STREAMS 4u
#define MOST_STEPS 4096u
#define HISTORY 12u
#define CAPACITY 40u
#define PINS 24u
#define SEEN 9u /* steps that an item shows: obs, next, before */

enum { FRAME, NUMBER, OBS, NEXT, BEFORE, COLUMNS };

static struct error error;

struct model_stream {
    struct stream *stream;
    uint64_t seed[MOST_STEPS];
    uint32_t first[MOST_STEPS]; /* of the step's episode */
    uint32_t last[MOST_STEPS]; /* of the step's episode, as far as it goes */
    uint32_t steps, episode;
    bool open;
};

struct model_item {
    uint64_t id, seen[SEEN];
};

struct model {
    struct table *table;
    struct random_state random;
    struct model_stream streams[STREAMS];
    struct model_item items[CAPACITY];
    uint32_t size;
    struct {
        uint32_t slot;
        uint64_t seen[SEEN];
    } pins[PINS];
    uint32_t pin_count;
    uint64_t next_seed;
};

/* The frame of a step: every third is noise that no codec makes smaller. */
static void frame_of(uint64_t seed, uint8_t *frame) {
    struct random_state noise;
    random_seed(&noise, seed);
    for (uint32_t i = 0; i < FRAME_BYTES; i++)
        frame[i] = seed % 3 == 0 ? (uint8_t)random_below(&noise, 256) : (uint8_t)(seed + i / 64);
}

static struct table *new_table(enum step_codec codec) {
    struct table_config config = {.capacity = CAPACITY,
                                  .columns = COLUMNS,
                                  .sampler = SELECTOR_UNIFORM,
                                  .remover = SELECTOR_FIFO,
                                  .max_staleness = -1,
                                  .seed = 7};
    config.min_size_to_sample = 1;
    config.codec = codec;
    strcpy(config.name, "t");
    config.column[FRAME] = (struct column){
        .name = "frame", .kind = COLUMN_STEP, .type = COLUMN_UINT8, .item_bytes = FRAME_BYTES, .in_steps = true};
    config.column[NUMBER] = (struct column){.name = "number", .type = COLUMN_UINT64, .item_bytes = 8, .in_steps = true};
    config.column[OBS] = (struct column){.name = "obs", .kind = COLUMN_WINDOW, .source = FRAME, .length = 4};
    config.column[OBS].item_bytes = 4 * FRAME_BYTES;
    config.column[NEXT] = config.column[OBS];
    config.column[NEXT].offset = 3;
    config.column[BEFORE] = (struct column){.name = "before", .kind = COLUMN_WINDOW, .source = NUMBER, .offset = -2};
    config.column[BEFORE].item_bytes = 8;
    struct table *table = table_new(&config, &error);
    CHECK(table);
    return table;
}

/* ---- operations ---------------------------------------------------------------------------------------------------- */

static void open_stream(struct model *model, struct model_stream *stream) {
    stream->stream = table_stream_new(model->table, HISTORY, &error);
    CHECK(stream->stream);
    stream->steps = 0;
    stream->open = false;
}

static void close_stream(struct model *model) {
    struct model_stream *stream = &model->streams[random_below(&model->random, STREAMS)];
    table_stream_free(model->table, stream->stream);
    open_stream(model, stream);
}

static void model_step(struct model_stream *stream, uint64_t seed, uint8_t flags) {
    if (!stream->open || flags & STEP_FIRST) stream->episode = stream->steps;
    stream->open = !(flags & STEP_LAST);
    stream->seed[stream->steps] = seed;
    stream->first[stream->steps] = stream->episode;
    stream->steps++;
    for (uint32_t i = stream->episode; i < stream->steps; i++) stream->last[i] = stream->steps - 1;
}

/* Frames go in as they are, or as blocks. */
static void fill_frames(struct model *model, struct reservation *reservation, const uint8_t *frames, uint32_t n) {
    if (random_below(&model->random, 2)) {
        reservation_fill(reservation, FRAME, frames);
        return;
    }
    struct codec *codec = codec_new(table_config(model->table)->codec);
    uint8_t blocks[8 * FRAME_BYTES];
    uint32_t sizes[8];
    size_t length = codec_encode_steps(codec, frames, n, FRAME_BYTES, sizes, blocks);
    CHECK(reservation_fill_coded(reservation, FRAME, sizes, blocks, length, CLOCK_NEVER, &error) == 0);
    codec_free(codec);
}

static void append(struct model *model) {
    uint32_t n = 1 + (uint32_t)random_below(&model->random, 8);
    uint8_t frames[8 * FRAME_BYTES], flags[8];
    uint64_t numbers[8];
    struct stream *streams[8];
    struct reservation *reservation = table_reserve_steps(model->table, n, &error);
    CHECK(reservation);
    bool vanishes = random_below(&model->random, 10) == 0; /* a client */
    for (uint32_t i = 0; i < n; i++) {
        struct model_stream *stream = &model->streams[random_below(&model->random, STREAMS)];
        CHECK(stream->steps + n <= MOST_STEPS);
        streams[i] = stream->stream;
        numbers[i] = model->next_seed++;
        flags[i] = (uint8_t)(random_below(&model->random, 6) ? 0 : random_below(&model->random, 4));
        frame_of(numbers[i], frames + i * FRAME_BYTES);
        if (!vanishes) model_step(stream, numbers[i], flags[i]);
    }
    fill_frames(model, reservation, frames, n);
    reservation_fill(reservation, NUMBER, numbers);
    if (vanishes)
        reservation_release(reservation);
    else
        CHECK(table_append(model->table, reservation, streams, flags, &error) == 0);
}

/* What an item at a step shall show; false where it cannot be made yet, or no more. */
static bool expected(const struct model_stream *stream, uint32_t at, uint64_t *seen) {
    static const struct {
        int offset, length;
    } windows[] = {{0, 4}, {3, 4}, {-2, 1}};
    int oldest = stream->steps > HISTORY ? (int)(stream->steps - HISTORY) : 0, first = (int)stream->first[at];
    bool ended = !stream->open || stream->first[at] != stream->episode;
    if ((int)at < oldest) return false;
    for (uint32_t i = 0; i < 3; i++) {
        int end = (int)at + windows[i].offset;
        if (end > (int)stream->last[at]) {
            if (!ended) return false;
            end = (int)stream->last[at];
        }
        end = end < first ? first : end;
        for (int k = 0; k < windows[i].length; k++) {
            int step = end - windows[i].length + 1 + k;
            step = step < first ? first : step;
            if (step < oldest) return false;
            *seen++ = stream->seed[step];
        }
    }
    return true;
}

static void remove_item(struct model *model, uint32_t at) {
    model->size--;
    memmove(&model->items[at], &model->items[at + 1], (model->size - at) * sizeof model->items[0]);
}

static void make_item(struct model *model) {
    const struct model_stream *stream = &model->streams[random_below(&model->random, STREAMS)];
    if (stream->steps == 0) return;
    uint32_t back = (uint32_t)random_below(&model->random, stream->steps < 16 ? stream->steps : 16);
    uint64_t step = stream->steps - 1 - back, number = 7, id;
    struct model_item item;
    bool possible = expected(stream, (uint32_t)step, item.seen);
    struct reservation *reservation = table_reserve(model->table, 1, &error);
    CHECK(reservation);
    reservation_fill(reservation, NUMBER, &number);
    CHECK((table_resolve(model->table, reservation, &stream->stream, &step, NULL, &error) == 0) == possible);
    if (!possible || random_below(&model->random, 12) == 0) {
        reservation_release(reservation);
        return;
    }
    CHECK(table_commit(model->table, reservation, NULL, &id, &error) == 0);
    item.id = id;
    if (model->size == CAPACITY) remove_item(model, 0);
    model->items[model->size++] = item;
}

static void check_shown(const struct table *table, const uint32_t *slots, uint32_t n, const uint64_t (*seen)[SEEN]) {
    uint8_t *obs = malloc(n * 8 * FRAME_BYTES), *next = obs + n * 4 * FRAME_BYTES, frame[FRAME_BYTES];
    uint64_t before[8];
    table_gather(table, OBS, slots, n, obs);
    table_gather(table, NEXT, slots, n, next);
    table_gather(table, BEFORE, slots, n, before);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(before[i] == seen[i][8]);
        for (uint32_t k = 0; k < 8; k++) {
            const uint8_t *shown = (k < 4 ? obs : next) + (i * 4 + k % 4) * FRAME_BYTES;
            frame_of(seen[i][k], frame);
            CHECK(memcmp(shown, frame, FRAME_BYTES) == 0);
        }
    }
    free(obs);
}

static void sample(struct model *model) {
    uint32_t n = 1 + (uint32_t)random_below(&model->random, 8), slots[8];
    uint64_t ids[8], seen[8][SEEN];
    if (model->size == 0) return;
    CHECK(table_sample(model->table, n, 0, true, slots, ids, NULL, NULL, NULL, &error) == 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 0;
        while (at < model->size && model->items[at].id != ids[i]) at++;
        CHECK(at < model->size);
        memcpy(seen[i], model->items[at].seen, sizeof seen[i]);
    }
    check_shown(model->table, slots, n, seen);
    for (uint32_t i = 0; i < n; i++) {
        if (model->pin_count < PINS) {
            model->pins[model->pin_count].slot = slots[i];
            memcpy(model->pins[model->pin_count++].seen, seen[i], sizeof seen[i]);
        } else {
            table_unpin(model->table, &slots[i], 1);
        }
    }
}

static void unpin(struct model *model) {
    while (model->pin_count && random_below(&model->random, 4)) {
        uint32_t at = (uint32_t)random_below(&model->random, model->pin_count);
        check_shown(model->table, &model->pins[at].slot, 1, &model->pins[at].seen);
        table_unpin(model->table, &model->pins[at].slot, 1);
        model->pins[at] = model->pins[--model->pin_count];
    }
}

static void delete_one(struct model *model) {
    if (model->size) {
        uint32_t at = (uint32_t)random_below(&model->random, model->size);
        CHECK(table_delete(model->table, 1, &model->items[at].id) == 1);
        remove_item(model, at);
    }
}

/* ---- comparison ---------------------------------------------------------------------------------------------------- */

static int compare_seeds(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The steps in memory are those that a stream keeps, an item shows, or a pinned one that has left. */
static void compare(const struct model *model) {
    uint64_t seeds[STREAMS * HISTORY + (CAPACITY + PINS) * SEEN];
    uint32_t count = 0, distinct = 0;
    for (uint32_t i = 0; i < STREAMS; i++) {
        const struct model_stream *stream = &model->streams[i];
        for (uint32_t k = 0; k < HISTORY && k < stream->steps; k++)
            seeds[count++] = stream->seed[stream->steps - 1 - k];
    }
    for (uint32_t i = 0; i < model->size; i++) {
        memcpy(&seeds[count], model->items[i].seen, sizeof model->items[i].seen);
        count += SEEN;
    }
    for (uint32_t i = 0; i < model->pin_count; i++) {
        memcpy(&seeds[count], model->pins[i].seen, sizeof model->pins[i].seen);
        count += SEEN;
    }
    qsort(seeds, count, sizeof seeds[0], compare_seeds);
    for (uint32_t i = 0; i < count; i++) distinct += i == 0 || seeds[i] != seeds[i - 1];
    struct table_info info;
    table_info(model->table, &info);
    CHECK(info.steps == distinct && info.size == model->size && info.streams == STREAMS);
    CHECK(info.bytes == info.size * 8 + info.step_bytes);
    if (table_config(model->table)->codec == CODEC_NONE)
        CHECK(info.step_bytes == distinct * (FRAME_BYTES + 8));
    else
        CHECK(info.step_bytes <= distinct * (FRAME_BYTES + 8 + 80));
    CHECK(model->table->steps->reserved == 0);
}

static void run(enum step_codec codec, uint64_t seed) {
    struct model *model = calloc(1, sizeof *model);
    model->table = new_table(codec);
    model->next_seed = 1;
    random_seed(&model->random, seed);
    for (uint32_t i = 0; i < STREAMS; i++) open_stream(model, &model->streams[i]);
    for (int step = 0; step < 3000; step++) {
        switch (random_below(&model->random, 12)) {
        case 0:
        case 1:
        case 2: append(model); break;
        case 3:
        case 4:
        case 5:
        case 6: make_item(model); break;
        case 7:
        case 8: sample(model); break;
        case 9: unpin(model); break;
        case 10: delete_one(model); break;
        default:
            if (random_below(&model->random, 20) == 0) close_stream(model);
            break;
        }
        if (random_below(&model->random, 1000) == 0) {
            table_reset(model->table);
            model->size = 0;
        }
        compare(model);
    }
    while (model->pin_count) unpin(model);
    CHECK(model->table->steps->fresh < 1000); /* slots are used again */
    table_free(model->table);
    free(model);
}

static void windows_show_what_whole_streams_would(void) {
    static const enum step_codec codecs[] = {CODEC_NONE, CODEC_LZ4, CODEC_ZSTD};
    for (uint32_t i = 0; i < 3; i++)
        for (uint64_t seed = 1; codec_available(codecs[i]) && seed <= 4; seed++) run(codecs[i], 10 * i + seed);
    CHECK(memory_mapped_bytes() == 0 && memory_used_bytes() == 0);
}

int main(void) {
    RUN(windows_show_what_whole_streams_would);
    return 0;
}
