/* certificates: from settings to what the transport takes. */
#include "server/admin/certificates.h"

struct tls *certificates_read(const struct server_config *config, struct error *error) {
    const struct tls_settings settings = {
        .certificate = config->tls_cert_file,
        .key = config->tls_key_file,
        .key_password = config->tls_key_file_pass,
        .authorities = config->tls_ca_cert_file,
        .authorities_folder = config->tls_ca_cert_dir,
        .protocols = config->tls_protocols,
        .ciphers = config->tls_ciphers,
        .ciphersuites = config->tls_ciphersuites,
        .clients = (enum tls_clients)config->tls_auth_clients,
        .prefer_own_ciphers = config->tls_prefer_server_ciphers != 0,
        .no_session_cache = config->tls_session_caching == 0,
    };
    return tls_new(&settings, error);
}

int certificates_use(const struct server_config *config, struct transport *kernel, struct error *error) {
    struct tls *tls = certificates_read(config, error);
    if (!tls) return -1;
    transport_kernel_use_tls(kernel, tls);
    return 0;
}
