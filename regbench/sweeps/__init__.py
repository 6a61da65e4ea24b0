"""Many runs from one file: a grid is expanded, trained on this machine or on Ray, selected on validation, and tabulated."""
