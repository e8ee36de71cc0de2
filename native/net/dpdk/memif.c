#include "net/dpdk/memif.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_ether.h>

bool memif_is(const char *device) {
    return strncmp(device, "net_memif", strlen("net_memif")) == 0;
}

/* Its driver neither tells an MTU nor sets one: a frame is as long as a buffer. */
uint16_t memif_mtu(const char *device) {
    const char *at = strstr(device, ",bsize=");
    if (!at) return RTE_ETHER_MTU;
    unsigned long bytes = strtoul(at + strlen(",bsize="), NULL, 10);
    bytes -= bytes < RTE_ETHER_HDR_LEN ? bytes : RTE_ETHER_HDR_LEN;
    return (uint16_t)(bytes < MEMIF_MTU_MOST ? bytes : MEMIF_MTU_MOST);
}

int memif_check_path(const char *device, struct error *error) {
    const char *at = strstr(device, ",socket=");
    if (!at || !strstr(device, ",role=server") || !strstr(device, ",socket-abstract=no")) return 0;
    at += strlen(",socket=");
    char path[256];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(at, ","), at);
    if (access(path, F_OK) < 0) return 0;
    return error_set(error, ERROR_EXISTS,
                     "dpdk-device: socket=%s: the file is there already: remove it if the server that made it was "
                     "killed, or choose another path",
                     path);
}
