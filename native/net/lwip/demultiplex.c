/* demultiplex: a hash table of connections by their ends. */
#include "net/lwip/demultiplex.h"

#include <arpa/inet.h>

#include <lwip/priv/tcp_priv.h>

#include "base/memory.h"
#include "base/random.h"
#include "net/lwip/connection.h"

static struct {
    struct lwip_connection **buckets;
    uint32_t shift; /* of a product's upper bits, to a bucket's number */
    uint64_t key; /* so that nobody can choose ports that share a bucket */
} table;

int demultiplex_open(uint32_t connections, struct error *error) {
    uint32_t bits = 4;
    while (bits < 24 && (1u << bits) < connections) bits++;
    table.buckets = memory_calloc((size_t)1 << bits, sizeof *table.buckets);
    if (!table.buckets) return error_set(error, ERROR_GENERIC, "no memory to find %u connections", connections);
    table.shift = 64 - bits;
    table.key = random_entropy();
    return 0;
}

void demultiplex_close(void) {
    memory_free(table.buckets);
    table.buckets = NULL;
}

static struct lwip_connection **bucket_of(const struct ends *ends) {
    uint64_t word = (uint64_t)ends->remote_address << 32 | (uint32_t)ends->remote_port << 16 | ends->local_port;
    word = (word ^ table.key) * 0x9e3779b97f4a7c15u; /* the golden ratio's, as Knuth has it */
    word = (word ^ word >> 32 ^ table.key) * 0xd6e8feb86659fd93u;
    return &table.buckets[word >> table.shift];
}

static bool is_of(const struct ends *left, const struct ends *right) {
    return left->remote_address == right->remote_address && left->remote_port == right->remote_port &&
           left->local_port == right->local_port;
}

void demultiplex_add(struct lwip_connection *connection) {
    const struct tcp_pcb *pcb = connection->pcb;
    connection->ends = (struct ends){.remote_address = ip4_addr_get_u32(ip_2_ip4(&pcb->remote_ip)),
                                     .remote_port = htons(pcb->remote_port),
                                     .local_port = htons(pcb->local_port)};
    struct lwip_connection **bucket = bucket_of(&connection->ends);
    connection->next_found = *bucket;
    *bucket = connection;
}

void demultiplex_remove(struct lwip_connection *connection) {
    struct lwip_connection **link = bucket_of(&connection->ends);
    while (*link != connection) link = &(*link)->next_found;
    *link = connection->next_found;
}

struct lwip_connection *demultiplex_find(const struct ends *ends) {
    if (!table.buckets) return NULL; /* at the end, when only lwIP's own connections are left */
    struct lwip_connection *connection = *bucket_of(ends);
    while (connection && !is_of(&connection->ends, ends)) connection = connection->next_found;
    return connection;
}

struct shortcut demultiplex_begin(const struct ends *ends) {
    struct lwip_connection *connection = demultiplex_find(ends);
    if (!connection || connection->pcb == tcp_active_pcbs || connection->pcb->state == TIME_WAIT)
        return (struct shortcut){0};
    struct shortcut shortcut = {.pcb = connection->pcb, .next = connection->pcb->next, .head = tcp_active_pcbs};
    tcp_active_pcbs = connection->pcb;
    return shortcut;
}

void demultiplex_end(const struct shortcut *shortcut) {
    if (!shortcut->pcb) return;
    bool removed = tcp_active_pcbs != shortcut->pcb; /* from what lwIP saw as its list */
    tcp_active_pcbs = shortcut->head;
    if (!removed) return;
    struct tcp_pcb *before = shortcut->head;
    while (before->next != shortcut->pcb) before = before->next;
    before->next = shortcut->next;
}
