"""Other projects' own DLPack tests, with dlbridge in the place of one side: `make test-peers`."""
