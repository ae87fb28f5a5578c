// The Go client, driven by JSON lines: one command a line on standard input, one answer a line on standard output
// with the command's id, and lines with "event" for what consumers receive. Ends with its input.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type command map[string]any

var (
	nameServer   string
	printing     sync.Mutex
	instances    atomic.Int64
	producers    = map[string]rocketmq.Producer{}
	transactions = map[string]rocketmq.TransactionProducer{}
	pushes       = map[string][]rocketmq.PushConsumer{}
	pulls        = map[string]rocketmq.PullConsumer{}
)

func main() {
	nameServer = os.Args[1]
	rlog.SetLogLevel("error")
	say(map[string]any{"event": "ready"})
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var order command
		if err := json.Unmarshal(line, &order); err != nil {
			panic(err)
		}
		answer := map[string]any{"id": order["id"]}
		result, err := run(order)
		if err != nil {
			answer["error"] = err.Error()
		} else {
			answer["result"] = result
		}
		say(answer)
	}
}

func run(order command) (any, error) {
	name := order.text("name", "")
	switch order.text("do", "") {
	case "producer":
		return nil, startProducer(name, order)
	case "send":
		return send(name, order)
	case "send_many":
		return sendMany(name, order)
	case "batch":
		return batch(name, order)
	case "transaction":
		return transaction(name, order)
	case "request":
		return request(name, order)
	case "push":
		return nil, startPush(name, order)
	case "pull":
		return pullAll(name, order)
	case "stop":
		return nil, stop(name)
	}
	return nil, fmt.Errorf("unknown command %v", order)
}

func startProducer(name string, order command) error {
	options := []producer.Option{
		producer.WithGroupName(name),
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})),
		producer.WithInstanceName(instance()),
		producer.WithRetry(0),
		producer.WithSendMsgTimeout(10 * time.Second),
		producer.WithCompressMsgBodyOverHowmuch(int(order.number("compressOver", 4096))),
		producer.WithQueueSelector(chooser{producer.NewHashQueueSelector(), producer.NewRoundRobinQueueSelector()}),
	}
	if order["checks"] != nil {
		started, err := rocketmq.NewTransactionProducer(decisions{}, options...)
		if err != nil {
			return err
		}
		transactions[name] = started
		return started.Start()
	}
	started, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	producers[name] = started
	return started.Start()
}

// A chooser takes the queue that the message names, else the one of its sharding key, else the next one.
type chooser struct{ byKey, next producer.QueueSelector }

func (c chooser) Select(m *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if m.Queue != nil {
		return m.Queue
	}
	if m.GetShardingKey() != "" {
		return c.byKey.Select(m, queues, last)
	}
	return c.next.Select(m, queues, last)
}

func message(order command) *primitive.Message {
	body := []byte(order.text("body", ""))
	if order["size"] != nil {
		body = bytes.Repeat([]byte("x"), int(order.number("size", 0)))
	}
	made := primitive.NewMessage(order.text("topic", ""), body)
	if order["tags"] != nil {
		made.WithTag(order.text("tags", ""))
	}
	if order["keys"] != nil {
		made.WithKeys(strings.Split(order.text("keys", ""), " "))
	}
	if order["delayLevel"] != nil {
		made.WithDelayTimeLevel(int(order.number("delayLevel", 0)))
	}
	if properties, ok := order["properties"].(map[string]any); ok {
		for key, value := range properties {
			made.WithProperty(key, fmt.Sprint(value))
		}
	}
	return made
}

func send(name string, order command) (any, error) {
	used, made := producers[name], message(order)
	switch order.text("mode", "sync") {
	case "oneway":
		return nil, used.SendOneWay(context.Background(), made)
	case "async":
		return sendAsync(used, made)
	case "queue":
		queueId := int(order.number("queueId", 0))
		made.Queue = &primitive.MessageQueue{Topic: made.Topic, BrokerName: order.text("broker", ""), QueueId: queueId}
	case "selector":
		made.WithShardingKey(order.text("argument", ""))
	}
	result, err := used.SendSync(context.Background(), made)
	return sent(result), err
}

