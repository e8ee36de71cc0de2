/* reply_reader: follows RESP2 replies to their ends without keeping them. Bytes are fed as they come, cut anywhere; bulk
 * strings are skipped, error replies (nested ones too) counted. */
#ifndef REPLAY_TOOLS_REPLY_READER_H
#define REPLAY_TOOLS_REPLY_READER_H

#include <stddef.h>
#include <stdint.h>

#define REPLY_LINE_BYTES 160 /* of a line: more of an error's text is not kept */
#define REPLY_DEPTH 8 /* of arrays within arrays */

enum reply_status {
    REPLY_MORE, /* all was consumed, and more is to come */
    REPLY_COMPLETE, /* a reply ended after `consumed` bytes */
    REPLY_MALFORMED /* this is no RESP2 */
};

/* Start with zeros. */
struct reply_reader {
    uint64_t errors;
    char first_error[REPLY_LINE_BYTES];
    /* how far it has come */
    char line[REPLY_LINE_BYTES];
    uint32_t line_length;
    uint64_t bulk_left; /* bytes of a bulk string to skip, its "\r\n" included */
    uint32_t depth;
    uint64_t elements_left[REPLY_DEPTH];
};

enum reply_status reply_reader_feed(struct reply_reader *reader, const uint8_t *data, size_t length, size_t *consumed);

#endif
