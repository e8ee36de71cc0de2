/* main_bench_client: the executable replay-bench-client, which loads a server and measures it (see load_plan.c). */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tools/load.h"
#include "tools/option.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int fail(const struct error *error, int status) {
    fprintf(stderr, "replay-bench-client: %s\n", error->message);
    return status;
}

int main(int argc, char **argv) {
    static struct load_plan plan;
    struct load load;
    struct error error = {0};
    signal(SIGPIPE, SIG_IGN);
    int read = load_plan_read(&plan, argc, argv, &error);
    if (read > 0) return EXIT_DONE;
    if (read < 0) {
        load_plan_free(&plan);
        return fail(&error, EXIT_USAGE);
    }
    int status = EXIT_DONE;
    if (option_pin(plan.processor, &error) < 0 || load_open(&load, &plan, &error) < 0 || load_run(&load, &error) < 0)
        status = fail(&error, EXIT_FAILED);
    if (status == EXIT_DONE) {
        struct text out = {0};
        load_report(&load, &out);
        if (out.failed || printf("%s\n", out.data) < 0) status = EXIT_FAILED;
        text_free(&out);
        load_close(&load);
    }
    load_plan_free(&plan);
    return status;
}
