/* service_manager: reports the server's state to systemd (Type=notify). */
#ifndef REPLAY_SERVER_SERVICE_MANAGER_H
#define REPLAY_SERVER_SERVICE_MANAGER_H

/* Sends "READY=1", "STOPPING=1" and the like to the socket that NOTIFY_SOCKET names. Without one, or where nobody listens,
 * nothing happens: service does not depend on it. */
void service_manager_tell(const char *state);
/* Tells it nothing from now on: it started this server's parent, and hears of that process alone. */
void service_manager_ignore(void);
/* That settings are read again, as of now; "READY=1" ends it. */
void service_manager_tell_reloading(void);

#endif
