"""The scripts that `rollouts` has the server run. Each is one transaction, in the append-only file, too.

All that is known of some rollouts lies under `rollouts:{NAME}`, in braces so that it is one slot of a cluster:

    (itself)        hash: spec, incarnation, batch_samples, max_staleness, max_delay, lease_ms; `tasks`: how many;
                    `version`: the learner's; `taken`: the version whose batch was taken last; `next`: the first place
                    that was never leased; `changes`, and `changes:TASK`; with a max_delay: `completed`, how many groups
                    were, and `chosen`, the groups of the batch that was taken last
    :leases         hash: place → its holder, 24 bytes: 16 random ones of the call that leased it, and the version
    :expiry         sorted set: leased places by the millisecond from which another call may have them
    :free           sorted set: places by number that were given back, or whose lease was found to have expired: its
                    holder has it until another call does
    :calls          hash: holder → the places of its call, until one is used: a repeated call is answered alike
    :batch:VERSION  hash: place → sample, and place with an "h" behind it → holder; behind the holder of a sample that
                    has segments: the smallest and the largest version that made it, and how many segments
    :segments:VERSION  hash: place:NUMBER → a segment, from 0 on; place → how many there are, their bytes, the smallest
                    and the largest version that made them, and the rows of each ragged column, "-" where none came
    :results:VERSION  hash: place:TASK → what that task wrote of the sample, and with an "h" behind it → holder
    :there          hash: TASK:UNIT → how many parts there are of those that the task waits for, where some are missing;
                    0:GROUP → how many of those that the learner waits for, with a max_delay
    :complete, :completion  with a max_delay, sorted sets: complete groups that were not trained on, by number, and by
                    when they were complete
    :trained        with a max_delay, hash: VERSION → how many groups were trained on of those that begin with its batch
    :changes        stream of one entry, whose id is the number in `changes`: those that wait, wait for the next
    :task:TASK:leases, :expiry, :calls, :free, :changes     of a task, by its number: as above, with units for places.
                    A unit becomes free when the last part that the task waits for is written

A place is the number of a sample: those of batch b are b · batch_samples up to (b + 1) · batch_samples - 1. The unit of
a task is a sample or a group: its number is that of its first sample, over the number of its samples.

No call does more work than for MOST_PLACES places, for those that its arguments name, for the max_staleness + 1
batches, or, with a max_delay, for the groups of two batches. Where more than MOST_PLACES leases have expired, they
become free by several calls of LEASE. The scripts that lease are in `rollout_leases`.
"""

from __future__ import annotations

import hashlib

MOST_SAMPLE_BYTES = 32 << 20
"""With its segments. Scripts have 64 MiB (`script-memory-limit`)."""
MOST_PLACES = 256
"""Places that a call grants, or frees; segments of a sample."""

