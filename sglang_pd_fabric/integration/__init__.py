"""Where the messenger meets SGLang 0.5.23: plugin entry point, conn classes, hooks and the CPU platform."""
