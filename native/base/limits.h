/* limits: every bound of the server, as a number. Those that CONFIG can change are only defaults here. */
#ifndef REPLAY_BASE_LIMITS_H
#define REPLAY_BASE_LIMITS_H

/* requests */
#define LIMIT_REQUEST_BYTES (1ull << 30)           /* all arguments of one request */
#define LIMIT_BULK_BYTES (512ull << 20)            /* one argument (proto-max-bulk-len) */
/* The most that LIMIT_BULK_BYTES may be raised to. Lengths of keys and values are kept in 32 bits, and so is the
 * length of a block of a snapshot, which a key, a field and its value must fit. */
#define LIMIT_BULK_MOST_BYTES (1ull << 30)
#define LIMIT_ARGUMENTS 1048576u
#define LIMIT_INLINE_BYTES 65536u /* an inline command's line */
#define LIMIT_UNAUTHENTICATED_BULK_BYTES 16384u /* as in Redis: a stranger cannot make the server hold much */
#define LIMIT_UNAUTHENTICATED_ARGUMENTS 10u

/* clients */
#define LIMIT_CLIENTS 10000u
#define LIMIT_ADMIN_CLIENTS 16u /* that an admin port lets in beyond maxclients */
#define LIMIT_DATABASES 16
#define LIMIT_CLIENT_NAME_BYTES 255u
#define LIMIT_HELD_KEYS 4096u /* that are carried to another shard at a time */
#define LIMIT_HOLD_US 10000000u /* how long requests for them wait at most */
#define LIMIT_PENDING_INPUT_BYTES 65536u /* bytes read from a client but not yet parsed */
#define LIMIT_OUTPUT_INLINE_BYTES (256ull << 20) /* reply bytes held for one client, blobs and sources apart */
/* A client with more than this unsent runs no further command. Many clients send a whole pipeline before they read,
 * so the bound is generous. Replies gathered from tables keep items pinned, so theirs is tight. */
#define LIMIT_OUTPUT_BACKLOG_BYTES (64u << 20)
#define LIMIT_SLICES_BACKLOG_BYTES (1u << 20) /* of a reply that is made in slices */
#define LIMIT_SOURCE_BACKLOG_BYTES (1u << 20)
#define LIMIT_CLIENT_STALL_TIMEOUT_S 60 /* output pending, or a request half sent, and no progress */
/* Replies in flight pin items. While another reply finds no items left to pin, a client is closed that takes nothing
 * of its reply for the first of these times, or has not taken it whole within the second. Otherwise only the stall
 * timeout counts. */
#define LIMIT_PINNED_STALL_US 1000000u
#define LIMIT_PINNED_US 10000000u
#define LIMIT_PINS_LACKED_US 5000000u /* how long that counts as being so */

/* Changed keys of which tracking clients have still to be told: with more they are told that everything has changed. */
#define LIMIT_TRACKING_CHANGED 100000u
#define LIMIT_TRACKING_KEYS 1000000 /* tracking-table-max-keys */

/* memory shared with clients of this host; committed as it is used */
#define LIMIT_SHARED_BYTES (1ll << 30)
#define LIMIT_SHARED_CLIENT_BYTES (256ll << 20)

/* scripts */
#define LIMIT_BUSY_REPLY_MS 5000 /* after which others hear BUSY, and may end a script */
#define LIMIT_SCRIPT_BYTES (64 << 20) /* memory of a Lua state: scripts have one, functions another */
#define LIMIT_SCRIPTS_EVALUATED 500u /* that EVAL has compiled and SCRIPT LOAD has not; the oldest go */
#define LIMIT_LIBRARY_LOAD_US 500000u /* the code of a library of functions, when it is loaded */
#define LIMIT_LIBRARY_RELOAD_US 10000000u /* the same from a file, at the start */

/* fairness: what one client may do in one turn of the loop */
/* (All clients that have many bytes to move share those of one turn, down to a least slice for each.) */
#define LIMIT_TURN_READ_BYTES (512u << 10) /* about 0.7 ms where it lands in memory that was never touched */
#define LIMIT_TURN_WRITE_BYTES (1u << 18)
#define LIMIT_TURN_WRITE_BLOB_BYTES \
    (3u << 20) /* where it lies in one piece: cheaper than what is gathered from tables */
#define LIMIT_TURN_LEAST_BYTES (16u << 10)
#define LIMIT_TURN_SHARE_BYTES (1u << 18) /* gathered into shared memory, for all clients together */
#define LIMIT_TURN_COMMANDS_US 500u /* then its remaining commands wait for the next turn */
#define LIMIT_TURN_US 1000u /* a turn with work that takes many of them ends about so late */
#define LIMIT_TURN_WORK_US 500u /* that work, all of it together, in one turn */
#define LIMIT_TURN_WORK_LEAST_US 100u /* of it, however late it is */
#define LIMIT_MAKE_ROOM_US 500u /* letting keys go before one command */
#define LIMIT_TURN_EXCLUSIVE_US 800u /* one slice of a script or a transaction */
#define LIMIT_TURN_TRACKING_US 500u /* telling clients that keys have changed of which they keep copies */
#define LIMIT_TURN_WAKE_US 500u /* retries of blocked clients */

/* stopping */
#define LIMIT_STOP_US 2000000u /* after SIGTERM pending replies get this long */

/* Files of snapshots: the newest, and of names that clients gave (settings snapshot-keep, snapshot-named-limit). */
#define LIMIT_SNAPSHOT_KEEP 3
#define LIMIT_SNAPSHOT_NAMED 64

#endif