_BEGIN = """
local state = redis.call('HMGET', KEYS[1], 'incarnation', 'version', 'taken', 'next', 'batch_samples', 'max_staleness',
    'lease_ms', 'changes', 'tasks', 'max_delay', 'group_size')
if state[1] ~= ARGV[1] then
    return redis.error_reply('BADSCHEMA these rollouts were dropped, or made anew, since this program began: ' ..
        'make the rs.Rollouts again; nothing was changed')
end
local version, taken, fresh = tonumber(state[2]), tonumber(state[3]), tonumber(state[4])
local batch_samples, max_staleness = tonumber(state[5]), tonumber(state[6])
local lease_ms, changes, tasks = tonumber(state[7]), tonumber(state[8]), tonumber(state[9])
local max_delay, group_size = tonumber(state[10]), tonumber(state[11])

local function text(number) return string.format('%.0f', number) end

local function now_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Wakes whoever waits for changes of this kind.
local function wake(stream, kind)
    local number = text(redis.call('HINCRBY', KEYS[1], kind or 'changes', 1))
    redis.call('XADD', stream or KEYS[2], 'MAXLEN', '1', number .. '-0', 'changed', '')
end

-- Streams to wake when all that a call brought is written, and their kinds of changes.
local to_wake = {}

local function wake_once()
    for stream, kind in pairs(to_wake) do wake(stream, kind) end
end

-- A part of a sample has been written: the learner waits for those of the whole group.
local function written_to(place)
    local group = text(math.floor(place / group_size))
    if redis.call('HINCRBY', KEYS[1] .. ':there', '0:' .. group, 1) == group_size * (1 + tasks) then
        redis.call('HDEL', KEYS[1] .. ':there', '0:' .. group)
        redis.call('ZADD', KEYS[1] .. ':complete', group, group)
        redis.call('ZADD', KEYS[1] .. ':completion', text(redis.call('HINCRBY', KEYS[1], 'completed', 1)), group)
        to_wake[KEYS[1] .. ':changes'] = 'changes'
    end
end

-- The same; from here on, the arguments name the tasks that wait for it.
local function written(place, from)
    if max_delay > 0 then written_to(place) end
    for at = from, #ARGV, 3 do
        local task, unit, parts = ARGV[at], text(math.floor(place / tonumber(ARGV[at + 1]))), tonumber(ARGV[at + 2])
        local counter = task .. ':' .. unit
        if parts == 1 or redis.call('HINCRBY', KEYS[1] .. ':there', counter, 1) == parts then
            if parts > 1 then redis.call('HDEL', KEYS[1] .. ':there', counter) end
            redis.call('ZADD', KEYS[1] .. ':task:' .. task .. ':free', unit, unit)
            to_wake[KEYS[1] .. ':task:' .. task .. ':changes'] = 'changes:' .. task
        end
    end
end
"""


class Script:
    """A script, and the name by which the server knows it once it has run it."""

    def __init__(self, body: str, flags: str = "", begin: str = _BEGIN) -> None:
        self.text = f"#!lua{flags and f' flags={flags}'}\n{begin}{body}"
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


OPEN = Script(
    """
local spec, incarnation, first, batch_samples, max_staleness, lease_ms, tasks, max_delay, group_size = unpack(ARGV)
local known = redis.call('HMGET', KEYS[1], 'incarnation', 'spec')
if known[1] then return known end
redis.call('HSET', KEYS[1], 'spec', spec, 'incarnation', incarnation, 'batch_samples', batch_samples,
    'max_staleness', max_staleness, 'lease_ms', lease_ms, 'tasks', tasks, 'version', first, 'taken', '-1',
    'max_delay', max_delay, 'group_size', group_size,
    'changes', '0', 'next', string.format('%.0f', tonumber(first) * tonumber(batch_samples)))
return {incarnation, spec}
""",
    begin="",
)
"""Key: the rollouts. Arguments: spec, incarnation, first version, batch_samples, max_staleness, lease_ms, how many
tasks, max_delay, group_size. Answer: the incarnation and the spec that there are."""

SEGMENTS = f"""
local most_segments = {MOST_PLACES}

-- What is known of the segments of a place; nil: there are none.
local function segments_of(key, place)
    local known = redis.call('HGET', key, place)
    if not known then return nil end
    local words = {{}}
    for word in string.gmatch(known, '%S+') do words[#words + 1] = tonumber(word) or word end
    return {{count = words[1], bytes = words[2], oldest = words[3], newest = words[4], rows = {{unpack(words, 5)}}}}
end

local function keep_segments(key, place, of)
    local words = {{text(of.count), text(of.bytes), text(of.oldest), text(of.newest)}}
    for _, rows in ipairs(of.rows) do words[#words + 1] = rows == '-' and '-' or text(rows) end
    redis.call('HSET', key, place, table.concat(words, ' '))
end

-- Adds the rows that the arguments name, from here on, to those of segments; or tells which column is too long.
local function add_rows(of, from, columns)
    for column = 1, columns do
        local rows, most = tonumber(ARGV[from + 2 * column - 2]), tonumber(ARGV[from + 2 * column - 1])
        local before = of.rows[column] or '-'
        of.rows[column] = rows and (before == '-' and rows or before + rows) or before
        if rows and of.rows[column] > most then return {{-2, column - 1, of.rows[column]}} end
    end
end

local function too_many_bytes(bytes)
    if bytes > {MOST_SAMPLE_BYTES} then return {{-3, bytes}} end
end
"""

