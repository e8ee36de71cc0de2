"""What the comparison with Redis leaves open, and where this server differs, in words: for docs/compatibility.md."""

LEFT_OPEN = [
    "The order of what Redis keeps in no order: keys, fields, members of sets (`KEYS`, `HGETALL`, `SMEMBERS` …).",
    "Cursors of the `SCAN` family, and which part of a collection a step shows. Here a step looks at about 1,000 "
    "entries at most, however large `COUNT` is.",
    "Random picks: `RANDOMKEY`, `SRANDMEMBER`, `SPOP`, `HRANDFIELD`, `ZRANDMEMBER`.",
    "`OBJECT ENCODING`, sizes in bytes, the text of `INFO`, the prose of `COMMAND DOCS` and of `HELP`.",
    "Times: replies with a time, or a time to live, may differ by the time between the two servers' runs.",
]

REPETITIONS = (
    "With repetitions, more than 1,000,000 elements at once are refused in a transaction or a script. Elsewhere a long "
    "reply is produced as the client reads it, and other commands run meanwhile."
)

DIFFERENCES: dict[str, str] = {
    "sort": "`ALPHA` compares bytes, as Redis does in the C locale, but does not end at a zero byte. Elements of equal "
    "weight stay in the order in which they were found.",
    "srandmember": REPETITIONS,
    "hrandfield": REPETITIONS,
    "zrandmember": REPETITIONS,
    "mset": "A key that is named twice in a row causes one keyspace event.",
    "bitfield": "If a failing operation has created or lengthened the string, the string counts as changed.",
    "keys": "A large database is searched in slices, between which other commands run. Keys that exist throughout are "
    "listed exactly once; keys that are created or deleted meanwhile may or may not be listed.",
    "object|refcount": "A copy of a small integer counts as shared.",
    "zadd": "A score of 5,120 characters or more is refused.",
    "eval": "`redis.log` writes nothing, and the globals have no metatable; see [scripts.md](scripts.md).",
    "exec": "While a long transaction runs, other clients get the same `BUSY` error as during a script.",
    "script|debug": "`YES` and `SYNC` are refused.",
    "acl|cat": "Three more categories: `replay`, `weights` and `gradients`.",
    "acl|list": "Single commands of a user come in alphabetical order.",
    "acl|log": "Entries of scripts do not name the connection.",
    "client|list": "`fd` is -1; `lib-name` and `lib-ver` of later versions are there.",
    "client|tracking": "A prefix that overlaps with another of the same command is refused, and changes nothing. "
    "After `SWAPDB` clients are told that all keys have changed, as after a flush. The same may happen after many "
    "changes at once.",
    "client|kill": "A transaction that kills its own connection still gets its reply.",
    "client|pause": "More than 292 years are refused.",
    "command|docs": "No `arguments` and no `complexity`.",
    "config|rewrite": "Writes what `CONFIG SET` has changed into the TOML file of `serve`. Without a file the "
    "error is Redis's.",
    "config|set": "Settings for features that do not exist here are checked and kept, [without "
    "effect](reference/configuration.md#without-effect); certificates are read at the start.",
    "debug": "Off unless `enable-debug-command` says otherwise, as in Redis. `RELOAD` saves and loads again, without "
    "options; it and `LOADAOF` leave weights and gradients as they are. `DIGEST` and `DIGEST-VALUE` give other "
    "bytes than Redis. `SLEEP` keeps only its own client waiting, outside transactions and scripts. "
    "`QUICKLIST-PACKED-THRESHOLD`, `REPLYBUFFER`, `PAUSE-CRON` and `CHANGE-REPL-ID` check their arguments and change "
    "nothing. Subcommands about memory and processes are not there.",
    "failover": "Replicas are asked at once how far they are. A target that is a primary already is followed, since "
    "its answer may have been lost; Redis gives up, and there are two primaries. Also [of a "
    "shard](cluster.md#a-replica-of-a-shard), where Redis's is refused.",
    "replicaof": "Also [of a shard](cluster.md#a-replica-of-a-shard), where Redis's is refused.",
    "function|load": "A library must be loaded within 0.5 s, also by `FUNCTION RESTORE`. `getmetatable(_G)` is "
    "`false`.",
    "function|list": "In the order in which libraries came.",
    "zrank": "`WITHSCORE` of Redis 7.2 is there, and at `ZREVRANK`.",
    "module|list": "Empty: no module can be loaded.",
    "latency|doctor": "Its own words.",
    "latency|graph": "Its own drawing.",
    "monitor": "Lines are cut at 1 MiB.",
    "shutdown": "With `SAVE` the server still answers reads while it saves. `ABORT` cancels such a stop.",
    "bgsave": "No fork: the server writes the snapshot while it serves, in its own format "
    "([snapshot.md](snapshot.md)).",
    "blpop": "A timeout near 2^63 ms waits for ever.",
    "ping": "Answered even while writes are refused because the disk failed.",
    "pfcount": "A sketch caches its estimate. The append-only file does not hold that; it is computed again.",
    "pfadd": "A damaged sketch stays unchanged. Redis may have added some of the elements before it finds the damage.",
    "geosearch": "Members that are equally far stay in the order in which they were found.",
    "xinfo|stream": "`radix-tree-keys` is the number of blocks of entries, `radix-tree-nodes` is one more.",
    "xadd": "An ID with a zero byte is refused, here and elsewhere. Redis reads what stands before that byte.",
    "xsetid": "An ID below the largest deleted one is refused, as in Redis 7.2.",
    "xautoclaim": "`COUNT` may be any number. Redis refuses one that it has no memory for.",
    "xclaim": "The times that an entry was delivered end at 2^63 - 1, where Redis's wrap around.",
    "xreadgroup": "Entries that come and go within one command or transaction wake nobody who waits. The entries that "
    "a group has read end at 2^63 - 1, where Redis's wrap around.",
    "xread": "A key that does not exist counts as one miss and causes one `keymiss` event.",
    "dump": "Values are written in encodings that every version reads, so the bytes differ from Redis's.",
    "migrate": "Over plain TCP, with a new connection each time. Not in transactions and scripts. A target refuses "
    "database -1, which Redis takes for 0.",
    "restore": "Errors about a payload name the byte. Duplicate elements, and bytes after the end of the value, are "
    "errors.",
    "cluster": "A supervisor sets the topology ([cluster.md](cluster.md)). Commands by which nodes find each other and "
    "share slots out are refused.",
    "cluster|shards": "`health` is always `online`.",
}

