"""TinT: gradient steps on the prompt of any trained model, and the size of the simulator."""
