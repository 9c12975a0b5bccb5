"""Steps of an environment loop into tables: recorded, judged as a push judges them, sent in the background."""
