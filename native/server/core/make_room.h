/* make_room: keeps memory below maxmemory by evicting keys, as maxmemory-policy says. */
#ifndef REPLAY_SERVER_MAKE_ROOM_H
#define REPLAY_SERVER_MAKE_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server;

enum room {
    ROOM_ENOUGH,
    ROOM_LATER, /* the time is over: the loop goes on making room, and nothing is refused meanwhile */
    ROOM_NONE,  /* nothing more may go */
};

struct room_kept {
    enum room last;    /* that there was when it was last asked for */
    bool is_asked_for; /* the next turn looks whether keys must go */
};

/* Makes room for `more` bytes. Takes no longer than maxmemory-eviction-tenacity allows. */
enum room make_room(struct server *server, size_t more_bytes);
/* The limit or the policy may be another: the next turn of the loop looks whether keys must go. */
void make_room_soon(struct server *server);
/* Goes on where the time was over, and does what make_room_soon asked for; true when there is more to do. */
bool make_room_step(struct server *server);

#endif
