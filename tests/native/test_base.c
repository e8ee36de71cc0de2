/* test_base: heaps, lists, bits, writing, memory accounting, blobs, random numbers, checksums, workers, threads,
 * queues of bytes, histograms, text and msgpack. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/bitmap.h"
#include "base/blob.h"
#include "base/byte_queue.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/heap.h"
#include "base/histogram.h"
#include "base/list.h"
#include "base/memory.h"
#include "base/msgpack.h"
#include "base/power.h"
#include "base/power_kernel.h"
#include "base/random.h"
#include "base/recent_histogram.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/worker.h"
#include "base/write.h"
#include "check.h"

static void memory_counts_what_is_held(void) {
    size_t before = memory_used_bytes();
    void *a = memory_alloc(1000);
    CHECK(memory_used_bytes() >= before + 1000);
    a = memory_realloc(a, 100000);
    CHECK(memory_used_bytes() >= before + 100000);
    CHECK(memory_peak_bytes() >= before + 100000);
    memory_free(a);
    memory_free(NULL);
    CHECK(memory_used_bytes() == before);
    size_t mapped = memory_mapped_bytes();
    uint8_t *map = memory_map(1 << 20);
    CHECK(map && memory_mapped_bytes() == mapped + (1 << 20) && map[12345] == 0);
    memory_unmap(map, 1 << 20);
    CHECK(memory_mapped_bytes() == mapped);
}

static void large_blocks_are_freed_beside_the_caller(void) {
    size_t before = memory_used_bytes(), mapped = memory_mapped_bytes();
    CHECK(memory_start_reclaimer());
    for (int i = 0; i < 100; i++) {
        memory_free(memory_alloc(MEMORY_RECLAIM_HEAP_BYTES + 1));
        memory_free(memory_alloc(MEMORY_RECLAIM_BYTES + 1)); /* at once, since it comes from the heap */
        memory_unmap(memory_map(2 * MEMORY_RECLAIM_BYTES), 2 * MEMORY_RECLAIM_BYTES);
        memory_free(memory_alloc(10));
    }
    size_t huge_bytes = 50 * MEMORY_RECLAIM_BYTES + 12345; /* taken apart piece by piece */
    memory_free(memset(memory_alloc(huge_bytes), 1, huge_bytes));
    memory_unmap(memset(memory_map(huge_bytes), 1, huge_bytes), huge_bytes);
    memory_stop_reclaimer();
    CHECK(memory_used_bytes() == before && memory_mapped_bytes() == mapped);
    memory_free(memory_alloc(2 * MEMORY_RECLAIM_HEAP_BYTES)); /* without it, at once */
    CHECK(memory_used_bytes() == before);
}

/* The address space of a dropped table of the largest kind: 16 million pieces, 45 s of processor time. */
static void a_stop_does_not_wait_for_a_vast_mapping_to_go_piece_by_piece(void) {
    size_t mapped = memory_mapped_bytes(), vast_bytes = (size_t)1 << 46;
    CHECK(memory_start_reclaimer());
    void *vast = memory_map(vast_bytes);
    CHECK(vast);
    uint64_t began_us = clock_monotonic_us();
    memory_unmap(vast, vast_bytes);
    memory_stop_reclaimer();
    CHECK(clock_monotonic_us() - began_us < 20000000 && memory_mapped_bytes() == mapped);
}

/* Its mapping may be the last that holds a file without a name, whose memory then goes as well. */
static void a_large_file_is_let_go_of_beside_the_caller(void) {
    size_t mapped = memory_mapped_bytes(), size_bytes = 3 * MEMORY_RECLAIM_BYTES;
    FILE *unnamed = tmpfile();
    CHECK(unnamed);
    int descriptor = fileno(unnamed);
    CHECK(ftruncate(descriptor, (off_t)size_bytes) == 0);
    CHECK(pwrite(descriptor, "end", 3, (off_t)size_bytes - 3) == 3);
    CHECK(memory_start_reclaimer());
    const uint8_t *file = memory_map_file(descriptor, 0, size_bytes);
    CHECK(file && file[0] == 0 && memcmp(file + size_bytes - 3, "end", 3) == 0);
    CHECK(memory_mapped_bytes() > mapped + size_bytes);
    memory_unmap_file((void *)(uintptr_t)file, size_bytes);
    memory_stop_reclaimer();
    CHECK(memory_mapped_bytes() == mapped && !memory_map_file(-1, 0, size_bytes) && memory_mapped_bytes() == mapped);
    fclose(unnamed);
}

