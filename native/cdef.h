/* cdef: all that Python may call of the core; read by cffi, which understands no preprocessor. The declarations repeat
 * the headers that CMakeLists.txt names for the binding, and the generated C is compiled against those headers, so a difference does not build. */

enum error_code {
    ERROR_NONE, ERROR_GENERIC, ERROR_NOTABLE, ERROR_EXISTS, ERROR_BADSCHEMA, ERROR_BADSHAPE, ERROR_BADPRIORITY,
    ERROR_TIMEOUT, ERROR_LIMIT, ERROR_STALEVERSION, ERROR_CLOSED, ...
};

struct error {
    enum error_code code;
    char message[480];
};

const char *error_code_name(enum error_code code);

uint32_t crc32c(uint32_t before, const void *data, size_t length);

enum step_codec { CODEC_NONE, CODEC_LZ4, CODEC_ZSTD, ... };
struct codec;
bool codec_available(enum step_codec kind);
struct codec *codec_new(enum step_codec kind);
void codec_free(struct codec *codec);
size_t codec_encode_steps(struct codec *codec, const uint8_t *steps, uint32_t n, size_t length, uint32_t *sizes,
                          uint8_t *blocks);

struct table;
struct reservation;
struct stream;
struct table_config { ...; };

struct table_detail {
    double priority;
    uint64_t times_sampled, age, size;
};

struct table_info {
    uint64_t size, capacity, bytes;
    uint64_t added, sampled, removed, stale_updates, updates_applied;
    uint64_t unused;
    uint64_t stale_items;
    int64_t newest_version;
    uint64_t reserved_slots, pinned_slots, free_slots, retired_slots, item_bytes;
    uint64_t steps, step_bytes, streams;
    uint64_t disk_bytes, cold_pages;
    bool closed;
    char closed_reason[128];
    double max_priority;
    double total_priority;
};

int table_config_parse(struct table_config *config, const char *name, const uint8_t *spec, size_t length,
                       struct error *error);

struct table *table_new(const struct table_config *config, struct error *error);
void table_free(struct table *table);
void table_info(const struct table *table, struct table_info *info);
#define TABLE_PRIORITY_BUCKETS ...
#define TABLE_PRIORITY_LEAST ...
void table_priorities(const struct table *table, uint64_t *counts);
void table_reset(struct table *table);
void table_seed(struct table *table, uint64_t seed);

int table_close(struct table *table, const char *reason, size_t length, struct error *error);
void table_open(struct table *table);
bool table_can_add(const struct table *table, uint64_t n, struct error *error);
bool table_can_sample(const struct table *table, uint64_t n, bool replace, struct error *error);

int expand_windows(const uint8_t *coded, size_t length, uint32_t n, uint32_t windows, const uint32_t *steps,
                   uint8_t *const *out, size_t step_bytes, struct error *error);

bool table_has_windows(const struct table *table);
void stream_end_episode(struct stream *stream);

int table_update(struct table *table, uint32_t n, const uint64_t *ids, const double *priorities, uint64_t *applied,
                 uint64_t *stale, struct error *error);
uint64_t table_delete(struct table *table, uint32_t n, const uint64_t *ids);
struct table_rows {
    int64_t *offsets;
    uint8_t *rows;
    size_t length;
};

int table_add_batch(struct table *table, uint32_t n, const void *const *items, const double *priorities, uint64_t *ids,
                    struct error *error);
int table_sample_batch(struct table *table, uint32_t n, double beta, bool replace, uint32_t column_count,
                       const uint32_t *columns, void *const *out, uint32_t *slots, uint64_t *ids,
                       double *probabilities, float *weights, struct table_detail *details, struct error *error);
int table_get_batch(struct table *table, uint32_t n, const uint64_t *ids, uint32_t column_count, const uint32_t *columns,
                    void *const *out, uint32_t *slots, double *probabilities, struct error *error);
void table_take_rows(struct table *table, uint32_t n, uint32_t *slots, uint32_t column_count, const uint32_t *columns,
                     void *const *out);
void table_let_go(struct table *table, uint32_t n, uint32_t *slots);
int table_streams_new(struct table *table, uint32_t n, uint32_t history, struct stream **streams, struct error *error);
void table_streams_free(struct table *table, uint32_t n, struct stream **streams);
int table_append_batch(struct table *table, uint32_t n, struct stream *const *streams, const uint8_t *flags,
                       uint32_t column_count, const uint32_t *columns, const void *const *steps, struct error *error);
int table_items_batch(struct table *table, uint32_t n, struct stream *const *streams, const uint64_t *steps,
                      uint32_t column_count, const uint32_t *columns, const void *const *items,
                      const double *priorities, uint64_t *ids, uint32_t *made, struct error *error);
bool table_has_work(const struct table *table);
bool table_step(struct table *table, uint64_t deadline_us);
int table_see_version(struct table *table, int64_t version, struct error *error);
int table_configure(struct table *table, const uint8_t *spec, size_t length, struct error *error);

struct snapshot;
struct snapshot *table_file_save(struct table *table, const char *folder, const char *name, struct error *error);
int table_file_step(struct snapshot *snapshot, uint64_t budget_us, struct error *error);
void snapshot_free(struct snapshot *snapshot);
struct table *table_file_load(const char *path, const char *name, struct error *error);
int table_adopt(struct table *table, const struct table_config *given, bool *changed, struct error *error);
const struct table_config *table_config(const struct table *table);

struct sum_tree_array;
struct sum_tree_array *sum_tree_array_new(uint64_t capacity, uint64_t seed, struct error *error);
void sum_tree_array_free(struct sum_tree_array *array);
double sum_tree_array_total(const struct sum_tree_array *array);
int sum_tree_array_update(struct sum_tree_array *array, uint64_t n, const int64_t *indices, const double *values,
                          struct error *error);
int sum_tree_array_get(const struct sum_tree_array *array, uint64_t n, const int64_t *indices, double *values,
                       struct error *error);
int sum_tree_array_sample(struct sum_tree_array *array, uint64_t n, bool stratified, int64_t *indices,
                          double *probabilities, struct error *error);
