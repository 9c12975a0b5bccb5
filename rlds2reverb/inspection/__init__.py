"""What is in a dataset, as data: counted in one pass, by one process or by several."""
