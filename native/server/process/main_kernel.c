/* main_kernel: the executable over kernel sockets alone. */
#include "server/process/process.h"

int main(int argc, char **argv) {
    static const struct data_transport kernel = {.program = "replay-server-kernel"};
    return process_main(argc, argv, &kernel);
}
