"""The module by which Spark will find the format `rocketmq`."""
