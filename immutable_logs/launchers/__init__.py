"""One module a launcher: how each tells its launches apart."""