SUBMIT = Script(
    SEGMENTS
    + """
local samples, columns = tonumber(ARGV[2]), tonumber(ARGV[3])
local width, lost, held = 5 + 2 * columns, {}, {}
for number = 1, samples do
    local at = 4 + (number - 1) * width
    local place, holder, brought = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 3])
    local batch = math.floor(tonumber(place) / batch_samples)
    local key = KEYS[1] .. ':batch:' .. text(batch)
    if batch < version - max_delay then
        lost[#lost + 1] = -number
    elseif redis.call('HGET', KEYS[3], place) == holder then
        local before = segments_of(KEYS[1] .. ':segments:' .. text(batch), place)
        local of, by = before or {count = 0, bytes = 0, rows = {}}, holder
        local refusal = of.count ~= tonumber(ARGV[at + 4]) and {-4, of.count} or add_rows(of, at + 5, columns)
        for column = 1, columns do
            if not refusal and of.rows[column] == '-' then refusal = {-1, column - 1} end
        end
        refusal = refusal or before and too_many_bytes(of.bytes + #ARGV[at + 2])
        if refusal then return {number - 1, unpack(refusal)} end
        if before then
            local oldest, newest = math.min(of.oldest, brought or of.oldest), math.max(of.newest, brought or of.newest)
            by = holder .. text(oldest) .. ' ' .. text(newest) .. ' ' .. text(of.count)
        end
        held[#held + 1] = {at = at, key = key, by = by}
    elseif string.sub(redis.call('HGET', key, place .. 'h') or '', 1, #holder) ~= holder then
        lost[#lost + 1] = number
    end
end
for _, each in ipairs(held) do
    local place = ARGV[each.at]
    redis.call('HSET', each.key, place, ARGV[each.at + 2], place .. 'h', each.by)
    redis.call('HDEL', KEYS[3], place)
    redis.call('ZREM', KEYS[4], place)
    redis.call('HDEL', KEYS[5], ARGV[each.at + 1])
    redis.call('ZREM', KEYS[6], place)
    if redis.call('HLEN', each.key) == 2 * batch_samples then to_wake[KEYS[2]] = 'changes' end
    written(tonumber(place), 4 + samples * width)
end
wake_once()
return {-1, unpack(lost)}
"""
)
"""Keys: the rollouts, changes, leases, expiry, calls, free. Arguments: incarnation, how many samples, how many ragged
columns; of each sample its place, holder, the sample, the version that made its rows ("": it has none), how many
segments its worker knows of, and of each ragged column its rows ("-": none came) and its max_length; then of each task
that waits for them its number, the samples of its unit, and the parts that it waits for. Answer: -1, and which of the
samples were lost, from 1, with a minus if their batch was trained on; the others are stored, or were. Or nothing was
changed: which sample is refused, from 0, and -1 and which ragged column is missing; -2, which is too long, and its
rows; -3 and how many bytes it would have; or -4 and how many segments there are."""

