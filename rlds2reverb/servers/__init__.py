"""What a server is: its names, its connection, its last answer, and whether it is lost or back. One server is a set of one."""
