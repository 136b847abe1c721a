"""Where work runs: in this process, or on a Ray cluster; the same functions and the same results."""
