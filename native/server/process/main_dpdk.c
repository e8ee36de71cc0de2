/* main_dpdk: the executable whose data port is lwIP over a DPDK device. */
#include "server/process/process.h"

int main(int argc, char **argv) {
    static const struct data_transport dpdk = {
        .program = "replay-server-dpdk", .open = transport_dpdk_new, .libraries = transport_dpdk_libraries};
    return process_main(argc, argv, &dpdk);
}
