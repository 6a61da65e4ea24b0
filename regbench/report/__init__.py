"""What people look at after a run: pictures, and a page that shows where the model errs."""
