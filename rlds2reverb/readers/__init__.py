"""What files of other systems hold: each format in a package of its own, read without the system that wrote it.

A format becomes a source by `recordings.Recordings`, which says what it has and reads some of it.
"""
