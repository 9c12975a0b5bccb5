"""Tasks that worker processes run, on this machine or on a Ray cluster. A push, a conversion and an inspection say what a task is."""
