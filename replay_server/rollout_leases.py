"""Who may generate which sample of rollouts, or work on which unit of a task: the scripts that give leases, extend them
and take them back. `rollout_scripts` says under which keys leases lie, and what a place and a unit are.

A place has one holder at a time. A lease that has expired stays its holder's until another call gets the place: then
the former holder is found to have lost it. A call is known by its holder, 16 random bytes: a repeated one is answered
alike.
"""

from __future__ import annotations

from .rollout_scripts import MOST_PLACES, SEGMENTS, Script

_GRANTS = f"""
local leases, expiry, calls, free = unpack(KEYS, 3)
local now = now_ms()

-- Frees the places whose leases have expired; whether there may be more of them.
local function free_expired()
    local expired = redis.call('ZRANGEBYSCORE', expiry, '-inf', text(now), 'LIMIT', '0', '{MOST_PLACES}')
    for _, place in ipairs(expired) do
        redis.call('ZREM', expiry, place)
        redis.call('ZADD', free, place, place)
    end
    return #expired == {MOST_PLACES}
end

-- Milliseconds until a lease expires; -1: there is none.
local function expires_ms()
    local soonest = redis.call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2]
    return soonest and math.max(1, tonumber(soonest) - now) or -1
end

local function grant(places, holder, told)
    for _, place in ipairs(places) do
        local former = redis.call('HGET', leases, place)
        if former then redis.call('HDEL', calls, former) end
        redis.call('HSET', leases, place, holder)
        redis.call('ZREM', free, place)
        redis.call('ZADD', expiry, text(now + lease_ms), place)
    end
    local granted = table.concat(told or places, ' ')
    redis.call('HSET', calls, holder, granted)
    return {{1, granted}}
end
"""

LEASE = Script(
    SEGMENTS
    + _GRANTS
    + f"""
local holder, count, policy = ARGV[2], math.min(tonumber(ARGV[3]), {MOST_PLACES}), tonumber(ARGV[4])
local drops = ARGV[5] == '1'
"""
    + """
if policy > version + 1 then
    return redis.error_reply('ERR the learner is at policy version ' .. text(version) .. ', so a worker may have ' ..
        text(version + 1) .. ' at most, got ' .. text(policy) .. ': is it another run? Nothing was leased')
end
local before = redis.call('HGET', calls, holder)
if before then return {1, before} end

-- The first place that a policy is too old for: what makes the bound hold (see rollouts.py).
local function bound(of) return (math.min(of, version) + max_staleness - max_delay + 1) * batch_samples end

if free_expired() then return {-1} end
local places = redis.call('ZRANGEBYSCORE', free, '-inf', '(' .. text(bound(policy)), 'LIMIT', '0', text(count))
local told, dropped = {}, 0
for at, place in ipairs(places) do
    local key = KEYS[1] .. ':segments:' .. text(math.floor(place / batch_samples))
    local of = segments_of(key, place)
    told[at] = place
    if of and drops then
        dropped = dropped + of.count
        if dropped > most_segments and at > 1 then
            places = {unpack(places, 1, at - 1)}
            told[at], count = nil, 0
            break
        end
        for number = 0, of.count - 1 do redis.call('HDEL', key, place .. ':' .. text(number)) end
        redis.call('HDEL', key, place)
    elseif of then
        told[at] = place .. ':' .. text(of.count)
    end
end
local first_fresh = fresh
while #places < count and fresh < bound(policy) do
    places[#places + 1], told[#told + 1] = text(fresh), text(fresh)
    fresh = fresh + 1
end
if #places == 0 then
    local lowest = redis.call('ZRANGE', free, 0, 0)[1]
    if lowest or fresh < bound(version) then
        local batch = math.floor((lowest or fresh) / batch_samples)
        return redis.error_reply('STALEVERSION policy version ' .. text(policy) .. ' is too old: what can be leased is '
            .. 'for batch ' .. text(batch) .. ', which needs at least version '
            .. text(batch + max_delay - max_staleness) .. '; fetch newer weights. Nothing was leased')
    end
    return {0, changes, expires_ms(), version}
end
if fresh > first_fresh then redis.call('HSET', KEYS[1], 'next', text(fresh)) end
return grant(places, holder, told)
"""
)
"""Keys: the rollouts, changes, leases, expiry, calls, free. Arguments: incarnation, holder, how many, policy version,
1: segments that are there are dropped. Answer: 1 and the places, each with :COUNT if it has segments; 0, the number of
changes, milliseconds until a lease expires (-1: there is none), and the learner's version; or -1: more leases have
expired than one call frees, so call again."""

LEASE_UNITS = Script(
    _GRANTS
    + f"""
local holder, count, task = ARGV[2], math.min(tonumber(ARGV[3]), {MOST_PLACES}), ARGV[4]
"""
    + """
local before = redis.call('HGET', calls, holder)
if before then return {1, before} end
if free_expired() then return {-1} end
local units = redis.call('ZRANGE', free, 0, count - 1)
if #units == 0 then
    return {0, tonumber(redis.call('HGET', KEYS[1], 'changes:' .. task) or 0), expires_ms()}
end
return grant(units, holder)
"""
)
"""Keys: the rollouts, and the task's changes, leases, expiry, calls, free. Arguments: incarnation, holder, how many,
the task's number. Answer: as that of LEASE, without the version."""

EXTEND = Script(
    """
local seconds, kind, held, given_back = ARGV[2], ARGV[3], {}, false
for at = 4, #ARGV, 2 do
    local place, holder = ARGV[at], ARGV[at + 1]
    if redis.call('HGET', KEYS[3], place) == holder then
        held[#held + 1] = (at - 4) / 2
        if seconds == '' then
            redis.call('HDEL', KEYS[3], place)
            redis.call('HDEL', KEYS[5], holder)
            redis.call('ZREM', KEYS[4], place)
            redis.call('ZADD', KEYS[6], place, place)
            given_back = true
        else
            redis.call('ZREM', KEYS[6], place)
            redis.call('ZADD', KEYS[4], text(now_ms() + tonumber(seconds) * 1000), place)
        end
    end
end
if given_back then wake(KEYS[2], kind) end
return held
""",
    flags="allow-oom",  # what it adds is small, and what it gives back makes others go on
)
"""Keys: the rollouts, then changes, leases, expiry, calls, free, a task's or not. Arguments: incarnation, seconds from
now ("": the leases are given back), the kind of changes, then place or unit and holder of each. Answer: which of
them were held, from 0."""
