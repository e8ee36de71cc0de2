#include "net/tls.h"

#ifdef REPLAY_TLS

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

#define RECORD_BYTES 16384u /* the most that one holds */

struct tls {
    SSL_CTX *context;
    char key_password[256];
};

struct tls_session {
    SSL *ssl;
    size_t offered;   /* to a write that must be repeated */
    bool has_more, needs_room, is_broken;
};

/* ---- set-up ------------------------------------------------------------------------------------------ */

/* OpenSSL's memory is counted with the rest. Only possible before it has any. */
static void *count_alloc(size_t size, const char *file, int line) {
    (void)file;
    (void)line;
    return memory_alloc(size);
}

static void *count_realloc(void *pointer, size_t size, const char *file, int line) {
    (void)file;
    (void)line;
    return memory_realloc(pointer, size);
}

static void count_free(void *pointer, const char *file, int line) {
    (void)file;
    (void)line;
    memory_free(pointer);
}

/* What OpenSSL complained of last. */
static int refuse(struct error *error, const char *what, const char *file) {
    char reason[256];
    unsigned long code = ERR_peek_last_error();
    ERR_error_string_n(code, reason, sizeof reason);
    const char *plain = ERR_reason_error_string(code);
    ERR_clear_error();
    return error_set(error, ERROR_GENERIC, "%s %s: %s", what, file, plain ? plain : reason);
}

static int give_password(char *out, int size, int writing, void *context) {
    (void)writing;
    const struct tls *tls = context;
    size_t length = strlen(tls->key_password);
    if (size < 0 || length > (size_t)size) return 0;
    memcpy(out, tls->key_password, length);
    return (int)length;
}

static int use_certificate(struct tls *tls, const struct tls_settings *settings, struct error *error) {
    const char *certificate = settings->certificate, *key = *settings->key ? settings->key : certificate;
    if (*certificate == '\0')
        return error_set(error, ERROR_GENERIC, "TLS needs a certificate: set tls-cert-file and tls-key-file");
    if (strlen(settings->key_password) >= sizeof tls->key_password)
        return error_set(error, ERROR_GENERIC, "tls-key-file-pass is longer than %zu bytes",
                         sizeof tls->key_password - 1);
    memcpy(tls->key_password, settings->key_password, strlen(settings->key_password) + 1);
    SSL_CTX_set_default_passwd_cb(tls->context, give_password);
    SSL_CTX_set_default_passwd_cb_userdata(tls->context, tls);
    if (SSL_CTX_use_certificate_chain_file(tls->context, certificate) != 1)
        return refuse(error, "tls-cert-file", certificate);
    if (SSL_CTX_use_PrivateKey_file(tls->context, key, SSL_FILETYPE_PEM) != 1)
        return refuse(error, "tls-key-file", key);
    if (SSL_CTX_check_private_key(tls->context) != 1) return refuse(error, "tls-key-file", key);
    return 0;
}

static int use_authorities(struct tls *tls, const struct tls_settings *settings, struct error *error) {
    const char *file = *settings->authorities ? settings->authorities : NULL;
    const char *folder = *settings->authorities_folder ? settings->authorities_folder : NULL;
    if ((file || folder) && SSL_CTX_load_verify_locations(tls->context, file, folder) != 1)
        return refuse(error, file ? "tls-ca-cert-file" : "tls-ca-cert-dir", file ? file : folder);
    if (settings->clients == TLS_CLIENTS_NEED_NOT) return 0;
    if (!file && !folder)
        return error_set(error, ERROR_GENERIC,
                         "clients' certificates are checked by tls-ca-cert-file or tls-ca-cert-dir: set one, or "
                         "tls-auth-clients no to ask for none");
    int mode = SSL_VERIFY_PEER | (settings->clients == TLS_CLIENTS_PROVE ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0);
    SSL_CTX_set_verify(tls->context, mode, NULL);
    return 0;
}

