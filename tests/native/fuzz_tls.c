/* fuzz_tls: a server behind TLS on sockets, whose clients cut, damage, withhold and end what they send wherever they like.
 * Whoever sends what TLS allows gets exactly the replies that belong to its requests; nobody else takes the server along.
 *
 * An input is a row of steps of four bytes: who does what, and a seed for how. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "net/transport.h"
#include "server/core/server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
void fuzz_report(void);
/* Inputs are cut and joined at multiples of this. */
extern const size_t fuzz_unit;
const size_t fuzz_unit = 4;

#define PEERS 4u
#define MOST_STEPS 200u
#define MOST_EXPECTED (4u << 20)

struct peer {
    int number; /* of the socket; −1: none */
    SSL *ssl; /* NULL: it speaks plainly, or not at all */
    BIO *in, *out; /* what was received and not looked at, what is not sent yet */
    bool is_broken; /* it has sent what TLS does not allow, or no more: what it gets is not looked at */
    uint8_t *expected; /* replies, */
    size_t expected_length, expected_at; /* and how far they were received */
};

static struct server *server;
static struct transport *transport;
static struct listen_address address;
static struct peer peers[PEERS];
static SSL_CTX *client_context;
static SSL_SESSION *session; /* of a connection before, to go on with */
static char certificate_path[64];
static uint64_t requests, handshakes, resumptions;

/* ---- certificates ---------------------------------------------------------------------------------------------------- */

static EVP_PKEY *make_key(void) {
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_id(EVP_PKEY_EC, NULL);
    CHECK(context && EVP_PKEY_keygen_init(context) == 1);
    CHECK(EVP_PKEY_CTX_set_ec_paramgen_curve_nid(context, NID_X9_62_prime256v1) == 1);
    CHECK(EVP_PKEY_keygen(context, &key) == 1);
    EVP_PKEY_CTX_free(context);
    return key;
}

/* Key and certificate, which it has signed itself, in one file. */
static void write_certificate(void) {
    EVP_PKEY *key = make_key();
    X509 *certificate = X509_new();
    CHECK(certificate && ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) == 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
    X509_NAME *name = X509_get_subject_name(certificate);
    CHECK(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const uint8_t *)"fuzz", -1, -1, 0) == 1);
    CHECK(X509_set_issuer_name(certificate, name) == 1 && X509_set_pubkey(certificate, key) == 1);
    CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
    FILE *file = fopen(certificate_path, "w");
    CHECK(file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1);
    CHECK(PEM_write_X509(file, certificate) == 1 && fclose(file) == 0);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

static void use_certificate(void) {
    struct error error;
    struct tls_settings settings = {.certificate = certificate_path,
                                    .key = "",
                                    .key_password = "",
                                    .authorities = "",
                                    .authorities_folder = "",
                                    .protocols = "TLSv1.2 TLSv1.3",
                                    .ciphers = "",
                                    .ciphersuites = "",
                                    .clients = TLS_CLIENTS_NEED_NOT};
    struct tls *tls = tls_new(&settings, &error);
    if (!tls) fprintf(stderr, "%s\n", error.message);
    CHECK(tls);
    transport_kernel_use_tls(transport, tls);
}

/* ---- the server's side ----------------------------------------------------------------------------------------------- */

static void turn(int count) {
    for (; count > 0; count--) {
        server_step(server);
        transport->operations->poll(transport, 0);
    }
}

static void open_stage(void) {
    struct server_config config;
    struct error error;
    server_config_defaults(&config);
    config.log_level = LOG_ERROR;
    server = server_new(&config, &error);
    CHECK(server);
    transport = transport_kernel_new(server_events(server), &error);
    CHECK(transport && server_add_transport(server, transport, &error) == 0);
    use_certificate();
    address = (struct listen_address){.host = "127.0.0.1", .is_tls = true};
    CHECK(transport->operations->listen(transport, &address, &error) == 0);
}

/* ---- peers ----------------------------------------------------------------------------------------------------------- */

