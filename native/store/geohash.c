/* geohash: cells, distances, and which cells a shape touches. */
#include "store/geohash.h"

#include <math.h>
#include <string.h>

#define EARTH_RADIUS_M 6372797.560856
#define MERCATOR_MOST_M 20037726.37 /* half the earth's circumference on the map */
#define PI 3.14159265358979323846

static double radians(double degrees) {
    return degrees * (PI / 180.0);
}

static double degrees(double angle) {
    return angle / (PI / 180.0);
}

/* ---- cells --------------------------------------------------------------------------------------------------------- */

/* A cell after `steps` halvings: which one of 2^steps in each direction. */
struct cell {
    uint32_t x, y; /* eastward, northward */
    unsigned steps;
};

struct area {
    double west, east, south, north; /* degrees */
};

/* The bits with a blank before each. */
static uint64_t spread(uint32_t value) {
    uint64_t bits = value;
    bits = (bits | bits << 16) & 0x0000ffff0000ffffu;
    bits = (bits | bits << 8) & 0x00ff00ff00ff00ffu;
    bits = (bits | bits << 4) & 0x0f0f0f0f0f0f0f0fu;
    bits = (bits | bits << 2) & 0x3333333333333333u;
    return (bits | bits << 1) & 0x5555555555555555u;
}

