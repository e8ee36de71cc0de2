// A workload of a cluster client for Node.js, against the shard at PORT: node node_cluster.mjs LIBRARY PORT
// LIBRARY is ioredis, redis or @valkey/valkey-glide, a binding of Valkey's own client in Rust.
// Prints "begun" when all is written, and "fine" when it was read back once a line came on standard input.
import { createRequire } from "node:module";
import { once } from "node:events";

const require = createRequire(`${process.cwd()}/`);
const [library, port] = process.argv.slice(2);
const keys = Array.from({ length: 300 }, (_, i) => `key:${i}`);

function check(truth, what) {
  if (!truth) throw new Error(`expected ${what}`);
}

async function connect() {
  if (library === "ioredis") {
    const { Cluster } = require("ioredis");
    const cluster = new Cluster([{ host: "127.0.0.1", port: Number(port) }]);
    return {
      set: (key, value) => cluster.set(key, value),
      get: (key) => cluster.get(key),
      increment: (key) => cluster.incr(key),
      evaluate: (script, key) => cluster.eval(script, 1, key),
      close: () => cluster.disconnect(),
    };
  }
  if (library === "@valkey/valkey-glide") {
    const { GlideClusterClient, Logger } = require(library);
    Logger.setLoggerConfig("error"); // each ASK is a warning, on standard output
    const cluster = await GlideClusterClient.createClient({ addresses: [{ host: "127.0.0.1", port: Number(port) }] });
    return {
      set: (key, value) => cluster.set(key, value),
      get: (key) => cluster.get(key),
      increment: (key) => cluster.incr(key),
      evaluate: (script, key) => cluster.customCommand(["EVAL", script, "1", key]),
      close: () => cluster.close(),
    };
  }
  const { createCluster } = require("redis");
  const cluster = createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] });
  await cluster.connect();
  return {
    set: (key, value) => cluster.set(key, value),
    get: (key) => cluster.get(key),
    increment: (key) => cluster.incr(key),
    evaluate: (script, key) => cluster.eval(script, { keys: [key] }),
    close: () => cluster.disconnect(),
  };
}

const client = await connect();
await Promise.all(keys.map((key, i) => client.set(key, `${i}`)));
check((await client.evaluate("return redis.call('get', KEYS[1])", "key:7")) === "7", "a script's reply");
console.log("begun");
process.stdin.resume();
let ended = false;
once(process.stdin, "data").then(() => (ended = true));
let rounds = 0;
while (!ended || rounds < 3) {
  for (const key of ["a", "b", "{a}c", "d"]) {
    check((await client.increment(`count:${key}`)) === rounds + 1, `${rounds + 1} of ${key}`);
  }
  rounds++;
}
const found = await Promise.all(keys.map((key) => client.get(key)));
check(found.every((value, i) => value === `${i}`), "every value");
console.log("fine");
await client.close();
process.exit(0);
