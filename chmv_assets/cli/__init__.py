"""The `chmv` command: one module per group of commands, `main` puts them together."""
