/* geohash: places on the earth as 52-bit scores of sorted sets, in Redis's interleaving, and the search among them.
 *
 * Longitude and latitude are cut into 2^26 parts each; their bits alternate, the longitude's first. So all places in
 * a cell that repeated halving of the earth gives have scores in one range. Latitudes end where those of Web Mercator
 * (EPSG:3857) do. */
#ifndef REPLAY_STORE_GEOHASH_H
#define REPLAY_STORE_GEOHASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GEOHASH_LATITUDE 85.05112878 /* the most, and negative the least */
#define GEOHASH_LONGITUDE 180.0
#define GEOHASH_STEPS 26 /* halvings in each direction */
#define GEOHASH_TEXT 12 /* 11 characters and the terminator */

struct geo_point {
    double longitude, latitude; /* degrees */
};

/* NaN is no place either. */
bool geohash_is_place(const struct geo_point *point);
uint64_t geohash_encode(const struct geo_point *point);
/* The middle of the smallest cell. Scores that are no whole number of 52 bits are read as Redis reads them. */
struct geo_point geohash_decode(double score);
/* The geohash of public description (geohash.org), whose latitudes go to the poles. */
void geohash_text(const struct geo_point *point, char text[GEOHASH_TEXT]);

double geo_distance_m(const struct geo_point *from, const struct geo_point *to); /* on a sphere, by the haversine */

/* What is searched: a circle, or a box whose sides follow the degrees. */
struct geo_shape {
    struct geo_point center;
    bool is_box;
    double radius_m;
    double width_m, height_m;
};
/* Whether the place is within, and then how far from the centre. */
bool geo_within(const struct geo_shape *shape, const struct geo_point *point, double *distance_m);

#define GEO_CELLS 9
struct geo_range {
    uint64_t least, beyond; /* scores */
};
/* Ranges of scores that hold every place within the shape, and others, in the order in which Redis walks them. */
int geo_ranges(const struct geo_shape *shape, struct geo_range ranges[GEO_CELLS]);

#endif
