/* append_load: what a start does to an append-only file whose end is incomplete. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "own_folder.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server_stage.h"

/* In place of libc's: in which order it is cut, written to and brought to the disk. */
static char order[64];
static size_t calls;

static void note(char call) {
    if (calls + 1 < sizeof order) order[calls++] = call;
}

int ftruncate(int descriptor, off_t length) {
    note('c');
    return (int)syscall(SYS_ftruncate, descriptor, length);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t length, off_t at) {
    note('w');
    return syscall(SYS_pwrite64, descriptor, bytes, length, at);
}

ssize_t writev(int descriptor, const struct iovec *pieces, int count) {
    note('w');
    return syscall(SYS_writev, descriptor, pieces, count);
}

int fsync(int descriptor) {
    note('s');
    return (int)syscall(SYS_fsync, descriptor);
}

int fdatasync(int descriptor) {
    note('s');
    return (int)syscall(SYS_fdatasync, descriptor);
}

static void keep_log(struct server_config *config) {
    config->appendonly = 1;
}

/* Returns what the start says. */
static struct text start(void) {
    struct error error;
    struct text said = {0};
    open_server(false, keep_log);
    CHECK(append_log_start(server->durability->append_log, &said, &error) == 0);
    return said;
}

/* Otherwise a loss of power could leave what was written in place of the tail, and behind that the rest of the tail. */
static void a_tail_is_cut_off_on_the_disk_before_anything_is_written_in_its_place(void) {
    struct text said = start();
    text_free(&said);
    CHECK(answers(connect_peer(), "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n", "+OK\r\n"));
    close_server();
    int descriptor = open("appendonlydir/appendonly.aof.1.incr.aof", O_WRONLY | O_APPEND);
    CHECK(descriptor >= 0 && write(descriptor, "*3\r\n$3\r\nSE", 10) == 10);
    close(descriptor);
    calls = 0;
    memset(order, 0, sizeof order);
    said = start();
    CHECK(strstr(said.data, "its last 10 bytes") && strncmp(order, "cs", 2) == 0);
    text_free(&said);
    CHECK(answers(connect_peer(), "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", "$5\r\nvalue\r\n"));
    close_server();
}

static void write_file(const char *name, const char *text) {
    int descriptor = open(name, O_WRONLY | O_CREAT, 0600);
    CHECK(descriptor >= 0 && write(descriptor, text, strlen(text)) == (ssize_t)strlen(text));
    close(descriptor);
}

static void follow_and_keep_log(struct server_config *config) {
    config->appendonly = 1;
    strcpy(config->appenddirname, "replica");
    strcpy(config->replication.follows, "127.0.0.1 1");
}

/* It had appended to the key of its primary, whose time was not over there; and it was over when the replica started again. */
static void a_replica_reads_what_came_of_keys_whose_time_is_over_now(void) {
    struct error error;
    struct text said = {0};
    CHECK(mkdir("replica", 0700) == 0);
    write_file("replica/appendonly.aof.manifest", "file appendonly.aof.1.incr.aof seq 1 type i\n");
    write_file("replica/appendonly.aof.1.incr.aof",
               "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n"
               "*3\r\n$9\r\nPEXPIREAT\r\n$3\r\nkey\r\n$4\r\n1000\r\n*3\r\n$6\r\nAPPEND\r\n$3\r\nkey\r\n$3\r\nand\r\n"
               "*2\r\n$7\r\nPERSIST\r\n$3\r\nkey\r\n");
    open_server(false, follow_and_keep_log);
    CHECK(append_log_start(server->durability->append_log, &said, &error) == 0);
    text_free(&said);
    CHECK(answers(connect_peer(), "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", "$8\r\nvalueand\r\n"));
    close_server();
}

int main(void) {
    enter_own_folder();
    RUN(a_tail_is_cut_off_on_the_disk_before_anything_is_written_in_its_place);
    RUN(a_replica_reads_what_came_of_keys_whose_time_is_over_now);
    return 0;
}
