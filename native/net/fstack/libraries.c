/* libraries: what the transport is built on. F-Stack itself does not tell its version. */
#include <rte_version.h>

#include "net/transport.h"

const struct transport_library *transport_fstack_libraries(void) {
    static struct transport_library libraries[] = {{"dpdk", NULL}, {"fstack", "unknown"}, {NULL, NULL}};
    libraries[0].version = rte_version();
    return libraries;
}
