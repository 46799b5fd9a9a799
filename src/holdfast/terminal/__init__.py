"""What the command line and the demos share: options, output, tables, exit codes."""