NOT_WANTED = {
    "sentinel": "Answered like unknown commands.",
}

BEYOND = "Tables of experience, versioned weights, queues of gradients, and `FENCE`: [protocol.md](protocol.md)."

SUITE = [
    ("propagate as", "Replicas are sent `GETDEL`, `ZMPOP` and `BZMPOP` as they came, not as `DEL`, `ZPOPMIN` or "
    "`ZPOPMAX`."),
    ("to match 'xclaim *'", "Replicas are told of a new consumer of a stream before what it was given, not after."),
    ("Expected 'multi' to match", "Replicas are sent `SELECT` within a transaction, not before it, and one change of a "
    "script or transaction as a transaction."),
    ("Lazy-expire", "Here `SCAN` and `RANDOMKEY` pass over keys whose time is over, and leave it to others to remove "
    "them."),
    ("Script delete the expired key", "Here `DEBUG OBJECT` does not see a key whose time is over."),
    ("ziplist of various encodings", "The fields of a restored hash come in another order, which Redis leaves open."),
    ("very long nested loops", "In Debian's Redis a pattern with so many stars matches nothing. Here it matches."),
    ("rdb-key-save-delay", "The test kills the forked process that saves. Here none is forked. It fails on Redis, too, "
    "if the suite did not start the server itself."),
    ("Bad data format", "A payload that is too short fails at its checksum here."),
    ("there is no append-only file to rewrite", "`BGREWRITEAOF` without an append-only file is refused here."),
    ("'populate'", "There is no `DEBUG POPULATE`."),
    ("RELOAD takes no options", "`DEBUG RELOAD` has no options here."),
    ("*expire-cycle*", "`LATENCY` has no event `expire-cycle`: keys expire in the turns of the loop."),
    ("Rewritten commands are logged", "`BLPOP` that waited is in the slow log as of when it came, not when it was "
    "answered."),
    ("trick global protection", "Lua's own message for `getmetatable(_G).__index = …` is another one: the metatable is "
    "hidden here."),
    ("not enough good replicas", "A replica that a failed test before left behind is counted for ten seconds."),
    ("resp3 attribute protocol", "Scripts get an attribute of `DEBUG PROTOCOL` as a reply of its own."),
    ("'admin-port'", "The test knows which of Redis's settings cannot be changed, and not which of this server's."),
    ("'maxmemory-clients'", "`maxmemory-clients` cannot be changed."),
    ("argument 'port'", "`port` cannot be changed while the server runs."),
    ("key-load-delay", "There is no setting `key-load-delay`."),
    ("query buffer resized", "`CLIENT LIST` tells what is used of query and reply buffers, which are not resized."),
    ("reply buffer", "`CLIENT LIST` tells what is used of query and reply buffers, which are not resized."),
]  # fmt: skip
"""What a failure of Redis's own test suite has in its text, and why it is one."""