static void forget_peer(struct peer *peer) {
    if (peer->ssl && !peer->is_broken && SSL_version(peer->ssl) == TLS1_2_VERSION && SSL_is_init_finished(peer->ssl)) {
        SSL_SESSION_free(session);
        session = SSL_get1_session(peer->ssl);
    }
    SSL_free(peer->ssl); /* and what it reads from and writes to */
    if (peer->number >= 0) close(peer->number);
    free(peer->expected);
    *peer = (struct peer){.number = -1};
}

/* Sends up to so many of the bytes that wait; what the socket does not take is lost, and with it the session. */
static void send_some(struct peer *peer, size_t most) {
    static uint8_t bytes[1 << 16];
    while (peer->ssl && most > 0) {
        int length = BIO_read(peer->out, bytes, (int)(most < sizeof bytes ? most : sizeof bytes));
        if (length <= 0) return;
        most -= (size_t)length;
        for (int sent = 0, tries = 0; sent < length && tries < 1000; tries++) {
            ssize_t took = send(peer->number, bytes + sent, (size_t)(length - sent), MSG_NOSIGNAL);
            if (took > 0) sent += (int)took;
            if (took < 0) turn(1);
            if (sent < length && tries == 999) peer->is_broken = true;
        }
    }
}

/* What the client has got beyond TLS is what is expected. */
static void look_at_replies(struct peer *peer) {
    static uint8_t bytes[1 << 16];
    int got = 0;
    ERR_clear_error();
    if (!SSL_is_init_finished(peer->ssl) && SSL_do_handshake(peer->ssl) == 1) {
        handshakes++;
        resumptions += SSL_session_reused(peer->ssl) != 0;
    }
    while (SSL_is_init_finished(peer->ssl) && (got = SSL_read(peer->ssl, bytes, sizeof bytes)) > 0) {
        if (peer->is_broken) continue;
        CHECK((size_t)got <= peer->expected_length - peer->expected_at);
        CHECK(memcmp(bytes, peer->expected + peer->expected_at, (size_t)got) == 0);
        peer->expected_at += (size_t)got;
    }
    ERR_clear_error();
}

/* Takes up to so many bytes from the socket. */
static void receive_some(struct peer *peer, size_t most) {
    static uint8_t bytes[1 << 16];
    while (peer->ssl && most > 0) {
        ssize_t got = recv(peer->number, bytes, most < sizeof bytes ? most : sizeof bytes, MSG_DONTWAIT);
        if (got <= 0) {
            peer->is_broken |= got == 0;
            break;
        }
        CHECK(BIO_write(peer->in, bytes, (int)got) == got);
        most -= (size_t)got;
    }
    if (peer->ssl) look_at_replies(peer);
}

