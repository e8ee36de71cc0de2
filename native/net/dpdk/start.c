/* start: DPDK prints all of its options to standard output when it is told one that it does not take. */
#include "net/dpdk/start.h"

#include <stdio.h>

#include <rte_eal.h>

int start_eal(int count, char **arguments) {
    FILE *before = stdout, *nowhere = fopen("/dev/null", "we");
    if (nowhere) stdout = nowhere; /* glibc and others have it as an ordinary variable; the descriptor stays as it is */
    int status = rte_eal_init(count, arguments);
    stdout = before;
    if (nowhere) fclose(nowhere); /* sets errno at most: rte_errno is another */
    return status;
}
