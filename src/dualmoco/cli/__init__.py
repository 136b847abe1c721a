"""The command line, one file per command: `add` declares it, `run` runs it. Commands are thin over public functions."""
