<?php
// A workload of phpredis's cluster client, which is written in C, against the shard at PORT: php cluster_client.php PORT
// Prints "begun" when all is written, and "fine" when it was read back once a line came on standard input.
function check(bool $truth, string $what): void {
    if (!$truth) {
        throw new Exception("expected $what");
    }
}

$cluster = new RedisCluster(null, ["127.0.0.1:{$argv[1]}"], 10, 10);
for ($i = 0; $i < 300; $i++) {
    check($cluster->set("key:$i", "$i"), "OK");
}
check($cluster->eval("return redis.call('get', KEYS[1])", ["key:7"], 1) === "7", "a script's reply");
echo "begun\n";
$ended = false;
for ($rounds = 0; !$ended || $rounds < 3; $rounds++) {
    foreach (["a", "b", "{a}c", "d"] as $key) {
        check($cluster->incr("count:$key") === $rounds + 1, ($rounds + 1) . " of $key");
    }
    $read = [STDIN];
    $none = null;
    $ended = $ended || stream_select($read, $none, $none, 0) > 0;
}
for ($i = 0; $i < 300; $i++) {
    check($cluster->get("key:$i") === "$i", "$i");
}
echo "fine\n";
