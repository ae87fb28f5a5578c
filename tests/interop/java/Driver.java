import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Apache's Java client, driven by JSON lines: one command a line on standard input, one answer a line on standard
 * output with the command's id, and lines with "event" for what consumers receive. Ends with its input.
 */
public class Driver {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPushConsumer> PUSH = new ConcurrentHashMap<>();
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPullConsumer> PULL = new ConcurrentHashMap<>();
    private static String nameServer;

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        print(Map.of("event", "ready"));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, Object> command = new HashMap<>(RemotingSerializable.fromJson(line, Map.class));
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("id", command.get("id"));
            try {
                Object result = run(command);
                answer.put("result", result);
            } catch (Throwable error) {
                answer.put("error", error + (error.getCause() == null ? "" : " because of " + error.getCause()));
            }
            print(answer);
        }
        System.exit(0);
    }

    private static Object run(Map<String, Object> command) throws Exception {
        String name = text(command, "name", "");
        switch (text(command, "do", "")) {
            case "producer": return startProducer(name, command);
            case "send": return send(PRODUCERS.get(name), command);
            case "send_many": return sendMany(PRODUCERS.get(name), command);
            case "batch": return batch(PRODUCERS.get(name), command);
            case "transaction": return transaction((TransactionMQProducer) PRODUCERS.get(name), command);
            case "request": return request(PRODUCERS.get(name), command);
            case "push": return startPush(name, command);
            case "lite": return startLite(name, command);
            case "poll": return poll(LITE.get(name), number(command, "timeout", 1000));
            case "pull": return pull(name, command);
            case "view": return describe(viewed(PRODUCERS.get(name), command));
            case "query": return query(PRODUCERS.get(name), command);
            case "search": return PRODUCERS.get(name).searchOffset(queue(command), number(command, "time", 0));
            case "commit": LITE.get(name).commitSync(); return null;
            case "stop": return stop(name);
            default: throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private static Object startProducer(String name, Map<String, Object> command) throws Exception {
        DefaultMQProducer producer;
        if (command.containsKey("checks")) {
            TransactionMQProducer transactional = new TransactionMQProducer(name);
            transactional.setTransactionListener(new Decisions());
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(name);
        }
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(UUID.randomUUID().toString());
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setCompressMsgBodyOverHowmuch((int) number(command, "compressOver", 4096));
        producer.start();
        PRODUCERS.put(name, producer);
        return null;
    }

    private static Message message(Map<String, Object> command) {
        Message message = new Message(text(command, "topic", ""), bodyOf(command));
        if (command.get("tags") != null) {
            message.setTags(text(command, "tags", ""));
        }
        if (command.get("keys") != null) {
            message.setKeys(text(command, "keys", ""));
        }
        if (command.get("delayLevel") != null) {
            message.setDelayTimeLevel((int) number(command, "delayLevel", 0));
        }
        if (command.get("properties") instanceof Map) {
            ((Map<?, ?>) command.get("properties")).forEach((key, value) ->
                message.putUserProperty(key.toString(), value.toString()));
        }
        return message;
    }

    private static byte[] bodyOf(Map<String, Object> command) {
        if (command.get("size") != null) {
            byte[] body = new byte[(int) number(command, "size", 0)];
            java.util.Arrays.fill(body, (byte) 'x');
            return body;
        }
        return text(command, "body", "").getBytes(StandardCharsets.UTF_8);
    }

    private static Object send(DefaultMQProducer producer, Map<String, Object> command) throws Exception {
        Message message = message(command);
        switch (text(command, "mode", "sync")) {
            case "oneway":
                producer.sendOneway(message);
                return null;
            case "async":
                return sendAsync(producer, message);
            case "queue":
                return sent(producer.send(message, queue(command)));
            case "selector":
                return sent(producer.send(message, (queues, each, argument) ->
                    queues.get(Math.abs(argument.hashCode() % queues.size())), text(command, "argument", "")));
            default:
                return sent(producer.send(message));
        }
    }

    private static MessageQueue queue(Map<String, Object> command) {
        return new MessageQueue(text(command, "topic", ""), text(command, "broker", ""),
            (int) number(command, "queueId", 0));
    }

    private static MessageExt viewed(DefaultMQProducer producer, Map<String, Object> command) throws Exception {
        return producer.viewMessage(text(command, "topic", ""), text(command, "msgId", ""));
    }

    private static Object query(DefaultMQProducer producer, Map<String, Object> command) throws Exception {
        QueryResult result = producer.queryMessage(text(command, "topic", ""), text(command, "key", ""), 64, 0,
            Long.MAX_VALUE);
        List<Object> found = new ArrayList<>();
        result.getMessageList().forEach(message -> found.add(describe(message)));
        return found;
    }

    private static Object sendAsync(DefaultMQProducer producer, Message message) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        AtomicReference<Object> outcome = new AtomicReference<>();
        producer.send(message, new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                outcome.set(result);
                done.countDown();
            }

            @Override public void onException(Throwable error) {
                outcome.set(error);
                done.countDown();
            }
        });
        if (!done.await(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no call-back");
        }
        if (outcome.get() instanceof Exception) {
            throw (Exception) outcome.get();
        }
        return sent((SendResult) outcome.get());
    }

    private static Object sendMany(DefaultMQProducer producer, Map<String, Object> command) throws Exception {
        long count = number(command, "count", 1);
        List<Object> results = new ArrayList<>();
        String body = text(command, "body", "");
        for (long each = 0; each < count; each++) {
            command.put("body", body + each);
            results.add(send(producer, command));
        }
        return results;
    }

    private static Object batch(DefaultMQProducer producer, Map<String, Object> command) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object body : (Collection<?>) command.get("bodies")) {
            command.put("body", body);
            messages.add(message(command));
        }
        return sent(producer.send(messages));
    }

    private static Object transaction(TransactionMQProducer producer, Map<String, Object> command) throws Exception {
        Message message = message(command);
        message.putUserProperty("decide", text(command, "decide", "commit"));
        message.putUserProperty("check", text(command, "check", "commit"));
        return sent(producer.sendMessageInTransaction(message, null));
    }

    private static Object request(DefaultMQProducer producer, Map<String, Object> command) throws Exception {
        Message reply = producer.request(message(command), number(command, "timeout", 5000));
        return new String(reply.getBody(), StandardCharsets.UTF_8);
    }

    private static Object startPush(String name, Map<String, Object> command) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(UUID.randomUUID().toString());
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(text(command, "from", "CONSUME_FROM_FIRST_OFFSET")));
        if (command.get("at") != null) {
            consumer.setConsumeTimestamp(text(command, "at", ""));
        }
        if (command.get("sql") != null) {
            consumer.subscribe(text(command, "topic", ""), MessageSelector.bySql(text(command, "sql", "")));
        } else {
            consumer.subscribe(text(command, "topic", ""), text(command, "tags", "*"));
        }
        if (command.get("broadcasting") != null) {
            // The enum lives in another package in 4.9 than in 5.x; its setter is found by name.
            for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
                if (method.getName().equals("setMessageModel")) {
                    method.invoke(consumer, method.getParameterTypes()[0].getField("BROADCASTING").get(null));
                }
            }
        }
        consumer.setMaxReconsumeTimes((int) number(command, "maxReconsumeTimes", 16));
        long failures = number(command, "failures", 0);
        boolean isReplying = command.get("reply") != null;
        if (command.get("orderly") != null) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    received(name, message);
                    if (message.getReconsumeTimes() < failures) {
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    received(name, message);
                    if (isReplying) {
                        reply(message);
                    }
                    if (message.getReconsumeTimes() < failures) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        PUSH.put(name + "/" + consumer.getInstanceName(), consumer);
        return consumer.buildMQClientId();
    }

    private static void reply(MessageExt message) {
        try {
            DefaultMQProducer producer = PRODUCERS.values().iterator().next();
            byte[] body = ("reply to " + new String(message.getBody(), StandardCharsets.UTF_8))
                .getBytes(StandardCharsets.UTF_8);
            producer.send(MessageUtil.createReplyMessage(message, body));
        } catch (Exception error) {
            print(Map.of("event", "error", "error", error.toString()));
        }
    }

    private static Object startLite(String name, Map<String, Object> command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(name);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(UUID.randomUUID().toString());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        String topic = text(command, "topic", "");
        if (command.get("assign") != null) {
            consumer.start();
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
            consumer.assign(queues);
        } else {
            consumer.subscribe(topic, text(command, "tags", "*"));
            consumer.start();
        }
        LITE.put(name, consumer);
        return null;
    }

    private static Object poll(DefaultLitePullConsumer consumer, long timeout) {
        List<Object> found = new ArrayList<>();
        for (MessageExt message : consumer.poll(timeout)) {
            found.add(describe(message));
        }
        return found;
    }

    /** Everything in one queue from an offset on, asked for again until so many have come. */
    private static Object pull(String name, Map<String, Object> command) throws Exception {
        if (!PULL.containsKey(name)) {
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(name);
            consumer.setNamesrvAddr(nameServer);
            consumer.setInstanceName(UUID.randomUUID().toString());
            consumer.start();
            PULL.put(name, consumer);
        }
        List<Object> found = new ArrayList<>();
        long offset = number(command, "offset", 0);
        while (found.size() < number(command, "count", 1)) {
            PullResult result = PULL.get(name).pull(queue(command), "*", offset, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                return found;
            }
            result.getMsgFoundList().forEach(message -> found.add(describe(message)));
            offset = result.getNextBeginOffset();
        }
        return found;
    }

    private static Object stop(String name) {
        if (PRODUCERS.containsKey(name)) {
            PRODUCERS.remove(name).shutdown();
        }
        if (LITE.containsKey(name)) {
            LITE.remove(name).shutdown();
        }
        if (PULL.containsKey(name)) {
            PULL.remove(name).shutdown();
        }
        for (String key : new ArrayList<>(PUSH.keySet())) {
            if (key.startsWith(name + "/")) {
                PUSH.remove(key).shutdown();
            }
        }
        return null;
    }

    private static class Decisions implements TransactionListener {
        @Override public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message.getUserProperty("decide"));
        }

        @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
            print(Map.of("event", "check", "body", new String(message.getBody(), StandardCharsets.UTF_8)));
            return state(message.getUserProperty("check"));
        }

        private static LocalTransactionState state(String word) {
            switch (word) {
                case "commit": return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
                default: return LocalTransactionState.UNKNOW;
            }
        }
    }

    private static void received(String name, MessageExt message) {
        Map<String, Object> event = new LinkedHashMap<>();
        event.put("event", "message");
        event.put("consumer", name);
        event.putAll(describe(message));
        print(event);
    }

    private static Map<String, Object> describe(MessageExt message) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("topic", message.getTopic());
        shown.put("queueId", message.getQueueId());
        shown.put("offset", message.getQueueOffset());
        byte[] body = message.getBody();
        shown.put("size", body.length);
        shown.put("body", body.length > 4096 ? null : new String(body, StandardCharsets.UTF_8));
        shown.put("tags", message.getTags());
        shown.put("keys", message.getKeys());
        shown.put("msgId", message.getMsgId());
        shown.put("reconsumeTimes", message.getReconsumeTimes());
        shown.put("bornTimestamp", message.getBornTimestamp());
        shown.put("storeTimestamp", message.getStoreTimestamp());
        shown.put("receivedAt", System.currentTimeMillis());
        shown.put("properties", message.getProperties());
        return shown;
    }

    private static Map<String, Object> sent(SendResult result) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("status", result.getSendStatus().name());
        shown.put("msgId", result.getMsgId());
        shown.put("offsetMsgId", result.getOffsetMsgId());
        shown.put("queueId", result.getMessageQueue() == null ? null : result.getMessageQueue().getQueueId());
        shown.put("queueOffset", result.getQueueOffset());
        return shown;
    }

    private static String text(Map<String, Object> command, String key, String otherwise) {
        Object value = command.get(key);
        return value == null ? otherwise : value.toString();
    }

    private static long number(Map<String, Object> command, String key, long otherwise) {
        Object value = command.get(key);
        return value == null ? otherwise : ((Number) value).longValue();
    }

    private static synchronized void print(Map<String, ?> line) {
        System.out.println(RemotingSerializable.toJson(line, false));
        System.out.flush();
    }
}
