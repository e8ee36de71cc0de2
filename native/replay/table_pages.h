/* table_pages: which bytes of a table's file a batch reads, so that they can be brought into memory before it is copied. */
#ifndef REPLAY_REPLAY_TABLE_PAGES_H
#define REPLAY_REPLAY_TABLE_PAGES_H

#include "replay/table.h"

struct disk_memory;

struct page_run {
    const uint8_t *bytes;
    size_t size_bytes;
};

struct page_runs {
    struct page_run *runs;
    uint32_t count, capacity;
};

struct disk_memory *table_disk(const struct table *table); /* NULL: all of it is in memory */
/* Adds what these columns of these slots read of the table's file. Nothing of the file is looked at. -1: memory is exhausted. */
int table_list_pages(const struct table *table, const uint8_t *columns, uint32_t column_count, const uint32_t *slots,
                     uint32_t n, struct page_runs *runs);
void page_runs_free(struct page_runs *runs);
/* The index of the first run of which something is absent; `count`: all are there. */
uint32_t page_runs_first_absent(const struct page_runs *runs);
/* Reads these runs, on any thread, and adds how many pages were absent; they are put into another order, and those that
 * overlap become one. False: the disk cannot be read. */
bool page_runs_read(struct page_run *runs, uint32_t count, uint64_t *absent);

#endif
