"""What the comparison with Redis leaves open, and where this server differs, in words: for docs/compatibility.md."""

LEFT_OPEN = [
    "The order of what Redis keeps in no order: keys, fields, members of sets (`KEYS`, `HGETALL`, `SMEMBERS` …).",
    "Cursors of the `SCAN` family, and which part of a collection a step shows.",
    "Random picks: `RANDOMKEY`, `SRANDMEMBER`, `SPOP`, `HRANDFIELD`, `ZRANDMEMBER`.",
    "`OBJECT ENCODING`, sizes in bytes, the text of `INFO`, the prose of `COMMAND DOCS` and of `HELP`.",
    "Times: replies that tell of a time to live or of a time may differ by what lies between the two servers' runs.",
]

DIFFERENCES: dict[str, str] = {
    "sort": "`ALPHA` compares bytes, as Redis does in the C locale, but does not end at a zero byte. Elements of equal "
    "weight stay in the order in which they were found.",
    "srandmember": "With repetitions, more than 1,000,000 members at once are refused in a transaction or a script. "
    "Elsewhere a long reply is made as the client takes it, and other commands run meanwhile.",
}

NOT_WANTED = {
    "stream": "Streams are answered as unknown commands are: experience lives in tables (`REPLAY.*`).",
    "geo": "Answered as unknown commands are.",
    "cluster": "One server is one shard; it says of itself that it is no cluster.",
    "hyperloglog": "Answered as unknown commands are.",
    "sentinel": "Answered as unknown commands are.",
}

BEYOND = "Tables of experience and versioned weights: [protocol.md](protocol.md)."
