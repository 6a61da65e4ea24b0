"""Golden training curves: what each built-in architecture's losses are in a tiny setting, and how far rounding moves them."""
