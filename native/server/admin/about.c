#include "server/admin/about.h"

#include <inttypes.h>
#include <stdbool.h>

#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#ifdef REPLAY_LZ4
#include <lz4.h>
#endif
#ifdef REPLAY_ZSTD
#include <zstd.h>
#endif
#ifdef REPLAY_TLS
#include <openssl/crypto.h>
#endif
#ifdef REPLAY_LUA
#include <lua.h>
#endif

#include "base/cpu.h"
#include "server/core/config.h"
#include "server/core/config_table.h"

#ifndef REPLAY_BUILD_TYPE
#define REPLAY_BUILD_TYPE "unknown"
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED "true"
#else
#define SANITIZED "false"
#endif
#if defined(__clang__)
#define COMPILER __VERSION__
#elif defined(__GNUC__)
#define COMPILER "GCC " __VERSION__
#else
#define COMPILER "unknown"
#endif

static void quoted(struct text *out, const char *value) {
    text_append_bytes(out, "\"", 1);
    for (; *value; value++) {
        unsigned char character = (unsigned char)*value;
        if (character == '"' || character == '\\')
            text_append(out, "\\%c", character);
        else if (character < 0x20)
            text_append(out, "\\u%04x", character);
        else
            text_append_bytes(out, value, 1);
    }
    text_append_bytes(out, "\"", 1);
}

static void member(struct text *out, const char *name, const char *value) {
    text_append(out, "\"%s\": ", name);
    if (value)
        quoted(out, value);
    else
        text_append(out, "null");
}

/* ---- the build ----------------------------------------------------------------------------------------- */

static bool simd_compiled(enum cpu_simd simd) {
    return simd == CPU_SCALAR || (simd == CPU_NEON ? CPU_ARM : CPU_X86);
}

static void simd(struct text *out) {
    const char *separator = "";
    text_append(out, "\"simd\": {\"compiled\": [");
    for (int each = CPU_SCALAR; each < CPU_SIMD_COUNT; each++) {
        if (!simd_compiled((enum cpu_simd)each)) continue;
        text_append(out, "%s\"%s\"", separator, cpu_simd_name((enum cpu_simd)each));
        separator = ", ";
    }
    text_append(out, "], \"used\": \"%s\"}", cpu_simd_name(cpu_simd()));
}

static void libraries(const struct transport_library *more, struct text *out) {
    const char *lz4 = NULL, *zstd = NULL, *tls = NULL, *lua = NULL;
#ifdef REPLAY_LZ4
    lz4 = LZ4_versionString();
#endif
#ifdef REPLAY_ZSTD
    zstd = ZSTD_versionString();
#endif
#ifdef REPLAY_TLS
    tls = OpenSSL_version(OPENSSL_VERSION);
#endif
#ifdef REPLAY_LUA
    lua = LUA_RELEASE;
#endif
    const struct transport_library own[] = {{"lz4", lz4}, {"zstd", zstd}, {"openssl", tls}, {"lua", lua}};
    const char *separator = "";
    text_append(out, "\"libraries\": {");
    for (size_t i = 0; i < sizeof own / sizeof *own; i++, separator = ", ") {
        text_append(out, "%s", separator);
        member(out, own[i].name, own[i].version);
    }
    for (; more && more->name; more++) {
        text_append(out, "%s", separator);
        member(out, more->name, more->version);
    }
    text_append(out, "}");
}

void about_build(const char *program, const struct transport_library *more, struct text *out) {
    const char *c_library = "unknown";
#ifdef __GLIBC__
    char glibc[64];
    snprintf(glibc, sizeof glibc, "glibc %s", gnu_get_libc_version());
    c_library = glibc;
#endif
    text_append(out, "{");
    member(out, "program", program);
    text_append(out, ", ");
    member(out, "version", SERVER_VERSION);
    text_append(out, ", ");
    member(out, "redis_version", SERVER_REDIS_VERSION);
    text_append(out, ", ");
    member(out, "compiler", COMPILER);
    text_append(out, ", ");
    member(out, "c_library", c_library);
    text_append(out, ", ");
    member(out, "build_type", REPLAY_BUILD_TYPE);
    text_append(out, ", \"sanitized\": " SANITIZED ", ");
    simd(out);
    text_append(out, ", ");
    libraries(more, out);
    text_append(out, "}\n");
}

/* ---- the settings -------------------------------------------------------------------------------------- */

static const char *kind_name(enum setting_kind kind) {
    switch (kind) {
    case SETTING_NUMBER: return "number";
    case SETTING_BYTES: return "bytes";
    case SETTING_OCTAL: return "octal";
    case SETTING_FLAG: return "flag";
    case SETTING_CHOICE: return "choice";
    case SETTING_EVENTS: return "events";
    case SETTING_TEXT: return "text";
    case SETTING_OUTPUT_LIMITS: return "output-limits";
    case SETTING_FIXED: break;
    }
    return "fixed";
}

static void describe(const struct server_config *defaults, size_t index, struct text *out) {
    const struct setting *setting = config_setting(index);
    char value[CONFIG_VALUE_BYTES];
    config_value(defaults, index, value);
    text_append(out, "{");
    member(out, "name", setting->name);
    text_append(out, ", \"kind\": \"%s\", \"live\": %s, \"effect\": %s, ", kind_name(setting->kind),
                setting->live ? "true" : "false", setting->no_effect ? "false" : "true");
    member(out, "default", value);
    if (setting->kind == SETTING_NUMBER || setting->kind == SETTING_BYTES || setting->kind == SETTING_OCTAL)
        text_append(out, ", \"minimum\": %" PRId64 ", \"maximum\": %" PRId64, setting->minimum, setting->maximum);
    if (setting->kind == SETTING_CHOICE) {
        text_append(out, ", \"choices\": [");
        for (size_t i = 0; setting->choices[i]; i++) {
            text_append(out, "%s", i ? ", " : "");
            quoted(out, setting->choices[i]);
        }
        text_append(out, "]");
    }
    text_append(out, "}");
}

void about_settings(struct text *out) {
    static struct server_config defaults; /* large for a stack */
    server_config_defaults(&defaults);
    const char *separator = "";
    text_append(out, "[");
    for (size_t i = 0; i < config_count(); i++) {
        if (config_setting(i)->kind == SETTING_FIXED) continue;
        text_append(out, "%s", separator);
        describe(&defaults, i, out);
        separator = ",\n ";
    }
    text_append(out, "]\n");
}