APPEND = Script(
    SEGMENTS
    + """
local place, holder, segment, policy, number = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[7])
local batch = math.floor(tonumber(place) / batch_samples)
if redis.call('HGET', KEYS[3], place) ~= holder then
    return redis.error_reply('LEASEEXPIRED the lease was given back or used, or had expired and was given to another '
        .. 'worker: drop this sample, and lease again. Nothing was changed')
end
local key = KEYS[1] .. ':segments:' .. text(batch)
local of = segments_of(key, place) or {count = 0, bytes = 0, oldest = policy, newest = policy, rows = {}}
if number < of.count then return {0} end
if policy > version + 1 then
    return redis.error_reply('ERR the learner is at policy version ' .. text(version) .. ', so a worker may have ' ..
        text(version + 1) .. ' at most, got ' .. text(policy) .. ': is it another run? Nothing was stored')
end
if policy < batch + max_delay - max_staleness then
    return redis.error_reply('STALEVERSION policy version ' .. text(policy) .. ' is too old for batch ' .. text(batch)
        .. ': expected at least ' .. text(batch + max_delay - max_staleness) .. '; nothing was stored')
end
if number > of.count then return {-1, of.count} end
if of.count == most_segments then
    return redis.error_reply('LIMIT expected at most ' .. most_segments .. ' segments of a sample; nothing was stored')
end
local refusal = too_many_bytes(of.bytes + #segment) or add_rows(of, 8, tonumber(ARGV[6]))
if refusal then return refusal end
of.count, of.bytes = of.count + 1, of.bytes + #segment
of.oldest, of.newest = math.min(of.oldest, policy), math.max(of.newest, policy)
redis.call('HSET', key, place .. ':' .. text(number), segment)
keep_segments(key, place, of)
return {1}
"""
)
"""Keys: the rollouts, changes, leases. Arguments: incarnation, place, holder, segment, the version that made it, how
many ragged columns, number of the segment, of each column as SUBMIT. Answer: 1; 0: it
was there; -1 and the number that is next; -2, which column is too long, and its rows; -3 and how many bytes the sample
would have."""

PUT = Script(
    """
local leases, expiry, calls, free = unpack(KEYS, 3)
local holder, task, samples, count = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local lost = {}
for first = 1, count, samples do
    local place = tonumber(ARGV[4 + 2 * first])
    local unit, batch = text(math.floor(place / samples)), math.floor(place / batch_samples)
    local results = KEYS[1] .. ':results:' .. text(batch)
    if redis.call('HGET', leases, unit) == holder then
        redis.call('HDEL', leases, unit)
        redis.call('HDEL', calls, holder)
        redis.call('ZREM', expiry, unit)
        redis.call('ZREM', free, unit)
        for at = first, first + samples - 1 do
            local field = ARGV[4 + 2 * at] .. ':' .. task
            redis.call('HSET', results, field, ARGV[5 + 2 * at], field .. 'h', holder)
            written(tonumber(ARGV[4 + 2 * at]), 6 + 2 * count)
        end
        if redis.call('HLEN', results) == 2 * tasks * batch_samples then to_wake[KEYS[1] .. ':changes'] = 'changes' end
    elseif redis.call('HGET', results, text(place) .. ':' .. task .. 'h') ~= holder then
        lost[#lost + 1] = (first - 1) / samples
    end
end
wake_once()
return lost
"""
)
"""Keys: the rollouts, and the task's changes, leases, expiry, calls, free. Arguments: incarnation, holder, the task's
number, the samples of its unit, how many samples, of each its place and what the task wrote of it, unit by unit; then
as SUBMIT. Answer: which of the units were lost, from 0. The others are stored, or were."""

