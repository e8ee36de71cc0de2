"""What the comparison with Redis leaves open, and where this server differs, in words: for docs/compatibility.md."""

LEFT_OPEN = [
    "The order of what Redis keeps in no order: keys, fields, members of sets (`KEYS`, `HGETALL`, `SMEMBERS` …).",
    "Cursors of the `SCAN` family, and which part of a collection a step shows.",
    "Random picks: `RANDOMKEY`, `SRANDMEMBER`, `SPOP`, `HRANDFIELD`, `ZRANDMEMBER`.",
    "`OBJECT ENCODING`, sizes in bytes, the text of `INFO`, the prose of `COMMAND DOCS` and of `HELP`.",
    "Times: replies that tell of a time to live or of a time may differ by what lies between the two servers' runs.",
]

REPETITIONS = (
    "With repetitions, more than 1,000,000 elements at once are refused in a transaction or a script. Elsewhere a long "
    "reply is made as the client takes it, and other commands run meanwhile."
)

DIFFERENCES: dict[str, str] = {
    "sort": "`ALPHA` compares bytes, as Redis does in the C locale, but does not end at a zero byte. Elements of equal "
    "weight stay in the order in which they were found.",
    "srandmember": REPETITIONS,
    "hrandfield": REPETITIONS,
    "zrandmember": REPETITIONS,
    "mset": "Who listens to keyspace events hears once of a key that is named twice in a row.",
    "bitfield": "A string that was made longer, or made, for an operation that then fails counts as changed.",
    "keys": "Of a large database in slices, between which other commands run: keys that stay throughout come exactly "
    "once, those that come or go meanwhile may or may not.",
    "object|refcount": "A small integer that was copied counts as shared.",
    "zadd": "A score of 5,120 characters or more is refused.",
    "eval": "`redis.log` writes nothing, and the globals have no metatable; see [scripts.md](scripts.md).",
    "exec": "While a long transaction runs, others are told `BUSY` in the words for a script.",
    "script|debug": "`YES` and `SYNC` are refused.",
    "acl|cat": "Three categories more: `replay`, `weights` and `gradients`.",
    "acl|list": "Single commands of a user come in alphabetical order.",
    "acl|log": "Entries of scripts do not name the connection.",
    "client|list": "`fd` is -1; `lib-name` and `lib-ver` of later versions are there.",
    "client|tracking": "A prefix that overlaps with another of the same command is refused, and changes nothing. "
    "`SWAPDB` tells that all keys have changed, as a flush does. With many changes at once one may be told so too.",
    "client|kill": "A transaction that ends its own connection is answered first.",
    "client|pause": "Keys still end meanwhile. More than 292 years are refused.",
    "command|docs": "No `arguments` and no `complexity`.",
    "config|rewrite": "Writes what CONFIG SET has changed into the TOML file of `serve`; without one as in Redis.",
    "config|set": "Settings that tune what does not exist here are checked and kept, [without "
    "effect](reference/configuration.md#without-effect); certificates are read at the start.",
    "debug": "Off unless `enable-debug-command` says otherwise, as in Redis. `RELOAD` saves and loads again, without "
    "options; it and `LOADAOF` leave weights and gradients as they are. `DIGEST` and `DIGEST-VALUE` have their own "
    "bytes. `SLEEP` keeps only its own client waiting, outside transactions and scripts. "
    "`QUICKLIST-PACKED-THRESHOLD`, `REPLYBUFFER`, `PAUSE-CRON` and `CHANGE-REPL-ID` check their arguments and change "
    "nothing. Subcommands about memory and processes are not there.",
    "function|flush": "There are no functions: accepted; `FUNCTION LIST` and `STATS` are empty.",
    "module|list": "Empty: no module can be loaded.",
    "latency|doctor": "Its own words.",
    "latency|graph": "Its own drawing.",
    "monitor": "Lines are cut at 1 MiB.",
    "replicaof": "`NO ONE` alone: there is no replication.",
    "shutdown": "`SAVE` serves reads while it saves, and `ABORT` gives such a stop up.",
    "bgsave": "No fork: written beside the serving, in a format of its own ([snapshot.md](snapshot.md)).",
    "blpop": "A timeout near 2^63 ms waits for ever.",
    "ping": "Answered also while writes are refused for the disk's sake.",
    "pfcount": "The estimate that a sketch keeps is not written to the append-only file: it is made again.",
    "pfadd": "A damaged sketch is left as it is, where Redis may have added some of the elements.",
    "geosearch": "Members that are equally far stay in the order in which they were found.",
    "xinfo|stream": "`radix-tree-keys` are the blocks of entries, `radix-tree-nodes` those and one.",
    "xread": "A key that is not there counts one miss, and is told of once.",
    "dump": "Values are written in the forms that every version reads, so the bytes are not Redis's.",
    "restore": "Errors about a payload say which byte. Elements that come twice, and bytes behind a value, are errors.",
    "replconf": "What is said before `SYNC` is accepted.",
    "sync": "Sends the keys as a file, as `redis-cli --rdb` wants it, and closes the connection: no changes follow.",
}

NOT_WANTED = {
    "cluster": "One server is one shard: all of these are refused, as by a Redis with cluster support disabled.",
    "sentinel": "Answered as unknown commands are.",
}

BEYOND = "Tables of experience, versioned weights, and gradients that wait: [protocol.md](protocol.md)."

SUITE = [
    ("'SYNC'", "The test reads what a replica is sent: there is no replication."),
    ("'XADD'", "It was recorded before streams were here."),
    ("dump", "It was recorded before `DUMP` and `RESTORE` were here."),
    ("very long nested loops", "Debian's Redis finds nothing by a pattern with so many stars: here it matches."),
    ("rdb-key-save-delay", "The test kills the process that saves: here none is forked. It fails on Redis, too, where "
    "the server is not the suite's own."),
]  # fmt: skip
"""What a failure of Redis's own test suite has in its text, and why it is one."""