/* Its last part may be a page, and the file vast. */
static void a_file_is_let_go_of_beside_the_caller_however_little_is_mapped(void) {
    size_t mapped = memory_mapped_bytes(), vast_bytes = (size_t)1 << 46;
    FILE *unnamed = tmpfile();
    CHECK(unnamed && ftruncate(fileno(unnamed), 10) == 0);
    CHECK(memory_start_reclaimer());
    uint8_t *vast = memory_map(vast_bytes);
    const uint8_t *file = memory_map_file(fileno(unnamed), 0, 10);
    CHECK(vast && file);
    volatile uint8_t *touched = vast + (64 << 10);
    *touched = 1;
    memory_unmap(vast, vast_bytes);
    while (*touched) sched_yield(); /* until the reclaimer is at it, which has seconds to do there */
    size_t held = memory_mapped_bytes();
    memory_unmap_file((void *)(uintptr_t)file, 10);
    CHECK(memory_mapped_bytes() == held);
    memory_stop_reclaimer();
    CHECK(memory_mapped_bytes() == mapped);
    fclose(unnamed);
}

static void a_blob_goes_with_its_last_reference(void) {
    size_t before = memory_used_bytes();
    struct blob *blob = blob_new(5000);
    CHECK(blob && blob->length == 5000 && blob_retain(blob) == blob);
    blob_release(blob);
    blob->data[4999] = 1;
    blob_release(blob);
    blob_release(NULL);
    CHECK(memory_used_bytes() == before);
    CHECK(!blob_new(SIZE_MAX));
}

static void random_numbers_repeat_by_seed_and_are_uniform(void) {
    struct random_state a, b;
    random_seed(&a, 7);
    random_seed(&b, 7);
    for (int i = 0; i < 100; i++) CHECK(random_next(&a) == random_next(&b));
    uint32_t counts[6] = {0};
    for (int i = 0; i < 60000; i++) counts[random_below(&a, 6)]++;
    double chi_square = 0;
    for (int i = 0; i < 6; i++) chi_square += ((double)counts[i] - 10000) * ((double)counts[i] - 10000) / 10000;
    CHECK(chi_square < 20.5); /* 5 degrees of freedom, p = 0.001; the seed is fixed */
    for (int i = 0; i < 10000; i++) {
        double unit = random_unit(&a);
        CHECK(unit >= 0 && unit < 1);
        CHECK(random_below(&a, 1) == 0);
        CHECK(random_below(&a, (1ull << 63) + 1) <= 1ull << 63);
    }
    CHECK(random_entropy() != random_entropy());
}

static void quantiles_are_within_a_sixteenth(void) {
    static struct histogram histogram;
    CHECK(histogram_quantile(&histogram, 0.5) == 0);
    for (uint64_t value = 1; value <= 100000; value++) histogram_record(&histogram, value);
    CHECK(histogram.count == 100000 && histogram.max == 100000);
    const double quantiles[] = {0.01, 0.5, 0.9, 0.99, 0.999};
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        double exact = quantiles[i] * 100000;
        double found = (double)histogram_quantile(&histogram, quantiles[i]);
        CHECK(found >= exact && found <= exact * 1.0625 + 1);
    }
    CHECK(histogram_quantile(&histogram, 1) == 100000);
    histogram_record(&histogram, UINT64_MAX); /* beyond the last bucket: kept there */
    CHECK(histogram_quantile(&histogram, 1) == UINT64_MAX);
    histogram_reset(&histogram);
    CHECK(histogram.count == 0 && histogram_quantile(&histogram, 0.5) == 0);
}

#ifdef __linux__
static void *where_it_may_run(void *set) {
    CHECK(sched_getaffinity(0, sizeof(cpu_set_t), set) == 0);
    return NULL;
}

