"""A small NeMo training that shows the layout at work; `train.py` is a script such as users write."""
