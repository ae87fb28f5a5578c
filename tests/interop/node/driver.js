'use strict';
// Node's ali-ons, driven by JSON lines: one command a line on standard input, one answer a line on standard output
// with the command's id, and lines with "event" for what consumers receive. Ends with its input.

const readline = require('readline');
const { Consumer, Producer, Message } = require('ali-ons');
const httpclient = require('urllib');

const nameSrv = process.argv[2];
const clients = new Map();
let instances = 0;

const quiet = { info() {}, debug() {}, warn() {}, error(...said) { console.error(...said); } };

function say(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function options(group) {
  return { httpclient, nameSrv, logger: quiet, instanceName: `driver-${process.pid}-${++instances}`, ...group };
}

function message(order) {
  const made = new Message(order.topic, order.tags || '', order.size ? 'x'.repeat(order.size) : order.body);
  if (order.keys) made.keys = order.keys.split(' ');
  if (order.delayLevel) made.delayTimeLevel = order.delayLevel;
  for (const [ key, value ] of Object.entries(order.properties || {})) made.properties[key] = String(value);
  return made;
}

function sent(result) {
  return {
    status: result.sendStatus, msgId: result.msgId, offsetMsgId: result.offsetMsgId,
    queueId: result.messageQueue && result.messageQueue.queueId, queueOffset: result.queueOffset,
  };
}

const commands = {
  async producer(order) {
    const producer = new Producer(options({ producerGroup: order.name, compressMsgBodyOverHowmuch: order.compressOver }));
    producer.on('error', error => say({ event: 'error', error: String(error) }));
    await producer.ready();
    clients.set(order.name, producer);
  },

  async send(order) {
    const producer = clients.get(order.name);
    if (order.mode === 'selector') return sent(await producer.send(message(order), order.argument));
    return sent(await producer.send(message(order)));
  },

  async send_many(order) {
    const results = [];
    for (let each = 0; each < order.count; each++) {
      results.push(await commands.send({ ...order, body: order.body + each }));
    }
    return results;
  },

  async push(order) {
    const consumer = new Consumer(options({
      consumerGroup: order.name, isBroadcast: Boolean(order.broadcasting), consumeFromWhere: order.from || 'CONSUME_FROM_FIRST_OFFSET',
      ...(order.at ? { consumeTimestamp: order.at } : {}),
      maxReconsumeTimes: order.maxReconsumeTimes || 16,
    }));
    consumer.on('error', error => say({ event: 'error', error: String(error) }));
    const wanted = order.sql ? { expressionType: 'SQL92', subString: order.sql } : order.tags || '*';
    consumer.subscribe(order.topic, wanted, async received => {
      const body = received.body.toString();
      say({
        event: 'message', consumer: order.name, topic: received.topic, queueId: received.queueId,
        offset: Number(received.queueOffset), body, size: received.body.length, tags: received.tags, keys: received.keys,
        msgId: received.msgId, reconsumeTimes: received.reconsumeTimes, bornTimestamp: Number(received.bornTimestamp),
        storeTimestamp: Number(received.storeTimestamp), receivedAt: Date.now(), properties: received.properties,
      });
      if (received.reconsumeTimes < (order.failures || 0)) throw new Error('refused on purpose');
    });
    await consumer.ready();
    clients.set(`${order.name}/${instances}`, consumer);
  },

  async stop(order) {
    for (const [ name, client ] of clients) {
      if (name === order.name || name.startsWith(order.name + '/')) {
        clients.delete(name);
        await client.close();
      }
    }
  },
};

async function main() {
  say({ event: 'ready' });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    try {
      if (!commands[order.do]) throw new Error(`unknown command ${line}`);
      say({ id: order.id, result: await commands[order.do](order) });
    } catch (error) {
      say({ id: order.id, error: String(error) });
    }
  }
  process.exit(0);
}

main();