static void helpers_keep_off_the_processor_that_is_polled_on(void) {
    cpu_set_t all, one, got;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    thread_remember_processors();
    thread_avoid_processor(first);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0); /* as DPDK ties the thread that polls */
    pthread_t thread;
    CHECK(thread_start(&thread, where_it_may_run, &got) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
    if (CPU_COUNT(&all) > 1) CPU_CLR(first, &all);
    CHECK(CPU_EQUAL(&got, &all));
}
#endif

static void text_grows(void) {
    struct text text = {0};
    for (int i = 0; i < 1000; i++) text_append(&text, "%d,", i);
    text_append_bytes(&text, "end", 3);
    CHECK(!text.failed && strncmp(text.data, "0,1,2,", 6) == 0);
    CHECK(strcmp(text.data + text.length - 7, "999,end") == 0);
    text_free(&text);
    CHECK(!text.data && text.length == 0);
}

static void write_sample(struct msgpack_writer *writer) {
    static const char long_text[] = "a string of more than thirty-one bytes, which takes the longer form";
    msgpack_write_map(writer, 3);
    msgpack_write_string(writer, "numbers", 7);
    msgpack_write_array(writer, 9);
    msgpack_write_unsigned(writer, 5);
    msgpack_write_unsigned(writer, 200);
    msgpack_write_unsigned(writer, 60000);
    msgpack_write_unsigned(writer, 1u << 31);
    msgpack_write_unsigned(writer, UINT64_MAX);
    msgpack_write_signed(writer, -1);
    msgpack_write_signed(writer, -100000);
    msgpack_write_signed(writer, INT64_MIN);
    msgpack_write_double(writer, 0.1);
    msgpack_write_string(writer, "text", 4);
    msgpack_write_string(writer, long_text, sizeof long_text - 1);
    msgpack_write_boolean(writer, true);
    msgpack_write_nil(writer);
}

static void msgpack_reads_what_it_writes(void) {
    struct msgpack_writer writer = {0};
    write_sample(&writer);
    CHECK(!writer.failed);
    struct msgpack_reader reader = {writer.data, writer.data + writer.length};
    struct msgpack_value value;
    CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_MAP && value.count == 3);
    CHECK(msgpack_read(&reader, &value) && msgpack_string_is(&value, "numbers") &&
          !msgpack_string_is(&value, "number"));
    CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_ARRAY && value.count == 9);
    const uint64_t positive[] = {5, 200, 60000, 1u << 31, UINT64_MAX};
    for (int i = 0; i < 5; i++)
        CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_UNSIGNED && value.unsigned_integer == positive[i]);
    const int64_t negative[] = {-1, -100000, INT64_MIN};
    for (int i = 0; i < 3; i++)
        CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_SIGNED && value.signed_integer == negative[i]);
    CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_DOUBLE && value.real == 0.1);
    CHECK(msgpack_read(&reader, &value) && msgpack_string_is(&value, "text"));
    CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_STRING && value.bytes.length > 31);
    CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_BOOLEAN && value.boolean);
    CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_NIL);
    CHECK(!msgpack_read(&reader, &value));
    reader = (struct msgpack_reader){writer.data, writer.data + writer.length};
    CHECK(msgpack_skip(&reader) && reader.at == reader.end);
    memory_free(writer.data);
}

