"""Bring log directories that stock NeMo left behind under the immutable layout, without moving anything."""
