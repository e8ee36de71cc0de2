/* libraries: what the transport is built on. */
#include <lwip/init.h>
#include <rte_version.h>

#include "net/transport.h"

const struct transport_library *transport_dpdk_libraries(void) {
    static struct transport_library libraries[] = {{"dpdk", NULL}, {"lwip", LWIP_VERSION_STRING}, {NULL, NULL}};
    libraries[0].version = rte_version();
    return libraries;
}
