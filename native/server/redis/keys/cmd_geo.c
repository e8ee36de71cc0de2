/* cmd_geo: places in sorted sets: adding them, and asking where members are. Order of checks and error texts follow Redis
 * 7.0. */
#include "server/redis/keys/cmd_geo.h"

#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

/* ---- shared -------------------------------------------------------------------------------------------------------- */

bool geo_point_argument(struct client *client, uint32_t index, struct geo_point *point) {
    if (!score_argument(client, index, &point->longitude, NULL) ||
        !score_argument(client, index + 1, &point->latitude, NULL))
        return false;
    if (geohash_is_place(point)) return true;
    reply_error(client, "ERR invalid longitude,latitude pair %f,%f", point->longitude, point->latitude);
    return false;
}

bool geo_unit_argument(struct client *client, uint32_t index, double *unit_m) {
    static const struct {
        const char *name;
        double metres;
    } units[] = {{"m", 1}, {"km", 1000}, {"ft", 0.3048}, {"mi", 1609.34}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (!argument_is(&client->argv[index], units[i].name)) continue;
        *unit_m = units[i].metres;
        return true;
    }
    reply_error(client, "ERR unsupported unit provided. please use M, KM, FT, MI");
    return false;
}

bool geo_point_of(struct zset *zset, const struct resp_argument *member, struct geo_point *point) {
    struct zset_place place;
    if (!zset || !zset_find(zset, member->data, member->length, &place)) return false;
    *point = geohash_decode(place.score);
    return true;
}

void reply_distance(struct client *client, double distance) {
    reply_bulk_format(client, "%.4f", distance);
}

/* As Redis writes a long double: all digits that 17 decimal places have. */
static void reply_degrees(struct client *client, double degrees) {
    char text[NUMBER_LONG_DOUBLE_TEXT];
    size_t length = number_format_long_double(degrees, text);
    if (client->resp > 2)
        reply_line(client, ',', text, length);
    else
        reply_bulk(client, text, length);
}

void reply_point(struct client *client, const struct geo_point *point) {
    reply_array(client, 2);
    reply_degrees(client, point->longitude);
    reply_degrees(client, point->latitude);
}

/* ---- commands ------------------------------------------------------------------------------------------------------ */

static void geoadd_command(struct client *client) {
    struct zset_add_options options = {0};
    uint32_t first = zset_add_words(client, false, &options), rest = client->argc - first;
    if (rest == 0 || rest % 3 != 0 || (options.nx && options.xx)) {
        reply_syntax_error(client);
        return;
    }
    double *scores = memory_alloc(rest / 3 * sizeof *scores);
    if (!scores) {
        reply_out_of_memory(client);
        return;
    }
    bool valid = true;
    for (uint32_t i = 0; i < rest / 3 && valid && exclusive_goes_on_at(client, i); i++) {
        struct geo_point point;
        valid = geo_point_argument(client, first + 3 * i, &point);
        if (valid) scores[i] = (double)geohash_encode(&point);
    }
    if (valid) zset_add(client, &options, first + 2, 3, scores);
    memory_free(scores);
}

static void geopos_command(struct client *client) {
    struct zset *zset;
    if (!zset_for_reading(client, 1, &zset)) return;
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        struct geo_point point;
        if (geo_point_of(zset, &client->argv[i], &point))
            reply_point(client, &point);
        else
            reply_null_array(client);
    }
}

static void geohash_command(struct client *client) {
    struct zset *zset;
    if (!zset_for_reading(client, 1, &zset)) return;
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        struct geo_point point;
        char text[GEOHASH_TEXT];
        if (geo_point_of(zset, &client->argv[i], &point)) {
            geohash_text(&point, text);
            reply_bulk(client, text, GEOHASH_TEXT - 1);
        } else {
            reply_null(client);
        }
    }
}

static void geodist_command(struct client *client) {
    double unit_m = 1;
    struct zset *zset;
    struct geo_point from, to;
    if (client->argc > 5) {
        reply_syntax_error(client);
        return;
    }
    if (client->argc == 5 && !geo_unit_argument(client, 4, &unit_m)) return;
    if (!zset_for_reading(client, 1, &zset)) return;
    if (geo_point_of(zset, &client->argv[2], &from) && geo_point_of(zset, &client->argv[3], &to))
        reply_distance(client, geo_distance_m(&from, &to) / unit_m);
    else
        reply_null(client);
}

const struct command commands_geo[] = {
    {"geoadd", geoadd_command, -5, COMMAND_WRITE | COMMAND_DENYOOM | COMMAND_RESTS, &group_geo,
     "Adds places to a sorted set. Creates the key if needed.", "3.2.0", .keys = key_updated,
     .event = KEY_EVENT(ZSET, "zadd", IN_PLACE)},
    {"geodist", geodist_command, -4, COMMAND_READONLY, &group_geo, "Returns how far two members are from each other.",
     "3.2.0", .keys = key_read},
    {"geohash", geohash_command, -2, COMMAND_READONLY | COMMAND_RESTS, &group_geo,
     "Returns the geohashes of members as strings.", "3.2.0", .keys = key_read},
    {"geopos", geopos_command, -2, COMMAND_READONLY | COMMAND_RESTS, &group_geo,
     "Returns the longitude and latitude of members.", "3.2.0", .keys = key_read},
    {0},
};
