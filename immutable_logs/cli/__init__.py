"""The command line `immutable-logs`: arguments in, text or JSON out."""

from __future__ import annotations

from immutable_logs.cli.app import app, main

__all__ = ["app", "main"]
