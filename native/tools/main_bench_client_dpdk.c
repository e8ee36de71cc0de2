/* main_bench_client_dpdk: the executable replay-bench-client-dpdk, the load client over the server's own stack on a DPDK
 * device, so that the kernel is on neither side. It asks for replies without a pause. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "net/transport.h"
#include "tools/load.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static const char usage[] =
    "usage: replay-bench-client-dpdk DEVICE ADDRESS/MASK MTU options\n"
    "\n"
    "The load client on a DPDK device. DEVICE is as of dpdk-device, ADDRESS/MASK its own IPv4 address, MTU 0 the\n"
    "device's. The options are those of replay-bench-client but --first, and --spin is always on.\n"
    "Retransmissions are not counted, and processor_s is the whole process's:\n\n";

struct bench {
    struct load load;
    struct transport *transport;
    uint32_t opened;
    uint64_t opened_by_ns; /* all connections stand by then, or it has failed */
    struct error error;
};

static void fail(struct bench *bench) {
    bench->transport->operations->stop(bench->transport);
}

static void lose(struct bench *bench, const char *why) {
    if (bench->error.code == ERROR_NONE) error_set(&bench->error, ERROR_GENERIC, "a connection was lost: %s", why);
    fail(bench);
}

static void send_more(struct bench *bench, struct load_connection *connection) {
    const struct load_request *request = &connection->role->requests[connection->turn];
    const struct transport_operations *operations = bench->transport->operations;
    while (connection->busy && connection->sent < request->size) {
        struct iovec rest = {.iov_base = request->bytes + connection->sent,
                             .iov_len = request->size - connection->sent};
        ssize_t went = operations->writev(connection->connection, &rest, 1);
        if (went == -2) return lose(bench, "it cannot be written to");
        if (went < 0) break;
        connection->sent += (size_t)went;
        bench->load.moved += (uint64_t)went;
    }
    bool wants = connection->busy && connection->sent < request->size;
    if (wants == connection->wants_write) return;
    connection->wants_write = wants;
    operations->want_write(connection->connection, wants);
}

