/* main_fstack: the executable with the data port over F-Stack. */
#include "server/process/process.h"

int main(int argc, char **argv) {
    static const struct data_transport fstack = {
        .program = "replay-server-fstack", .open = transport_fstack_new, .libraries = transport_fstack_libraries};
    return process_main(argc, argv, &fstack);
}
