#include "server/redis/redis_rows.h"

const struct command_group group_bitmap = {"bitmap", ACL_BITMAP, DATA_KEYS};
const struct command_group group_generic = {"generic", ACL_KEYSPACE, DATA_KEYS};
const struct command_group group_geo = {"geo", ACL_GEO, DATA_KEYS};
const struct command_group group_hash = {"hash", ACL_HASH, DATA_KEYS};
const struct command_group group_hyperloglog = {"hyperloglog", ACL_HYPERLOGLOG, DATA_KEYS};
const struct command_group group_list = {"list", ACL_LIST, DATA_KEYS};
const struct command_group group_pubsub = {"pubsub", ACL_PUBSUB, DATA_KEYS};
const struct command_group group_scripting = {"scripting", ACL_SCRIPTING, DATA_SCRIPTS};
const struct command_group group_set = {"set", ACL_SET, DATA_KEYS};
const struct command_group group_sorted_set = {"sorted-set", ACL_SORTEDSET, DATA_KEYS};
const struct command_group group_stream = {"stream", ACL_STREAM, DATA_KEYS};
const struct command_group group_string = {"string", ACL_STRING, DATA_KEYS};
const struct command_group group_transactions = {"transactions", ACL_TRANSACTION, DATA_KEYS};

const struct key_specification counted_keys_read[] = {{"RO access", KEY_READ, KEY_COUNTED, 1, {0, 1, 1}}, {0}};
const struct key_specification counted_keys_taken_from[] = {
    {"RW access delete", KEY_READ | KEY_WRITE, KEY_COUNTED, 1, {0, 1, 1}},
    {0},
};
const struct key_specification counted_keys_taken_from_till_timeout[] = {
    {"RW access delete", KEY_READ | KEY_WRITE, KEY_COUNTED, 2, {0, 1, 1}},
    {0},
};
const struct key_specification key_added[] = {{"OW insert", KEY_WRITE, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification key_added_to[] = {{"RW insert", KEY_WRITE, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification key_changed[] = {{"RW access update", KEY_READ | KEY_WRITE, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification key_copied[] = {
    {"RO access", KEY_READ, KEY_RANGE, 1, {0, 1}},
    {"OW update", KEY_WRITE, KEY_RANGE, 2, {0, 1}},
    {0},
};
const struct key_specification key_known[] = {{"RO", 0, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification key_moved_from_and_to[] = {
    {"RW access delete", KEY_READ | KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {"RW insert", KEY_WRITE, KEY_RANGE, 2, {0, 1}},
    {0},
};
const struct key_specification key_read[] = {{"RO access", KEY_READ, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification key_removed_from[] = {{"RW delete", KEY_WRITE, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification key_renamed[] = {
    {"RW access delete", KEY_READ | KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {"OW update", KEY_WRITE, KEY_RANGE, 2, {0, 1}},
    {0},
};
const struct key_specification key_renamed_to_new[] = {
    {"RW access delete", KEY_READ | KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {"OW insert", KEY_WRITE, KEY_RANGE, 2, {0, 1}},
    {0},
};
const struct key_specification key_set[] = {{"OW update", KEY_WRITE, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification key_set_from_counted_keys[] = {
    {"OW update", KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {"RO access", KEY_READ, KEY_COUNTED, 2, {0, 1, 1}},
    {0},
};
const struct key_specification key_set_from_key[] = {
    {"OW update", KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {"RO access", KEY_READ, KEY_RANGE, 2, {0, 1}},
    {0},
};
const struct key_specification key_set_from_keys[] = {
    {"OW update", KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {"RO access", KEY_READ, KEY_RANGE, 2, {-1, 1}},
    {0},
};
const struct key_specification key_sorted[] = {
    {"RO access", KEY_READ, KEY_RANGE, 1, {0, 1}},
    {"RO access", KEY_READ, KEY_UNKNOWN},
    {0},
};
const struct key_specification key_sorted_and_stored[] = {
    {"RO access", KEY_READ, KEY_RANGE, 1, {0, 1}},
    {"RO access", KEY_READ, KEY_UNKNOWN},
    {"OW update", KEY_WRITE, KEY_UNKNOWN},
    {0},
};
const struct key_specification key_taken_from[] = {
    {"RW access delete", KEY_READ | KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {0},
};
const struct key_specification key_updated[] = {{"RW update", KEY_WRITE, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification key_updated_from_keys[] = {
    {"RW update", KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {"RO access", KEY_READ, KEY_RANGE, 2, {-1, 1}},
    {0},
};
const struct key_specification key_used_as_asked[] = {
    {"RW access update variable_flags", KEY_READ | KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {0},
};
const struct key_specification keys_known[] = {{"RO", 0, KEY_RANGE, 1, {-1, 1}}, {0}};
const struct key_specification keys_read[] = {{"RO access", KEY_READ, KEY_RANGE, 1, {-1, 1}}, {0}};
const struct key_specification keys_removed[] = {{"RM delete", KEY_WRITE, KEY_RANGE, 1, {-1, 1}}, {0}};
const struct key_specification keys_of_streams[] = {
    {"RO access", KEY_READ, KEY_AFTER_WORD, 1, {-1, 1, 2}, "STREAMS"},
    {0},
};
const struct key_specification keys_of_streams_for_group[] = {
    {"RO access", KEY_READ, KEY_AFTER_WORD, 4, {-1, 1, 2}, "STREAMS"},
    {0},
};
const struct key_specification keys_taken_from_till_timeout[] = {
    {"RW access delete", KEY_READ | KEY_WRITE, KEY_RANGE, 1, {-2, 1}},
    {0},
};
const struct key_specification pairs_added[] = {{"OW insert", KEY_WRITE, KEY_RANGE, 1, {-1, 2}}, {0}};
const struct key_specification pairs_set[] = {{"OW update", KEY_WRITE, KEY_RANGE, 1, {-1, 2}}, {0}};
const struct key_specification script_keys_changed[] = {
    {"RW access update", KEY_READ | KEY_WRITE, KEY_COUNTED, 2, {0, 1, 1}},
    {0},
};
const struct key_specification script_keys_read[] = {{"RO access", KEY_READ, KEY_COUNTED, 2, {0, 1, 1}}, {0}};
const struct key_specification second_key_added_to[] = {{"RW insert", KEY_WRITE, KEY_RANGE, 2, {0, 1}}, {0}};
const struct key_specification second_key_known[] = {{"RO", 0, KEY_RANGE, 2, {0, 1}}, {0}};
const struct key_specification second_key_read[] = {{"RO access", KEY_READ, KEY_RANGE, 2, {0, 1}}, {0}};
const struct key_specification second_key_removed_from[] = {{"RW delete", KEY_WRITE, KEY_RANGE, 2, {0, 1}}, {0}};
const struct key_specification second_key_updated[] = {{"RW update", KEY_WRITE, KEY_RANGE, 2, {0, 1}}, {0}};
const struct key_specification second_key_set_from_keys[] = {
    {"OW update", KEY_WRITE, KEY_RANGE, 2, {0, 1}},
    {"RO access", KEY_READ, KEY_RANGE, 3, {-1, 1}},
    {0},
};
const struct key_specification shard_channel[] = {{"not_key", 0, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification shard_channels[] = {{"not_key", 0, KEY_RANGE, 1, {-1, 1}}, {0}};
const struct key_specification two_keys_read[] = {{"RO access", KEY_READ, KEY_RANGE, 1, {1, 1}}, {0}};