static bool begin(struct bench *bench, struct load_connection *connection, uint64_t now_ns) {
    if (connection->busy || connection->due_ns > now_ns || load_done(&bench->load, connection, now_ns)) return false;
    load_begin(&bench->load, connection);
    send_more(bench, connection);
    return true;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void *on_opened(void *context, struct connection *connection) {
    struct bench *bench = context;
    struct load_connection *owner = connection->owner;
    owner->connection = connection;
    bench->opened++;
    return owner;
}

static void on_readable(void *context, void *owner) {
    struct bench *bench = context;
    struct load_connection *connection = owner;
    struct iovec room = {.iov_base = bench->load.buffer, .iov_len = LOAD_BUFFER_BYTES};
    ssize_t got = bench->transport->operations->readv(connection->connection, &room, 1);
    if (got == 0 || got == -2) return lose(bench, "the server closed it");
    if (got < 0) return;
    if (load_take(&bench->load, connection, bench->load.buffer, (size_t)got, &bench->error) < 0) return fail(bench);
    if (!connection->busy) begin(bench, connection, clock_monotonic_ns());
}

static void on_writable(void *context, void *owner) {
    send_more(context, owner);
}

static void on_released(void *context, void *owner, size_t size_bytes) {
    (void)context, (void)owner, (void)size_bytes;
}

static void on_closed(void *context, void *owner) {
    const struct load_connection *connection = owner;
    lose(context, connection->connection ? "the server closed it" : "the server does not answer, or refuses it");
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static uint64_t step(void *context) {
    struct bench *bench = context;
    struct load *load = &bench->load;
    if (bench->opened < load->connection_count) {
        if (clock_monotonic_ns() < bench->opened_by_ns) return 0;
        lose(bench, "the server does not answer");
        return UINT64_MAX;
    }
    uint64_t now_ns = clock_monotonic_ns();
    if (load->end_ns == 0) load_start(load, now_ns);
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < load->connection_count; i++) {
        struct load_connection *connection = &load->connections[i];
        if (connection->busy || load_done(load, connection, now_ns)) continue;
        if (!begin(bench, connection, now_ns) && connection->due_ns < next_ns) next_ns = connection->due_ns;
    }
    if (load->busy == 0 && next_ns == UINT64_MAX) bench->transport->operations->stop(bench->transport);
    if (load->busy > 0 && load_check_patience(load, &bench->error) < 0) fail(bench);
    return next_ns == UINT64_MAX || next_ns > now_ns + 1000000u ? 1000u : (next_ns - now_ns) / 1000u;
}

static int connect_all(struct bench *bench, const struct load_plan *plan) {
    for (uint32_t i = 0; i < bench->load.connection_count; i++)
        if (!transport_dpdk_connect(bench->transport, plan->host, plan->port, &bench->load.connections[i],
                                    &bench->error))
            return -1;
    bench->opened_by_ns = clock_monotonic_ns() + (uint64_t)(plan->patience_s * 1e9);
    return 0;
}

static int run(struct bench *bench, struct load_plan *plan, char **words) {
    const struct transport_events events = {.context = bench,
                                            .opened = on_opened,
                                            .readable = on_readable,
                                            .writable = on_writable,
                                            .released = on_released,
                                            .closed = on_closed};
    char *end;
    unsigned long mtu = strtoul(words[3], &end, 10);
    if (*words[3] == '\0' || *end != '\0' || mtu > UINT16_MAX)
        return error_set(&bench->error, ERROR_GENERIC, "MTU %s: expected a number of bytes, or 0", words[3]);
    if (plan->first.size > 0) return error_set(&bench->error, ERROR_GENERIC, "--first is not for clients over DPDK");
    if (load_make(&bench->load, plan, &bench->error) < 0) return -1;
    const struct transport_settings settings = {.device = words[1],
                                                .address = words[2],
                                                .gateway = "",
                                                .mtu = (uint16_t)mtu,
                                                .lcore = plan->processor,
                                                .eal_arguments = "",
                                                .offloads = "",
                                                .faults = "",
                                                .fstack_config = "",
                                                .max_connections = bench->load.connection_count};
    bench->transport = transport_dpdk_new(&settings, &events, &bench->error);
    if (!bench->transport) return -1;
    if (connect_all(bench, plan) == 0) bench->transport->operations->run(bench->transport, step, bench);
    return bench->error.code == ERROR_NONE ? 0 : -1;
}

int main(int argc, char **argv) {
    static struct load_plan plan;
    static struct bench bench;
    if (argc < 4 || argv[1][0] == '-') fputs(usage, argc > 1 && strcmp(argv[1], "--help") == 0 ? stdout : stderr);
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return load_plan_read(&plan, argc, argv, &bench.error) < 0;
    if (argc < 4 || argv[1][0] == '-') return EXIT_USAGE;
    if (load_plan_read(&plan, argc - 3, argv + 3, &bench.error) != 0) {
        fprintf(stderr, "replay-bench-client-dpdk: %s\n", bench.error.message);
        return EXIT_USAGE;
    }
    int status = EXIT_DONE;
    clock_t before = clock();
    if (run(&bench, &plan, argv) == 0) {
        bench.load.processor_ns = (uint64_t)(clock() - before) * (1000000000u / CLOCKS_PER_SEC);
        struct text out = {0};
        load_report(&bench.load, &out);
        if (out.failed || printf("%s\n", out.data) < 0) status = EXIT_FAILED;
        text_free(&out);
    } else {
        fprintf(stderr, "replay-bench-client-dpdk: %s\n", bench.error.message);
        status = EXIT_FAILED;
    }
    if (bench.transport) bench.transport->operations->free(bench.transport);
    if (bench.load.plan) load_close(&bench.load);
    load_plan_free(&plan);
    return status;
}
