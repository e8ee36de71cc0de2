/* disk_memory: space is reserved in steps before it is written, a full disk refuses, and pages come back from the file. */
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk_memory.h"
#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "own_folder.h"
#include "replay/block_pool.h"

#define PAGE_BYTES 4096u

static struct disk_memory *new_disk(const char *folder) {
    struct error error = {.code = ERROR_NONE};
    struct disk_memory *disk = disk_memory_new(folder, &error);
    if (!disk) fprintf(stderr, "%s\n", error.message);
    CHECK(disk);
    return disk;
}

static void space_is_reserved_in_steps(void) {
    struct disk_memory *disk = new_disk(".");
    struct disk_region *first = disk_region_new(disk, 1ull << 40), *second = disk_region_new(disk, 10);
    CHECK(first && second && second->size_bytes == (size_t)sysconf(_SC_PAGESIZE) &&
          disk_memory_backed_bytes(disk) == 0);
    CHECK(disk_region_back(second, 10) && second->backed_bytes == second->size_bytes);
    size_t bytes = 0;
    for (int i = 0; i < 1000; i++) {
        bytes += 7777;
        CHECK(disk_region_back(first, bytes) && first->backed_bytes >= bytes);
        memset(first->base + bytes - 7777, i, 7777);
    }
    for (int i = 0; i < 1000; i++)
        CHECK(first->base[i * 7777] == (uint8_t)i && first->base[i * 7777 + 7776] == (uint8_t)i);
    CHECK(disk_memory_backed_bytes(disk) < 300u << 20); /* not the whole of it */
    disk_memory_free(disk);
    CHECK(rmdir("x") < 0); /* nothing is left in the folder: it can be removed at the end */
}

static void evicted_pages_come_back(void) {
    struct disk_memory *disk = new_disk(".");
    struct disk_region *region = disk_region_new(disk, 100 * PAGE_BYTES);
    CHECK(disk_region_back(region, 100 * PAGE_BYTES));
    for (uint32_t i = 0; i < 100; i++) memset(region->base + i * PAGE_BYTES, (int)i, PAGE_BYTES);
    CHECK(pages_are_resident(region->base, region->size_bytes));
    CHECK(msync(region->base, region->size_bytes, MS_SYNC) == 0);
    bool evicted = madvise(region->base, region->size_bytes, 21 /* MADV_PAGEOUT */) == 0 &&
                   !pages_are_resident(region->base + 50 * PAGE_BYTES, 1);
    CHECK(pages_absent(region->base + 10 * PAGE_BYTES + 5, 3 * PAGE_BYTES) <= 4);
    CHECK(evicted || pages_absent(region->base, region->size_bytes) == 0);
    CHECK(pages_read(region->base + 10 * PAGE_BYTES + 5, 3 * PAGE_BYTES));
    CHECK(pages_are_resident(region->base + 10 * PAGE_BYTES, 4 * PAGE_BYTES));
    disk_memory_expect(disk, region->base + 40 * PAGE_BYTES, 10 * PAGE_BYTES, DISK_TO_READ);
    disk_memory_expect(disk, region->base + 60 * PAGE_BYTES, 10 * PAGE_BYTES, DISK_TO_WRITE);
    for (int i = 0; i < 10000 && !pages_are_resident(region->base + 40 * PAGE_BYTES, 10 * PAGE_BYTES); i++)
        usleep(1000);
    CHECK(pages_are_resident(region->base + 40 * PAGE_BYTES, 10 * PAGE_BYTES));
    for (uint32_t i = 0; i < 100; i++) CHECK(region->base[i * PAGE_BYTES + 17] == i);
    disk_memory_free(disk);
}

static void a_folder_that_cannot_be_written_is_refused(void) {
    struct error error = {.code = ERROR_NONE};
    CHECK(!disk_memory_new("no-such-folder", &error) && error.code == ERROR_GENERIC);
    CHECK(strstr(error.message, "no-such-folder") && strstr(error.message, "storage"));
}

