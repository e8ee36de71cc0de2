/* rdb_format: numbers of Redis's files and of the payloads of DUMP, as its published descriptions give them. */
#ifndef REPLAY_PERSIST_RDB_FORMAT_H
#define REPLAY_PERSIST_RDB_FORMAT_H

#define RDB_MAGIC "REDIS"
#define RDB_VERSION 10      /* that is written: Redis 7.0's */
#define RDB_VERSION_LEAST 1
#define RDB_VERSION_MOST 11 /* that is read: Redis 7.2's */
#define RDB_HEADER_BYTES 9u /* the magic and four digits */
#define RDB_CHECKSUM_VERSION 5 /* from which on a checksum ends the file */
#define RDB_FOOTER_BYTES 10u /* of a payload: its version (2) and its checksum (8) */

enum rdb_type {
    RDB_STRING = 0,
    RDB_LIST = 1,
    RDB_SET = 2,
    RDB_ZSET = 3, /* scores as text */
    RDB_HASH = 4,
    RDB_ZSET_2 = 5, /* scores as doubles */
    RDB_MODULE = 6,
    RDB_MODULE_2 = 7,
    RDB_HASH_ZIPMAP = 9,
    RDB_LIST_ZIPLIST = 10,
    RDB_SET_INTSET = 11,
    RDB_ZSET_ZIPLIST = 12,
    RDB_HASH_ZIPLIST = 13,
    RDB_LIST_QUICKLIST = 14, /* of ziplists */
    RDB_STREAM_LISTPACKS = 15,
    RDB_HASH_LISTPACK = 16,
    RDB_ZSET_LISTPACK = 17,
    RDB_LIST_QUICKLIST_2 = 18, /* of listpacks and single strings */
    RDB_STREAM_LISTPACKS_2 = 19,
    RDB_SET_LISTPACK = 20,
    RDB_STREAM_LISTPACKS_3 = 21,
};

/* What may stand where a type does in a file. */
enum rdb_mark {
    RDB_FUNCTION = 0xf5, /* a library's source */
    RDB_FUNCTION_EARLY = 0xf6,
    RDB_MODULE_DATA = 0xf7,
    RDB_IDLE = 0xf8,
    RDB_FREQUENCY = 0xf9,
    RDB_AUXILIARY = 0xfa,
    RDB_SIZES = 0xfb,
    RDB_EXPIRES_MS = 0xfc,
    RDB_EXPIRES_S = 0xfd,
    RDB_DATABASE = 0xfe,
    RDB_END = 0xff,
};

/* The highest two bits of a length. */
enum rdb_length_form {
    RDB_LENGTH_6 = 0,
    RDB_LENGTH_14 = 1,
    RDB_LENGTH_LONG = 2, /* 0x80: 32 bits, 0x81: 64 bits, the highest byte first */
    RDB_LENGTH_ENCODED = 3, /* no length: the form of a string */
};
enum rdb_string_form { RDB_INTEGER_8 = 0, RDB_INTEGER_16 = 1, RDB_INTEGER_32 = 2, RDB_LZF = 3 };

#endif