static int use_protocols(struct tls *tls, const char *words, struct error *error) {
    static const struct {
        const char *name;
        uint64_t forbid;
    } known[] = {{"TLSv1", SSL_OP_NO_TLSv1},
                 {"TLSv1.1", SSL_OP_NO_TLSv1_1},
                 {"TLSv1.2", SSL_OP_NO_TLSv1_2},
                 {"TLSv1.3", SSL_OP_NO_TLSv1_3}};
    uint64_t forbidden = SSL_OP_NO_TLSv1 | SSL_OP_NO_TLSv1_1;
    if (*words) forbidden |= SSL_OP_NO_TLSv1_2 | SSL_OP_NO_TLSv1_3;
    for (const char *at = words; *at;) {
        size_t length = strcspn(at, " ");
        size_t i = 0;
        while (i < 4 && !(strlen(known[i].name) == length && strncasecmp(known[i].name, at, length) == 0)) i++;
        if (length > 0 && i == 4)
            return error_set(error, ERROR_GENERIC,
                             "tls-protocols: expected some of TLSv1, TLSv1.1, TLSv1.2 and TLSv1.3, got '%s'", words);
        if (length > 0) forbidden &= ~known[i].forbid;
        at += length + (at[length] == ' ');
    }
    SSL_CTX_set_options(tls->context, forbidden);
    return 0;
}

