"""The Spark connector; its data source comes with a later release."""
