// Reads keys twice through node-redis's cache, changes them by another client, and reads again. Prints what came as JSON.
//
//     node node_cache.mjs URL default|bcast

import { createClient, BasicClientSideCache } from "redis";

const [url, mode] = process.argv.slice(2);
const KEYS = 200;
const names = Array.from({ length: KEYS }, (_, i) => `key:${i}`);

const other = await createClient({ url }).connect();
const cache = new BasicClientSideCache({ ttl: 0, maxEntries: 0, evictPolicy: "LRU" });
const cached = createClient({ url, RESP: 3, clientSideCache: cache });
await cached.connect();
if (mode === "bcast") {
  await cached.sendCommand(["CLIENT", "TRACKING", "OFF"]);
  await cached.sendCommand(["CLIENT", "TRACKING", "ON", "BCAST"]);
}

const calls = async () => {
  const line = (await other.info("commandstats")).match(/cmdstat_get:calls=(\d+)/);
  return line ? Number(line[1]) : 0;
};
const read = async () => {
  const values = [];
  for (const name of names) values.push(await cached.get(name));
  return values;
};
const until = async (isSo) => {
  for (let tries = 0; tries < 1000 && !(await isSo()); tries++) await new Promise((done) => setTimeout(done, 10));
};

await other.flushAll();
for (let i = 0; i < KEYS; i++) await other.set(names[i], `${i}`);
const before = await calls();
const first = await read();
const again = await read();
const gets = (await calls()) - before;
for (const name of names) await other.set(name, "new");
await until(async () => (await cached.get(names[KEYS - 1])) === "new");
const changed = await read();
await other.flushAll();
await until(async () => (await cached.get(names[0])) === null);
const flushed = await cached.get(names[0]);
console.log(JSON.stringify({ first, again, gets, changed, flushed }));
await cached.close();
await other.close();