/* With or without TLS, one version or any, a session that goes on, small records, little room. */
static void connect_peer(struct peer *peer, struct random_state *random) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(address.port)};
    int on = 1, room = 4096;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    forget_peer(peer);
    peer->number = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(peer->number >= 0);
    if (random_below(random, 3) == 0) setsockopt(peer->number, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    CHECK(connect(peer->number, (const struct sockaddr *)&to, sizeof to) == 0);
    setsockopt(peer->number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    CHECK(fcntl(peer->number, F_SETFL, O_NONBLOCK) == 0);
    if (random_below(random, 12) == 0) {
        peer->is_broken = true;
        return;
    }
    peer->ssl = SSL_new(client_context);
    peer->in = BIO_new(BIO_s_mem());
    peer->out = BIO_new(BIO_s_mem());
    CHECK(peer->ssl && peer->in && peer->out);
    BIO_set_mem_eof_return(peer->in, -1);
    SSL_set_bio(peer->ssl, peer->in, peer->out);
    SSL_set_connect_state(peer->ssl);
    if (random_below(random, 3) == 0) {
        SSL_set_max_proto_version(peer->ssl, TLS1_2_VERSION);
        if (session && random_below(random, 2)) SSL_set_session(peer->ssl, session);
    }
    if (random_below(random, 3) == 0) SSL_set_max_send_fragment(peer->ssl, 512);
    look_at_replies(peer);
}

/* As far as it goes while both sides keep to TLS. */
static void shake_hands(struct peer *peer) {
    for (int round = 0; round < 20 && peer->ssl && !SSL_is_init_finished(peer->ssl) && !peer->is_broken; round++) {
        send_some(peer, SIZE_MAX);
        turn(2);
        receive_some(peer, SIZE_MAX);
    }
}

static void expect(struct peer *peer, const void *bytes, size_t length) {
    uint8_t *grown = realloc(peer->expected, peer->expected_length + length);
    CHECK(grown);
    memcpy(grown + peer->expected_length, bytes, length);
    peer->expected = grown;
    peer->expected_length += length;
}

/* ECHOs of some sizes, encrypted but not sent. */
static void write_requests(struct peer *peer, struct random_state *random) {
    static const size_t lengths[] = {0, 1, 100, 1000, 16000, 16384, 17000, 70000, 300000};
    static uint8_t text[300000 + 64];
    if (!peer->ssl || peer->is_broken || !SSL_is_init_finished(peer->ssl)) return;
    for (uint64_t count = 1 + random_below(random, 4); count > 0 && peer->expected_length < MOST_EXPECTED; count--) {
        size_t length = lengths[random_below(random, sizeof lengths / sizeof *lengths)];
        int head = sprintf((char *)text, "*2\r\n$4\r\nECHO\r\n$%zu\r\n", length);
        for (size_t i = 0; i < length; i++) text[(size_t)head + i] = (uint8_t)(i * 7 + count + (i >> 9));
        memcpy(text + head + length, "\r\n", 2);
        ERR_clear_error();
        if (SSL_write(peer->ssl, text, head + (int)length + 2) <= 0) return;
        expect(peer, text + 14, (size_t)head - 14 + length + 2); /* from the $ of the text on */
        requests++;
    }
}

/* What waits to be sent, with some bytes changed, left out or put in. */
static void damage(struct peer *peer, struct random_state *random) {
    static uint8_t bytes[1 << 16];
    if (!peer->ssl) return;
    int length = BIO_read(peer->out, bytes, sizeof bytes);
    if (length <= 0) length = sprintf((char *)bytes, "\x17\x03\x03%cPING\r\n", (int)random_below(random, 256));
    uint64_t kind = random_below(random, 4), at = random_below(random, (uint64_t)length);
    if (kind == 0) bytes[at] ^= (uint8_t)(1u << random_below(random, 8));
    if (kind == 1) length = (int)at;
    if (kind == 2) memset(bytes, (int)random_below(random, 256), (size_t)(at < 16 ? at + 1 : 16));
    if (kind == 3) bytes[random_below(random, length < 6 ? (uint64_t)length : 6)] = (uint8_t)random_below(random, 256);
    peer->is_broken = true;
    if (length > 0 && send(peer->number, bytes, (size_t)length, MSG_NOSIGNAL) < 0) turn(1);
}

static void speak_plainly(struct peer *peer, struct random_state *random) {
    static const char *const texts[] = {"PING\r\n",
                                        "GET / HTTP/1.1\r\n\r\n",
                                        "*1\r\n$4\r\nPING\r\n",
                                        "\x16\x03\x01\x40\x00\x01",
                                        "\x80\x2e\x01\x03\x01",
                                        "\x15\x03\x03\x00\x02\x01\x00"};
    const char *text = texts[random_below(random, sizeof texts / sizeof *texts)];
    peer->is_broken = true;
    if (send(peer->number, text, text[0] == '\x15' ? 7 : strlen(text), MSG_NOSIGNAL) < 0) turn(1);
}

/* The connection ends: in the way of TLS, in one direction, at once, or with what is left thrown away. */
static void end(struct peer *peer, struct random_state *random) {
    struct linger linger = {.l_onoff = 1};
    uint64_t kind = random_below(random, 4);
    peer->is_broken |= kind < 2;
    if (kind == 0 && peer->ssl && SSL_is_init_finished(peer->ssl)) {
        SSL_shutdown(peer->ssl);
        send_some(peer, SIZE_MAX);
        return;
    }
    if (kind == 1) {
        shutdown(peer->number, SHUT_WR);
        return;
    }
    if (kind == 2) setsockopt(peer->number, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    forget_peer(peer);
}

static void take_step(const uint8_t *step) {
    struct random_state random;
    struct peer *peer = &peers[step[0] % PEERS];
    random_seed(&random, (uint64_t)step[1] << 16 | (uint64_t)step[2] << 8 | step[3]);
    uint32_t kind = (step[0] / PEERS) % 32;
    if (peer->number < 0 || kind == 31) connect_peer(peer, &random);
    if (kind < 6) shake_hands(peer);
    switch (kind) {
    case 16: damage(peer, &random); break;
    case 17:
        if (random_below(&random, 3) == 0) speak_plainly(peer, &random);
        break;
    case 18: end(peer, &random); break;
    case 19:
        if (peer->ssl && SSL_version(peer->ssl) == TLS1_3_VERSION && SSL_is_init_finished(peer->ssl))
            SSL_key_update(peer->ssl, SSL_KEY_UPDATE_REQUESTED);
        break;
    case 20:
        if (random_below(&random, 8) == 0) use_certificate();
        break;
    case 21:
    case 22: send_some(peer, 1 + random_below(&random, 300)); break;
    case 23: receive_some(peer, 1 + random_below(&random, 300)); break;
    case 24: receive_some(peer, SIZE_MAX); break;
    default:
        write_requests(peer, &random);
        if (kind % 2) send_some(peer, SIZE_MAX);
        break;
    }
    turn(1 + (int)random_below(&random, 3));
}

/* All that was asked for by those who kept to TLS is answered, in the end. */
static void receive_all(void) {
    for (uint32_t i = 0; i < PEERS; i++) {
        struct peer *peer = &peers[i];
        if (peer->number < 0) continue;
        shake_hands(peer);
        for (uint32_t round = 0; peer->ssl && !peer->is_broken && peer->expected_at < peer->expected_length; round++) {
            CHECK(round < 100000);
            send_some(peer, SIZE_MAX);
            turn(2);
            receive_some(peer, SIZE_MAX);
            if (round > 1000) usleep(100);
        }
        CHECK(peer->is_broken || peer->expected_at == peer->expected_length);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t before = memory_used_bytes();
    open_stage();
    for (size_t at = 0; at + fuzz_unit <= size && at / fuzz_unit < MOST_STEPS; at += fuzz_unit) take_step(data + at);
    receive_all();
    for (uint32_t i = 0; i < PEERS; i++) forget_peer(&peers[i]);
    for (uint32_t round = 0; server->clients.count > 0; round++) {
        CHECK(round < 100000);
        turn(1);
        if (round > 1000) usleep(100);
    }
    CHECK(server->output_pool.inline_bytes == 0 && server->clients.writers == 0);
    server_free(server);
    CHECK(memory_used_bytes() == before);
    return 0;
}

static void remove_certificate(void) {
    unlink(certificate_path);
    SSL_SESSION_free(session);
    SSL_CTX_free(client_context);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    signal(SIGPIPE, SIG_IGN);
    sprintf(certificate_path, "fuzz-%ld.pem", (long)getpid());
    client_context = SSL_CTX_new(TLS_client_method());
    CHECK(client_context);
    write_certificate();
    atexit(remove_certificate);
    for (uint32_t i = 0; i < PEERS; i++) peers[i].number = -1;
    return 0;
}

void fuzz_report(void) {
    printf("%llu requests, %llu handshakes, of which %llu went on with a session\n", (unsigned long long)requests,
           (unsigned long long)handshakes, (unsigned long long)resumptions);
}
