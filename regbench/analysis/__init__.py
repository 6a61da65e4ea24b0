"""What any trained model can be asked: segments of its instances, linear probes, what it costs."""
