"""The message store: Apache RocketMQ's files, written and read."""
