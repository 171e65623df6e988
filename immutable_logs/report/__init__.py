"""The report: one HTML page on an experiment that needs nothing but itself, and runs no code in the browser."""
