"""What crosses the line between workflow and activity: names, inputs, outputs, error types."""
