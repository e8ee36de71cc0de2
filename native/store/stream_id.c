#include "store/stream_id.h"

bool xstream_id_increment(struct xstream_id *id) {
    if (id->sequence == UINT64_MAX && id->ms == UINT64_MAX) return false;
    if (++id->sequence == 0) id->ms++;
    return true;
}

bool xstream_id_decrement(struct xstream_id *id) {
    if (id->sequence == 0 && id->ms == 0) return false;
    if (id->sequence-- == 0) id->ms--;
    return true;
}

static size_t put_number(char *text, uint64_t number) {
    char reversed[20];
    size_t digits = 0, length = 0;
    do {
        reversed[digits++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (digits > 0) text[length++] = reversed[--digits];
    return length;
}

size_t xstream_id_format(struct xstream_id id, char text[XSTREAM_ID_TEXT]) {
    size_t length = put_number(text, id.ms);
    text[length++] = '-';
    length += put_number(text + length, id.sequence);
    text[length] = '\0';
    return length;
}