/* Every second bit. */
static uint32_t gather(uint64_t bits) {
    bits &= 0x5555555555555555u;
    bits = (bits | bits >> 1) & 0x3333333333333333u;
    bits = (bits | bits >> 2) & 0x0f0f0f0f0f0f0f0fu;
    bits = (bits | bits >> 4) & 0x00ff00ff00ff00ffu;
    bits = (bits | bits >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(bits | bits >> 16);
}

static uint64_t interleave(const struct cell *cell) {
    return spread(cell->x) << 1 | spread(cell->y);
}

/* How many parts of 2^steps lie before the value. */
static uint32_t part_of(double value, double least, double most, unsigned steps) {
    return (uint32_t)((value - least) / (most - least) * (double)((uint64_t)1 << steps));
}

static struct cell cell_of(const struct geo_point *point, double latitude_most, unsigned steps) {
    return (struct cell){part_of(point->longitude, -GEOHASH_LONGITUDE, GEOHASH_LONGITUDE, steps),
                         part_of(point->latitude, -latitude_most, latitude_most, steps), steps};
}

static double edge(uint64_t part, double most, unsigned steps) {
    return -most + ((double)part * 1.0 / (double)((uint64_t)1 << steps)) * (2 * most);
}

static struct area area_of(const struct cell *cell) {
    return (struct area){
        .west = edge(cell->x, GEOHASH_LONGITUDE, cell->steps),
        .east = edge((uint64_t)cell->x + 1, GEOHASH_LONGITUDE, cell->steps),
        .south = edge(cell->y, GEOHASH_LATITUDE, cell->steps),
        .north = edge((uint64_t)cell->y + 1, GEOHASH_LATITUDE, cell->steps),
    };
}

/* Around the earth also from pole to pole, as in Redis: places there are not within the shape. */
static struct cell neighbour(const struct cell *cell, int east, int north) {
    uint32_t last = (uint32_t)(((uint64_t)1 << cell->steps) - 1);
    struct cell next = *cell;
    if (east != 0) next.x = (cell->x + (uint32_t)east) & last;
    if (north != 0) next.y = (cell->y + (uint32_t)north) & last;
    return next;
}

/* ---- places -------------------------------------------------------------------------------------------------------- */

bool geohash_is_place(const struct geo_point *point) {
    return point->longitude >= -GEOHASH_LONGITUDE && point->longitude <= GEOHASH_LONGITUDE &&
           point->latitude >= -GEOHASH_LATITUDE && point->latitude <= GEOHASH_LATITUDE;
}

uint64_t geohash_encode(const struct geo_point *point) {
    struct cell cell = cell_of(point, GEOHASH_LATITUDE, GEOHASH_STEPS);
    return interleave(&cell);
}

static double within(double value, double most) {
    return value > most ? most : value < -most ? -most : value;
}

struct geo_point geohash_decode(double score) {
    uint64_t bits = score >= 0 && score < 18446744073709551616.0   ? (uint64_t)score
                    : score < 0 && score >= -9223372036854775808.0 ? (uint64_t)(int64_t)score
                                                                   : (uint64_t)1 << 63;
    struct cell cell = {gather(bits >> 1), gather(bits), GEOHASH_STEPS};
    struct area area = area_of(&cell);
    return (struct geo_point){within((area.west + area.east) / 2, GEOHASH_LONGITUDE),
                              within((area.south + area.north) / 2, GEOHASH_LATITUDE)};
}

void geohash_text(const struct geo_point *point, char text[GEOHASH_TEXT]) {
    static const char alphabet[] = "0123456789bcdefghjkmnpqrstuvwxyz";
    struct cell cell = cell_of(point, 90.0, GEOHASH_STEPS);
    uint64_t bits = interleave(&cell);
    /* Five bits a character; of the eleventh there are but two, and Redis shows none of them. */
    for (int i = 0; i < 10; i++) text[i] = alphabet[bits >> (52 - 5 * (i + 1)) & 31];
    memcpy(text + 10, "0", 2);
}

/* ---- distances ----------------------------------------------------------------------------------------------------- */

static double latitude_distance_m(double from, double to) {
    return EARTH_RADIUS_M * fabs(radians(to) - radians(from));
}

double geo_distance_m(const struct geo_point *from, const struct geo_point *to) {
    double v = sin((radians(to->longitude) - radians(from->longitude)) / 2);
    if (v == 0.0) return latitude_distance_m(from->latitude, to->latitude);
    double from_latitude = radians(from->latitude), to_latitude = radians(to->latitude);
    double u = sin((to_latitude - from_latitude) / 2);
    double a = u * u + cos(from_latitude) * cos(to_latitude) * v * v;
    return 2.0 * EARTH_RADIUS_M * asin(sqrt(a));
}

bool geo_within(const struct geo_shape *shape, const struct geo_point *point, double *distance_m) {
    if (shape->is_box) {
        if (latitude_distance_m(point->latitude, shape->center.latitude) > shape->height_m / 2) return false;
        struct geo_point beside = {shape->center.longitude, point->latitude};
        if (geo_distance_m(point, &beside) > shape->width_m / 2) return false;
        *distance_m = geo_distance_m(&shape->center, point);
        return true;
    }
    *distance_m = geo_distance_m(&shape->center, point);
    return !(*distance_m > shape->radius_m);
}

/* ---- the cells that a shape touches -------------------------------------------------------------------------------- */

static struct area bounds_of(const struct geo_shape *shape) {
    double latitude = shape->center.latitude, longitude = shape->center.longitude;
    double height = shape->is_box ? shape->height_m / 2 : shape->radius_m;
    double width = shape->is_box ? shape->width_m / 2 : shape->radius_m;
    double up = degrees(height / EARTH_RADIUS_M);
    /* A degree is shorter the nearer to a pole: the widest span is on the side away from the equator. */
    double outer = latitude < 0 ? latitude - up : latitude + up;
    double aside = degrees(width / EARTH_RADIUS_M / cos(radians(outer)));
    return (struct area){longitude - aside, longitude + aside, latitude - up, latitude + up};
}

/* How often the earth is halved so that nine cells cover the radius, or nearly always do. */
static unsigned steps_for(double radius_m, double latitude) {
    if (radius_m == 0) return GEOHASH_STEPS;
    int steps = 1;
    for (; radius_m < MERCATOR_MOST_M; radius_m *= 2) steps++;
    steps -= 2;
    if (fabs(latitude) > 66) steps--;
    if (fabs(latitude) > 80) steps--;
    return (unsigned)(steps < 1 ? 1 : steps > GEOHASH_STEPS ? GEOHASH_STEPS : steps);
}

/* Whether the cells beside this one reach as far as the bounds. */
static bool covers(const struct cell *cell, const struct area *bounds) {
    struct cell north = neighbour(cell, 0, 1), south = neighbour(cell, 0, -1);
    struct cell east = neighbour(cell, 1, 0), west = neighbour(cell, -1, 0);
    return area_of(&north).north >= bounds->north && area_of(&south).south <= bounds->south &&
           area_of(&east).east >= bounds->east && area_of(&west).west <= bounds->west;
}

int geo_ranges(const struct geo_shape *shape, struct geo_range ranges[GEO_CELLS]) {
    static const struct {
        int east, north;
    } around[GEO_CELLS] = {{0, 0}, {0, 1}, {0, -1}, {1, 0}, {-1, 0}, {1, 1}, {-1, 1}, {1, -1}, {-1, -1}};
    struct area bounds = bounds_of(shape);
    double half_width = shape->width_m / 2, half_height = shape->height_m / 2;
    double radius_m = shape->is_box ? sqrt(half_width * half_width + half_height * half_height) : shape->radius_m;
    unsigned steps = steps_for(radius_m, shape->center.latitude);
    struct cell cell = cell_of(&shape->center, GEOHASH_LATITUDE, steps);
    if (steps > 1 && !covers(&cell, &bounds)) cell = cell_of(&shape->center, GEOHASH_LATITUDE, --steps);
    struct area middle = area_of(&cell);
    bool may_leave_out = steps >= 2;
    int count = 0;
    for (int i = 0; i < GEO_CELLS; i++) {
        int east = around[i].east, north = around[i].north;
        if (may_leave_out &&
            ((north < 0 && middle.south < bounds.south) || (north > 0 && middle.north > bounds.north) ||
             (east < 0 && middle.west < bounds.west) || (east > 0 && middle.east > bounds.east)))
            continue;
        struct cell next = neighbour(&cell, east, north);
        unsigned shift = 52 - 2 * steps;
        uint64_t bits = interleave(&next);
        struct geo_range range = {bits << shift, (bits + 1) << shift};
        /* Where the cells are as large as the earth, neighbours are the same. */
        if (count > 0 && ranges[count - 1].least == range.least) continue;
        ranges[count++] = range;
    }
    return count;
}
