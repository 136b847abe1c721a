"""One file a verb of the command line: `add` describes it, `run` does it."""
