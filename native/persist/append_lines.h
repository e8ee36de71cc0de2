/* append_lines: the lines that stand between the commands of an increment. They begin with '#', and readers of Redis's own
 * files pass over them:
 *   #SALT:0123456789abcdef:0123abcd        the first line: 64 random bits, and the CRC-32C of this line up to there
 *   #CRC:0123abcd:0123456789abcdef         CRC-32C of all bytes of the file before the line, and the salt
 *   #SYNCED:00000000abcd:0123456789abcdef  so many bytes, all before it, were on the disk when it was written; the salt
 * No client knows the salt, so no value of theirs can hold such a line. A file of earlier versions has none: its lines are
 * "#CRC:0123abcd" and "#SYNCED:…", which are worth less where they cannot be told from a value. The salt then comes in the
 * middle, where this version went on with the file, once all before it was on the disk. */
#ifndef REPLAY_PERSIST_APPEND_LINES_H
#define REPLAY_PERSIST_APPEND_LINES_H

#include <stddef.h>
#include <stdint.h>

#define APPEND_SALT_LINE 33u
#define APPEND_CHECKSUM_LINE 32u
#define APPEND_SYNCED_LINE 39u
#define APPEND_LONGEST_LINE APPEND_SYNCED_LINE
#define APPEND_OLD_CHECKSUM_LINE 15u /* of files without a salt */
#define APPEND_OLD_SYNCED_LINE 31u

/* These write a line, and return its length. `salt` 0: there is none. */
size_t append_salt_line(uint64_t salt, char line[APPEND_LONGEST_LINE + 1]);
size_t append_checksum_line(uint32_t checksum, uint64_t salt, char line[APPEND_LONGEST_LINE + 1]);
size_t append_synced_line(uint64_t size, uint64_t salt, char line[APPEND_LONGEST_LINE + 1]);

/* How long a line is that begins with '#', as the bytes tell that are there. */
size_t append_line_length(const uint8_t *bytes, size_t length);
/* The salt that a line tells of; 0: it tells of none. */
uint64_t append_line_salt(const uint8_t *bytes, size_t length);

#endif