func sendAsync(used rocketmq.Producer, made *primitive.Message) (any, error) {
	type outcome struct {
		result *primitive.SendResult
		err    error
	}
	done := make(chan outcome, 1)
	callback := func(_ context.Context, result *primitive.SendResult, err error) { done <- outcome{result, err} }
	if err := used.SendAsync(context.Background(), callback, made); err != nil {
		return nil, err
	}
	select {
	case each := <-done:
		return sent(each.result), each.err
	case <-time.After(20 * time.Second):
		return nil, errors.New("no call-back")
	}
}

func sendMany(name string, order command) (any, error) {
	results := []any{}
	body := order.text("body", "")
	for each := 0; each < int(order.number("count", 1)); each++ {
		order["body"] = fmt.Sprint(body, each)
		result, err := send(name, order)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return results, nil
}

func batch(name string, order command) (any, error) {
	var made []*primitive.Message
	for _, body := range order["bodies"].([]any) {
		order["body"] = body
		made = append(made, message(order))
	}
	result, err := producers[name].SendSync(context.Background(), made...)
	return sent(result), err
}

func transaction(name string, order command) (any, error) {
	made := message(order)
	made.WithProperty("decide", order.text("decide", "commit"))
	made.WithProperty("check", order.text("check", "commit"))
	result, err := transactions[name].SendMessageInTransaction(context.Background(), made)
	if err != nil {
		return nil, err
	}
	return sent(result.SendResult), nil
}

type decisions struct{}

func (decisions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return state(m.GetProperty("decide"))
}

func (decisions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	say(map[string]any{"event": "check", "body": string(m.Body)})
	return state(m.GetProperty("check"))
}

func state(word string) primitive.LocalTransactionState {
	switch word {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func request(name string, order command) (any, error) {
	wait := time.Duration(order.number("timeout", 5000)) * time.Millisecond
	answer, err := producers[name].Request(context.Background(), wait, message(order))
	if err != nil {
		return nil, err
	}
	return string(answer.Body), nil
}

func startPush(name string, order command) error {
	where := consumer.ConsumeFromFirstOffset
	switch order.text("from", "") {
	case "CONSUME_FROM_LAST_OFFSET":
		where = consumer.ConsumeFromLastOffset
	case "CONSUME_FROM_TIMESTAMP":
		where = consumer.ConsumeFromTimestamp
	}
	model := consumer.Clustering
	if order["broadcasting"] != nil {
		model = consumer.BroadCasting
	}
	started, err := rocketmq.NewPushConsumer(
		consumer.WithGroupName(name),
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})),
		consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(where),
		consumer.WithConsumeTimestamp(order.text("at", "20000101000000")),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(order["orderly"] != nil),
		consumer.WithMaxReconsumeTimes(int32(order.number("maxReconsumeTimes", 16))),
		consumer.WithSuspendCurrentQueueTimeMillis(100*time.Millisecond),
		consumer.WithPullInterval(0),
	)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: order.text("tags", "*")}
	if order["sql"] != nil {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: order.text("sql", "")}
	}
	listener := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range messages {
			received(name, each)
			if order["reply"] != nil {
				reply(each)
			}
			if int64(each.ReconsumeTimes) < order.number("failures", 0) {
				if order["orderly"] != nil {
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := started.Subscribe(order.text("topic", ""), selector, listener); err != nil {
		return err
	}
	pushes[name] = append(pushes[name], started)
	return started.Start()
}

func reply(message *primitive.MessageExt) {
	// The broker finds the asking producer by its heartbeat, which this client sends beside the request.
	time.Sleep(time.Second)
	body := []byte("reply to " + string(message.Body))
	answer, err := consumer.CreateReplyMessage(message, body)
	if err == nil {
		answer.Body = body // CreateReplyMessage drops it
		for _, each := range producers {
			_, err = each.SendSync(context.Background(), answer)
			break
		}
	}
	if err != nil {
		say(map[string]any{"event": "error", "error": err.Error()})
	}
}

// Everything in one queue from an offset on, asked for again until so many have come.
func pullAll(name string, order command) (any, error) {
	used, ok := pulls[name]
	if !ok {
		started, err := rocketmq.NewPullConsumer(
			consumer.WithGroupName(name),
			consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})),
			consumer.WithInstance(instance()),
		)
		if err != nil {
			return nil, err
		}
		selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
		if err := started.Subscribe(order.text("topic", ""), selector); err != nil {
			return nil, err
		}
		if err := started.Start(); err != nil {
			return nil, err
		}
		pulls[name], used = started, started
	}
	queue := &primitive.MessageQueue{
		Topic: order.text("topic", ""), BrokerName: order.text("broker", ""), QueueId: int(order.number("queueId", 0)),
	}
	found, offset := []any{}, order.number("offset", 0)
	for len(found) < int(order.number("count", 1)) {
		result, err := used.PullFrom(context.Background(), queue, offset, 32)
		if err != nil {
			return nil, err
		}
		if result.Status != primitive.PullFound {
			return found, nil
		}
		for _, each := range result.GetMessageExts() {
			found = append(found, describe(each))
		}
		offset = result.NextBeginOffset
	}
	return found, nil
}

