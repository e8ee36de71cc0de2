// Jobs of BullMQ: at once, delayed, failing and tried again, by priority, and a parent with children. Prints what came of them.
import { FlowProducer, Queue, QueueEvents, Worker } from "bullmq";

const url = new URL(process.argv[2]);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const queue = new Queue("jobs", { connection });
const events = new QueueEvents("jobs", { connection });
const flows = new FlowProducer({ connection });
await events.waitUntilReady();

const order = [];
const job = async (job) => {
  order.push(job.name);
  if (job.name === "fails" && job.attemptsMade < 2) throw new Error("not yet");
  if (job.name === "parent") return Object.values(await job.getChildrenValues()).reduce((sum, value) => sum + value, 0);
  return job.data.n * 2;
};

const low = await queue.add("low", { n: 1 }, { priority: 10 });
const high = await queue.add("high", { n: 2 }, { priority: 1 });
const worker = new Worker("jobs", job, { connection, concurrency: 1 });
const many = await queue.addBulk(Array.from({ length: 200 }, (_, n) => ({ name: "many", data: { n } })));
const delayed = await queue.add("delayed", { n: 3 }, { delay: 200 });
const fails = await queue.add("fails", { n: 4 }, { attempts: 3, backoff: { type: "fixed", delay: 20 } });
const flow = await flows.add({
  name: "parent", queueName: "jobs",
  children: [1, 2, 3].map((n) => ({ name: "child", queueName: "jobs", data: { n } })),
});
const results = await Promise.all([low, high, ...many, delayed, fails, flow.job].map((each) => each.waitUntilFinished(events, 60000)));
console.log(JSON.stringify({
  results: results.slice(0, 2), many: results.slice(2, 202), delayed: results[202], fails: results[203], parent: results[204],
  attempts: order.filter((name) => name === "fails").length, counts: await queue.getJobCounts("completed", "failed", "waiting"),
  highFirst: order.indexOf("high") < order.indexOf("low"),
}));
await worker.close();
await Promise.all([queue.close(), events.close(), flows.close()]);
process.exit(0);
