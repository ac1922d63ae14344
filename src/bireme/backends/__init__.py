"""One small module for each way to reach the nodes; loaded by name, when it is needed."""
