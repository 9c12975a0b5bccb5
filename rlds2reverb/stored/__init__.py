"""What a replay server holds, read back as a dataset: from a checkpoint's folder, or from the running server."""