static void msgpack_refuses_what_is_cut_short_or_nested_too_deep(void) {
    struct msgpack_writer writer = {0};
    write_sample(&writer);
    for (size_t cut = 0; cut < writer.length; cut++) {
        /* A copy of exactly that size, so that a read beyond it is caught. */
        uint8_t *copy = memory_alloc(cut);
        memcpy(copy, writer.data, cut);
        struct msgpack_reader reader = {copy, copy + cut};
        CHECK(!msgpack_skip(&reader));
        memory_free(copy);
    }
    memory_free(writer.data);
    uint8_t nested[200];
    memset(nested, 0x91, sizeof nested); /* arrays of one element, in each other */
    struct msgpack_reader reader = {nested, nested + sizeof nested};
    CHECK(!msgpack_skip(&reader));
    const uint8_t lies[] = {0xdd, 0xff, 0xff, 0xff, 0xff, 0x01}; /* four billion elements in one byte */
    struct msgpack_value value;
    reader = (struct msgpack_reader){lies, lies + sizeof lies};
    CHECK(!msgpack_read(&reader, &value));
    const uint8_t extension[] = {0xd4, 0x01, 0x00};
    reader = (struct msgpack_reader){extension, extension + sizeof extension};
    CHECK(!msgpack_read(&reader, &value));
    const uint8_t single[] = {0xca, 0x3f, 0x80, 0x00, 0x00};
    reader = (struct msgpack_reader){single, single + sizeof single};
    CHECK(msgpack_read(&reader, &value) && value.type == MSGPACK_DOUBLE && value.real == 1.0);
}

static void a_checksum_is_the_same_by_either_way_and_that_of_the_standard(void) {
    static uint8_t bytes[40000];
    CHECK(crc32c(0, "123456789", 9) == 0xe3069283u); /* the check value of RFC 3720's polynomial */
    memset(bytes, 0, 32);
    CHECK(crc32c(0, bytes, 32) == 0x8a9136aau); /* RFC 3720, appendix B.4 */
    struct random_state random;
    random_seed(&random, 3);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)random_next(&random);
    for (int i = 0; i < 300; i++) {
        size_t from = random_below(&random, 64), length = random_below(&random, sizeof bytes - 64);
        size_t cut = random_below(&random, length + 1);
        uint32_t whole = crc32c(0, bytes + from, length);
        CHECK(whole == crc32c_portable(0, bytes + from, length));
        CHECK(whole == crc32c(crc32c(0, bytes + from, cut), bytes + from + cut, length - cut));
    }
}

struct counted_job {
    struct worker_job job;
    int number;
    int *done;
};

static void count_job(struct worker_job *base) {
    struct counted_job *job = (struct counted_job *)base;
    CHECK(*job->done == job->number); /* in the order given */
    ++*job->done;
}

static void a_worker_does_jobs_in_order_and_gives_them_back(void) {
    static struct counted_job jobs[1000];
    int done = 0, back = 0;
    struct worker *worker = worker_new();
    CHECK(worker);
    for (int i = 0; i < 1000; i++) {
        jobs[i] = (struct counted_job){.job.run = count_job, .number = i, .done = &done};
        worker_give(worker, &jobs[i].job);
    }
    while (back < 1000)
        for (struct worker_job *job = worker_wait(worker); job; job = job->next, back++)
            CHECK(((struct counted_job *)job)->number == back);
    CHECK(!worker_finished(worker));
    jobs[0].number = 1000;
    worker_give(worker, &jobs[0].job);
    worker_free(worker); /* does what it was given first */
    CHECK(done == 1001);
    worker_free(NULL);
}

#define QUEUED 3000000u

static uint8_t queued(size_t at) {
    return (uint8_t)(at * 2654435761u >> 16);
}

static void *take_queued(void *context) {
    uint8_t bytes[300];
    struct random_state random;
    size_t taken = 0, count;
    random_seed(&random, 2);
    while ((count = byte_queue_take(context, bytes, 1 + random_below(&random, sizeof bytes))) > 0)
        for (size_t i = 0; i < count; i++) CHECK(bytes[i] == queued(taken++));
    CHECK(taken == QUEUED);
    return NULL;
}

static void bytes_leave_a_queue_in_the_order_in_which_they_came(void) {
    struct byte_queue *queue = byte_queue_new(1000);
    struct random_state random;
    pthread_t thread;
    uint8_t bytes[700];
    random_seed(&random, 1);
    CHECK(queue && thread_start(&thread, take_queued, queue) == 0);
    for (size_t put = 0; put < QUEUED;) {
        size_t length = 1 + random_below(&random, sizeof bytes);
        if (length > QUEUED - put) length = QUEUED - put;
        for (size_t i = 0; i < length; i++) bytes[i] = queued(put + i);
        size_t count = byte_queue_put(queue, bytes, length);
        CHECK(count <= length);
        if (count == 0) sched_yield();
        put += count;
    }
    byte_queue_end(queue);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(byte_queue_put(queue, bytes, 700) == 700 && byte_queue_put(queue, bytes, 700) == 300);
    CHECK(byte_queue_put(queue, bytes, 1) == 0);
    byte_queue_free(queue);
    byte_queue_free(NULL);
}

