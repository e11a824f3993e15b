"""Watch a training in any loop: `nl.watch`."""
