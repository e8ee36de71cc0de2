/* redis_rows: what the rows of Redis's commands share: their groups, and where keys stand among the arguments. */
#ifndef REPLAY_SERVER_REDIS_ROWS_H
#define REPLAY_SERVER_REDIS_ROWS_H

#include "server/core/command_table.h"

extern const struct command_group group_bitmap, group_generic, group_geo, group_hash, group_hyperloglog, group_list,
    group_pubsub, group_scripting, group_set, group_sorted_set, group_stream, group_string, group_transactions;

/* Each says where the keys are and what is done to them. `known`: the reply tells only that a key is there, or how much
 * it holds. `changed`: read and written; `updated` and `set`: written, its old value unread. */
extern const struct key_specification counted_keys_read[], counted_keys_taken_from[],
    counted_keys_taken_from_till_timeout[], key_added[], key_added_to[], key_changed[], key_copied[], key_known[],
    key_moved_from_and_to[], key_read[], key_removed_from[], key_renamed[], key_renamed_to_new[], key_set[],
    key_set_from_counted_keys[], key_set_from_key[], key_set_from_keys[], key_sorted[], key_sorted_and_stored[],
    key_taken_from[], key_updated[], key_updated_from_keys[], key_used_as_asked[], keys_known[], keys_of_streams[],
    keys_of_streams_for_group[], keys_read[], keys_removed[], keys_taken_from_till_timeout[], pairs_added[],
    pairs_set[], script_keys_changed[], script_keys_read[], second_key_added_to[], second_key_known[],
    second_key_read[], second_key_removed_from[], second_key_updated[], second_key_set_from_keys[], shard_channel[],
    shard_channels[], two_keys_read[];

extern const struct command commands_acl[], commands_bits[], commands_database[], commands_dump[], commands_functions[],
    commands_generic[], commands_geo[], commands_geo_search[], commands_hash[], commands_hash_random[],
    commands_hyperloglog[], commands_keys[], commands_lcs[], commands_list[], commands_list_move[], commands_migrate[],
    commands_object[], commands_pubsub[], commands_scripts[], commands_set[], commands_sort[], commands_stream_claim[],
    commands_stream_entries[], commands_stream_groups[], commands_stream_info[], commands_stream_read[],
    commands_string[], commands_transactions[], commands_zset[], commands_zset_algebra[], commands_zset_pop[],
    commands_zset_random[], commands_zset_range[];

#endif
