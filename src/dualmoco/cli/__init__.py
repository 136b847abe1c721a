"""One file a verb of the command line, thin over the public functions: `add` describes it, `run` does it."""
