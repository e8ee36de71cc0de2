/* make_room: keeps what the server holds below maxmemory by letting keys go, as maxmemory-policy says. */
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

/* Makes room for `more` bytes. Takes no longer than maxmemory-eviction-tenacity allows. */
enum room make_room(struct server *server, size_t more_bytes);
/* Goes on where the time was over; true when it is over again. */
bool make_room_step(struct server *server);

#endif