func stop(name string) error {
	var failed error
	if used, ok := producers[name]; ok {
		failed = errors.Join(failed, used.Shutdown())
		delete(producers, name)
	}
	if used, ok := transactions[name]; ok {
		failed = errors.Join(failed, used.Shutdown())
		delete(transactions, name)
	}
	for _, used := range pushes[name] {
		failed = errors.Join(failed, used.Shutdown())
	}
	delete(pushes, name)
	if used, ok := pulls[name]; ok {
		failed = errors.Join(failed, used.Shutdown())
		delete(pulls, name)
	}
	return failed
}

func received(name string, message *primitive.MessageExt) {
	event := describe(message)
	event["event"] = "message"
	event["consumer"] = name
	say(event)
}

func describe(message *primitive.MessageExt) map[string]any {
	var body any
	if len(message.Body) <= 4096 {
		body = string(message.Body)
	}
	queueId := -1
	if message.Queue != nil {
		queueId = message.Queue.QueueId
	}
	return map[string]any{
		"topic": message.Topic, "queueId": queueId, "offset": message.QueueOffset, "size": len(message.Body),
		"body": body, "tags": message.GetTags(), "keys": message.GetKeys(), "msgId": message.MsgId,
		"reconsumeTimes": message.ReconsumeTimes, "bornTimestamp": message.BornTimestamp,
		"storeTimestamp": message.StoreTimestamp, "receivedAt": time.Now().UnixMilli(),
		"properties": message.GetProperties(),
	}
}

func sent(result *primitive.SendResult) any {
	if result == nil {
		return nil
	}
	status := []string{"SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE", "UNKNOWN"}
	shown := map[string]any{
		"status": status[result.Status], "msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID,
		"queueOffset": result.QueueOffset,
	}
	if result.MessageQueue != nil {
		shown["queueId"] = result.MessageQueue.QueueId
	}
	return shown
}

func instance() string {
	return fmt.Sprintf("driver-%d-%d", os.Getpid(), instances.Add(1))
}

func (order command) text(key, otherwise string) string {
	if value, ok := order[key]; ok && value != nil {
		return fmt.Sprint(value)
	}
	return otherwise
}

func (order command) number(key string, otherwise int64) int64 {
	if value, ok := order[key].(float64); ok {
		return int64(value)
	}
	return otherwise
}

func say(line any) {
	encoded, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	os.Stdout.Write(append(encoded, '\n'))
}