static void powers_are_those_of_the_library_and_the_same_on_every_path(void) {
    static const double exponents[] = {0, 1e-3, 0.4, 0.5, 0.6, 0.9999, 1, 1.5, 3, 100};
    struct random_state random;
    random_seed(&random, 5);
    double x[1000], powers[1000], other[1000];
    for (int round = 0; round < 100; round++) {
        double exponent = exponents[round % 10];
        for (int i = 0; i < 1000; i++)
            x[i] = exp2(round % 3 ? 8 * random_unit(&random) - 4 : 2000 * random_unit(&random) - 1070);
        x[0] = 0, x[1] = 1, x[2] = 0x1p-1074, x[3] = 0x1p-1022, x[4] = 1e290, x[5] = nextafter(1, 0);
        power_many_scalar(x, exponent, 1000, powers);
        CHECK(powers[0] == 0 && powers[1] == 1);
        for (int i = 1; i < 1000; i++) {
            double expected = pow(x[i], exponent);
            if (expected >= 0x1p-1022 && expected <= 0x1p1022)
                CHECK(fabs(powers[i] - expected) <= 1e-13 * expected);
            else
                CHECK(expected < 1 ? powers[i] == 0x1p-1022 : powers[i] >= 0x1p1022);
        }
        for (uint32_t n = 1000; n > 980; n--) { /* whatever is left over after whole vectors */
            power_many(x, exponent, n, other);
            CHECK(memcmp(powers, other, n * sizeof *other) == 0);
#if CPU_X86
            if (cpu_simd_supported(CPU_AVX2)) {
                power_many_avx2(x, exponent, n, other);
                CHECK(memcmp(powers, other, n * sizeof *other) == 0);
            }
#endif
        }
    }
}

static void a_streamed_copy_is_a_copy(void) {
    enum { ROOM = 4096 };
    uint8_t from[ROOM], to[ROOM], expected[ROOM];
    for (int i = 0; i < ROOM; i++) from[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t bytes = 0; bytes < 3000; bytes += bytes < 700 ? 1 : 37) {
        for (size_t offset = 0; offset < 64; offset += 5) {
            memset(to, 0xaa, ROOM);
            memset(expected, 0xaa, ROOM);
            memcpy(expected + 100 + offset, from + 3 * offset, bytes);
            copy_streamed(to + 100 + offset, from + 3 * offset, bytes);
            copy_streamed_end();
            CHECK(memcmp(to, expected, ROOM) == 0);
        }
    }
}

static void streamed_pieces_come_to_lie_one_after_another(void) {
    enum { ROOM = 4096, LARGEST = 900 };
    uint8_t from[ROOM], to[ROOM], expected[ROOM];
    for (int i = 0; i < ROOM; i++) from[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t bytes = 64; bytes <= LARGEST; bytes += 11)
        for (uint32_t count = 1; count <= COPY_STREAM_PIECES; count++) {
            const uint8_t *pieces[COPY_STREAM_PIECES];
            memset(to, 0xaa, ROOM);
            memset(expected, 0xaa, ROOM);
            for (uint32_t k = 0; k < count; k++) {
                pieces[k] = from + (bytes * 13 + k * 1009) % (ROOM - LARGEST);
                memcpy(expected + 100 + k * bytes, pieces[k], bytes);
            }
            copy_streamed_pieces(to + 100, pieces, count, bytes);
            copy_streamed_end();
            CHECK(memcmp(to, expected, ROOM) == 0);
        }
}

