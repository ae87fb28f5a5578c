"""The blocking forms of producers, consumers and administration, over the process's loop thread."""