enum { HELD = 500 };

/* Blocks come and go at random, and then in order: none overlaps another, and room that was left is used again. */
static void blocks_of_a_disk_keep_apart(void) {
    struct disk_memory *disk = new_disk(".");
    struct block_pool pool;
    struct random_state random;
    uint8_t *block[HELD] = {0};
    size_t size[HELD] = {0};
    random_seed(&random, 1);
    CHECK(block_pool_init(&pool, &(struct block_sizes){64, 8000, 8, 64u << 10}, HELD * 8000, disk) == 0);
    for (uint32_t round = 0; round < 60000; round++) {
        uint32_t i = round < 30000 ? (uint32_t)random_below(&random, HELD) : round % HELD;
        if (block[i]) {
            CHECK(block[i][0] == (uint8_t)i && block[i][size[i] / 2] == (uint8_t)i &&
                  block[i][size[i] - 1] == (uint8_t)i);
            block_pool_give(&pool, block[i]);
        }
        size[i] = 1 + random_below(&random, round < 15000 ? 900 : 8000);
        block[i] = block_pool_take(&pool, size[i]);
        CHECK(block[i]);
        memset(block[i], (int)i, size[i]);
    }
    for (uint32_t i = 0; i < HELD; i++) block_pool_give(&pool, block[i]);
    for (uint32_t i = 0; i < pool.fresh; i++) CHECK(pool.chunk[i].used == 0);
    for (uint32_t i = 0; i < pool.classes; i++) CHECK(pool.idle[i] == 0);
    block_pool_free(&pool);
    disk_memory_free(disk);
}

/* Needs the right to mount; without it nothing is checked. */
static void a_full_disk_refuses_and_kills_nobody(void) {
    CHECK(mkdir("full", 0700) == 0);
    if (mount("tmpfs", "full", "tmpfs", 0, "size=4m") != 0) {
        printf("skipped: only root may mount\n");
        CHECK(rmdir("full") == 0);
        return;
    }
    struct disk_memory *disk = new_disk("full");
    struct disk_region *region = disk_region_new(disk, 64u << 20);
    size_t bytes = 0;
    while (disk_region_back(region, bytes + 100000)) memset(region->base + bytes, 1, 100000), bytes += 100000;
    CHECK(bytes >= 3u << 20 && bytes < 4u << 20 && disk_memory_is_full(disk));
    struct error error;
    CHECK(disk_memory_refuse(disk, "3 items", &error) == -1 && error.code == ERROR_LIMIT);
    CHECK(strstr(error.message, "3 items") && strstr(error.message, "No space left"));
    struct block_pool pool;
    CHECK(block_pool_init(&pool, &(struct block_sizes){64, 1000, 8, 64u << 10}, 64u << 20, disk) == 0);
    uint32_t taken = 0;
    for (void *block; (block = block_pool_take(&pool, 900)); taken++) memset(block, 2, 900);
    CHECK(taken < 1100);
    block_pool_free(&pool);
    disk_memory_free(disk);
    int busy = 0; /* until the background has closed the file */
    for (int i = 0; i < 10000 && (busy = umount("full")) != 0; i++) usleep(1000);
    CHECK(busy == 0 && rmdir("full") == 0);
}

/* It is given back in the background, and the process may end meanwhile. */
static void a_large_one_goes_in_the_background(void) {
    struct disk_memory *disk = new_disk(".");
    struct disk_region *region = disk_region_new(disk, 1u << 30);
    CHECK(disk_region_back(region, 100u << 20));
    memset(region->base + (50u << 20), 1, 1u << 20);
    disk_memory_free(disk);
}

int main(void) {
    enter_own_folder();
    RUN(space_is_reserved_in_steps);
    RUN(evicted_pages_come_back);
    RUN(blocks_of_a_disk_keep_apart);
    RUN(a_folder_that_cannot_be_written_is_refused);
    RUN(a_full_disk_refuses_and_kills_nobody);
    RUN(a_large_one_goes_in_the_background);
    return 0;
}
