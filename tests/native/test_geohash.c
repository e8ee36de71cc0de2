/* test_geohash: places there and back, and searches against looking at every place. */
#include <math.h>

#include "base/random.h"
#include "check.h"
#include "store/geohash.h"

#define PLACES 4000

static struct geo_point place_by_chance(struct random_state *random) {
    return (struct geo_point){(random_unit(random) * 2 - 1) * GEOHASH_LONGITUDE,
                              (random_unit(random) * 2 - 1) * GEOHASH_LATITUDE};
}

static void a_place_comes_back_within_its_cell(void) {
    struct random_state random;
    random_seed(&random, 1);
    for (int i = 0; i < PLACES; i++) {
        struct geo_point place = place_by_chance(&random);
        uint64_t score = geohash_encode(&place);
        CHECK(score < (uint64_t)1 << 52);
        struct geo_point back = geohash_decode((double)score);
        CHECK(fabs(back.longitude - place.longitude) <= 360.0 / (1 << 26));
        CHECK(fabs(back.latitude - place.latitude) <= 171.0 / (1 << 26));
        CHECK(geohash_encode(&back) == score);
    }
}

static struct geo_shape shape_by_chance(struct random_state *random) {
    struct geo_shape shape = {.center = place_by_chance(random), .is_box = random_below(random, 2)};
    /* Where a circle holds no pole: there Redis, too, looks at nine cells alone. */
    shape.center.latitude *= 0.7;
    shape.radius_m = pow(10, 2 + 4 * random_unit(random));
    shape.width_m = pow(10, 2 + 4 * random_unit(random));
    shape.height_m = pow(10, 2 + 4 * random_unit(random));
    return shape;
}

static void every_place_within_is_in_a_range(void) {
    static struct geo_point places[PLACES];
    struct random_state random;
    random_seed(&random, 2);
    for (int i = 0; i < PLACES; i++) places[i] = place_by_chance(&random);
    for (int round = 0; round < 200; round++) {
        struct geo_shape shape = shape_by_chance(&random);
        struct geo_range ranges[GEO_CELLS];
        int count = geo_ranges(&shape, ranges);
        CHECK(count >= 1 && count <= GEO_CELLS);
        for (int i = 0; i < PLACES; i++) {
            uint64_t score = geohash_encode(&places[i]);
            struct geo_point place = geohash_decode((double)score);
            double distance;
            if (!geo_within(&shape, &place, &distance)) continue;
            /* Beyond the line where longitudes begin anew nothing is found, as in Redis. */
            if (fabs(place.longitude - shape.center.longitude) > 180) continue;
            int in = 0;
            for (int k = 0; k < count; k++) in += score >= ranges[k].least && score < ranges[k].beyond;
            CHECK(in == 1);
        }
    }
}

static void any_score_is_some_place(void) {
    static const double scores[] = {-1, -1e300, 1e300, 0, 4503599627370496.0, 1.5, -INFINITY, INFINITY};
    for (unsigned i = 0; i < sizeof scores / sizeof *scores; i++) {
        struct geo_point place = geohash_decode(scores[i]);
        CHECK(geohash_is_place(&place));
    }
}

int main(void) {
    RUN(a_place_comes_back_within_its_cell);
    RUN(every_place_within_is_in_a_range);
    RUN(any_score_is_some_place);
    return 0;
}
