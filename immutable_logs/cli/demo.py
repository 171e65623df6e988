from __future__ import annotations


def run_demo() -> None:
    """Demo."""