static void a_recent_histogram_forgets_what_is_two_windows_old(void) {
    static struct recent_histogram recent;
    static struct histogram sum;
    uint64_t now_us = 1000 * (uint64_t)RECENT_WINDOW_US;
    CHECK(recent_histogram_read(&recent, now_us, &sum) == 0 && sum.count == 0);
    recent_histogram_record(&recent, 7, now_us);
    CHECK(recent_histogram_read(&recent, now_us + 5, &sum) == 5 && sum.count == 1 && sum.max == 7);
    recent_histogram_record(&recent, 9, now_us + RECENT_WINDOW_US); /* the next window: both are told of */
    CHECK(recent_histogram_read(&recent, now_us + RECENT_WINDOW_US + 3, &sum) == RECENT_WINDOW_US + 3);
    CHECK(sum.count == 2 && sum.sum == 16 && sum.max == 9);
    recent_histogram_record(&recent, 11, now_us + 2 * (uint64_t)RECENT_WINDOW_US); /* the first has gone */
    recent_histogram_read(&recent, now_us + 2 * (uint64_t)RECENT_WINDOW_US, &sum);
    CHECK(sum.count == 2 && sum.sum == 20);
    CHECK(recent_histogram_read(&recent, now_us + 9 * (uint64_t)RECENT_WINDOW_US, &sum) == 0 && sum.count == 0);
}

