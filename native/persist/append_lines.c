/* append_lines: each line as text, and back. */
#include "persist/append_lines.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"

size_t append_salt_line(uint64_t salt, char line[APPEND_LONGEST_LINE + 1]) {
    int length = snprintf(line, APPEND_LONGEST_LINE + 1, "#SALT:%016" PRIx64, salt);
    uint32_t checksum = crc32c(0, line, (size_t)length);
    return (size_t)length +
           (size_t)snprintf(line + length, APPEND_LONGEST_LINE + 1 - (size_t)length, ":%08" PRIx32 "\r\n", checksum);
}

size_t append_checksum_line(uint32_t checksum, uint64_t salt, char line[APPEND_LONGEST_LINE + 1]) {
    if (salt == 0) return (size_t)snprintf(line, APPEND_LONGEST_LINE + 1, "#CRC:%08" PRIx32 "\r\n", checksum);
    return (size_t)snprintf(line, APPEND_LONGEST_LINE + 1, "#CRC:%08" PRIx32 ":%016" PRIx64 "\r\n", checksum, salt);
}

size_t append_synced_line(uint64_t size, uint64_t salt, char line[APPEND_LONGEST_LINE + 1]) {
    return (size_t)snprintf(line, APPEND_LONGEST_LINE + 1, "#SYNCED:%012" PRIx64 ":%016" PRIx64 "\r\n", size, salt);
}

size_t append_line_length(const uint8_t *bytes, size_t length) {
    if (length >= 3 && memcmp(bytes, "#SA", 3) == 0) return APPEND_SALT_LINE;
    if (length >= 3 && memcmp(bytes, "#SY", 3) == 0) {
        bool is_old = length >= APPEND_OLD_SYNCED_LINE && bytes[APPEND_OLD_SYNCED_LINE - 2] == '\r';
        return is_old ? APPEND_OLD_SYNCED_LINE : APPEND_SYNCED_LINE;
    }
    bool is_new = length >= APPEND_OLD_CHECKSUM_LINE && bytes[APPEND_OLD_CHECKSUM_LINE - 2] == ':';
    return is_new ? APPEND_CHECKSUM_LINE : APPEND_OLD_CHECKSUM_LINE;
}

uint64_t append_line_salt(const uint8_t *bytes, size_t length) {
    static const char name[] = "#SALT:";
    char expected[APPEND_LONGEST_LINE + 1], digits[17] = "";
    if (length < APPEND_SALT_LINE || memcmp(bytes, name, strlen(name)) != 0) return 0;
    memcpy(digits, bytes + strlen(name), sizeof digits - 1);
    uint64_t salt = strtoull(digits, NULL, 16);
    append_salt_line(salt, expected);
    return memcmp(bytes, expected, APPEND_SALT_LINE) == 0 ? salt : 0;
}
