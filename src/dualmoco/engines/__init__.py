"""Where encoding and scanning run: in this process, or on a cluster; the same functions and the same results."""