static void characters_are_those_of_utf8(void) {
    static const struct {
        const char *bytes;
        size_t length;
    } cases[] = {{"a", 1},        {"\xc3\xa9", 2}, {"\xe2\x98\x83", 3},     {"\xf0\x9f\x98\x80", 4},
                 {"\x80", 0},     {"\xc0\x80", 0}, {"\xe0\x9f\xbf", 0},     {"\xed\xa0\x80", 0},
                 {"\xc3", 0},     {"\xe2\x98", 0}, {"\xf0\x8f\xbf\xbf", 0}, {"\xf4\x90\x80\x80", 0},
                 {"\xf5\x80", 0}, {"\xc3\x28", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(text_character(cases[i].bytes, strlen(cases[i].bytes)) == cases[i].length);
}

struct heap_number {
    uint32_t number, place;
};

static bool number_before(const void *left, const void *right, const void *context) {
    (void)context;
    return (*(struct heap_number *const *)left)->number < (*(struct heap_number *const *)right)->number;
}

static void number_placed(const void *number, uint32_t at, void *context) {
    *(uint32_t *)context += 1;
    (*(struct heap_number *const *)number)->place = at;
}

static void a_heap_is_in_order_whatever_enters_changes_and_leaves(void) {
    struct heap_number numbers[200], *elements[200], *unused[200];
    uint32_t placed = 0, count = 0, unused_count = 200;
    struct random_state random;
    random_seed(&random, 11);
    for (uint32_t i = 0; i < 200; i++) unused[i] = &numbers[i];
    for (int step = 0; step < 20000; step++) {
        uint64_t what = random_below(&random, 3);
        uint32_t at = count > 0 ? (uint32_t)random_below(&random, count) : 0;
        struct heap_number *number = count > 0 ? elements[at] : NULL;
        if (count == 0 || (what == 0 && count < 200)) {
            number = unused[--unused_count];
            at = count++;
        } else if (what == 1) {
            unused[unused_count++] = number;
            number = elements[--count];
            if (at == count) continue;
        }
        if (what != 1 || count == 1) number->number = (uint32_t)random_below(&random, 1000);
        heap_settle((struct heap){elements, sizeof number, count, number_before, number_placed, &placed}, at, &number);
        for (uint32_t i = 0; i < count; i++) {
            CHECK(elements[i]->place == i);
            CHECK(i == 0 || elements[(i - 1) / 2]->number <= elements[i]->number);
        }
    }
    CHECK(placed > 10000);
}

struct thing {
    struct thing *next, *previous;
};

static void a_list_is_linked_both_ways(void) {
    struct thing *first = NULL, *last = NULL, *pushed = NULL, things[3], others[3];
    for (int i = 0; i < 3; i++) {
        LIST_APPEND(first, last, &things[i], next, previous);
        LIST_PUSH(pushed, &others[i], next, previous);
    }
    CHECK(first == &things[0] && things[0].next == &things[1] && things[1].next == &things[2] && last == &things[2]);
    CHECK(!things[2].next && things[2].previous == &things[1] && things[1].previous == first && !first->previous);
    CHECK(pushed == &others[2] && others[2].next == &others[1] && others[0].previous == &others[1] && !others[0].next);
    LIST_REMOVE(first, last, &things[1], next, previous);
    LIST_TAKE_OUT(pushed, &others[1], next, previous);
    CHECK(first->next == last && last->previous == first && pushed->next == &others[0] && others[0].previous == pushed);
    LIST_REMOVE(first, last, &things[0], next, previous);
    LIST_TAKE_OUT(pushed, &others[2], next, previous);
    CHECK(first == &things[2] && last == first && !first->previous && pushed == &others[0] && !pushed->previous);
    LIST_REMOVE(first, last, &things[2], next, previous);
    LIST_TAKE_OUT(pushed, &others[0], next, previous);
    CHECK(!first && !last && !pushed);
}

static void bits_are_set_one_by_one(void) {
    uint64_t words[3] = {0};
    CHECK(bitmap_bytes(0) == 0 && bitmap_bytes(1) == 8 && bitmap_bytes(64) == 8 && bitmap_bytes(129) == sizeof words);
    bitmap_set(words, 0);
    bitmap_set(words, 63);
    bitmap_set(words, 128);
    for (uint32_t bit = 0; bit < 129; bit++) CHECK(bitmap_has(words, bit) == (bit == 0 || bit == 63 || bit == 128));
}

static void all_is_written_or_the_reason_is_told(void) {
    char bytes[] = "one, two, three", read_back[32] = {0};
    struct iovec pieces[] = {{bytes, 5}, {bytes, 0}, {bytes + 5, 10}, {NULL, 0}};
    int ends[2];
    CHECK(pipe(ends) == 0);
    CHECK(write_all_pieces(ends[1], pieces, 4) == 0 && write_all(ends[1], "!", 1) == 0 &&
          write_all(ends[1], "", 0) == 0);
    CHECK(read(ends[0], read_back, sizeof read_back) == 16 && strcmp(read_back, "one, two, three!") == 0);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    size_t large = 1u << 20; /* more than a pipe holds: a part is taken, and then nothing */
    uint8_t *many = calloc(1, large);
    errno = 0;
    CHECK(write_all(ends[1], many, large) == -1 && errno == EAGAIN);
    free(many);
    close(ends[0]);
    close(ends[1]);
    CHECK(write_all(ends[1], "!", 1) == -1 && errno == EBADF);
}

int main(void) {
    RUN(a_heap_is_in_order_whatever_enters_changes_and_leaves);
    RUN(a_list_is_linked_both_ways);
    RUN(bits_are_set_one_by_one);
    RUN(all_is_written_or_the_reason_is_told);
    RUN(memory_counts_what_is_held);
    RUN(large_blocks_are_freed_beside_the_caller);
    RUN(a_stop_does_not_wait_for_a_vast_mapping_to_go_piece_by_piece);
    RUN(a_large_file_is_let_go_of_beside_the_caller);
    RUN(a_file_is_let_go_of_beside_the_caller_however_little_is_mapped);
    RUN(a_blob_goes_with_its_last_reference);
    RUN(random_numbers_repeat_by_seed_and_are_uniform);
    RUN(powers_are_those_of_the_library_and_the_same_on_every_path);
    RUN(a_streamed_copy_is_a_copy);
    RUN(streamed_pieces_come_to_lie_one_after_another);
    RUN(quantiles_are_within_a_sixteenth);
    RUN(a_recent_histogram_forgets_what_is_two_windows_old);
    RUN(characters_are_those_of_utf8);
    RUN(a_checksum_is_the_same_by_either_way_and_that_of_the_standard);
    RUN(a_worker_does_jobs_in_order_and_gives_them_back);
    RUN(bytes_leave_a_queue_in_the_order_in_which_they_came);
#ifdef __linux__
    RUN(helpers_keep_off_the_processor_that_is_polled_on);
#endif
    RUN(text_grows);
    RUN(msgpack_reads_what_it_writes);
    RUN(msgpack_refuses_what_is_cut_short_or_nested_too_deep);
    return 0;
}