TAKE = Script(
    """
local policy = tonumber(ARGV[2])
local groups_per_batch = batch_samples / group_size

-- The groups of the batch that was taken last leave.
local function leave()
    local chosen = redis.call('HGET', KEYS[1], 'chosen')
    for group in string.gmatch(chosen, '%d+') do
        redis.call('ZREM', KEYS[1] .. ':complete', group)
        redis.call('ZREM', KEYS[1] .. ':completion', group)
        redis.call('HINCRBY', KEYS[1] .. ':trained', text(math.floor(group / groups_per_batch)), 1)
    end
    redis.call('HDEL', KEYS[1], 'chosen')
    redis.call('HDEL', KEYS[1] .. ':trained', text(version - max_delay))
end

-- The groups of a batch: those that may not be later, then those that were complete first.
local function choose()
    local chosen = redis.call('HGET', KEYS[1], 'chosen')
    if chosen then return {1, changes, chosen} end
    local last = policy - max_delay
    local due = last < tonumber(ARGV[3]) and 0 or
        groups_per_batch - tonumber(redis.call('HGET', KEYS[1] .. ':trained', text(last)) or 0)
    local groups, there = {}, redis.call('ZCARD', KEYS[1] .. ':complete')
    if due > 0 then
        groups = redis.call('ZRANGEBYSCORE', KEYS[1] .. ':complete', text(last * groups_per_batch),
            '(' .. text((last + 1) * groups_per_batch))
    end
    if #groups < due or there < groups_per_batch then return {0, changes, there, due, #groups} end
    for _, group in ipairs(redis.call('ZRANGE', KEYS[1] .. ':completion', 0, groups_per_batch + due - 1)) do
        if #groups < groups_per_batch and (due == 0 or math.floor(group / groups_per_batch) ~= last) then
            groups[#groups + 1] = group
        end
    end
    chosen = table.concat(groups, ' ')
    redis.call('HSET', KEYS[1], 'taken', text(policy), 'chosen', chosen)
    return {1, changes, chosen}
end

if policy < version then
    return redis.error_reply('STALEVERSION the batch of policy version ' .. text(policy) .. ' has been trained on, and '
        .. 'its samples are gone: the next is that of version ' .. text(version) .. '; continue from those weights')
end
if policy > version + 1 or (policy == version + 1 and taken ~= version) then
    local following = taken == version and version + 1 or version
    return redis.error_reply('NOTTAKEN the batch of policy version ' .. text(following) .. ' is next, got '
        .. text(policy) .. ': train on each batch in turn. Nothing was changed')
end
if policy == version + 1 then
    redis.call('UNLINK', KEYS[4], KEYS[6], KEYS[1] .. ':segments:' .. text(version - max_delay))
    if max_delay > 0 then leave() end
    redis.call('HSET', KEYS[1], 'version', text(policy))
    wake()
    changes = changes + 1
end
if max_delay > 0 then return choose() end
local there, results = redis.call('HLEN', KEYS[3]) / 2, redis.call('HLEN', KEYS[5]) / 2
if there < batch_samples or results < tasks * batch_samples then return {0, changes, there, results} end
if taken ~= policy then redis.call('HSET', KEYS[1], 'taken', text(policy)) end
return {1, changes}
""",
    flags="allow-oom",  # it makes room
)
"""Keys: the rollouts, changes, the batch of this version, that of max_delay + 1 before, and the results of both.
Arguments: incarnation, policy version, first version. Answer: 1 and the number of changes; or 0, the number of changes,
how many samples are there, and how many results. With a max_delay: 1, the number of changes and the groups; or 0, the
number of changes, how many groups are complete, how many may not be later, and how many of these are complete."""

INFO = Script(
    """
local held = redis.call('HLEN', KEYS[3])
local open = redis.call('ZCOUNT', KEYS[4], '-inf', text(now_ms())) + redis.call('ZCARD', KEYS[6])
local samples = {}
for ahead = 0, max_staleness do
    samples[ahead + 1] = redis.call('HLEN', KEYS[1] .. ':batch:' .. text(version - max_delay + ahead)) / 2
end
local works = {}
for task = 1, tasks do
    local key = KEYS[1] .. ':task:' .. text(task)
    local ready = redis.call('ZCOUNT', key .. ':expiry', '-inf', text(now_ms())) + redis.call('ZCARD', key .. ':free')
    works[task] = {ready, redis.call('HLEN', key .. ':leases')}
end
return {version, fresh - version * batch_samples, held, open, samples, works}
""",
    flags="no-writes",
)
"""Keys: the rollouts, changes, leases, expiry, calls, free. Argument: incarnation."""

DROP = Script(
    """
for ahead = 0, max_staleness do
    local batch = text(version - max_delay + ahead)
    redis.call('UNLINK', KEYS[1] .. ':batch:' .. batch, KEYS[1] .. ':results:' .. batch,
        KEYS[1] .. ':segments:' .. batch)
end
return redis.call('UNLINK', unpack(KEYS))
""",
    flags="allow-oom",
)
"""Keys: all but those of batches. Argument: incarnation."""
