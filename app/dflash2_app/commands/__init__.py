"""The commands: one module each, thin; they raise, `cli.main` reports."""
