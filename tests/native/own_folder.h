/* own_folder: the folder that a test writes files into: below $TMPDIR or /tmp, never in a checkout, and gone with the program. */
#ifndef REPLAY_TESTS_OWN_FOLDER_H
#define REPLAY_TESTS_OWN_FOLDER_H

#include <ftw.h>
#include <limits.h>
#include <unistd.h>

#include "check.h"

static char own_folder[PATH_MAX];
static pid_t own_folder_maker; /* its children leave it alone */

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)kind, (void)place;
    return remove(path);
}

static void remove_own_folder(void) {
    if (getpid() != own_folder_maker) return;
    if (chdir("/") != 0 || nftw(own_folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0) perror(own_folder);
}

/* Makes the folder, and makes it the current one. It is removed at exit, also when a CHECK fails. */
static inline void enter_own_folder(void) {
    const char *above = getenv("TMPDIR");
    if (!above || above[0] != '/') above = "/tmp";
    int length = snprintf(own_folder, sizeof own_folder, "%s/replay-test-XXXXXX", above);
    CHECK(length > 0 && (size_t)length < sizeof own_folder);
    own_folder_maker = getpid();
    CHECK(mkdtemp(own_folder) && atexit(remove_own_folder) == 0 && chdir(own_folder) == 0);
}

#endif