static int configure(struct tls *tls, const struct tls_settings *settings, struct error *error) {
    static const unsigned char name[] = "replay-server";
    SSL_CTX *context = tls->context;
    /* A peer that goes without a good-bye is the end of the stream, as it is without TLS. */
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    if (settings->prefer_own_ciphers) SSL_CTX_set_options(context, SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_session_id_context(context, name, sizeof name - 1);
    if (settings->no_session_cache) {
        SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    }
    if (use_protocols(tls, settings->protocols, error) < 0 || use_certificate(tls, settings, error) < 0 ||
        use_authorities(tls, settings, error) < 0)
        return -1;
    if (*settings->ciphers && SSL_CTX_set_cipher_list(context, settings->ciphers) != 1)
        return refuse(error, "tls-ciphers", settings->ciphers);
    if (*settings->ciphersuites && SSL_CTX_set_ciphersuites(context, settings->ciphersuites) != 1)
        return refuse(error, "tls-ciphersuites", settings->ciphersuites);
    return 0;
}

struct tls *tls_new(const struct tls_settings *settings, struct error *error) {
    CRYPTO_set_mem_functions(count_alloc, count_realloc, count_free); /* refused the second time, which is as well */
    struct tls *tls = memory_calloc(1, sizeof *tls);
    if (tls) tls->context = SSL_CTX_new(TLS_method());
    if (!tls || !tls->context) {
        memory_free(tls);
        error_set(error, ERROR_GENERIC, "no memory for TLS");
        return NULL;
    }
    if (configure(tls, settings, error) == 0) return tls;
    tls_free(tls);
    return NULL;
}

void tls_free(struct tls *tls) {
    if (!tls) return;
    SSL_CTX_free(tls->context);
    OPENSSL_cleanse(tls->key_password, sizeof tls->key_password);
    memory_free(tls);
}

/* ---- sessions ---------------------------------------------------------------------------------------- */

struct tls_session *tls_session_new(struct tls *tls, int descriptor, bool connects) {
    struct tls_session *session = memory_calloc(1, sizeof *session);
    if (!session) return NULL;
    session->ssl = SSL_new(tls->context);
    if (session->ssl && SSL_set_fd(session->ssl, descriptor) == 1) {
        if (connects) {
            SSL_set_verify(session->ssl, SSL_VERIFY_PEER, NULL);
            SSL_set_connect_state(session->ssl);
        } else {
            SSL_set_accept_state(session->ssl);
        }
        return session;
    }
    ERR_clear_error();
    SSL_free(session->ssl);
    memory_free(session);
    return NULL;
}

void tls_session_free(struct tls_session *session) {
    if (!session) return;
    ERR_clear_error();
    if (!session->is_broken && SSL_is_init_finished(session->ssl)) SSL_shutdown(session->ssl);
    ERR_clear_error();
    SSL_free(session->ssl);
    memory_free(session);
}

/* What a call that moved nothing returns. */
static ssize_t outcome(struct tls_session *session, int result) {
    switch (SSL_get_error(session->ssl, result)) {
    case SSL_ERROR_WANT_WRITE: session->needs_room = true; return -1;
    case SSL_ERROR_WANT_READ: return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: session->is_broken = true; return -2;
    }
}

ssize_t tls_readv(struct tls_session *session, const struct iovec *vectors, int count) {
    size_t total = 0;
    session->has_more = session->needs_room = false;
    for (int i = 0; i < count; i++) {
        for (size_t filled = 0; filled < vectors[i].iov_len;) {
            size_t got = 0;
            ERR_clear_error();
            int result =
                SSL_read_ex(session->ssl, (uint8_t *)vectors[i].iov_base + filled, vectors[i].iov_len - filled, &got);
            if (result != 1) {
                ssize_t ended = outcome(session, result);
                return total > 0 ? (ssize_t)total : ended; /* what ended it will end the next read too */
            }
            filled += got;
            total += got;
            session->has_more = SSL_has_pending(session->ssl) == 1;
            /* After a record that was not full there is hardly another: a read to find out would be a call in vain. */
            if (!session->has_more && got < RECORD_BYTES) return (ssize_t)total;
        }
    }
    return (ssize_t)total;
}

/* How far a write has come. */
struct place {
    int vector;
    size_t skip; /* bytes of it that are written */
};

/* The next record's bytes: where they lie, if they lie together, else a copy. */
static const uint8_t *gather(const struct iovec *vectors, int count, const struct place *place, size_t *length) {
    static uint8_t together[RECORD_BYTES];
    const struct iovec *first = &vectors[place->vector];
    const uint8_t *begin = (const uint8_t *)first->iov_base + place->skip;
    size_t left = first->iov_len - place->skip;
    if (place->vector == count - 1 || left >= RECORD_BYTES) {
        *length = left < RECORD_BYTES ? left : RECORD_BYTES;
        return begin;
    }
    memcpy(together, begin, left);
    *length = left;
    for (int i = place->vector + 1; i < count && *length < RECORD_BYTES; i++) {
        size_t room = RECORD_BYTES - *length;
        size_t piece = vectors[i].iov_len < room ? vectors[i].iov_len : room;
        memcpy(together + *length, vectors[i].iov_base, piece);
        *length += piece;
    }
    return together;
}

static void advance(const struct iovec *vectors, int count, struct place *place, size_t written) {
    while (place->vector < count && written >= vectors[place->vector].iov_len - place->skip) {
        written -= vectors[place->vector++].iov_len - place->skip;
        place->skip = 0;
    }
    place->skip += written;
}

ssize_t tls_writev(struct tls_session *session, const struct iovec *vectors, int count) {
    struct place place = {0, 0};
    size_t total = 0;
    advance(vectors, count, &place, 0); /* over empty ones */
    while (place.vector < count) {
        size_t length, sent = 0;
        const uint8_t *bytes = gather(vectors, count, &place, &length);
        if (length < session->offered) return -2; /* OpenSSL has encrypted more than that already */
        ERR_clear_error();
        int result = SSL_write_ex(session->ssl, bytes, length, &sent);
        session->offered = result == 1 ? 0 : length;
        if (result != 1) {
            ssize_t ended = outcome(session, result);
            return total > 0 ? (ssize_t)total : ended == 0 ? -2 : ended;
        }
        total += sent;
        advance(vectors, count, &place, sent);
    }
    return (ssize_t)total;
}

bool tls_has_more(const struct tls_session *session) {
    return session->has_more;
}

bool tls_read_needs_room(const struct tls_session *session) {
    return session->needs_room;
}

bool tls_is_open(const struct tls_session *session) {
    return SSL_is_init_finished(session->ssl) == 1;
}

#else

struct tls *tls_new(const struct tls_settings *settings, struct error *error) {
    (void)settings;
    error_set(error, ERROR_GENERIC,
              "this build has no TLS: install OpenSSL's headers (libssl-dev) and build the package again");
    return NULL;
}

void tls_free(struct tls *tls) {
    (void)tls;
}

struct tls_session *tls_session_new(struct tls *tls, int descriptor, bool connects) {
    (void)tls;
    (void)descriptor;
    (void)connects;
    return NULL;
}

void tls_session_free(struct tls_session *session) {
    (void)session;
}

ssize_t tls_readv(struct tls_session *session, const struct iovec *vectors, int count) {
    (void)session;
    (void)vectors;
    (void)count;
    return -2;
}

ssize_t tls_writev(struct tls_session *session, const struct iovec *vectors, int count) {
    (void)session;
    (void)vectors;
    (void)count;
    return -2;
}

bool tls_has_more(const struct tls_session *session) {
    (void)session;
    return false;
}

bool tls_read_needs_room(const struct tls_session *session) {
    (void)session;
    return false;
}

bool tls_is_open(const struct tls_session *session) {
    (void)session;
    return false;
}

#endif
