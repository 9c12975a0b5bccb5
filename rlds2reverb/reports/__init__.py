"""What is in a dataset, as data; the command line prints it."""
