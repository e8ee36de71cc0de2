/* snapshot_format: the bytes of a snapshot file, as docs/snapshot.md writes them down: a header, then blocks of
 * records, each with its checksum. The last block says that the file is complete. All numbers are little-endian. */
#ifndef REPLAY_PERSIST_SNAPSHOT_FORMAT_H
#define REPLAY_PERSIST_SNAPSHOT_FORMAT_H

#include <stdint.h>

#include "base/limits.h"
#include "replay/table.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "snapshots, as all blobs of this server, are written by little-endian machines"
#endif

#define SNAPSHOT_MAGIC "RPLYSNAP"
#define SNAPSHOT_VERSION 3u
#define SNAPSHOT_NUMBERED_VERSION 3u /* the first that has a number */
#define SNAPSHOT_OLDEST_VERSION 1u /* that is read: without a store */
#define SNAPSHOT_HAS_STORE 1u /* contents: keys and weights are in it, though perhaps none */
#define SNAPSHOT_BLOCK_MAGIC 0x4b434c42u /* "BLCK" */
#define SNAPSHOT_BLOCK_BYTES (1u << 20) /* of a block, unless a single record is larger */
/* The largest item fits, or a key, a field and its value, and what is said of them. */
#define SNAPSHOT_MAX_BLOCK_BYTES (UINT32_MAX / 8 * 8ull)
#define SNAPSHOT_MAX_TABLES 4096u
#define SNAPSHOT_ALIGNMENT 8u /* of records in their block */

struct snapshot_file_header {
    char magic[8];
    uint32_t version;
    uint32_t tables;
    int64_t cut_unix_ms;
    char run_id[24]; /* of the server that wrote it; zeros where there is none */
    uint64_t number; /* one more than any snapshot of the folder had; before version 3: more of the run id */
    uint32_t contents;
    uint32_t checksum; /* CRC-32C of what stands before it */
};

struct snapshot_block_header {
    uint32_t magic;
    uint32_t records;
    uint64_t index; /* 0, 1, 2 … */
    uint32_t length; /* bytes of the records that follow */
    uint32_t payload_checksum;
    uint32_t reserved;
    uint32_t checksum; /* of this header up to here */
};

struct snapshot_record_header {
    uint32_t kind;
    uint32_t table; /* 0, 1, 2 … in the order in which they are described */
    uint64_t length; /* of the body, which is filled up with zeros to SNAPSHOT_ALIGNMENT */
};

/* Kinds of the file itself; those of a table's parts are in replay/cut_sink.h (TABLE_RECORD_…). */
#define SNAPSHOT_RECORD_TABLE 1u /* a table's description; comes before its parts */
#define SNAPSHOT_RECORD_KEYS 16u /* of database `table`: pieces (persist/store_piece.h) */
#define SNAPSHOT_RECORD_WEIGHTS 17u /* one piece of a string; the version stands in place of its expiry time */
#define SNAPSHOT_RECORD_GRADIENTS 18u /* likewise; gradients_registry.c says what their names and versions are */
#define SNAPSHOT_RECORD_LIBRARIES 19u /* one piece of a string: a library's name and code; 0 for its expiry time */
/* Four uint64: the server's epoch, the newest that it has heard of, the origin of its data, and 1 if they are a replica's.
 * Former files have the first two. */
#define SNAPSHOT_RECORD_EPOCHS 20u
#define SNAPSHOT_RECORD_END 9u /* two uint64: blocks before this one, records before this one; nothing follows */

_Static_assert(sizeof(struct snapshot_file_header) == 64, "as documented");
_Static_assert(sizeof(struct snapshot_block_header) == 32, "as documented");
_Static_assert(sizeof(struct snapshot_record_header) == 16, "as documented");
_Static_assert(SNAPSHOT_MAX_BLOCK_BYTES > TABLE_MAX_ITEM_BYTES + (1u << 20), "one item fits a block");
_Static_assert(SNAPSHOT_MAX_BLOCK_BYTES > 3 * LIMIT_BULK_MOST_BYTES + (1u << 20), "as does a field of a hash");

static inline uint64_t snapshot_padded(uint64_t length) {
    return (length + SNAPSHOT_ALIGNMENT - 1) / SNAPSHOT_ALIGNMENT * SNAPSHOT_ALIGNMENT;
}

#endif
